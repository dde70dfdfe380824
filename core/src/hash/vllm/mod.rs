//! vLLM's own block hashes: a check, and schemes for lookups where producers report them; never our key.
//!
//! ```text
//! none_hash = H(ser(seed))                        seed: the text of PYTHONHASHSEED
//! hash[0]   = H(ser((none_hash, tokens, extra)))  extra: None, or the tuple of extra keys
//! hash[i]   = H(ser((hash[i-1], tokens, extra)))
//!
//! algorithm     H                                   ser
//! sha256        SHA-256                             pickle, protocol 5 (vLLM's default)
//! sha256_cbor   SHA-256                             canonical CBOR
//! xxhash        XXH3-128, 16 bytes big-endian       pickle, protocol 5
//! xxhash_cbor   XXH3-128, 16 bytes big-endian       canonical CBOR
//! ```
//!
//! What engines publish is the whole digest, or its low 64 bits ([`Digest::low64`]) by default. Extra keys separate
//! prompts whose tokens are equal: the LoRA adapter in every block, the `cache_salt` in the first, multimodal content in
//! the blocks that it overlaps, embeddings. Their encoding changed in 0.31 ([`ExtraKeysFormat`]).
//!
//! Sources: `hash_block_tokens` and `generate_block_hash_extra_keys` of vLLM 0.22.1 and 0.32.0; golden vectors of both in
//! the tests. CPython 3.8 to 3.14 pickle the same bytes.
//!
//! Limits of pickle: an object that occurs twice is pickled by reference. The tags of extra keys are such objects and
//! are done so; whether two equal adapters' names, salts or identifiers are one object cannot be known, they are taken
//! for two. Not here: the look-ahead tokens of speculative decoding (0.33), the numbers of adapters that vLLM hashed
//! before 0.11.1, multimodal content without an offset (before 0.19).
//!
//! Cost: one digest of about `35 + 3 * block_size` (CBOR) or `60 + 5 * block_size` (pickle) bytes per block, no
//! allocation after the first block.

mod cbor;
mod chain;
mod digest;
mod extra_keys;
mod pickle;
#[cfg(test)]
mod tests;

pub use chain::ChainHasher;
pub use digest::{Algorithm, Digest};
pub use extra_keys::{ExtraKey, ExtraKeysFormat};

/// Seed of the first parent in vLLM 0.29 and later when PYTHONHASHSEED is not set, for the SHA-256 algorithms. It is
/// random before, and for the XXH3 algorithms.
pub const DEFAULT_SEED: &str = "vllm-none-hash";

/// Writes the values that block hashes cover, in one of the two serializations.
trait Serializer {
    /// A tuple of `len` values follows, then [`Serializer::end_tuple`] with the same `len`.
    fn begin_tuple(&mut self, len: usize);
    fn end_tuple(&mut self, len: usize);
    fn none(&mut self);
    fn int(&mut self, value: i64);
    fn bytes(&mut self, value: &[u8]);
    fn text(&mut self, value: &str);
    /// A text that is the same object wherever it occurs.
    fn literal(&mut self, value: &'static str);
}
