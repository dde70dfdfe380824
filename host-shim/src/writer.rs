//! The writer: the one task that owns the index, the directory and the numbering of changes.
//!
//! Sources send it operations, gRPC streams ask it for a beginning, HTTP asks it for a view. Because everything passes
//! through one queue, a snapshot is the state at exactly its sequence number.

use crate::config::{Config, ReplicaConfig};
use crate::index::{Index, ReplicaId, ScopeId};
use crate::models::Model;
use crate::replication::{Change, Hub, Queue, Snapshot, wire_tier};
use inference_cache_core::hash::{self, BlockHash};
use inference_cache_core::ingest::Tier;
use inference_cache_core::replication::proto;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

/// Changes gather this long before they are sent.
const FLUSH_INTERVAL: Duration = Duration::from_millis(5);
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
const HISTORY_BYTES: usize = 64 << 20;
/// Entries that one sweep removes before others get their turn.
const SWEEP_SLICE: usize = 4096;
const QUEUE: usize = 256;

/// An operation of a source, owned.
#[derive(Debug)]
pub(crate) enum Operation {
    Stored { adapter: String, tier: Tier, block_size: u32, hashes: Vec<BlockHash> },
    Removed { adapter: String, hashes: Vec<BlockHash> },
    Cleared,
}

/// What the index holds, for people and metrics.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Epoch of the replication.
    pub epoch: u64,
    /// Sequence number of the state.
    pub seq: u64,
    /// Subscribers with an open stream.
    pub subscribers: usize,
    /// Storage entries, all replicas together.
    pub entries: usize,
    /// Entries that expired.
    pub expired: u64,
    /// Distinct keys by (tenant, model), all adapters together.
    pub keys: BTreeMap<(String, String), usize>,
    /// Storage entries by replica, in order of the configuration.
    pub replica_entries: Vec<usize>,
}

#[derive(Debug)]
enum Command {
    Operations(ReplicaId, Vec<Operation>),
    Subscribe { name: String, position: (u64, u64), reply: oneshot::Sender<Arc<Queue>> },
    View(oneshot::Sender<View>),
    Dump(oneshot::Sender<Dump>),
}

/// Every entry as (tenant, model, adapter, replica, hash): what a subscriber must end up with.
pub type Dump = Vec<(String, String, String, String, BlockHash)>;

/// The way to the writer. All methods return `None` (or do nothing) once it has stopped.
#[derive(Clone, Debug)]
pub(crate) struct WriterHandle {
    commands: mpsc::Sender<Command>,
}

impl WriterHandle {
    /// Applies operations in order; waits while the writer is behind.
    pub(crate) async fn apply(&self, replica: ReplicaId, operations: Vec<Operation>) {
        let _ = self.commands.send(Command::Operations(replica, operations)).await;
    }

    pub(crate) async fn subscribe(&self, name: String, position: (u64, u64)) -> Option<Arc<Queue>> {
        self.ask(|reply| Command::Subscribe { name, position, reply }).await
    }

    pub(crate) async fn view(&self) -> Option<View> {
        self.ask(Command::View).await
    }

    pub(crate) async fn dump(&self) -> Option<Dump> {
        self.ask(Command::Dump).await
    }

    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).await.ok()?;
        answer.await.ok()
    }
}

pub(crate) struct Writer {
    index: Index,
    hub: Hub,
    directory: Directory,
    started: Instant,
    expired: u64,
}

/// Everything but the entries.
struct Directory {
    replicas: Vec<ReplicaConfig>,
    models: Arc<[Model]>,
    /// By (tenant, model, adapter).
    scopes: BTreeMap<(String, String, String), ScopeId>,
    /// Newest block size of each replica.
    block_sizes: BTreeMap<ReplicaId, u32>,
    ttl_s: u32,
}

