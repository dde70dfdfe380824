//! The order of batches: duplicates, gaps, replays, epochs.

use super::blocks::Blocks;
use super::chain::{Announcement, Run, announcement};
use super::hash_check::{HashCheck, HashReport};
use super::orphans::{Orphans, Waiting};
use super::recent::{Recent, Seen};
use super::{Limits, Sink, State, Stats};
use crate::events::{Batch, BlockStored, Event, shape};
use std::collections::BTreeMap;
use xxhash_rust::xxh3::xxh3_64;

/// Batches of a process that is gone which may come after those of the next one: what a publisher had queued.
const MOST_LATE: u32 = 1024;

/// One source. The caller feeds it what the sockets bring and starts the replays that it asks for.
#[derive(Debug)]
pub struct Source {
    limits: Limits,
    has_replay: bool,
    blocks: Blocks,
    orphans: Orphans,
    hash_check: HashCheck,
    stats: Stats,
    /// Counts engine processes, from 1.
    epoch: u64,
    /// Number of the batch to apply next.
    next: u64,
    /// Digest of batch `next - 1`; `None` before the first batch of the epoch.
    applied: Option<u64>,
    /// Digests of the epoch's newest batches.
    recent: Recent,
    /// The newest live batch of the epoch.
    newest: Option<Newest>,
    /// The engine's clock at the first batch heard in this epoch, seconds.
    began_s: Option<f64>,
    /// When the engine process says that it started, seconds on its clock.
    process_started_s: Option<f64>,
    /// Nothing has come since the stream was opened.
    fresh: bool,
    /// Late batches of the process before this one that may still be told by their time.
    late_left: u32,
    /// By number.
    held: BTreeMap<u64, Held>,
    held_bytes: usize,
    phase: Phase,
    degraded: bool,
    ticket: u64,
    /// No replay is asked for before this time.
    replay_after_ms: u64,
}

#[derive(Clone, Copy, Debug)]
struct Newest {
    seq: u64,
    /// The engine's clock, seconds.
    ts: f64,
}

/// A replay to start: everything from batch `from` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayRequest {
    /// First batch number asked for.
    pub from: u64,
    /// To be handed back with what the replay brings; answers under an older ticket are ignored.
    pub ticket: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Following,
    Wanting { attempts: u32 },
    Replaying { attempts: u32, answers: Answers },
}

/// What a replay brought so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Answers {
    /// Highest number.
    end: Option<u64>,
    /// The first was batch 0.
    whole: bool,
    /// Something was new and could be applied.
    progress: bool,
}

/// A batch that waits for the ones before it.
#[derive(Debug)]
struct Held {
    /// Ticket of the newest replay when it came: a ring that was asked later must have it too.
    ticket: u64,
    payload: Vec<u8>,
}

impl Source {
    /// A source that was never heard. `has_replay`: the publisher keeps a ring that can be asked.
    pub fn new(has_replay: bool, limits: Limits) -> Source {
        Source {
            blocks: Blocks::new(&limits),
            hash_check: HashCheck::new(&limits.hash_seeds),
            limits,
            has_replay,
            orphans: Orphans::default(),
            stats: Stats::default(),
            epoch: 1,
            next: 0,
            applied: None,
            recent: Recent::default(),
            newest: None,
            began_s: None,
            process_started_s: None,
            fresh: false,
            late_left: 0,
            held: BTreeMap::new(),
            held_bytes: 0,
            phase: Phase::Following,
            degraded: false,
            ticket: 0,
            replay_after_ms: 0,
        }
    }

    /// The live stream was opened, or opened again: batches may have been missed, the engine may be another process.
    pub fn connected(&mut self) {
        self.fresh = true;
        if self.has_replay && self.phase == Phase::Following {
            self.replay_after_ms = 0;
            self.phase = Phase::Wanting { attempts: 0 };
        }
    }

    /// The engine process started at `unix_s` on its own clock, as `process_start_time_seconds` of its metrics says; to
    /// be called whenever that was read. What was published before is another process's.
    pub fn process_started(&mut self, unix_s: f64, sink: &mut impl Sink) {
        /// The two clocks are one, read in different ways.
        const TOLERANCE_S: f64 = 1.0;
        if !unix_s.is_finite()
            || self.process_started_s.is_some_and(|known| (known - unix_s).abs() < TOLERANCE_S)
        {
            return;
        }
        self.process_started_s = Some(unix_s);
        if self.began_s.is_some_and(|began| began < unix_s - TOLERANCE_S) {
            self.restart(false, sink);
            self.connected();
        }
    }

