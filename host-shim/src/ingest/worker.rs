//! The tasks of one source.
//!
//! The receive task only receives: whatever does not fit into the bounded queue behind it is dropped and counted, and
//! the sequence numbers turn that into a gap. The source task feeds core's state machine, runs the replays it asks for
//! and hands its operations to the writer, waiting when the writer is behind.

use super::status::Statuses;
use super::transport::{Incoming, Message, Transport};
use super::zmq::Zmq;
use crate::config::{EventsConfig, EventsMode};
use crate::index::ReplicaId;
use crate::writer::{Operation, WriterHandle};
use inference_cache_core::events::{Batch, Reply, live_frames, replay_frames, replay_request};
use inference_cache_core::hash::BlockHash;
use inference_cache_core::ingest::{Limits, ReplayRequest, Sink, Source, Stored};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

const QUEUE_MESSAGES: usize = 8192;
const QUEUE_BYTES: usize = 64 << 20;
const REPLAY_QUEUE: usize = 256;
/// A replay that says nothing for so long is over.
const REPLAY_IDLE: Duration = Duration::from_secs(2);
const TICK: Duration = Duration::from_millis(100);
/// Pauses between attempts to reach a publisher; then a second each.
const RECONNECT_MS: [u64; 4] = [50, 100, 200, 500];

/// Starts the tasks of source number `at`.
pub(crate) fn start(
    tasks: &mut JoinSet<()>,
    at: usize,
    replica: ReplicaId,
    events: &EventsConfig,
    writer: WriterHandle,
    statuses: Statuses,
    stop: CancellationToken,
) {
    let transport: Arc<dyn Transport> = Arc::new(Zmq);
    let (queue, incoming) = mpsc::channel(QUEUE_MESSAGES);
    let load = Arc::new(Load::default());
    let receiver =
        Receiver { transport: transport.clone(), events: events.clone(), queue, load: load.clone() };
    let receiving = stop.clone();
    tasks.spawn(async move {
        tokio::select! {
            () = receiving.cancelled() => {}
            () = receiver.run() => {}
        }
    });
    let worker = Worker {
        transport,
        replay: events.replay.clone().map(Arc::from),
        source: Source::new(events.replay.is_some(), Limits::default()),
        load,
        at,
        replica,
        writer,
        statuses,
        started: Instant::now(),
    };
    tasks.spawn(async move {
        tokio::select! {
            () = stop.cancelled() => {}
            () = worker.run(incoming) => {}
        }
    });
}

/// What waits between the two tasks.
#[derive(Debug, Default)]
struct Load {
    bytes: AtomicUsize,
    shed: AtomicU64,
}

struct Receiver {
    transport: Arc<dyn Transport>,
    events: EventsConfig,
    queue: mpsc::Sender<Incoming>,
    load: Arc<Load>,
}

impl Receiver {
    async fn run(self) {
        let bind = self.events.mode == EventsMode::Bind;
        let mut failures = 0;
        loop {
            match self.transport.subscribe(&self.events.endpoint, bind).await {
                Ok(mut subscription) => {
                    failures = 0;
                    loop {
                        match subscription.next().await {
                            Ok(Incoming::Message(message)) => self.offer(message),
                            Ok(Incoming::Connected) => self.tell(Incoming::Connected).await,
                            Ok(Incoming::Disconnected) => {
                                self.tell(Incoming::Disconnected).await;
                                if !bind {
                                    break;
                                }
                            }
                            Err(error) => {
                                tracing::debug!(endpoint = self.events.endpoint, %error, "event stream failed");
                                self.tell(Incoming::Disconnected).await;
                                // A bound socket outlives a bad peer.
                                if !bind {
                                    break;
                                }
                            }
                        }
                    }
                }
                Err(error) => {
                    tracing::debug!(endpoint = self.events.endpoint, %error, "cannot reach the events endpoint");
                }
            }
            let pause =
                RECONNECT_MS.get(failures).map_or(Duration::from_secs(1), |&ms| Duration::from_millis(ms));
            failures += 1;
            tokio::time::sleep(pause).await;
        }
    }

    /// Queues a message, or drops it.
    fn offer(&self, message: Message) {
        let bytes = message.iter().map(bytes::Bytes::len).sum::<usize>();
        let fits = self.load.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes <= QUEUE_BYTES;
        if !fits || self.queue.try_send(Incoming::Message(message)).is_err() {
            self.load.bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.load.shed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Queues what must not be lost; rare, and only while no message waits to be received.
    async fn tell(&self, incoming: Incoming) {
        let _ = self.queue.send(incoming).await;
    }
}

struct Worker {
    transport: Arc<dyn Transport>,
    replay: Option<Arc<str>>,
    source: Source,
    load: Arc<Load>,
    at: usize,
    replica: ReplicaId,
    writer: WriterHandle,
    statuses: Statuses,
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
                    while replays.try_join_next().is_some() {}
                    self.report();
                }
                message = incoming.recv() => match message {
                    Some(message) => self.incoming(message, &mut operations),
                    None => break,
                },
            }
            if let (Some(endpoint), Some(request)) = (&self.replay, self.source.replay_request(self.now_ms()))
            {
                replays.abort_all();
                replays.spawn(replay(self.transport.clone(), endpoint.clone(), request, replies.clone()));
            }
            if !operations.0.is_empty() {
                self.writer.apply(self.replica, std::mem::take(&mut operations.0)).await;
            }
        }
    }

    fn incoming(&mut self, incoming: Incoming, operations: &mut Operations) {
        match incoming {
            Incoming::Connected => {
                self.source.connected();
                self.statuses.update(self.at, |status| status.connected = true);
            }
            Incoming::Disconnected => self.statuses.update(self.at, |status| status.connected = false),
            Incoming::Message(message) => {
                self.load.bytes.fetch_sub(message.iter().map(bytes::Bytes::len).sum(), Ordering::Relaxed);
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

    fn note_lag(&self, payload: &[u8]) {
        let now = SystemTime::now();
        let unix_s = now.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        let lag_s = Batch::timestamp(payload).map(|ts| unix_s - ts);
        self.statuses.update(self.at, |status| {
            status.lag_s = lag_s;
            status.last_event_at = Some(now);
        });
    }

    fn report(&self) {
        let source = &self.source;
        self.statuses.update(self.at, |status| {
            status.state = source.state();
            status.epoch = source.epoch();
            status.last_seq = source.last_seq();
            status.blocks = source.blocks();
            status.waiting_blocks = source.waiting_blocks();
            status.shed = self.load.shed.load(Ordering::Relaxed);
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
    endpoint: Arc<str>,
    request: ReplayRequest,
    replies: mpsc::Sender<Replayed>,
) {
    let ticket = request.ticket;
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
