//! What a simulated engine is made of. Every limit and default is here.

use crate::block_pool::FreeOrder;
use crate::events::{BatchEncoder, Lora};
use inference_cache_core::hash::BlockSize;
use inference_cache_core::hash::vllm::{
    Algorithm, ChainHasher, DEFAULT_SEED, Digest, ExtraKey, ExtraKeysFormat,
};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How blocks are hashed: vLLM's default pickles, of which routers know less.
const ALGORITHM: Algorithm = Algorithm::Sha256Cbor;
/// Largest request body.
pub const MAX_BODY_BYTES: usize = 64 << 20;
/// Requests that wait for the scheduler; beyond, the server answers 503.
pub const MAX_WAITING: usize = 4096;

/// The vLLM release whose events, hashes, replay and free queue are imitated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// Events as arrays, replay without topic, bare extra keys in the hash.
    V0_22,
    /// Events as maps, replay with topic, extra keys tagged in the hash, with the path of the adapter.
    V0_32,
}

impl Release {
    /// Where freed blocks enter the free queue.
    pub fn free_order(self) -> FreeOrder {
        match self {
            Release::V0_22 => FreeOrder::Back,
            Release::V0_32 => FreeOrder::UncachedFirst,
        }
    }

    /// How extra keys enter block hashes.
    pub fn extra_keys_format(self) -> ExtraKeysFormat {
        match self {
            Release::V0_22 => ExtraKeysFormat::Untagged,
            Release::V0_32 => ExtraKeysFormat::Tagged,
        }
    }

    /// Version in `/version` and `/metrics`.
    pub fn version(self) -> &'static str {
        match self {
            Release::V0_22 => "0.22.1",
            Release::V0_32 => "0.32.0",
        }
    }
}

/// How block hashes are published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockHashForm {
    /// Low 64 bits as an integer: vLLM's default.
    Int,
    /// All 32 bytes (`VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0`).
    Bytes,
}

/// The paged cache and its scheduler.
#[derive(Clone, Debug)]
pub struct CacheConfig {
    /// Whose behaviour.
    pub release: Release,
    /// Tokens per block.
    pub block_size: BlockSize,
    /// Blocks of the pool, the null block included; at least 2.
    pub num_blocks: u32,
    /// Longest prompt plus answer in tokens; see [`CacheConfig::context_limit`].
    pub max_model_len: u32,
    /// Requests that run at the same time.
    pub max_num_seqs: usize,
    /// Tokens that one step computes at most: longer prompts are prefilled in chunks.
    pub max_num_batched_tokens: u32,
    /// Text that the first block's parent is the hash of (PYTHONHASHSEED).
    pub hash_seed: String,
    /// How hashes are published.
    pub hash_form: BlockHashForm,
}

impl Default for CacheConfig {
    fn default() -> CacheConfig {
        CacheConfig {
            release: Release::V0_32,
            block_size: BlockSize::new(16).expect("16 is a block size"),
            num_blocks: 512,
            max_model_len: 8192,
            max_num_seqs: 64,
            max_num_batched_tokens: 2048,
            hash_seed: DEFAULT_SEED.to_owned(),
            hash_form: BlockHashForm::Int,
        }
    }
}

impl CacheConfig {
    /// Tokens that a request can have at most: what the model takes and the pool holds.
    pub fn context_limit(&self) -> u32 {
        self.max_model_len.min((self.num_blocks - 1).saturating_mul(self.block_size.tokens()))
    }

    /// The chain of a prompt's blocks.
    pub fn chain_hasher(&self, lora: Option<&Lora>, cache_salt: Option<&str>) -> ChainHasher {
        let root = Digest::none_hash(ALGORITHM, &self.hash_seed);
        let (first, later) = extra_keys(lora, cache_salt);
        ChainHasher::new(ALGORITHM, self.release.extra_keys_format(), self.block_size, root)
            .with_extra_keys(&first, &later)
    }

    /// The writer of this engine's event batches.
    pub fn batch_encoder(&self) -> BatchEncoder {
        BatchEncoder {
            release: self.release,
            hash_form: self.hash_form,
            block_size: self.block_size.tokens(),
        }
    }

