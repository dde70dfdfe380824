//! From request headers to the destination header and the debug headers.

use crate::common::*;
use inference_cache_core::replication::proto;
use wasm_tests::{Host, HostShim};

#[test]
fn a_prompt_goes_to_the_replica_that_holds_its_prefix() {
    let prompt = tokens(1, 100);
    let blocks = vec![stored(1, &prompt, 2), stored(2, &prompt, 5)];
    let mut setup = setup(Host::new(), CONFIG, blocks);
    let exchange = setup.complete(&prompt);
    let list = destination(&exchange).expect("a destination");
    assert_eq!(list.split(',').collect::<Vec<_>>(), [B, A, C]);
    assert_eq!(response(&exchange, "replica"), "b");
    assert_eq!(response(&exchange, "reason"), "PREFIX_MATCH");
    assert_eq!(response(&exchange, "matched-tokens"), "80");
    assert_eq!(response(&exchange, "mode"), "body");
    assert_eq!(response(&exchange, "hashed-tokens"), "96");
    assert_eq!(setup.reason("PREFIX_MATCH"), 1);
    assert_eq!(setup.host.metric("inference_cache_matched_tokens_total"), 80);
    assert_eq!(setup.host.metric("inference_cache_mode_total.mode.body"), 1);
    assert_eq!(setup.host.metric("inference_cache_replica_entries"), 7);
}

#[test]
fn an_unknown_prompt_goes_somewhere_and_stays_there() {
    let mut setup = setup(Host::new(), CONFIG, Vec::new());
    let prompt = tokens(2, 200);
    let exchange = setup.complete(&prompt);
    assert_eq!(response(&exchange, "reason"), "AFFINITY_HINT");
    let chosen = first(&exchange);
    for _ in 0..5 {
        let exchange = setup.complete(&prompt);
        assert_eq!(first(&exchange), chosen, "a prompt that was just routed is expected there");
        assert_eq!(response(&exchange, "reason"), "PREFIX_MATCH");
    }
}

#[test]
fn the_engine_is_told_which_rank_holds_the_prefix() {
    const RANK: &str = "x-data-parallel-rank";
    let prompt = tokens(8, 100);
    let mut shim = HostShim { blocks: vec![stored(2, &prompt, 5)], ..shim(None) };
    // a has the ranks 0 and 1, b has rank 1, c has none.
    let replicas = &mut shim.directory.replicas;
    replicas.push(proto::Replica { id: 4, ..replicas[1].clone() });
    replicas[1] = proto::Replica { id: 2, ..replicas[0].clone() };
    replicas[0].data_parallel_rank = Some(0);
    replicas[1].data_parallel_rank = Some(1);
    replicas[3].data_parallel_rank = Some(1);
    let mut setup = setup_with(Host::new(), CONFIG, shim);
    let body = completion("demo", &prompt);
    let exchange = setup.exchange("/v1/completions", &[(RANK, b"0")], &body);
    assert_eq!(destination(&exchange).as_deref(), Some(&*format!("{A},{B}")));
    assert_eq!(exchange.upstream_header(RANK), Some(&b"1"[..]), "ours replaces the client's");

    // Where nothing was chosen, the client's goes on: it is the engine's API.
    let exchange = setup.exchange("/v1/completions", &[(RANK, b"0")], b"{}");
    assert_eq!((destination(&exchange), exchange.upstream_header(RANK)), (None, Some(&b"0"[..])));
}

#[test]
fn a_failed_request_promises_nothing() {
    let mut setup = setup(Host::new(), CONFIG, Vec::new());
    let prompt = tokens(3, 200);
    for status in ["503", "429"] {
        let context = setup.send("/v1/completions", &[], &completion("demo", &prompt));
        setup.vm.respond(context, status, &[b"no"]);
        setup.vm.end(context);
    }
    // Reset before any response.
    let context = setup.send("/v1/completions", &[], &completion("demo", &prompt));
    setup.vm.end(context);
    assert_eq!(response(&setup.complete(&prompt), "reason"), "AFFINITY_HINT");
}

#[test]
fn chats_are_rendered_and_tokenized_in_the_gateway() {
    let shim = shim(Some(demo_artifact()));
    let mut setup = setup_with(Host::new(), CONFIG, shim);
    let text = "The quick brown fox jumps over the lazy dog. ".repeat(40);
    let once = setup.exchange("/v1/chat/completions", &[], &chat("demo", &text));
    assert_eq!(response(&once, "reason"), "AFFINITY_HINT", "{:#?}", setup.host.metrics());
    let again = setup.exchange("/v1/chat/completions", &[], &chat("demo", &text));
    assert_eq!(response(&again, "reason"), "PREFIX_MATCH");
    assert_eq!(first(&again), first(&once));
    let matched: u32 = response(&again, "matched-tokens").parse().expect("a number");
    assert!(matched >= 160 && matched.is_multiple_of(16), "{matched}");
    let other = setup.exchange("/v1/chat/completions", &[], &chat("demo", &text[..text.len() / 2]));
    assert_eq!(response(&other, "reason"), "PREFIX_MATCH");
}

