//! What one engine holds, by its own hashes: the key of each block and how many copies of it are where.
//!
//! vLLM announces every physical copy of a block and removes each once, per medium and KV-cache group. Nearly all blocks
//! have one copy and are stored like most others, so a copy is described by a [`Profile`], and the 14 first profiles fit
//! into the mark of the block's slot ([`EngineMap`], 16 bytes a block). Whatever else there is - more copies, rarer
//! profiles, a hash that the map cannot tell from another - is spilled into a table of its own.
//!
//! Copies are counted up to a cap per profile: the wire cannot tell a second copy from the same one announced again
//! (`kv_cache_report_mode=full`), and a count that is too high outlives the block. Beyond the cap a block is forgotten
//! early, which costs a cache miss.
//!
//! Invariants
//! * Every hash has one place: a slot whose mark is its profile, a slot marked [`SPILLED`] and an entry in `spilled`, or,
//!   displaced by another hash with the same slot, only the latter.
//! * An entry in `spilled` has at least one copy; one that is not displaced has two, or one with a rare profile.
//!
//! Cost: O(1) per copy.

use super::Tier;
use super::engine_map::{EngineMap, Full, Mark, Slot, Vacancy};
use crate::events::EngineHash;
use crate::hash::BlockSize;
use hashbrown::HashMap;

const SPILLED: Mark = 14;
const MOST_PROFILES: usize = 4096;
const MOST_ADAPTERS: usize = 1024;

/// Number of an adapter's name; 0 is the base model.
pub(super) type AdapterId = u16;
/// Number of a [`Profile`].
pub(super) type ProfileId = u16;

/// How a copy is stored: everything about it but its hash and key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Profile {
    pub(super) adapter: AdapterId,
    /// Tokens per own block.
    pub(super) block_size: BlockSize,
    pub(super) tier: Tier,
    pub(super) group: Option<u32>,
    pub(super) kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// No other hash of the engine has the same own key.
    Plain,
    /// Others may: the engine's hash covers what ours does not (an adapter's path, tokens ahead).
    Aliased,
    /// Not a block but a page inside of one: the key is its number in [`super::pages`].
    Page,
}

#[derive(Debug)]
pub(super) struct Copies {
    map: EngineMap,
    spilled: HashMap<EngineHash, Spilled>,
    /// Entries of `spilled` that have no slot.
    displaced: usize,
    profiles: Vec<Profile>,
    /// Names by id; id 0 is "".
    adapters: Vec<String>,
    seed: u64,
    limit: usize,
    max_copies: u16,
}

#[derive(Debug)]
struct Spilled {
    key: u64,
    displaced: bool,
    copies: Vec<(ProfileId, u16)>,
}

/// A block that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) key: u64,
    /// Of one of its copies: all agree in adapter, block size and kind.
    pub(super) profile: Profile,
}

/// What adding a copy did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Added {
    /// Best tier before, if the block was held.
    pub(super) before: Option<Tier>,
    /// Best tier now.
    pub(super) after: Tier,
    /// Whether the copy was counted: not if the cap was reached.
    pub(super) counted: bool,
}

/// What removing a copy did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Removed {
    pub(super) held: Held,
    /// Best tier before.
    pub(super) before: Tier,
    /// Best tier now, if a copy is left.
    pub(super) after: Option<Tier>,
}

enum Place {
    Slot(Slot, u64, ProfileId),
    Spilled,
    Nowhere(Vacancy),
    /// The slot is another's, which has spilled as well.
    Taken,
}

impl Copies {
    /// Holds up to `limit` engine hashes and counts up to `max_copies` of each profile.
    pub(super) fn new(seed: u64, limit: usize, max_copies: u16) -> Copies {
        Copies {
            map: EngineMap::new(seed),
            spilled: HashMap::new(),
            displaced: 0,
            profiles: Vec::new(),
            adapters: vec![String::new()],
            seed,
            limit,
            max_copies: max_copies.max(1),
        }
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        *self = Copies::new(self.seed, self.limit, self.max_copies);
    }

