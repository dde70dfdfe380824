//! Against chains of vLLM's own hashers. With recordings: `core/tests/engine_hashes.rs`.

use super::*;
use crate::events::{EngineHash, ExtraKey};
use crate::hash::sglang;
use crate::hash::vllm::{Algorithm, Digest, ExtraKeysFormat};
#[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
use wasm_bindgen_test::wasm_bindgen_test as test;

const SIZE: u32 = 4;

/// An event that begins a prompt of two blocks, as an engine with `seed` announces it.
fn event<'a>(
    algorithm: Algorithm,
    format: ExtraKeysFormat,
    seed: &str,
    salt: Option<&'a str>,
    first: u32,
) -> BlockStored<'a> {
    let tokens: Vec<u32> = (first..first + 2 * SIZE).collect();
    let root = Digest::none_hash(algorithm, seed);
    let keys: Vec<_> = salt.into_iter().map(vllm::ExtraKey::CacheSalt).collect();
    let mut hasher = vllm::ChainHasher::new(algorithm, format, BlockSize::new(SIZE).unwrap(), root)
        .with_extra_keys(&keys, &[]);
    let hashes = tokens.iter().filter_map(|&token| hasher.push(token));
    BlockStored {
        hashes: hashes.map(|digest| EngineHash(digest.low64())).collect(),
        tokens,
        block_size: SIZE,
        extra_keys: salt.into_iter().map(|salt| (0, ExtraKey::Text(salt))).collect(),
        ..BlockStored::default()
    }
}

fn checked(seeds: &[String], events: &[BlockStored<'_>]) -> HashReport {
    let mut check = HashCheck::new(seeds);
    events.iter().for_each(|event| check.observe(event));
    check.report()
}

#[test]
fn every_recipe_is_found_and_refined() {
    for algorithm in Algorithm::ALL {
        for format in [ExtraKeysFormat::Tagged, ExtraKeysFormat::Untagged] {
            for seed in [vllm::DEFAULT_SEED, "0", "my-seed"] {
                let seeds = ["my-seed".to_owned()];
                let plain = event(algorithm, format, seed, None, 1);
                let report = checked(&seeds, std::slice::from_ref(&plain));
                let open = Recipe::Vllm { algorithm, extra_keys: None };
                let expected = HashReport {
                    recipe: Some(open),
                    checked: 2,
                    matched: 2,
                    mismatched: 0,
                    reproducible: Some(true),
                };
                assert_eq!(report, expected);
                let report = checked(&seeds, &[plain, event(algorithm, format, seed, Some("salt"), 9)]);
                let recipe = Recipe::Vllm { algorithm, extra_keys: Some(format) };
                assert_eq!((report.recipe, report.matched, report.mismatched), (Some(recipe), 4, 0));
            }
        }
    }
}

#[test]
fn a_random_seed_is_not_reproducible() {
    let events: Vec<_> = (0..u64::from(PATIENCE))
        .map(|n| event(Algorithm::Sha256, ExtraKeysFormat::Tagged, "another seed", None, n as u32 * 100))
        .collect();
    assert_eq!(checked(&[], &events[1..]).reproducible, None);
    let report = checked(&[], &events);
    assert_eq!((report.recipe, report.reproducible, report.mismatched), (None, Some(false), 8));
}

#[test]
fn only_prompts_are_checked_and_few_of_them() {
    let mut check = HashCheck::new(&[]);
    let prompt = event(Algorithm::Sha256Cbor, ExtraKeysFormat::Tagged, "0", None, 1);
    let later = BlockStored { parent: Some(EngineHash(7)), ..prompt.clone() };
    for _ in 0..EVERY {
        check.observe(&prompt);
        check.observe(&later);
    }
    assert_eq!(check.report().checked, 2 * (FIRST + 1));
}

#[test]
fn a_later_mismatch_counts() {
    let good = event(Algorithm::Sha256Cbor, ExtraKeysFormat::Tagged, "0", None, 1);
    let bad = BlockStored { tokens: vec![9; 2 * SIZE as usize], ..good.clone() };
    let half = BlockStored { hashes: vec![good.hashes[0], EngineHash(1)], ..good.clone() };
    let report = checked(&[], &[good, bad, half]);
    assert_eq!((report.matched, report.mismatched, report.reproducible), (3, 2, Some(true)));
}

#[test]
fn what_the_wire_does_not_tell_is_skipped() {
    let other = event(Algorithm::Sha256, ExtraKeysFormat::Tagged, "0", None, 1);
    let good = event(Algorithm::Sha256, ExtraKeysFormat::Tagged, "0", Some("salt"), 50);
    let image = [0x92, 0xa1, b'i', 0x03];
    let skipped = [
        BlockStored { lora_name: Some("adapter"), ..other.clone() },
        BlockStored { looks_ahead: true, ..other.clone() },
        BlockStored { extra_keys: vec![(0, ExtraKey::Content(&image))], ..other.clone() },
        BlockStored { block_size: 0, ..other.clone() },
    ];
    let mut check = HashCheck::new(&[]);
    check.observe(&good);
    skipped.iter().for_each(|event| check.observe(event));
    let report = check.report();
    assert_eq!((report.matched, report.mismatched), (2, 0));
    check.restart();
    assert_eq!(check.report(), HashReport::default());
}

#[test]
fn an_adapter_s_name_is_enough_without_tags() {
    let (algorithm, format) = (Algorithm::Sha256Cbor, ExtraKeysFormat::Untagged);
    let salted = event(algorithm, format, "0", Some("salt"), 1);
    // Keys without tags: the name of an adapter is hashed like a salt.
    let adapter = BlockStored { lora_name: Some("ad"), ..event(algorithm, format, "0", Some("ad"), 50) };
    let report = checked(&[], &[salted, adapter]);
    assert_eq!((report.matched, report.mismatched), (4, 0));
}

#[test]
fn sglang_is_found_and_its_format_with_the_first_salt() {
    let page = |salt: Option<&'static str>, dynamo: bool| {
        let tokens: Vec<u32> = (10..18).collect();
        let root = salt.map(sglang::PageDigest::of_salt);
        let mut hasher = sglang::ChainHasher::new(BlockSize::new(SIZE).unwrap(), root);
        let space = sglang::EventNamespace::new(None, salt.filter(|_| dynamo));
        let wire = |digest: sglang::PageDigest| space.map_or(digest.wire(), |s| s.apply(digest.wire()));
        let digests = tokens.iter().filter_map(|&token| hasher.push(token.into()));
        let hashes = digests.map(|digest| EngineHash(wire(digest).cast_unsigned())).collect();
        BlockStored { hashes, tokens, block_size: SIZE, cache_salt: salt, ..BlockStored::default() }
    };
    assert_eq!(checked(&[], &[page(None, true)]).recipe.map(Recipe::name), Some("sglang"));
    for (dynamo, name) in [(false, "sglang-plain"), (true, "sglang-dynamo")] {
        let report = checked(&[], &[page(None, dynamo), page(Some("s"), dynamo), page(Some("t"), dynamo)]);
        assert_eq!((report.recipe.map(Recipe::name), report.mismatched), (Some(name), 0));
    }
}
