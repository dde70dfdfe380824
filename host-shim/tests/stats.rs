//! Statistics end to end: a simulated engine's metrics page at `/metrics`, in `/snapshot`, and its processes told apart.

mod harness;

use engine_sim::EngineSim;
use engine_sim::config::{CacheConfig, Config as EngineConfig, Timing};
use harness::{free_port, until};
use host_shim::{Config, HostShim};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

async fn engine(port: u16) -> EngineSim {
    let config = EngineConfig {
        http: ([127, 0, 0, 1], port).into(),
        events: None,
        model: Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/demo"),
        served_model_name: "tiny".to_owned(),
        loras: Vec::new(),
        cache: CacheConfig::default(),
        timing: Timing {
            prefill_tokens_per_s: 1e9,
            decode: Duration::ZERO,
            decode_per_sequence: Duration::ZERO,
        },
    };
    EngineSim::start(config).await.unwrap()
}

async fn ask(engine: &EngineSim) {
    let body = serde_json::json!({"model": "tiny", "prompt": "tell me a story ".repeat(40), "max_tokens": 1});
    let url = format!("http://{}/v1/completions", engine.http());
    let response = reqwest::Client::new().post(url).body(body.to_string()).send().await.unwrap();
    assert_eq!(response.status(), 200);
    response.bytes().await.unwrap();
}

async fn snapshot(shim: &HostShim) -> Value {
    let url = format!("http://{}/snapshot", shim.snapshot_addr());
    reqwest::get(url).await.unwrap().json().await.unwrap()
}

async fn metrics(shim: &HostShim) -> String {
    reqwest::get(format!("http://{}/metrics", shim.http_addr())).await.unwrap().text().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_s_page_reaches_snapshot_and_metrics_and_goes_stale() {
    let port = free_port();
    let first = engine(port).await;
    let model = harness::config("{ endpoint: tcp://127.0.0.1:9 }").models[0].path.clone();
    let yaml = format!(
        "listen: {{ grpc: 127.0.0.1:0, http: 127.0.0.1:0, snapshot: 127.0.0.1:0 }}\n\
         models: [{{ name: tiny, path: {} }}]\n\
         replicas:\n\
         - {{ id: engine-0, address: 127.0.0.1:{port}, model: tiny, metrics: {{ interval: 100ms }},\n\
              events: {{ endpoint: \"tcp://127.0.0.1:9\" }} }}\n",
        model.display()
    );
    let shim = HostShim::start(Config::from_yaml(&yaml).unwrap()).await.unwrap();
    let mut started = shim.stats().process_started("engine-0", 0);
    started.wait_for(Option::is_some).await.unwrap();
    let process = *started.borrow_and_update();

    ask(&first).await;
    ask(&first).await;
    until("the hits", async || snapshot(&shim).await["engines"][0]["lifetimeHitRate"].as_f64() > Some(0.0))
        .await;
    let told = snapshot(&shim).await;
    let row = &told["replicas"][0];
    assert_eq!((&row["statsReported"], row["hitRate"].as_f64() > Some(0.0)), (&true.into(), true), "{row}");
    let page = &told["engines"][0];
    assert_eq!(
        (&page["blockSize"], &page["blocks"], &page["prefixCaching"]),
        (&16.into(), &512.into(), &true.into())
    );
    let text = metrics(&shim).await;
    assert!(text.contains("inferencecache_replica_block_size{replica=\"engine-0\",rank=\"0\"} 16"), "{text}");

    first.stop().await;
    until("stale", async || snapshot(&shim).await["engines"][0]["stale"] == true).await;
    let text = metrics(&shim).await;
    assert!(text.contains("inferencecache_replica_stats_stale{replica=\"engine-0\",rank=\"0\"} 1"), "{text}");
    assert!(
        text.contains("inferencecache_replica_scrape_failures_total{replica=\"engine-0\",reason="),
        "{text}"
    );
    assert!(!started.has_changed().unwrap(), "an engine that is away is no other process");

    // The port may still be in the hands of the kernel for a moment; the engine asks for it with SO_REUSEADDR.
    let second = engine(port).await;
    started.changed().await.unwrap();
    assert_ne!(*started.borrow_and_update(), process);
    until("fresh", async || snapshot(&shim).await["engines"][0]["stale"] == false).await;
    second.stop().await;
    shim.shutdown().await;
}
