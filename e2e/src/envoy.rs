//! One Envoy process and what its admin interface says.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::manifest::{self, Settings};
use crate::process::{Process, path_from};
use crate::wait::{PATIENCE, until};
use crate::workdir::Workdir;

#[derive(Debug)]
pub struct Envoy {
    process: Process,
    settings: Settings,
    http: reqwest::Client,
}

impl Envoy {
    /// Starts Envoy and waits until it serves. `concurrency`: worker threads, each with a VM of the plugin.
    pub async fn start(settings: Settings, concurrency: u32, dir: &Workdir) -> Result<Envoy> {
        let config = dir.write("envoy.yaml", &manifest::render(&settings)?)?;
        let mut command = Command::new(path_from("INFERENCE_CACHE_ENVOY")?);
        command.arg("-c").arg(config).args(["--concurrency", &concurrency.to_string()]);
        // Several on one machine: no shared memory region by a common number.
        command.args([
            "--disable-hot-restart",
            "--log-level",
            "warning",
            "--component-log-level",
            "wasm:info",
        ]);
        let process = Process::start("envoy", command, dir.path())?;
        let mut envoy = Envoy { process, settings, http: reqwest::Client::builder().no_proxy().build()? };
        // An Envoy that ended is an error at once, not after the whole wait.
        let ready = until("Envoy", PATIENCE, async || match envoy.process.check() {
            Err(ended) => Some(Err(ended)),
            Ok(()) => (envoy.admin("ready").await.ok()?.trim() == "LIVE").then_some(Ok(())),
        });
        ready.await??;
        Ok(envoy)
    }

    /// `http://127.0.0.1:PORT` of the listener.
    pub fn url(&self) -> String {
        format!("http://{}", self.address())
    }

    /// `127.0.0.1:PORT` of the listener.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.settings.listener)
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// An error if Envoy has ended.
    pub fn check(&mut self) -> Result<()> {
        self.process.check()
    }

    /// Body of `GET /PATH` of the admin interface.
    pub async fn admin(&self, path: &str) -> Result<String> {
        let url = format!("http://127.0.0.1:{}/{path}", self.settings.admin);
        Ok(self.http.get(url).send().await?.error_for_status()?.text().await?)
    }

    /// Counters and gauges whose names match the regular expression `filter`.
    pub async fn stats(&self, filter: &str) -> Result<BTreeMap<String, u64>> {
        let text = self.admin(&format!("stats?filter={filter}")).await?;
        let pairs = text.lines().filter_map(|line| line.rsplit_once(": "));
        Ok(pairs.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?))).collect())
    }

    /// One of the plugin's metrics; 0 while it has never been touched.
    pub async fn plugin_metric(&self, name: &str) -> Result<u64> {
        let name = format!("wasmcustom.inference_cache_{name}");
        Ok(self.stats(&name).await?.get(&name).copied().unwrap_or(0))
    }

    /// How often a VM trapped and was replaced. Only 0 is ever good.
    pub async fn vm_reloads(&self) -> Result<u64> {
        Ok(self.stats("wasm.*reload").await?.values().sum())
    }

    /// Requests that each replica has received so far, by "ip:port": where requests *really* went.
    pub async fn upstream_requests(&self) -> Result<BTreeMap<String, u64>> {
        let clusters: Value = serde_json::from_str(&self.admin("clusters?format=json").await?)?;
        let replicas = clusters["cluster_statuses"]
            .as_array()
            .and_then(|clusters| clusters.iter().find(|cluster| cluster["name"] == "replicas"))
            .and_then(|cluster| cluster["host_statuses"].as_array())
            .context("Envoy's /clusters has no cluster \"replicas\"")?;
        let count = |host: &Value| {
            let address = &host["address"]["socket_address"];
            let address = format!("{}:{}", address["address"].as_str()?, address["port_value"].as_u64()?);
            let stats = host["stats"].as_array()?;
            let total = stats.iter().find(|stat| stat["name"] == "rq_total")?;
            // 64-bit numbers are strings in Envoy's JSON, and 0 is left out.
            Some((address, total["value"].as_str().and_then(|value| value.parse().ok()).unwrap_or(0)))
        };
        Ok(replicas.iter().filter_map(count).collect())
    }
}
