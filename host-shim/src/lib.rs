//! host-shim: the native service between engines and gateways.
//!
//! ```text
//!  engine ─ZMQ─▶ receive task ─bounded queue─▶ source task ─operations─▶ writer ─frames─▶ gRPC streams
//!                (only receives)   sheds        core::ingest            ▲ index, directory, history
//!  producers ─gRPC─▶ wire, check ─updates and events───────────────────┘
//!  engine /metrics ─HTTP─▶ stats::Board ◀─statistics of producers
//! ```
//!
//! One task receives per source and does nothing else: an engine must never feel backpressure. What does not fit in the
//! queue behind it is dropped, which the sequence numbers show as a gap. One writer owns the index and numbers its
//! changes, so a snapshot is exact at one sequence number. [`HostShim`] runs it all inside any tokio runtime.

pub mod config;
pub mod decode;
mod directory;
pub mod http;
pub mod index;
pub mod ingest;
pub mod metrics;
pub mod models;
pub mod producers;
mod reload;
pub mod replication;
mod service;
pub mod stats;
pub mod tokenizer;
pub mod writer;

pub use config::{Config, ConfigError};
pub use directory::Holder;
pub use reload::{ConfigFile, Reloads};
pub use service::{HostShim, StartError};
