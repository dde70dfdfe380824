//! One host-shim process, configured for the replicas of a run.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::ports;
use crate::process::{Process, sibling};
use crate::wait::{PATIENCE, until};
use crate::workdir::Workdir;

/// One entry of `replicas:`.
#[derive(Debug, Clone)]
pub struct Replica {
    pub http: u16,
    pub events: u16,
    pub replay: u16,
    /// Whether host-shim binds the events port (a real vLLM connects) or connects to it.
    pub bind_events: bool,
    /// Data-parallel ranks; each has the next events and replay port.
    pub ranks: u16,
    /// LoRA adapters.
    pub adapters: Vec<String>,
}

#[derive(Debug)]
pub struct HostShim {
    process: Option<Process>,
    config: PathBuf,
    dir: PathBuf,
    http: u16,
    grpc: u16,
    client: reqwest::Client,
}

impl HostShim {
    /// Writes the configuration; starts nothing. `model` is the folder of the tokenizer.
    pub fn new(name: &str, model: &Path, replicas: &[Replica], dir: &Workdir) -> Result<HostShim> {
        let (grpc, http, snapshot) = (ports::free()?, ports::free()?, ports::free()?);
        let mut yaml = format!(
            "listen: {{ grpc: 127.0.0.1:{grpc}, http: 127.0.0.1:{http}, snapshot: 127.0.0.1:{snapshot} }}\n\
             models:\n- {{ name: {name}, path: {} }}\nreplicas:\n",
            model.display()
        );
        for (index, replica) in replicas.iter().enumerate() {
            let Replica { http, events, replay, bind_events, ranks, adapters } = replica;
            let mode = if *bind_events { "bind" } else { "connect" };
            yaml += &format!(
                "- id: engine-{index}\n  address: 127.0.0.1:{http}\n  model: {name}\n  adapters: {adapters:?}\n  \
                 events: {{ endpoint: tcp://127.0.0.1:{events}, mode: {mode}, replay: tcp://127.0.0.1:{replay}, \
                 ranks: {ranks} }}\n"
            );
        }
        let config = dir.write("host-shim.yaml", &yaml)?;
        let client = reqwest::Client::builder().no_proxy().build()?;
        Ok(HostShim { process: None, config, dir: dir.path().to_owned(), http, grpc, client })
    }

    pub fn grpc_port(&self) -> u16 {
        self.grpc
    }

    /// Starts it and waits until it says that it is ready.
    pub async fn start(&mut self) -> Result<()> {
        let mut command = Command::new(sibling("host-shim")?);
        command.args(["serve", "--config"]).arg(&self.config);
        let process = self.process.insert(Process::start("host-shim", command, &self.dir)?);
        let url = format!("http://127.0.0.1:{}/readyz", self.http);
        let ready = until("host-shim", PATIENCE, async || match process.check() {
            Err(ended) => Some(Err(ended)),
            Ok(()) => self.client.get(&url).send().await.ok()?.status().is_success().then_some(Ok(())),
        });
        ready.await?
    }

    /// Kills it without warning.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill();
        }
    }

    /// An error if it has ended by itself.
    pub fn check(&mut self) -> Result<()> {
        self.process.as_mut().map_or(Ok(()), Process::check)
    }

    /// Sum over all label sets of a metric; 0 if there is none of that name.
    pub async fn metric(&self, name: &str) -> Result<f64> {
        self.metric_with(name, "").await
    }

    /// Sum over the label sets that contain `label`, such as `replica="engine-0"`.
    pub async fn metric_with(&self, name: &str, label: &str) -> Result<f64> {
        let url = format!("http://127.0.0.1:{}/metrics", self.http);
        let text = self.client.get(url).send().await?.error_for_status()?.text().await?;
        let samples =
            text.lines().filter(|line| line.split(['{', ' ']).next() == Some(name) && line.contains(label));
        Ok(samples.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum())
    }
}
