//! The index: which replica holds which block, at which tier, since when.
//!
//! One table per (scope, replica), because nothing here looks a block up across replicas (gateways do), while clearing
//! a replica, sending a snapshot and removing touch one replica at a time. Distinct keys are counted per scope.
//!
//! Expiry: an entry lies in the bucket of the second at which it would expire. A sweep opens due buckets only; an entry
//! that was seen again since moves to its new bucket. No pass looks at entries that are not due.
//!
//! Invariants: `keys[scope][hash]` is the number of replicas that hold it; every entry's `bucket` exists.
//!
//! Cost: store, remove, expire O(1) per block; clear O(blocks of the replica).

use hashbrown::HashMap;
use hashbrown::hash_map::Entry as Slot;
use inference_cache_core::hash::BlockHash;
use inference_cache_core::ingest::Tier;
use std::collections::BTreeMap;

/// Number of a scope, from 1.
pub type ScopeId = u32;
/// Number of a replica, from 1.
pub type ReplicaId = u32;
type Table = HashMap<BlockHash, Entry>;

/// Blocks of all replicas.
#[derive(Debug)]
pub struct Index {
    ttl_s: u32,
    tables: BTreeMap<(ScopeId, ReplicaId), Table>,
    keys: HashMap<ScopeId, HashMap<BlockHash, u32>>,
    due: BTreeMap<u32, Vec<(ScopeId, ReplicaId, BlockHash)>>,
    entries: usize,
}

/// One block of one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Best tier that holds it.
    pub tier: Tier,
    /// Seconds on the caller's clock.
    pub last_seen_s: u32,
    /// When gateways were last told, so that repeats are not told again and again.
    told_s: u32,
    bucket: u32,
}

impl Index {
    /// An empty index whose entries live for `ttl_s` seconds.
    pub fn new(ttl_s: u32) -> Index {
        Index { ttl_s, tables: BTreeMap::new(), keys: HashMap::new(), due: BTreeMap::new(), entries: 0 }
    }

    /// Adds or refreshes an entry. Whether gateways must be told: it is new, on another tier, or they last heard of it
    /// an eighth of the TTL ago.
    pub fn store(
        &mut self,
        scope: ScopeId,
        replica: ReplicaId,
        hash: BlockHash,
        tier: Tier,
        now_s: u32,
    ) -> bool {
        match self.tables.entry((scope, replica)).or_default().entry(hash) {
            Slot::Occupied(mut slot) => {
                let entry = slot.get_mut();
                let tell =
                    entry.tier != tier || now_s.saturating_sub(entry.told_s) >= (self.ttl_s / 8).max(1);
                entry.tier = tier;
                entry.last_seen_s = now_s;
                if tell {
                    entry.told_s = now_s;
                }
                tell
            }
            Slot::Vacant(slot) => {
                let bucket = now_s.saturating_add(self.ttl_s);
                slot.insert(Entry { tier, last_seen_s: now_s, told_s: now_s, bucket });
                self.due.entry(bucket).or_default().push((scope, replica, hash));
                *self.keys.entry(scope).or_default().entry(hash).or_default() += 1;
                self.entries += 1;
                true
            }
        }
    }

    /// Removes an entry; whether it was there.
    pub fn remove(&mut self, scope: ScopeId, replica: ReplicaId, hash: BlockHash) -> bool {
        let Some(table) = self.tables.get_mut(&(scope, replica)) else { return false };
        let found = table.remove(&hash).is_some();
        if found {
            self.entries -= 1;
            drop_key(&mut self.keys, scope, hash);
        }
        found
    }

    /// Removes all entries of a replica; whether there were any.
    pub fn clear(&mut self, replica: ReplicaId) -> bool {
        let mut found = false;
        for (&(scope, _), table) in self.tables.iter_mut().filter(|((_, of), _)| *of == replica) {
            for (hash, _) in std::mem::take(table) {
                found = true;
                self.entries -= 1;
                drop_key(&mut self.keys, scope, hash);
            }
        }
        found
    }

    /// As [`Index::clear`], for a replica that does not come back.
    pub fn forget(&mut self, replica: ReplicaId) -> bool {
        let found = self.clear(replica);
        self.tables.retain(|(_, of), _| *of != replica);
        found
    }