    /// The engine is gone for good, or for so long that nothing of what was known can be trusted.
    pub fn lost(&mut self, sink: &mut impl Sink) {
        if self.newest.is_some() || self.applied.is_some() || !self.held.is_empty() {
            self.restart(false, sink);
        }
    }

    /// A live batch.
    pub fn batch(&mut self, seq: u64, payload: &[u8], now_ms: u64, sink: &mut impl Sink) {
        self.stats.batches += 1;
        self.stats.bytes += payload.len() as u64;
        if seq == u64::MAX {
            return self.refuse("reserved_seq");
        }
        let digest = xxh3_64(payload);
        let ts = Batch::timestamp(payload);
        let fresh = std::mem::take(&mut self.fresh);
        match self.recent.seen(seq, digest) {
            Seen::Same => return self.stats.duplicates += 1,
            Seen::Other => self.restart(false, sink),
            Seen::Unknown => match self.newest {
                // Numbers went back: another process, unless the batch is older and only late.
                Some(newest) if seq <= newest.seq => {
                    if fresh || ts.is_none_or(|ts| ts > newest.ts) {
                        self.restart(false, sink);
                    } else if seq < self.next {
                        return self.stats.late += 1;
                    }
                }
                // Numbers went on where the process before this one ended.
                _ if seq > self.next && self.late_left > 0 && ts < self.began_s => {
                    self.late_left -= 1;
                    return self.stats.late += 1;
                }
                _ => {}
            },
        }
        if seq.checked_add(1) == Some(self.next) && self.applied.is_some_and(|applied| applied != digest) {
            self.restart(false, sink);
        }
        self.recent.note(seq, digest);
        self.began_s = self.began_s.or(ts);
        if self.newest.is_none_or(|newest| seq > newest.seq) {
            self.newest = Some(Newest { seq, ts: ts.unwrap_or(f64::MIN) });
        }
        if seq < self.next {
            return self.stats.duplicates += 1;
        }
        if self.phase != Phase::Following {
            return self.hold(seq, payload, now_ms, sink);
        }
        if seq > self.next {
            // The first batch heard is not the first sent: joined late, which is no gap.
            let joined = self.applied.is_none();
            self.stats.gaps += u64::from(!joined);
            if self.has_replay && now_ms >= self.replay_after_ms {
                self.phase = Phase::Wanting { attempts: 0 };
                return self.hold(seq, payload, now_ms, sink);
            }
            self.jump(seq);
        }
        self.apply(seq, payload, digest, now_ms, sink);
    }

    /// The replay to start now, if one is wanted.
    pub fn replay_request(&mut self, now_ms: u64) -> Option<ReplayRequest> {
        let Phase::Wanting { attempts } = self.phase else { return None };
        if now_ms < self.replay_after_ms {
            return None;
        }
        // From the last batch applied, which is proof of the engine's identity.
        let from = if self.applied.is_some() { self.next.saturating_sub(1) } else { 0 };
        self.ticket += 1;
        self.stats.replays += 1;
        self.phase = Phase::Replaying { attempts, answers: Answers::default() };
        Some(ReplayRequest { from, ticket: self.ticket })
    }

    /// A batch that the replay with this ticket brought.
    pub fn replayed(&mut self, ticket: u64, seq: u64, payload: &[u8], now_ms: u64, sink: &mut impl Sink) {
        let Phase::Replaying { attempts, mut answers } = self.phase else { return };
        if ticket != self.ticket || seq == u64::MAX {
            return;
        }
        self.stats.replayed += 1;
        self.stats.bytes += payload.len() as u64;
        let digest = xxh3_64(payload);
        let is_last = seq.checked_add(1) == Some(self.next);
        let differs = (is_last && self.applied.is_some_and(|applied| applied != digest))
            || (seq < self.next && self.recent.seen(seq, digest) == Seen::Other);
        if differs {
            self.restart(true, sink);
            self.phase = Phase::Wanting { attempts: 0 };
            return;
        }
        let is_first = answers.end.is_none();
        answers.whole |= is_first && seq == 0;
        answers.progress |= seq == self.next || (is_first && seq > self.next);
        answers.end = answers.end.max(Some(seq));
        self.phase = Phase::Replaying { attempts, answers };
        if seq < self.next {
            self.stats.duplicates += 1;
        } else if seq == self.next || is_first {
            // If the first is beyond what was asked for, the ring starts here: what was before is gone for good.
            self.jump(seq);
            self.apply(seq, payload, digest, now_ms, sink);
        } else {
            self.hold(seq, payload, now_ms, sink);
        }
    }

