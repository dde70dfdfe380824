//! vLLM's own block hashes (`sha256_cbor`): a check and an opaque scheme, never our key.
//!
//! ```text
//! none_hash = sha256(cbor(seed))                        seed: the text of PYTHONHASHSEED
//! hash[0]   = sha256(cbor([none_hash, tokens, extra]))  extra: null, or the list of extra keys
//! hash[i]   = sha256(cbor([hash[i-1], tokens, extra]))
//! ```
//!
//! CBOR is the canonical (shortest, definite) encoding. What engines publish is the whole digest, or its low 64 bits
//! ([`Digest::low64`]) by default. Extra keys separate prompts whose tokens are equal: the LoRA adapter in every block,
//! the `cache_salt` in the first, multimodal content in the blocks that it overlaps. Their encoding changed in 0.31
//! ([`ExtraKeysFormat`]).
//!
//! Sources: `hash_block_tokens` and `generate_block_hash_extra_keys` of vLLM 0.22.1 and 0.32.0, golden vectors below.
//!
//! Cost: one SHA-256 of about `35 + 3 * block_size` bytes per block, no allocation after the first block.
//! Not here: the pickle (`sha256`, vLLM's default) and xxhash variants, and the look-ahead tokens of speculative
//! decoding (0.33).

use super::BlockSize;
use sha2::{Digest as _, Sha256};

/// Seed of the first parent in vLLM 0.29 and later when PYTHONHASHSEED is not set. Before, it was random.
pub const DEFAULT_SEED: &str = "vllm-none-hash";

/// SHA-256 of a block and, through its parent, of everything before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// The parent of the first block of every prompt.
    pub fn none_hash(seed: &str) -> Digest {
        let mut encoded = Vec::with_capacity(seed.len() + 9);
        cbor::text(&mut encoded, seed);
        Digest::of(&encoded)
    }

    /// What vLLM publishes as an integer: the last 8 bytes, big-endian, unsigned.
    pub fn low64(&self) -> u64 {
        let [.., a, b, c, d, e, f, g, h] = self.0;
        u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }

    fn of(bytes: &[u8]) -> Digest {
        Digest(Sha256::digest(bytes).into())
    }
}

/// What separates a block from another with the same tokens and parent, in vLLM's order: LoRA, multimodal, salt,
/// embeddings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtraKey<'a> {
    /// In every block of a request to an adapter. `path` only counts in [`ExtraKeysFormat::Tagged`].
    Lora {
        /// Name under which the adapter is served.
        name: &'a str,
        /// Where the engine loaded it from. It is not on the wire.
        path: &'a str,
    },
    /// In every block that the content overlaps.
    Multimodal {
        /// Content hash of the processor, or the client's uuid.
        identifier: &'a str,
        /// First token of the content, relative to the block's first; negative if it starts earlier.
        offset: i64,
    },
    /// In the first block only.
    CacheSalt(&'a str),
    /// SHA-256 of the block's embeddings.
    PromptEmbeds(&'a [u8]),
}

/// How extra keys enter the hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtraKeysFormat {
    /// vLLM 0.19 to 0.30 (without multimodal content from 0.11.1): bare values.
    Untagged,
    /// vLLM 0.31 and later: tuples that start with the kind.
    Tagged,
}

/// The chain of a prompt without multimodal content: full blocks out of a stream of tokens.
#[derive(Clone, Debug)]
pub struct ChainHasher {
    /// CBOR of the unfinished block: parent, head of the token array, tokens so far.
    block: Vec<u8>,
    tokens: u32,
    block_size: BlockSize,
    /// CBOR of the extra keys of the next block and of those after it.
    next_extra: Vec<u8>,
    later_extra: Vec<u8>,
}

