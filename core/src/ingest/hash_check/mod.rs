//! Whether an engine's own block hashes can be recomputed, and how: a check of what the events say, nothing more.
//!
//! The index never depends on it. It tells operators that prompts, tokens and hashes of a source belong together, and
//! with which recipe ([`Recipe`]) another system would have to compute them.
//!
//! Only events that begin a prompt can be checked, for the whole digest of a parent is not on the wire: the first
//! [`FIRST`] of them, then one in [`EVERY`], and a few more that can tell what a recipe leaves open. Until a recipe is
//! found all known ones are tried on an event's first block; then only that one, on up to [`BLOCKS`] blocks.
//!
//! Skipped, for what their hashes cover is not on the wire: blocks of adapters (vLLM 0.31 and later hash the path, SGLang
//! an id), of multimodal content under pickle (which objects are one is unknown), of speculative decoding (0.33).
//! Not told apart from a mismatch: salts and images before vLLM 0.17, extra keys of SGLang in `format: dynamo`.
//!
//! Cost: nothing for other events; at most about 30 digests of a block for one that is checked.

mod recipe;

pub use recipe::Recipe;

use crate::events::BlockStored;
use crate::hash::{BlockSize, vllm};
use recipe::{Attempt, Candidate};

/// Prompts checked from the start on.
const FIRST: u64 = 8;
/// Then one in so many.
const EVERY: u64 = 64;
/// Checked of one event.
const BLOCKS: usize = 16;
/// Tokens of a block above which nothing is checked.
const MAX_BLOCK_SIZE: u32 = 4096;
/// Prompts in succession that nothing explains, after which the hashes count as not reproducible.
const PATIENCE: u32 = 8;

/// The check of one engine process.
#[derive(Clone, Debug)]
pub struct HashCheck {
    seeds: Vec<String>,
    found: Option<Candidate>,
    prompts: u64,
    matched: u64,
    mismatched: u64,
    /// Prompts in succession that nothing explained.
    failures: u32,
    /// Prompts that were checked for what the recipe leaves open.
    refinements: u64,
}

/// What a check found so far. Counts are blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HashReport {
    /// How the engine hashes, if that was found out.
    pub recipe: Option<Recipe>,
    /// Blocks whose hash was recomputed: `matched + mismatched`.
    pub checked: u64,
    /// Those that came out as published.
    pub matched: u64,
    /// Those that did not; of a prompt that no recipe explains, the first block.
    pub mismatched: u64,
    /// `None`: not known yet.
    pub reproducible: Option<bool>,
}

impl HashCheck {
    /// A check that tries vLLM's default seed, `"0"`, and those of `seeds` (texts of PYTHONHASHSEED).
    pub fn new(seeds: &[String]) -> HashCheck {
        let mut all = vec![vllm::DEFAULT_SEED.to_owned(), "0".to_owned()];
        all.extend(seeds.iter().filter(|seed| *seed != vllm::DEFAULT_SEED && *seed != "0").cloned());
        HashCheck::of_seeds(all)
    }

    /// Another process of the engine: everything may be different.
    pub fn restart(&mut self) {
        *self = HashCheck::of_seeds(std::mem::take(&mut self.seeds));
    }

    /// Sees an event whose tokens belong to its hashes one to one.
    #[inline]
    pub fn observe(&mut self, event: &BlockStored<'_>) {
        if event.parent.is_none() {
            self.prompts += 1;
            if self.prompts <= FIRST || self.prompts.is_multiple_of(EVERY) || self.can_refine(event) {
                self.check(event);
            }
        }
    }

    /// What was found so far.
    pub fn report(&self) -> HashReport {
        HashReport {
            recipe: self.found.as_ref().map(Candidate::recipe),
            checked: self.matched + self.mismatched,
            matched: self.matched,
            mismatched: self.mismatched,
            reproducible: match &self.found {
                _ if self.failures >= PATIENCE => Some(false),
                found => found.is_some().then_some(true),
            },
        }
    }

    fn of_seeds(seeds: Vec<String>) -> HashCheck {
        HashCheck { seeds, found: None, prompts: 0, matched: 0, mismatched: 0, failures: 0, refinements: 0 }
    }

    fn can_refine(&mut self, event: &BlockStored<'_>) -> bool {
        let can = self.refinements < FIRST
            && self.found.as_ref().is_some_and(|found| found.refined(event).nth(1).is_some());
        self.refinements += u64::from(can);
        can
    }

    #[cold]
    fn check(&mut self, event: &BlockStored<'_>) {
        let Some(block_size) = BlockSize::new(event.block_size) else { return };
        if block_size.tokens() > MAX_BLOCK_SIZE || event.looks_ahead {
            return;
        }
        let known = self.found.as_ref().map(std::slice::from_ref);
        let all = if known.is_none() { recipe::all(&self.seeds) } else { Vec::new() };
        let (mut told, mut matches) = (true, None);
        for candidate in known.unwrap_or(&all).iter().flat_map(|candidate| candidate.refined(event)) {
            match candidate.attempt(event, block_size, 1) {
                Attempt::Unknown => told = false,
                Attempt::Checked { matched: 0, .. } => {}
                Attempt::Checked { .. } => {
                    matches = Some(candidate);
                    break;
                }
            }
        }
        match matches {
            Some(candidate) => {
                if let Attempt::Checked { matched, of } = candidate.attempt(event, block_size, BLOCKS) {
                    self.matched += matched as u64;
                    self.mismatched += (of - matched) as u64;
                }
                self.failures = 0;
                self.found = Some(candidate);
            }
            None if told => {
                self.mismatched += 1;
                self.failures += 1;
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests;
