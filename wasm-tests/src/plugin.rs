//! Finds the plugin under test: `INFERENCE_CACHE_PLUGIN` names it, or it is built here, once per test process.
//!
//! No test passes without it: what cannot be built panics.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The plugin's bytes.
///
/// # Panics
/// If there is none and it cannot be built.
pub fn plugin_wasm() -> &'static [u8] {
    static WASM: OnceLock<Vec<u8>> = OnceLock::new();
    WASM.get_or_init(|| {
        let path = match std::env::var_os("INFERENCE_CACHE_PLUGIN") {
            Some(path) => PathBuf::from(path),
            None => build(),
        };
        std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    })
}

fn build() -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace.join("target"), PathBuf::from);
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .current_dir(&workspace)
        .args(["build", "--quiet", "-p", "inference-cache-plugin", "--target", "wasm32-wasip1"])
        .args(["--profile", "wasm", "--target-dir"])
        .arg(&target)
        .status()
        .expect("cargo runs");
    assert!(status.success(), "the plugin does not build");
    target.join("wasm32-wasip1/wasm/inference_cache_plugin.wasm")
}
