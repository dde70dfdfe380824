//! Body mode, header mode, and finding out which.

use crate::common::*;
use wasm_tests::{Host, Vm};

const BODY: &str = "inference_cache_mode_total.mode.body";
const HEADER: &str = "inference_cache_mode_total.mode.header";

fn request(vm: &mut Vm, root: u32) -> u32 {
    vm.open(root, &post("/v1/completions", &[("x-conversation-id", b"c-1")]), false)
}

/// Milliseconds until the request goes on.
fn wait(setup: &mut Setup, context: u32) -> u64 {
    let start = setup.host.now();
    while setup.vm.exchange(context).is_held() {
        assert!(setup.host.now() < start + 1_000, "the request hangs");
        setup.vm.run_for(20);
    }
    setup.host.now() - start
}

#[test]
fn without_the_flag_requests_wait_briefly_once_and_then_not_at_all() {
    let mut setup = setup(Host::without_header_stop(), CONFIG, Vec::new());
    let body = completion("demo", &tokens(1, 64));
    let held: Vec<u32> = (0..5).map(|_| request(&mut setup.vm, setup.root)).collect();
    for context in &held {
        setup.vm.body(*context, &body, true);
    }
    assert!(wait(&mut setup, held[0]) <= 60);
    for context in held {
        assert!(!setup.vm.exchange(context).is_held());
        setup.vm.respond(context, "200", &[b"x"]);
        let exchange = setup.vm.end(context);
        assert_eq!(exchange.upstream_body, body);
        assert!(destination(&exchange).is_some(), "set from the tick, in the request's own context");
        assert_eq!(response(&exchange, "mode"), "header");
    }
    let context = request(&mut setup.vm, setup.root);
    assert!(!setup.vm.exchange(context).is_held());
    assert_eq!((setup.host.metric(HEADER), setup.host.metric(BODY)), (6, 0));
    assert_eq!(setup.host.metric("inference_cache_mode_changes_total.mode.header"), 1);
    let said = setup.host.log().iter().filter(|line| line.message.contains("header mode")).count();
    assert_eq!(said, 1);
}

#[test]
fn a_conversation_stays_on_its_replica_in_header_mode() {
    let config = r#"{"hostShim": {"cluster": "c"}, "mode": "header", "debugHeaders": true}"#;
    let mut setup = setup(Host::without_header_stop(), config, Vec::new());
    let mut used = std::collections::BTreeSet::new();
    for conversation in 0..20 {
        let id = format!("c-{conversation}");
        let headers: [(&str, &[u8]); 2] =
            [("x-conversation-id", id.as_bytes()), ("x-inference-cache-model", b"demo")];
        let replicas: Vec<String> =
            (0..4).map(|_| first(&setup.exchange("/v1/chat/completions", &headers, b"{}"))).collect();
        assert!(replicas.iter().all(|replica| *replica == replicas[0]), "{replicas:?}");
        used.insert(replicas[0].clone());
    }
    assert_eq!(used.len(), 3);
    let without = setup.exchange("/v1/chat/completions", &[], b"{}");
    assert_eq!(destination(&without), None);
    assert_eq!(setup.cause("no_conversation"), 1);
}

#[test]
fn a_chain_from_the_client_is_looked_up_in_header_mode() {
    let prompt = tokens(2, 96);
    let config = r#"{"hostShim": {"cluster": "c"}, "mode": "header", "debugHeaders": true}"#;
    let mut setup = setup(Host::new(), config, vec![stored(3, &prompt, 4)]);
    let chain: Vec<String> = hashes(&prompt).iter().map(|hash| format!("{:016x}", hash.0)).collect();
    let exchange =
        setup.exchange("/v1/completions", &[("x-inference-cache-chain", chain.join(",").as_bytes())], b"{}");
    assert_eq!(first(&exchange), C);
    assert_eq!(response(&exchange, "reason"), "PREFIX_MATCH");
    assert_eq!(response(&exchange, "mode"), "header");
    setup.exchange("/v1/completions", &[("x-inference-cache-chain", b"xyz")], b"{}");
    assert_eq!(setup.cause("bad_chain"), 1);
}

