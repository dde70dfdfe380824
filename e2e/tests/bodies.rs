//! Bodies pass byte for byte: every size, both framings, HTTP/1.1 and h2, through the LLM path and beside it.

use bytes::Bytes;
use e2e::echo::Echo;
use e2e::engine::demo_model;
use e2e::host_shim::{HostShim, Replica};
use e2e::manifest::{Settings, Variant};
use e2e::process::path_from;
use e2e::{Client, Workdir, envoy::Envoy, ports};
use futures::stream;
use reqwest::{Body, Method};
use serde_json::json;

const SIZES: [usize; 7] = [0, 1, 64 << 10, 900 << 10, 1 << 20, (1 << 20) + 1, 5 << 20];

#[tokio::test(flavor = "multi_thread")]
async fn bodies_pass_byte_for_byte() {
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
    let mut host_shim = HostShim::new("demo", &demo_model(), &[replica], &dir).unwrap();
    host_shim.start().await.unwrap();
    let settings = Settings {
        listener: ports::free().unwrap(),
        admin: ports::free().unwrap(),
        host_shim: host_shim.grpc_port(),
        replicas: vec![echo.port()],
        plugin: path_from("INFERENCE_CACHE_PLUGIN").unwrap(),
        variant: Variant::Body,
    };
    let envoy = Envoy::start(settings, 2, &dir).await.unwrap();
    let clients =
        [("HTTP/1.1", Client::new(envoy.url()).unwrap()), ("h2", Client::http2(envoy.url()).unwrap())];
    for (protocol, client) in &clients {
        for path in ["/elsewhere", "/v1/chat/completions", "/v1/completions"] {
            for size in SIZES {
                for chunked in [false, true] {
                    let what = format!("{protocol} {path} {size} bytes, chunked: {chunked}");
                    let body = if path == "/elsewhere" { noise(size) } else { chat(size) };
                    let sent = if chunked { in_pieces(&body) } else { Body::from(body.clone()) };
                    let response = client.request(Method::POST, path).body(sent).send().await;
                    let response = response.unwrap_or_else(|error| panic!("{what}: {error:?}"));
                    assert_eq!(response.status(), 200, "{what}");
                    let back = response.bytes().await.unwrap_or_else(|error| panic!("{what}: {error:?}"));
                    assert_eq!(back.len(), body.len(), "{what}");
                    assert!(back == body, "{what}: bytes differ");
                }
            }
        }
    }
    assert_eq!(envoy.vm_reloads().await.unwrap(), 0);
}

/// Bytes that are neither text nor regular.
fn noise(size: usize) -> Bytes {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let bytes = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    });
    bytes.take(size).collect()
}

/// A chat of exactly `size` bytes; below the smallest possible one, the beginning of one.
fn chat(size: usize) -> Bytes {
    let body = |content: &str| {
        json!({"model": "demo", "messages": [{"role": "user", "content": content}]}).to_string()
    };
    let empty = body("");
    let content: String =
        "one word after another ".chars().cycle().take(size.saturating_sub(empty.len())).collect();
    let mut bytes = body(&content).into_bytes();
    bytes.truncate(size);
    assert_eq!(bytes.len(), size);
    bytes.into()
}

/// No content-length; pieces of odd sizes.
fn in_pieces(body: &Bytes) -> Body {
    let pieces: Vec<Result<Bytes, std::io::Error>> =
        body.chunks(13_337).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
    Body::wrap_stream(stream::iter(pieces))
}
