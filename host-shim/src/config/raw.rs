//! The shape of the configuration file. Values are text until [`super::parse`] has checked them.

use serde::Deserialize;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Root {
    #[serde(default)]
    pub(super) listen: Listen,
    #[serde(default)]
    pub(super) index: Index,
    pub(super) models: Vec<Model>,
    pub(super) replicas: Vec<Replica>,
    #[serde(default)]
    pub(super) producers: Producers,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Listen {
    pub(super) grpc: String,
    pub(super) http: String,
    pub(super) snapshot: String,
    pub(super) allow_unauthenticated: bool,
}

impl Default for Listen {
    fn default() -> Listen {
        Listen {
            grpc: "127.0.0.1:9090".into(),
            http: "127.0.0.1:8080".into(),
            snapshot: "127.0.0.1:8081".into(),
            allow_unauthenticated: false,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Index {
    pub(super) ttl: String,
    pub(super) sweep_interval: String,
}

impl Default for Index {
    fn default() -> Index {
        Index { ttl: "30m".into(), sweep_interval: "10s".into() }
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Producers {
    pub(super) max_entries: usize,
    pub(super) stream_idle: String,
}

impl Default for Producers {
    fn default() -> Producers {
        Producers { max_entries: 1_000_000, stream_idle: "10m".into() }
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Model {
    pub(super) name: String,
    pub(super) path: String,
    #[serde(default)]
    pub(super) engine_schemes: Vec<EngineScheme>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct EngineScheme {
    pub(super) name: String,
    pub(super) algorithm: String,
    pub(super) seed: Option<String>,
    pub(super) extra_keys: String,
    pub(super) block_size: u32,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Replica {
    pub(super) id: String,
    pub(super) address: String,
    pub(super) model: String,
    #[serde(default = "default_tenant")]
    pub(super) tenant: String,
    #[serde(default)]
    pub(super) adapters: Vec<String>,
    #[serde(default = "default_engine")]
    pub(super) engine: String,
    pub(super) events: Events,
    #[serde(default)]
    pub(super) metrics: Metrics,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Metrics {
    pub(super) enabled: bool,
    pub(super) url: Option<String>,
    pub(super) interval: String,
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics { enabled: true, url: None, interval: "5s".into() }
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Events {
    pub(super) endpoint: String,
    #[serde(default = "default_mode")]
    pub(super) mode: String,
    #[serde(default)]
    pub(super) replay: Option<String>,
    #[serde(default)]
    pub(super) discover: bool,
    #[serde(default = "default_ranks")]
    pub(super) ranks: u32,
    #[serde(default = "default_lost_after")]
    pub(super) lost_after: String,
    #[serde(default = "default_group_to")]
    pub(super) group_to: u32,
    #[serde(default = "default_report_mode")]
    pub(super) report_mode: String,
}

fn default_engine() -> String {
    "vllm".into()
}

fn default_ranks() -> u32 {
    1
}

fn default_lost_after() -> String {
    "60s".into()
}

fn default_group_to() -> u32 {
    16
}

fn default_report_mode() -> String {
    "default".into()
}

fn default_tenant() -> String {
    "default".into()
}

fn default_mode() -> String {
    "connect".into()
}
