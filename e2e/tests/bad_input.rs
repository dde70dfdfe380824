//! Whatever a client sends: the request goes on to the engine, a counter says why there was no hint, the VM lives.

use std::time::Duration;

use e2e::echo::Echo;
use e2e::engine::demo_model;
use e2e::envoy::Envoy;
use e2e::host_shim::{HostShim, Replica};
use e2e::manifest::{Settings, Variant};
use e2e::process::path_from;
use e2e::stack::MODEL;
use e2e::{Client, Options, Stack, Workdir, load, ports, raw, until};
use reqwest::Method;
use serde_json::json;
use tokio::io::AsyncWriteExt;

const SILENCE: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread")]
async fn bad_requests_go_on_and_are_counted() {
    let mut stack = Stack::start(&Options::default()).await.unwrap();
    let deep = format!("{{\"model\": \"demo\", \"prompt\": {}{}}}", "[".repeat(1000), "]".repeat(1000));
    let ten_mb = json!({"model": MODEL, "max_tokens": 1, "prompt": "word ".repeat(2 << 20)}).to_string();
    let gzip: &[u8] =
        b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xab\x56\xca\xcd\x4f\x49\xcd\x51\xb2\x52\x4a\x49";
    let cases: &[(&str, &[u8], &str)] = &[
        ("not JSON", b"this is not json", "no_hint_total.cause.not_json"),
        ("JSON, but no object", b"[1, 2]", "no_hint_total.cause."),
        ("empty body", b"", "no_hint_total.cause."),
        ("no model", br#"{"messages": [{"role": "user", "content": "hi"}]}"#, "no_hint_total.cause."),
        ("empty messages", br#"{"model": "demo", "messages": []}"#, "no_hint_total.cause.empty_messages"),
        (
            "unknown model",
            br#"{"model": "x", "messages": [{"role": "user", "content": "hi"}]}"#,
            "requests_total.reason.UNKNOWN_MODEL",
        ),
        ("1,000-deep JSON", deep.as_bytes(), "no_hint_total.cause."),
        (
            "not UTF-8",
            b"{\"model\": \"demo\", \"messages\": [{\"role\": \"user\", \"content\": \"\xff\xfe\"}]}",
            "no_hint_total.cause.",
        ),
        ("gzip", gzip, "no_hint_total.cause."),
    ];
    let path = "/v1/chat/completions";
    for (what, body, counter) in cases {
        let before = count(&stack.envoy, counter).await;
        let mut request = stack.client.request(Method::POST, path).header("content-type", "application/json");
        if *what == "gzip" {
            request = request.header("content-encoding", "gzip");
        }
        let response = request.body(body.to_vec()).send().await.unwrap();
        assert_engine_answered(what, response.status().as_u16());
        assert_eq!(count(&stack.envoy, counter).await, before + 1, "{what}: {counter}");
    }

    let response = stack.client.request(Method::POST, "/v1/completions").body(ten_mb).send().await.unwrap();
    assert_engine_answered("10 MB", response.status().as_u16());
    let response = stack.client.request(Method::GET, path).send().await.unwrap();
    assert_engine_answered("GET", response.status().as_u16());
    assert_still_well(&mut stack).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn raw_bytes_do_no_harm() {
    let mut stack = Stack::start(&Options { concurrency: 1, ..Options::default() }).await.unwrap();
    let address = stack.envoy.address();
    let body = json!({"model": MODEL, "max_tokens": 1, "prompt": "a"}).to_string();

    // Header values need not be UTF-8, also where the plugin looks.
    for name in [
        "x-anything",
        "content-type",
        "x-conversation-id",
        "x-inference-cache-model",
        "x-inference-cache-chain",
        "x-tenant-id",
        "content-encoding",
    ] {
        let mut request = format!(
            "POST /v1/completions HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {}\r\n{name}: ",
            body.len()
        )
        .into_bytes();
        request.extend_from_slice(b"\xff\xfe\xc3\x28\r\n\r\n");
        request.extend_from_slice(body.as_bytes());
        let answer = raw::exchange(&address, &request, SILENCE).await.unwrap();
        assert_engine_answered(name, raw::status(&answer).unwrap_or(0));
    }

    // Cut off: by length, in a chunk, in the headers.
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\n";
    let chat = r#"{"model": "demo", "messages": [{"role": "user", "content": "and then"#;
    for request in [
        format!("{head}content-length: 5000\r\n\r\n{chat}"),
        format!("{head}transfer-encoding: chunked\r\n\r\n{:x}\r\n{chat}", 4000),
        format!("{head}transfer-encoding: chunked\r\n\r\n{:x}\r\n{chat}\r\n", chat.len()),
        format!("{head}content-le"),
    ] {
        raw::abandon(&address, request.as_bytes()).await.unwrap();
    }
    assert_still_well(&mut stack).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_cannot_choose_its_replica() {
    let dir = Workdir::new().unwrap();
    let (wanted, other) = (Echo::start().await.unwrap(), Echo::start().await.unwrap());
    let replica = |echo: &Echo| Replica {
        http: echo.port(),
        events: ports::free().unwrap(),
        replay: ports::free().unwrap(),
        bind_events: true,
        ranks: 1,
        adapters: Vec::new(),
    };
    let mut host_shim = HostShim::new(MODEL, &demo_model(), &[replica(&other)], &dir).unwrap();
    host_shim.start().await.unwrap();
    // `wanted` is no replica of host-shim's, so the plugin never names it; `other` is the only one that it may name.
    for variant in [Variant::Body, Variant::FlagLeftOut, Variant::NoPlugin] {
        let settings = Settings {
            listener: ports::free().unwrap(),
            admin: ports::free().unwrap(),
            host_shim: host_shim.grpc_port(),
            replicas: vec![wanted.port(), other.port()],
            plugin: path_from("INFERENCE_CACHE_PLUGIN").unwrap(),
            variant,
        };
        let envoy = Envoy::start(settings, 1, &dir).await.unwrap();
        let client = Client::new(envoy.url()).unwrap();
        let body = json!({"model": MODEL, "prompt": load::words(3, 100)}).to_string();
        for path in ["/v1/completions", "/elsewhere"] {
            for _ in 0..12 {
                let request = client.request(Method::POST, path).body(body.clone());
                let request = request.header("x-gateway-destination-endpoint", wanted.address());
                let response = request.send().await.unwrap();
                assert_eq!(response.status(), 200, "{variant:?} {path}");
                assert!(
                    !response.headers().contains_key("x-echo-destination"),
                    "{variant:?} {path}: it reached the engine"
                );
            }
        }
        let requests = envoy.upstream_requests().await.unwrap();
        // 24 obeyed requests would all be `wanted`'s; chance gives each its share.
        assert!(requests[&other.address()] > 1, "{variant:?}: {requests:?}");
        assert_eq!(envoy.vm_reloads().await.unwrap(), 0, "{variant:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_on_the_event_socket_is_skipped() {
    // host-shim binds, so that anybody on the machine can connect to its socket, as a real vLLM does.
    let dir = Workdir::new().unwrap();
    let echo = Echo::start().await.unwrap();
    let replica = Replica {
        http: echo.port(),
        events: ports::free().unwrap(),
        replay: ports::free().unwrap(),
        bind_events: true,
        ranks: 1,
        adapters: Vec::new(),
    };
    let mut host_shim = HostShim::new(MODEL, &demo_model(), std::slice::from_ref(&replica), &dir).unwrap();
    host_shim.start().await.unwrap();
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 4096], &[0; 64]] {
        let mut socket = tokio::net::TcpStream::connect(("127.0.0.1", replica.events)).await.unwrap();
        socket.write_all(garbage).await.unwrap();
    }
    // Well-formed ZMQ with frames that are no batch, from libzmq's own library.
    let python = path_from("INFERENCE_CACHE_PYTHON").unwrap();
    let script = format!(
        "import zmq, time\n\
         s = zmq.Context().socket(zmq.PUB); s.connect('tcp://127.0.0.1:{}'); time.sleep(1)\n\
         for frames in [[b'x'], [b'', b'\\x00'*8], [b'', b'\\x00'*8, b'\\xc1\\xff'], [b'', b'1', b'2', b'3', b'4'], [b'', b'\\x00'*8, b'\\x93'], [b'', b'\\x00'*7, b'\\x90']]:\n\
         \x20   s.send_multipart(frames)\n\
         time.sleep(1)\n",
        replica.events
    );
    let status = tokio::process::Command::new(python).args(["-c", &script]).status().await.unwrap();
    assert!(status.success());
    // The first message lacks the frames of a batch, the last is an empty batch cut short: at least those between them
    // are counted.
    until("host-shim to count garbage", SILENCE, async || {
        host_shim.check().ok()?;
        (host_shim.metric("inferencecache_source_decode_errors_total").await.ok()? >= 4.0).then_some(())
    })
    .await
    .unwrap();
}

/// Sum of the plugin's counters that begin with `prefix`.
async fn count(envoy: &Envoy, prefix: &str) -> u64 {
    envoy.stats(&format!("^wasmcustom.inference_cache_{prefix}")).await.unwrap().values().sum()
}

/// The engine's own answer, good or bad; 5xx from the gateway (503, 504) or a broken connection (0) is a failure.
fn assert_engine_answered(what: &str, status: u16) {
    assert!((200..500).contains(&status), "{what}: status {status}");
}

async fn assert_still_well(stack: &mut Stack) {
    stack.check().unwrap();
    assert_eq!(stack.envoy.vm_reloads().await.unwrap(), 0, "a VM trapped");
    let body = json!({"model": MODEL, "max_tokens": 4, "prompt": load::words(9, 200)});
    let first = stack.client.completion(&body).await.unwrap();
    stack.settle().await;
    let second = stack.client.completion(&body).await.unwrap();
    assert_eq!(second.hint.replica, first.hint.replica);
    assert_eq!(second.hint.reason.as_deref(), Some("PREFIX_MATCH"), "{second:?}");
    assert_eq!(second.hint.matched_tokens, second.cached_tokens);
}
