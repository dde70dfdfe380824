//! `cargo xtask test` and `cargo xtask lint`: what must hold before a change is good.
//!
//! Every step runs even if an earlier one failed (except that nothing can be tested that does not build); one summary
//! closes the run.

use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::{Result, bail};

use crate::process::{available, cargo, run, run_tests};
use crate::{artifacts, tools};

const CORE: &str = "inference-cache-core";
const PLUGIN: &str = "inference-cache-plugin";
const WASI: &str = "wasm32-wasip1";
const WEB: &str = "wasm32-unknown-unknown";

pub(crate) fn test() -> Result<()> {
    let environment = Environment::prepare()?;
    let runner = tools::wasm_bindgen_test_runner()?;
    let mut report = Report::default();
    lints(&mut report);

    report.tests("tests, native", environment.apply(&mut native_tests(&["--workspace"], &["e2e"])));
    // The same packages as above: others would mean other features, and compiling everything again.
    report.tests("tests, documentation", &mut cargo(["test", "--doc", "--workspace", "--exclude", "e2e"]));
    let mut web = cargo(["test", "--package", CORE, "--lib", "--target", WEB]);
    web.env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUNNER", runner);
    report.tests("core's unit tests in Node", &mut web);
    report.step("core's tests build for wasip1", || {
        run(&mut cargo(["test", "--no-run", "--package", CORE, "--lib", "--target", WASI]))
    });
    // One at a time: each starts an Envoy, engines and a host-shim, and some of them watch the clock.
    report.tests(
        "tests, real Envoy",
        environment.apply(&mut native_tests(&["--package", "e2e"], &[])).args(one_at_a_time()),
    );
    report.close()
}

pub(crate) fn lint(deny: bool) -> Result<()> {
    let mut report = Report::default();
    lints(&mut report);
    if deny {
        report.step("cargo-deny", || {
            run(Command::new(tools::cargo_deny()?).arg("check").current_dir(artifacts::root()))
        });
    }
    report.close()
}

fn lints(report: &mut Report) {
    report.step("fmt", || run(&mut cargo(["fmt", "--all", "--check"])));
    let clippy = |title: &str, args: &[&str], report: &mut Report| {
        report.step(title, || run(cargo(["clippy"]).args(args).args(["--", "--deny", "warnings"])));
    };
    clippy("clippy, native", &["--workspace", "--exclude", PLUGIN, "--all-targets"], report);
    clippy("clippy, wasip1", &["--package", PLUGIN, "--target", WASI], report);
    clippy("clippy, core in Node", &["--package", CORE, "--lib", "--tests", "--target", WEB], report);
}

/// cargo-nextest where it is installed, else cargo's own runner: both run the same tests.
fn native_tests(packages: &[&str], exclude: &[&str]) -> Command {
    let mut command = if nextest() {
        cargo(["nextest", "run", "--no-fail-fast"])
    } else {
        cargo(["test", "--no-fail-fast"])
    };
    command.args(["--lib", "--bins", "--tests"]).args(packages);
    for package in exclude {
        command.args(["--exclude", package]);
    }
    command
}

fn one_at_a_time() -> &'static [&'static str] {
    if nextest() { &["--test-threads", "1"] } else { &["--", "--test-threads", "1"] }
}

fn nextest() -> bool {
    available("cargo-nextest", &["nextest", "--version"])
}

/// What tests find through environment variables.
struct Environment(Vec<(&'static str, PathBuf)>);

impl Environment {
    fn prepare() -> Result<Environment> {
        let plugin = artifacts::plugin()?;
        artifacts::programs()?;
        Ok(Environment(vec![
            ("INFERENCE_CACHE_PLUGIN", plugin),
            ("INFERENCE_CACHE_ENVOY", tools::envoy()?),
            ("INFERENCE_CACHE_PYTHON", tools::python()?),
            ("INFERENCE_CACHE_TOKENIZERS", tools::tokenizers()?),
        ]))
    }

    fn apply<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        command.envs(self.0.iter().map(|(name, value)| (name, value)))
    }
}

/// The steps done so far.
#[derive(Default)]
struct Report(Vec<Step>);

struct Step {
    title: String,
    passed: bool,
    seconds: u64,
    closing: Vec<String>,
}

impl Report {
    fn step(&mut self, title: &str, work: impl FnOnce() -> Result<()>) {
        self.record(title, || work().map(|()| (true, Vec::new())));
    }

    fn tests(&mut self, title: &str, command: &mut Command) {
        self.record(title, || run_tests(command));
    }

    fn record(&mut self, title: &str, work: impl FnOnce() -> Result<(bool, Vec<String>)>) {
        println!("\n=== {title}");
        let began = Instant::now();
        let (passed, closing) = work().unwrap_or_else(|error| {
            eprintln!("error: {error:#}");
            (false, Vec::new())
        });
        self.0.push(Step { title: title.to_owned(), passed, seconds: began.elapsed().as_secs(), closing });
    }

    fn close(self) -> Result<()> {
        println!("\n=== summary");
        for step in &self.0 {
            println!(
                "{}  {:4} s  {}",
                if step.passed { "ok    " } else { "FAILED" },
                step.seconds,
                step.title
            );
            for line in &step.closing {
                println!("                  {line}");
            }
        }
        let failed = self.0.iter().filter(|step| !step.passed).count();
        if failed > 0 {
            bail!("{failed} of {} steps failed", self.0.len());
        }
        println!("all {} steps passed", self.0.len());
        Ok(())
    }
}