impl Writer {
    /// Starts the writer in the current runtime.
    pub(crate) fn start(
        config: &Config,
        models: Arc<[Model]>,
        epoch: u64,
        buffer_limit: usize,
        stop: CancellationToken,
    ) -> (WriterHandle, tokio::task::JoinHandle<()>) {
        let (commands, queue) = mpsc::channel(QUEUE);
        let ttl_s = u32::try_from(config.index.ttl.as_secs()).unwrap_or(u32::MAX);
        let writer = Writer {
            index: Index::new(ttl_s),
            hub: Hub::new(epoch, HISTORY_BYTES, buffer_limit),
            directory: Directory {
                replicas: config.replicas.clone(),
                models,
                scopes: BTreeMap::new(),
                block_sizes: BTreeMap::new(),
                ttl_s,
            },
            started: Instant::now(),
            expired: 0,
        };
        let task = tokio::spawn(writer.run(queue, config.index.sweep_interval, stop));
        (WriterHandle { commands }, task)
    }

    async fn run(mut self, mut queue: mpsc::Receiver<Command>, sweep: Duration, stop: CancellationToken) {
        let mut flush = interval(FLUSH_INTERVAL);
        let mut sweep = interval(sweep);
        flush.set_missed_tick_behavior(MissedTickBehavior::Delay);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last_sent = Instant::now();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                Some(command) = queue.recv() => self.command(command),
                _ = flush.tick() => {
                    if self.hub.flush() {
                        last_sent = Instant::now();
                    } else if last_sent.elapsed() >= HEARTBEAT_INTERVAL {
                        self.hub.heartbeat();
                        last_sent = Instant::now();
                    }
                }
                _ = sweep.tick() => {
                    if self.sweep() {
                        sweep.reset_after(FLUSH_INTERVAL);
                    }
                }
            }
        }
        self.hub.close();
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Operations(replica, operations) => {
                operations.into_iter().for_each(|operation| self.operation(replica, operation));
            }
            Command::Subscribe { name, position, reply } => {
                let now_s = self.now_s();
                let Writer { index, hub, directory, .. } = self;
                let queue = hub.subscribe(name, position, || Snapshot {
                    directory: directory.to_proto(),
                    blocks: snapshot_blocks(index, now_s),
                });
                let _ = reply.send(queue);
            }
            Command::View(reply) => drop(reply.send(self.view())),
            Command::Dump(reply) => drop(reply.send(self.dump())),
        }
    }

    fn operation(&mut self, replica: ReplicaId, operation: Operation) {
        let now_s = self.now_s();
        match operation {
            Operation::Stored { adapter, tier, block_size, hashes } => {
                let changed = self.directory.note_block_size(replica, block_size);
                let (scope, is_new) = self.directory.scope_of(replica, adapter);
                if changed || is_new {
                    self.hub.directory(self.directory.to_proto());
                }
                for hash in hashes {
                    if self.index.store(scope, replica, hash, tier, now_s) {
                        self.hub.change(Change::Stored { scope, replica, tier, hash });
                    }
                }
            }
            Operation::Removed { adapter, hashes } => {
                let (scope, _) = self.directory.scope_of(replica, adapter);
                for hash in hashes {
                    if self.index.remove(scope, replica, hash) {
                        self.hub.change(Change::Removed { scope, replica, hash });
                    }
                }
            }
            Operation::Cleared => {
                if self.index.clear(replica) {
                    self.hub.change(Change::Cleared { replica });
                }
            }
        }
    }

    /// Removes a slice of what has expired; whether more may be due.
    fn sweep(&mut self) -> bool {
        let now_s = self.now_s();
        let Writer { index, hub, expired, .. } = self;
        index.expire(now_s, SWEEP_SLICE, |scope, replica, hash| {
            *expired += 1;
            hub.change(Change::Removed { scope, replica, hash });
        })
    }

    fn view(&mut self) -> View {
        let mut keys = BTreeMap::new();
        for ((tenant, model, _), &scope) in &self.directory.scopes {
            *keys.entry((tenant.clone(), model.clone())).or_default() += self.index.scope_keys(scope);
        }
        let ids = 1..=self.directory.replicas.len() as ReplicaId;
        View {
            epoch: self.hub.epoch(),
            seq: self.hub.seq(),
            subscribers: self.hub.subscribers(),
            entries: self.index.entries(),
            expired: self.expired,
            keys,
            replica_entries: ids.map(|id| self.index.replica_entries(id)).collect(),
        }
    }

    fn dump(&self) -> Dump {
        let mut dump = Dump::new();
        for (scope, replica, table) in self.index.tables() {
            let names = self.directory.scopes.iter().find(|(_, id)| **id == scope).map(|(names, _)| names);
            let replica = self.directory.replica(replica).map(|replica| replica.id.clone());
            let (Some((tenant, model, adapter)), Some(replica)) = (names, replica) else { continue };
            dump.extend(
                table
                    .keys()
                    .map(|&hash| (tenant.clone(), model.clone(), adapter.clone(), replica.clone(), hash)),
            );
        }
        dump.sort();
        dump
    }

    fn now_s(&self) -> u32 {
        u32::try_from(self.started.elapsed().as_secs()).unwrap_or(u32::MAX)
    }
}

