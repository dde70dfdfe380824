//! Real processes on loopback: Envoy with the built plugin, host-shim and engines, for tests, the demo and `e2e-vllm`.
//!
//! [`Stack`] starts them in order and ends them in every case: on drop, on a panic, and by the kernel if this process
//! is killed. Envoy runs the repository's own `manifests/envoy/envoy.yaml` ([`manifest`]), so what is tested is what
//! users take. Programs are found beside this one in Cargo's target directory; Envoy and the plugin through
//! `INFERENCE_CACHE_ENVOY` and `INFERENCE_CACHE_PLUGIN`, which `cargo xtask` sets.

pub mod client;
pub mod echo;
pub mod engine;
pub mod envoy;
pub mod host_shim;
pub mod load;
pub mod lora;
pub mod manifest;
pub mod ports;
pub mod process;
pub mod raw;
pub mod shadow;
pub mod stack;

pub mod wait;
mod workdir;

pub use client::{Answer, Client};
pub use stack::{Options, Stack};
pub use wait::{unless_stopped, until};
pub use workdir::Workdir;
