//! The per-worker replica of the index: which engine replica holds which block.
//!
//! Contract: operations are absolute and idempotent; a lookup is exact, holes included: a replica's run ends at its
//! first missing block, whatever it holds behind. Entries older than the TTL do not count even if nobody removed
//! them, so an index whose source is gone ages out by itself.
//!
//! Layout: one hash table per scope (structural isolation: a lookup in one scope cannot touch another's entries),
//! block hash -> holders. A single holder is stored inline, further ones in a boxed slice.
//! Cost: store and remove O(holders of the block); a lookup step O(candidates x holders of the block); clearing a
//! replica O(entries of the scopes). The table never holds more than its budget: what does not fit is refused and
//! counted by the caller.

use crate::hash::BlockHash;
use hashbrown::HashMap;

/// Number of an engine replica in the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReplicaId(pub u32);

/// Number of a scope (tenant, model, hash scheme, adapter) in the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ScopeId(pub u32);

/// Seconds on the caller's clock.
pub type Seconds = u32;

/// The budget, or the memory, is used up; the entry was not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the index replica is full")]
pub struct Full;

/// The leading blocks of a prompt that a replica holds without a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Who holds them.
    pub replica: ReplicaId,
    /// Their number, at least 1.
    pub blocks: u32,
}

/// The index of one worker.
#[derive(Debug, Default)]
pub struct IndexReplica {
    scopes: HashMap<ScopeId, HashMap<BlockHash, Holders>>,
    entries: usize,
    budget: usize,
}

impl IndexReplica {
    /// An empty index of at most `budget` storage entries (pairs of block and holder).
    pub fn new(budget: usize) -> IndexReplica {
        IndexReplica { budget, ..IndexReplica::default() }
    }

    /// Storage entries held.
    pub fn entries(&self) -> usize {
        self.entries
    }

    /// Adds `replica` to the holders of `hash` or refreshes it.
    pub fn store(
        &mut self,
        scope: ScopeId,
        replica: ReplicaId,
        hash: BlockHash,
        seen: Seconds,
    ) -> Result<(), Full> {
        let table = self.scopes.entry(scope).or_default();
        let new = Holder { replica, seen };
        if let Some(holders) = table.get_mut(&hash) {
            if let Some(holder) = holders.as_mut_slice().iter_mut().find(|holder| holder.replica == replica) {
                *holder = new;
                return Ok(());
            }
            if self.entries >= self.budget {
                return Err(Full);
            }
            holders.push(new)?;
        } else {
            if self.entries >= self.budget {
                return Err(Full);
            }
            table.try_reserve(1).map_err(|_| Full)?;
            table.insert(hash, Holders::One([new]));
        }
        self.entries += 1;
        Ok(())
    }

    /// Removes `replica` from the holders of `hash`; no effect if it is none.
    pub fn remove(&mut self, scope: ScopeId, replica: ReplicaId, hash: BlockHash) {
        let Some(table) = self.scopes.get_mut(&scope) else { return };
        let Some(holders) = table.get_mut(&hash) else { return };
        match holders.without(replica) {
            Without::Unchanged => return,
            Without::Empty => {
                table.remove(&hash);
            }
            Without::Left(left) => *holders = left,
        }
        self.entries -= 1;
        if table.is_empty() {
            self.scopes.remove(&scope);
        }
    }

    /// Removes all entries of `replica`, in `scope` or in all scopes.
    pub fn clear(&mut self, replica: ReplicaId, scope: Option<ScopeId>) {
        let mut removed = 0;
        self.scopes.retain(|&id, table| {
            if scope.is_none_or(|scope| scope == id) {
                table.retain(|_, holders| match holders.without(replica) {
                    Without::Unchanged => true,
                    Without::Empty => {
                        removed += 1;
                        false
                    }
                    Without::Left(left) => {
                        removed += 1;
                        *holders = left;
                        true
                    }
                });
            }
            !table.is_empty()
        });
        self.entries -= removed;
    }

    /// The holders of `hash` that were seen at `oldest` or later.
    pub fn holders(
        &self,
        scope: ScopeId,
        hash: BlockHash,
        oldest: Seconds,
    ) -> impl Iterator<Item = ReplicaId> {
        let holders = self.scopes.get(&scope).and_then(|table| table.get(&hash));
        let holders = holders.map(Holders::as_slice).unwrap_or_default();
        holders.iter().filter(move |holder| holder.seen >= oldest).map(|holder| holder.replica)
    }

    /// Every entry, in no order: for comparison with the source.
    pub fn iter(&self) -> impl Iterator<Item = (ScopeId, BlockHash, ReplicaId)> {
        self.scopes.iter().flat_map(|(&scope, table)| {
            table.iter().flat_map(move |(&hash, holders)| {
                holders.as_slice().iter().map(move |holder| (scope, hash, holder.replica))
            })
        })
    }
}

/// A lookup in progress: the replicas that held every block so far.
#[derive(Debug, Default)]
pub struct Walk {
    alive: Vec<ReplicaId>,
    ended: Vec<Run>,
    depth: u32,
}

impl Walk {
    /// Goes one block on; `holders` are the block's. False once nobody holds all blocks so far: further blocks cannot
    /// change the result.
    pub fn advance(&mut self, holders: &[ReplicaId]) -> bool {
        if self.depth == 0 {
            self.alive.extend_from_slice(holders);
            self.alive.sort_unstable();
            self.alive.dedup();
        } else {
            let (depth, ended) = (self.depth, &mut self.ended);
            self.alive.retain(|&replica| {
                let holds = holders.contains(&replica);
                if !holds {
                    ended.push(Run { replica, blocks: depth });
                }
                holds
            });
        }
        self.depth += 1;
        !self.alive.is_empty()
    }

