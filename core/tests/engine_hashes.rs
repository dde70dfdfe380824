//! Recorded engines: every block hash that they published, recomputed from what the events say.
#![cfg(not(target_arch = "wasm32"))]
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

mod recordings;

use inference_cache_core::events::{Batch, BlockStored, Event, ExtraKey, live_frames};
use inference_cache_core::hash::vllm::{self, Algorithm, DEFAULT_SEED, Digest, ExtraKeysFormat};
use inference_cache_core::hash::{BlockHash, BlockSize, sglang};
use inference_cache_core::ingest::{HashReport, Limits, Sink, Source, Stored};
use std::collections::HashMap;

/// Blocks of each session that are recomputed, and those that cannot be: of a random seed, behind a gap, of an adapter
/// whose path is unknown, of a group that announces sparse positions.
const VLLM: [(&str, usize, usize); 18] = [
    ("vllm-0.22.1/v022-cbor-bs16-seed0-bytes", 138, 0),
    ("vllm-0.22.1/v022-cbor-bs16-seed0-int", 83, 0),
    ("vllm-0.22.1/v022-cbor-bs16-seedunset-int", 0, 83),
    ("vllm-0.32.0/bos-llama-cbor-bs32", 7, 0),
    ("vllm-0.32.0/cbor-bs32-seed0-bytes", 69, 0),
    ("vllm-0.32.0/cbor-bs32-seed0-int", 40, 0),
    ("vllm-0.32.0/cbor-bs64-seedunset-default", 18, 0),
    ("vllm-0.32.0/default-algo-bs32", 40, 0),
    ("vllm-0.32.0/dp2-cbor-bs32", 16, 0),
    ("vllm-0.32.0/gap-chunked-cbor-bs32", 11, 2),
    ("vllm-0.32.0/lora-cbor-bs32", 3, 8),
    ("vllm-0.32.0/mm-cbor-bs32", 13, 0),
    ("vllm-0.32.0/report-full-cbor-bs32", 4, 0),
    ("vllm-0.32.0/restart-cbor-bs32", 4, 0),
    ("vllm-0.32.0/sha256-bs32-seed0-bytes", 40, 0),
    ("vllm-0.32.0/swa-cbor-bs32", 64, 16),
    ("vllm-0.32.0/xxhash-bs32-seed0-bytes", 40, 0),
    ("vllm-0.32.0/xxhashcbor-bs32-seed0-bytes", 40, 0),
];

#[test]
fn vllm_sessions_reproduce() {
    let found: Vec<_> = VLLM
        .iter()
        .map(|&(scenario, ..)| {
            let (checked, left_out) = vllm(scenario);
            (scenario, checked, left_out)
        })
        .collect();
    assert_eq!(found, VLLM);
    assert_eq!(recordings::scenarios().iter().filter(|name| name.starts_with("vllm")).count(), VLLM.len());
}

#[test]
fn sglang_sessions_reproduce() {
    let checked: Vec<_> = ["radix-page16", "radix-page16-bigram", "radix-page16-dynamo"].map(sglang).into();
    assert_eq!(checked, [17, 7, 17]);
}

/// Recomputes a session; the blocks that agree, and those that cannot be computed.
fn vllm(scenario: &str) -> (usize, usize) {
    let session = recordings::session(scenario);
    let algorithm = Algorithm::named(session["algo"].as_str().unwrap_or("sha256")).unwrap();
    let (format, default_seed) = match scenario.starts_with("vllm-0.22") {
        true => (ExtraKeysFormat::Untagged, None),
        false => (ExtraKeysFormat::Tagged, Some(DEFAULT_SEED)),
    };
    let seed = session["pythonhashseed"].as_str().or(default_seed);
    let mut digests = HashMap::<u64, Digest>::new();
    let (mut checked, mut left_out) = (0, 0);
    each_stored(scenario, |event| {
        let block_size = BlockSize::new(event.block_size).unwrap();
        let full = event.hashes.len() * block_size.tokens() as usize == event.tokens.len();
        let root = match event.parent {
            None => seed.map(|seed| Digest::none_hash(algorithm, seed)),
            Some(parent) => digests.get(&parent.0).copied(),
        };
        // The path of an adapter is in its hashes and in no recording.
        let full = full && event.lora_name.is_none();
        let (true, Some(root)) = (full, root) else { return left_out += event.hashes.len() };
        let mut hasher = vllm::ChainHasher::new(algorithm, format, block_size, root);
        let blocks = event.tokens.chunks(block_size.tokens() as usize);
        for ((at, tokens), hash) in blocks.enumerate().zip(&event.hashes) {
            let keys = event.extra_keys.iter().filter(|(block, _)| *block as usize == at);
            let keys: Vec<_> = keys.map(|(_, key)| extra_key(key)).collect();
            hasher.set_extra_keys(&keys);
            let digest = tokens.iter().filter_map(|&token| hasher.push(token)).last().unwrap();
            assert_eq!(digest.low64(), hash.0, "{scenario}: block {at} of {event:?}");
            digests.insert(hash.0, digest);
            checked += 1;
        }
    });
    (checked, left_out)
}

fn extra_key<'a>(key: &ExtraKey<'a>) -> vllm::ExtraKey<'a> {
    if let Some((identifier, offset)) = key.multimodal() {
        return vllm::ExtraKey::Multimodal { identifier, offset };
    }
    match *key {
        ExtraKey::Text(salt) => vllm::ExtraKey::CacheSalt(salt),
        ExtraKey::Content(_) => vllm::ExtraKey::PromptEmbeds(key.embeds().unwrap()),
    }
}

