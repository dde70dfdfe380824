//! `cargo xtask bench request`: the time of each stage of a decision (parse, render, tokenize, hash, look up, pick) in
//! wasm, for chats of 2, 16 and 128 KB.
//!
//! Builds `plugin/examples/stages.rs` with the plugin's own profile and runs it in Node's WASI: V8 is the engine that
//! Envoy runs plugins in. `--json FILE` also writes the figures there.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

/// Runs a WASI command with one argument, a file in the folder that the guest sees as `/model`.
const RUNNER: &str = r"
const { WASI } = require('node:wasi');
const fs = require('node:fs');
const [wasm, folder] = process.argv.slice(1);
const wasi = new WASI({ version: 'preview1', args: ['stages', '/model/model.icart'], preopens: { '/model': folder } });
WebAssembly.instantiate(fs.readFileSync(wasm), wasi.getImportObject()).then(({ instance }) => {
  process.exitCode = wasi.start(instance);
});
";

struct Figure {
    name: String,
    value: f64,
    unit: String,
}

fn main() -> Result<()> {
    let json = json_argument()?;
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folder = std::env::temp_dir().join(format!("inference-cache-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let model = host_shim::tokenizer::compile(&workspace.join("models/demo")).context("models/demo")?;
    std::fs::write(folder.join("model.icart"), model)?;
    let figures = build(&workspace).and_then(|wasm| run(&wasm, &folder));
    std::fs::remove_dir_all(&folder)?;
    let figures = figures?;
    print(&figures);
    if let Some(path) = json {
        let figures: Vec<_> = figures
            .iter()
            .map(
                |figure| serde_json::json!({"name": figure.name, "value": figure.value, "unit": figure.unit}),
            )
            .collect();
        let text = serde_json::json!({"bench": "request", "figures": figures}).to_string();
        std::fs::write(&path, text).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

fn json_argument() -> Result<Option<PathBuf>> {
    let mut arguments = std::env::args_os().skip(1);
    match (arguments.next(), arguments.next(), arguments.next()) {
        (None, ..) => Ok(None),
        (Some(flag), Some(path), None) if flag == "--json" => Ok(Some(path.into())),
        _ => bail!("usage: bench_request [--json FILE]"),
    }
}

fn build(workspace: &Path) -> Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace.join("target"), PathBuf::from);
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .current_dir(workspace)
        .args(["build", "--quiet", "-p", "inference-cache-plugin", "--example", "stages"])
        .args(["--target", "wasm32-wasip1", "--profile", "wasm", "--target-dir"])
        .arg(&target)
        .status()
        .context("cargo")?;
    ensure!(status.success(), "the stages do not build");
    Ok(target.join("wasm32-wasip1/wasm/examples/stages.wasm"))
}

fn run(wasm: &Path, folder: &Path) -> Result<Vec<Figure>> {
    let output = Command::new("node")
        .args(["--no-warnings", "-e", RUNNER])
        .args([wasm, folder])
        .stderr(std::process::Stdio::inherit())
        .output()
        .context("node, which the benchmark runs in")?;
    ensure!(output.status.success(), "the stages fail: {}", output.status);
    String::from_utf8(output.stdout)?.lines().map(parse).collect()
}

fn parse(line: &str) -> Result<Figure> {
    match line.split_whitespace().collect::<Vec<_>>()[..] {
        [name, value, unit] => {
            Ok(Figure { name: name.to_owned(), value: value.parse()?, unit: unit.to_owned() })
        }
        _ => bail!("not a figure: {line:?}"),
    }
}

/// The program's output is its purpose.
#[allow(clippy::print_stdout)]
fn print(figures: &[Figure]) {
    println!(
        "stages of a decision in wasm (V8), medians; 3 of 8 replicas hold the whole chat, 200,000 other entries"
    );
    for Figure { name, value, unit } in figures {
        println!("{name:>16} {value:>12.3} {unit}");
    }
}
