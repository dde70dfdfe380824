//! Frames of one epoch: numbering, history, subscribers.
//!
//! Changes gather until [`Hub::flush`], which turns them into frames of at most about 64 KiB, each one step of the
//! sequence. Frames are immutable and shared by the history and all subscribers. A stream begins with the frames
//! after the subscriber's position if the history still has them, and with a snapshot otherwise.

use super::Queue;
use hashbrown::HashMap;
use inference_cache_core::hash::BlockHash;
use inference_cache_core::ingest::Tier;
use inference_cache_core::replication::proto::{self, Directory, Frame, op::Op, payload::Body};
use inference_cache_core::replication::{PROTOCOL_VERSION, frame};
use std::collections::VecDeque;
use std::sync::Arc;
use tonic::Status;

/// Hashes per frame: 8 bytes each, below 64 KiB with the rest.
const HASHES_PER_FRAME: usize = 7 * 1024;

/// One change of the index.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    Stored {
        scope: u32,
        replica: u32,
        tier: Tier,
        hash: BlockHash,
    },
    Removed {
        scope: u32,
        replica: u32,
        hash: BlockHash,
    },
    /// In one scope, or in all (0).
    Cleared {
        replica: u32,
        scope: u32,
    },
}

/// State to send to a new subscriber.
pub(crate) struct Snapshot {
    pub(crate) directory: Directory,
    /// Grouped as they are to be sent.
    pub(crate) blocks: Vec<proto::Blocks>,
}

pub(crate) struct Hub {
    epoch: u64,
    seq: u64,
    directory: Option<Directory>,
    ops: Vec<Op>,
    hashes: usize,
    history: VecDeque<Arc<Frame>>,
    history_bytes: usize,
    history_limit: usize,
    subscribers: HashMap<String, Arc<Queue>>,
    buffer_limit: usize,
}

