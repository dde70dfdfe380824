//! Following a host-shim that is away, silent, wrong or far ahead.

use crate::common::*;
use inference_cache_core::replication::proto::{self, op, payload::Body};
use wasm_tests::{Artifact, Host, HostShim};

const OPENS: &str = "inference_cache_stream_opens_total.stream.replication";

#[test]
fn the_stream_is_opened_by_a_serialized_service_and_asks_for_a_snapshot() {
    let setup = setup(Host::new(), CONFIG, Vec::new());
    let stream = &setup.host.streams()[0];
    assert_eq!((stream.cluster.as_str(), stream.authority.as_str()), ("host-shim", "shim.local"));
    assert_eq!((stream.method.as_str(), stream.half_closed), ("Subscribe", true));
    let request: proto::SubscribeRequest =
        prost::Message::decode(stream.sent[0].as_slice()).expect("a request");
    assert_eq!((request.protocol_version, request.epoch), (1, 0));
    assert!(!request.subscriber.is_empty());
}

#[test]
fn deltas_are_followed() {
    let prompt = tokens(1, 96);
    let mut setup = setup(Host::new(), CONFIG, Vec::new());
    let op = |op| proto::Op { op: Some(op) };
    setup.shim.delta(&mut setup.vm, vec![op(op::Op::Stored(stored(2, &prompt, 6)))]);
    assert_eq!(first(&setup.complete(&prompt)), B);
    // What was routed is expected there for two more seconds.
    setup.host.advance(3_000);
    setup.shim.delta(&mut setup.vm, vec![op(op::Op::Removed(stored(2, &prompt, 6)))]);
    setup.shim.delta(&mut setup.vm, vec![op(op::Op::Stored(stored(3, &prompt, 1)))]);
    let exchange = setup.complete(&prompt);
    assert_eq!((first(&exchange).as_str(), response(&exchange, "matched-tokens").as_str()), (C, "16"));
}

#[test]
fn host_shim_down_fails_no_request_and_is_asked_less_and_less() {
    let host = Host::new();
    host.set_grpc_reachable(false);
    let mut vm = host.vm();
    let root = vm.configure(CONFIG).expect("valid");
    vm.run_for(60_000);
    let tries = host.calls()["proxy_grpc_stream"];
    assert!((12..60).contains(&tries), "{tries} tries in a minute");
    let context = vm.open(root, &post("/v1/completions", &[]), false);
    vm.body(context, &completion("demo", &tokens(1, 64)), true);
    assert!(vm.end(context).upstream_complete);
    assert_eq!(host.metric("inference_cache_no_hint_total.cause.not_ready"), 1);
    host.set_grpc_reachable(true);
    let mut shim = shim(None);
    shim.bring_up(&mut vm);
}

#[test]
fn a_killed_host_shim_leaves_a_working_index_and_is_followed_again() {
    let prompt = tokens(1, 64);
    let mut setup = setup(Host::new(), CONFIG, vec![stored(2, &prompt, 4)]);
    for token in setup.shim.open_streams(&setup.vm) {
        setup.vm.grpc_close(token, 13);
    }
    assert_eq!(setup.replication_error("stream_reset"), 1);
    assert_eq!(first(&setup.complete(&prompt)), B);
    setup.vm.run_for(200);
    // It comes back as another incarnation that knows something else.
    let mut next = HostShim { epoch: 77, blocks: vec![stored(3, &prompt, 4)], ..shim(None) };
    next.bring_up(&mut setup.vm);
    assert_eq!(first(&setup.complete(&prompt)), C);
    assert_eq!(setup.host.metric(OPENS), 2);
}

#[test]
fn a_silent_stream_is_replaced() {
    let mut setup = setup(Host::new(), CONFIG, Vec::new());
    let before = setup.shim.open_streams(&setup.vm);
    setup.vm.run_for(6_000);
    assert_eq!(setup.replication_error("silent"), 1);
    setup.shim.serve(&mut setup.vm);
    let after = setup.shim.open_streams(&setup.vm);
    assert!(after.len() == 1 && after != before);
    for _ in 0..10 {
        setup.vm.run_for(1_000);
        setup.shim.send(&mut setup.vm, Body::Heartbeat(proto::Heartbeat {}), false);
    }
    assert_eq!(setup.replication_error("silent"), 1, "heartbeats keep it");
}

#[test]
fn garbage_closes_the_stream_and_not_the_plugin() {
    let prompt = tokens(1, 64);
    let mut setup = setup(Host::new(), CONFIG, vec![stored(2, &prompt, 4)]);
    let garbage: [&[u8]; 5] =
        [b"\xff\xff\xff\xff", b"", b"\x08\x01", &[0x2a; 70_000], b"\x2a\xff\xff\xff\xff\x0f"];
    for (round, bytes) in garbage.iter().enumerate() {
        for token in setup.shim.open_streams(&setup.vm) {
            setup.vm.grpc_message(token, bytes);
        }
        setup.vm.pump();
        setup.vm.run_for(20);
        assert_eq!(first(&setup.complete(&prompt)), B, "round {round}");
        setup.vm.run_for(6_000);
        setup.shim.serve(&mut setup.vm);
        assert_eq!(setup.shim.open_streams(&setup.vm).len(), 1, "round {round}");
    }
    let errors: i64 = setup
        .host
        .metrics()
        .iter()
        .filter(|(name, _)| name.contains("replication_errors"))
        .map(|(_, value)| value)
        .sum();
    assert!(errors >= 4, "{:#?}", setup.host.metrics());
}

