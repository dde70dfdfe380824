//! A stand-in engine for demo and tests: no model, but the prefix cache, the scheduler, the KV events, the OpenAI
//! endpoints and the metrics of vLLM.
//!
//! It is faithful where routing can tell: which tokens are cached, what is announced in which order and in which bytes
//! (checked against recordings of the real engine, `tests/recorded.rs`), `cached_tokens`, and that cached tokens and
//! small batches are faster. Answers are pseudo words, the same for the same prompt.
//!
//! [`EngineSim`] is the whole server; [`scheduler`] over [`block_pool`] is the engine without a clock.

pub mod block_pool;
pub mod config;
mod engine;
pub mod events;
mod http;
mod metrics;
mod publisher;
pub mod scheduler;
mod sequence;
mod start;
mod text;

pub use publisher::EventEndpoints;
pub use sequence::{Request, RequestId};
pub use start::{EngineSim, StartError};
pub use text::TextError;