impl Directory {
    fn replica(&self, id: ReplicaId) -> Option<&ReplicaConfig> {
        self.replicas.get((id as usize).checked_sub(1)?)
    }

    /// The scope of a replica's adapter, and whether it was made just now.
    fn scope_of(&mut self, replica: ReplicaId, adapter: String) -> (ScopeId, bool) {
        let (tenant, model) = self
            .replica(replica)
            .map(|replica| (replica.tenant.clone(), replica.model.clone()))
            .unwrap_or_default();
        let next = self.scopes.len() as ScopeId + 1;
        let id = *self.scopes.entry((tenant, model, adapter)).or_insert(next);
        (id, id == next)
    }

    fn note_block_size(&mut self, replica: ReplicaId, tokens: u32) -> bool {
        self.block_sizes.insert(replica, tokens) != Some(tokens)
    }

    fn to_proto(&self) -> proto::Directory {
        let replicas = (1..).zip(&self.replicas).map(|(id, replica)| proto::Replica {
            id,
            name: replica.id.clone(),
            address: replica.address.to_string(),
            tenant: replica.tenant.clone(),
            model: replica.model.clone(),
            adapters: replica.adapters.clone(),
            ..Default::default()
        });
        let scopes = self.scopes.iter().map(|((tenant, model, adapter), &id)| proto::Scope {
            id,
            tenant: tenant.clone(),
            model: model.clone(),
            hash_scheme: hash::SCHEME.to_owned(),
            adapter: adapter.clone(),
        });
        let models = self.models.iter().map(|model| proto::Model {
            name: model.name.clone(),
            artifact_digest: model.digest.to_vec(),
            artifact_size: model.artifact.len() as u64,
            block_sizes: self.block_sizes_of(&model.name),
            ..Default::default()
        });
        proto::Directory {
            replicas: replicas.collect(),
            scopes: scopes.collect(),
            models: models.collect(),
            ttl_s: self.ttl_s,
        }
    }

    /// Without repeats, most common first.
    fn block_sizes_of(&self, model: &str) -> Vec<u32> {
        let mut counts = BTreeMap::<u32, usize>::new();
        for (&id, &tokens) in &self.block_sizes {
            if self.replica(id).is_some_and(|replica| replica.model == model) {
                *counts.entry(tokens).or_default() += 1;
            }
        }
        let mut sizes: Vec<_> = counts.into_iter().collect();
        sizes.sort_by_key(|&(tokens, count)| (std::cmp::Reverse(count), tokens));
        sizes.into_iter().map(|(tokens, _)| tokens).collect()
    }
}

/// All entries; those of one table that share tier and age (to a 16th of a minute) go together.
fn snapshot_blocks(index: &Index, now_s: u32) -> Vec<proto::Blocks> {
    const AGE_STEP_S: u32 = 4;
    let mut all = Vec::new();
    for (scope, replica, table) in index.tables() {
        let mut groups = BTreeMap::<(i32, u32), Vec<u64>>::new();
        for (hash, entry) in table {
            let age_s = now_s.saturating_sub(entry.last_seen_s).next_multiple_of(AGE_STEP_S);
            groups.entry((wire_tier(entry.tier), age_s)).or_default().push(hash.0);
        }
        all.extend(groups.into_iter().map(|((tier, age_s), hashes)| proto::Blocks {
            scope,
            replica,
            tier,
            age_s,
            hashes,
        }));
    }
    all
}
