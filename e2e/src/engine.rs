//! Engines: `engine-sim` processes, or real ones that speak the same API.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::host_shim::Replica;
use crate::ports;
use crate::process::{Process, sibling};
use crate::wait::{PATIENCE, until};

#[derive(Debug)]
pub struct Engine {
    process: Process,
    replica: Replica,
}

/// The demo model's folder in the repository.
pub fn demo_model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/demo")
}

impl Engine {
    /// Ports for an engine of one rank.
    pub fn ports(bind_events: bool) -> Result<Replica> {
        Engine::ports_of_ranks(bind_events, 1)
    }

    /// Ports for an engine.
    pub fn ports_of_ranks(bind_events: bool, ranks: u16) -> Result<Replica> {
        let (events, replay) = (ports::free_row(ranks)?, ports::free_row(ranks)?);
        Ok(Replica { http: ports::free()?, events, replay, bind_events, ranks, adapters: Vec::new() })
    }

    /// Starts an engine-sim; `extra` are further arguments.
    pub fn start_sim(replica: &Replica, index: usize, extra: &[String], dir: &Path) -> Result<Engine> {
        let Replica { http, events, replay, .. } = replica;
        let mut command = Command::new(sibling("engine-sim")?);
        command.args(["--http", &format!("127.0.0.1:{http}")]);
        command.args(["--events", &format!("tcp://127.0.0.1:{events}")]);
        command.args(["--replay", &format!("tcp://127.0.0.1:{replay}")]);
        command.arg("--model").arg(demo_model()).args(["--served-model-name", "demo"]).args(extra);
        let process = Process::start(&format!("engine-{index}"), command, dir)?;
        Ok(Engine { process, replica: replica.clone() })
    }

    /// Starts a real vLLM through the set-up's `serve.sh`; `extra` are further arguments.
    pub fn start_vllm(
        replica: &Replica,
        index: usize,
        extra: &[String],
        setup: &Path,
        dir: &Path,
    ) -> Result<Engine> {
        let mut command = Command::new(setup.join("serve.sh"));
        command.args([replica.http, replica.events, replica.replay].map(|port| port.to_string())).args(extra);
        let process = Process::start(&format!("engine-{index}"), command, dir)?;
        Ok(Engine { process, replica: replica.clone() })
    }

    /// Waits until it answers on `/health`.
    pub async fn ready(&mut self, patience: Duration) -> Result<()> {
        let client = reqwest::Client::builder().no_proxy().build()?;
        let url = format!("http://{}/health", self.address());
        let ready = until("an engine", patience, async || match self.process.check() {
            Err(ended) => Some(Err(ended)),
            Ok(()) => client.get(&url).send().await.ok()?.status().is_success().then_some(Ok(())),
        });
        ready.await?
    }

    /// `ip:port` as the gateway knows it.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.replica.http)
    }

    pub fn replica(&self) -> &Replica {
        &self.replica
    }

    /// Ends it; connections are refused from now on.
    pub fn kill(&mut self) {
        self.process.kill();
    }
}

/// Starts one engine-sim per entry and waits for all.
pub async fn start_sims(replicas: &[Replica], extra: &[String], dir: &Path) -> Result<Vec<Engine>> {
    let start = |(index, replica)| Engine::start_sim(replica, index, extra, dir);
    let mut engines = replicas.iter().enumerate().map(start).collect::<Result<Vec<Engine>>>()?;
    for engine in &mut engines {
        engine.ready(PATIENCE).await?;
    }
    Ok(engines)
}
