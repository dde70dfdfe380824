//! The request path over token prompts: no model needed. With models: `core/tests/gateway.rs`.

use super::*;
use crate::hash;
use crate::openai::Endpoint;
use crate::replication::{frame, proto::payload::Body};
#[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
use wasm_bindgen_test::wasm_bindgen_test as test;

const NOW: u64 = 1_800_000_000_000;
const EPOCH: u64 = 77;

/// A gateway of three replicas of model "m" (one with adapter "lora"), block size 4, fed through real frames.
struct Fixture {
    gateway: Gateway,
    seq: u64,
}

impl Fixture {
    fn new(settings: Settings) -> Fixture {
        Fixture::with(settings, directory())
    }

    fn with(settings: Settings, directory: proto::Directory) -> Fixture {
        let mut fixture = Fixture { gateway: Gateway::new(settings), seq: 1 };
        let begin = proto::SnapshotBegin { protocol_version: 1, directory: Some(directory) };
        fixture.send(1, Body::SnapshotBegin(begin));
        fixture.send(1, Body::SnapshotEnd(proto::SnapshotEnd { entries: 0 }));
        fixture
    }

    fn send(&mut self, seq: u64, body: Body) {
        let frame = frame::seal(EPOCH, self.seq, seq, body);
        self.seq = seq;
        self.gateway.frame(frame.encode_to_vec()).unwrap();
        while self.gateway.work(1000, NOW).unwrap() == Progress::More {}
    }

    fn store(&mut self, replica: u32, scope: u32, prompt: &[u32]) {
        let chain = hash::chain(prompt, BlockSize::new(4).unwrap(), &Namespace::empty());
        self.store_hashes(replica, scope, chain.iter().map(|hash| hash.0).collect());
    }

    fn store_hashes(&mut self, replica: u32, scope: u32, hashes: Vec<u64>) {
        let blocks = proto::Blocks { scope, replica, tier: 1, age_s: 0, hashes };
        let op = proto::Op { op: Some(proto::op::Op::Stored(blocks)) };
        self.send(self.seq + 1, Body::Delta(proto::Delta { directory: None, ops: vec![op] }));
    }

    fn ask(&mut self, model: &str, prompt: &[u32]) -> Decision {
        self.ask_at(model, prompt, NOW)
    }

