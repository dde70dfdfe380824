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
//! Waiting bytes are bounded (64 MiB).

use super::proto::{self, op, payload::Body};
use super::{Directory, PROTOCOL_VERSION, ReplicationError, frame};
use crate::hash::BlockHash;
use crate::replica::{IndexReplica, ReplicaId, ScopeId, Seconds};
use std::collections::VecDeque;

/// Bytes of received frames that may wait to be applied.
pub(super) const MAX_WAITING: usize = 64 << 20;

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
        let gone: Vec<_> =
            self.directory.replica_ids().filter(|&id| directory.replica(id).is_none()).collect();
        gone.into_iter().for_each(|id| self.index.clear(id, None));
        self.directory = directory;
    }

    /// Applies at most `limit` entries of `operation` from the `from`th on; returns how many.
    fn apply(
        &mut self,
        operation: &Operation,
        from: usize,
        limit: usize,
        now: Seconds,
        dropped: &mut u64,
    ) -> usize {
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

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn directory(replicas: &[u32]) -> proto::Directory {
        let replica = |&id: &u32| proto::Replica {
            id,
            name: format!("engine-{id}"),
            address: format!("127.0.0.1:{id}"),
            tenant: "default".into(),
            model: "m".into(),
            ..Default::default()
        };
        proto::Directory {
            replicas: replicas.iter().map(replica).collect(),
            scopes: vec![proto::Scope {
                id: 1,
                tenant: "default".into(),
                model: "m".into(),
                hash_scheme: crate::hash::SCHEME.into(),
                adapter: String::new(),
            }],
            ..Default::default()
        }
    }

    fn blocks(replica: u32, hashes: &[u64]) -> proto::Blocks {
        proto::Blocks { scope: 1, replica, tier: proto::Tier::T1 as i32, age_s: 0, hashes: hashes.to_vec() }
    }

    fn stored(replica: u32, hashes: &[u64]) -> proto::Op {
        proto::Op { op: Some(op::Op::Stored(blocks(replica, hashes))) }
    }

    fn removed(replica: u32, hashes: &[u64]) -> proto::Op {
        proto::Op { op: Some(op::Op::Removed(blocks(replica, hashes))) }
    }

    fn send(follower: &mut Follower, epoch: u64, base_seq: u64, seq: u64, body: Body) {
        follower.receive(frame::seal(epoch, base_seq, seq, body).encode_to_vec()).unwrap();
    }

    fn send_snapshot(
        follower: &mut Follower,
        epoch: u64,
        seq: u64,
        chunks: Vec<proto::Blocks>,
        entries: u64,
    ) {
        let begin = proto::SnapshotBegin { protocol_version: 1, directory: Some(directory(&[1, 2])) };
        send(follower, epoch, seq, seq, Body::SnapshotBegin(begin));
        for blocks in chunks {
            send(
                follower,
                epoch,
                seq,
                seq,
                Body::SnapshotChunk(proto::SnapshotChunk { blocks: vec![blocks] }),
            );
        }
        send(follower, epoch, seq, seq, Body::SnapshotEnd(proto::SnapshotEnd { entries }));
    }

    fn delta(ops: Vec<proto::Op>) -> Body {
        Body::Delta(proto::Delta { directory: None, ops })
    }

    fn run(follower: &mut Follower, slice: usize) -> Result<(), ReplicationError> {
        while follower.work(slice, 100)? == Progress::More {}
        Ok(())
    }

    fn held(follower: &Follower) -> Vec<(u64, u32)> {
        let mut held: Vec<_> =
            follower.index().iter().map(|(_, hash, replica)| (hash.0, replica.0)).collect();
        held.sort_unstable();
        held
    }

    fn followed(slice: usize) -> Follower {
        let mut follower = Follower::new(1000);
        send_snapshot(&mut follower, 9, 5, vec![blocks(1, &[1, 2, 3]), blocks(2, &[1])], 4);
        send(&mut follower, 9, 5, 6, delta(vec![stored(2, &[2]), removed(1, &[3]), stored(1, &[4])]));
        run(&mut follower, slice).unwrap();
        follower
    }

    #[test]
    fn snapshot_then_deltas_in_slices_of_any_size() {
        for slice in 1..12 {
            let follower = followed(slice);
            assert_eq!(follower.position(), Position { epoch: 9, seq: 6 });
            assert_eq!(held(&follower), [(1, 1), (1, 2), (2, 1), (2, 2), (4, 1)], "slice {slice}");
        }
    }

    #[test]
    fn the_old_state_serves_until_the_snapshot_is_complete() {
        let mut follower = followed(100);
        let before = held(&follower);
        let begin = proto::SnapshotBegin { protocol_version: 1, directory: Some(directory(&[1])) };
        send(&mut follower, 10, 1, 1, Body::SnapshotBegin(begin));
        send(
            &mut follower,
            10,
            1,
            1,
            Body::SnapshotChunk(proto::SnapshotChunk { blocks: vec![blocks(1, &[7])] }),
        );
        run(&mut follower, 3).unwrap();
        assert_eq!((held(&follower), follower.position().epoch), (before, 9));
        send(&mut follower, 10, 1, 1, Body::SnapshotEnd(proto::SnapshotEnd { entries: 1 }));
        run(&mut follower, 3).unwrap();
        assert_eq!((held(&follower), follower.position()), (vec![(7, 1)], Position { epoch: 10, seq: 1 }));
    }

    #[test]
    fn a_frame_twice_is_a_frame_once_and_a_gap_is_an_error() {
        let mut follower = followed(100);
        let before = held(&follower);
        send(&mut follower, 9, 5, 6, delta(vec![removed(1, &[1])]));
        run(&mut follower, 100).unwrap();
        assert_eq!(held(&follower), before);
        for (epoch, base_seq) in [(9, 7), (8, 6)] {
            send(&mut follower, epoch, base_seq, base_seq + 1, delta(vec![removed(1, &[1])]));
            assert!(matches!(run(&mut follower, 100), Err(ReplicationError::Gap { .. })));
            assert_eq!(held(&follower), before);
        }
    }

    #[test]
    fn a_delta_cut_in_the_middle_is_repeated() {
        let mut follower = followed(100);
        let next = || delta(vec![stored(1, &[20, 21, 22]), removed(1, &[1, 2])]);
        send(&mut follower, 9, 6, 7, next());
        assert_eq!(follower.work(2, 100), Ok(Progress::More));
        follower.disconnected();
        assert_eq!(follower.position().seq, 6);
        send(&mut follower, 9, 6, 7, next());
        run(&mut follower, 100).unwrap();
        assert_eq!(held(&follower), [(1, 2), (2, 2), (4, 1), (20, 1), (21, 1), (22, 1)]);
    }

    #[test]
    fn broken_snapshots_change_nothing() {
        let mut follower = followed(100);
        let before = held(&follower);
        send_snapshot(&mut follower, 10, 1, vec![blocks(1, &[7])], 2);
        assert_eq!(run(&mut follower, 100), Err(ReplicationError::Incomplete { announced: 2, received: 1 }));
        send(&mut follower, 10, 1, 1, Body::SnapshotChunk(proto::SnapshotChunk::default()));
        assert!(matches!(run(&mut follower, 100), Err(ReplicationError::Gap { .. })));
        let begin = proto::SnapshotBegin { protocol_version: 99, directory: None };
        send(&mut follower, 10, 1, 1, Body::SnapshotBegin(begin));
        assert_eq!(run(&mut follower, 100), Err(ReplicationError::Version(99)));
        follower.receive(b"garbage".to_vec()).unwrap();
        assert_eq!(run(&mut follower, 100), Err(ReplicationError::Malformed("frame")));
        assert_eq!(held(&follower), before);
    }

    #[test]
    fn a_replica_that_leaves_the_directory_takes_its_entries_along() {
        let mut follower = followed(100);
        let change =
            proto::Delta { directory: Some(directory(&[2])), ops: vec![stored(1, &[8]), stored(2, &[9])] };
        send(&mut follower, 9, 6, 7, Body::Delta(change));
        run(&mut follower, 100).unwrap();
        assert_eq!(held(&follower), [(1, 2), (2, 2), (9, 2)]);
        assert_eq!(follower.dropped(), 1);
    }

    #[test]
    fn the_budget_and_the_queue_are_bounded() {
        let mut follower = Follower::new(2);
        send_snapshot(&mut follower, 9, 5, vec![blocks(1, &[1, 2, 3])], 3);
        run(&mut follower, 100).unwrap();
        assert_eq!((follower.index().entries(), follower.dropped()), (2, 1));
        follower.receive(vec![0; MAX_WAITING]).unwrap();
        assert_eq!(follower.receive(vec![0]), Err(ReplicationError::Overflow(MAX_WAITING)));
        assert_eq!(follower.work(1, 0), Ok(Progress::Idle));
    }
}
