//! Digests and the algorithms that make them.

use super::Serializer;
use super::cbor::Cbor;
use super::pickle::Pickle;
use sha2::{Digest as _, Sha256};
use xxhash_rust::xxh3::xxh3_128;

/// The values of vLLM's `--prefix-caching-hash-algo` (`builtin`, of releases before 0.11, cannot be recomputed).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// `sha256`: vLLM's default.
    Sha256,
    /// `sha256_cbor`.
    Sha256Cbor,
    /// `xxhash`, 0.13 and later.
    Xxhash,
    /// `xxhash_cbor`, 0.13 and later.
    XxhashCbor,
}

impl Algorithm {
    /// Every algorithm.
    pub const ALL: [Algorithm; 4] =
        [Algorithm::Sha256, Algorithm::Sha256Cbor, Algorithm::Xxhash, Algorithm::XxhashCbor];

    /// vLLM's name of it.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Sha256 => "sha256",
            Algorithm::Sha256Cbor => "sha256_cbor",
            Algorithm::Xxhash => "xxhash",
            Algorithm::XxhashCbor => "xxhash_cbor",
        }
    }

    /// The algorithm of this name.
    pub fn named(name: &str) -> Option<Algorithm> {
        Algorithm::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }

    /// Whether values are serialized by pickle, whose bytes depend on more than the values.
    pub fn is_pickle(self) -> bool {
        matches!(self, Algorithm::Sha256 | Algorithm::Xxhash)
    }

    pub(super) fn digest(self, bytes: &[u8]) -> Digest {
        match self {
            Algorithm::Sha256 | Algorithm::Sha256Cbor => Digest::Sha256(Sha256::digest(bytes).into()),
            Algorithm::Xxhash | Algorithm::XxhashCbor => Digest::Xxh3(xxh3_128(bytes).to_be_bytes()),
        }
    }
}

/// Hash of a block and, through its parent, of everything before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Digest {
    /// Of `sha256` and `sha256_cbor`.
    Sha256([u8; 32]),
    /// Of `xxhash` and `xxhash_cbor`: XXH3-128, big-endian.
    Xxh3([u8; 16]),
}

impl Digest {
    /// The parent of the first block of every prompt.
    pub fn none_hash(algorithm: Algorithm, seed: &str) -> Digest {
        let mut bytes = Vec::new();
        if algorithm.is_pickle() {
            let mut pickle = Pickle::begin(&mut bytes);
            pickle.text(seed);
            pickle.end();
        } else {
            Cbor(&mut bytes).text(seed);
        }
        algorithm.digest(&bytes)
    }

    /// All bytes: what vLLM publishes with `VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0`.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Digest::Sha256(bytes) => bytes,
            Digest::Xxh3(bytes) => bytes,
        }
    }

    /// What vLLM publishes as an integer: the last 8 bytes, big-endian, unsigned.
    pub fn low64(&self) -> u64 {
        let [.., a, b, c, d, e, f, g, h] = match self {
            Digest::Sha256([.., a, b, c, d, e, f, g, h]) => [*a, *b, *c, *d, *e, *f, *g, *h],
            Digest::Xxh3([.., a, b, c, d, e, f, g, h]) => [*a, *b, *c, *d, *e, *f, *g, *h],
        };
        u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }
}