#[test]
fn once_proven_body_mode_waits_for_any_body() {
    let mut setup = setup(Host::new(), CONFIG, Vec::new());
    setup.complete(&tokens(1, 64));
    let slow = request(&mut setup.vm, setup.root);
    setup.vm.run_for(30_000);
    assert!(setup.vm.exchange(slow).is_held());
    setup.vm.body(slow, &completion("demo", &tokens(1, 64)), true);
    assert!(!setup.vm.exchange(slow).is_held());
    assert_eq!(setup.host.metric(BODY), 2);
}

#[test]
fn a_slow_first_client_does_not_condemn_the_process() {
    let mut setup = setup(Host::new(), CONFIG, Vec::new());
    let slow = request(&mut setup.vm, setup.root);
    assert!(wait(&mut setup, slow) <= 60);
    setup.vm.body(slow, b"{}", true);
    assert!(setup.vm.end(slow).upstream_complete);
    setup.complete(&tokens(1, 64));
    assert_eq!((setup.host.metric(HEADER), setup.host.metric(BODY)), (2, 0));
    setup.host.advance(30_000);
    setup.complete(&tokens(1, 64));
    setup.complete(&tokens(1, 64));
    assert_eq!((setup.host.metric(HEADER), setup.host.metric(BODY)), (2, 2));
}

#[test]
fn probes_grow_rare_and_hold_one_request_each() {
    let mut setup = setup(Host::without_header_stop(), CONFIG, Vec::new());
    let first = request(&mut setup.vm, setup.root);
    wait(&mut setup, first);
    let mut held = 0;
    // 20 minutes, a request each second.
    for _ in 0..1_200 {
        setup.host.advance(980);
        let context = request(&mut setup.vm, setup.root);
        let other = request(&mut setup.vm, setup.root);
        assert!(!(setup.vm.exchange(context).is_held() && setup.vm.exchange(other).is_held()));
        held += u64::from(setup.vm.exchange(context).is_held());
        assert!(wait(&mut setup, context) <= 60);
        setup.vm.end(context);
        setup.vm.end(other);
        setup.vm.tick();
    }
    assert_eq!(held, 5, "after 30 s, 1, 2, 4 and 8 min");
}

#[test]
fn other_vms_of_the_process_learn_header_mode_without_waiting() {
    let host = Host::without_header_stop();
    let mut setup = setup(host.clone(), CONFIG, Vec::new());
    let held = request(&mut setup.vm, setup.root);
    wait(&mut setup, held);
    let mut other = host.vm();
    let root = other.configure(CONFIG).expect("valid");
    let context = request(&mut other, root);
    assert!(!other.exchange(context).is_held());

    // The flag comes: one VM finds out by its probe, the others look again themselves.
    host.set_header_stop(true);
    host.advance(30_100);
    setup.complete(&tokens(1, 64));
    assert_eq!(host.metric("inference_cache_mode_changes_total.mode.body"), 1);
    host.advance(2_000);
    other.tick();
    let context = request(&mut other, root);
    assert!(other.exchange(context).is_held());
}

#[test]
fn what_another_listener_proved_holds_nobody_for_long() {
    let host = Host::without_header_stop();
    let mut setup = setup(host.clone(), CONFIG, Vec::new());
    let held = request(&mut setup.vm, setup.root);
    wait(&mut setup, held);
    for garbage in [&b"\x01"[..], &[1; 17], &[2; 17], b"", &[255; 40]] {
        host.overwrite_shared_data("inference-cache/1/mode/", garbage);
        setup.vm.run_for(2_000);
        let context = request(&mut setup.vm, setup.root);
        assert!(wait(&mut setup, context) <= 60);
    }
}

#[test]
fn configured_modes_are_not_doubted() {
    let config = r#"{"hostShim": {"cluster": "c"}, "mode": "body"}"#;
    let mut setup = setup(Host::new(), config, Vec::new());
    let context = request(&mut setup.vm, setup.root);
    setup.vm.run_for(5_000);
    assert!(setup.vm.exchange(context).is_held());
}