    fn validate(&self) -> Result<(), ConfigError> {
        let at_least = |flag, value: u64, minimum: u64| match value >= minimum {
            true => Ok(()),
            false => Err(ConfigError::TooSmall { flag, value, minimum }),
        };
        at_least("--num-blocks", u64::from(self.num_blocks), 2)?;
        at_least("--max-model-len", u64::from(self.max_model_len), 2)?;
        at_least("--max-num-seqs", self.max_num_seqs as u64, 1)?;
        at_least("--max-num-batched-tokens", u64::from(self.max_num_batched_tokens), 1)
    }
}

/// How long steps take.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Prompt tokens computed per second.
    pub prefill_tokens_per_s: f64,
    /// A step with at least one answer token.
    pub decode: Duration,
    /// Added per answer token of the step.
    pub decode_per_sequence: Duration,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            prefill_tokens_per_s: 20_000.0,
            decode: Duration::from_millis(8),
            decode_per_sequence: Duration::from_micros(100),
        }
    }
}

impl Timing {
    /// `prefill_tokens / rate`, plus `decode + decodes * decode_per_sequence` if there is a decode.
    pub fn step(&self, prefill_tokens: u32, decodes: u32) -> Duration {
        let prefill = Duration::from_secs_f64(f64::from(prefill_tokens) / self.prefill_tokens_per_s);
        match decodes {
            0 => prefill,
            decodes => prefill + self.decode + self.decode_per_sequence * decodes,
        }
    }
}

/// Where events go.
#[derive(Clone, Debug)]
pub struct EventsConfig {
    /// The PUB socket binds here: `tcp://HOST:PORT`, port 0 for a free one.
    pub endpoint: String,
    /// The replay ROUTER binds here.
    pub replay_endpoint: Option<String>,
    /// First frame of every message.
    pub topic: String,
    /// Batches kept for replay.
    pub buffer_steps: usize,
}

/// A whole engine.
#[derive(Clone, Debug)]
pub struct Config {
    /// Address of the OpenAI server; port 0 for a free one.
    pub http: SocketAddr,
    /// Events; `None` publishes nothing.
    pub events: Option<EventsConfig>,
    /// Folder with `tokenizer.json` and `tokenizer_config.json`.
    pub model: PathBuf,
    /// Name of the model in requests.
    pub served_model_name: String,
    /// Adapters, served under their names.
    pub loras: Vec<Arc<Lora>>,
    /// The cache.
    pub cache: CacheConfig,
    /// Speed.
    pub timing: Timing,
}

impl Config {
    /// Refuses what cannot run, naming the flag.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.cache.validate()?;
        let rate = self.timing.prefill_tokens_per_s;
        if !rate.is_finite() || rate < 1.0 {
            return Err(ConfigError::NotAPositiveRate { flag: "--prefill-tokens-per-s", value: rate });
        }
        let mut names: Vec<&str> = self.loras.iter().map(|lora| lora.name.as_str()).collect();
        names.push(&self.served_model_name);
        names.sort_unstable();
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(ConfigError::NameTwice { name: pair[0].to_owned() }),
            None => Ok(()),
        }
    }
}

/// Why a configuration was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A number below its minimum.
    #[error("{flag}: {value} is too small, the minimum is {minimum}")]
    TooSmall {
        /// The flag.
        flag: &'static str,
        /// Its value.
        value: u64,
        /// The least that works.
        minimum: u64,
    },
    /// A rate that is not a number of at least 1.
    #[error("{flag}: {value} is not a rate of at least 1 per second")]
    NotAPositiveRate {
        /// The flag.
        flag: &'static str,
        /// Its value.
        value: f64,
    },
    /// The model and the adapters share one space of names.
    #[error("--served-model-name, --lora: the name {name:?} is given twice")]
    NameTwice {
        /// The name.
        name: String,
    },
}

/// Extra keys of a request's first and later blocks.
fn extra_keys<'a>(
    lora: Option<&'a Lora>,
    cache_salt: Option<&'a str>,
) -> (Vec<ExtraKey<'a>>, Vec<ExtraKey<'a>>) {
    let later: Vec<ExtraKey<'a>> =
        lora.map(|lora| ExtraKey::Lora { name: &lora.name, path: &lora.path }).into_iter().collect();
    let mut first = later.clone();
    first.extend(cache_salt.map(ExtraKey::CacheSalt));
    (first, later)
}
