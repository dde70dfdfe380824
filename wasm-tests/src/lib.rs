//! A proxy-wasm host.
