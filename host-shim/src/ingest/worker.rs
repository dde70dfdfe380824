//! The tasks of one source.
//!
//! The source task feeds core's state machine with what the receive task queued, runs the replays it asks for and hands
//! its operations to the writer, waiting when the writer is behind.

use super::discovery::{Discovery, Sockets};
use super::receiver::{Load, QUEUE_MESSAGES, Receiver};
use super::status::Statuses;
use super::transport::{Incoming, Message, Transport};
use super::zmtp::Zmtp;
use crate::config::{Endpoint, EventsConfig, EventsMode, ReportMode};
use crate::directory::Holder;
use crate::index::ReplicaId;
use crate::writer::{Operation, WriterHandle};
use inference_cache_core::events::{Batch, Reply, live_frames, replay_frames, replay_request};
use inference_cache_core::hash::BlockHash;
use inference_cache_core::ingest::{Limits, ReplayRequest, Sink, Source, Stored};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

/// Replies that wait for the source task, which may be of the greatest length each.
const REPLAY_QUEUE: usize = 8;
/// A replay that says nothing for so long is over.
const REPLAY_IDLE: Duration = Duration::from_secs(2);
const TICK: Duration = Duration::from_millis(100);

/// Starts the tasks of the source of `holder`, whose engine may hash with one of `hash_seeds`. `process_started` says when
/// its engine process started, Unix seconds.
pub(super) fn start(
    tasks: &mut JoinSet<()>,
    id: ReplicaId,
    holder: &Holder,
    hash_seeds: Vec<String>,
    writer: WriterHandle,
    statuses: Statuses,
    process_started: watch::Receiver<Option<f64>>,
) {
    let events = &holder.replica.events;
    // A checked configuration has a port for each rank.
    let Some(endpoint) = events.endpoint.of_rank(holder.rank) else { return };
    let replay = events.replay.as_ref().and_then(|replay| replay.of_rank(holder.rank));
    let has_replay = replay.is_some() || events.discover;
    let discovery = events.discover.then(|| {
        Discovery::new(holder.replica.address, holder.replica.engine, holder.rank)
            .inspect_err(|error| tracing::error!(replica = holder.replica.id, %error, "no discovery"))
            .ok()
    });
    let (sockets, found) = watch::channel(Sockets { events: endpoint, replay: replay.clone() });
    let transport: Arc<dyn Transport> = Arc::new(Zmtp);
    let (queue, incoming) = mpsc::channel(QUEUE_MESSAGES);
    let load = Arc::new(Load::default());
    let receiver = Receiver {
        transport: transport.clone(),
        sockets,
        discovery: discovery.flatten(),
        replay,
        bind: events.mode == EventsMode::Bind,
        queue,
        load: load.clone(),
    };
    tasks.spawn(receiver.run());
    let worker = Worker {
        transport,
        source: Source::new(has_replay, limits(events, hash_seeds)),
        sockets: found,
        load,
        id,
        writer,
        statuses,
        process_started: Some(process_started),
        lost_after: events.lost_after,
        away_since: None,
        started: Instant::now(),
    };
    tasks.spawn(worker.run(incoming));
}

fn limits(events: &EventsConfig, hash_seeds: Vec<String>) -> Limits {
    let limits = Limits {
        // Engines choose the hashes, and must not choose where they lie in our table.
        seed: RandomState::new().hash_one(0),
        group_to: events.group_to,
        hash_seeds,
        ..Limits::default()
    };
    match events.report_mode {
        ReportMode::Default => limits,
        ReportMode::Full => Limits { max_copies: 1, ..limits },
    }
}

struct Worker {
    transport: Arc<dyn Transport>,
    sockets: watch::Receiver<Sockets>,
    source: Source,
    load: Arc<Load>,
    id: ReplicaId,
    writer: WriterHandle,
    statuses: Statuses,
    /// `None` once nobody will say more.
    process_started: Option<watch::Receiver<Option<f64>>>,
    lost_after: Duration,
    /// Since when no publisher has been connected; `None` while one is, before the first and once it counts as lost.
    away_since: Option<Instant>,
    started: Instant,
}

/// One thing that a replay brought.
enum Replayed {
    Reply(u64, Message),
    Failed(u64),
}

impl Worker {
    async fn run(mut self, mut incoming: mpsc::Receiver<Incoming>) {
        let (replies, mut replayed) = mpsc::channel(REPLAY_QUEUE);
        let mut replays = JoinSet::new();
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut operations = Operations::default();
        loop {
            tokio::select! {
                // What a replay brings is older than what is live.
                biased;
                Some(message) = replayed.recv() => self.replayed(message, &mut operations),
                _ = tick.tick() => {
                    self.source.tick(self.now_ms());
                    self.check_away(&mut operations);
                    while replays.try_join_next().is_some() {}
                    self.report();
                }
                started = next_value(&mut self.process_started) => {
                    self.source.process_started(started, &mut operations);
                }
                message = incoming.recv() => match message {
                    Some(message) => self.incoming(message, &mut operations),
                    None => break,
                },
            }
            if let Some(request) = self.source.replay_request(self.now_ms()) {
                replays.abort_all();
                let endpoint = self.sockets.borrow().replay.clone();
                replays.spawn(replay(self.transport.clone(), endpoint, request, replies.clone()));
            }
            if !operations.0.is_empty() {
                self.writer.apply(self.id, std::mem::take(&mut operations.0)).await;
            }
        }
    }