    /// Whether a replica holds all blocks so far.
    pub fn is_alive(&self) -> bool {
        self.depth == 0 || !self.alive.is_empty()
    }

    /// The run of every replica that holds at least the first block, in no order.
    pub fn into_runs(mut self) -> Vec<Run> {
        let blocks = self.depth;
        self.ended.extend(self.alive.iter().map(|&replica| Run { replica, blocks }));
        self.ended
    }
}

#[derive(Clone, Copy, Debug)]
struct Holder {
    replica: ReplicaId,
    seen: Seconds,
}

#[derive(Debug)]
enum Holders {
    One([Holder; 1]),
    Many(Box<[Holder]>),
}

enum Without {
    Unchanged,
    Empty,
    Left(Holders),
}

impl Holders {
    fn as_slice(&self) -> &[Holder] {
        match self {
            Holders::One(one) => one,
            Holders::Many(many) => many,
        }
    }

    fn as_mut_slice(&mut self) -> &mut [Holder] {
        match self {
            Holders::One(one) => one,
            Holders::Many(many) => many,
        }
    }

    fn push(&mut self, holder: Holder) -> Result<(), Full> {
        let old = self.as_slice();
        let mut new = Vec::new();
        new.try_reserve_exact(old.len() + 1).map_err(|_| Full)?;
        new.extend_from_slice(old);
        new.push(holder);
        *self = Holders::Many(new.into_boxed_slice());
        Ok(())
    }

    fn without(&self, replica: ReplicaId) -> Without {
        let old = self.as_slice();
        if !old.iter().any(|holder| holder.replica == replica) {
            return Without::Unchanged;
        }
        let mut left = old.iter().filter(|holder| holder.replica != replica).copied();
        match (left.next(), left.next()) {
            (None, _) => Without::Empty,
            (Some(only), None) => Without::Left(Holders::One([only])),
            (Some(first), Some(second)) => {
                Without::Left(Holders::Many([first, second].into_iter().chain(left).collect()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const SCOPE: ScopeId = ScopeId(1);
    const A: ReplicaId = ReplicaId(1);
    const B: ReplicaId = ReplicaId(2);

    fn runs(index: &IndexReplica, chain: &[u64], oldest: Seconds) -> Vec<(u32, u32)> {
        let mut walk = Walk::default();
        for &hash in chain {
            let holders: Vec<_> = index.holders(SCOPE, BlockHash(hash), oldest).collect();
            if !walk.advance(&holders) {
                break;
            }
        }
        let mut runs: Vec<_> = walk.into_runs().iter().map(|run| (run.replica.0, run.blocks)).collect();
        runs.sort_unstable();
        runs
    }

    fn filled(entries: &[(ReplicaId, &[u64])]) -> IndexReplica {
        let mut index = IndexReplica::new(1000);
        for (replica, hashes) in entries {
            for &hash in *hashes {
                index.store(SCOPE, *replica, BlockHash(hash), 10).unwrap();
            }
        }
        index
    }

    #[test]
    fn a_run_ends_at_the_first_hole() {
        let index = filled(&[(A, &[1, 2, 4]), (B, &[1, 2, 3, 4])]);
        assert_eq!(runs(&index, &[1, 2, 3, 4, 5], 0), [(1, 2), (2, 4)]);
        assert_eq!(runs(&index, &[9, 1, 2], 0), []);
        assert_eq!(runs(&index, &[], 0), []);
    }

    #[test]
    fn storing_twice_is_storing_once() {
        let mut index = filled(&[(A, &[1]), (A, &[1]), (B, &[1])]);
        assert_eq!(index.entries(), 2);
        index.remove(SCOPE, A, BlockHash(1));
        index.remove(SCOPE, A, BlockHash(1));
        assert_eq!((index.entries(), runs(&index, &[1], 0)), (1, vec![(2, 1)]));
    }

    #[test]
    fn old_entries_do_not_count() {
        let mut index = filled(&[(A, &[1, 2])]);
        index.store(SCOPE, B, BlockHash(1), 20).unwrap();
        assert_eq!(runs(&index, &[1, 2], 11), [(2, 1)]);
    }

    #[test]
    fn clearing_leaves_other_replicas_and_scopes_alone() {
        let mut index = filled(&[(A, &[1, 2]), (B, &[2, 3])]);
        index.store(ScopeId(2), A, BlockHash(1), 10).unwrap();
        index.clear(A, Some(SCOPE));
        assert_eq!((index.entries(), runs(&index, &[2, 3], 0)), (3, vec![(2, 2)]));
        index.clear(A, None);
        assert_eq!(index.entries(), 2);
    }

    #[test]
    fn the_budget_holds_and_refreshing_still_works() {
        let mut index = IndexReplica::new(1);
        index.store(SCOPE, A, BlockHash(1), 1).unwrap();
        assert_eq!(index.store(SCOPE, A, BlockHash(2), 1), Err(Full));
        assert_eq!(index.store(SCOPE, B, BlockHash(1), 1), Err(Full));
        index.store(SCOPE, A, BlockHash(1), 9).unwrap();
        assert_eq!(runs(&index, &[1], 9), [(1, 1)]);
    }
}