    /// Bytes allocated, estimated for the spilled entries.
    pub(super) fn bytes(&self) -> usize {
        self.map.bytes() + self.spilled.capacity() * (size_of::<(EngineHash, Spilled)>() + 1 + 16)
    }

    /// Says which hashes are about to be added.
    pub(super) fn warm(&self, hashes: &[EngineHash]) {
        std::hint::black_box(self.map.warm(hashes));
    }

    /// A number for an adapter's name.
    pub(super) fn adapter_id(&mut self, name: &str) -> Result<AdapterId, &'static str> {
        let at = match self.adapters.iter().position(|known| known == name) {
            Some(at) => at,
            None if self.adapters.len() >= MOST_ADAPTERS => return Err("too_many_adapters"),
            None => {
                self.adapters.push(name.to_owned());
                self.adapters.len() - 1
            }
        };
        AdapterId::try_from(at).map_err(|_| "too_many_adapters")
    }

    /// The name of an adapter.
    pub(super) fn adapter(&self, id: AdapterId) -> &str {
        self.adapters.get(usize::from(id)).map_or("", String::as_str)
    }

    /// A number for a profile.
    pub(super) fn profile_id(&mut self, profile: Profile) -> Result<ProfileId, &'static str> {
        let at = match self.profiles.iter().position(|&known| known == profile) {
            Some(at) => at,
            None if self.profiles.len() >= MOST_PROFILES => return Err("too_many_profiles"),
            None => {
                self.profiles.push(profile);
                self.profiles.len() - 1
            }
        };
        ProfileId::try_from(at).map_err(|_| "too_many_profiles")
    }

    /// The block with this hash.
    pub(super) fn get(&self, hash: EngineHash) -> Option<Held> {
        match self.place(hash) {
            Place::Slot(_, key, profile) => self.held(key, profile),
            Place::Spilled => {
                let spilled = self.spilled.get(&hash)?;
                self.held(spilled.key, spilled.copies.first()?.0)
            }
            Place::Nowhere(_) | Place::Taken => None,
        }
    }

    /// Adds a copy. A hash that is held already under another key gets a second place, once: two blocks that this table
    /// cannot tell apart, or the engine itself does not.
    pub(super) fn add(
        &mut self,
        hash: EngineHash,
        key: u64,
        profile: ProfileId,
    ) -> Result<Added, &'static str> {
        let tier = self.profile(profile).ok_or("too_many_profiles")?.tier;
        match self.place(hash) {
            Place::Nowhere(vacancy) => self.insert(hash, vacancy, key, profile)?,
            Place::Slot(slot, held, first) if held == key => {
                let before = self.profile(first).map(|first| first.tier);
                if first == profile && self.max_copies == 1 {
                    return Ok(Added { before, after: tier, counted: false });
                }
                let copies = if first == profile { vec![(first, 2)] } else { vec![(first, 1), (profile, 1)] };
                self.spill(hash, Spilled { key, displaced: false, copies })?;
                self.map.set_mark(slot, SPILLED);
                return Ok(Added {
                    before,
                    after: before.map_or(tier, |before| before.min(tier)),
                    counted: true,
                });
            }
            Place::Slot(..) | Place::Taken => {
                self.check_room()?;
                self.spill(hash, Spilled { key, displaced: true, copies: vec![(profile, 1)] })?;
                self.displaced += 1;
            }
            Place::Spilled => {
                let before = self.best(hash);
                let spilled = self.spilled.get_mut(&hash).filter(|spilled| spilled.key == key);
                let spilled = spilled.ok_or("ambiguous_hash")?;
                let counted = match spilled.copies.iter_mut().find(|(known, _)| *known == profile) {
                    Some((_, count)) if *count >= self.max_copies => false,
                    Some((_, count)) => {
                        *count += 1;
                        true
                    }
                    None => {
                        spilled.copies.push((profile, 1));
                        true
                    }
                };
                return Ok(Added { before, after: before.map_or(tier, |before| before.min(tier)), counted });
            }
        }
        Ok(Added { before: None, after: tier, counted: true })
    }

    /// Takes away a copy at this tier and of this group; `None` if there is none.
    pub(super) fn remove(&mut self, hash: EngineHash, tier: Tier, group: Option<u32>) -> Option<Removed> {
        let there = |profile: Profile| profile.tier == tier && profile.group == group;
        match self.place(hash) {
            Place::Nowhere(_) | Place::Taken => None,
            Place::Slot(slot, key, profile) => {
                let held = self.held(key, profile).filter(|held| there(held.profile))?;
                self.map.remove(slot);
                Some(Removed { held, before: tier, after: None })
            }
            Place::Spilled => {
                let before = self.best(hash)?;
                let copies = &self.spilled.get(&hash)?.copies;
                let at = copies.iter().position(|&(id, _)| self.profile(id).is_some_and(there))?;
                let spilled = self.spilled.get_mut(&hash)?;
                let (profile, count) = spilled.copies.get_mut(at)?;
                let (key, profile) = (spilled.key, *profile);
                *count -= 1;
                if *count == 0 {
                    spilled.copies.remove(at);
                }
                let held = self.held(key, profile)?;
                let after = self.best(hash);
                self.unspill(hash);
                Some(Removed { held, before, after })
            }
        }
    }

    fn insert(
        &mut self,
        hash: EngineHash,
        vacancy: Vacancy,
        key: u64,
        profile: ProfileId,
    ) -> Result<(), &'static str> {
        self.check_room()?;
        let mark = Mark::try_from(profile).ok().filter(|&mark| mark < SPILLED);
        self.map.insert(vacancy, key, mark.unwrap_or(SPILLED)).map_err(|full| match full {
            Full::Memory => "out_of_memory",
            Full::Crowded => "crowded_hash",
        })?;
        if mark.is_none() {
            self.spill(hash, Spilled { key, displaced: false, copies: vec![(profile, 1)] })?;
        }
        Ok(())
    }

    fn check_room(&self) -> Result<(), &'static str> {
        if self.map.len() + self.displaced < self.limit { Ok(()) } else { Err("too_many_blocks") }
    }

    fn spill(&mut self, hash: EngineHash, spilled: Spilled) -> Result<(), &'static str> {
        self.spilled.try_reserve(1).map_err(|_| "out_of_memory")?;
        self.spilled.insert(hash, spilled);
        Ok(())
    }

    /// Gives up an entry of `spilled` that is gone, or for which its slot is enough.
    fn unspill(&mut self, hash: EngineHash) {
        let Some(spilled) = self.spilled.get(&hash) else { return };
        let displaced = spilled.displaced;
        let slot = self.map.find(hash).ok().filter(|_| !displaced);
        match (spilled.copies.as_slice(), slot) {
            ([], _) => {
                self.spilled.remove(&hash);
                self.displaced -= usize::from(displaced);
                if let Some(slot) = slot {
                    self.map.remove(slot);
                }
            }
            (&[(profile, 1)], Some(slot)) => {
                if let Some(mark) = Mark::try_from(profile).ok().filter(|&mark| mark < SPILLED) {
                    self.map.set_mark(slot, mark);
                    self.spilled.remove(&hash);
                }
            }
            _ => {}
        }
    }

    fn place(&self, hash: EngineHash) -> Place {
        if self.displaced > 0 && self.spilled.contains_key(&hash) {
            return Place::Spilled;
        }
        match self.map.find(hash).map(|slot| (slot, self.map.get(slot))) {
            Err(vacancy) => Place::Nowhere(vacancy),
            Ok((_, (_, SPILLED))) if self.spilled.contains_key(&hash) => Place::Spilled,
            Ok((_, (_, SPILLED))) => Place::Taken,
            Ok((slot, (key, mark))) => Place::Slot(slot, key, mark.into()),
        }
    }

    fn held(&self, key: u64, profile: ProfileId) -> Option<Held> {
        self.profile(profile).map(|profile| Held { key, profile })
    }

    /// The best tier of a spilled hash.
    fn best(&self, hash: EngineHash) -> Option<Tier> {
        let copies = self.spilled.get(&hash)?.copies.iter();
        copies.filter_map(|&(id, _)| self.profile(id)).map(|profile| profile.tier).min()
    }

    fn profile(&self, id: ProfileId) -> Option<Profile> {
        self.profiles.get(usize::from(id)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    /// The naive model: every copy by itself. A hash has at most two keys, the newer one first.
    #[derive(Default)]
    struct Model(BTreeMap<u64, Vec<(u64, Vec<usize>)>>);

    impl Model {
        fn add(&mut self, hash: u64, key: u64, profile: usize, max_copies: usize) -> bool {
            let keys = self.0.entry(hash).or_default();
            match keys.iter_mut().position(|(of, _)| *of == key) {
                // The table finds the newest key first and does not look further.
                Some(0) => {
                    let copies = &mut keys[0].1;
                    if copies.iter().filter(|&&of| of == profile).count() < max_copies {
                        copies.push(profile);
                    }
                    true
                }
                Some(_) => false,
                None if keys.is_empty() => {
                    keys.push((key, vec![profile]));
                    true
                }
                // A second key has room only beside a first one that needs no entry of its own.
                None if keys.len() == 1 && keys[0].1.len() == 1 && keys[0].1[0] < usize::from(SPILLED) => {
                    keys.insert(0, (key, vec![profile]));
                    true
                }
                None => false,
            }
        }

        fn remove(&mut self, hash: u64, there: impl Fn(usize) -> bool) -> Option<u64> {
            let keys = self.0.get_mut(&hash)?;
            let (key, copies) = keys.first_mut()?;
            let key = *key;
            let at = copies.iter().position(|&profile| there(profile))?;
            copies.remove(at);
            if copies.is_empty() {
                keys.remove(0);
            }
            if keys.is_empty() {
                self.0.remove(&hash);
            }
            Some(key)
        }
    }

    fn profiles() -> Vec<Profile> {
        (0..20)
            .map(|n| Profile {
                adapter: 0,
                block_size: BlockSize::SIXTEEN,
                tier: Tier::ALL[n % 3],
                group: Some(n as u32 / 3),
                kind: Kind::Plain,
            })
            .collect()
    }

    #[test]
    fn behaves_like_a_list_of_copies() {
        const MAX_COPIES: usize = 3;
        let (mut table, mut model) = (Copies::new(1, usize::MAX, MAX_COPIES as u16), Model::default());
        let profiles = profiles();
        let mut state = 1_u64;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..100_000 {
            let hash = next(200);
            // Most copies are alike, most hashes have one key.
            let profile = if next(4) > 0 { 0 } else { next(20) as usize };
            if next(2) == 0 {
                let key = if next(50) > 0 { hash } else { hash + 1000 + next(3) };
                let id = table.profile_id(profiles[profile]).unwrap();
                // Ids are given in order of first use; the model wants the same order for what fits into a mark.
                let added = table.add(EngineHash(hash), key, id).is_ok();
                assert_eq!(added, model.add(hash, key, usize::from(id), MAX_COPIES));
            } else {
                let Profile { tier, group, .. } = profiles[profile];
                let removed = table.remove(EngineHash(hash), tier, group);
                let there = |id: usize| {
                    table.profile(id as ProfileId).is_some_and(|of| of.tier == tier && of.group == group)
                };
                let expected = model.remove(hash, there);
                assert_eq!(removed.map(|removed| removed.held.key), expected);
            }
            let best = |copies: &[usize]| {
                copies.iter().map(|&id| table.profile(id as ProfileId).unwrap().tier).min()
            };
            let expected = model.0.get(&hash).and_then(|keys| keys.first());
            let held = table.get(EngineHash(hash));
            assert_eq!(held.map(|held| held.key), expected.map(|(key, _)| *key));
            if let Some(best_spilled) = table.best(EngineHash(hash)) {
                assert_eq!(Some(best_spilled), best(&expected.unwrap().1));
            }
            let keys: usize = model.0.values().map(Vec::len).sum();
            assert_eq!(table.map.len() + table.displaced, keys);
        }
    }
}
