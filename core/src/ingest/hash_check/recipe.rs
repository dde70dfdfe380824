//! The known ways to hash, and the attempt of one on an event.

use crate::events::{BlockStored, EngineHash, ExtraKey};
use crate::hash::vllm::{Algorithm, Digest, ExtraKeysFormat};
use crate::hash::{BlockSize, sglang, vllm};

/// How an engine hashes its blocks, without the seed. What no checked event has told yet is `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Recipe {
    /// vLLM.
    Vllm {
        /// What hashes.
        algorithm: Algorithm,
        /// How extra keys enter; only events with such keys tell.
        extra_keys: Option<ExtraKeysFormat>,
    },
    /// SGLang.
    Sglang {
        /// `format: dynamo`; only events with a salt tell.
        dynamo: Option<bool>,
    },
}

impl Recipe {
    /// A bounded label.
    pub fn name(self) -> &'static str {
        use Algorithm::{Sha256, Sha256Cbor, Xxhash, XxhashCbor};
        use ExtraKeysFormat::{Tagged, Untagged};
        match self {
            Recipe::Vllm { algorithm, extra_keys } => match (algorithm, extra_keys) {
                (Sha256, None) => "vllm-sha256",
                (Sha256, Some(Untagged)) => "vllm-sha256-untagged",
                (Sha256, Some(Tagged)) => "vllm-sha256-tagged",
                (Sha256Cbor, None) => "vllm-sha256_cbor",
                (Sha256Cbor, Some(Untagged)) => "vllm-sha256_cbor-untagged",
                (Sha256Cbor, Some(Tagged)) => "vllm-sha256_cbor-tagged",
                (Xxhash, None) => "vllm-xxhash",
                (Xxhash, Some(Untagged)) => "vllm-xxhash-untagged",
                (Xxhash, Some(Tagged)) => "vllm-xxhash-tagged",
                (XxhashCbor, None) => "vllm-xxhash_cbor",
                (XxhashCbor, Some(Untagged)) => "vllm-xxhash_cbor-untagged",
                (XxhashCbor, Some(Tagged)) => "vllm-xxhash_cbor-tagged",
            },
            Recipe::Sglang { dynamo: None } => "sglang",
            Recipe::Sglang { dynamo: Some(false) } => "sglang-plain",
            Recipe::Sglang { dynamo: Some(true) } => "sglang-dynamo",
        }
    }
}

/// A recipe with its seed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Candidate {
    Vllm { algorithm: Algorithm, extra_keys: Option<ExtraKeysFormat>, root: Digest },
    Sglang { dynamo: Option<bool> },
}

/// What came of a candidate on an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    /// Of `of` blocks, those that came out as published.
    Checked { matched: usize, of: usize },
    /// The hashes may cover what the event does not tell.
    Unknown,
}

/// Every candidate.
pub(super) fn all(seeds: &[String]) -> Vec<Candidate> {
    let of_seed = |seed: &String| {
        Algorithm::ALL.map(|algorithm| {
            let root = Digest::none_hash(algorithm, seed);
            Candidate::Vllm { algorithm, extra_keys: None, root }
        })
    };
    seeds.iter().flat_map(of_seed).chain([Candidate::Sglang { dynamo: None }]).collect()
}

impl Candidate {
    pub(super) fn recipe(&self) -> Recipe {
        match *self {
            Candidate::Vllm { algorithm, extra_keys, .. } => Recipe::Vllm { algorithm, extra_keys },
            Candidate::Sglang { dynamo } => Recipe::Sglang { dynamo },
        }
    }

    /// What the candidate can mean for this event: itself, or each of what it leaves open and the event tells.
    pub(super) fn refined(&self, event: &BlockStored<'_>) -> impl Iterator<Item = Candidate> + use<> {
        let (first, second) = match *self {
            Candidate::Vllm { algorithm, extra_keys: None, root } if !event.extra_keys.is_empty() => {
                let with = |format| Candidate::Vllm { algorithm, extra_keys: Some(format), root };
                (with(ExtraKeysFormat::Tagged), Some(with(ExtraKeysFormat::Untagged)))
            }
            Candidate::Sglang { dynamo: None } if event.cache_salt.is_some() => {
                let with = |dynamo| Candidate::Sglang { dynamo: Some(dynamo) };
                (with(false), Some(with(true)))
            }
            whole => (whole, None),
        };
        std::iter::once(first).chain(second)
    }

