//! Follows one host-shim: the replication stream, the artifact stream, the slices of work between requests.
//!
//! A source belongs to the VM and outlives configurations; streams, queues and ticks belong to a root context, so one
//! root context drives it until that one is deleted. Callbacks only copy bytes: many arrive in one turn of the event
//! loop, and applying them there would be the requests' tail latency. Applying happens in slices of about 1 ms, each
//! started by the tick or by the source's own queue. Nothing is opened before the first tick: the proxy's short-lived
//! canary VM must leave no trace.

use inference_cache_core::gateway::{Gateway, Settings};
use inference_cache_core::replication::Progress;

use crate::config::Config;
use crate::host::{self, Buffer, Level};
use crate::link::{Jitter, Link, grpc_service};
use crate::metrics::{self, Metrics};
use crate::vm::Now;
use crate::wake::Wake;

const SERVICE: &str = "inferencecache.replication.v1.Replication";
/// The server sends at least a heartbeat each second.
const REPLICATION_SILENCE_MS: u64 = 5_000;
const ARTIFACT_SILENCE_MS: u64 = 10_000;
const HOUSEKEEPING_MS: u64 = 1_000;
/// A slice ends after so long.
const SLICE_US: u64 = 1_000;
/// Entries between two looks at the clock.
const STEP_ENTRIES: usize = 1_024;
/// Steps of a slice at most, should the clock stand still.
const SLICE_STEPS: usize = 256;

/// See the module.
#[derive(Debug)]
pub struct Source {
    /// What is replicated, and the decisions it allows.
    pub gateway: Gateway,
    upstream: Vec<u8>,
    subscriber: Option<String>,
    driver: Option<u32>,
    replication: Link,
    artifacts: Link,
    wake: Wake,
    jitter: Jitter,
    housekeeping_at: u64,
    /// Whether the log last said that the stream works.
    said_connected: bool,
}

impl Source {
    /// Knows nothing, follows nobody yet.
    pub fn new(config: &Config, nonce: u64) -> Source {
        let Config { host_shim, gateway, .. } = config;
        let settings: Settings = gateway.clone();
        Source {
            gateway: Gateway::new(settings),
            upstream: grpc_service(&host_shim.cluster, &host_shim.authority),
            subscriber: None,
            driver: None,
            replication: Link::new(REPLICATION_SILENCE_MS),
            artifacts: Link::new(ARTIFACT_SILENCE_MS),
            wake: Wake::new(nonce),
            jitter: Jitter::new(nonce),
            housekeeping_at: 0,
            said_connected: false,
        }
    }

    /// The root context is deleted; if it drove, its streams and its queue went with it.
    pub fn root_deleted(&mut self, root: u32, now: Now) {
        if self.driver != Some(root) {
            return;
        }
        self.driver = None;
        self.wake = Wake::new(self.jitter.draw());
        if self.replication.token().is_some() {
            self.gateway.stream_closed();
            self.replication.finished(now.ms);
        }
        if self.artifacts.token().is_some() {
            let _ = self.gateway.artifact_end(false);
            self.artifacts.finished(now.ms);
        }
    }

    /// The tick of a root context. The first one to tick drives.
    pub fn tick(&mut self, root: u32, metrics: &mut Metrics, now: Now) {
        if *self.driver.get_or_insert(root) != root {
            return;
        }
        self.wake.tick(now.ms);
        self.follow(metrics, now);
        self.work(metrics, now);
        self.fetch(metrics, now);
        if now.ms >= self.housekeeping_at {
            self.housekeeping_at = now.ms.saturating_add(HOUSEKEEPING_MS);
            self.gateway.expire(now.unix_ms);
            self.report(metrics);
        }
    }

    /// A queue has an entry: the next slice of work, if it is ours.
    pub fn queue_ready(&mut self, queue: u32, metrics: &mut Metrics, now: Now) {
        if self.wake.woken(queue) {
            self.work(metrics, now);
            self.fetch(metrics, now);
        }
    }

