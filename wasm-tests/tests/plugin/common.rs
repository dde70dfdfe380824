//! A model, replicas, requests.

use std::path::Path;
use std::sync::OnceLock;

use inference_cache_core::hash::{BlockHash, BlockSize, Namespace, chain};
use inference_cache_core::replication::proto;
use wasm_tests::{Artifact, Exchange, Host, HostShim, Vm};

pub(crate) const CONFIG: &str =
    r#"{"hostShim": {"cluster": "host-shim", "authority": "shim.local"}, "debugHeaders": true}"#;
pub(crate) const DESTINATION: &str = "x-gateway-destination-endpoint";
pub(crate) const A: &str = "10.0.0.1:8000";
pub(crate) const B: &str = "10.0.0.2:8000";
pub(crate) const C: &str = "10.0.0.3:8000";

/// A VM that follows a host-shim with the replicas a, b, c of the model `demo`.
pub(crate) struct Setup {
    pub(crate) host: Host,
    pub(crate) vm: Vm,
    pub(crate) root: u32,
    pub(crate) shim: HostShim,
}

pub(crate) fn setup(host: Host, config: &str, blocks: Vec<proto::Blocks>) -> Setup {
    setup_with(host, config, HostShim { blocks, ..shim(None) })
}

pub(crate) fn setup_with(host: Host, config: &str, mut shim: HostShim) -> Setup {
    let mut vm = host.vm();
    let root = vm.configure(config).expect("the configuration is valid");
    shim.bring_up(&mut vm);
    Setup { host, vm, root, shim }
}

pub(crate) fn shim(artifact: Option<Artifact>) -> HostShim {
    HostShim::with_replicas("demo", artifact, &[("a", A), ("b", B), ("c", C)])
}

/// The demo model, compiled.
pub(crate) fn demo_artifact() -> Artifact {
    static ARTIFACT: OnceLock<Artifact> = OnceLock::new();
    let compile = || {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/demo");
        Artifact::new(host_shim::tokenizer::compile(&model).expect("the demo model compiles"))
    };
    ARTIFACT.get_or_init(compile).clone()
}

/// Blocks of a prompt that a replica (1 is a, 2 is b, 3 is c) holds.
pub(crate) fn stored(replica: u32, tokens: &[u32], blocks: usize) -> proto::Blocks {
    let hashes = hashes(tokens).into_iter().take(blocks).map(|hash| hash.0).collect();
    proto::Blocks { scope: 1, replica, tier: proto::Tier::T1 as i32, age_s: 0, hashes }
}

pub(crate) fn hashes(tokens: &[u32]) -> Vec<BlockHash> {
    chain(tokens, BlockSize::SIXTEEN, &Namespace::empty())
}

pub(crate) fn tokens(seed: u32, count: u32) -> Vec<u32> {
    (0..count).map(|at| seed * 1_000_003 + at * 7).map(|token| token % 50_000).collect()
}

/// A completion request with token ids.
pub(crate) fn completion(model: &str, tokens: &[u32]) -> Vec<u8> {
    format!(r#"{{"model": "{model}", "prompt": {tokens:?}}}"#).into_bytes()
}

pub(crate) fn chat(model: &str, content: &str) -> Vec<u8> {
    let messages = serde_json::json!([{"role": "user", "content": content}]);
    serde_json::json!({"model": model, "messages": messages}).to_string().into_bytes()
}

pub(crate) fn post<'a>(path: &'a str, more: &[(&'a str, &'a [u8])]) -> Vec<(&'a str, &'a [u8])> {
    let mut headers: Vec<(&str, &[u8])> = vec![
        (":method", b"POST"),
        (":path", path.as_bytes()),
        (":authority", b"llm"),
        ("content-type", b"application/json"),
    ];
    headers.extend_from_slice(more);
    headers
}

impl Setup {
    /// A request with its body in one piece, up to the point where it waits for its response.
    pub(crate) fn send(&mut self, path: &str, more: &[(&str, &[u8])], body: &[u8]) -> u32 {
        let context = self.vm.open(self.root, &post(path, more), false);
        self.vm.body(context, body, true);
        context
    }

    /// A request with its body in one piece, and a response of status 200.
    pub(crate) fn exchange(&mut self, path: &str, more: &[(&str, &[u8])], body: &[u8]) -> Exchange {
        let context = self.send(path, more, body);
        self.vm.respond(context, "200", &[b"data: 1", b"data: [DONE]"]);
        let exchange = self.vm.end(context);
        assert!(exchange.upstream_complete, "the request went on");
        assert!(exchange.upstream_body == body, "byte for byte");
        exchange
    }

    pub(crate) fn complete(&mut self, prompt: &[u32]) -> Exchange {
        self.exchange("/v1/completions", &[], &completion("demo", prompt))
    }

    pub(crate) fn cause(&self, cause: &str) -> i64 {
        self.host.metric(&format!("inference_cache_no_hint_total.cause.{cause}"))
    }

    pub(crate) fn reason(&self, reason: &str) -> i64 {
        self.host.metric(&format!("inference_cache_requests_total.reason.{reason}"))
    }

    pub(crate) fn replication_error(&self, cause: &str) -> i64 {
        self.host.metric(&format!("inference_cache_replication_errors_total.cause.{cause}"))
    }
}

/// The destination header as it went on, as text.
pub(crate) fn destination(exchange: &Exchange) -> Option<String> {
    exchange.upstream_header(DESTINATION).map(|value| String::from_utf8_lossy(value).into_owned())
}

/// The destination header's first address.
pub(crate) fn first(exchange: &Exchange) -> String {
    let list = destination(exchange).expect("a destination");
    list.split(',').next().expect("an address").to_owned()
}

pub(crate) fn response(exchange: &Exchange, name: &str) -> String {
    let value = exchange.response_header(&format!("x-inference-cache-{name}"));
    String::from_utf8_lossy(value.unwrap_or_else(|| panic!("no {name}"))).into_owned()
}
