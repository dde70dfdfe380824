//! `cargo xtask fuzz`: the fuzz targets in `fuzz/`, each from a corpus made of recorded engines.
//!
//! Needs a nightly compiler (`rustup toolchain install nightly`): the sanitizers are not in stable ones.

use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::process::run;
use crate::{artifacts, tools};

#[derive(Args)]
pub(crate) struct Fuzz {
    /// Which one; all of them, one after the other, if left out.
    target: Option<String>,
    /// How long each is run.
    #[arg(long, default_value_t = 600)]
    seconds: u32,
}

/// Bytes that a target may use; more is a finding.
const MEMORY_MIB: u32 = 2048;

pub(crate) fn fuzz(fuzz: &Fuzz) -> Result<()> {
    let bin = tools::cargo_fuzz()?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(bin).chain(std::env::split_paths(&path)))?;
    let nightly = |args: &[&str]| {
        let mut command = Command::new("rustup");
        command.current_dir(artifacts::root().join("fuzz")).env("PATH", &path);
        command.args(["run", "nightly", "cargo"]).args(args);
        command
    };
    run(&mut nightly(&["run", "--quiet", "--bin", "corpus"]))?;
    let listed = nightly(&["fuzz", "list"]).output().context("cannot start `cargo fuzz`")?;
    // The generator of the corpus is a program of the same package.
    let all: Vec<&str> =
        std::str::from_utf8(&listed.stdout)?.lines().filter(|name| *name != "corpus").collect();
    let chosen: Vec<&str> = match &fuzz.target {
        Some(name) if all.contains(&name.as_str()) => vec![name],
        Some(name) => bail!("no fuzz target \"{name}\"; there are: {}", all.join(", ")),
        None => all,
    };
    let (seconds, memory) =
        (format!("-max_total_time={}", fuzz.seconds), format!("-rss_limit_mb={MEMORY_MIB}"));
    for target in chosen {
        println!("\n=== {target}, {} s", fuzz.seconds);
        run(&mut nightly(&["fuzz", "run", target, "--", &seconds, &memory, "-print_final_stats=1"]))?;
    }
    Ok(())
}
