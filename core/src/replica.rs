//! The per-worker index.
