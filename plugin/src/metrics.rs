//! Counters and gauges, defined when first used and then known by id.
//!
//! A metric is a family and at most one label whose values are bounded (`&'static str`): `FAMILY.KEY.VALUE`, which the
//! proxy's `stats_tags` turn into a tag. Envoy prefixes `wasmcustom.`. Metrics are shared by all VMs of the process.
//! A metric that cannot be defined is left out: nothing on the request path depends on it.

use hashbrown::HashMap;

use crate::host::{self, Metric};

/// Requests by reason code.
pub const REQUESTS: Family = Family::labelled("inference_cache_requests_total", "reason");
/// Requests that got no hint, by cause.
pub const NO_HINT: Family = Family::labelled("inference_cache_no_hint_total", "cause");
/// Requests by the mode that decided them.
pub const MODE: Family = Family::labelled("inference_cache_mode_total", "mode");
/// Verdicts of the mode detector.
pub const MODE_CHANGES: Family = Family::labelled("inference_cache_mode_changes_total", "mode");
/// Tokens that the chosen replicas were predicted to hold.
pub const MATCHED_TOKENS: Family = Family::plain("inference_cache_matched_tokens_total");
/// What went wrong on the replication and artifact streams.
pub const REPLICATION_ERRORS: Family = Family::labelled("inference_cache_replication_errors_total", "cause");
/// Streams opened, by kind.
pub const STREAM_OPENS: Family = Family::labelled("inference_cache_stream_opens_total", "stream");
/// Hostcalls that failed where the plugin could only go on, by what they were for.
pub const HOSTCALL_ERRORS: Family = Family::labelled("inference_cache_hostcall_errors_total", "call");
/// Storage entries of this VM's replica of the index (the VM that wrote last).
pub const REPLICA_ENTRIES: Family = Family::plain("inference_cache_replica_entries");
/// Models whose artifact is loaded.
pub const MODELS_LOADED: Family = Family::plain("inference_cache_models_loaded");
/// 1 when a snapshot has been applied.
pub const READY: Family = Family::plain("inference_cache_ready");

/// A metric name with at most one label key.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    name: &'static str,
    key: &'static str,
}

impl Family {
    const fn plain(name: &'static str) -> Family {
        Family { name, key: "" }
    }

    const fn labelled(name: &'static str, key: &'static str) -> Family {
        Family { name, key }
    }
}

/// Ids of the metrics defined so far.
#[derive(Debug, Default)]
pub struct Metrics {
    ids: HashMap<(&'static str, &'static str), u32>,
}

impl Metrics {
    /// Adds one to a labelled counter; an empty label reads `other`.
    pub fn count(&mut self, family: Family, label: &'static str) {
        self.add(family, if label.is_empty() { "other" } else { label }, 1);
    }

    /// Adds to a counter without label.
    pub fn count_by(&mut self, family: Family, by: u64) {
        self.add(family, "", by);
    }

    /// Sets a gauge.
    pub fn set(&mut self, family: Family, value: u64) {
        if let Some(id) = self.id(Metric::Gauge, family, "") {
            let _ = host::record_metric(id, value);
        }
    }

    fn add(&mut self, family: Family, label: &'static str, by: u64) {
        if by > 0
            && let Some(id) = self.id(Metric::Counter, family, label)
        {
            let _ = host::increment_metric(id, by);
        }
    }

    fn id(&mut self, kind: Metric, family: Family, label: &'static str) -> Option<u32> {
        if let Some(id) = self.ids.get(&(family.name, label)) {
            return Some(*id);
        }
        let id = host::define_metric(kind, &full_name(family, label)).ok()?;
        if self.ids.try_reserve(1).is_ok() {
            self.ids.insert((family.name, label), id);
        }
        Some(id)
    }
}

fn full_name(family: Family, label: &str) -> String {
    if label.is_empty() { family.name.to_owned() } else { format!("{}.{}.{label}", family.name, family.key) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_carry_key_and_label() {
        assert_eq!(full_name(REQUESTS, "NO_HINT"), "inference_cache_requests_total.reason.NO_HINT");
        assert_eq!(full_name(READY, ""), "inference_cache_ready");
    }
}
