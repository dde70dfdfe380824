//! Replication of the index: messages and their application.

/// Messages of `inferencecache.replication.v1`, generated from `proto/`.
#[allow(missing_docs)]
pub mod proto {
    include!(concat!(env!("OUT_DIR"), "/inferencecache.replication.v1.rs"));
}
