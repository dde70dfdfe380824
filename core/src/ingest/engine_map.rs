//! A map from engine hashes to own keys in 14 bytes a slot: what is left when everything that can be implied is.
//!
//! ```text
//! mixed(engine hash) = | high 32 | tag 12 | 20 bits not kept |
//! slot               = | high u32 | tag 12 : mark 4, u16 | key u64 |            three parallel arrays
//! home(high)         = high * capacity >> 32
//! ```
//!
//! Open addressing in order: the slots of a cluster are sorted by (high, tag), so the whole table is a sorted list with
//! gaps. A search ends at the first larger slot; a removal moves the rest of its cluster back; growing is one sequential
//! pass. The table is filled to 94 % and grows by a fourteenth, hence 14 / 0.94 to 16 bytes an entry whatever its size.
//!
//! Invariants
//! * `high` is never 0 in a taken slot and always 0 in an empty one.
//! * From an entry's home to its slot there is no gap, and (high, tag) never falls.
//! * 44 bits of the mixed hash tell entries apart. Two hashes that agree in them are the same to this map: the caller
//!   compares the keys and keeps the second one elsewhere ([`super::copies`]).
//!
//! Cost: O(1) expected, about 9 slots looked at and up to some hundreds moved at the highest load. Runs longer than
//! [`MAX_RUN`] are refused, so that hashes chosen to collide cost their sender's blocks and not our time.
//!
//! `mixed` is a bijection with a seed: engines' hashes are digests, but nothing says that they must be.

use crate::events::EngineHash;

/// Slots behind the last home: the last cluster's room.
const TAIL: usize = 64;
const FIRST_CAPACITY: usize = 64;
/// Longest way from an entry's home.
const MAX_RUN: usize = 4096;

/// See the module.
#[derive(Debug)]
pub(super) struct EngineMap {
    seed: u64,
    high: Vec<u32>,
    low: Vec<u16>,
    keys: Vec<u64>,
    /// Homes; the arrays have [`TAIL`] slots more.
    capacity: usize,
    len: usize,
}

/// What a slot says of its block, 0 to 15; the map does not interpret it.
pub(super) type Mark = u8;

/// A taken slot. Good until the map is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot(usize);

/// The map cannot take another entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Full {
    /// No memory.
    Memory,
    /// Too many hashes around this one.
    Crowded,
}

/// What is kept of a hash: the order of slots is the order of these.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Id {
    high: u32,
    tag: u16,
}

impl EngineMap {
    /// An empty map, without memory.
    pub(super) fn new(seed: u64) -> EngineMap {
        EngineMap { seed, high: Vec::new(), low: Vec::new(), keys: Vec::new(), capacity: 0, len: 0 }
    }

    /// Entries.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Bytes allocated.
    pub(super) fn bytes(&self) -> usize {
        self.high.capacity() * 4 + self.low.capacity() * 2 + self.keys.capacity() * 8
    }

    /// The slot of `hash`, or of one that this map cannot tell from it.
    pub(super) fn find(&self, hash: EngineHash) -> Option<Slot> {
        let id = self.id(hash);
        let at = self.lower_bound(id);
        (self.id_at(at) == Some(id)).then_some(Slot(at))
    }

    /// Key and mark of a slot.
    pub(super) fn get(&self, Slot(at): Slot) -> (u64, Mark) {
        let key = self.keys.get(at).copied().unwrap_or_default();
        (key, self.low.get(at).map_or(0, |low| (low & 0xf) as Mark))
    }

    /// Replaces a slot's mark.
    pub(super) fn set_mark(&mut self, Slot(at): Slot, mark: Mark) {
        if let Some(low) = self.low.get_mut(at) {
            *low = *low & !0xf | u16::from(mark & 0xf);
        }
    }

