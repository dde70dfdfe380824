//! Commands that prepare and then become another program: `demo`, `e2e-vllm`, `bench`.
//!
//! "Become": the process image is replaced, so Ctrl-C and exit codes are the program's own.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;

use crate::process::{cargo, run};
use crate::{artifacts, tools};

#[derive(Args)]
pub(crate) struct Demo {
    /// Play the load, compare and exit: 0 only if every prediction was right and the hit rate beat least_request.
    #[arg(long)]
    once: bool,
    /// Number of engines; with one there is nothing to choose.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(2..=16))]
    engines: u16,
    /// Port of Envoy's listener on 127.0.0.1; the other processes take free ports.
    #[arg(long, default_value_t = 10000, value_parser = clap::value_parser!(u16).range(1..))]
    envoy_port: u16,
}

#[derive(Args)]
pub(crate) struct Bench {
    /// Which one; an unknown name lists them.
    name: String,
    /// Also write the figures to FILE.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// Name, and where the program is. Drivers that only start what they measure, which is built with a profile of its own,
/// are binaries; what measures itself is an example in release.
const BENCHES: &[(&str, &[&str])] = &[
    ("ingest", &["--release", "--package", "host-shim", "--example", "bench_ingest"]),
    ("request", &["--package", "wasm-tests", "--bin", "bench_request"]),
];

pub(crate) fn demo(demo: &Demo) -> Result<()> {
    let plugin = artifacts::plugin()?;
    artifacts::programs()?;
    let envoy = tools::envoy()?;
    let mut command = Command::new(artifacts::program("demo"));
    command.env("INFERENCE_CACHE_PLUGIN", plugin).env("INFERENCE_CACHE_ENVOY", envoy);
    command.args(["--engines", &demo.engines.to_string(), "--envoy-port", &demo.envoy_port.to_string()]);
    if demo.once {
        command.arg("--once");
    }
    become_program(&mut command)
}

pub(crate) fn e2e_vllm() -> Result<()> {
    let plugin = artifacts::plugin()?;
    artifacts::programs()?;
    let tokenizers = tools::tokenizers()?;
    let engine = tools::real_engine(&tokenizers)?;
    let mut command = Command::new(artifacts::program("e2e-vllm"));
    command.env("INFERENCE_CACHE_PLUGIN", plugin).env("INFERENCE_CACHE_ENVOY", tools::envoy()?);
    command.env("INFERENCE_CACHE_TOKENIZERS", tokenizers).env("INFERENCE_CACHE_REAL_ENGINE", engine);
    become_program(&mut command)
}

pub(crate) fn bench(bench: &Bench) -> Result<()> {
    let Some((_, program)) = BENCHES.iter().find(|(name, ..)| *name == bench.name) else {
        let names: Vec<&str> = BENCHES.iter().map(|(name, ..)| *name).collect();
        bail!("no benchmark \"{}\"; there are: {}", bench.name, names.join(", "));
    };
    let mut command = cargo(["run", "--quiet"]);
    command.args(*program).arg("--");
    if bench.name == "request" {
        command.env("INFERENCE_CACHE_PLUGIN", artifacts::plugin()?);
        command.env("INFERENCE_CACHE_TOKENIZERS", tools::tokenizers()?);
    }
    if let Some(json) = &bench.json {
        // The program runs in the repository's root.
        let json = std::path::absolute(json).with_context(|| format!("--json {}", json.display()))?;
        command.arg("--json").arg(json);
    }
    run(&mut command)
}

fn become_program(command: &mut Command) -> Result<()> {
    let error = command.exec();
    Err(anyhow!(error).context(format!("cannot start {}", command.get_program().display())))
}
