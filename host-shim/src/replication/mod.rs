//! `inferencecache.replication.v1`: frames, the streams that carry them, the gRPC service.

mod hub;
mod queue;
mod service;

pub(crate) use hub::{Change, Hub, Snapshot, wire_tier};
pub use queue::Queue;
pub(crate) use service::Service;

/// Generated client and server; their messages are core's.
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub mod proto {
    tonic::include_proto!("inferencecache.replication.v1");
}
