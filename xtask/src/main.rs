//! `cargo xtask …`: the one entry to everything that is done with this repository.
//!
//! It builds, installs pinned tools into `.tools/` and hands over to the programs that do the work (tests, `demo`,
//! `e2e-vllm`, benches); it contains no logic of the system. A fresh machine needs Rust and python3 (`demo`), and
//! Node for `test` and `e2e-vllm`.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool")]

mod artifacts;
mod checks;
mod fuzz;
mod process;
mod programs;
mod tools;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Build, show, test and measure inference-cache.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Play a conversation load through a real Envoy, with the plugin and without, and stay up for curl.
    Demo(programs::Demo),
    /// Everything that must pass: formatting, lints, tests on every target, real Envoy.
    Test,
    /// Formatting and clippy on every target; dependency policy with --deny.
    Lint {
        /// Also check licences, advisories and sources of dependencies (installs cargo-deny into .tools).
        #[arg(long)]
        deny: bool,
    },
    /// Run a benchmark program and print its figures.
    Bench(programs::Bench),
    /// Two real vLLM engines behind a real Envoy: every prediction must equal what the engine reports.
    E2eVllm,
    /// Fuzz what other processes send us (needs a nightly compiler).
    Fuzz(fuzz::Fuzz),
    /// Build the plugin and print where it is.
    BuildPlugin,
}

fn main() {
    if let Err(error) = run(Cli::parse().command) {
        eprintln!("error: {error:#}");
        std::process::exit(1);
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Demo(demo) => programs::demo(&demo),
        Command::Test => checks::test(),
        Command::Lint { deny } => checks::lint(deny),
        Command::Bench(bench) => programs::bench(&bench),
        Command::Fuzz(fuzz) => fuzz::fuzz(&fuzz),
        Command::E2eVllm => programs::e2e_vllm(),
        Command::BuildPlugin => {
            println!("{}", artifacts::plugin()?.display());
            Ok(())
        }
    }
}