    /// Adds an entry for a hash that [`EngineMap::find`] does not find.
    pub(super) fn insert(&mut self, hash: EngineHash, key: u64, mark: Mark) -> Result<(), Full> {
        if self.len >= self.capacity * 47 / 50 {
            self.grow()?;
        }
        let id = self.id(hash);
        loop {
            let at = self.lower_bound(id);
            if at - self.home(id.high) > MAX_RUN {
                return Err(Full::Crowded);
            }
            match self.gap(at) {
                Some(gap) if gap - at <= MAX_RUN => {
                    self.high.copy_within(at..gap, at + 1);
                    self.low.copy_within(at..gap, at + 1);
                    self.keys.copy_within(at..gap, at + 1);
                    self.put(at, id, key, mark);
                    self.len += 1;
                    return Ok(());
                }
                // The tail is full, which says nothing of the load if the hashes are not spread.
                None if self.len >= self.capacity / 2 => self.grow()?,
                _ => return Err(Full::Crowded),
            }
        }
    }

    /// Removes the entry of a slot.
    pub(super) fn remove(&mut self, Slot(at): Slot) {
        let mut end = at + 1;
        while self.id_at(end).is_some_and(|id| self.home(id.high) < end) {
            end += 1;
        }
        self.high.copy_within(at + 1..end, at);
        self.low.copy_within(at + 1..end, at);
        self.keys.copy_within(at + 1..end, at);
        if let Some(high) = self.high.get_mut(end - 1) {
            *high = 0;
            self.len -= 1;
        }
    }

    /// Key and mark of every entry.
    #[cfg(test)]
    fn entries(&self) -> impl Iterator<Item = (u64, Mark)> {
        (0..self.high.len()).filter(|&at| self.id_at(at).is_some()).map(|at| self.get(Slot(at)))
    }

    fn id(&self, EngineHash(hash): EngineHash) -> Id {
        // The finalizer of MurmurHash3: every output bit depends on every input bit, and nothing is lost.
        let mut mixed = hash ^ self.seed;
        mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        mixed ^= mixed >> 33;
        Id { high: ((mixed >> 32) as u32).max(1), tag: (mixed >> 20) as u16 & 0xfff }
    }

    fn home(&self, high: u32) -> usize {
        ((u64::from(high) * self.capacity as u64) >> 32) as usize
    }

    fn id_at(&self, at: usize) -> Option<Id> {
        let high = *self.high.get(at)?;
        (high != 0).then(|| Id { high, tag: self.low.get(at).map_or(0, |low| low >> 4) })
    }

    /// The first slot from the home of `id` on that is empty or not smaller.
    fn lower_bound(&self, id: Id) -> usize {
        let mut at = self.home(id.high);
        while let Some(&high) = self.high.get(at) {
            if high == 0 || high > id.high || (high == id.high && self.id_at(at) >= Some(id)) {
                break;
            }
            at += 1;
        }
        at
    }

    /// The first empty slot from `at` on.
    fn gap(&self, at: usize) -> Option<usize> {
        self.high.get(at..)?.iter().position(|&high| high == 0).map(|ahead| at + ahead)
    }

    fn put(&mut self, at: usize, id: Id, key: u64, mark: Mark) {
        let slot = (self.high.get_mut(at), self.low.get_mut(at), self.keys.get_mut(at));
        if let (Some(high), Some(low), Some(old)) = slot {
            (*high, *low, *old) = (id.high, id.tag << 4 | u16::from(mark & 0xf), key);
        }
    }

    /// Rebuilds the table with a fourteenth more homes.
    fn grow(&mut self) -> Result<(), Full> {
        let capacity = (self.capacity + self.capacity / 14).max(FIRST_CAPACITY);
        let mut grown = EngineMap { seed: self.seed, capacity, len: self.len, ..EngineMap::new(0) };
        // Entries that no longer find room behind the last home need a longer tail, which is as good as a gap.
        let slots = capacity + TAIL + self.high.len().saturating_sub(self.capacity + TAIL);
        grown.high = zeroed(slots)?;
        grown.low = zeroed(slots)?;
        grown.keys = zeroed(slots)?;
        let mut next = 0;
        for at in 0..self.high.len() {
            let Some(id) = self.id_at(at) else { continue };
            let (key, mark) = self.get(Slot(at));
            next = next.max(grown.home(id.high));
            if next >= slots {
                return Err(Full::Crowded);
            }
            grown.put(next, id, key, mark);
            next += 1;
        }
        *self = grown;
        Ok(())
    }
}

