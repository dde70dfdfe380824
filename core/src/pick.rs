//! Choice of the replica.
