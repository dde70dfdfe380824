//! Sessions of real vLLM engines, replayed: the same requests must yield the same event batches, byte for byte.
//!
//! The only bytes taken from the recording are the 8 of the timestamp. Everything else is computed: which step publishes
//! what, the order of events, hashes, parents, layout. Recorded by vLLM 0.32.0 and 0.22.1 on a CPU with `sha256_cbor`.
//!
//! Left out, because they are not about this engine's cache: recordings with other hash algorithms (same events),
//! images, sliding windows, and two data-parallel ranks.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use engine_sim::config::{BlockHashForm, CacheConfig, Release};
use engine_sim::events::{BlockStored, Event, Lora};
use engine_sim::scheduler::Scheduler;
use engine_sim::{Request, RequestId};
use inference_cache_core::hash::BlockSize;
use inference_cache_core::hash::vllm::{DEFAULT_SEED, Digest};
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

#[test]
fn integer_hashes_with_chats_salt_decode_and_reset() {
    replay(include_str!("../../tests-data/kv-events-sim/vllm-0.32.0_cbor-bs32-seed0-int.json"), 12);
}

#[test]
fn digests_with_copies_concurrent_requests_and_evictions() {
    replay(include_str!("../../tests-data/kv-events-sim/vllm-0.32.0_cbor-bs32-seed0-bytes.json"), 23);
}

#[test]
fn blocks_of_64_tokens_and_the_default_seed() {
    replay(include_str!("../../tests-data/kv-events-sim/vllm-0.32.0_cbor-bs64-seedunset-default.json"), 7);
}

#[test]
fn chunked_prefill() {
    replay(include_str!("../../tests-data/kv-events-sim/vllm-0.32.0_gap-chunked-cbor-bs32.json"), 7);
}

#[test]
fn a_restarted_engine_announces_the_same_again() {
    replay(include_str!("../../tests-data/kv-events-sim/vllm-0.32.0_restart-cbor-bs32.json"), 4);
}

/// The hashes of the adapter's blocks contain the path it was loaded from, which the recording does not tell: there, each
/// of our hashes must stand for one recorded hash, always the same. (Hashes with a known path: the vectors of
/// `inference_cache_core::hash::vllm`.)
#[test]
fn adapters() {
    replay(include_str!("../../tests-data/kv-events-sim/vllm-0.32.0_lora-cbor-bs32.json"), 4);
}

#[test]
fn reused_blocks_announced_on_demand() {
    replay(include_str!("../../tests-data/kv-events-sim/vllm-0.32.0_report-full-cbor-bs32.json"), 3);
}

#[test]
fn arrays_of_0_22_with_integer_hashes() {
    replay(include_str!("../../tests-data/kv-events-sim/vllm-0.22.1_v022-cbor-bs16-seed0-int.json"), 16);
}

#[test]
fn arrays_of_0_22_with_digests_and_evictions() {
    replay(include_str!("../../tests-data/kv-events-sim/vllm-0.22.1_v022-cbor-bs16-seed0-bytes.json"), 27);
}

/// Replays a recording of `batches` batches.
fn replay(recording: &str, batches: usize) {
    let recording: Value = serde_json::from_str(recording).unwrap();
    let mut engine = Engine::new(&recording);
    for step in recording["steps"].as_array().unwrap() {
        if let Some(request) = step.get("request") {
            engine.run(request);
        } else if let Some(requests) = step.get("concurrent") {
            engine.run_concurrent(requests.as_array().unwrap());
        } else if step.get("reset").is_some() {
            assert!(engine.scheduler.reset_prefix_cache());
        } else {
            engine.restart();
        }
    }
    assert_eq!(engine.published, batches);
    assert_eq!(engine.expected.len(), batches, "batches of the recording left over");
}

/// The engine and what the recorded one published.
struct Engine {
    config: CacheConfig,
    loras: Vec<Arc<Lora>>,
    scheduler: Scheduler,
    expected: Vec<(u64, Vec<u8>)>,
    published: usize,
    next_seq: u64,
    /// Recorded hash of each of our hashes that the recording does not let us compute.
    renamed: HashMap<Digest, Vec<u8>>,
}

impl Engine {
    fn new(recording: &Value) -> Engine {
        let number = |key: &str| recording[key].as_u64().unwrap() as u32;
        let release = match recording["scenario"].as_str().unwrap().starts_with("vllm-0.22") {
            true => Release::V0_22,
            false => Release::V0_32,
        };
        let config = CacheConfig {
            release,
            block_size: BlockSize::new(number("block_size")).unwrap(),
            num_blocks: number("num_blocks"),
            max_model_len: 512,
            max_num_seqs: number("max_num_seqs") as usize,
            max_num_batched_tokens: number("max_num_batched_tokens"),
            hash_seed: recording["hash_seed"].as_str().unwrap_or(DEFAULT_SEED).to_owned(),
            hash_form: match recording["block_hashes"] == "bytes" {
                true => BlockHashForm::Bytes,
                false => BlockHashForm::Int,
            },
        };
        let loras = recording["lora_modules"]
            .as_str()
            .unwrap()
            .split_once('=')
            .map(|(name, path)| Arc::new(Lora { id: 1, name: name.to_owned(), path: path.to_owned() }));
        let batch = |batch: &Value| {
            let payload = BASE64_STANDARD.decode(batch["payload"].as_str().unwrap()).unwrap();
            (batch["seq"].as_u64().unwrap(), payload)
        };
        Engine {
            scheduler: Scheduler::new(config.clone()),
            config,
            loras: loras.into_iter().collect(),
            expected: recording["batches"].as_array().unwrap().iter().map(batch).collect(),
            published: 0,
            next_seq: 0,
            renamed: HashMap::new(),
        }
    }

