//! What is known of each source, for metrics and `/snapshot`.

use inference_cache_core::ingest::{State, Stats};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

/// One source.
#[derive(Clone, Debug)]
pub struct SourceStatus {
    /// Name of its replica.
    pub replica: String,
    /// Whether a publisher is connected.
    pub connected: bool,
    /// How well it is known.
    pub state: State,
    /// Engine processes seen.
    pub epoch: u64,
    /// Last batch applied.
    pub last_seq: Option<u64>,
    /// Distinct blocks held by the engine.
    pub blocks: usize,
    /// Blocks that wait for their parent.
    pub waiting_blocks: usize,
    /// Messages dropped because the queue behind the receive task was full.
    pub shed: u64,
    /// Seconds from the engine's clock at publishing to the application, of the last live batch.
    pub lag_s: Option<f64>,
    /// When the last batch came.
    pub last_event_at: Option<SystemTime>,
    /// Counters.
    pub stats: Stats,
}

/// The newest status of each source, in order of the configuration.
#[derive(Clone, Debug)]
pub struct Statuses(Arc<Mutex<Vec<SourceStatus>>>);

impl Statuses {
    pub(crate) fn new(replicas: impl Iterator<Item = String>) -> Statuses {
        let statuses = replicas.map(|replica| SourceStatus {
            replica,
            connected: false,
            state: State::Gap,
            epoch: 1,
            last_seq: None,
            blocks: 0,
            waiting_blocks: 0,
            shed: 0,
            lag_s: None,
            last_event_at: None,
            stats: Stats::default(),
        });
        Statuses(Arc::new(Mutex::new(statuses.collect())))
    }

    /// All of them.
    pub fn all(&self) -> Vec<SourceStatus> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn update(&self, at: usize, change: impl FnOnce(&mut SourceStatus)) {
        if let Some(status) = self.0.lock().unwrap_or_else(PoisonError::into_inner).get_mut(at) {
            change(status);
        }
    }
}
