//! The proxy-wasm plugin.
