//! Applies a replication stream to the index of a worker, in slices.
//!
//! ```text
//!            SnapshotBegin            SnapshotEnd (entries agree)
//!   serving ───────────────▶ building ───────────────▶ serving
//!      ▲  │ Delta: base_seq = seq held
//!      └──┘
//! ```
//!
//! Invariants
//! * What is served is always one complete state: a snapshot is built beside it and swapped in at its end.
//! * A delta applies only to the state it names; a frame that is already applied is skipped; anything else is an error
//!   and changes nothing. Slicing means that a delta may be half applied between two calls of [`Follower::work`]: its
//!   operations are independent, so a lookup in between sees a state on the way, never a wrong entry.
//! * After an error or a lost stream ([`Follower::disconnected`]) frames that wait and a half-built snapshot are
//!   dropped. A delta cut in the middle leaves [`Follower::position`] at its start, so resuming there repeats it.
//!
//! Cost: receiving copies nothing; `work(n)` applies at most `n` entries after decoding at most one frame per loop.
//! Waiting bytes are bounded by [`MAX_WAITING`].

use super::proto::{self, op, payload::Body};
use super::{Directory, PROTOCOL_VERSION, ReplicationError, frame};
use crate::hash::BlockHash;
use crate::replica::{IndexReplica, ReplicaId, ScopeId, Seconds};
use std::collections::VecDeque;

/// Bytes of received frames that may wait to be applied.
pub const MAX_WAITING: usize = 64 << 20;

/// A state of the stream: everything up to `seq` of `epoch`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Incarnation of the host-shim; 0 before the first snapshot.
    pub epoch: u64,
    /// Sequence number.
    pub seq: u64,
}

/// Whether [`Follower::work`] has more to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// All received frames are applied.
    Idle,
    /// Call again soon.
    More,
}

/// The replica of the index and of the directory, and the stream that feeds them.
#[derive(Debug)]
pub struct Follower {
    serving: State,
    building: Option<State>,
    waiting: VecDeque<Vec<u8>>,
    waiting_bytes: usize,
    applying: Option<Applying>,
    budget: usize,
    dropped: u64,
}

#[derive(Debug)]
struct State {
    index: IndexReplica,
    directory: Directory,
    position: Position,
    received: u64,
}

/// The rest of a frame's operations, and the position once they are done.
#[derive(Debug)]
struct Applying {
    operations: std::vec::IntoIter<Operation>,
    current: Option<(Operation, usize)>,
    then: Position,
}

#[derive(Debug)]
enum Operation {
    Stored(proto::Blocks),
    Removed(proto::Blocks),
    Cleared(proto::Cleared),
}

impl Follower {
    /// A follower that holds nothing yet and never more than `budget` storage entries (twice that while a snapshot is
    /// built).
    pub fn new(budget: usize) -> Follower {
        Follower {
            serving: State::new(budget, Directory::default(), Position::default()),
            building: None,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            applying: None,
            budget,
            dropped: 0,
        }
    }

    /// The index that serves.
    pub fn index(&self) -> &IndexReplica {
        &self.serving.index
    }

    /// The directory that serves.
    pub fn directory(&self) -> &Directory {
        &self.serving.directory
    }

    /// The state that serves; epoch 0 before the first snapshot is complete.
    pub fn position(&self) -> Position {
        self.serving.position
    }

    /// Entries that did not fit into the budget or named nothing in the directory, since the start.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Takes a received frame; it is applied by [`Follower::work`].
    pub fn receive(&mut self, frame: Vec<u8>) -> Result<(), ReplicationError> {
        self.waiting_bytes += frame.len();
        if self.waiting_bytes > MAX_WAITING || self.waiting.try_reserve(1).is_err() {
            self.disconnected();
            return Err(ReplicationError::Overflow(MAX_WAITING));
        }
        self.waiting.push_back(frame);
        Ok(())
    }

    /// Applies up to `entries` entries of what was received. On an error the stream must be opened again from
    /// [`Follower::position`].
    pub fn work(&mut self, entries: usize, now: Seconds) -> Result<Progress, ReplicationError> {
        let mut left = entries.max(1);
        while left > 0 {
            if self.applying.is_some() {
                self.apply_slice(&mut left, now);
            } else if let Some(bytes) = self.waiting.pop_front() {
                self.waiting_bytes -= bytes.len();
                left -= 1;
                if let Err(error) = self.begin(&bytes) {
                    self.disconnected();
                    return Err(error);
                }
            } else {
                return Ok(Progress::Idle);
            }
        }
        let idle = self.applying.is_none() && self.waiting.is_empty();
        Ok(if idle { Progress::Idle } else { Progress::More })
    }

    /// The stream is gone: forgets what was received and not applied. What serves goes on serving.
    pub fn disconnected(&mut self) {
        self.building = None;
        self.waiting.clear();
        self.waiting_bytes = 0;
        self.applying = None;
    }

    fn begin(&mut self, bytes: &[u8]) -> Result<(), ReplicationError> {
        let (frame, body) = frame::open(bytes)?;
        let at = Position { epoch: frame.epoch, seq: frame.seq };
        match body {
            Some(Body::SnapshotBegin(begin)) => self.snapshot_begin(at, begin),
            Some(Body::SnapshotChunk(chunk)) => self.snapshot_chunk(at, chunk),
            Some(Body::SnapshotEnd(end)) => self.snapshot_end(at, end),
            Some(Body::Delta(delta)) => self.delta(frame.base_seq, at, delta),
            // A payload of a later version: nothing that this one must know.
            Some(Body::Heartbeat(_)) | None => Ok(()),
        }
    }

