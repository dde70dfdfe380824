//! The built plugin, run as Envoy would run it. One binary: the module is compiled once.

mod bad_input;
mod common;
mod configuration;
mod modes;
mod replication;
mod request_path;
mod robustness;