#[test]
fn garbage_without_end_does_not_become_a_storm() {
    let host = Host::new();
    let mut vm = host.vm();
    vm.configure(CONFIG).expect("valid");
    for _ in 0..3_000 {
        vm.run_for(20);
        for stream in host.streams().iter().filter(|stream| stream.open) {
            vm.grpc_message(stream.token, b"\xff\xff");
        }
    }
    let opens = host.metric(OPENS);
    assert!((10..60).contains(&opens), "{opens} streams in a minute");
}

#[test]
fn a_large_snapshot_is_applied_in_slices_between_requests() {
    // 400,000 entries, and a clock that says every look at it took 0.4 ms.
    let blocks = |at: u64| proto::Blocks {
        scope: 1,
        replica: 1 + (at % 3) as u32,
        tier: proto::Tier::T1 as i32,
        age_s: 0,
        hashes: (0..4_000).map(|hash| at << 32 | hash).collect(),
    };
    let host = Host::new();
    host.set_clock_step(400_000);
    let mut setup = setup(host, CONFIG, (0..100).map(blocks).collect());
    assert_eq!(setup.host.metric("inference_cache_replica_entries"), 400_000);
    let wakes = setup.host.calls()["proxy_enqueue_shared_queue"];
    assert!(wakes > 50, "{wakes} slices");
    assert!(destination(&setup.complete(&tokens(1, 64))).is_some());
}

#[test]
fn a_wrong_artifact_is_refused_and_the_right_one_taken_later() {
    let right = demo_artifact();
    let mut wrong = right.clone();
    wrong.bytes[1_000] ^= 1;
    let mut shim = HostShim { artifacts: vec![wrong], ..shim(Some(right.clone())) };
    let host = Host::new();
    let mut vm = host.vm();
    let root = vm.configure(CONFIG).expect("valid");
    for _ in 0..20 {
        vm.run_for(100);
        shim.serve(&mut vm);
    }
    assert_eq!(host.metric("inference_cache_models_loaded"), 0);
    assert!(
        host.metric("inference_cache_replication_errors_total.cause.artifact") >= 1,
        "{:#?}",
        host.metrics()
    );
    let context = vm.open(root, &post("/v1/chat/completions", &[]), false);
    vm.body(context, &chat("demo", "hello"), true);
    vm.end(context);
    assert_eq!(host.metric("inference_cache_no_hint_total.cause.no_tokenizer"), 1);
    let asked = host.metric("inference_cache_stream_opens_total.stream.artifact");
    assert_eq!(asked, 1, "not again as long as the directory names it");
    shim.artifacts = vec![right];
    let named = shim.directory.clone();
    shim.directory.models[0].artifact_digest.clear();
    for directory in [shim.directory.clone(), named] {
        shim.send(&mut vm, Body::Delta(proto::Delta { directory: Some(directory), ops: Vec::new() }), true);
        vm.run_for(1_000);
        shim.serve(&mut vm);
        vm.run_for(1_000);
    }
    assert_eq!(host.metric("inference_cache_models_loaded"), 1);
}

#[test]
fn an_unknown_artifact_is_asked_for_with_patience() {
    let mut shim = HostShim { artifacts: Vec::new(), ..shim(Some(Artifact::new(b"gone".to_vec()))) };
    let host = Host::new();
    let mut vm = host.vm();
    vm.configure(CONFIG).expect("valid");
    for _ in 0..600 {
        vm.run_for(100);
        shim.serve(&mut vm);
        shim.send(&mut vm, Body::Heartbeat(proto::Heartbeat {}), false);
    }
    let asked = host.metric("inference_cache_stream_opens_total.stream.artifact");
    assert!((10..60).contains(&asked), "{asked} times in a minute");
    assert_eq!(host.metric(OPENS), 1, "the replication stream is another matter");
}

#[test]
fn each_vm_follows_by_itself_and_wakes_itself() {
    let host = Host::new();
    let prompt = tokens(1, 64);
    let mut first_vm = setup(host.clone(), CONFIG, vec![stored(1, &prompt, 4)]);
    let mut second_vm = setup(host.clone(), CONFIG, vec![stored(2, &prompt, 4)]);
    assert_eq!(first(&first_vm.complete(&prompt)), A);
    assert_eq!(first(&second_vm.complete(&prompt)), B);
    let subscriber = |at: usize| {
        let request: proto::SubscribeRequest =
            prost::Message::decode(host.streams()[at].sent[0].as_slice()).expect("a request");
        request.subscriber
    };
    assert_ne!(subscriber(0), subscriber(1), "or one would supersede the other");
    let leased =
        (0..3).filter(|slot| host.shared_data(&format!("inference-cache/1/wake/{slot}")).is_some()).count();
    assert_eq!(leased, 2);
}
