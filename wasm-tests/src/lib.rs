//! A proxy-wasm host on wasmtime that runs the built plugin as Envoy would, with everything in the tests' hands.
//!
//! [`Host`] stands for the Envoy process: shared data, shared queues, metrics, the clock, the log, injected failures.
//! [`Vm`] is one VM of it, on which tests call what Envoy would call: configure, tick, a request with its body, gRPC
//! messages. [`HostShim`] is a scripted control service. The semantics are those seen in a real Envoy 1.40 where they
//! matter to the plugin: header maps of bytes, cumulative body sizes, held headers with and without
//! `allow_on_headers_stop_iteration`, compare-and-swap with its lack of a check on creation, one dequeuer per queue
//! message, resuming after the callback.
//!
//! It offers the part of ABI 0.2.1 that the plugin imports; a plugin that imports more does not load here, which is
//! the moment to add it. It is no general test framework for plugins.

mod grpc;
mod host;
mod hostcalls;
mod http;
mod memory;
mod metrics;
mod plugin;
mod shared;
mod shim;
mod vm;

pub use grpc::GrpcStream;
pub use host::{Host, LogLine};
pub use http::{Exchange, Headers};
pub use plugin::plugin_wasm;
pub use shim::{Artifact, HostShim};
pub use vm::{Action, Vm};
