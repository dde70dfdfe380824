//! vLLM's own block hashes (`sha256_cbor`): a check and an opaque scheme, never our key.