    fn incoming(&mut self, incoming: Incoming, operations: &mut Operations) {
        match incoming {
            Incoming::Connected => {
                self.source.connected();
                self.away_since = None;
                self.statuses.update(self.id, |status| status.connected = true);
            }
            Incoming::Disconnected => {
                self.away_since = self.away_since.or(Some(Instant::now()));
                self.statuses.update(self.id, |status| status.connected = false);
            }
            Incoming::Message(message) => {
                self.load.taken(&message);
                match live_frames(&message) {
                    Ok((seq, payload)) => {
                        self.source.batch(seq, payload, self.now_ms(), operations);
                        self.note_lag(payload);
                    }
                    Err(error) => self.source.refuse(error.reason()),
                }
            }
        }
    }

    fn replayed(&mut self, replayed: Replayed, operations: &mut Operations) {
        let now_ms = self.now_ms();
        match replayed {
            Replayed::Reply(ticket, message) => match replay_frames(&message) {
                Ok(Reply::Batch { seq, payload }) => {
                    self.source.replayed(ticket, seq, payload, now_ms, operations);
                }
                Ok(Reply::End) => self.source.replay_ended(ticket, true, now_ms, operations),
                Err(error) => self.source.refuse(error.reason()),
            },
            Replayed::Failed(ticket) => self.source.replay_ended(ticket, false, now_ms, operations),
        }
    }

    /// An engine that stays away takes its cache with it.
    fn check_away(&mut self, operations: &mut Operations) {
        if self.away_since.is_some_and(|since| since.elapsed() >= self.lost_after) {
            self.away_since = None;
            self.source.lost(operations);
            self.statuses.update(self.id, |status| status.losses += 1);
        }
    }

    fn note_lag(&self, payload: &[u8]) {
        let now = SystemTime::now();
        let unix_s = now.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        let lag_s = Batch::timestamp(payload).map(|ts| unix_s - ts);
        self.statuses.update(self.id, |status| {
            status.lag_s = lag_s;
            status.last_event_at = Some(now);
        });
    }

    fn report(&self) {
        let source = &self.source;
        self.statuses.update(self.id, |status| {
            status.state = source.state();
            status.epoch = source.epoch();
            status.last_seq = source.last_seq();
            status.blocks = source.blocks();
            status.waiting_blocks = source.waiting_blocks();
            status.shed = self.load.shed();
            status.engine_hashes = source.hash_check();
            status.stats.clone_from(source.stats());
        });
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// Asks for a replay and passes on what comes, until its end mark or silence.
async fn replay(
    transport: Arc<dyn Transport>,
    endpoint: Option<Endpoint>,
    request: ReplayRequest,
    replies: mpsc::Sender<Replayed>,
) {
    let ticket = request.ticket;
    let Some(endpoint) = endpoint else {
        // The engine did not say where its replay socket is, or has none.
        let _ = replies.send(Replayed::Failed(ticket)).await;
        return;
    };
    let frames = replay_request(request.from).into_iter().map(bytes::Bytes::from).collect();
    match transport.request(&endpoint, frames).await {
        Ok(mut conversation) => {
            while let Ok(Ok(message)) = timeout(REPLAY_IDLE, conversation.next()).await {
                let is_end = matches!(replay_frames(&message), Ok(Reply::End));
                if replies.send(Replayed::Reply(ticket, message)).await.is_err() || is_end {
                    return;
                }
            }
        }
        Err(error) => tracing::debug!(%endpoint, %error, "cannot reach the replay endpoint"),
    }
    let _ = replies.send(Replayed::Failed(ticket)).await;
}

/// The next value that is one; for ever if none comes.
async fn next_value(values: &mut Option<watch::Receiver<Option<f64>>>) -> f64 {
    loop {
        let Some(receiver) = values else { return std::future::pending().await };
        match receiver.changed().await {
            Ok(()) => {
                if let Some(value) = *receiver.borrow_and_update() {
                    return value;
                }
            }
            Err(_) => *values = None,
        }
    }
}

/// Gathers operations until they are sent.
#[derive(Debug, Default)]
struct Operations(Vec<Operation>);

impl Sink for Operations {
    fn stored(&mut self, stored: Stored<'_>) {
        self.0.push(Operation::Stored {
            adapter: stored.adapter.to_owned(),
            tier: stored.tier,
            block_size: stored.block_size.tokens(),
            hashes: stored.hashes.to_vec(),
        });
    }

    fn removed(&mut self, adapter: &str, hashes: &[BlockHash]) {
        self.0.push(Operation::Removed { adapter: adapter.to_owned(), hashes: hashes.to_vec() });
    }

    fn cleared(&mut self) {
        self.0.push(Operation::Cleared);
    }
}