    /// Removes what was last seen a TTL ago, at most `limit` entries; `expired` hears of each. Whether more may be due.
    pub fn expire(
        &mut self,
        now_s: u32,
        mut limit: usize,
        mut expired: impl FnMut(ScopeId, ReplicaId, BlockHash),
    ) -> bool {
        while let Some(mut first) = self.due.first_entry() {
            let bucket = *first.key();
            if bucket > now_s {
                return false;
            }
            let Some((scope, replica, hash)) = first.get_mut().pop() else {
                first.remove();
                continue;
            };
            if limit == 0 {
                first.get_mut().push((scope, replica, hash));
                return true;
            }
            limit -= 1;
            let entry = self.tables.get_mut(&(scope, replica)).and_then(|table| table.get_mut(&hash));
            // The entry may have gone, and come again into another bucket.
            let Some(entry) = entry.filter(|entry| entry.bucket == bucket) else { continue };
            let bucket = entry.last_seen_s.saturating_add(self.ttl_s);
            if bucket > now_s {
                entry.bucket = bucket;
                self.due.entry(bucket).or_default().push((scope, replica, hash));
            } else {
                self.remove(scope, replica, hash);
                expired(scope, replica, hash);
            }
        }
        false
    }

    /// All entries, grouped by scope and replica.
    pub fn tables(&self) -> impl Iterator<Item = (ScopeId, ReplicaId, &HashMap<BlockHash, Entry>)> {
        self.tables.iter().map(|(&(scope, replica), table)| (scope, replica, table))
    }

    /// Storage entries.
    pub fn entries(&self) -> usize {
        self.entries
    }

    /// Storage entries of a replica.
    pub fn replica_entries(&self, replica: ReplicaId) -> usize {
        self.tables.iter().filter(|((_, of), _)| *of == replica).map(|(_, table)| table.len()).sum()
    }

    /// Distinct keys of a scope.
    pub fn scope_keys(&self, scope: ScopeId) -> usize {
        self.keys.get(&scope).map_or(0, HashMap::len)
    }
}

fn drop_key(keys: &mut HashMap<ScopeId, HashMap<BlockHash, u32>>, scope: ScopeId, hash: BlockHash) {
    let Some(holders) = keys.get_mut(&scope) else { return };
    if let Slot::Occupied(mut slot) = holders.entry(hash) {
        *slot.get_mut() -= 1;
        if *slot.get() == 0 {
            slot.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expired(index: &mut Index, now_s: u32) -> Vec<u64> {
        let mut gone = Vec::new();
        while index.expire(now_s, 2, |_, _, hash| gone.push(hash.0)) {}
        gone.sort_unstable();
        gone
    }

    #[test]
    fn entries_expire_a_ttl_after_they_were_last_seen() {
        let mut index = Index::new(10);
        (0..5).for_each(|hash| assert!(index.store(1, 1, BlockHash(hash), Tier::T1, 0)));
        index.store(1, 1, BlockHash(0), Tier::T1, 6);
        index.remove(1, 1, BlockHash(1));
        index.store(1, 1, BlockHash(1), Tier::T1, 7);
        assert!(expired(&mut index, 9).is_empty());
        assert_eq!(expired(&mut index, 10), [2, 3, 4]);
        assert_eq!(expired(&mut index, 16), [0]);
        assert_eq!(expired(&mut index, 17), [1]);
        assert_eq!((index.entries(), index.scope_keys(1), index.due.len()), (0, 0, 0));
    }

    #[test]
    fn counts_follow_holders() {
        let mut index = Index::new(100);
        index.store(1, 1, BlockHash(7), Tier::T1, 0);
        index.store(1, 2, BlockHash(7), Tier::T2, 0);
        index.store(2, 2, BlockHash(7), Tier::T2, 0);
        assert_eq!((index.entries(), index.scope_keys(1), index.scope_keys(2)), (3, 1, 1));
        assert!(index.clear(2));
        assert!(!index.clear(2));
        assert_eq!((index.entries(), index.scope_keys(1), index.scope_keys(2)), (1, 1, 0));
        assert!(index.remove(1, 1, BlockHash(7)) && !index.remove(1, 1, BlockHash(7)));
        assert_eq!((index.entries(), index.scope_keys(1)), (0, 0));
    }

    #[test]
    fn repeats_are_told_rarely() {
        let mut index = Index::new(80);
        assert!(index.store(1, 1, BlockHash(7), Tier::T1, 0));
        assert!(!index.store(1, 1, BlockHash(7), Tier::T1, 9));
        assert!(index.store(1, 1, BlockHash(7), Tier::T1, 10));
        assert!(index.store(1, 1, BlockHash(7), Tier::T2, 11));
    }
}
