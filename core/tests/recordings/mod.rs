//! Access to the recorded engine sessions in `tests-data/kv-events` (origin: its README).
#![allow(dead_code)]

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// One line of a `frames.jsonl`.
pub(crate) struct Record {
    pub(crate) source: String,
    pub(crate) frames: Vec<Vec<u8>>,
    pub(crate) port_offset: u64,
}

pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests-data/kv-events")
}

/// Every scenario, as `engine/name`.
pub(crate) fn scenarios() -> Vec<String> {
    let mut found = Vec::new();
    for engine in std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path()) {
        let Ok(scenarios) = std::fs::read_dir(&engine) else { continue };
        for scenario in scenarios.map(|entry| entry.unwrap().path()) {
            if scenario.join("frames.jsonl").exists() {
                found.push(scenario.strip_prefix(folder()).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    found.sort();
    assert!(found.len() >= 21, "{found:?}");
    found
}

pub(crate) fn records(scenario: &str) -> Vec<Record> {
    let text = std::fs::read_to_string(folder().join(scenario).join("frames.jsonl")).unwrap();
    text.lines()
        .map(|line| {
            let line: Value = serde_json::from_str(line).unwrap();
            Record {
                source: line["src"].as_str().unwrap().to_owned(),
                frames: line["frames"].as_array().unwrap().iter().map(base64).collect(),
                port_offset: line.get("port_offset").and_then(Value::as_u64).unwrap_or(0),
            }
        })
        .collect()
}

pub(crate) fn session(scenario: &str) -> Value {
    json(&format!("{scenario}/session.json"))
}

pub(crate) fn json(file: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(folder().join(file)).unwrap()).unwrap()
}

pub(crate) fn base64(value: &Value) -> Vec<u8> {
    STANDARD.decode(value.as_str().unwrap()).unwrap()
}

pub(crate) fn tokens(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|token| u32::try_from(token.as_u64().unwrap()).unwrap()).collect()
}
