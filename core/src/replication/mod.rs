//! Replication of the index: messages and their application.
//!
//! `proto/inferencecache/replication/v1` is the contract. [`frame`] seals and opens frames (both sides use it),
//! [`Directory`] is everything but the entries, [`Follower`] applies a stream to the index of a worker in slices.

mod directory;
mod engine_scheme;
mod follower;
pub mod frame;

pub use directory::{Directory, ModelInfo, ReplicaInfo, Route, Unroutable};
pub use engine_scheme::EngineScheme;
pub use follower::{Follower, Position, Progress};
pub use frame::ReplicationError;

/// Highest version of the protocol that this code speaks.
pub const PROTOCOL_VERSION: u32 = 1;

/// Messages of `inferencecache.replication.v1`, generated from `proto/`.
#[allow(missing_docs)]
pub mod proto {
    include!(concat!(env!("OUT_DIR"), "/inferencecache.replication.v1.rs"));
}