    fn ask_at(&mut self, model: &str, prompt: &[u32], now_ms: u64) -> Decision {
        let body = format!(r#"{{"model":"{model}","prompt":{prompt:?}}}"#);
        self.ask_body(&body, now_ms)
    }

    fn ask_body(&mut self, body: &str, now_ms: u64) -> Decision {
        let query = Query {
            endpoint: Endpoint::Completions,
            tenant: "default",
            body: body.as_bytes(),
            complete: true,
        };
        self.gateway.decide(&query, now_ms)
    }

    fn ask_headers(&mut self, conversation: Option<&[u8]>, chain: Option<&[u8]>) -> Decision {
        let query = HeaderQuery { tenant: "default", model: Some("m"), conversation, chain };
        self.gateway.decide_by_headers(&query, NOW)
    }
}

fn directory() -> proto::Directory {
    let replica = |id: u32| proto::Replica {
        id,
        name: format!("engine-{id}"),
        address: format!("127.0.0.1:{}", 8000 + id),
        tenant: "default".into(),
        model: "m".into(),
        adapters: if id == 3 { vec!["lora".into()] } else { vec![] },
        ..Default::default()
    };
    let scope = |id: u32, adapter: &str| proto::Scope {
        id,
        tenant: "default".into(),
        model: "m".into(),
        hash_scheme: hash::SCHEME.into(),
        adapter: adapter.into(),
    };
    proto::Directory {
        replicas: (1..=3).map(replica).collect(),
        scopes: vec![scope(1, ""), scope(2, "lora")],
        models: vec![proto::Model { name: "m".into(), block_sizes: vec![4], ..Default::default() }],
        ttl_s: 60,
    }
}

fn without_speculation() -> Fixture {
    Fixture::new(Settings { max_speculative_tokens: 0, ..Settings::default() })
}

fn first(decision: &Decision) -> &str {
    decision.destinations.first().map_or("", |destination| destination.name.as_str())
}

#[test]
fn the_holder_of_the_longest_run_is_named_first() {
    let mut fixture = without_speculation();
    fixture.store(1, 1, &[1, 2, 3, 4]);
    fixture.store(2, 1, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
    let decision = fixture.ask("m", &[1, 2, 3, 4, 5, 6, 7, 8, 0, 0]);
    assert_eq!((decision.reason, decision.matched_tokens), (Reason::PrefixMatch, 8));
    assert_eq!(decision.destinations.len(), 3);
    assert_eq!(
        decision.destinations[0],
        Destination { name: "engine-2".into(), address: "127.0.0.1:8002".into(), rank: None }
    );
    assert_eq!(decision.destinations[1].name, "engine-1");
}

#[test]
fn the_block_of_the_last_token_is_never_predicted() {
    let mut fixture = without_speculation();
    fixture.store(1, 1, &[1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(fixture.ask("m", &[1, 2, 3, 4, 5, 6, 7, 8]).matched_tokens, 4);
    assert_eq!(fixture.ask("m", &[1, 2, 3, 4, 5, 6, 7, 8, 9]).matched_tokens, 8);
    let decision = fixture.ask("m", &[1, 2, 3, 4]);
    assert_eq!((decision.reason, decision.matched_tokens), (Reason::AffinityHint, 0));
}

#[test]
fn adapters_and_salts_do_not_see_each_other() {
    let mut fixture = without_speculation();
    fixture.store(3, 2, &[1, 2, 3, 4]);
    assert_eq!(fixture.ask("m", &[1, 2, 3, 4, 5]).reason, Reason::AffinityHint);
    let decision = fixture.ask("lora", &[1, 2, 3, 4, 5]);
    assert_eq!((first(&decision), decision.matched_tokens, decision.destinations.len()), ("engine-3", 4, 1));
    let salted = r#"{"model":"lora","prompt":[1,2,3,4,5],"cache_salt":"s"}"#;
    assert_eq!(fixture.ask_body(salted, NOW).matched_tokens, 0);
}

#[test]
fn a_burst_follows_its_first_request() {
    let mut fixture = Fixture::new(Settings::default());
    let prompt: Vec<u32> = (1..=17).collect();
    let cold = fixture.ask("m", &prompt);
    assert_eq!((cold.reason, cold.matched_tokens, cold.hashed_tokens), (Reason::AffinityHint, 0, 16));
    let sibling = fixture.ask("m", &prompt);
    assert_eq!((first(&sibling), sibling.matched_tokens), (first(&cold), 16));

    // One of two that promise the same blocks fails: the other still brings them.
    fixture.gateway.finished(cold.ticket.unwrap(), Outcome::Failed, NOW);
    assert_eq!(fixture.ask("m", &[prompt.as_slice(), &[0]].concat()).matched_tokens, 16);
}

#[test]
fn what_a_failed_request_promised_is_withdrawn() {
    let mut fixture = Fixture::new(Settings::default());
    let cold = fixture.ask("m", &[1, 2, 3, 4, 5]);
    fixture.gateway.finished(cold.ticket.unwrap(), Outcome::Failed, NOW);
    assert_eq!(fixture.ask("m", &[1, 2, 3, 4, 5]).matched_tokens, 0);
}

#[test]
fn speculation_ends_after_the_first_token() {
    let mut fixture = Fixture::new(Settings::default());
    let prompt: Vec<u32> = (1..=17).collect();
    let cold = fixture.ask("m", &prompt);
    fixture.gateway.finished(cold.ticket.unwrap(), Outcome::FirstToken, NOW + 5000);
    let sibling = fixture.ask_at("m", &prompt, NOW + 6999);
    assert_eq!(sibling.matched_tokens, 16);
    fixture.gateway.finished(sibling.ticket.unwrap(), Outcome::Failed, NOW + 6999);
    assert_eq!(fixture.ask_at("m", &prompt, NOW + 7000).matched_tokens, 0);
    assert_eq!(fixture.gateway.summary().in_flight, 2);
}

#[test]
fn load_decides_where_nothing_is_matched() {
    let mut fixture = without_speculation();
    let decisions: Vec<_> = (0..3).map(|_| fixture.ask("m", &[9, 9, 9, 9, 9])).collect();
    let mut names: Vec<_> = decisions.iter().map(first).collect();
    names.sort_unstable();
    assert_eq!(names, ["engine-1", "engine-2", "engine-3"]);
    for decision in &decisions {
        fixture.gateway.finished(decision.ticket.unwrap(), Outcome::FirstToken, NOW);
        fixture.gateway.finished(decision.ticket.unwrap(), Outcome::Ended, NOW);
        fixture.gateway.finished(decision.ticket.unwrap(), Outcome::Ended, NOW);
    }
    assert_eq!(fixture.gateway.summary().in_flight, 0);
}

#[test]
fn entries_age_out_without_a_word_from_host_shim() {
    let mut fixture = without_speculation();
    fixture.store(1, 1, &[1, 2, 3, 4]);
    assert_eq!(fixture.ask_at("m", &[1, 2, 3, 4, 5], NOW + 60_000).matched_tokens, 4);
    assert_eq!(fixture.ask_at("m", &[1, 2, 3, 4, 5], NOW + 61_000).matched_tokens, 0);
}

#[test]
fn every_reason_for_no_hint_is_named() {
    let mut fixture = without_speculation();
    let cases = [
        (r#"{"model":"m","prompt":[1,2,3]}"#, Reason::NoHint, "short_prompt"),
        (r#"{"model":"m","prompt":"text"}"#, Reason::NoHint, "no_tokenizer"),
        (r#"{"model":"other","prompt":[1,2,3]}"#, Reason::UnknownModel, ""),
        ("nonsense", Reason::NoHint, "not_json"),
    ];
    for (body, reason, detail) in cases {
        let decision = fixture.ask_body(body, NOW);
        assert_eq!((decision.reason, decision.detail), (reason, detail), "{body}");
        assert!(decision.destinations.is_empty() && decision.ticket.is_none());
    }
    let body = br#"{"model":"m","prompt":[1,2,3,4]}"#;
    let query = Query { endpoint: Endpoint::Completions, tenant: "nobody", body, complete: true };
    assert_eq!(fixture.gateway.decide(&query, NOW).reason, Reason::UnknownTenant);
    assert_eq!(Gateway::new(Settings::default()).decide(&query, NOW).detail, "not_ready");
}

#[test]
fn conversations_are_pinned_by_headers() {
    let mut fixture = without_speculation();
    let mut seen = std::collections::BTreeSet::new();
    for n in 0..50 {
        let conversation = format!("conversation-{n}");
        let decision = fixture.ask_headers(Some(conversation.as_bytes()), None);
        fixture.gateway.finished(decision.ticket.unwrap(), Outcome::Ended, NOW);
        let again = fixture.ask_headers(Some(conversation.as_bytes()), None);
        fixture.gateway.finished(again.ticket.unwrap(), Outcome::Ended, NOW);
        assert_eq!((first(&decision), decision.reason), (first(&again), Reason::AffinityHint));
        seen.insert(first(&decision).to_owned());
    }
    assert_eq!(seen.len(), 3);
    assert_eq!(fixture.ask_headers(None, None).detail, "no_conversation");
}

#[test]
fn an_overloaded_replica_loses_pinned_conversations() {
    let mut fixture = without_speculation();
    let names: Vec<_> = (0..40).map(|_| first(&fixture.ask_headers(Some(b"hot"), None)).to_owned()).collect();
    let owner = &names[0];
    let owned = names.iter().filter(|name| *name == owner).count();
    assert!((10..40).contains(&owned), "{owned}");
}

#[test]
fn chains_of_headers_are_looked_up() {
    let mut fixture = without_speculation();
    fixture.store(2, 1, &[1, 2, 3, 4, 5, 6, 7, 8]);
    let chain = hash::chain(&[1, 2, 3, 4, 5, 6, 7, 8], BlockSize::new(4).unwrap(), &Namespace::empty());
    let text: Vec<_> = chain.iter().map(|hash| format!("{:016x}", hash.0)).collect();
    let decision = fixture.ask_headers(Some(b"c"), Some(text.join(",").as_bytes()));
    assert_eq!(
        (decision.reason, first(&decision), decision.matched_tokens),
        (Reason::PrefixMatch, "engine-2", 8)
    );
    assert_eq!(fixture.ask_headers(None, Some(b"xyz")).detail, "bad_chain");
}

#[test]
fn settings_have_ranges() {
    assert_eq!(Settings::default().validate(), Ok(()));
    let error = Settings { fallbacks: 0, ..Settings::default() }.validate().unwrap_err();
    assert_eq!(error.to_string(), "gateway.fallbacks: must be 1 to 16");
    assert!(serde_json::from_str::<Settings>(r#"{"fallback": 1}"#).is_err());
    assert_eq!(serde_json::from_str::<Settings>(r#"{"fallbacks": 2}"#).unwrap().fallbacks, 2);
}

/// engine-1 with the ranks 0 and 1, engine-2 with 0 to 2, engine-3 without ranks; ids in this order.
fn ranked_directory() -> proto::Directory {
    let holders = [(1, Some(0)), (1, Some(1)), (2, Some(0)), (2, Some(1)), (2, Some(2)), (3, None)];
    let mut directory = directory();
    let engines = directory.replicas.clone();
    directory.replicas = (1..)
        .zip(holders)
        .map(|(id, (engine, data_parallel_rank)): (u32, (usize, _))| proto::Replica {
            id,
            data_parallel_rank,
            ..engines[engine - 1].clone()
        })
        .collect();
    directory
}

fn named(decision: &Decision) -> Vec<(&str, Option<u32>)> {
    decision.destinations.iter().map(|to| (to.name.as_str(), to.rank)).collect()
}

#[test]
fn only_replicas_with_the_best_one_s_rank_are_fallbacks() {
    let settings = Settings { max_speculative_tokens: 0, ..Settings::default() };
    let mut fixture = Fixture::with(settings, ranked_directory());
    fixture.store(2, 1, &[1, 2, 3, 4, 5, 6, 7, 8]);
    fixture.store(1, 1, &[1, 2, 3, 4]);
    let decision = fixture.ask("m", &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(
        (decision.matched_tokens, named(&decision)),
        (8, vec![("engine-1", Some(1)), ("engine-2", Some(1))])
    );
    // A rank that nobody else has.
    fixture.store(5, 1, &[11, 12, 13, 14]);
    assert_eq!(named(&fixture.ask("m", &[11, 12, 13, 14, 15])), [("engine-2", Some(2))]);
}

#[test]
fn a_best_replica_without_ranks_may_be_followed_by_any() {
    let settings = Settings { max_speculative_tokens: 0, ..Settings::default() };
    let mut fixture = Fixture::with(settings, ranked_directory());
    fixture.store(6, 1, &[1, 2, 3, 4]);
    let decision = fixture.ask("m", &[1, 2, 3, 4, 5]);
    let mut names = named(&decision);
    assert_eq!(names.remove(0), ("engine-3", None));
    names.sort_unstable();
    assert_eq!(names, [("engine-1", None), ("engine-2", None)], "each address once");
}

#[test]
fn requests_in_flight_count_by_rank() {
    let settings = Settings { max_speculative_tokens: 0, ..Settings::default() };
    let mut fixture = Fixture::with(settings, ranked_directory());
    let mut seen: Vec<_> = (0..6)
        .map(|n| {
            let decision = fixture.ask("m", &[n, 9, 9, 9, 9]);
            let first = &decision.destinations[0];
            (first.name.clone(), first.rank)
        })
        .collect();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 6);
}

/// Low 64 bits of vLLM's sha256_cbor chain of blocks of 4, computed naively: seed "0", tokens below 24, the salt tagged.
fn naive_chain(prompt: &[u32], salt: Option<&str>) -> Vec<u64> {
    use sha2::{Digest, Sha256};
    let mut parent = Sha256::digest([0x61, b'0']).to_vec();
    let mut hashes = Vec::new();
    for (at, block) in prompt.chunks_exact(4).enumerate() {
        let mut bytes = vec![0x83, 0x58, 0x20];
        bytes.extend(&parent);
        bytes.push(0x84);
        bytes.extend(block.iter().map(|&token| token as u8));
        match salt.filter(|_| at == 0) {
            None => bytes.push(0xf6),
            Some(salt) => {
                bytes.extend([0x81, 0x82, 0x6a]);
                bytes.extend(b"cache_salt");
                bytes.push(0x60 + salt.len() as u8);
                bytes.extend(salt.bytes());
            }
        }
        parent = Sha256::digest(&bytes).to_vec();
        hashes.push(u64::from_be_bytes(parent[24..].try_into().unwrap()));
    }
    hashes
}

/// As [`directory`], with scope 9 of the engines' own hashes.
fn directory_with_engine_scheme() -> proto::Directory {
    let mut directory = directory();
    directory.models[0].engine_schemes = vec![proto::EngineScheme {
        name: "vllm".into(),
        algorithm: "sha256_cbor".into(),
        seed: "0".into(),
        tagged_extra_keys: true,
        block_size: 4,
    }];
    let scope = proto::Scope { id: 9, hash_scheme: "vllm".into(), ..directory.scopes[0].clone() };
    directory.scopes.push(scope);
    directory
}

#[test]
fn the_engines_own_hashes_are_looked_up_beside_ours() {
    let settings = Settings { max_speculative_tokens: 0, ..Settings::default() };
    let mut fixture = Fixture::with(settings, directory_with_engine_scheme());
    let prompt: Vec<u32> = (1..=12).collect();
    fixture.store(1, 1, &prompt[..4]);
    fixture.store_hashes(2, 9, naive_chain(&prompt[..8], None));
    let decision = fixture.ask("m", &[&prompt[..8], &[20]].concat());
    assert_eq!((first(&decision), decision.matched_tokens), ("engine-2", 8));
    assert_eq!(decision.destinations[1].name, "engine-1");

    // Of two schemes of one holder, the longer run counts.
    fixture.store(2, 1, &prompt);
    assert_eq!(fixture.ask("m", &[&prompt[..], &[20]].concat()).matched_tokens, 12);

    let salted = r#"{"model":"m","prompt":[1,2,3,4,5,6,7,8,9],"cache_salt":"s"}"#;
    assert_eq!(fixture.ask_body(salted, NOW).matched_tokens, 0);
    fixture.store_hashes(3, 9, naive_chain(&prompt, Some("s")));
    assert_eq!(fixture.ask_body(salted, NOW).matched_tokens, 8);
}

#[test]
fn bursts_follow_their_first_request_where_only_engine_hashes_are_reported() {
    let mut directory = directory_with_engine_scheme();
    directory.scopes.retain(|scope| scope.id == 9);
    directory.models[0].block_sizes.clear();
    let mut fixture = Fixture::with(Settings::default(), directory);
    let prompt: Vec<u32> = (1..=17).collect();
    let cold = fixture.ask("m", &prompt);
    assert_eq!((cold.reason, cold.hashed_tokens), (Reason::AffinityHint, 16));
    let sibling = fixture.ask("m", &prompt);
    assert_eq!((first(&sibling), sibling.matched_tokens), (first(&cold), 16));
}
