//! Pure logic of inference-cache.
//!
//! Everything that can be decided without a hostcall or a socket lives here and is tested here, natively and under
//! wasm. No I/O, no clocks, no threads, no global state: time is an argument. No input reaches a panic.
//!
//! The request path, in order of the modules: [`openai`] parses the body, [`template`] renders the chat,
//! [`tokenize`] encodes the text, [`hash`] chains the blocks, [`replica`] looks them up, [`pick`] ranks the replicas;
//! [`gateway`] ties them together. [`events`] decodes what engines announce and [`ingest`] turns it into index
//! operations, [`replication`] carries those to the gateways.

pub mod events;
pub mod gateway;
pub mod hash;
pub mod ingest;
pub mod openai;
pub mod pick;
pub mod replica;
pub mod replication;
pub mod template;
pub mod tokenize;