impl Hub {
    pub(crate) fn new(epoch: u64, history_limit: usize, buffer_limit: usize) -> Hub {
        Hub {
            epoch,
            seq: 0,
            directory: None,
            ops: Vec::new(),
            hashes: 0,
            history: VecDeque::new(),
            history_bytes: 0,
            history_limit,
            subscribers: HashMap::new(),
            buffer_limit,
        }
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(crate) fn seq(&self) -> u64 {
        self.seq
    }

    pub(crate) fn subscribers(&mut self) -> usize {
        self.forget_ended();
        self.subscribers.len()
    }

    /// The directory changed; it goes before the changes of the same frame, so earlier ones are flushed first.
    pub(crate) fn directory(&mut self, directory: Directory) {
        if !self.ops.is_empty() {
            self.flush();
        }
        self.directory = Some(directory);
    }

    pub(crate) fn change(&mut self, change: Change) {
        match (change, self.ops.last_mut()) {
            (Change::Stored { scope, replica, tier, hash }, Some(Op::Stored(blocks)))
                if (blocks.scope, blocks.replica, blocks.tier) == (scope, replica, wire_tier(tier)) =>
            {
                blocks.hashes.push(hash.0);
            }
            (Change::Removed { scope, replica, hash }, Some(Op::Removed(blocks)))
                if (blocks.scope, blocks.replica) == (scope, replica) =>
            {
                blocks.hashes.push(hash.0);
            }
            (Change::Stored { scope, replica, tier, hash }, _) => self.ops.push(Op::Stored(proto::Blocks {
                scope,
                replica,
                tier: wire_tier(tier),
                age_s: 0,
                hashes: vec![hash.0],
            })),
            (Change::Removed { scope, replica, hash }, _) => self.ops.push(Op::Removed(proto::Blocks {
                scope,
                replica,
                hashes: vec![hash.0],
                ..proto::Blocks::default()
            })),
            (Change::Cleared { replica, scope }, _) => {
                self.ops.push(Op::Cleared(proto::Cleared { replica, scope }));
            }
        }
        // An operation of its own costs about as much as two hashes.
        self.hashes = self.hashes.max(self.ops.len() * 2) + 1;
        if self.hashes >= HASHES_PER_FRAME {
            self.flush();
        }
    }

    /// Sends what has gathered; whether there was anything.
    pub(crate) fn flush(&mut self) -> bool {
        if self.ops.is_empty() && self.directory.is_none() {
            return false;
        }
        self.hashes = 0;
        let ops = std::mem::take(&mut self.ops).into_iter().map(|op| proto::Op { op: Some(op) }).collect();
        let delta = proto::Delta { directory: self.directory.take(), ops };
        let sealed = Arc::new(frame::seal(self.epoch, self.seq, self.seq + 1, Body::Delta(delta)));
        self.seq += 1;
        self.history_bytes += sealed.payload.len();
        self.send(&sealed);
        self.history.push_back(sealed);
        while self.history_bytes > self.history_limit {
            let Some(oldest) = self.history.pop_front() else { break };
            self.history_bytes -= oldest.payload.len();
        }
        true
    }

    pub(crate) fn heartbeat(&mut self) {
        let still = Arc::new(self.still(Body::Heartbeat(proto::Heartbeat {})));
        self.send(&still);
    }

    /// Begins a stream. An older one of the same name ends.
    pub(crate) fn subscribe(
        &mut self,
        name: String,
        position: (u64, u64),
        snapshot: impl FnOnce() -> Snapshot,
    ) -> Arc<Queue> {
        self.flush();
        let first = self.after(position).unwrap_or_else(|| self.snapshot(snapshot()));
        let queue = Arc::new(Queue::new(first, self.buffer_limit));
        if let Some(older) = self.subscribers.insert(name, queue.clone()) {
            older.close(Status::aborted("superseded by a newer stream of the same subscriber"));
        }
        queue
    }

    /// Ends all streams.
    pub(crate) fn close(&mut self) {
        for (_, queue) in self.subscribers.drain() {
            queue.close(Status::unavailable("host-shim is shutting down"));
        }
    }

    /// Streams that were cut, or that nobody reads any more.
    fn forget_ended(&mut self) {
        self.subscribers.retain(|_, queue| !queue.is_closed() && Arc::strong_count(queue) > 1);
    }

    fn send(&mut self, frame: &Arc<Frame>) {
        self.forget_ended();
        self.subscribers.values().for_each(|queue| queue.push(frame));
    }

    /// The frames after a position, if they are all there; a heartbeat says that there are none.
    fn after(&self, (epoch, seq): (u64, u64)) -> Option<Vec<Arc<Frame>>> {
        let oldest = self.history.front().map_or(self.seq, |frame| frame.base_seq);
        if epoch != self.epoch || seq < oldest || seq > self.seq {
            return None;
        }
        let mut frames: Vec<_> = self.history.iter().filter(|frame| frame.base_seq >= seq).cloned().collect();
        if frames.is_empty() {
            frames.push(Arc::new(self.still(Body::Heartbeat(proto::Heartbeat {}))));
        }
        Some(frames)
    }

    fn snapshot(&self, snapshot: Snapshot) -> Vec<Arc<Frame>> {
        let begin =
            proto::SnapshotBegin { protocol_version: PROTOCOL_VERSION, directory: Some(snapshot.directory) };
        let mut frames = vec![Arc::new(self.still(Body::SnapshotBegin(begin)))];
        let (mut entries, mut room, mut chunk) = (0, HASHES_PER_FRAME, Vec::new());
        for mut blocks in snapshot.blocks {
            entries += blocks.hashes.len() as u64;
            while !blocks.hashes.is_empty() {
                let rest = blocks.hashes.split_off(blocks.hashes.len().min(room));
                room = room.saturating_sub(blocks.hashes.len() + 2);
                chunk.push(proto::Blocks { hashes: blocks.hashes, ..blocks });
                blocks = proto::Blocks { hashes: rest, ..blocks };
                if room == 0 {
                    let blocks = std::mem::take(&mut chunk);
                    frames.push(Arc::new(self.still(Body::SnapshotChunk(proto::SnapshotChunk { blocks }))));
                    room = HASHES_PER_FRAME;
                }
            }
        }
        if !chunk.is_empty() {
            frames.push(Arc::new(self.still(Body::SnapshotChunk(proto::SnapshotChunk { blocks: chunk }))));
        }
        frames.push(Arc::new(self.still(Body::SnapshotEnd(proto::SnapshotEnd { entries }))));
        frames
    }

    fn still(&self, body: Body) -> Frame {
        frame::seal(self.epoch, self.seq, self.seq, body)
    }
}

pub(crate) fn wire_tier(tier: Tier) -> i32 {
    let tier = match tier {
        Tier::T1 => proto::Tier::T1,
        Tier::T2 => proto::Tier::T2,
        Tier::T3 => proto::Tier::T3,
    };
    tier.into()
}