    /// The replay with this ticket is over: `complete` if its end mark came, else it failed or went silent.
    pub fn replay_ended(&mut self, ticket: u64, complete: bool, now_ms: u64, sink: &mut impl Sink) {
        let Phase::Replaying { attempts, answers } = self.phase else { return };
        if ticket != self.ticket {
            return;
        }
        if complete && answers.end.is_none() && self.applied.is_some() {
            // The ring ends before a batch that was applied: another process.
            self.restart(true, sink);
            self.phase = Phase::Wanting { attempts: 0 };
            return;
        }
        let foreign = |seq: u64, held: &Held| held.ticket < ticket && Some(seq) > answers.end;
        if complete && self.held.iter().any(|(&seq, held)| foreign(seq, held)) {
            // Batches that came before the ring was asked, and that it does not have: it lost its end on the way, or
            // they are another process's.
            if answers.progress {
                self.phase = Phase::Wanting { attempts };
                return;
            }
            self.held.retain(|&seq, held| !foreign(seq, held));
            self.held_bytes = self.held.values().map(|held| held.payload.len()).sum();
        }
        self.apply_held(now_ms, sink);
        if complete && self.held.is_empty() {
            self.degraded &= !answers.whole;
            self.phase = Phase::Following;
        } else if attempts + 1 < self.limits.replay_attempts {
            const BACKOFF_MS: u64 = 250;
            self.replay_after_ms = now_ms.saturating_add(BACKOFF_MS << attempts.min(8));
            self.phase = Phase::Wanting { attempts: attempts + 1 };
        } else {
            self.give_up(now_ms, sink);
        }
    }

    /// A message that could not even be numbered.
    pub fn refuse(&mut self, reason: &'static str) {
        self.stats.decode_error(reason, String::new);
    }

    /// Housekeeping; call it every second or so.
    pub fn tick(&mut self, now_ms: u64) {
        self.stats.orphans_dropped += self.orphans.expire(now_ms, self.limits.orphan_ttl_ms);
    }

    /// How well the source is known.
    pub fn state(&self) -> State {
        match self.phase {
            Phase::Wanting { .. } => State::Gap,
            Phase::Replaying { .. } => State::Replaying,
            Phase::Following if self.degraded => State::Degraded,
            Phase::Following => State::Synced,
        }
    }

    /// Counters.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Number of the engine process, from 1.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Number of the last batch applied in this epoch.
    pub fn last_seq(&self) -> Option<u64> {
        self.applied.and_then(|_| self.next.checked_sub(1))
    }

    /// Distinct blocks held by the engine.
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Bytes allocated for the map of the engine's hashes.
    pub fn map_bytes(&self) -> usize {
        self.blocks.bytes()
    }

    /// Whether and how the hashes of this engine process can be recomputed.
    pub fn hash_check(&self) -> HashReport {
        self.hash_check.report()
    }

    /// Blocks that wait for their parent.
    pub fn waiting_blocks(&self) -> usize {
        self.orphans.blocks()
    }

    /// Begins a new epoch. `keep_held`: what is held came from the new process already.
    fn restart(&mut self, keep_held: bool, sink: &mut impl Sink) {
        self.epoch += 1;
        self.hash_check.restart();
        self.clear(sink);
        self.next = 0;
        self.applied = None;
        self.degraded = false;
        self.replay_after_ms = 0;
        self.phase = Phase::Following;
        self.recent.clear();
        self.began_s = None;
        self.late_left = MOST_LATE;
        if !keep_held {
            self.newest = None;
            self.held.clear();
            self.held_bytes = 0;
        }
    }

    fn clear(&mut self, sink: &mut impl Sink) {
        self.blocks.clear();
        self.orphans.clear();
        sink.cleared();
    }

    /// Goes on at `seq` without what is before it.
    fn jump(&mut self, seq: u64) {
        if seq > self.next {
            self.stats.missed_batches += seq - self.next;
            self.degraded = true;
        }
        self.next = seq;
    }

