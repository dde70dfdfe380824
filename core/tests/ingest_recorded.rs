//! Recorded engines: before every request, the leading run of its prompt in the index predicts `cached_tokens`.
#![cfg(not(target_arch = "wasm32"))]
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

mod recordings;

use inference_cache_core::events::{Reply, live_frames, replay_frames};
use inference_cache_core::hash::{BlockHash, BlockSize, Namespace, chain};
use inference_cache_core::ingest::{Limits, Sink, Source, State, Stored};
use recordings::Record;
use serde_json::Value;
use std::collections::BTreeSet;

#[derive(Clone, Debug, Default, PartialEq)]
struct Index {
    held: BTreeSet<(String, BlockHash)>,
    block_sizes: BTreeSet<u32>,
}

impl Sink for Index {
    fn stored(&mut self, stored: Stored<'_>) {
        self.block_sizes.insert(stored.block_size.tokens());
        self.held.extend(stored.hashes.iter().map(|&hash| (stored.adapter.to_owned(), hash)));
    }

    fn removed(&mut self, adapter: &str, hashes: &[BlockHash]) {
        hashes.iter().for_each(|&hash| assert!(self.held.remove(&(adapter.to_owned(), hash))));
    }

    fn cleared(&mut self) {
        self.held.clear();
    }
}

impl Index {
    /// Tokens that the engine will find cached: the leading run, without the block of the prompt's last token.
    fn predict(&self, prompt: &[u32], adapter: &str, salt: Option<&str>, block_size: u32) -> u64 {
        let namespace = salt.map_or(Namespace::empty(), |salt| Namespace::empty().with_cache_salt(salt));
        let run = chain(prompt, BlockSize::new(block_size).unwrap(), &namespace)
            .into_iter()
            .take_while(|&hash| self.held.contains(&(adapter.to_owned(), hash)))
            .count() as u64;
        run.min((prompt.len() as u64 - 1) / u64::from(block_size)) * u64::from(block_size)
    }
}

fn feed(source: &mut Source, index: &mut Index, records: &[Record]) {
    for record in records.iter().filter(|record| record.source == "sub") {
        let (seq, payload) = live_frames(&record.frames).unwrap();
        source.batch(seq, payload, 0, index);
    }
}

