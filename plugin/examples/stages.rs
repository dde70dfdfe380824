//! Times the stages of a decision in wasm: what `cargo xtask bench request` runs.
//!
//! `stages ARTIFACT` (a compiled model) prints lines of `NAME VALUE UNIT`. Built for wasm32-wasip1 with the plugin's own
//! profile, so that the code is the plugin's. The chats are a shared system prompt and turns of mixed words, of 2, 16
//! and 128 KB; the index holds 200,000 other entries of 8 replicas, and of each chat every block on three replicas, so
//! that nothing is cut short. Each stage runs alone, again and again; the median of the runs is printed. `decide` is
//! the whole path in one call.

// A program for measuring, not the plugin.
#![allow(clippy::expect_used, clippy::indexing_slicing, clippy::print_stdout)]

use std::hint::black_box;
use std::time::Instant;

use inference_cache_core::gateway::{Gateway, Model, Outcome, Query, Settings};
use inference_cache_core::hash::{BlockHash, BlockSize, Namespace, SCHEME, chain};
use inference_cache_core::openai::{self, Endpoint, Prompt};
use inference_cache_core::pick::{self, Candidate};
use inference_cache_core::replica::{IndexReplica, ReplicaId, ScopeId, Walk};
use inference_cache_core::replication::frame::seal;
use inference_cache_core::replication::{Progress, proto, proto::payload::Body};
use prost::Message;

const REPLICAS: u32 = 8;
const OTHER_ENTRIES: u64 = 200_000;
const SCOPE: ScopeId = ScopeId(1);
const NOW: u64 = 1_790_000_000_000;

fn main() {
    let path = std::env::args().nth(1).expect("usage: stages ARTIFACT");
    let artifact = std::fs::read(path).expect("the artifact can be read");
    let model = Model::load(artifact.clone()).expect("the artifact loads");
    for kilobytes in [2, 16, 128] {
        measure(&model, &artifact, kilobytes);
    }
}

fn measure(model: &Model, artifact: &[u8], kilobytes: usize) {
    let body = chat_of(kilobytes * 1024);
    let parse = || openai::parse(Endpoint::ChatCompletions, &body, true).expect("a chat");
    let Prompt::Chat(chat) = parse().prompt else { return };
    let template = model.template.as_ref().expect("a template");
    let render = || template.render(&chat, NOW).expect("renders");
    let text = render();
    let tokenize = || {
        let (mut tokens, mut encoder) = (Vec::new(), model.tokenizer.encode(&text, false));
        while encoder.fill(&mut tokens, 256).expect("encodes") {}
        tokens
    };
    let tokens = tokenize();
    let hash = || chain(&tokens, BlockSize::SIXTEEN, &Namespace::empty());
    let hashes = hash();
    let index = index_with(&hashes);
    let look_up = || {
        let (mut walk, mut holders) = (Walk::default(), Vec::new());
        for &hash in &hashes {
            holders.clear();
            holders.extend(index.holders(SCOPE, hash, 0));
            if !walk.advance(&holders) {
                break;
            }
        }
        walk.into_runs()
    };
    let candidates: Vec<Candidate> = candidates(tokens.len() as u32);
    let pick = || {
        let mut candidates = candidates.clone();
        pick::rank(&mut candidates, 7, 16);
        candidates
    };

    let report = |stage: &str, us: f64| println!("{stage}_{kilobytes}kb {us:.3} us");
    println!("tokens_{kilobytes}kb {} tokens", tokens.len());
    report("parse", time(parse));
    report("render", time(render));
    report("tokenize", time(tokenize));
    report("hash", time(hash));
    report("look_up", time(look_up));
    report("pick", time(pick));

    let mut gateway = gateway_with(&hashes, artifact);
    let query = Query { endpoint: Endpoint::ChatCompletions, tenant: "default", body: &body, complete: true };
    report(
        "decide",
        time(|| {
            let decision = gateway.decide(&query, NOW);
            if let Some(ticket) = decision.ticket {
                gateway.finished(ticket, Outcome::Ended, NOW);
            }
            assert!(decision.matched_tokens > 0, "{decision:?}");
            decision
        }),
    );
}

/// Median microseconds of a call, over at least 15 samples and 0.3 s. Calls below the clock's resolution are timed in
/// batches.
fn time<T>(mut call: impl FnMut() -> T) -> f64 {
    let start = Instant::now();
    let mut batch = 0u32;
    while batch < 3 || (start.elapsed().as_micros() < 2_000 && batch < 10_000) {
        black_box(call());
        batch += 1;
    }
    let batch = (batch / 10).max(1);
    let (start, mut samples) = (Instant::now(), Vec::new());
    while samples.len() < 15 || start.elapsed().as_millis() < 300 {
        let begin = Instant::now();
        for _ in 0..batch {
            black_box(call());
        }
        samples.push(begin.elapsed().as_secs_f64() * 1e6 / f64::from(batch));
    }
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied().unwrap_or_default()
}

