//! Per-source state: engine events to index operations.
