//! The writer: the one task that owns the index, the directory and the numbering of changes.
//!
//! Sources send it operations, gRPC streams ask it for a beginning, HTTP asks it for a view. Because everything passes
//! through one queue, a snapshot is the state at exactly its sequence number.
//!
//! Operations name their holder by its id. Those of a holder that was retired come too late and are dropped: an id is
//! never given again, so they cannot bring entries back.

mod entries;
mod reports;

pub use entries::{Dump, Entry, Held};
pub(crate) use reports::Refused;

use crate::config::Config;
use crate::directory::{Directory, Holder, ScopeKey};
use crate::index::{Index, ReplicaId};
use crate::models::Model;
use crate::producers::Told;
use crate::replication::{Change, Hub, Queue, Snapshot, wire_tier};
use inference_cache_core::hash::BlockHash;
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
    /// Of all entries, those that producers made.
    pub reported: usize,
    /// Replicas that only producers know.
    pub reporters: usize,
    /// (tenant, model, hash scheme, adapter) known.
    pub scopes: usize,
    /// Distinct keys by (tenant, model), all schemes and adapters together.
    pub keys: BTreeMap<(String, String), usize>,
    /// Storage entries by (replica, tenant).
    pub replicas: BTreeMap<(String, String), usize>,
    /// Operations of holders that had gone.
    pub late_operations: u64,
    /// Those who hold entries, by id.
    pub holders: Vec<HolderView>,
}

/// One holder of entries.
#[derive(Clone, Debug)]
pub struct HolderView {
    /// Its id in the directory.
    pub id: ReplicaId,
    /// Replica and rank.
    pub holder: Holder,
    /// Tokens per block, as its newest event says.
    pub block_size: Option<u32>,
    /// Storage entries.
    pub entries: usize,
    /// Adapters that it holds blocks of, and that its configuration does not name.
    pub unrouted_adapters: usize,
}

#[derive(Debug)]
enum Command {
    Enroll(Holder, oneshot::Sender<ReplicaId>),
    Update(ReplicaId, Holder),
    Retire(ReplicaId),
    Operations(ReplicaId, Vec<Operation>),
    Subscribe { name: String, position: (u64, u64), reply: oneshot::Sender<Arc<Queue>> },
    Told(Told, oneshot::Sender<Refused>),
    View(oneshot::Sender<View>),
    Dump(oneshot::Sender<Dump>),
    Entries(oneshot::Sender<Vec<Entry>>),
}

/// The way to the writer. All methods return `None` (or do nothing) once it has stopped.
#[derive(Clone, Debug)]
pub(crate) struct WriterHandle {
    commands: mpsc::Sender<Command>,
}

impl WriterHandle {
    /// Adds a holder; its id.
    pub(crate) async fn enroll(&self, holder: Holder) -> Option<ReplicaId> {
        self.ask(|reply| Command::Enroll(holder, reply)).await
    }

    /// Replaces what the directory says of a holder; its entries stay.
    pub(crate) async fn update(&self, id: ReplicaId, holder: Holder) {
        let _ = self.commands.send(Command::Update(id, holder)).await;
    }

    /// Drops a holder with all its entries; what still comes from it is ignored.
    pub(crate) async fn retire(&self, id: ReplicaId) {
        let _ = self.commands.send(Command::Retire(id)).await;
    }

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

    /// Applies what a producer tells; what did not fit, once it is done.
    pub(crate) async fn tell(&self, told: Told) -> Option<Refused> {
        self.ask(|reply| Command::Told(told, reply)).await
    }

