//! The order of batches: duplicates, gaps, replays, epochs.

use super::blocks::{Blocks, Parent};
use super::chain::{Announcement, Run, announcement};
use super::orphans::Orphans;
use super::{Limits, Sink, State, Stats};
use crate::events::{Batch, Event};
use std::collections::BTreeMap;
use xxhash_rust::xxh3::xxh3_64;

/// One source. The caller feeds it what the sockets bring and starts the replays that it asks for.
#[derive(Debug)]
pub struct Source {
    limits: Limits,
    has_replay: bool,
    blocks: Blocks,
    orphans: Orphans,
    stats: Stats,
    /// Counts engine processes, from 1.
    epoch: u64,
    /// Number of the batch to apply next.
    next: u64,
    /// Digest of batch `next - 1`; `None` before the first batch of the epoch.
    applied: Option<u64>,
    /// Number and digest of the newest live batch of the epoch.
    live: Option<(u64, u64)>,
    /// By number.
    held: BTreeMap<u64, Held>,
    held_bytes: usize,
    phase: Phase,
    degraded: bool,
    ticket: u64,
    /// No replay is asked for before this time.
    replay_after_ms: u64,
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
            blocks: Blocks::new(limits.blocks),
            limits,
            has_replay,
            orphans: Orphans::default(),
            stats: Stats::default(),
            epoch: 1,
            next: 0,
            applied: None,
            live: None,
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
        if self.has_replay && self.phase == Phase::Following {
            self.replay_after_ms = 0;
            self.phase = Phase::Wanting { attempts: 0 };
        }
    }

    /// A live batch.
    pub fn batch(&mut self, seq: u64, payload: &[u8], now_ms: u64, sink: &mut impl Sink) {
        self.stats.batches += 1;
        if seq == u64::MAX {
            return self.refuse("reserved_seq");
        }
        let digest = xxh3_64(payload);
        match self.live {
            Some((newest, same)) if seq == newest && digest == same => return self.stats.duplicates += 1,
            Some((newest, _)) if seq <= newest => self.restart(false, sink),
            _ => {}
        }
        if seq.checked_add(1) == Some(self.next) && self.applied.is_some_and(|applied| applied != digest) {
            self.restart(false, sink);
        }
        self.live = Some((seq, digest));
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
        let digest = xxh3_64(payload);
        if seq.checked_add(1) == Some(self.next) && self.applied.is_some_and(|applied| applied != digest) {
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
        self.stats.decode_error(reason);
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

    /// Blocks that wait for their parent.
    pub fn waiting_blocks(&self) -> usize {
        self.orphans.blocks()
    }

    /// Begins a new epoch. `keep_held`: what is held came from the new process already.
    fn restart(&mut self, keep_held: bool, sink: &mut impl Sink) {
        self.epoch += 1;
        self.clear(sink);
        self.next = 0;
        self.applied = None;
        self.degraded = false;
        self.replay_after_ms = 0;
        self.phase = Phase::Following;
        if !keep_held {
            self.live = None;
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
        if self.applied.is_some() && seq > self.next {
            self.stats.missed_batches += seq.saturating_sub(self.next);
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
        let batch = match Batch::decode(payload) {
            Ok(batch) => batch,
            Err(error) => return self.stats.decode_error(error.reason()),
        };
        for event in batch.events() {
            match event {
                Ok(event) => self.event(event, now_ms, sink),
                Err(error) => self.stats.decode_error(error.reason()),
            }
        }
    }

    fn event(&mut self, event: Event<'_>, now_ms: u64, sink: &mut impl Sink) {
        self.stats.events += 1;
        match event {
            Event::Stored(stored) => match announcement(stored) {
                Ok(Announcement::Run(run)) => self.store(run, now_ms, sink),
                Ok(Announcement::Placeholder(copies)) => {
                    self.blocks.store_placeholder(&copies, &mut self.stats, sink);
                }
                Err(reason) => self.stats.skip(reason),
            },
            Event::Removed(removed) => {
                let mut unknown = 0;
                self.blocks.remove(&removed, &mut self.stats, sink, |hash, tier| {
                    if self.orphans.is_empty() || !self.orphans.remove(hash, tier, removed.group) {
                        unknown += 1;
                    }
                });
                self.stats.unknown_removals += unknown;
            }
            Event::Cleared => self.clear(sink),
            Event::Unknown => self.stats.skip("unknown_event"),
        }
    }

    fn store(&mut self, run: Run, now_ms: u64, sink: &mut impl Sink) {
        let mut ready = vec![run];
        while let Some(run) = ready.pop() {
            let parent = match self.blocks.parent_of(&run) {
                Parent::Root => None,
                Parent::Known(parent) => Some(parent),
                Parent::Unknown => {
                    self.stats.orphans += run.hashes.len() as u64;
                    self.stats.orphans_dropped += self.orphans.park(run, now_ms, &self.limits);
                    continue;
                }
            };
            self.blocks.store(&run, parent, &mut self.stats, sink);
            if !self.orphans.is_empty() {
                ready.extend(self.orphans.take_children(&run.hashes));
            }
        }
    }
}
