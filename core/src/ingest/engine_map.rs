//! A map from engine hashes to own keys in 14 bytes a slot: what is left when everything that can be implied is.
//!
//! ```text
//! mixed(engine hash) = | high 32 | tag 12 | 20 bits not kept |
//! slot, 14 bytes     = | high | tag 12 : mark 4 | key 64 |
//! home(high)         = high * capacity >> 32
//! ```
//!
//! Open addressing in order: the slots of a cluster are sorted by (high, tag), so the whole table is a sorted list with
//! gaps. A search ends at the first larger slot; an entry moves the rest of its cluster on, a removal moves it back;
//! growing is one sequential pass. The table is filled to 94 % and grows by an eighth, hence 14 / 0.94 to 14 / 0.83 bytes
//! an entry, 15.8 in the mean, whatever its size.
//!
//! Invariants
//! * `high` is never 0 in a taken slot and always 0 in an empty one.
//! * From an entry's home to its slot there is no gap, and (high, tag) never falls.
//! * 44 bits of the mixed hash tell entries apart. Two hashes that agree in them are the same to this map: the caller
//!   compares the keys and keeps the second one elsewhere ([`super::copies`]).
//!
//! Cost: O(1) expected, about 9 slots looked at and up to some hundreds moved at the highest load; one place in memory.
//! Runs longer than [`MAX_RUN`] are refused, so that hashes chosen to collide cost their sender's blocks and not our time.
//!
//! `mixed` is a bijection with a seed: engines' hashes are digests, but nothing says that they must be.

use crate::events::EngineHash;

/// Slots behind the last home, the last cluster's room; it gets more when it needs more.
const TAIL: usize = 64;
const FIRST_CAPACITY: usize = 64;
/// Longest way from an entry's home.
const MAX_RUN: usize = 4096;

/// See the module.
#[derive(Debug)]
pub(super) struct EngineMap {
    seed: u64,
    slots: Vec<Packed>,
    /// Homes; there are [`TAIL`] slots more, or some times as many.
    capacity: usize,
    len: usize,
}

/// `high` as u32, `tag << 4 | mark` as u16, key as u64, all little-endian.
type Packed = [u8; 14];
const EMPTY: Packed = [0; 14];

/// What a slot says of its block, 0 to 15; the map does not interpret it.
pub(super) type Mark = u8;

/// A taken slot. Good until the map is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot(usize);

/// Where a hash that is not there belongs. Good until the map is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Vacancy {
    id: Id,
    at: usize,
}

/// The map cannot take another entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Full {
    /// No memory.
    Memory,
    /// Too many hashes around this one.
    Crowded,
}

/// What is kept of a hash: the order of slots is the order of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Id {
    high: u32,
    tag: u16,
}

impl EngineMap {
    /// An empty map, without memory.
    pub(super) fn new(seed: u64) -> EngineMap {
        EngineMap { seed, slots: Vec::new(), capacity: 0, len: 0 }
    }

