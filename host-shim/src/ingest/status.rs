//! What is known of each source, for metrics and `/snapshot`.

use crate::index::ReplicaId;
use inference_cache_core::ingest::{HashReport, State, Stats};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

/// One source: the event stream of one data-parallel rank of a replica.
#[derive(Clone, Debug)]
pub struct SourceStatus {
    /// Id of its holder in the directory.
    pub id: ReplicaId,
    /// Name of its replica.
    pub replica: String,
    /// Its data-parallel rank.
    pub rank: u32,
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
    /// Times that the publisher was away for so long that it counted as lost.
    pub losses: u64,
    /// Seconds from the engine's clock at publishing to the application, of the last live batch.
    pub lag_s: Option<f64>,
    /// When the last batch came.
    pub last_event_at: Option<SystemTime>,
    /// Why it cannot help, as far as is known: bounded labels.
    pub warnings: BTreeSet<&'static str>,
    /// Whether the engine's own hashes can be recomputed.
    pub engine_hashes: HashReport,
    /// Counters.
    pub stats: Stats,
}

/// The newest status of each source, by id.
#[derive(Clone, Debug, Default)]
pub struct Statuses(Arc<Mutex<BTreeMap<ReplicaId, SourceStatus>>>);

impl Statuses {
    /// All of them, in the order in which they came.
    pub fn all(&self) -> Vec<SourceStatus> {
        self.lock().values().cloned().collect()
    }

    /// A source appears.
    pub(crate) fn add(&self, id: ReplicaId, replica: String, rank: u32) {
        let status = SourceStatus {
            id,
            replica,
            rank,
            connected: false,
            state: State::Gap,
            epoch: 1,
            last_seq: None,
            blocks: 0,
            waiting_blocks: 0,
            shed: 0,
            losses: 0,
            lag_s: None,
            last_event_at: None,
            warnings: BTreeSet::new(),
            engine_hashes: HashReport::default(),
            stats: Stats::default(),
        };
        self.lock().insert(id, status);
    }

    /// A source has gone.
    pub(crate) fn remove(&self, id: ReplicaId) {
        self.lock().remove(&id);
    }

    pub(crate) fn update(&self, id: ReplicaId, change: impl FnOnce(&mut SourceStatus)) {
        if let Some(status) = self.lock().get_mut(&id) {
            change(status);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ReplicaId, SourceStatus>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