    /// Recomputes the event's first blocks, `limit` at most.
    pub(super) fn attempt(&self, event: &BlockStored<'_>, block_size: BlockSize, limit: usize) -> Attempt {
        match *self {
            Candidate::Vllm { algorithm, extra_keys, root } => {
                let format = extra_keys.unwrap_or(ExtraKeysFormat::Tagged);
                attempt_vllm(event, vllm::ChainHasher::new(algorithm, format, block_size, root), limit)
            }
            Candidate::Sglang { dynamo } => attempt_sglang(event, block_size, dynamo.unwrap_or(false), limit),
        }
    }
}

fn attempt_vllm(event: &BlockStored<'_>, mut hasher: vllm::ChainHasher, limit: usize) -> Attempt {
    // A name is all that there is to know of an adapter if keys have no tags.
    let is_tagged = hasher.extra_keys_format() == ExtraKeysFormat::Tagged;
    if event.lora_name.is_some() && is_tagged {
        return Attempt::Unknown;
    }
    let size = event.block_size as usize;
    let (mut of, mut matched) = (0, 0);
    let mut keys = Vec::new();
    for ((block, tokens), hash) in (0..).zip(event.tokens.chunks_exact(size)).zip(&event.hashes).take(limit) {
        keys.clear();
        for (_, key) in event.extra_keys.iter().filter(|(at, _)| *at == block) {
            match vllm_key(key) {
                Some(vllm::ExtraKey::CacheSalt(_)) => {}
                Some(_) if hasher.algorithm().is_pickle() => return Attempt::Unknown,
                Some(_) => {}
                None => return Attempt::Unknown,
            }
            keys.extend(vllm_key(key));
        }
        hasher.set_extra_keys(&keys);
        let digest = tokens.iter().filter_map(|&token| hasher.push(token)).last();
        of += 1;
        matched += usize::from(digest.is_some_and(|digest| EngineHash(digest.low64()) == *hash));
    }
    Attempt::Checked { matched, of }
}

/// Without tags a name and a salt are hashed alike; with them, only salts are texts on the wire besides the names.
fn vllm_key<'a>(key: &ExtraKey<'a>) -> Option<vllm::ExtraKey<'a>> {
    match *key {
        ExtraKey::Text(text) => Some(vllm::ExtraKey::CacheSalt(text)),
        ExtraKey::Content(_) => {
            let multimodal = key.multimodal();
            let multimodal =
                multimodal.map(|(identifier, offset)| vllm::ExtraKey::Multimodal { identifier, offset });
            multimodal.or_else(|| key.embeds().map(vllm::ExtraKey::PromptEmbeds))
        }
    }
}

fn attempt_sglang(event: &BlockStored<'_>, page_size: BlockSize, dynamo: bool, limit: usize) -> Attempt {
    if event.lora_name.is_some() {
        return Attempt::Unknown;
    }
    let namespace = sglang::EventNamespace::new(None, event.cache_salt.filter(|_| dynamo));
    let mut hasher = sglang::ChainHasher::new(page_size, event.cache_salt.map(sglang::PageDigest::of_salt));
    let next = event.tokens.iter().copied().skip(1).chain(event.bigram_end);
    let pairs = event.tokens.iter().copied().zip(next.map(Some).chain([None]));
    let pages = pairs.filter_map(|(token, next)| match event.bigram_end.and(next) {
        Some(next) => hasher.push_bigram(token.into(), next.into()),
        None => hasher.push(token.into()),
    });
    let (mut of, mut matched) = (0, 0);
    for (page, hash) in pages.zip(&event.hashes).take(limit) {
        let wire = namespace.map_or(page.wire(), |namespace| namespace.apply(page.wire()));
        of += 1;
        matched += usize::from(EngineHash(wire.cast_unsigned()) == *hash);
    }
    Attempt::Checked { matched, of }
}