    /// Entries.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Bytes allocated.
    pub(super) fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Packed>()
    }

    /// The slot of `hash`, or of one that this map cannot tell from it; or where it belongs.
    #[inline]
    pub(super) fn find(&self, hash: EngineHash) -> Result<Slot, Vacancy> {
        let id = self.id(hash);
        let at = self.lower_bound(id);
        if self.id_at(at) == Some(id) { Ok(Slot(at)) } else { Err(Vacancy { id, at }) }
    }

    /// Loads what [`EngineMap::find`] will need for these hashes, all at once: a miss in the cache then costs its share of
    /// one wait. The result means nothing, but the loads must happen.
    pub(super) fn warm(&self, hashes: &[EngineHash]) -> u8 {
        let first = |&hash| self.slots.get(self.home(self.id(hash).high)).map_or(0, |&[first, ..]| first);
        hashes.iter().map(first).fold(0, |all, byte| all ^ byte)
    }

    /// Key and mark of a slot.
    pub(super) fn get(&self, Slot(at): Slot) -> (u64, Mark) {
        let Some(&[_, _, _, _, low, _, a, b, c, d, e, f, g, h]) = self.slots.get(at) else { return (0, 0) };
        (u64::from_le_bytes([a, b, c, d, e, f, g, h]), low & 0xf)
    }

    /// Replaces a slot's mark.
    pub(super) fn set_mark(&mut self, Slot(at): Slot, mark: Mark) {
        if let Some([_, _, _, _, low, ..]) = self.slots.get_mut(at) {
            *low = *low & !0xf | mark & 0xf;
        }
    }

    /// Adds an entry where [`EngineMap::find`] says that it belongs.
    pub(super) fn insert(&mut self, vacancy: Vacancy, key: u64, mark: Mark) -> Result<(), Full> {
        let Vacancy { id, mut at } = vacancy;
        if self.len >= self.capacity * 47 / 50 {
            self.grow()?;
            at = self.lower_bound(id);
        }
        loop {
            let is_near = at - self.home(id.high) <= MAX_RUN;
            match self.gap(at).filter(|gap| is_near && gap - at <= MAX_RUN) {
                Some(gap) => {
                    self.slots.copy_within(at..gap, at + 1);
                    self.put(at, id, key, mark);
                    self.len += 1;
                    return Ok(());
                }
                // At the highest load a cluster may be as long by chance, once in some hundred tables.
                None if self.len >= self.capacity / 4 * 3 => {
                    self.grow()?;
                    at = self.lower_bound(id);
                }
                None if is_near && self.gap(at).is_none() && self.slots.len() < self.capacity + MAX_RUN => {
                    self.extend()?;
                }
                None => return Err(Full::Crowded),
            }
        }
    }

    /// Removes the entry of a slot.
    pub(super) fn remove(&mut self, Slot(at): Slot) {
        let mut end = at + 1;
        while self.id_at(end).is_some_and(|id| self.home(id.high) < end) {
            end += 1;
        }
        if end <= self.slots.len() {
            self.slots.copy_within(at + 1..end, at);
        }
        if let Some(last) = self.slots.get_mut(end - 1) {
            *last = EMPTY;
            self.len -= 1;
        }
    }

    /// Key and mark of every entry.
    #[cfg(test)]
    fn entries(&self) -> impl Iterator<Item = (u64, Mark)> {
        (0..self.slots.len()).filter(|&at| self.id_at(at).is_some()).map(|at| self.get(Slot(at)))
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

    #[inline]
    fn id_at(&self, at: usize) -> Option<Id> {
        let id = self.slots.get(at).map(unpack_id)?;
        (id.high != 0).then_some(id)
    }

    /// The first slot from the home of `id` on that is empty or not smaller.
    #[inline]
    fn lower_bound(&self, id: Id) -> usize {
        let home = self.home(id.high);
        let ahead = self.slots.get(home..).unwrap_or_default();
        home + ahead.iter().map(unpack_id).take_while(|&other| other.high != 0 && other < id).count()
    }

    /// The first empty slot from `at` on.
    fn gap(&self, at: usize) -> Option<usize> {
        self.slots.get(at..)?.iter().position(|slot| unpack_id(slot).high == 0).map(|ahead| at + ahead)
    }

    fn put(&mut self, at: usize, id: Id, key: u64, mark: Mark) {
        let [h0, h1, h2, h3] = id.high.to_le_bytes();
        let [l0, l1] = (id.tag << 4 | u16::from(mark & 0xf)).to_le_bytes();
        let [k0, k1, k2, k3, k4, k5, k6, k7] = key.to_le_bytes();
        if let Some(slot) = self.slots.get_mut(at) {
            *slot = [h0, h1, h2, h3, l0, l1, k0, k1, k2, k3, k4, k5, k6, k7];
        }
    }

    /// Rebuilds the table with an eighth more homes.
    fn grow(&mut self) -> Result<(), Full> {
        let capacity = (self.capacity + self.capacity / 8).max(FIRST_CAPACITY);
        let slots = capacity + TAIL;
        let mut grown = Vec::new();
        grown.try_reserve_exact(slots).map_err(|_| Full::Memory)?;
        for slot in &self.slots {
            let Id { high, .. } = unpack_id(slot);
            if high != 0 {
                let home = ((u64::from(high) * capacity as u64) >> 32) as usize;
                if home > grown.len() {
                    grown.resize(home, EMPTY);
                }
                grown.try_reserve(1).map_err(|_| Full::Memory)?;
                grown.push(*slot);
            }
        }
        grown.resize(slots.max(grown.len()), EMPTY);
        self.slots = grown;
        self.capacity = capacity;
        Ok(())
    }

    /// Makes room behind the last home for a cluster that has outgrown it.
    fn extend(&mut self) -> Result<(), Full> {
        self.slots.try_reserve_exact(TAIL).map_err(|_| Full::Memory)?;
        self.slots.resize(self.slots.len() + TAIL, EMPTY);
        Ok(())
    }
}

