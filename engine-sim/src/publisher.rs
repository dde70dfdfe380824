//! Event batches over ZeroMQ, as vLLM's publisher sends them.
//!
//! * PUB, three frames: topic, sequence number (8 bytes big-endian, from 0), payload. It binds.
//! * Replay ROUTER: a request is `[empty, first sequence number]`; the answers are the kept batches from there on, then
//!   an end marker with sequence number 2^64 - 1. The topic is among the frames since 0.26. A malformed request is
//!   logged and not answered. The last `buffer_steps` batches are kept.
//!
//! A subscriber that does not keep up loses batches, it never slows the engine.

use crate::config::{EventsConfig, Release};
use crate::start::{StartError, bind};
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use zeromq::{PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

/// Sequence number of the end marker.
const END: [u8; 8] = [0xff; 8];
/// A replay client that reads slower than this per batch is given up.
const REPLAY_SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// The sending side.
pub(crate) struct Publisher {
    socket: PubSocket,
    topic: Bytes,
    next_seq: u64,
    ring: Arc<Mutex<Ring>>,
}

/// Where the sockets are bound, ports resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventEndpoints {
    /// Endpoint of the PUB socket.
    pub events: String,
    /// Endpoint of the replay ROUTER.
    pub replay: Option<String>,
}

impl Publisher {
    /// Binds the sockets and serves replays until `stop`.
    pub(crate) async fn start(
        config: &EventsConfig,
        release: Release,
        stop: CancellationToken,
    ) -> Result<(Publisher, EventEndpoints), StartError> {
        let mut socket = PubSocket::new();
        let events = attach(&mut socket, "--events", &config.endpoint).await?;
        let ring = Arc::new(Mutex::new(Ring { batches: VecDeque::new(), capacity: config.buffer_steps }));
        let topic = Bytes::from(config.topic.clone());
        let mut replay = None;
        if let Some(endpoint) = &config.replay_endpoint {
            let mut router = RouterSocket::new();
            replay = Some(attach(&mut router, "--replay", endpoint).await?);
            let framing = Framing { release, topic: topic.clone() };
            tokio::spawn(stop.run_until_cancelled_owned(serve_replays(router, framing, ring.clone())));
        }
        Ok((Publisher { socket, topic, next_seq: 0, ring }, EventEndpoints { events, replay }))
    }

    /// Sends one batch.
    pub(crate) async fn publish(&mut self, payload: Vec<u8>) {
        let payload = Bytes::from(payload);
        let seq = self.next_seq;
        self.next_seq += 1;
        lock(&self.ring).push(seq, payload.clone());
        let frames = [self.topic.clone(), Bytes::copy_from_slice(&seq.to_be_bytes()), payload];
        if let Err(error) = self.socket.send(message(frames)).await {
            tracing::warn!(%error, seq, "event batch not sent");
        }
    }
}

/// The newest batches, oldest first.
struct Ring {
    batches: VecDeque<(u64, Bytes)>,
    capacity: usize,
}

impl Ring {
    fn push(&mut self, seq: u64, payload: Bytes) {
        self.batches.push_back((seq, payload));
        if self.batches.len() > self.capacity {
            self.batches.pop_front();
        }
    }

    fn from(&self, first: u64) -> Vec<(u64, Bytes)> {
        self.batches.iter().filter(|(seq, _)| *seq >= first).cloned().collect()
    }
}

struct Framing {
    release: Release,
    topic: Bytes,
}

impl Framing {
    /// A reply to `peer`; the end marker has an empty topic and payload.
    fn reply(&self, peer: &Bytes, topic: Bytes, seq: [u8; 8], payload: Bytes) -> ZmqMessage {
        let (peer, seq) = (peer.clone(), Bytes::copy_from_slice(&seq));
        match self.release {
            Release::V0_22 => message([peer, Bytes::new(), seq, payload]),
            Release::V0_32 => message([peer, Bytes::new(), topic, seq, payload]),
        }
    }

    fn batch(&self, peer: &Bytes, seq: u64, payload: Bytes) -> ZmqMessage {
        self.reply(peer, self.topic.clone(), seq.to_be_bytes(), payload)
    }

    fn end(&self, peer: &Bytes) -> ZmqMessage {
        self.reply(peer, Bytes::new(), END, Bytes::new())
    }
}

async fn serve_replays(mut router: RouterSocket, framing: Framing, ring: Arc<Mutex<Ring>>) {
    loop {
        match router.recv().await {
            Ok(request) => match replay_request(&request) {
                Some((peer, first)) => replay(&mut router, &framing, &ring, &peer, first).await,
                None => tracing::warn!(frames = request.len(), "invalid replay request"),
            },
            Err(error) => {
                tracing::warn!(%error, "replay socket");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn replay(router: &mut RouterSocket, framing: &Framing, ring: &Mutex<Ring>, peer: &Bytes, first: u64) {
    let batches = lock(ring).from(first);
    let replies = batches
        .into_iter()
        .map(|(seq, payload)| framing.batch(peer, seq, payload))
        .chain(std::iter::once_with(|| framing.end(peer)));
    for reply in replies {
        match tokio::time::timeout(REPLAY_SEND_TIMEOUT, router.send(reply)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return tracing::warn!(%error, "replay broken off"),
            Err(_) => return tracing::warn!("replay broken off: the client does not read"),
        }
    }
}

/// Identity of the peer and first wanted sequence number.
fn replay_request(message: &ZmqMessage) -> Option<(Bytes, u64)> {
    let frames: Vec<&Bytes> = message.iter().collect();
    let [peer, empty, seq] = frames[..] else { return None };
    let seq: [u8; 8] = seq[..].try_into().ok()?;
    empty.is_empty().then(|| (peer.clone(), u64::from_be_bytes(seq)))
}

async fn attach<S: Socket>(socket: &mut S, flag: &'static str, endpoint: &str) -> Result<String, StartError> {
    let address = endpoint.strip_prefix("tcp://").map(|address| address.replace('*', "0.0.0.0"));
    let address = address.ok_or_else(|| StartError::NotAnEndpoint { flag, endpoint: endpoint.to_owned() })?;
    let (listener, local) = bind(flag, &address)?;
    let attached = socket.bind_listener(listener).await;
    attached.map_err(|error| StartError::Socket { flag, reason: error.to_string() })?;
    Ok(format!("tcp://{local}"))
}

fn message<const N: usize>(frames: [Bytes; N]) -> ZmqMessage {
    let mut frames = frames.into_iter();
    let mut message = ZmqMessage::from(frames.next().unwrap_or_default());
    frames.for_each(|frame| message.push_back(frame));
    message
}

fn lock(ring: &Mutex<Ring>) -> std::sync::MutexGuard<'_, Ring> {
    ring.lock().unwrap_or_else(PoisonError::into_inner)
}