    pub(crate) async fn entries(&self) -> Option<Vec<Entry>> {
        self.ask(Command::Entries).await
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
    late: u64,
    /// Entries that producers may make.
    max_reported: usize,
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
            directory: Directory::new(models, ttl_s),
            started: Instant::now(),
            expired: 0,
            late: 0,
            max_reported: config.producers.max_entries,
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
            Command::Enroll(holder, reply) => {
                if let Some(reporter) = self.directory.retire_reporter(&holder.replica.id) {
                    self.index.clear(reporter);
                }
                let id = self.directory.enroll(holder);
                self.hub.directory(self.directory.to_proto());
                let _ = reply.send(id);
            }
            Command::Update(id, holder) => {
                if self.directory.update(id, holder) {
                    self.hub.directory(self.directory.to_proto());
                }
            }
            Command::Retire(id) => {
                if self.directory.retire(id) {
                    if self.index.clear(id) {
                        self.hub.change(Change::Cleared { replica: id, scope: 0 });
                    }
                    self.hub.directory(self.directory.to_proto());
                }
            }
            Command::Operations(replica, operations) if self.directory.holder(replica).is_none() => {
                self.late += operations.len() as u64;
            }
            Command::Operations(replica, operations) => {
                operations.into_iter().for_each(|operation| self.operation(replica, operation));
            }
            Command::Subscribe { name, position, reply } => {
                let now_s = self.now_s();
                let Writer { index, hub, directory, .. } = self;
                let queue = hub.subscribe(name, position, || Snapshot {
                    directory: directory.to_proto(),
                    blocks: snapshot_blocks(index, directory, now_s),
                });
                let _ = reply.send(queue);
            }
            Command::Told(told, reply) => drop(reply.send(self.told(told))),
            Command::Entries(reply) => drop(reply.send(self.entries())),
            Command::View(reply) => drop(reply.send(self.view())),
            Command::Dump(reply) => drop(reply.send(self.dump())),
        }
    }

    /// An operation of a holder that is in the directory.
    fn operation(&mut self, replica: ReplicaId, operation: Operation) {
        let now_s = self.now_s();
        match operation {
            Operation::Stored { adapter, tier, block_size, hashes } => {
                let changed = self.directory.note_block_size(replica, block_size);
                let Some((scope, is_new)) = self.directory.scope_of(replica, adapter) else { return };
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
                let Some((scope, _)) = self.directory.scope_of(replica, adapter) else { return };
                for hash in hashes {
                    if self.index.remove(scope, replica, hash) {
                        self.hub.change(Change::Removed { scope, replica, hash });
                    }
                }
            }
            Operation::Cleared => {
                if self.index.clear(replica) {
                    self.hub.change(Change::Cleared { replica, scope: 0 });
                }
            }
        }
    }

    /// Removes a slice of what has expired; whether more may be due.
    fn sweep(&mut self) -> bool {
        let now_s = self.now_s();
        let Writer { index, hub, directory, expired, .. } = self;
        let more = index.expire(now_s, SWEEP_SLICE, |scope, replica, hash| {
            *expired += 1;
            if directory.is_told(scope, replica) {
                hub.change(Change::Removed { scope, replica, hash });
            }
        });
        if !more {
            self.expire_reports();
        }
        more
    }

    fn view(&mut self) -> View {
        let mut keys = BTreeMap::new();
        for (ScopeKey { tenant, model, .. }, scope) in self.directory.scopes() {
            *keys.entry((tenant.clone(), model.clone())).or_default() += self.index.scope_keys(scope);
        }
        let adapters: BTreeMap<_, _> =
            self.directory.scopes().map(|(names, scope)| (scope, &names.adapter)).collect();
        let mut unrouted = BTreeMap::<ReplicaId, usize>::new();
        for (scope, id, _) in self.index.tables().filter(|(_, _, table)| !table.is_empty()) {
            let named = |holder: &Holder| adapters.get(&scope).is_some_and(|adapter| holder.serves(adapter));
            let is_routed = self.directory.holder(id).is_some_and(named);
            *unrouted.entry(id).or_default() += usize::from(!is_routed);
        }
        let holders = self.directory.holders().map(|(id, holder)| HolderView {
            id,
            holder: holder.clone(),
            block_size: self.directory.block_size(id),
            entries: self.index.replica_entries(id),
            unrouted_adapters: unrouted.get(&id).copied().unwrap_or(0),
        });
        View {
            epoch: self.hub.epoch(),
            seq: self.hub.seq(),
            subscribers: self.hub.subscribers(),
            entries: self.index.entries(),
            expired: self.expired,
            reported: self.index.reported(),
            reporters: self.directory.reporters().count(),
            scopes: self.directory.scopes().count(),
            replicas: self.entries_by_replica(),
            keys,
            late_operations: self.late,
            holders: holders.collect(),
        }
    }

    fn now_s(&self) -> u32 {
        u32::try_from(self.started.elapsed().as_secs()).unwrap_or(u32::MAX)
    }
}

/// All entries; those of one table that share tier and age (to a 16th of a minute) go together.
fn snapshot_blocks(index: &Index, directory: &Directory, now_s: u32) -> Vec<proto::Blocks> {
    const AGE_STEP_S: u32 = 4;
    let mut all = Vec::new();
    for (scope, replica, table) in index.tables() {
        if !directory.is_told(scope, replica) {
            continue;
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn operations_of_a_holder_that_has_gone_are_dropped() {
        let config = Config::from_yaml(
            "models: [{ name: m, path: x }]\n\
             replicas: [{ id: a, address: 127.0.0.1:1, model: m, events: { endpoint: tcp://127.0.0.1:2 } }]\n",
        )
        .unwrap();
        let stop = CancellationToken::new();
        let (writer, task) = Writer::start(&config, Arc::new([]), 1, 1 << 20, stop.clone());
        let stored = || {
            vec![Operation::Stored {
                adapter: String::new(),
                tier: Tier::T1,
                block_size: 16,
                hashes: vec![BlockHash(7)],
            }]
        };
        let holder = Holder { replica: Arc::new(config.replicas[0].clone()), rank: 0 };
        let first = writer.enroll(holder.clone()).await.unwrap();
        writer.apply(first, stored()).await;
        assert_eq!(writer.dump().await.unwrap().len(), 1);
        writer.retire(first).await;
        writer.apply(first, stored()).await;
        let second = writer.enroll(holder).await.unwrap();
        writer.apply(first, stored()).await;
        let view = writer.view().await.unwrap();
        assert_eq!((view.entries, view.late_operations), (0, 2));
        assert!(second > first);
        stop.cancel();
        task.await.unwrap();
    }
}