#[inline]
fn unpack_id(&[a, b, c, d, e, f, ..]: &Packed) -> Id {
    Id { high: u32::from_le_bytes([a, b, c, d]), tag: u16::from_le_bytes([e, f]) >> 4 }
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
            for at in 0..self.slots.len() {
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
                (Err(vacancy), true) => {
                    let (key, mark) = (next(), (next() % 16) as Mark);
                    map.insert(vacancy, key, mark).unwrap();
                    assert_eq!(model.insert(hash, (key, mark)), None);
                }
                (Ok(slot), true) => {
                    let mark = (next() % 16) as Mark;
                    map.set_mark(slot, mark);
                    model.get_mut(&hash).unwrap().1 = mark;
                }
                (Ok(slot), false) => {
                    assert_eq!(Some(map.get(slot)), model.remove(&hash));
                    map.remove(slot);
                }
                (Err(_), false) => assert_eq!(model.get(&hash), None),
            }
            if round % 64 == 0 {
                map.check();
            }
        }
        for hash in (0..3000).map(EngineHash) {
            assert_eq!(map.find(hash).ok().map(|slot| map.get(slot)), model.get(&hash).copied());
        }
        let (mut entries, mut expected): (Vec<_>, Vec<_>) =
            (map.entries().collect(), model.into_values().collect());
        entries.sort_unstable();
        expected.sort_unstable();
        assert_eq!(entries, expected);
    }

    #[test]
    fn an_entry_takes_16_bytes() {
        let (mut map, mut sum, mut count) = (EngineMap::new(7), 0.0, 0.0);
        let mut next = numbers(2);
        for len in 1..=100_000_u32 {
            if let Err(vacancy) = map.find(EngineHash(next())) {
                map.insert(vacancy, len.into(), 0).unwrap();
            }
            if len % 500 == 0 && len >= 20_000 {
                let bytes = map.bytes() as f64 / map.len() as f64;
                assert!(bytes <= 16.9, "{bytes} for {len}");
                sum += bytes;
                count += 1.0;
            }
        }
        assert!(sum / count <= 16.0, "{}", sum / count);
        map.check();
    }

    #[test]
    fn long_clusters_of_spread_hashes_are_not_refused() {
        // Found with this seed: at the highest load a cluster of more than MAX_RUN.
        let mut map = EngineMap::new(0x57c2_4fb9_8ce8_ef0f);
        for hash in (0..60_u64).flat_map(|high| (0..4000).map(move |low| high << 32 | low)) {
            if let Err(vacancy) = map.find(EngineHash(hash)) {
                map.insert(vacancy, hash, 0).unwrap();
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
        let taken = crowd
            .filter(|&hash| map.find(hash).is_err_and(|vacancy| map.insert(vacancy, 0, 0).is_ok()))
            .count();
        assert_eq!(taken, map.len());
        assert!(taken <= 2 * MAX_RUN, "{taken}");
        map.check();
        let mut next = numbers(3);
        let fits = (0..1000)
            .filter(|_| map.find(EngineHash(next())).is_err_and(|vacancy| map.insert(vacancy, 1, 0).is_ok()))
            .count();
        assert!(fits > 900, "{fits}");
        map.check();
    }
}