impl ChainHasher {
    /// A chain that starts at `root` ([`Digest::none_hash`]). `first` are the extra keys of the first block, `later`
    /// those of all others (the adapter without the salt).
    pub fn new(
        block_size: BlockSize,
        root: Digest,
        format: ExtraKeysFormat,
        first: &[ExtraKey<'_>],
        later: &[ExtraKey<'_>],
    ) -> ChainHasher {
        let mut hasher = ChainHasher {
            block: Vec::new(),
            tokens: 0,
            block_size,
            next_extra: encode_extra(format, first),
            later_extra: encode_extra(format, later),
        };
        hasher.start(root);
        hasher
    }

    /// Adds a token; the block's hash if it is the block's last.
    pub fn push(&mut self, token: u32) -> Option<Digest> {
        cbor::uint(&mut self.block, u64::from(token));
        self.tokens += 1;
        if self.tokens < self.block_size.tokens() {
            return None;
        }
        self.block.extend_from_slice(&self.next_extra);
        let digest = Digest::of(&self.block);
        self.next_extra.clone_from(&self.later_extra);
        self.start(digest);
        Some(digest)
    }

    fn start(&mut self, parent: Digest) {
        self.tokens = 0;
        self.block.clear();
        cbor::array(&mut self.block, 3);
        cbor::bytes(&mut self.block, &parent.0);
        cbor::array(&mut self.block, u64::from(self.block_size.tokens()));
    }
}

fn encode_extra(format: ExtraKeysFormat, keys: &[ExtraKey<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    if keys.is_empty() {
        cbor::null(&mut out);
        return out;
    }
    cbor::array(&mut out, keys.len() as u64);
    for key in keys {
        match format {
            ExtraKeysFormat::Untagged => encode_untagged(&mut out, key),
            ExtraKeysFormat::Tagged => encode_tagged(&mut out, key),
        }
    }
    out
}

fn encode_untagged(out: &mut Vec<u8>, key: &ExtraKey<'_>) {
    match *key {
        ExtraKey::Lora { name, .. } => cbor::text(out, name),
        ExtraKey::Multimodal { identifier, offset } => {
            cbor::array(out, 2);
            cbor::text(out, identifier);
            cbor::int(out, offset);
        }
        ExtraKey::CacheSalt(salt) => cbor::text(out, salt),
        ExtraKey::PromptEmbeds(digest) => cbor::bytes(out, digest),
    }
}

fn encode_tagged(out: &mut Vec<u8>, key: &ExtraKey<'_>) {
    let (tag, values) = match key {
        ExtraKey::Lora { .. } => ("lora", 2),
        ExtraKey::Multimodal { .. } => ("mm", 2),
        ExtraKey::CacheSalt(_) => ("cache_salt", 1),
        ExtraKey::PromptEmbeds(_) => ("prompt_embeds", 1),
    };
    cbor::array(out, 1 + values);
    cbor::text(out, tag);
    match *key {
        ExtraKey::Lora { name, path } => {
            cbor::text(out, name);
            cbor::text(out, path);
        }
        ExtraKey::Multimodal { identifier, offset } => {
            cbor::text(out, identifier);
            cbor::int(out, offset);
        }
        ExtraKey::CacheSalt(salt) => cbor::text(out, salt),
        ExtraKey::PromptEmbeds(digest) => cbor::bytes(out, digest),
    }
}

/// The part of canonical CBOR (RFC 8949, section 4.2.1) that the hashes need.
mod cbor {
    const UINT: u8 = 0x00;
    const NEGATIVE: u8 = 0x20;
    const BYTES: u8 = 0x40;
    const TEXT: u8 = 0x60;
    const ARRAY: u8 = 0x80;
    const NULL: u8 = 0xf6;

    pub(super) fn uint(out: &mut Vec<u8>, value: u64) {
        head(out, UINT, value);
    }

    pub(super) fn int(out: &mut Vec<u8>, value: i64) {
        match u64::try_from(value) {
            Ok(value) => head(out, UINT, value),
            Err(_) => head(out, NEGATIVE, value.unsigned_abs() - 1),
        }
    }

    pub(super) fn bytes(out: &mut Vec<u8>, value: &[u8]) {
        head(out, BYTES, value.len() as u64);
        out.extend_from_slice(value);
    }

    pub(super) fn text(out: &mut Vec<u8>, value: &str) {
        head(out, TEXT, value.len() as u64);
        out.extend_from_slice(value.as_bytes());
    }

    pub(super) fn array(out: &mut Vec<u8>, length: u64) {
        head(out, ARRAY, length);
    }

    pub(super) fn null(out: &mut Vec<u8>) {
        out.push(NULL);
    }

    /// Major type and argument, in the fewest bytes. The narrowing casts follow from the ranges.
    fn head(out: &mut Vec<u8>, major: u8, value: u64) {
        match value {
            0..=23 => out.push(major | value as u8),
            24..=0xff => out.extend_from_slice(&[major | 24, value as u8]),
            0x100..=0xffff => {
                out.push(major | 25);
                out.extend_from_slice(&(value as u16).to_be_bytes());
            }
            0x1_0000..=0xffff_ffff => {
                out.push(major | 26);
                out.extend_from_slice(&(value as u32).to_be_bytes());
            }
            _ => {
                out.push(major | 27);
                out.extend_from_slice(&value.to_be_bytes());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    /// 48 chains each, from the engine's own `hash_block_tokens`.
    const UNTAGGED: &str =
        include_str!("../../../tests-data/kv-events-sim/hash_vectors_vllm-0.22.1_sha256_cbor.json");
    const TAGGED: &str =
        include_str!("../../../tests-data/kv-events-sim/hash_vectors_vllm-0.32.0_sha256_cbor.json");

    #[test]
    fn roots_are_the_hashes_of_the_seed() {
        let root = |seed| hex(&Digest::none_hash(seed).0);
        assert_eq!(root("0"), "4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e");
        assert_eq!(root("42"), "9fa6eb003f14425eb9c8e6baacfbcaab26257357b829c7bfa74ffcc4f31c1780");
        assert_eq!(root(DEFAULT_SEED), "9bd96a485ad84efdafb72ee48a1d7a69bcead0f8f0433173941b276b9581eef0");
    }

    #[test]
    fn every_width_of_token_is_encoded_shortest() {
        let mut hasher = ChainHasher::new(
            BlockSize::new(8).unwrap(),
            Digest::none_hash("0"),
            ExtraKeysFormat::Tagged,
            &[],
            &[],
        );
        let tokens = [1, 23, 24, 255, 256, 65_535, 65_536, 151_643];
        let digest = tokens.iter().find_map(|&token| hasher.push(token)).unwrap();
        assert_eq!(hex(&digest.0), "f456902b318e44ce03357b1aafe604c54a09e82e350e9c4496fe4aee0992a5d8");
        assert_eq!(digest.low64(), 0x96fe_4aee_0992_a5d8);
    }

    #[test]
    fn vllm_0_22_vectors() {
        check_vectors(UNTAGGED, ExtraKeysFormat::Untagged);
    }

    #[test]
    fn vllm_0_32_vectors() {
        check_vectors(TAGGED, ExtraKeysFormat::Tagged);
    }

    fn check_vectors(document: &str, format: ExtraKeysFormat) {
        let document: Value = serde_json::from_str(document).unwrap();
        let vectors = document["vectors"].as_array().unwrap();
        assert_eq!(vectors.len(), 48);
        for vector in vectors {
            let none_hash = Digest(unhex(vector["none_hash"].as_str().unwrap()).try_into().unwrap());
            if vector["seed"] != "random" {
                assert_eq!(Digest::none_hash(vector["seed"].as_str().unwrap()), none_hash);
            }
            let keys = vector["extra_keys_per_block"].as_array().unwrap();
            let embeds: Vec<Vec<u8>> = keys.iter().map(embeds).collect();
            let extra = |block: usize| -> Vec<ExtraKey<'_>> {
                let kind = vector["extra"].as_str().unwrap();
                let keys = keys[block].as_array().map_or(&[][..], Vec::as_slice);
                keys.iter().enumerate().map(|(i, key)| extra_key(kind, i, key, &embeds[block])).collect()
            };
            let block_size = BlockSize::new(vector["block_size"].as_u64().unwrap() as u32).unwrap();
            let mut hasher = ChainHasher::new(block_size, none_hash, format, &extra(0), &extra(1));
            let tokens =
                vector["tokens"].as_array().unwrap().iter().flat_map(|block| block.as_array().unwrap());
            let digests: Vec<Digest> =
                tokens.filter_map(|token| hasher.push(token.as_u64().unwrap() as u32)).collect();
            let hashes: Vec<String> = digests.iter().map(|digest| hex(&digest.0)).collect();
            let expected: Vec<&str> =
                vector["hashes"].as_array().unwrap().iter().map(|h| h.as_str().unwrap()).collect();
            assert_eq!(hashes, expected, "{vector}");
            let low: Vec<String> = digests.iter().map(|digest| digest.low64().to_string()).collect();
            let expected: Vec<&str> =
                vector["int64"].as_array().unwrap().iter().map(|h| h.as_str().unwrap()).collect();
            assert_eq!(low, expected, "{vector}");
        }
    }

    /// The key that the vector's JSON stands for: tagged keys say their kind, untagged ones have it from the vector's.
    fn extra_key<'a>(kind: &str, index: usize, key: &'a Value, embeds: &'a [u8]) -> ExtraKey<'a> {
        let (tag, values) = match key.as_array() {
            Some(tuple) if tuple[0].as_str().is_some_and(|tag| TAGS.contains(&tag)) => {
                (tuple[0].as_str().unwrap(), &tuple[1..])
            }
            Some(tuple) => ("mm", &tuple[..]),
            None if kind == "embeds" => ("prompt_embeds", std::slice::from_ref(key)),
            None if kind == "salt" || index == 2 => ("cache_salt", std::slice::from_ref(key)),
            None => ("lora", std::slice::from_ref(key)),
        };
        let text = |i: usize| values.get(i).and_then(Value::as_str).unwrap_or_default();
        match tag {
            "lora" => ExtraKey::Lora { name: text(0), path: text(1) },
            "mm" => ExtraKey::Multimodal { identifier: text(0), offset: values[1].as_i64().unwrap() },
            "cache_salt" => ExtraKey::CacheSalt(text(0)),
            _ => ExtraKey::PromptEmbeds(embeds),
        }
    }

    const TAGS: [&str; 4] = ["lora", "mm", "cache_salt", "prompt_embeds"];

    /// Bytes of the first 64-digit text of `keys`: only read for embeddings.
    fn embeds(keys: &Value) -> Vec<u8> {
        let text = keys[0].as_str().or_else(|| keys[0][1].as_str()).unwrap_or_default();
        if text.len() == 64 { unhex(text) } else { Vec::new() }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn unhex(text: &str) -> Vec<u8> {
        (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap()).collect()
    }
}