    fn snapshot_begin(&mut self, at: Position, begin: proto::SnapshotBegin) -> Result<(), ReplicationError> {
        if begin.protocol_version == 0 || begin.protocol_version > PROTOCOL_VERSION {
            return Err(ReplicationError::Version(begin.protocol_version));
        }
        let directory = Directory::from_proto(&begin.directory.unwrap_or_default());
        self.building = Some(State::new(self.budget, directory, at));
        Ok(())
    }

    fn snapshot_chunk(&mut self, at: Position, chunk: proto::SnapshotChunk) -> Result<(), ReplicationError> {
        self.building_at(at)?;
        let operations: Vec<_> = chunk.blocks.into_iter().map(Operation::Stored).collect();
        self.applying = Some(Applying { operations: operations.into_iter(), current: None, then: at });
        Ok(())
    }

    fn snapshot_end(&mut self, at: Position, end: proto::SnapshotEnd) -> Result<(), ReplicationError> {
        let received = self.building_at(at)?.received;
        if received != end.entries {
            return Err(ReplicationError::Incomplete { announced: end.entries, received });
        }
        if let Some(built) = self.building.take() {
            self.serving = built;
        }
        Ok(())
    }

    fn delta(&mut self, base_seq: u64, at: Position, delta: proto::Delta) -> Result<(), ReplicationError> {
        let held = self.serving.position;
        if at.epoch == held.epoch && at.seq <= held.seq {
            return Ok(());
        }
        if at.epoch != held.epoch || base_seq != held.seq || self.building.is_some() {
            return Err(ReplicationError::Gap {
                epoch: at.epoch,
                base_seq,
                held_epoch: held.epoch,
                held_seq: held.seq,
            });
        }
        if let Some(directory) = &delta.directory {
            self.serving.replace_directory(Directory::from_proto(directory));
        }
        let operations: Vec<_> = delta.ops.into_iter().filter_map(Operation::from_proto).collect();
        self.applying = Some(Applying { operations: operations.into_iter(), current: None, then: at });
        Ok(())
    }

    fn building_at(&mut self, at: Position) -> Result<&mut State, ReplicationError> {
        let held = self.building.as_ref().map(|state| state.position).unwrap_or_default();
        match &mut self.building {
            Some(state) if state.position == at => Ok(state),
            _ => Err(ReplicationError::Gap {
                epoch: at.epoch,
                base_seq: at.seq,
                held_epoch: held.epoch,
                held_seq: held.seq,
            }),
        }
    }

    fn apply_slice(&mut self, left: &mut usize, now: Seconds) {
        let Some(applying) = &mut self.applying else { return };
        let state = self.building.as_mut().unwrap_or(&mut self.serving);
        while *left > 0 {
            let Some((operation, done)) = applying.current.take() else {
                match applying.operations.next() {
                    Some(operation) => applying.current = Some((operation, 0)),
                    None => {
                        state.position = applying.then;
                        self.applying = None;
                        return;
                    }
                }
                continue;
            };
            let take = state.apply(&operation, done, *left, now, &mut self.dropped);
            *left = left.saturating_sub(take.max(1));
            if done + take < operation.len() {
                applying.current = Some((operation, done + take));
            }
        }
    }
}

impl State {
    fn new(budget: usize, directory: Directory, position: Position) -> State {
        State { index: IndexReplica::new(budget), directory, position, received: 0 }
    }

    /// Replicas that are no longer listed take their entries with them.
    fn replace_directory(&mut self, directory: Directory) {
        let gone: Vec<_> = self.directory.replica_ids().filter(|&id| directory.replica(id).is_none()).collect();
        gone.into_iter().for_each(|id| self.index.clear(id, None));
        self.directory = directory;
    }

    /// Applies at most `limit` entries of `operation` from the `from`th on; returns how many.
    fn apply(&mut self, operation: &Operation, from: usize, limit: usize, now: Seconds, dropped: &mut u64) -> usize {
        match operation {
            Operation::Cleared(cleared) => {
                let scope = (cleared.scope != 0).then_some(ScopeId(cleared.scope));
                self.index.clear(ReplicaId(cleared.replica), scope);
                1
            }
            Operation::Removed(blocks) => {
                let (scope, replica) = (ScopeId(blocks.scope), ReplicaId(blocks.replica));
                let slice = blocks.hashes.iter().skip(from).take(limit);
                slice.map(|&hash| self.index.remove(scope, replica, BlockHash(hash))).count()
            }
            Operation::Stored(blocks) => {
                let (scope, replica) = (ScopeId(blocks.scope), ReplicaId(blocks.replica));
                let known = self.directory.has_scope(scope) && self.directory.replica(replica).is_some();
                let seen = now.saturating_sub(blocks.age_s);
                let mut count = 0;
                for &hash in blocks.hashes.iter().skip(from).take(limit) {
                    let stored = known && self.index.store(scope, replica, BlockHash(hash), seen).is_ok();
                    *dropped += u64::from(!stored);
                    count += 1;
                }
                self.received += count as u64;
                count
            }
        }
    }
}

impl Operation {
    fn from_proto(wire: proto::Op) -> Option<Operation> {
        Some(match wire.op? {
            op::Op::Stored(blocks) => Operation::Stored(blocks),
            op::Op::Removed(blocks) => Operation::Removed(blocks),
            op::Op::Cleared(cleared) => Operation::Cleared(cleared),
        })
    }

    fn len(&self) -> usize {
        match self {
            Operation::Stored(blocks) | Operation::Removed(blocks) => blocks.hashes.len(),
            Operation::Cleared(_) => 1,
        }
    }
}
