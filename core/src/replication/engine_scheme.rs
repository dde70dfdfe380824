//! Engine schemes: chains that engines compute and some producers report as they are.
//!
//! Where a scope of the directory has such a scheme, a gateway computes the engine's chain beside its own; the keys are
//! the low 64 bits of the digests. Tokens whose content is not in the prompt's text (images) are never looked up so.

use super::proto;
use crate::hash::vllm::{Algorithm, ChainHasher, Digest, ExtraKey, ExtraKeysFormat};
use crate::hash::{self, BlockSize};

/// How the engines of a model hash their blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineScheme {
    /// The `hash_scheme` of its scopes.
    pub name: String,
    /// Tokens per block.
    pub block_size: BlockSize,
    algorithm: Algorithm,
    extra_keys: ExtraKeysFormat,
    root: Digest,
}

impl EngineScheme {
    /// Reads a scheme from the wire; `None` if it cannot be computed.
    pub fn from_proto(wire: &proto::EngineScheme) -> Option<EngineScheme> {
        let algorithm = Algorithm::named(&wire.algorithm)?;
        if wire.name.is_empty() || wire.name == hash::SCHEME {
            return None;
        }
        Some(EngineScheme {
            name: wire.name.clone(),
            block_size: BlockSize::new(wire.block_size)?,
            algorithm,
            extra_keys: if wire.tagged_extra_keys {
                ExtraKeysFormat::Tagged
            } else {
                ExtraKeysFormat::Untagged
            },
            root: Digest::none_hash(algorithm, &wire.seed),
        })
    }

    /// Whether the blocks of adapters can be computed: tagged, their hashes cover where the engine loaded it from.
    pub fn knows_adapters(&self) -> bool {
        self.extra_keys == ExtraKeysFormat::Untagged
    }

    /// The chain of a prompt for `adapter`, none being the base model.
    pub fn chain_hasher(&self, adapter: Option<&str>, cache_salt: Option<&str>) -> ChainHasher {
        let lora = adapter.map(|name| ExtraKey::Lora { name, path: "" });
        let salt = cache_salt.map(ExtraKey::CacheSalt);
        let hasher = ChainHasher::new(self.algorithm, self.extra_keys, self.block_size, self.root);
        let first: Vec<_> = lora.into_iter().chain(salt).collect();
        hasher.with_extra_keys(&first, lora.as_slice())
    }
}
