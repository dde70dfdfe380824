//! The `host-shim` command.

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use host_shim::config::Endpoint;
use host_shim::decode::{self, Printer, Replay};
use host_shim::{Config, ConfigFile, HostShim, tokenizer};
use std::path::PathBuf;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval};

/// How often the configuration file is looked at.
const CONFIG_INTERVAL: Duration = Duration::from_secs(1);

/// Ingests KV-cache events of engines and replicates the index to gateways.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the service until SIGTERM or SIGINT. The configuration's replicas follow the file; SIGHUP reads it at once.
    Serve {
        /// Configuration, YAML.
        #[arg(long)]
        config: PathBuf,
    },
    /// Check a configuration and exit.
    CheckConfig {
        /// Configuration, YAML.
        config: PathBuf,
    },
    /// Print a stream of KV events readably.
    Decode {
        /// A recording or payload, or the publisher's tcp://host:port or ipc://path.
        source: String,
        /// Replay socket to ask first.
        #[arg(long)]
        replay: Option<Endpoint>,
        /// First batch of the replay.
        #[arg(long, default_value_t = 0, requires = "replay")]
        from: u64,
        /// Print token ids: the users' prompts.
        #[arg(long)]
        tokens: bool,
    },
    /// Work with tokenizers.
    Tokenizer {
        #[command(subcommand)]
        command: TokenizerCommand,
    },
}

#[derive(Debug, Subcommand)]
enum TokenizerCommand {
    /// Compile a model's tokenizer and chat template into an artifact.
    Compile {
        /// Folder with tokenizer.json and tokenizer_config.json.
        dir: PathBuf,
        /// File to write.
        #[arg(short, long)]
        output: PathBuf,
    },
}

fn main() -> Result<()> {
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env()
                .unwrap_or_else(|_| "info,zeromq=warn".into()),
        )
        .with_writer(std::io::stderr)
        .init();
    match Cli::parse().command {
        Command::Serve { config } => {
            let (file, config) = ConfigFile::open(config)?;
            serve(file, config)
        }
        Command::CheckConfig { config } => {
            let checked = Config::read(&config)?;
            tracing::info!(
                models = checked.models.len(),
                replicas = checked.replicas.len(),
                "configuration is valid"
            );
            Ok(())
        }
        Command::Decode { source, replay, from, tokens } => {
            print_events(&source, replay.map(|endpoint| Replay { endpoint, from }), tokens)
        }
        Command::Tokenizer { command: TokenizerCommand::Compile { dir, output } } => {
            let artifact = tokenizer::compile(&dir)?;
            std::fs::write(&output, &artifact)
                .with_context(|| format!("cannot write {}", output.display()))?;
            tracing::info!(file = %output.display(), bytes = artifact.len(), "compiled");
            Ok(())
        }
    }
}

fn print_events(source: &str, replay: Option<Replay>, tokens: bool) -> Result<()> {
    let mut printer = Printer::new(std::io::stdout().lock(), tokens);
    let ended = if source.contains("://") {
        let endpoint: Endpoint = source.parse().with_context(|| source.to_owned())?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let (mut terminate, mut interrupt) =
                (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
            let stop = Box::pin(async move {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
            });
            anyhow::Ok(decode::live(&endpoint, replay.as_ref(), &mut printer, stop).await?)
        })
    } else {
        Ok(decode::file(source.as_ref(), &mut printer)?)
    };
    // However it ended: what was seen until then is what one came for.
    printer.finish()?;
    ended
}

fn serve(file: ConfigFile, config: Config) -> Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    let result = runtime.block_on(run(file, config));
    // A tokenizer that is still being compiled must not hold the process up.
    runtime.shutdown_background();
    result
}

async fn run(mut file: ConfigFile, config: Config) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut shim = tokio::select! {
        started = HostShim::start(config) => started?,
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    };
    tracing::info!(grpc = %shim.grpc_addr(), http = %shim.http_addr(), snapshot = %shim.snapshot_addr(), "serving");
    let mut look = interval(CONFIG_INTERVAL);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let read = tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = hangup.recv() => Some(file.read()),
            _ = look.tick() => file.changed(),
        };
        match read {
            Some(Ok(config)) => {
                tracing::info!(replicas = config.replicas.len(), "configuration read again");
                shim.reload(config).await;
            }
            Some(Err(error)) => shim.refuse_reload(&error),
            None => {}
        }
    }
    tracing::info!("shutting down");
    shim.shutdown().await;
    Ok(())
}