/// Recomputes a session; the pages that agree: all.
fn sglang(scenario: &str) -> usize {
    let scenario = format!("sglang-0.5.23/{scenario}");
    let session = recordings::session(&scenario);
    let dynamo = session["dynamo_format"].as_bool().unwrap();
    let extra_key = "0000000000000000000000000000000a";
    let mut digests = HashMap::new();
    let mut checked = 0;
    each_stored(&scenario, |event| {
        let page_size = BlockSize::new(event.block_size).unwrap();
        // The wire does not tell a request's extra key: two namespaces are possible, the first hash says which.
        let salt = event.cache_salt;
        let namespaces = match dynamo {
            true => vec![
                sglang::EventNamespace::new(None, salt),
                sglang::EventNamespace::new(Some(extra_key), salt),
            ],
            false => vec![None],
        };
        let root = match event.parent {
            None => salt.map(sglang::PageDigest::of_salt),
            Some(parent) => Some(digests[&parent.0]),
        };
        let mut hasher = sglang::ChainHasher::new(page_size, root);
        let next = event.tokens.iter().copied().skip(1).chain(event.bigram_end);
        let pages: Vec<_> = match event.bigram_end {
            Some(_) => {
                let pairs = event.tokens.iter().zip(next);
                pairs.filter_map(|(&token, next)| hasher.push_bigram(token.into(), next.into())).collect()
            }
            None => event.tokens.iter().filter_map(|&token| hasher.push(token.into())).collect(),
        };
        assert_eq!(pages.len(), event.hashes.len());
        let agrees = |namespace: &Option<sglang::EventNamespace>| {
            let wire =
                pages.iter().map(|page| namespace.map_or(page.wire(), |space| space.apply(page.wire())));
            wire.map(i64::cast_unsigned).eq(event.hashes.iter().map(|hash| hash.0))
        };
        assert!(namespaces.iter().any(agrees), "{scenario}: {event:?}");
        digests.extend(event.hashes.iter().map(|hash| hash.0).zip(pages));
        checked += event.hashes.len();
    });
    checked
}

/// The live `BlockStored` events of a session.
fn each_stored(scenario: &str, mut each: impl FnMut(&BlockStored<'_>)) {
    for record in recordings::records(scenario).iter().filter(|record| record.source == "sub") {
        let (_, payload) = live_frames(&record.frames).unwrap();
        for event in Batch::decode(payload).unwrap().events() {
            if let Event::Stored(stored) = event.unwrap() {
                each(&stored);
            }
        }
    }
}

/// What a source finds out about a session by itself.
fn report(scenario: &str) -> HashReport {
    struct Ignore;
    impl Sink for Ignore {
        fn stored(&mut self, _: Stored<'_>) {}
        fn removed(&mut self, _: &str, _: &[BlockHash]) {}
        fn cleared(&mut self) {}
    }
    let mut source = Source::new(false, Limits::default());
    for record in recordings::records(scenario).iter().filter(|record| record.source == "sub") {
        let (seq, payload) = live_frames(&record.frames).unwrap();
        source.batch(seq, payload, 0, &mut Ignore);
    }
    source.hash_check()
}

#[test]
fn sources_find_the_recipe() {
    let sessions = [
        ("vllm-0.22.1/v022-cbor-bs16-seed0-int", "vllm-sha256_cbor-untagged"),
        ("vllm-0.32.0/bos-llama-cbor-bs32", "vllm-sha256_cbor"),
        ("vllm-0.32.0/cbor-bs32-seed0-int", "vllm-sha256_cbor-tagged"),
        ("vllm-0.32.0/cbor-bs64-seedunset-default", "vllm-sha256_cbor"),
        ("vllm-0.32.0/default-algo-bs32", "vllm-sha256-tagged"),
        ("vllm-0.32.0/lora-cbor-bs32", "vllm-sha256_cbor"),
        ("vllm-0.32.0/mm-cbor-bs32", "vllm-sha256_cbor-tagged"),
        ("vllm-0.32.0/sha256-bs32-seed0-bytes", "vllm-sha256-tagged"),
        ("vllm-0.32.0/swa-cbor-bs32", "vllm-sha256_cbor"),
        ("vllm-0.32.0/xxhash-bs32-seed0-bytes", "vllm-xxhash-tagged"),
        ("vllm-0.32.0/xxhashcbor-bs32-seed0-bytes", "vllm-xxhash_cbor-tagged"),
        ("sglang-0.5.23/radix-page16", "sglang-plain"),
        ("sglang-0.5.23/radix-page16-bigram", "sglang"),
        ("sglang-0.5.23/radix-page16-dynamo", "sglang-dynamo"),
    ];
    let found = sessions.map(|(scenario, _)| {
        let report = report(scenario);
        assert_eq!((report.mismatched, report.reproducible), (0, Some(true)), "{scenario}: {report:?}");
        assert!(report.checked > 0 && report.checked == report.matched, "{scenario}");
        (scenario, report.recipe.unwrap().name())
    });
    assert_eq!(found, sessions);
    let random = report("vllm-0.22.1/v022-cbor-bs16-seedunset-int");
    assert_eq!((random.recipe, random.reproducible), (None, Some(false)));
}
