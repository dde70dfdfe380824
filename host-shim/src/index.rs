//! The index: which replica holds which block, at which tier, since when.
//!
//! One table per (scope, replica), because nothing here looks a block up across replicas (gateways do), while clearing
//! a replica, sending a snapshot and removing touch one replica at a time. Distinct keys are counted per scope.
//!
//! Expiry: an entry lies in the bucket of the second at which it would expire. A sweep opens due buckets only; an entry
//! that was seen again since moves to its new bucket. No pass looks at entries that are not due.
//!
//! What producers report lies beside what events say, in the same tables; it is counted, as nothing else bounds it.
//!
//! Invariants: `keys[scope][hash]` is the number of replicas that hold it; every entry's `bucket` exists; no table and
//! no map of keys is empty; `due` is at most about twice as long as there are entries.
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
    due_len: usize,
    entries: usize,
    reported: usize,
    replica_entries: HashMap<ReplicaId, usize>,
}

/// What a producer says of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Where it is.
    pub tier: Tier,
    /// Tokens of the prefix up to there; 0 if not said.
    pub tokens: u32,
}

/// There are as many reported entries as there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many reported entries")]
pub struct Full;

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
    /// Tokens of the prefix up to there, if a producer said it; else 0.
    pub tokens: u32,
    /// Whether a producer made the entry.
    reported: bool,
}

/// Dead notes of when something is due that may lie about before they are cleared away, beside as many as entries.
const DUE_SLACK: usize = 1 << 16;

impl Index {
    /// An empty index whose entries live for `ttl_s` seconds.
    pub fn new(ttl_s: u32) -> Index {
        Index {
            ttl_s,
            tables: BTreeMap::new(),
            keys: HashMap::new(),
            due: BTreeMap::new(),
            due_len: 0,
            entries: 0,
            reported: 0,
            replica_entries: HashMap::new(),
        }
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
        self.put(scope, replica, hash, tier, None, now_s)
    }

    /// As [`Index::store`], of what a producer says. [`Full`] if it is new and there are `limit` reported entries.
    pub fn report(
        &mut self,
        scope: ScopeId,
        replica: ReplicaId,
        hash: BlockHash,
        Report { tier, tokens }: Report,
        now_s: u32,
        limit: usize,
    ) -> Result<bool, Full> {
        let is_held = || self.tables.get(&(scope, replica)).is_some_and(|table| table.contains_key(&hash));
        if self.reported >= limit && !is_held() {
            return Err(Full);
        }
        Ok(self.put(scope, replica, hash, tier, Some(tokens), now_s))
    }

    /// Removes an entry; whether it was there.
    pub fn remove(&mut self, scope: ScopeId, replica: ReplicaId, hash: BlockHash) -> bool {
        let Some(table) = self.tables.get_mut(&(scope, replica)) else { return false };
        let Some(entry) = table.remove(&hash) else { return false };
        if table.is_empty() {
            self.tables.remove(&(scope, replica));
        }
        self.removed(scope, replica, hash, &entry);
        true
    }

    /// Removes all entries of a replica; whether there were any.
    pub fn clear(&mut self, replica: ReplicaId) -> bool {
        let scopes: Vec<_> =
            self.tables.keys().filter(|(_, of)| *of == replica).map(|&(scope, _)| scope).collect();
        scopes.into_iter().filter(|&scope| self.clear_scope(scope, replica)).count() > 0
    }

