//! Runs whose parent is unknown, waiting for it within bounds.
//!
//! Found by what they wait for and by the blocks that they bring, so that a source with many of them stays as fast as
//! one with none. Cost: O(blocks of the run) to park, take and drop; O(1) to see that nobody waits for a block.

use super::chain::Run;
use super::{Limits, Tier};
use crate::events::EngineHash;
use crate::hash::{BlockSize, Namespace};
use hashbrown::HashMap;
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(super) struct Orphans {
    /// By age: numbers rise.
    runs: BTreeMap<u64, Waiting>,
    next: u64,
    by_parent: HashMap<EngineHash, Vec<u64>>,
    by_hash: HashMap<EngineHash, Vec<u64>>,
    tokens: usize,
}

/// An owned [`Run`].
#[derive(Debug)]
pub(super) struct Waiting {
    since_ms: u64,
    parent: EngineHash,
    hashes: Vec<EngineHash>,
    gone: Vec<u32>,
    tokens: Vec<u32>,
    block_size: BlockSize,
    adapter: String,
    tier: Tier,
    group: Option<u32>,
    namespaces: Vec<(u32, Namespace)>,
    aliased: bool,
}

impl Waiting {
    pub(super) fn run(&self) -> Run<'_> {
        Run {
            hashes: &self.hashes,
            gone: &self.gone,
            parent: Some(self.parent),
            tokens: &self.tokens,
            block_size: self.block_size,
            adapter: &self.adapter,
            tier: self.tier,
            group: self.group,
            namespaces: &self.namespaces,
            aliased: self.aliased,
        }
    }

    fn copies(&self) -> u64 {
        self.hashes.len().saturating_sub(self.gone.len()) as u64
    }
}

impl Orphans {
    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Blocks that wait.
    pub(super) fn blocks(&self) -> usize {
        self.runs.values().map(Waiting::copies).sum::<u64>() as usize
    }

    /// Parks a run that has a parent; the blocks that were dropped for it.
    pub(super) fn park(&mut self, run: &Run<'_>, now_ms: u64, limits: &Limits) -> u64 {
        let blocks = run.hashes.len().saturating_sub(run.gone.len()) as u64;
        let Some(parent) = run.parent else { return blocks };
        if run.tokens.len() > limits.orphan_tokens || limits.orphans == 0 {
            return blocks;
        }
        let mut dropped = 0;
        while self.runs.len() >= limits.orphans || self.tokens + run.tokens.len() > limits.orphan_tokens {
            let Some((_, oldest)) = self.runs.pop_first().map(|(id, run)| (id, self.forget(id, run))) else {
                break;
            };
            dropped += oldest.copies();
        }
        let id = self.next;
        self.next += 1;
        self.tokens += run.tokens.len();
        self.by_parent.entry(parent).or_default().push(id);
        for &hash in run.hashes {
            self.by_hash.entry(hash).or_default().push(id);
        }
        let waiting = Waiting {
            since_ms: now_ms,
            parent,
            hashes: run.hashes.to_vec(),
            gone: run.gone.to_vec(),
            tokens: run.tokens.to_vec(),
            block_size: run.block_size,
            adapter: run.adapter.to_owned(),
            tier: run.tier,
            group: run.group,
            namespaces: run.namespaces.to_vec(),
            aliased: run.aliased,
        };
        self.runs.insert(id, waiting);
        dropped
    }

    /// The runs that follow one of `parents`, oldest first.
    pub(super) fn take_children(&mut self, parents: &[EngineHash]) -> Vec<Waiting> {
        let mut ids: Vec<u64> =
            parents.iter().filter_map(|parent| self.by_parent.get(parent)).flatten().copied().collect();
        ids.sort_unstable();
        ids.dedup();
        ids.into_iter().filter_map(|id| self.runs.remove(&id).map(|run| self.forget(id, run))).collect()
    }

    /// One copy of a waiting block was removed; whether there was one.
    pub(super) fn remove(&mut self, hash: EngineHash, tier: Tier, group: Option<u32>) -> bool {
        let Some(ids) = self.by_hash.get(&hash) else { return false };
        for id in ids {
            let Some(run) = self.runs.get_mut(id).filter(|run| run.tier == tier && run.group == group) else {
                continue;
            };
            let is_there = |at: &u32| !run.gone.contains(at);
            let mut places = (0..).zip(&run.hashes).filter(|&(_, of)| *of == hash).map(|(at, _)| at);
            if let Some(at) = places.find(is_there) {
                run.gone.push(at);
                run.gone.sort_unstable();
                return true;
            }
        }
        false
    }

    /// Drops what has waited too long; the blocks dropped.
    pub(super) fn expire(&mut self, now_ms: u64, ttl_ms: u64) -> u64 {
        let mut dropped = 0;
        while let Some(first) = self.runs.first_entry() {
            if now_ms.saturating_sub(first.get().since_ms) < ttl_ms {
                break;
            }
            let (id, run) = first.remove_entry();
            dropped += self.forget(id, run).copies();
        }
        dropped
    }

    pub(super) fn clear(&mut self) {
        *self = Orphans { next: self.next, ..Orphans::default() };
    }

    /// Takes a run that was removed out of the other tables.
    fn forget(&mut self, id: u64, run: Waiting) -> Waiting {
        self.tokens -= run.tokens.len();
        unlink(&mut self.by_parent, run.parent, id);
        run.hashes.iter().for_each(|&hash| unlink(&mut self.by_hash, hash, id));
        run
    }
}

fn unlink(table: &mut HashMap<EngineHash, Vec<u64>>, hash: EngineHash, id: u64) {
    let Some(ids) = table.get_mut(&hash) else { return };
    if let Some(at) = ids.iter().position(|&of| of == id) {
        ids.remove(at);
    }
    if ids.is_empty() {
        table.remove(&hash);
    }
}
