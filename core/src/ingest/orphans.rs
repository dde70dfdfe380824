//! Runs whose parent is unknown, waiting for it within bounds.

use super::chain::Run;
use super::{Limits, Tier};
use crate::events::EngineHash;
use std::collections::VecDeque;

/// Oldest first. Small by its bounds, so it is searched in order.
#[derive(Debug, Default)]
pub(super) struct Orphans {
    runs: VecDeque<(u64, Run)>,
    tokens: usize,
}

impl Orphans {
    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Blocks that wait.
    pub(super) fn blocks(&self) -> usize {
        self.runs.iter().map(|(_, run)| run.hashes.iter().flatten().count()).sum()
    }

    /// Parks a run; the blocks that had to make room for it.
    pub(super) fn park(&mut self, run: Run, now_ms: u64, limits: &Limits) -> u64 {
        let mut dropped = 0;
        if run.tokens.len() > limits.orphan_tokens || limits.orphans == 0 {
            return run.hashes.len() as u64;
        }
        while self.runs.len() >= limits.orphans || self.tokens + run.tokens.len() > limits.orphan_tokens {
            dropped += self.drop_oldest();
        }
        self.tokens += run.tokens.len();
        self.runs.push_back((now_ms, run));
        dropped
    }

    /// The runs that follow one of `parents`, oldest first.
    pub(super) fn take_children(&mut self, parents: &[Option<EngineHash>]) -> Vec<Run> {
        let mut children = Vec::new();
        let mut waiting = VecDeque::with_capacity(self.runs.len());
        for (since, run) in self.runs.drain(..) {
            if run.parent.is_some() && parents.contains(&run.parent) {
                self.tokens -= run.tokens.len();
                children.push(run);
            } else {
                waiting.push_back((since, run));
            }
        }
        self.runs = waiting;
        children
    }

    /// One copy of a waiting block was removed; whether there was one.
    pub(super) fn remove(&mut self, hash: EngineHash, tier: Tier, group: Option<u32>) -> bool {
        for (_, run) in self.runs.iter_mut().filter(|(_, run)| run.tier == tier && run.group == group) {
            if let Some(copy) = run.hashes.iter_mut().find(|copy| **copy == Some(hash)) {
                *copy = None;
                return true;
            }
        }
        false
    }

    /// Drops what has waited too long; the blocks dropped.
    pub(super) fn expire(&mut self, now_ms: u64, ttl_ms: u64) -> u64 {
        let mut dropped = 0;
        while self.runs.front().is_some_and(|&(since, _)| now_ms.saturating_sub(since) >= ttl_ms) {
            dropped += self.drop_oldest();
        }
        dropped
    }

    pub(super) fn clear(&mut self) {
        self.runs.clear();
        self.tokens = 0;
    }

    fn drop_oldest(&mut self) -> u64 {
        let Some((_, run)) = self.runs.pop_front() else { return 0 };
        self.tokens -= run.tokens.len();
        run.hashes.iter().flatten().count() as u64
    }
}
