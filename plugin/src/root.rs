//! A root context: one plugin configuration in one VM.

use std::rc::Rc;

use crate::config::{Config, ModeSetting};
use crate::host::{self, Level};
use crate::metrics::{self, Metrics};
use crate::mode::{Detector, Plan, Verdict};

/// Ticks each so many milliseconds: what a held request waits for, and the safety net of replication.
pub const TICK_MS: u32 = 20;

const REREAD_MS: u64 = 1_000;

/// See the module.
#[derive(Debug)]
pub struct Root {
    /// The configuration.
    pub config: Rc<Config>,
    detector: Detector,
    /// Where VMs of the process tell each other their verdict.
    verdict_key: String,
    reread_at: u64,
}

impl Root {
    /// A root context with a checked configuration.
    pub fn new(config: Config) -> Root {
        let detector = match config.mode {
            ModeSetting::Auto => Detector::detecting(),
            ModeSetting::Body => Detector::fixed(Verdict::Body),
            ModeSetting::Header => Detector::fixed(Verdict::Header { probe_at: u64::MAX, interval: 0 }),
        };
        let verdict_key = format!("inference-cache/1/mode/{:016x}", config.digest);
        Root { config: Rc::new(config), detector, verdict_key, reread_at: 0 }
    }

    /// How to treat a request with a body.
    pub fn plan(&mut self, now: u64) -> Plan {
        if self.detector.verdict() == Verdict::Unknown {
            self.reread();
        }
        match self.detector.plan(now) {
            Plan::Probe => self.claim_probe(now),
            plan => plan,
        }
    }

    /// A request is held; false: it must not be.
    pub fn held(&mut self, request: u32, now: u64) -> bool {
        self.detector.held(request, now)
    }

    /// A held request got a body callback.
    pub fn body_came(&mut self, metrics: &mut Metrics) {
        if self.detector.body_came() {
            metrics.count(metrics::MODE_CHANGES, "body");
            host::log(Level::Info, "inference-cache: body mode: held requests get their bodies");
            self.publish();
        }
    }

    /// A request is gone or was decided otherwise.
    pub fn forget(&mut self, request: u32) {
        self.detector.forget(request);
    }

    /// The held requests to let go now.
    pub fn tick(&mut self, metrics: &mut Metrics, now: u64) -> Vec<u32> {
        let first = self.detector.verdict() == Verdict::Unknown;
        let requests = self.detector.tick(now);
        if !requests.is_empty() {
            self.publish();
            if first {
                metrics.count(metrics::MODE_CHANGES, "header");
                host::log(Level::Warn, HEADER_MODE);
            }
        } else if now >= self.reread_at && matches!(self.detector.verdict(), Verdict::Header { .. }) {
            self.reread_at = now.saturating_add(REREAD_MS);
            self.reread();
        }
        requests
    }

    fn reread(&mut self) {
        if self.detector.is_detecting()
            && let Ok(Some((value, _))) = host::shared_data(&self.verdict_key)
        {
            self.detector.adopt(Verdict::decode(&value));
        }
    }

    fn publish(&self) {
        if !self.detector.is_detecting() {
            return;
        }
        let cas = match host::shared_data(&self.verdict_key) {
            Ok(Some((_, cas))) => cas,
            Ok(None) | Err(_) => host::CREATE,
        };
        // Another VM that writes at the same time has just found out as well.
        let _ = host::set_shared_data(&self.verdict_key, &self.detector.verdict().encode(), cas);
    }

    /// One VM of the process probes at a time.
    fn claim_probe(&mut self, now: u64) -> Plan {
        let cas = match host::shared_data(&self.verdict_key) {
            Ok(Some((value, cas))) => {
                self.detector.adopt(Verdict::decode(&value));
                cas
            }
            Ok(None) | Err(_) => host::CREATE,
        };
        let plan = self.detector.plan(now);
        if plan != Plan::Probe {
            return plan;
        }
        let claimed = self.detector.verdict().probe_claimed(now).encode();
        match host::set_shared_data(&self.verdict_key, &claimed, cas) {
            Err(host::Status::CasMismatch) => Plan::HeadersOnly,
            Ok(()) | Err(_) => Plan::Probe,
        }
    }
}

const HEADER_MODE: &str = "inference-cache: header mode: a held request got no body callback. The proxy lacks \
    allow_on_headers_stop_iteration (or the first client was slow; this is tried again). Hints now come from headers only";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn works_without_shared_data() {
        let config = Config::parse(br#"{"hostShim": {"cluster": "c"}}"#).expect("valid");
        let (mut root, mut metrics) = (Root::new(config), Metrics::default());
        assert_eq!(root.plan(0), Plan::Hold);
        assert!(root.held(1, 0));
        assert_eq!(root.tick(&mut metrics, 60), [1]);
        assert_eq!(root.plan(100), Plan::HeadersOnly);
        assert_eq!(root.plan(31_000), Plan::Probe);
        root.held(2, 31_000);
        root.body_came(&mut metrics);
        assert_eq!(root.plan(31_001), Plan::Hold);
    }
}
