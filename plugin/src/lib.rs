//! The proxy-wasm plugin: hostcalls around [`inference_cache_core::gateway`].
//!
//! Everything that can be decided without a hostcall lives in core; here is what needs one: reading the configuration,
//! holding a request until its body is there, setting the destination header, following the replication stream.
//!
//! Contract
//! * Every failure ends in "the request goes on without a hint" plus a counter. No input and no hostcall status reaches
//!   a panic, because a trap costs the worker its warm index and a second of 503.
//! * Contents of requests are neither logged nor put into metrics.
//!
//! Why there is no SDK: its dispatcher and its hostcalls panic on statuses, ids and header bytes they do not expect,
//! and read a status from outside straight into a Rust enum. [`abi`] declares the few imports and exports that are
//! needed, with the only unsafe code.
//!
//! From the outside in: [`abi`] (ABI 0.2.1) > [`host`] (safe hostcalls) and [`vm`] (one callback in, one context found)
//! > [`root`] and [`request`] (the contexts) > [`source`] (replication) and [`mode`] (body or header mode).

pub mod abi;
pub mod config;
pub mod headers;
pub mod host;
pub mod link;
pub mod metrics;
pub mod mode;
pub mod request;
pub mod root;
pub mod source;
pub mod vm;
pub mod wake;
