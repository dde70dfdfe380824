//! `manifests/envoy/envoy.yaml` with ports and paths of one run.
//!
//! Only marked defaults are replaced, as exact strings that must occur exactly once: an edit of the manifest that
//! would make a replacement miss its place is an error, never a test of something else.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

/// What the tests change in the manifest.
#[derive(Debug, Clone)]
pub struct Settings {
    pub listener: u16,
    pub admin: u16,
    pub host_shim: u16,
    /// Ports of the replicas on 127.0.0.1.
    pub replicas: Vec<u16>,
    pub plugin: PathBuf,
    pub variant: Variant,
}

/// Which filter chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    /// As it stands: body mode.
    Body,
    /// Without `allow_on_headers_stop_iteration`: what a plain Istio WasmPlugin gives. The plugin must find out.
    FlagLeftOut,
    /// Without the plugin: plain least_request.
    NoPlugin,
}

/// Where the manifest lies in the repository.
pub fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests/envoy/envoy.yaml")
}

/// The configuration of one run.
pub fn render(settings: &Settings) -> Result<String> {
    let path = path();
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    substitute(&text, settings).with_context(|| format!("in {}", path.display()))
}

fn substitute(manifest: &str, settings: &Settings) -> Result<String> {
    let plugin = settings.plugin.to_str().context("the plugin's path is not UTF-8")?;
    ensure!(
        !plugin.contains(['"', ' ', '{', '}', '#', ',']),
        "the plugin's path {plugin} would need quotes in YAML"
    );
    let endpoints: String = settings
        .replicas
        .iter()
        .map(|port| {
            let address = format!("{{ address: 127.0.0.1, port_value: {port} }}");
            format!("        - endpoint: {{ address: {{ socket_address: {address} }} }}\n")
        })
        .collect();

    let mut text = manifest.to_owned();
    replace(&mut text, "port_value: 10000 ", &format!("port_value: {} ", settings.listener))?;
    replace(&mut text, "port_value: 9901 ", &format!("port_value: {} ", settings.admin))?;
    replace(&mut text, "port_value: 9090 ", &format!("port_value: {} ", settings.host_shim))?;
    replace_block(&mut text, "        # replicas: begin\n", "        # replicas: end\n", &endpoints)?;
    match settings.variant {
        Variant::NoPlugin => {
            let (begin, end) = ("          # inference-cache: begin\n", "          # inference-cache: end\n");
            replace_block(&mut text, begin, end, "")?;
            return Ok(text);
        }
        Variant::FlagLeftOut => {
            replace(&mut text, "                allow_on_headers_stop_iteration: true\n", "")?;
        }
        Variant::Body => {}
    }
    replace(&mut text, "filename: /etc/inference-cache/plugin.wasm ", &format!("filename: {plugin} "))?;
    replace(&mut text, "\"debugHeaders\": false\n", "\"debugHeaders\": true\n")?;
    Ok(text)
}

fn replace(text: &mut String, from: &str, to: &str) -> Result<()> {
    match text.matches(from).count() {
        1 => *text = text.replace(from, to),
        count => bail!("{from:?} occurs {count} times, expected once"),
    }
    Ok(())
}

/// Replaces what stands between two marker lines.
fn replace_block(text: &mut String, begin: &str, end: &str, with: &str) -> Result<()> {
    let first = text.find(begin).with_context(|| format!("marker {begin:?} is missing"))? + begin.len();
    let last = text.find(end).with_context(|| format!("marker {end:?} is missing"))?;
    ensure!(first <= last, "marker {end:?} stands before {begin:?}");
    text.replace_range(first..last, with);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(variant: Variant) -> Settings {
        let plugin = PathBuf::from("/tmp/p.wasm");
        Settings { listener: 1, admin: 2, host_shim: 3, replicas: vec![4, 5], plugin, variant }
    }

    #[test]
    fn every_marked_default_is_replaced() {
        let text = render(&settings(Variant::Body)).unwrap();
        for port in 1..=5 {
            assert_eq!(text.matches(&format!("port_value: {port} ")).count(), 1, "port {port}");
        }
        // The header of the file still names the defaults; nothing else does.
        let body = text.split_once("\nadmin:").unwrap().1;
        for default in
            ["port_value: 10000", "9901", "9090", "8000", "8002", "/etc/inference-cache/plugin.wasm"]
        {
            assert!(!body.contains(default), "{default} is still there");
        }
        assert!(body.contains("\"debugHeaders\": true"));
    }

    #[test]
    fn variants_differ_in_the_filter_only() {
        let flag = "allow_on_headers_stop_iteration: true";
        assert!(render(&settings(Variant::Body)).unwrap().contains(flag));
        let without = render(&settings(Variant::FlagLeftOut)).unwrap();
        assert!(!without.contains(flag) && without.contains("envoy.wasm.runtime.v8"));
        let plain = render(&settings(Variant::NoPlugin)).unwrap();
        assert!(!plain.contains("envoy.wasm.runtime.v8") && plain.contains("override_host"));
    }

    #[test]
    fn a_manifest_without_a_marker_is_refused() {
        let text = std::fs::read_to_string(path()).unwrap();
        for marker in ["port_value: 10000 ", "# replicas: end", "\"debugHeaders\": false"] {
            assert!(substitute(&text.replace(marker, ""), &settings(Variant::Body)).is_err(), "{marker}");
        }
    }
}