    fn restart(&mut self) {
        self.scheduler = Scheduler::new(self.config.clone());
        self.next_seq = 0;
    }

    /// Runs a request to its end; everything must match the recording.
    fn run(&mut self, request: &Value) {
        let mut pending = HashMap::new();
        self.add(&mut pending, request);
        self.finish(pending);
    }

    /// Four requests that were sent at the same time; the recording says which came first (the tokens of its events).
    fn run_concurrent(&mut self, requests: &[Value]) {
        let mut pending = HashMap::new();
        let arrivals = arrivals(requests, &self.expected[self.published..]);
        assert_eq!(arrivals.iter().map(Vec::len).sum::<usize>(), requests.len());
        for arrived in arrivals {
            arrived.into_iter().for_each(|request| self.add(&mut pending, request));
            self.step(&mut pending);
        }
        self.finish(pending);
    }

    fn add<'a>(&mut self, pending: &mut HashMap<RequestId, &'a Value>, request: &'a Value) {
        pending.insert(self.scheduler.add(self.request(request)).unwrap(), request);
    }

    fn finish(&mut self, mut pending: HashMap<RequestId, &Value>) {
        while !pending.is_empty() {
            self.step(&mut pending);
        }
    }

    fn request(&self, request: &Value) -> Request {
        let tokens = |key: &str| -> Vec<u32> {
            request[key].as_array().unwrap().iter().map(|token| token.as_u64().unwrap() as u32).collect()
        };
        assert_eq!(request["max_tokens"].as_u64().unwrap() as usize, tokens("generated").len());
        let lora = request["lora"].as_str();
        Request {
            prompt: tokens("prompt"),
            answer: tokens("generated"),
            lora: lora.map(|name| self.loras.iter().find(|lora| lora.name == name).unwrap().clone()),
            cache_salt: request["cache_salt"].as_str().map(Arc::from),
            report_full: request["report_full"].as_bool().unwrap_or(false),
        }
    }

    /// One step: its batch and the `cached_tokens` of its requests must be the recorded ones.
    fn step(&mut self, pending: &mut HashMap<RequestId, &Value>) {
        let step = self.scheduler.schedule().expect("requests are pending");
        let output = self.scheduler.finish(step);
        if !output.events.is_empty() {
            let (seq, expected) = &self.expected[self.published];
            let timestamp = f64::from_be_bytes(expected[2..10].try_into().unwrap());
            let mut batch = self.config.batch_encoder().encode(timestamp, &output.events);
            for event in &output.events {
                if let Event::BlockStored(stored @ BlockStored { lora: Some(_), .. }) = event {
                    rename(&mut self.renamed, stored, &mut batch, expected);
                }
            }
            assert_eq!(*seq, self.next_seq);
            assert_eq!(batch, *expected, "batch {}: {:?}", self.published, output.events);
            self.published += 1;
            self.next_seq += 1;
        }
        for sampled in output.tokens {
            let request = pending[&sampled.request];
            assert_eq!(request["cached_tokens"], sampled.cached_tokens, "{}", request["label"]);
            if sampled.last {
                pending.remove(&sampled.request);
            }
        }
    }
}

/// Puts the recorded hashes into `batch` where `stored` has its own.
fn rename(renamed: &mut HashMap<Digest, Vec<u8>>, stored: &BlockStored, batch: &mut [u8], recorded: &[u8]) {
    for &hash in stored.block_hashes.iter().chain(&stored.parent) {
        let at = batch.windows(32).position(|bytes| bytes == hash.as_bytes()).unwrap();
        let other = recorded[at..at + 32].to_vec();
        assert_eq!(renamed.entry(hash).or_insert_with(|| other.clone()), &other);
        batch[at..at + 32].copy_from_slice(&other);
    }
    let distinct: HashSet<_> = renamed.values().collect();
    assert_eq!(distinct.len(), renamed.len(), "two of our hashes for one recorded hash");
}

/// The requests in the order in which the recorded engine took them: which of its first two steps, and where in it.
fn arrivals<'a>(requests: &'a [Value], batches: &[(u64, Vec<u8>)]) -> Vec<Vec<&'a Value>> {
    let own_token = |request: &Value| request["prompt"].as_array().unwrap().last().unwrap().as_u64().unwrap();
    let position = |(_, payload): &(u64, Vec<u8>), token: u64| {
        let needle: Vec<u8> = [0xcd, (token >> 8) as u8, token as u8].repeat(4);
        payload.windows(needle.len()).position(|window| window == needle)
    };
    batches[..2]
        .iter()
        .map(|batch| {
            let mut found: Vec<(usize, &Value)> = requests
                .iter()
                .filter_map(|request| Some((position(batch, own_token(request))?, request)))
                .collect();
            found.sort_by_key(|&(position, _)| position);
            found.into_iter().map(|(_, request)| request).collect()
        })
        .collect()
}
