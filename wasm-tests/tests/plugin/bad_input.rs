//! Whatever a client sends, the request goes on, a counter says why there is no hint, and the VM lives.

use crate::common::*;
use wasm_tests::Host;

/// Sends a body and returns the causes that were counted.
fn causes(setup: &mut Setup, path: &str, more: &[(&str, &[u8])], body: &[u8]) -> Vec<String> {
    let counted = |setup: &Setup| -> Vec<(String, i64)> {
        let metrics = setup.host.metrics().into_iter();
        let prefix = "inference_cache_no_hint_total.cause.";
        metrics.filter_map(|(name, value)| Some((name.strip_prefix(prefix)?.to_owned(), value))).collect()
    };
    let before = counted(setup);
    let exchange = setup.exchange(path, more, body);
    assert_eq!(destination(&exchange), None);
    counted(setup).into_iter().filter(|cause| !before.contains(cause)).map(|(cause, _)| cause).collect()
}

#[test]
fn bad_bodies_go_on_with_a_cause() {
    let mut setup = setup_with(Host::new(), CONFIG, shim(Some(demo_artifact())));
    let chat_path = "/v1/chat/completions";
    let deep = format!(r#"{{"model": "demo", "messages": {}1{}}}"#, "[".repeat(1_000), "]".repeat(1_000));
    let half = &chat("demo", "hello")[..20];
    let cases: [(&str, &[u8], &str); 10] = [
        (chat_path, b"hello", "not_json"),
        (chat_path, b"{", "not_json"),
        (chat_path, b"[]", "not_object"),
        (chat_path, b"\xff\xfe{}", "not_json"),
        (chat_path, br#"{"messages": [{"role": "user", "content": "x"}]}"#, "no_model"),
        (chat_path, br#"{"model": "demo", "messages": []}"#, "empty_messages"),
        (chat_path, br#"{"model": "demo"}"#, "no_messages"),
        (chat_path, half, "not_json"),
        (chat_path, deep.as_bytes(), "too_deep"),
        (chat_path, b"", "no_body"),
    ];
    for (path, body, cause) in cases {
        let got = causes(&mut setup, path, &[], body);
        assert_eq!(got, [cause], "{}", String::from_utf8_lossy(&body[..body.len().min(60)]));
    }
    assert_eq!(causes(&mut setup, chat_path, &[], &chat("nobody", "x")), ["unknown_model"]);
    assert_eq!(setup.reason("UNKNOWN_MODEL"), 1);
    assert_eq!(causes(&mut setup, chat_path, &[], &chat("demo", "hi")), ["short_prompt"]);
}

#[test]
fn compressed_bodies_are_not_read() {
    let mut setup = setup(Host::new(), CONFIG, Vec::new());
    let gzip = b"\x1f\x8b\x08\x00\x00\x00\x00\x00";
    let context =
        setup.vm.open(setup.root, &post("/v1/completions", &[("content-encoding", b"gzip")]), false);
    assert!(!setup.vm.exchange(context).is_held(), "no reason to hold it");
    setup.vm.body(context, gzip, true);
    assert_eq!(setup.vm.end(context).upstream_body, gzip);
    assert_eq!(setup.cause("encoded"), 1);
    let plain = completion("demo", &tokens(1, 64));
    assert!(
        destination(&setup.exchange("/v1/completions", &[("content-encoding", b"identity")], &plain))
            .is_some()
    );
}

#[test]
fn ten_megabytes_pass() {
    let mut setup = setup(Host::new(), CONFIG, Vec::new());
    let mut body = br#"{"model": "demo", "prompt": ""#.to_vec();
    body.resize(10 << 20, b'x');
    let context = setup.vm.open(setup.root, &post("/v1/completions", &[]), false);
    for piece in body.chunks(64 << 10) {
        setup.vm.body(context, piece, false);
    }
    setup.vm.body(context, b"\"}", true);
    let exchange = setup.vm.end(context);
    assert!(exchange.upstream_complete && !exchange.too_large);
    assert_eq!(exchange.upstream_body.len(), body.len() + 2);
    assert_eq!(setup.cause("no_tokenizer"), 1);
}

#[test]
fn a_body_that_never_ends_is_let_go_of_when_the_client_leaves() {
    let mut setup = setup(Host::new(), CONFIG, Vec::new());
    let context = setup.vm.open(setup.root, &post("/v1/completions", &[]), false);
    setup.vm.body(context, br#"{"model": "demo", "#, false);
    setup.vm.end(context);
    setup.vm.run_for(1_000);
    assert!(destination(&setup.complete(&tokens(1, 64))).is_some());
}

#[test]
fn header_bytes_need_not_be_text() {
    let mut setup = setup(Host::new(), CONFIG, Vec::new());
    let odd: [(&str, &[u8]); 4] = [
        ("x-conversation-id", b"\xff\xfe\x00"),
        ("x-inference-cache-model", b"\xc0\xaf"),
        ("x-inference-cache-chain", b"\xff"),
        ("cookie", b"\x80\x81"),
    ];
    let exchange = setup.exchange("/v1/completions", &odd, &completion("demo", &tokens(1, 64)));
    assert!(destination(&exchange).is_some());
    for odd_name in [":method", ":path", "content-type"] {
        let mut headers = post("/v1/completions", &[]);
        headers.retain(|(name, _)| *name != odd_name);
        headers.push((odd_name, b"\xff\xff"));
        let context = setup.vm.open(setup.root, &headers, false);
        setup.vm.body(context, b"{}", true);
        setup.vm.end(context);
    }
    let mut header_mode = crate::common::setup(Host::new(), HEADER_MODE, Vec::new());
    header_mode.exchange("/v1/completions", &odd, b"{}");
}

const HEADER_MODE: &str = r#"{"hostShim": {"cluster": "c"}, "mode": "header"}"#;

#[test]
fn a_client_cannot_choose_the_destination_nor_speak_for_us() {
    let mut setup = setup(Host::new(), CONFIG, Vec::new());
    let sent: [(&str, &[u8]); 4] = [
        (DESTINATION, b"6.6.6.6:6"),
        (DESTINATION, b"7.7.7.7:7"),
        ("x-inference-cache-replica", b"evil"),
        ("x-inference-cache-chain", b"00"),
    ];
    let hinted = setup.exchange("/v1/completions", &sent, &completion("demo", &tokens(1, 64)));
    assert!(!destination(&hinted).expect("ours").contains("6.6.6.6"));
    let refused = setup.exchange("/v1/completions", &sent, b"no");
    assert_eq!(destination(&refused), None);
    assert_eq!(refused.upstream_header("x-inference-cache-replica"), None);
    assert!(refused.upstream_header("x-inference-cache-chain").is_some(), "a configured input");

    // Also while nothing is known yet, and when the host cannot even list the headers.
    let host = Host::new();
    let mut vm = host.vm();
    let root = vm.configure(CONFIG).expect("valid");
    host.fail("proxy_get_header_map_pairs", 10);
    let context = vm.open(root, &post("/v1/completions", &sent), false);
    assert_eq!(destination(vm.exchange(context)), None);
    // If it cannot remove them, it can at least overwrite.
    host.fail("proxy_remove_header_map_value", 10);
    let context = vm.open(root, &post("/v1/completions", &sent[..1]), false);
    assert_eq!(destination(vm.exchange(context)).as_deref(), Some("none"));
}
