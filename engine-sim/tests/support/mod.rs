//! An engine in this process, and requests to it.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]

use engine_sim::EngineSim;
use engine_sim::config::{CacheConfig, Config, EventsConfig, Timing};
use engine_sim::events::Lora;
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// No test waits longer for anything.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Free ports, no waiting for compute.
pub fn config() -> Config {
    Config {
        http: ([127, 0, 0, 1], 0).into(),
        events: Some(EventsConfig {
            endpoint: "tcp://127.0.0.1:0".to_owned(),
            replay_endpoint: Some("tcp://127.0.0.1:0".to_owned()),
            topic: "kv@test".to_owned(),
            buffer_steps: 6,
        }),
        model: Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/demo"),
        served_model_name: "demo".to_owned(),
        loras: vec![Arc::new(Lora { id: 1, name: "poet".to_owned(), path: "poet".to_owned() })],
        cache: CacheConfig::default(),
        timing: Timing {
            prefill_tokens_per_s: 1e9,
            decode: Duration::ZERO,
            decode_per_sequence: Duration::ZERO,
        },
    }
}

pub async fn post(engine: &EngineSim, path: &str, body: impl Into<reqwest::Body>) -> (u16, Value) {
    let request = reqwest::Client::new().post(format!("http://{}{path}", engine.http())).body(body);
    let response = tokio::time::timeout(PATIENCE, request.send()).await.unwrap().unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

/// A request that succeeds.
pub async fn ask(engine: &EngineSim, path: &str, body: Value) -> Value {
    let (status, answer) = post(engine, path, body.to_string()).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

pub async fn text(engine: &EngineSim, path: &str) -> String {
    reqwest::get(format!("http://{}{path}", engine.http())).await.unwrap().text().await.unwrap()
}