    /// A message of a stream of ours is there. False if the stream is not.
    pub fn message(&mut self, token: u32, size: usize, metrics: &mut Metrics, now: Now) -> bool {
        if self.replication.is(token) {
            self.replication.heard(now.ms);
            let taken = match host::buffer(Buffer::GrpcMessage, size) {
                Ok(bytes) => self.gateway.frame(bytes).map_err(|error| error.reason()),
                Err(_) => Err("unreadable_message"),
            };
            match taken {
                Ok(()) => {
                    self.wake.wake();
                }
                Err(cause) => self.drop_replication(cause, metrics, now),
            }
            true
        } else if self.artifacts.is(token) {
            self.artifacts.heard(now.ms);
            let taken = match host::buffer(Buffer::GrpcMessage, size) {
                Ok(bytes) => self.gateway.artifact_chunk(&bytes).map_err(|error| error.reason()),
                Err(_) => Err("unreadable_message"),
            };
            if let Err(cause) = taken {
                self.drop_artifact(cause, metrics, now);
            }
            true
        } else {
            false
        }
    }

    /// A stream of ours was closed by the other side. False if the stream is not.
    pub fn closed(&mut self, token: u32, status: u32, metrics: &mut Metrics, now: Now) -> bool {
        if self.replication.is(token) {
            self.lost_replication(close_cause(status), metrics, now);
            true
        } else if self.artifacts.is(token) {
            match self.gateway.artifact_end(status == 0) {
                Ok(()) if status == 0 => {
                    self.artifacts.finished(now.ms);
                    self.wake.wake();
                }
                Ok(()) => self.lost_artifact(close_cause(status), metrics, now),
                Err(error) => self.lost_artifact(error.reason(), metrics, now),
            }
            true
        } else {
            false
        }
    }

    fn follow(&mut self, metrics: &mut Metrics, now: Now) {
        if self.replication.is_dead(now.ms) {
            self.drop_replication("silent", metrics, now);
        }
        if !self.replication.is_due(now.ms) {
            return;
        }
        let subscriber = self.subscriber.get_or_insert_with(|| subscriber_name(self.jitter.draw()));
        let request = self.gateway.subscribe_request(subscriber);
        match open(&self.upstream, "Subscribe", &request) {
            Ok(token) => {
                metrics.count(metrics::STREAM_OPENS, "replication");
                self.replication.opened(token, now.ms);
            }
            Err(cause) => self.lost_replication(cause, metrics, now),
        }
    }

    /// One slice.
    fn work(&mut self, metrics: &mut Metrics, now: Now) {
        let start = host::monotonic_us();
        for _ in 0..SLICE_STEPS {
            match self.gateway.work(STEP_ENTRIES, now.unix_ms) {
                Ok(Progress::Idle) => return self.caught_up(),
                Ok(Progress::More) => {}
                Err(error) => return self.drop_replication(error.reason(), metrics, now),
            }
            let elapsed = host::monotonic_us().zip(start).map(|(now, start)| now.saturating_sub(start));
            if elapsed.is_none_or(|elapsed| elapsed >= SLICE_US) {
                break;
            }
        }
        self.wake.wake();
    }

    /// Everything that came was good and is applied.
    fn caught_up(&mut self) {
        if self.replication.token().is_none() || self.gateway.summary().position.epoch == 0 {
            return;
        }
        self.replication.proved();
        if !self.said_connected {
            self.said_connected = true;
            host::log(Level::Info, "inference-cache: following host-shim");
        }
    }

