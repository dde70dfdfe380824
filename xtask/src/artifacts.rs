//! What is built from the workspace: where it lies and how it comes to be.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::process::{cargo, run};

/// The repository's root.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or_else(|| Path::new("."))
}

/// Cargo's target directory.
pub(crate) fn target() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    root().join(target)
}

/// Builds the plugin and copies it to a path that does not depend on target and profile.
pub(crate) fn plugin() -> Result<PathBuf> {
    let package = "inference-cache-plugin";
    run(&mut cargo(["build", "--target", "wasm32-wasip1", "--profile", "wasm", "--package", package]))?;
    let built = target().join("wasm32-wasip1/wasm/inference_cache_plugin.wasm");
    let stable = target().join("inference_cache_plugin.wasm");
    // Beside and renamed: an Envoy that is just starting never reads half a module.
    let beside = target().join(format!(".inference_cache_plugin.{}.wasm", std::process::id()));
    std::fs::copy(&built, &beside)
        .and_then(|_| std::fs::rename(&beside, &stable))
        .with_context(|| format!("cannot copy {} to {}", built.display(), stable.display()))?;
    Ok(stable)
}

/// Builds the native programs that the real-Envoy tests, the demo and `e2e-vllm` start. They find each other by lying
/// in one directory.
pub(crate) fn programs() -> Result<()> {
    let packages = ["--package", "host-shim", "--package", "engine-sim", "--package", "e2e"];
    run(cargo(["build", "--bins"]).args(packages))
}

/// A program built by [`programs`].
pub(crate) fn program(name: &str) -> PathBuf {
    target().join("debug").join(name)
}
