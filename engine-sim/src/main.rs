//! The stand-in engine as a program: see the library for what it is.

use anyhow::{Context, ensure};
use clap::{Parser, ValueEnum};
use engine_sim::EngineSim;
use engine_sim::config::{BlockHashForm, CacheConfig, Config, EventsConfig, Release, Timing};
use engine_sim::events::Lora;
use inference_cache_core::hash::BlockSize;
use inference_cache_core::hash::vllm::DEFAULT_SEED;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// A stand-in engine: vLLM's prefix cache, KV events and OpenAI endpoints without a model.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Address of the OpenAI server.
    #[arg(long, default_value = "127.0.0.1:8000")]
    http: SocketAddr,
    /// The event PUB socket binds here; without it nothing is published.
    #[arg(long, value_name = "tcp://HOST:PORT")]
    events: Option<String>,
    /// The replay ROUTER binds here.
    #[arg(long, value_name = "tcp://HOST:PORT", requires = "events")]
    replay: Option<String>,
    /// First frame of every event message.
    #[arg(long, default_value = "")]
    topic: String,
    /// Event batches kept for replay.
    #[arg(long, default_value_t = 10_000)]
    buffer_steps: usize,
    /// Folder with tokenizer.json and tokenizer_config.json.
    #[arg(long)]
    model: PathBuf,
    /// Name of the model in requests.
    #[arg(long)]
    served_model_name: String,
    /// An adapter, served under its name; PATH enters its block hashes (default: the name).
    #[arg(long, value_name = "NAME[=PATH]")]
    lora: Vec<String>,
    /// Tokens per KV block.
    #[arg(long, default_value_t = 16)]
    block_size: u32,
    /// KV blocks, the null block included.
    #[arg(long, default_value_t = 512)]
    num_blocks: u32,
    /// Longest prompt plus answer in tokens.
    #[arg(long, default_value_t = 8192)]
    max_model_len: u32,
    /// Requests that run at the same time.
    #[arg(long, default_value_t = 64)]
    max_num_seqs: usize,
    /// Tokens that one step computes at most.
    #[arg(long, default_value_t = 2048)]
    max_num_batched_tokens: u32,
    /// map: events, hashes and replay of vLLM 0.32; array: those of 0.22.
    #[arg(long, value_enum, default_value = "map")]
    encoding: Encoding,
    /// int: low 64 bits of a block hash; bytes: all 32 bytes.
    #[arg(long, value_enum, default_value = "int")]
    block_hashes: Hashes,
    /// Text that the first block's parent is the hash of (PYTHONHASHSEED).
    #[arg(long, default_value = DEFAULT_SEED)]
    hash_seed: String,
    /// Prompt tokens computed per second.
    #[arg(long, default_value_t = 20_000.0)]
    prefill_tokens_per_s: f64,
    /// Milliseconds of a step that answers.
    #[arg(long, default_value_t = 8.0)]
    decode_ms: f64,
    /// Microseconds added to it per answering request.
    #[arg(long, default_value_t = 100)]
    decode_sequence_us: u64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Encoding {
    Map,
    Array,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Hashes {
    Int,
    Bytes,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> anyhow::Result<()> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT")?;
    let engine = EngineSim::start(config(Arguments::parse())?).await?;
    let endpoints = engine.endpoints();
    tracing::info!(
        http = %engine.http(),
        events = endpoints.map(|endpoints| &*endpoints.events),
        replay = endpoints.and_then(|endpoints| endpoints.replay.as_deref()),
        "serving"
    );
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    engine.stop().await;
    Ok(())
}

fn config(arguments: Arguments) -> anyhow::Result<Config> {
    let block_size = BlockSize::new(arguments.block_size);
    let block_size =
        block_size.with_context(|| format!("--block-size: {} is not 1 to 65535", arguments.block_size))?;
    let decode_ms = arguments.decode_ms;
    ensure!((0.0..=60_000.0).contains(&decode_ms), "--decode-ms: {decode_ms} is not 0 to 60000");
    Ok(Config {
        http: arguments.http,
        events: arguments.events.map(|endpoint| EventsConfig {
            endpoint,
            replay_endpoint: arguments.replay,
            topic: arguments.topic,
            buffer_steps: arguments.buffer_steps,
        }),
        model: arguments.model,
        served_model_name: arguments.served_model_name,
        loras: arguments.lora.iter().zip(1..).map(|(value, id)| lora(value, id)).collect(),
        cache: CacheConfig {
            release: match arguments.encoding {
                Encoding::Map => Release::V0_32,
                Encoding::Array => Release::V0_22,
            },
            block_size,
            num_blocks: arguments.num_blocks,
            max_model_len: arguments.max_model_len,
            max_num_seqs: arguments.max_num_seqs,
            max_num_batched_tokens: arguments.max_num_batched_tokens,
            hash_seed: arguments.hash_seed,
            hash_form: match arguments.block_hashes {
                Hashes::Int => BlockHashForm::Int,
                Hashes::Bytes => BlockHashForm::Bytes,
            },
        },
        timing: Timing {
            prefill_tokens_per_s: arguments.prefill_tokens_per_s,
            decode: Duration::from_secs_f64(decode_ms / 1000.0),
            decode_per_sequence: Duration::from_micros(arguments.decode_sequence_us),
        },
    })
}

fn lora(value: &str, id: u32) -> Arc<Lora> {
    let (name, path) = value.split_once('=').unwrap_or((value, value));
    Arc::new(Lora { id, name: name.to_owned(), path: path.to_owned() })
}