#[test]
fn the_body_may_come_in_pieces_slowly_and_end_with_trailers() {
    let prompt = tokens(4, 64);
    let mut setup = setup(Host::new(), CONFIG, vec![stored(3, &prompt, 4)]);
    setup.complete(&prompt);
    let body = completion("demo", &prompt);
    let context = setup.vm.open(setup.root, &post("/v1/completions?stream=1", &[]), false);
    for piece in body.chunks(10) {
        assert!(setup.vm.exchange(context).is_held());
        setup.vm.body(context, piece, false);
        setup.vm.run_for(200);
    }
    assert!(setup.vm.exchange(context).is_held());
    setup.vm.trailers(context);
    let exchange = setup.vm.end(context);
    assert_eq!(first(&exchange), C);
    assert_eq!(exchange.upstream_body, body);
}

#[test]
fn bodies_pass_byte_for_byte_and_large_ones_are_decided_on_their_beginning() {
    let prompt = tokens(5, 4_000);
    let mut setup = setup(Host::new(), CONFIG, vec![stored(2, &prompt, 200)]);
    for size in [1, 64 << 10, 1 << 20, 5 << 20] {
        let mut body = completion("demo", &prompt);
        body.pop();
        body.extend_from_slice(br#", "user": ""#);
        let fill = size.max(body.len() + 2) - body.len() - 2;
        body.extend((0..fill).map(|at| b'a' + (at % 26) as u8));
        body.extend_from_slice(b"\"}");
        let context = setup.vm.open(setup.root, &post("/v1/completions", &[]), false);
        let pieces: Vec<&[u8]> = body.chunks(16 << 10).collect();
        for (at, piece) in pieces.iter().enumerate() {
            setup.vm.body(context, piece, at + 1 == pieces.len());
        }
        let exchange = setup.vm.end(context);
        assert!(!exchange.too_large && exchange.upstream_complete);
        assert!(exchange.upstream_body == body, "{size} bytes arrive as sent");
        assert_eq!(first(&exchange), B, "{size}");
    }
}

#[test]
fn what_is_no_llm_request_passes_without_a_word() {
    let mut setup = setup(Host::new(), CONFIG, Vec::new());
    let headers: [&[(&str, &[u8])]; 3] = [
        &[(":method", b"GET"), (":path", b"/v1/completions")],
        &[(":method", b"POST"), (":path", b"/v1/embeddings"), ("content-type", b"application/json")],
        &[(":method", b"POST"), (":path", b"/v1/completions"), ("content-type", b"text/plain")],
    ];
    for headers in headers {
        let mut headers = headers.to_vec();
        headers.push((DESTINATION, b"6.6.6.6:6"));
        let context = setup.vm.open(setup.root, &headers, false);
        assert!(!setup.vm.exchange(context).is_held());
        setup.vm.body(context, b"{}", true);
        setup.vm.respond(context, "200", &[]);
        let exchange = setup.vm.end(context);
        assert_eq!(destination(&exchange), None, "a client cannot choose its destination");
        assert_eq!(exchange.response_header("x-inference-cache-reason"), None);
    }
    assert_eq!(setup.host.metrics().keys().filter(|name| name.contains("requests_total")).count(), 0);
}

#[test]
fn the_tenant_comes_from_where_the_configuration_says() {
    let config = r#"{"hostShim": {"cluster": "c"}, "debugHeaders": true, "tenant": {"header": "X-Tenant"}}"#;
    let mut setup = setup(Host::new(), config, Vec::new());
    let body = completion("demo", &tokens(6, 64));
    let known = setup.exchange("/v1/completions", &[("x-tenant", b"default")], &body);
    assert_eq!(response(&known, "reason"), "AFFINITY_HINT");
    let other = setup.exchange("/v1/completions", &[("x-tenant", b"other")], &body);
    assert_eq!(response(&other, "reason"), "UNKNOWN_TENANT");
    for (value, cause) in [(&b""[..], "no_tenant"), (b"\xff", "tenant_not_text")] {
        setup.exchange("/v1/completions", &[("x-tenant", value)], &body);
        assert_eq!(setup.cause(cause), 1);
    }
    setup.exchange("/v1/completions", &[], &body);
    assert_eq!(setup.cause("no_tenant"), 2);

    let config = r#"{"hostShim": {"cluster": "c"}, "debugHeaders": true,
        "tenant": {"property": ["filter_state", "tenant"]}}"#;
    let host = Host::new();
    host.set_property("filter_state\0tenant", b"default");
    let mut setup = crate::common::setup(host, config, Vec::new());
    let exchange = setup.exchange("/v1/completions", &[], &body);
    assert_eq!(response(&exchange, "reason"), "AFFINITY_HINT");
}

#[test]
fn without_debug_headers_responses_say_nothing() {
    let mut setup = setup(Host::new(), r#"{"hostShim": {"cluster": "c"}}"#, Vec::new());
    let exchange = setup.complete(&tokens(7, 64));
    assert!(destination(&exchange).is_some());
    assert_eq!(exchange.response_headers.len(), 1);
}
