//! One engine's event stream, turned into index operations: sans-IO state of a source.
//!
//! A source is one publisher: numbered batches from 0, +1 each, which restart at 0 with the engine process. Batches
//! reach the [`Sink`] strictly in order and once; [`blocks`] keeps what the engine holds.
//!
//! ```text
//!                gap, reconnect, late join (with replay)           replay_request()
//!   following ──────────────────────────────────────────▶ wanting ─────────────────▶ replaying
//!       ▲                                                    ▲                           │
//!       │                                                    └── hole left, attempts left┤
//!       └──────────── nothing held, or attempts used up: jump over the hole ─────────────┘
//! ```
//!
//! Rules of order
//! * While wanting or replaying, live batches are held (bounded) and applied by number afterwards: a live batch applied
//!   before the replay ends would resurrect what an earlier one removed.
//! * A batch heard before is dropped, and so is one that comes behind later ones that were applied.
//! * A new epoch, in which everything is cleared and the ring is asked for from 0, begins when it is certain that the
//!   engine is another process: numbers go back while the engine's clock goes on, a number comes again with another
//!   content (live or by replay), a replay starts at the last batch applied and does not have it, or the engine's metrics
//!   name a start time after what was published. Batches of the process before that are still under way, told by number
//!   and time, are dropped.
//! * A hole that no replay fills is jumped over: what was removed in it stays indexed until the index's TTL, what was
//!   stored in it is unknown. The source counts as degraded until a replay from 0 succeeds, the engine clears its cache,
//!   or a new epoch begins.
//!
//! Rules of blocks
//! * The key of a block is our own hash of its tokens and what else the wire tells ([`crate::hash`]); the engine's hash
//!   only links events. Copies are counted per medium and KV-cache group, up to [`Limits::max_copies`].
//! * Blocks whose parent is unknown wait (bounded, with a TTL) and are never indexed as the start of a prompt.
//! * Groups of hybrid models that do not attend to everything are not indexed: their positions cannot be known. What is
//!   indexed of the others says more than the engine can reuse.
//! * An offloaded copy is a lower tier; what leaves the engine's memory and has one is demoted, not lost. A cleared cache
//!   is empty on all tiers.
//! * Pages smaller than [`Limits::group_to`] are gathered: a block is indexed with its last page. Predictions are then
//!   right to that size, and not to the engine's.
//! * Where the engine's hash covers tokens ahead (SGLang's bigrams, vLLM's look-ahead), the last block of a match may not
//!   be reusable: a prediction is up to a block too high.
//!
//! Not known here: whether a second announcement is a second copy or (`kv_cache_report_mode=full`) the same one again;
//! it counts as a copy, as vLLM means it by default, unless the cap is 1.

mod blocks;
mod chain;
mod copies;
mod engine_map;
mod hash_check;
mod orphans;
mod pages;
mod recent;
mod sequence;
mod sink;

pub use hash_check::{HashCheck, HashReport, Recipe};
pub use sequence::{ReplayRequest, Source};
pub use sink::{Sink, State, Stats, Stored, Tier};

use crate::hash::BlockSize;

/// Bounds of one source, and what the wire does not tell of it.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Spreads the engine's hashes in our table; random where engines are not trusted.
    pub seed: u64,
    /// Blocks smaller than this are gathered to blocks of this size, if it is a multiple of theirs.
    pub group_to: Option<BlockSize>,
    /// Copies counted of one block, per medium and group. 1 where requests may ask for `kv_cache_report_mode=full`.
    pub max_copies: u16,
    /// Seeds (texts of PYTHONHASHSEED) that the engine may hash with, besides vLLM's default and `"0"`.
    pub hash_seeds: Vec<String>,
    /// Distinct engine hashes; further ones are skipped. An engine of 1 TiB of KV cache has about 4 million blocks.
    pub blocks: usize,
    /// Events that wait for their parent.
    pub orphans: usize,
    /// Tokens of those events together.
    pub orphan_tokens: usize,
    /// Milliseconds that an event waits for its parent.
    pub orphan_ttl_ms: u64,
    /// Live batches held during a replay.
    pub held_batches: usize,
    /// Bytes of those batches together.
    pub held_bytes: usize,
    /// Replays asked for one gap before it is jumped over.
    pub replay_attempts: u32,
    /// Milliseconds after a failed gap during which further gaps are jumped over at once.
    pub replay_cooldown_ms: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            seed: 0,
            group_to: None,
            max_copies: 32,
            hash_seeds: Vec::new(),
            blocks: 8 << 20,
            orphans: 1024,
            orphan_tokens: 1 << 20,
            orphan_ttl_ms: 60_000,
            held_batches: 65_536,
            held_bytes: 64 << 20,
            replay_attempts: 3,
            replay_cooldown_ms: 10_000,
        }
    }
}

#[cfg(test)]
mod tests;
