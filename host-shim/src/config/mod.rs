//! Configuration: YAML in, a typed and checked [`Config`] out.
//!
//! [`raw`] is the shape of the file; everything behind it works with parsed values. Unknown fields are refused, errors
//! name the field (`replicas[1].address: …`), and names that must be unique are checked here.

mod parse;
mod raw;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// A checked configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Where to serve.
    pub listen: Listen,
    /// Limits of the index.
    pub index: IndexConfig,
    /// Models, by unique name.
    pub models: Vec<ModelConfig>,
    /// Engine replicas, by unique id.
    pub replicas: Vec<ReplicaConfig>,
}

/// Listening addresses; port 0 lets the system choose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// Replication to gateways.
    pub grpc: SocketAddr,
    /// `/metrics`, `/healthz`, `/readyz`.
    pub http: SocketAddr,
    /// `/snapshot`.
    pub snapshot: SocketAddr,
}

/// Limits of the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexConfig {
    /// Age from which an entry no longer counts; at least 1 s.
    pub ttl: Duration,
    /// How often expired entries are looked for.
    pub sweep_interval: Duration,
}

/// A served model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelConfig {
    /// Name in requests.
    pub name: String,
    /// Folder of the tokenizer's files, or a compiled `.icart` file. Relative paths are relative to the process.
    pub path: PathBuf,
}

/// One engine replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaConfig {
    /// Unique name.
    pub id: String,
    /// Where the gateway sends its requests.
    pub address: SocketAddr,
    /// Name of one of the models.
    pub model: String,
    /// Who may use it.
    pub tenant: String,
    /// LoRA adapters that it serves, by their names in requests.
    pub adapters: Vec<String>,
    /// Its KV events.
    pub events: EventsConfig,
    /// Its metrics page; `None` if it is not to be scraped.
    pub metrics: Option<MetricsConfig>,
}

/// Where a replica's statistics come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricsConfig {
    /// `http://host:port/path`.
    pub url: String,
    /// How often.
    pub interval: Duration,
}

/// Where a replica's KV events come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventsConfig {
    /// `tcp://host:port` or `ipc://path` of the publisher, or to bind.
    pub endpoint: String,
    /// Who binds.
    pub mode: EventsMode,
    /// Endpoint of the publisher's replay socket.
    pub replay: Option<String>,
}

/// Who binds the events endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventsMode {
    /// The engine binds, host-shim connects.
    Connect,
    /// host-shim binds, the engine connects.
    Bind,
}

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{path}: {error}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// Not YAML of the right shape; the message names the place.
    #[error("{0}")]
    Shape(String),
    /// A field has a value that cannot be.
    #[error("{field}: {problem}")]
    Field {
        /// Path of the field, such as `replicas[1].address`.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
}

impl Config {
    /// Reads and checks a file.
    pub fn read(path: &std::path::Path) -> Result<Config, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| ConfigError::Read { path: path.to_owned(), error })?;
        Config::from_yaml(&text)
    }

    /// Checks a document.
    pub fn from_yaml(text: &str) -> Result<Config, ConfigError> {
        let raw = serde_saphyr::from_str(text).map_err(|error| ConfigError::Shape(error.to_string()))?;
        parse::config(raw)
    }
}