    /// Removes all entries of a replica in one scope; whether there were any.
    pub fn clear_scope(&mut self, scope: ScopeId, replica: ReplicaId) -> bool {
        let Some(table) = self.tables.remove(&(scope, replica)) else { return false };
        table.iter().for_each(|(&hash, entry)| self.removed(scope, replica, hash, entry));
        true
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
            if first.get().is_empty() {
                first.remove();
                continue;
            }
            if limit == 0 {
                return true;
            }
            let Some((scope, replica, hash)) = first.get_mut().pop() else { continue };
            limit -= 1;
            self.due_len -= 1;
            let entry = self.tables.get_mut(&(scope, replica)).and_then(|table| table.get_mut(&hash));
            // The entry may have gone, and come again into another bucket.
            let Some(entry) = entry.filter(|entry| entry.bucket == bucket) else { continue };
            let bucket = entry.last_seen_s.saturating_add(self.ttl_s);
            if bucket > now_s {
                entry.bucket = bucket;
                self.due.entry(bucket).or_default().push((scope, replica, hash));
                self.due_len += 1;
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

    /// Of those, entries that producers made.
    pub fn reported(&self) -> usize {
        self.reported
    }

    /// Storage entries of a replica.
    pub fn replica_entries(&self, replica: ReplicaId) -> usize {
        self.replica_entries.get(&replica).copied().unwrap_or(0)
    }

    /// Whether anything is held in a scope.
    pub fn has_scope(&self, scope: ScopeId) -> bool {
        self.keys.contains_key(&scope)
    }

    /// Distinct keys of a scope.
    pub fn scope_keys(&self, scope: ScopeId) -> usize {
        self.keys.get(&scope).map_or(0, HashMap::len)
    }

    /// `reported`: a producer says it, and how many tokens the prefix has.
    fn put(
        &mut self,
        scope: ScopeId,
        replica: ReplicaId,
        hash: BlockHash,
        tier: Tier,
        reported: Option<u32>,
        now_s: u32,
    ) -> bool {
        let bucket = now_s.saturating_add(self.ttl_s);
        match self.tables.entry((scope, replica)).or_default().entry(hash) {
            Slot::Occupied(mut slot) => {
                let entry = slot.get_mut();
                let tell =
                    entry.tier != tier || now_s.saturating_sub(entry.told_s) >= (self.ttl_s / 8).max(1);
                entry.tier = tier;
                entry.last_seen_s = now_s;
                entry.tokens = reported.unwrap_or(entry.tokens);
                if tell {
                    entry.told_s = now_s;
                }
                return tell;
            }
            Slot::Vacant(slot) => slot.insert(Entry {
                tier,
                last_seen_s: now_s,
                told_s: now_s,
                bucket,
                tokens: reported.unwrap_or(0),
                reported: reported.is_some(),
            }),
        };
        *self.keys.entry(scope).or_default().entry(hash).or_default() += 1;
        *self.replica_entries.entry(replica).or_default() += 1;
        self.entries += 1;
        self.reported += usize::from(reported.is_some());
        self.due.entry(bucket).or_default().push((scope, replica, hash));
        self.due_len += 1;
        if self.due_len > 2 * self.entries + DUE_SLACK {
            self.clear_due();
        }
        true
    }

    fn removed(&mut self, scope: ScopeId, replica: ReplicaId, hash: BlockHash, entry: &Entry) {
        self.entries -= 1;
        self.reported -= usize::from(entry.reported);
        if let Some(count) = self.replica_entries.get_mut(&replica) {
            *count -= 1;
            if *count == 0 {
                self.replica_entries.remove(&replica);
            }
        }
        drop_key(&mut self.keys, scope, hash);
    }

    /// Drops the notes of entries that are gone: what is stored and removed again and again must not gather.
    fn clear_due(&mut self) {
        self.due.clear();
        for (&(scope, replica), table) in &self.tables {
            for (&hash, entry) in table {
                self.due.entry(entry.bucket).or_default().push((scope, replica, hash));
            }
        }
        self.due_len = self.entries;
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
    if holders.is_empty() {
        keys.remove(&scope);
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

    #[test]
    fn reports_are_bounded_and_remember_tokens() {
        let mut index = Index::new(100);
        let report = |index: &mut Index, hash, tokens| {
            index.report(1, 1, BlockHash(hash), Report { tier: Tier::T1, tokens }, 0, 2)
        };
        index.store(1, 1, BlockHash(7), Tier::T1, 0);
        assert_eq!(report(&mut index, 7, 16), Ok(false));
        assert_eq!((report(&mut index, 8, 32), report(&mut index, 9, 48)), (Ok(true), Ok(true)));
        assert_eq!((report(&mut index, 10, 64), index.reported()), (Err(Full), 2));
        // What is there may always be said again.
        assert_eq!(report(&mut index, 9, 50), Ok(false));
        index.store(1, 1, BlockHash(9), Tier::T1, 1);
        let table = index.tables().next().unwrap().2;
        assert_eq!((table[&BlockHash(7)].tokens, table[&BlockHash(9)].tokens), (16, 50));
        assert!(index.remove(1, 1, BlockHash(8)));
        assert_eq!(report(&mut index, 10, 64), Ok(true));
        assert!(index.clear_scope(1, 1) && !index.clear_scope(1, 1));
        assert_eq!((index.entries(), index.reported(), index.replica_entries(1)), (0, 0, 0));
        assert!(!index.has_scope(1) && index.tables().next().is_none());
    }

    #[test]
    fn what_comes_and_goes_leaves_no_notes() {
        let mut index = Index::new(1000);
        index.store(1, 1, BlockHash(0), Tier::T1, 0);
        for _ in 0..3 * DUE_SLACK {
            index.store(1, 1, BlockHash(1), Tier::T1, 1);
            index.remove(1, 1, BlockHash(1));
        }
        let notes: usize = index.due.values().map(Vec::len).sum();
        assert_eq!(notes, index.due_len);
        assert!(notes <= 2 * index.entries() + DUE_SLACK + 1);
        assert_eq!((expired(&mut index, 999), expired(&mut index, 1001)), (vec![], vec![0]));
        assert_eq!(index.due_len, 0);
    }
}
