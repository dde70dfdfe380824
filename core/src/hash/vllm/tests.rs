//! Against vectors of the engine's own `hash_block_tokens`, CPython's pickle and hashlib.

use super::*;
use crate::hash::BlockSize;
use serde_json::Value;
#[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
use wasm_bindgen_test::wasm_bindgen_test as test;

/// 192 chains of 3 blocks each: 4 algorithms, seeds, block sizes, extra keys.
const UNTAGGED: &str = include_str!("../../../../tests-data/kv-events/hash_vectors_vllm-0.22.1.json");
const TAGGED: &str = include_str!("../../../../tests-data/kv-events/hash_vectors_vllm-0.32.0.json");

#[test]
fn roots_are_the_hashes_of_the_seed() {
    let root = |algorithm, seed| hex(Digest::none_hash(algorithm, seed).as_bytes());
    let cbor = Algorithm::Sha256Cbor;
    assert_eq!(root(cbor, "0"), "4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e");
    assert_eq!(root(cbor, "42"), "9fa6eb003f14425eb9c8e6baacfbcaab26257357b829c7bfa74ffcc4f31c1780");
    assert_eq!(root(cbor, DEFAULT_SEED), "9bd96a485ad84efdafb72ee48a1d7a69bcead0f8f0433173941b276b9581eef0");
    let pickle = Algorithm::Sha256;
    assert_eq!(root(pickle, "0"), "1973e23848344dc43a988a9b478663803cfffe1243480253f9a3cf004b14aa7c");
    assert!(root(pickle, DEFAULT_SEED).starts_with("066b1e89"));
}

#[test]
fn every_width_of_token_is_encoded_shortest() {
    let digest = one_block(Algorithm::Sha256Cbor, &[1, 23, 24, 255, 256, 65_535, 65_536, 151_643]);
    assert_eq!(hex(digest.as_bytes()), "f456902b318e44ce03357b1aafe604c54a09e82e350e9c4496fe4aee0992a5d8");
    assert_eq!(digest.low64(), 0x96fe_4aee_0992_a5d8);
    // CPython 3.11: sha256(pickle.dumps((none_hash, tokens, None), 5)).
    let digest = one_block(Algorithm::Sha256, &[1 << 31, u32::MAX, (1 << 31) - 1, 0]);
    assert_eq!(hex(digest.as_bytes()), "0543a2d01e4b0171de7b671f0051e129bcbe8990c0b6477d67387c3dd0c14f06");
}

/// CPython 3.11, as above: token i = (7919 i² + 13) mod 151,936.
#[test]
fn long_pickles_are_framed() {
    let tokens: Vec<u32> = (0..40_000_u64).map(|i| ((7919 * i * i + 13) % 151_936) as u32).collect();
    let digest = one_block(Algorithm::Sha256, &tokens);
    assert_eq!(hex(digest.as_bytes()), "f5fad9bb7d00657a219f08ffa8aa810af14b245bde024935f9cd6537306f77f5");
}

#[test]
fn integers_have_pickle_s_shortest_form() {
    let pickled = |value| {
        let mut bytes = Vec::new();
        pickle::Pickle::part(&mut bytes, 0).int(value);
        hex(&bytes)
    };
    for (value, expected) in [
        (-3, "4afdffffff"),
        (-(1 << 31), "4a00000080"),
        (1 << 31, "8a050000008000"),
        ((1 << 39) - 1, "8a05ffffffff7f"),
        (1 << 39, "8a06000000008000"),
        (-(1 << 31) - 1, "8a05ffffff7fff"),
        (-(1 << 39), "8a050000000080"),
        (-(1 << 39) - 1, "8a06ffffffff7fff"),
        (i64::MAX, "8a08ffffffffffffff7f"),
        (i64::MIN, "8a080000000000000080"),
    ] {
        assert_eq!(pickled(value), expected, "{value}");
    }
}

#[test]
fn every_chain_of_vllm_0_22_reproduces() {
    assert_eq!(check_vectors(UNTAGGED, ExtraKeysFormat::Untagged), 192);
}

/// With two images in a block, the literal "mm" is one object that is pickled twice.
#[test]
fn every_chain_of_vllm_0_32_reproduces() {
    assert_eq!(check_vectors(TAGGED, ExtraKeysFormat::Tagged), 192);
    let vectors: Value = serde_json::from_str(TAGGED).unwrap();
    let shared = vectors["vectors"].as_array().unwrap().iter().filter(|vector| {
        let algorithm = Algorithm::named(vector["algo"].as_str().unwrap()).unwrap();
        algorithm.is_pickle() && vector["extra"] == "mm2"
    });
    assert_eq!(shared.count(), 4);
}

#[test]
fn algorithms_have_vllm_s_names() {
    for algorithm in Algorithm::ALL {
        assert_eq!(Algorithm::named(algorithm.name()), Some(algorithm));
    }
    assert_eq!(Algorithm::named("builtin"), None);
}

fn one_block(algorithm: Algorithm, tokens: &[u32]) -> Digest {
    let size = BlockSize::new(tokens.len() as u32).unwrap();
    let root = Digest::none_hash(algorithm, "0");
    let mut hasher = ChainHasher::new(algorithm, ExtraKeysFormat::Tagged, size, root);
    tokens.iter().find_map(|&token| hasher.push(token)).unwrap()
}

/// Recomputes all chains; their number.
fn check_vectors(document: &str, format: ExtraKeysFormat) -> usize {
    let document: Value = serde_json::from_str(document).unwrap();
    let vectors = document["vectors"].as_array().unwrap();
    for vector in vectors {
        let algorithm = Algorithm::named(vector["algo"].as_str().unwrap()).unwrap();
        let none_hash = unhex(vector["none_hash"].as_str().unwrap());
        let none_hash = match none_hash.len() {
            16 => Digest::Xxh3(none_hash.try_into().unwrap()),
            _ => Digest::Sha256(none_hash.try_into().unwrap()),
        };
        let seed = vector["seed"].as_str().unwrap();
        assert!(seed == "random" || Digest::none_hash(algorithm, seed) == none_hash, "{algorithm:?} {seed}");

        let keys = vector["extra_keys_per_block"].as_array().unwrap();
        let embeds: Vec<Vec<u8>> = keys.iter().map(embeds).collect();
        let extra = |block: usize| -> Vec<ExtraKey<'_>> {
            let kind = vector["extra"].as_str().unwrap();
            let keys = keys[block].as_array().map_or(&[][..], Vec::as_slice);
            keys.iter().enumerate().map(|(i, key)| extra_key(kind, i, key, &embeds[block])).collect()
        };
        let block_size = BlockSize::new(vector["block_size"].as_u64().unwrap() as u32).unwrap();
        let mut hasher =
            ChainHasher::new(algorithm, format, block_size, none_hash).with_extra_keys(&extra(0), &extra(1));
        let tokens = vector["tokens"].as_array().unwrap().iter().flat_map(|block| block.as_array().unwrap());
        let digests: Vec<Digest> =
            tokens.filter_map(|token| hasher.push(token.as_u64().unwrap() as u32)).collect();
        let hashes: Vec<String> = digests.iter().map(|digest| hex(digest.as_bytes())).collect();
        assert_eq!(hashes, texts(&vector["hashes"]), "{vector}");
        let low: Vec<String> = digests.iter().map(|digest| digest.low64().to_string()).collect();
        assert_eq!(low, texts(&vector["int64"]), "{vector}");
    }
    vectors.len()
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

fn texts(values: &Value) -> Vec<&str> {
    values.as_array().unwrap().iter().map(|value| value.as_str().unwrap()).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap()).collect()
}
