//! Decoder of engine KV events.