/// A chat body of about `size` bytes: a system prompt and turns of 1 KB.
fn chat_of(size: usize) -> Vec<u8> {
    const WORDS: [&str; 16] = [
        "cache",
        "the",
        "prefix",
        "of",
        "routing",
        "and",
        "latency",
        "model",
        "größe",
        "tokens",
        "in",
        "2024",
        "gateway's",
        "block,",
        "replica.",
        "hash()",
    ];
    let mut state = 1u64;
    let mut words = |bytes: usize| {
        let mut text = String::new();
        while text.len() < bytes {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            text.push_str(WORDS[(state >> 60) as usize]);
            text.push(' ');
        }
        text
    };
    let mut messages = vec![serde_json::json!({"role": "system", "content": words(512)})];
    let mut length = 600;
    while length < size {
        let bytes = (size - length).min(1_024);
        let role = if messages.len() % 2 == 1 { "user" } else { "assistant" };
        messages.push(serde_json::json!({"role": role, "content": words(bytes)}));
        length += bytes + 40;
    }
    serde_json::json!({"model": "demo", "messages": messages}).to_string().into_bytes()
}

fn index_with(hashes: &[BlockHash]) -> IndexReplica {
    let mut index = IndexReplica::new(usize::MAX);
    for at in 0..OTHER_ENTRIES {
        let replica = ReplicaId(1 + (at % u64::from(REPLICAS)) as u32);
        index.store(SCOPE, replica, other(at), 1).expect("memory");
    }
    for (replica, hash) in (1..=3).flat_map(|replica| hashes.iter().map(move |hash| (replica, *hash))) {
        index.store(SCOPE, ReplicaId(replica), hash, 1).expect("memory");
    }
    index
}

fn gateway_with(hashes: &[BlockHash], artifact: &[u8]) -> Gateway {
    let mut gateway = Gateway::new(Settings::default());
    let digest = sha256(artifact);
    let directory = proto::Directory {
        replicas: (1..=REPLICAS)
            .map(|id| proto::Replica {
                id,
                name: format!("replica-{id}"),
                address: format!("10.0.0.{id}:8000"),
                tenant: "default".to_owned(),
                model: "demo".to_owned(),
                ..Default::default()
            })
            .collect(),
        scopes: vec![proto::Scope {
            id: SCOPE.0,
            tenant: "default".to_owned(),
            model: "demo".to_owned(),
            hash_scheme: SCHEME.to_owned(),
            adapter: String::new(),
        }],
        models: vec![proto::Model {
            name: "demo".to_owned(),
            artifact_digest: digest,
            artifact_size: artifact.len() as u64,
            block_sizes: vec![16],
            ..Default::default()
        }],
        ttl_s: 0,
    };
    let blocks = |replica: u32, hashes: Vec<u64>| proto::Blocks {
        scope: SCOPE.0,
        replica,
        tier: proto::Tier::T1 as i32,
        age_s: 0,
        hashes,
    };
    let own: Vec<u64> = hashes.iter().map(|hash| hash.0).collect();
    let others = (0..REPLICAS).map(|replica| {
        let hashes = (0..OTHER_ENTRIES).filter(|at| at % u64::from(REPLICAS) == u64::from(replica));
        blocks(replica + 1, hashes.map(|at| other(at).0).collect())
    });
    let blocks: Vec<proto::Blocks> =
        (1..=3).map(|replica| blocks(replica, own.clone())).chain(others).collect();
    let entries = blocks.iter().map(|blocks| blocks.hashes.len() as u64).sum();
    for body in [
        Body::SnapshotBegin(proto::SnapshotBegin { protocol_version: 1, directory: Some(directory) }),
        Body::SnapshotChunk(proto::SnapshotChunk { blocks }),
        Body::SnapshotEnd(proto::SnapshotEnd { entries }),
    ] {
        gateway.frame(seal(1, 1, 1, body).encode_to_vec()).expect("a frame");
    }
    while gateway.work(usize::MAX, NOW).expect("applies") == Progress::More {}
    let wanted = gateway.wanted_artifact().expect("the artifact is wanted");
    gateway.fetch_request(&wanted);
    let chunk = proto::ArtifactChunk { size: artifact.len() as u64, data: artifact.to_vec() };
    gateway.artifact_chunk(&chunk.encode_to_vec()).expect("a chunk");
    gateway.artifact_end(true).expect("the artifact loads");
    gateway
}

fn candidates(prompt_tokens: u32) -> Vec<Candidate> {
    (1..=REPLICAS)
        .map(|id| Candidate {
            replica: ReplicaId(id),
            matched_tokens: if id <= 3 { prompt_tokens / 16 * 16 } else { 0 },
            in_flight: id % 3,
            name_hash: pick::name_hash(&format!("replica-{id}")),
        })
        .collect()
}

fn other(at: u64) -> BlockHash {
    BlockHash(at.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
}

fn sha256(bytes: &[u8]) -> Vec<u8> {
    use sha2::Digest;
    sha2::Sha256::digest(bytes).to_vec()
}