    fn fetch(&mut self, metrics: &mut Metrics, now: Now) {
        if self.artifacts.is_dead(now.ms) {
            self.drop_artifact("artifact_silent", metrics, now);
        }
        if !self.artifacts.is_due(now.ms) {
            return;
        }
        let Some(digest) = self.gateway.wanted_artifact() else { return };
        let request = self.gateway.fetch_request(&digest);
        match open(&self.upstream, "FetchArtifact", &request) {
            Ok(token) => {
                metrics.count(metrics::STREAM_OPENS, "artifact");
                self.artifacts.opened(token, now.ms);
            }
            Err(cause) => {
                let _ = self.gateway.artifact_end(false);
                self.lost_artifact(cause, metrics, now);
            }
        }
    }

    fn report(&self, metrics: &mut Metrics) {
        let summary = self.gateway.summary();
        metrics.set(metrics::REPLICA_ENTRIES, summary.entries as u64);
        metrics.set(metrics::MODELS_LOADED, summary.models as u64);
        metrics.set(metrics::READY, u64::from(summary.position.epoch != 0));
    }

    fn drop_replication(&mut self, cause: &'static str, metrics: &mut Metrics, now: Now) {
        if let Some(token) = self.replication.token() {
            cancel(token, metrics);
        }
        self.lost_replication(cause, metrics, now);
    }

    fn lost_replication(&mut self, cause: &'static str, metrics: &mut Metrics, now: Now) {
        metrics.count(metrics::REPLICATION_ERRORS, cause);
        self.gateway.stream_closed();
        self.replication.failed(now.ms, self.jitter.draw());
        if std::mem::take(&mut self.said_connected) {
            let held = "routing goes on with what is held";
            host::log(Level::Warn, &format!("inference-cache: lost host-shim ({cause}); {held}"));
        }
    }

    fn drop_artifact(&mut self, cause: &'static str, metrics: &mut Metrics, now: Now) {
        if let Some(token) = self.artifacts.token() {
            cancel(token, metrics);
        }
        let _ = self.gateway.artifact_end(false);
        self.lost_artifact(cause, metrics, now);
    }

    fn lost_artifact(&mut self, cause: &'static str, metrics: &mut Metrics, now: Now) {
        metrics.count(metrics::REPLICATION_ERRORS, cause);
        self.artifacts.failed(now.ms, self.jitter.draw());
    }
}

fn open(upstream: &[u8], method: &str, request: &[u8]) -> Result<u32, &'static str> {
    let token = host::open_grpc_stream(upstream, SERVICE, method).map_err(|_| "open_failed")?;
    if host::send_last_grpc_message(token, request).is_err() {
        let _ = host::cancel_grpc_stream(token);
        return Err("send_failed");
    }
    Ok(token)
}

fn cancel(token: u32, metrics: &mut Metrics) {
    if host::cancel_grpc_stream(token).is_err() {
        metrics.count(metrics::HOSTCALL_ERRORS, "grpc_cancel");
    }
}

/// Unique per VM: a newer stream of the same name supersedes the older one.
fn subscriber_name(nonce: u64) -> String {
    let node = host::property(b"xds\0node\0id").ok().flatten().unwrap_or_default();
    let node: String =
        node.iter().filter(|byte| byte.is_ascii_graphic()).take(64).map(|&b| b as char).collect();
    format!("{node}/{nonce:016x}")
}

fn close_cause(status: u32) -> &'static str {
    match status {
        0 => "stream_ended",
        5 => "not_found",
        8 => "cut_as_slow",
        13 => "stream_reset",
        14 => "unavailable",
        _ => "stream_error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_host_it_retries_and_lives() {
        let config = Config::parse(br#"{"hostShim": {"cluster": "c"}}"#).expect("valid");
        let mut source = Source::new(&config, 7);
        let mut metrics = Metrics::default();
        for ms in (0..60_000).step_by(20) {
            source.tick(1, &mut metrics, Now { ms, unix_ms: ms });
        }
        assert!(!source.message(1, 1, &mut metrics, Now { ms: 0, unix_ms: 0 }));
        source.root_deleted(1, Now { ms: 0, unix_ms: 0 });
    }
}
