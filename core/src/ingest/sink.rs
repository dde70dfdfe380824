//! What a source tells: index operations, its state, its counters.

use crate::hash::{BlockHash, BlockSize};
use std::collections::BTreeMap;

/// Where a block is. Ordered by cost: the first is the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tier {
    /// Engine memory.
    T1,
    /// Offloaded to the host's memory.
    T2,
    /// Disk or remote.
    T3,
}

impl Tier {
    /// All tiers, the best first.
    pub const ALL: [Tier; 3] = [Tier::T1, Tier::T2, Tier::T3];

    /// The tier of an event's `medium`. vLLM: `GPU`, `CPU`, `STORAGE`, `FS`, `OBJ`; SGLang: `GPU`, `CPU_PINNED`,
    /// `DISK`, `EXTERNAL`, once `CPU_TIER1`; absent before vLLM 0.10.2.
    pub fn of_medium(medium: Option<&str>) -> Tier {
        match medium {
            None | Some("GPU" | "gpu") => Tier::T1,
            Some(medium) if medium.starts_with("CPU") || medium == "cpu" => Tier::T2,
            Some(_) => Tier::T3,
        }
    }
}

/// Receives the operations of one source. All are absolute and idempotent.
pub trait Sink {
    /// The source holds these blocks, from now on at this tier; also said again for blocks that it already held.
    fn stored(&mut self, stored: Stored<'_>);
    /// The source no longer holds these blocks, at any tier.
    fn removed(&mut self, adapter: &str, hashes: &[BlockHash]);
    /// The source holds nothing.
    fn cleared(&mut self);
}

/// Blocks that a source holds.
#[derive(Clone, Copy, Debug)]
pub struct Stored<'a> {
    /// LoRA adapter; "" for the base model.
    pub adapter: &'a str,
    /// The best tier that holds them.
    pub tier: Tier,
    /// Tokens per block.
    pub block_size: BlockSize,
    /// Our own hashes.
    pub hashes: &'a [BlockHash],
}

/// How well a source is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Every batch since the source's start, or since it was joined, was applied.
    Synced,
    /// Batches are missing; a replay is wanted.
    Gap,
    /// A replay is under way.
    Replaying,
    /// Batches are missing and will stay so.
    Degraded,
}

impl State {
    /// The state's name in metrics and in `/snapshot`.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Synced => "synced",
            State::Gap => "gap",
            State::Replaying => "replaying",
            State::Degraded => "degraded",
        }
    }
}

/// Counters of a source since its creation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Batches received live.
    pub batches: u64,
    /// Batches received by replay.
    pub replayed: u64,
    /// Bytes of payloads, live and by replay.
    pub bytes: u64,
    /// Batches that were there already.
    pub duplicates: u64,
    /// Batches that came after later ones, or after those of another process, and were dropped.
    pub late: u64,
    /// Events applied.
    pub events: u64,
    /// Blocks announced and indexed, repeats included.
    pub stored_blocks: u64,
    /// Copies removed.
    pub removed_blocks: u64,
    /// Removals of copies that nobody announced.
    pub unknown_removals: u64,
    /// Times that numbers were missing.
    pub gaps: u64,
    /// Batches that were never seen.
    pub missed_batches: u64,
    /// Replays asked for.
    pub replays: u64,
    /// Blocks that had to wait for their parent.
    pub orphans: u64,
    /// Of those, blocks whose parent never came.
    pub orphans_dropped: u64,
    /// Events that are well-formed but not indexed, by reason.
    pub skipped: BTreeMap<&'static str, u64>,
    /// Messages, payloads and events that could not be read, by reason.
    pub decode_errors: BTreeMap<&'static str, u64>,
    /// The first of these by reason, described without its values ([`crate::events::shape`]).
    pub samples: BTreeMap<&'static str, String>,
}

impl Stats {
    pub(super) fn skip(&mut self, reason: &'static str) {
        *self.skipped.entry(reason).or_default() += 1;
    }

    pub(super) fn decode_error(&mut self, reason: &'static str, sample: impl FnOnce() -> String) {
        *self.decode_errors.entry(reason).or_default() += 1;
        self.samples.entry(reason).or_insert_with(sample);
    }
}