fn zeroed<T: Clone + Default>(len: usize) -> Result<Vec<T>, Full> {
    let mut values = Vec::new();
    values.try_reserve_exact(len).map_err(|_| Full::Memory)?;
    values.resize(len, T::default());
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    impl EngineMap {
        fn check(&self) {
            let mut last: Option<Id> = None;
            let mut len = 0;
            for at in 0..self.high.len() {
                let Some(id) = self.id_at(at) else {
                    last = None;
                    continue;
                };
                len += 1;
                let home = self.home(id.high);
                assert!(home <= at, "an entry before its home");
                assert!(last.is_none_or(|last| last < id), "out of order");
                assert!(last.is_some() || home == at, "a gap before an entry");
                last = Some(id);
            }
            assert_eq!(len, self.len);
        }
    }

    /// A deterministic stream of numbers.
    fn numbers(mut state: u64) -> impl FnMut() -> u64 {
        move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 20
        }
    }

    #[test]
    fn behaves_like_a_map() {
        let (mut map, mut model) = (EngineMap::new(7), BTreeMap::new());
        let mut next = numbers(1);
        for round in 0..60_000 {
            // Few enough hashes that most are met again; phases of growing and of shrinking.
            let hash = EngineHash(next() % 3000);
            let grows = (round / 8_000) % 2 == 0;
            match (map.find(hash), next() % 8 < if grows { 6 } else { 2 }) {
                (None, true) => {
                    let (key, mark) = (next(), (next() % 16) as Mark);
                    map.insert(hash, key, mark).unwrap();
                    assert_eq!(model.insert(hash, (key, mark)), None);
                }
                (Some(slot), true) => {
                    let mark = (next() % 16) as Mark;
                    map.set_mark(slot, mark);
                    model.get_mut(&hash).unwrap().1 = mark;
                }
                (Some(slot), false) => {
                    assert_eq!(Some(map.get(slot)), model.remove(&hash));
                    map.remove(slot);
                }
                (None, false) => assert_eq!(model.get(&hash), None),
            }
            if round % 64 == 0 {
                map.check();
            }
        }
        for hash in (0..3000).map(EngineHash) {
            assert_eq!(map.find(hash).map(|slot| map.get(slot)), model.get(&hash).copied());
        }
        let (mut entries, mut expected): (Vec<_>, Vec<_>) =
            (map.entries().collect(), model.into_values().collect());
        entries.sort_unstable();
        expected.sort_unstable();
        assert_eq!(entries, expected);
    }

    #[test]
    fn an_entry_takes_at_most_16_bytes() {
        let mut map = EngineMap::new(7);
        let mut next = numbers(2);
        for len in 1..=100_000_u32 {
            let hash = EngineHash(next());
            if map.find(hash).is_none() {
                map.insert(hash, len.into(), 0).unwrap();
            }
            if len % 500 == 0 && len >= 20_000 {
                assert!(map.bytes() <= 16 * map.len() + 16 * TAIL, "{} for {}", map.bytes(), map.len());
            }
        }
        map.check();
    }

    #[test]
    fn hashes_that_collide_are_refused_and_harm_nothing() {
        let mut map = EngineMap::new(0);
        // The inverse of `id` for seed 0: neighbours in the table.
        let unmix = |mut mixed: u64| {
            mixed ^= mixed >> 33;
            mixed = mixed.wrapping_mul(0x9cb4_b2f8_1293_37db);
            mixed ^= mixed >> 33;
            mixed = mixed.wrapping_mul(0x4f74_430c_22a5_4005);
            EngineHash(mixed ^ (mixed >> 33))
        };
        let crowd = (1..40_000_u64).map(|nth| unmix(nth << 20));
        let taken = crowd.filter(|&hash| map.find(hash).is_none() && map.insert(hash, 0, 0).is_ok()).count();
        assert_eq!(taken, map.len());
        assert!(taken <= 2 * MAX_RUN, "{taken}");
        map.check();
        let mut next = numbers(3);
        let fits = (0..1000).filter(|_| map.insert(EngineHash(next()), 1, 0).is_ok()).count();
        assert!(fits > 900, "{fits}");
        map.check();
    }
}