    fn hold(&mut self, seq: u64, payload: &[u8], now_ms: u64, sink: &mut impl Sink) {
        self.held_bytes += payload.len();
        let held = Held { ticket: self.ticket, payload: payload.to_vec() };
        if let Some(replaced) = self.held.insert(seq, held) {
            self.held_bytes -= replaced.payload.len();
        }
        if self.held.len() > self.limits.held_batches || self.held_bytes > self.limits.held_bytes {
            self.give_up(now_ms, sink);
        }
    }

    /// Applies what is held up to the first hole.
    fn apply_held(&mut self, now_ms: u64, sink: &mut impl Sink) {
        while let Some(first) = self.held.first_entry() {
            if *first.key() > self.next {
                break;
            }
            let (seq, Held { payload, .. }) = first.remove_entry();
            self.held_bytes -= payload.len();
            if seq == self.next {
                self.apply(seq, &payload, xxh3_64(&payload), now_ms, sink);
            } else {
                self.stats.duplicates += 1;
            }
        }
    }

    /// Ends the search for what is missing and goes on with what there is.
    fn give_up(&mut self, now_ms: u64, sink: &mut impl Sink) {
        self.phase = Phase::Following;
        self.replay_after_ms = now_ms.saturating_add(self.limits.replay_cooldown_ms);
        self.apply_held(now_ms, sink);
        while let Some((&seq, _)) = self.held.first_key_value() {
            self.jump(seq);
            self.apply_held(now_ms, sink);
        }
    }

    fn apply(&mut self, seq: u64, payload: &[u8], digest: u64, now_ms: u64, sink: &mut impl Sink) {
        self.next = seq.saturating_add(1);
        self.applied = Some(digest);
        self.recent.note(seq, digest);
        let batch = match Batch::decode(payload) {
            Ok(batch) => batch,
            Err(error) => return self.stats.decode_error(error.reason(), || shape(payload)),
        };
        self.began_s = Some(self.began_s.map_or(batch.ts, |began| began.min(batch.ts)));
        let mut events = batch.events();
        loop {
            let rest = events.bytes();
            match events.next() {
                Some(Ok(event)) => self.event(event, now_ms, sink),
                Some(Err(error)) => self.stats.decode_error(error.reason(), || shape(rest)),
                None => break,
            }
        }
    }

    fn event(&mut self, event: Event<'_>, now_ms: u64, sink: &mut impl Sink) {
        self.stats.events += 1;
        match event {
            Event::Stored(stored) => self.stored(&stored, now_ms, sink),
            Event::Removed(removed) => {
                let mut unknown = 0;
                self.blocks.remove(&removed, &mut self.stats, sink, |hash, tier| {
                    if self.orphans.is_empty() || !self.orphans.remove(hash, tier, removed.group) {
                        unknown += 1;
                    }
                });
                self.stats.unknown_removals += unknown;
            }
            Event::Cleared => {
                self.clear(sink);
                // Whatever was missed was about blocks that are gone.
                self.degraded = false;
            }
            Event::Unknown => self.stats.skip("unknown_event"),
        }
    }

    fn stored(&mut self, event: &BlockStored<'_>, now_ms: u64, sink: &mut impl Sink) {
        match announcement(event) {
            Ok(Announcement::Blocks { count, block_size, namespaces }) => {
                self.hash_check.observe(event);
                self.store(&Run::new(event, count, block_size, &namespaces), now_ms, sink);
            }
            Ok(Announcement::Placeholder) => self.blocks.store_placeholder(event, &mut self.stats, sink),
            Err(reason) => self.stats.skip(reason),
        }
    }

    /// Stores a run, and those that have waited for its blocks.
    fn store(&mut self, run: &Run<'_>, now_ms: u64, sink: &mut impl Sink) {
        let mut ready = self.store_one(run, now_ms, sink);
        while let Some(waiting) = ready.pop() {
            ready.extend(self.store_one(&waiting.run(), now_ms, sink));
        }
    }

    /// Stores a run or parks it; the runs that can follow it now.
    fn store_one(&mut self, run: &Run<'_>, now_ms: u64, sink: &mut impl Sink) -> Vec<Waiting> {
        let Some(start) = self.blocks.start_of(run) else {
            self.stats.orphans += run.hashes.len() as u64;
            self.stats.orphans_dropped += self.orphans.park(run, now_ms, &self.limits);
            return Vec::new();
        };
        self.blocks.store(run, start, &mut self.stats, sink);
        if self.orphans.is_empty() { Vec::new() } else { self.orphans.take_children(run.hashes) }
    }
}