/// Plays a session; the number of requests with a non-zero prediction.
fn predicts(scenario: &str) -> usize {
    let (session, records) = (recordings::session(scenario), recordings::records(scenario));
    let block_size = u32::try_from(session["block_size"].as_u64().unwrap()).unwrap();
    let (mut source, mut index) = (Source::new(false, Limits::default()), Index::default());
    let (mut hits, mut fed, mut reset) = (0, 0, false);
    for step in session["steps"].as_array().unwrap() {
        let last = usize::try_from(step["record_range"][1].as_u64().unwrap()).unwrap();
        // A reset, or another process, shows with the next batch only.
        reset |=
            step["kind"] == "restart" || (step["path"] == "/reset_prefix_cache" && step["status"] == 200);
        let tokens = step.get("engine_prompt_token_ids").or(step.get("prompt_token_ids"));
        if let (Some(tokens), Some(cached)) =
            (tokens, step["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64())
        {
            let tokens = recordings::tokens(tokens);
            let model = step["body"]["model"].as_str().unwrap();
            let adapter = if model == "tiny" { "" } else { model };
            let salt = step["body"]["cache_salt"].as_str();
            let predicted = if reset { 0 } else { index.predict(&tokens, adapter, salt, block_size) };
            assert_eq!(predicted, cached, "{scenario}: {}", step["label"]);
            hits += usize::from(cached > 0);
            reset = false;
        }
        feed(&mut source, &mut index, &records[fed..last.max(fed)]);
        fed = last.max(fed);
    }
    assert_eq!(index.block_sizes, BTreeSet::from([block_size]), "{scenario}");
    let stats = source.stats();
    let trouble = (stats.decode_errors.len(), stats.skipped.len(), stats.unknown_removals, stats.orphans);
    assert_eq!(trouble, (0, 0, 0, 0), "{scenario}: {stats:?}");
    hits
}

#[test]
fn predictions_equal_what_the_engine_reports() {
    let scenarios = [
        "vllm-0.22.1/v022-cbor-bs16-seed0-bytes",
        "vllm-0.22.1/v022-cbor-bs16-seed0-int",
        "vllm-0.22.1/v022-cbor-bs16-seedunset-int",
        "vllm-0.32.0/bos-llama-cbor-bs32",
        "vllm-0.32.0/cbor-bs32-seed0-bytes",
        "vllm-0.32.0/cbor-bs32-seed0-int",
        "vllm-0.32.0/cbor-bs64-seedunset-default",
        "vllm-0.32.0/default-algo-bs32",
        "vllm-0.32.0/lora-cbor-bs32",
        "vllm-0.32.0/report-full-cbor-bs32",
        "vllm-0.32.0/restart-cbor-bs32",
        "vllm-0.32.0/sha256-bs32-seed0-bytes",
        "vllm-0.32.0/xxhash-bs32-seed0-bytes",
        "vllm-0.32.0/xxhashcbor-bs32-seed0-bytes",
    ];
    let hits: usize = scenarios.iter().map(|scenario| predicts(scenario)).sum();
    assert!(hits >= 20, "{hits}");
}

/// Plays the live stream with the batches in `lost` missing, then the recorded replies of the replays asked from 0.
#[test]
fn a_recorded_replay_equals_the_live_stream() {
    for scenario in ["vllm-0.32.0/cbor-bs32-seed0-int", "vllm-0.22.1/v022-cbor-bs16-seed0-int"] {
        let records = recordings::records(scenario);
        let start = records.iter().position(|record| record.source == "replay_request").unwrap();
        let (mut live, mut live_index) = (Source::new(false, Limits::default()), Index::default());
        feed(&mut live, &mut live_index, &records[..start]);

        let (mut late, mut index) = (Source::new(true, Limits::default()), Index::default());
        late.connected();
        let request = late.replay_request(0).unwrap();
        assert_eq!(records[start].frames[1], request.from.to_be_bytes());
        for record in records[start..].iter().filter(|record| record.source == "replay_reply") {
            match replay_frames(&record.frames).unwrap() {
                Reply::Batch { seq, payload } => late.replayed(request.ticket, seq, payload, 0, &mut index),
                Reply::End => {
                    late.replay_ended(request.ticket, true, 0, &mut index);
                    break;
                }
            }
        }
        assert_eq!((late.state(), late.last_seq()), (State::Synced, live.last_seq()), "{scenario}");
        assert_eq!(index, live_index, "{scenario}");
    }
}

#[test]
fn a_restarted_engine_is_a_new_epoch() {
    let records = recordings::records("vllm-0.32.0/restart-cbor-bs32");
    let (mut source, mut index) = (Source::new(false, Limits::default()), Index::default());
    feed(&mut source, &mut index, &records);
    assert_eq!(source.epoch(), 2);
}

#[test]
fn sparse_groups_of_a_hybrid_model_are_left_out() {
    let records = recordings::records("vllm-0.32.0/swa-cbor-bs32");
    let (mut source, mut index) = (Source::new(false, Limits::default()), Index::default());
    feed(&mut source, &mut index, &records);
    assert!(source.stats().skipped["sparse_group"] > 0);
    assert_eq!(source.stats().orphans, 0);
    assert!(!index.held.is_empty());
}

#[test]
fn images_separate_prompts_with_the_same_tokens() {
    let session = recordings::session("vllm-0.32.0/mm-cbor-bs32");
    let records = recordings::records("vllm-0.32.0/mm-cbor-bs32");
    let step = |label: &str| -> Value {
        session["steps"].as_array().unwrap().iter().find(|step| step["label"] == label).unwrap().clone()
    };
    let (mut source, mut index) = (Source::new(false, Limits::default()), Index::default());
    feed(&mut source, &mut index, &records[..1]);
    let red = index.held.len();
    assert_eq!(red, 4);
    // The blue image: only the block before the image is shared.
    let blue =
        step("blue image, same text")["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    feed(&mut source, &mut index, &records[1..2]);
    assert_eq!(index.held.len() - red, (4 - blue as usize / 32));
}

#[test]
fn sglang_sessions_apply_cleanly() {
    for scenario in ["radix-page16", "radix-page16-bigram", "radix-page16-dynamo"] {
        let records = recordings::records(&format!("sglang-0.5.23/{scenario}"));
        let (mut source, mut index) = (Source::new(false, Limits::default()), Index::default());
        feed(&mut source, &mut index, &records);
        let stats = source.stats();

        assert!(stats.stored_blocks > 0, "{scenario}");
        assert_eq!((stats.decode_errors.len(), stats.orphans), (0, 0), "{scenario}: {stats:?}");
    }
}
