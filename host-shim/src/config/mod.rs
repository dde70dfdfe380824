//! Configuration: YAML in, a typed and checked [`Config`] out.
//!
//! [`raw`] is the shape of the file; everything behind it works with parsed values. Unknown fields are refused, errors
//! name the field (`replicas[1].address: …`), and names that must be unique are checked here.

mod endpoint;
mod parse;
mod raw;

pub use endpoint::{Endpoint, EndpointError};
use inference_cache_core::hash::BlockSize;
use inference_cache_core::hash::vllm::{Algorithm, ExtraKeysFormat};
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
    /// Limits of what producers report.
    pub producers: ProducersConfig,
}

/// Limits of what producers report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducersConfig {
    /// Storage entries of all producers together.
    pub max_entries: usize,
    /// A stream that says nothing for so long is ended.
    pub stream_idle: Duration,
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
    /// Schemes in which producers may report the engines' own hashes, by unique name.
    pub engine_schemes: Vec<EngineSchemeConfig>,
}

/// How the engines of a model hash their blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineSchemeConfig {
    /// The `hash_scheme` of what is reported so.
    pub name: String,
    /// vLLM's `--prefix-caching-hash-algo`.
    pub algorithm: Algorithm,
    /// The text of PYTHONHASHSEED.
    pub seed: String,
    /// How extra keys enter the hashes.
    pub extra_keys: ExtraKeysFormat,
    /// Tokens per block.
    pub block_size: BlockSize,
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
    /// What runs there.
    pub engine: Engine,
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

/// Makes of engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
}

/// Where a replica's KV events come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventsConfig {
    /// The publisher of rank 0, or where to bind for it; those of further ranks have the next ports.
    pub endpoint: Endpoint,
    /// Who binds.
    pub mode: EventsMode,
    /// The replay socket of rank 0.
    pub replay: Option<Endpoint>,
    /// Whether the engine is asked for the endpoints; those above are for engines that do not answer.
    pub discover: bool,
    /// Data-parallel ranks, each with a publisher of its own; at least 1.
    pub ranks: u32,
    /// A publisher that was away for so long has lost its cache.
    pub lost_after: Duration,
    /// Smaller blocks are gathered to blocks of this size; `None` to leave them as they are.
    pub group_to: Option<BlockSize>,
    /// What a second announcement of a block means.
    pub report_mode: ReportMode,
}

/// What a second announcement of a block means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportMode {
    /// Another copy of it.
    Default,
    /// Requests may ask for `kv_cache_report_mode=full`: the same copy again.
    Full,
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
