//! The task that only receives.
//!
//! An engine whose messages nobody takes blocks (vLLM) or drops them; so nothing here waits for anything behind it.
//! What does not fit into the bounded queue is dropped and counted, and the sequence numbers turn that into a gap.

use super::discovery::{Discovery, Sockets};
use super::transport::{Incoming, Message, Transport};
use crate::config::Endpoint;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// Messages that may wait.
pub(super) const QUEUE_MESSAGES: usize = 8192;
/// Places in the queue that messages do not take: for connections that come and go, which must not be lost.
const RESERVED: usize = 64;
/// Bytes that may wait.
const QUEUE_BYTES: usize = 64 << 20;
/// Pauses between attempts to reach a publisher grow between these bounds.
const RECONNECT_MS: (u64, u64) = (50, 2000);

/// What waits between the receive task and the source task.
#[derive(Debug, Default)]
pub(super) struct Load {
    bytes: AtomicUsize,
    shed: AtomicU64,
}

impl Load {
    /// A message was taken out of the queue.
    pub(super) fn taken(&self, message: &Message) {
        self.bytes.fetch_sub(size(message), Ordering::Relaxed);
    }

    /// Messages dropped.
    pub(super) fn shed(&self) -> u64 {
        self.shed.load(Ordering::Relaxed)
    }
}

pub(super) struct Receiver {
    pub(super) transport: Arc<dyn Transport>,
    /// Where the publisher is, as far as is known; the source task looks here for its replay socket.
    pub(super) sockets: watch::Sender<Sockets>,
    /// Asked before every attempt to connect: an engine that starts again may have other ports.
    pub(super) discovery: Option<Discovery>,
    /// The replay socket that the configuration names, for engines that do not say where theirs is.
    pub(super) replay: Option<Endpoint>,
    pub(super) bind: bool,
    pub(super) queue: mpsc::Sender<Incoming>,
    pub(super) load: Arc<Load>,
}

impl Receiver {
    /// Receives for ever.
    pub(super) async fn run(self) {
        let mut backoff = Backoff::default();
        loop {
            self.discover().await;
            let endpoint = self.sockets.borrow().events.clone();
            match self.transport.subscribe(&endpoint, self.bind).await {
                Ok(mut subscription) => loop {
                    match subscription.next().await {
                        Ok(Incoming::Message(message)) => {
                            backoff = Backoff::default();
                            self.offer(message);
                        }
                        Ok(Incoming::Connected) => self.tell(Incoming::Connected).await,
                        Ok(Incoming::Disconnected) => self.tell(Incoming::Disconnected).await,
                        Err(error) => {
                            tracing::debug!(%endpoint, %error, "event stream ended");
                            self.tell(Incoming::Disconnected).await;
                            break;
                        }
                    }
                },
                Err(error) => {
                    tracing::debug!(%endpoint, %error, "cannot reach the events endpoint");
                }
            }
            tokio::time::sleep(backoff.pause()).await;
        }
    }

    async fn discover(&self) {
        let Some(discovery) = &self.discovery else { return };
        match discovery.ask().await {
            Ok(mut found) => {
                found.replay = found.replay.or_else(|| self.replay.clone());
                self.sockets.send_if_modified(|sockets| {
                    let is_new = *sockets != found;
                    if is_new {
                        tracing::info!(events = %found.events, replay = found.replay.is_some(), "sockets found");
                    }
                    *sockets = found;
                    is_new
                });
            }
            Err(error) => tracing::debug!(%error, "the engine does not say where its sockets are"),
        }
    }

    /// Queues a message, or drops it.
    fn offer(&self, message: Message) {
        let bytes = size(&message);
        let fits = self.load.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes <= QUEUE_BYTES;
        let fits = fits && self.queue.capacity() > RESERVED;
        if !fits || self.queue.try_send(Incoming::Message(message)).is_err() {
            self.load.bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.load.shed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Queues what must not be lost. Rare: there is room for it, and nothing here waits.
    async fn tell(&self, incoming: Incoming) {
        let _ = self.queue.send(incoming).await;
    }
}

/// Pauses that double, each shortened at random by up to half, so that many sources do not knock at once.
#[derive(Debug, Default)]
struct Backoff {
    failures: u32,
}

impl Backoff {
    fn pause(&mut self) -> Duration {
        let (first, most) = RECONNECT_MS;
        let full = (first << self.failures.min(16)).min(most);
        self.failures += 1;
        Duration::from_millis(full - RandomState::new().hash_one(self.failures) % (full / 2))
    }
}

fn size(message: &Message) -> usize {
    message.iter().map(bytes::Bytes::len).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_bound() {
        let mut backoff = Backoff::default();
        for full in [50, 100, 200, 400, 800, 1600, 2000, 2000] {
            let pause = u64::try_from(backoff.pause().as_millis()).unwrap();
            assert!(pause > full / 2 && pause <= full, "{pause} of {full}");
        }
    }
}
