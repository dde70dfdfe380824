//! What producers tell over gRPC: `ReportCacheState` and `PublishEvent` of `inferencecache.v1alpha1`.
//!
//! ```text
//!  bytes ─wire─▶ messages ─check─▶ updates and events ─┬─▶ writer: entries   (its `reports` apply them)
//!        bounded          typed, refusals counted      └─▶ stats::Board: statistics, liveness
//! ```
//!
//! Rules
//! * An update adds and refreshes; what it does not name stays. Entries are identified by (replica, scope, hash); said
//!   again, the last word wins (tier, token count). The scope is what the update says, whatever tenant and model the
//!   configuration gives the replica.
//! * Hashes are opaque, of 8, 16 or 32 bytes, and become a 64-bit key within their hash scheme: the last 8 bytes, read
//!   big-endian. That is what vLLM's integer form is of its digest, so a producer may send either. The server's own
//!   scheme, `xxh3-1337`, has 8 bytes only: the hash as a big-endian integer. Other lengths are refused.
//! * Without a hash scheme prefixes are not indexed; statistics are taken.
//! * A chain becomes one entry per block, its token count that of the prefix up to there; a `prefix_hash` beside it is
//!   one entry more. A chain whose two arrays differ in length is dropped whole, the `prefix_hash` beside it too.
//! * Adapter: the entry's, else the update's, else the base model. Tier: unspecified is T1; one of a later release is
//!   taken for the slowest.
//! * `PREFIX_EVICTED` removes in every hash scheme, with an adapter only there, without one in all. `ALL_CLEARED` drops
//!   the replica's entries and statistics in (tenant, model). `REPLICA_UPDATED` says that the replica lives, and leaves
//!   the age of its statistics alone. `PREFIX_ADDED` changes nothing.
//! * Rates that are not finite are 0. The tenant `inferencecache.io/probe` is the server's own and cannot be written.
//!
//! A replica that the configuration knows keeps its address, and what is reported in the scheme that gateways compute
//! is replicated to them. Others are held, but no gateway can route to them, so gateways do not hear of them.
//!
//! Nothing here trusts a producer with memory: see [`limits`]. What is refused is counted by reason.

mod check;
mod codec;
mod service;
pub mod wire;

pub use check::{Change, Event, Prefixes, Stats, Subject, Update, event, update};
pub use codec::BoundedCodec;
pub use service::Counters;
pub(crate) use service::Service;

use inference_cache_core::hash::BlockHash;
use wire::WireError;

/// What the writer is told.
#[derive(Clone, Debug)]
pub(crate) enum Told {
    Held { subject: Subject, prefixes: Vec<Prefixes> },
    Evicted { subject: Subject, adapter: Option<String>, key: BlockHash, own_scheme: bool },
    Cleared { subject: Subject },
}

/// Bounds on what producers may make the server hold.
pub mod limits {
    /// Bytes of a message; gRPC's usual limit.
    pub const MESSAGE_BYTES: usize = 4 << 20;
    /// Prefixes and blocks of an update together.
    pub const ENTRIES: usize = 1 << 16;
    /// Bytes of a name: replica, tenant, model, hash scheme, adapter.
    pub const NAME_BYTES: usize = 256;
    /// Open `ReportCacheState` streams; each may hold a message.
    pub const STREAMS: usize = 256;
    /// Replicas that only producers know.
    pub const REPLICAS: usize = 4096;
    /// Scopes (tenant, model, hash scheme, adapter) that producers made.
    pub const SCOPES: usize = 8192;
    /// (replica, tenant, model) whose statistics and liveness are kept.
    pub const SUBJECTS: usize = 16_384;
}

/// Tenant of the server's self-test.
pub const PROBE_TENANT: &str = "inferencecache.io/probe";

/// Generated messages, client and server.
#[allow(missing_docs, unreachable_pub, missing_debug_implementations, clippy::all)]
pub mod proto {
    tonic::include_proto!("inferencecache.v1alpha1");
}

/// From the bytes of a `CacheStateUpdate` to what is done with it.
pub fn update_from_bytes(bytes: &[u8]) -> Result<Update, WireError> {
    wire::decode_update(bytes).map(update)
}

/// From the bytes of a `CacheEvent` to what is done with it.
pub fn event_from_bytes(bytes: &[u8]) -> Result<Result<Event, &'static str>, WireError> {
    wire::decode(bytes).map(event)
}
