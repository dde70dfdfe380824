//! Everything at once: engines, host-shim, Envoy.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;

use crate::client::Client;
use crate::engine::{self, Engine};
use crate::envoy::Envoy;
use crate::host_shim::{HostShim, Replica};
use crate::manifest::{Settings, Variant};
use crate::ports;
use crate::process::path_from;
use crate::wait::{PATIENCE, until};
use crate::workdir::Workdir;

/// The model's name in all runs with engine-sims.
pub const MODEL: &str = "demo";

const SHORT_PROMPT: &str = "no_hint_total.cause.short_prompt";

/// What to start.
#[derive(Debug, Clone)]
pub struct Options {
    pub engines: usize,
    /// More arguments of engine-sim.
    pub engine_arguments: Vec<String>,
    /// Envoy's worker threads.
    pub concurrency: u32,
    /// Envoy's port; `None` for a free one.
    pub envoy_port: Option<u16>,
    pub variant: Variant,
    /// Whether host-shim runs when Envoy starts.
    pub host_shim: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            engines: 3,
            engine_arguments: Vec::new(),
            concurrency: 2,
            envoy_port: None,
            variant: Variant::Body,
            host_shim: true,
        }
    }
}

/// Running processes. Fields are dropped in order: Envoy first, the directory with the logs last.
#[derive(Debug)]
pub struct Stack {
    pub envoy: Envoy,
    pub host_shim: HostShim,
    pub engines: Vec<Engine>,
    pub client: Client,
    dir: Workdir,
}

impl Stack {
    /// Starts all and waits until the plugin gives hints (where it can: with host-shim and the filter in place).
    pub async fn start(options: &Options) -> Result<Stack> {
        let dir = Workdir::new()?;
        let replicas =
            (0..options.engines).map(|_| Engine::ports(false)).collect::<Result<Vec<Replica>>>()?;
        let engines = engine::start_sims(&replicas, &options.engine_arguments, dir.path()).await?;
        let host_shim = HostShim::new(MODEL, &engine::demo_model(), &replicas, &dir)?;
        Stack::assemble(options, engines, host_shim, dir).await
    }

    /// Puts host-shim and Envoy in front of engines that run already.
    pub async fn assemble(
        options: &Options,
        engines: Vec<Engine>,
        mut host_shim: HostShim,
        dir: Workdir,
    ) -> Result<Stack> {
        if options.host_shim {
            host_shim.start().await?;
        }
        let settings = Settings {
            listener: options.envoy_port.map_or_else(ports::free, Ok)?,
            admin: ports::free()?,
            host_shim: host_shim.grpc_port(),
            replicas: engines.iter().map(|engine| engine.replica().http).collect(),
            plugin: path_from("INFERENCE_CACHE_PLUGIN")?,
            variant: options.variant,
        };
        let envoy = Envoy::start(settings, options.concurrency, &dir).await?;
        let client = Client::new(envoy.url())?;
        let mut stack = Stack { envoy, host_shim, engines, client, dir };
        match options.variant {
            Variant::Body if options.host_shim => stack.ready(MODEL).await?,
            Variant::FlagLeftOut if options.host_shim => stack.replicated().await?,
            _ => {}
        }
        Ok(stack)
    }

    /// Waits until every worker's VM holds the model. Asked with prompts shorter than a block: they leave nothing in
    /// any cache or index, and the plugin counts them under a cause of their own once it can tokenize them.
    pub async fn ready(&mut self, model: &str) -> Result<()> {
        // Connections spread over the workers at random: this many have met each of two, but once in 10^9.
        const PROBES: u64 = 32;
        let body = json!({"model": model, "prompt": "a", "max_tokens": 1});
        let ready = until("hints from the plugin", PATIENCE, async || {
            let before = self.envoy.plugin_metric(SHORT_PROMPT).await.ok()?;
            for _ in 0..PROBES {
                self.client.completion(&body).await.ok().filter(|answer| answer.status == 200)?;
            }
            let counted = self.envoy.plugin_metric(SHORT_PROMPT).await.ok()? - before;
            (counted == PROBES).then_some(())
        });
        ready.await.with_context(|| self.dir.logs())
    }

    /// Waits until the VMs follow host-shim, without sending a request: for header mode, which needs no tokenizer and
    /// whose detection begins with the first request.
    async fn replicated(&mut self) -> Result<()> {
        let ready = until("replication to reach the plugin", PATIENCE, async || {
            (self.envoy.plugin_metric("ready").await.ok()? == 1).then_some(())
        });
        ready.await.with_context(|| self.dir.logs())?;
        // The gauge is that of the VM that was first; the others are a tick behind.
        self.settle().await;
        Ok(())
    }

    /// Waits until what the engines have published so far is in every worker's index: until nothing has moved for a
    /// while, neither in host-shim nor in the plugin. The usual way takes some tens of milliseconds.
    pub async fn settle(&self) {
        const STILL: u32 = 6;
        const SAMPLES: u32 = 200;
        let (mut last, mut still) = (None, 0);
        for _ in 0..SAMPLES {
            tokio::time::sleep(Duration::from_millis(30)).await;
            let now = self.progress().await;
            still = if Some(now) == last { still + 1 } else { 0 };
            last = Some(now);
            if still == STILL {
                return;
            }
        }
    }

    /// Numbers that change while events are on their way; 0 for what does not answer.
    async fn progress(&self) -> (u64, u64, u64) {
        let metric = async |name| self.host_shim.metric(name).await.unwrap_or(0.0) as u64;
        (
            metric("inferencecache_source_batches_total").await,
            metric("inferencecache_replication_seq").await,
            self.envoy.plugin_metric("replica_entries").await.unwrap_or(0),
        )
    }

    /// Ends with an error if any of the processes ended.
    pub fn check(&mut self) -> Result<()> {
        self.envoy.check()?;
        self.host_shim.check()
    }

    pub fn dir(&self) -> &Workdir {
        &self.dir
    }
}
