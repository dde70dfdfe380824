//! The merges of a byte-level BPE as a hash table that is read where it lies.
//!
//! ```text
//! slot  u64  left (20 bits) | right << 20 | merged << 40; all ones = empty
//! home  (left | right << 20) * 0x9E37_79B9_7F4A_7C15, top bits
//! ```
//! A power of two of slots, linear probing, no entry further than [`PROBES`] slots from its home, at most one merge per
//! merged token. **The rank of a merge is its merged id**: the compiler only accepts vocabularies in which both orders
//! agree, so that comparing ids compares ranks.
//!
//! Cost: 8 bytes a slot; a look-up reads a few slots of one or two cache lines.

use super::artifact::{ArtifactError, MAX_TOKENS, Section};

/// What [`PairTable::find`] says of two symbols that do not merge: above every id.
pub const NO_MERGE: u32 = u32::MAX;

/// Longest run of slots that a look-up reads.
const PROBES: usize = 128;
const EMPTY: u64 = u64::MAX;
const ID_BITS: u32 = 20;
const KEY: u64 = (1 << (2 * ID_BITS)) - 1;

/// The merges.
#[derive(Clone, Copy, Debug, Default)]
pub struct PairTable<'a> {
    slots: &'a [[u8; 8]],
    mask: usize,
    shift: u32,
}

impl<'a> PairTable<'a> {
    /// # Errors
    /// The number of slots is not a power of two.
    pub fn new(slots: &'a [[u8; 8]]) -> Result<PairTable<'a>, ArtifactError> {
        if slots.len() < 2 || !slots.len().is_power_of_two() {
            let problem = "the number of slots is not a power of two";
            return Err(ArtifactError::Section { section: Section::Pairs, problem });
        }
        Ok(PairTable { slots, mask: slots.len() - 1, shift: u64::BITS - slots.len().ilog2() })
    }

    /// The token that `left` and `right` merge into, or [`NO_MERGE`].
    #[inline]
    pub fn find(&self, left: u32, right: u32) -> u32 {
        let key = key(left, right);
        let home = home(key, self.shift);
        for at in home..home + PROBES {
            let slot = self.slots.get(at & self.mask).map_or(EMPTY, |slot| u64::from_le_bytes(*slot));
            if slot & KEY == key {
                return (slot >> (2 * ID_BITS)) as u32;
            }
            if slot == EMPTY {
                return NO_MERGE;
            }
        }
        NO_MERGE
    }
}

/// The slots of a table with these merges `(left, right, merged)`, best ranks first. `None` if an id is too large.
pub fn build(merges: &[(u32, u32, u32)]) -> Option<Vec<u8>> {
    let fits = |id: u32| (id as usize) < MAX_TOKENS;
    if !merges.iter().all(|(left, right, merged)| fits(*left) && fits(*right) && fits(*merged)) {
        return None;
    }
    let slots = (merges.len() * 3 / 2).next_power_of_two().max(2);
    [slots, slots * 2, slots * 4].into_iter().find_map(|slots| place(merges, slots))
}

fn place(merges: &[(u32, u32, u32)], slots: usize) -> Option<Vec<u8>> {
    let mut table = vec![EMPTY; slots];
    let shift = u64::BITS - slots.ilog2();
    for (left, right, merged) in merges {
        let key = key(*left, *right);
        let free = (0..PROBES)
            .map(|step| (home(key, shift) + step) & (slots - 1))
            .find(|at| table.get(*at) == Some(&EMPTY))?;
        *table.get_mut(free)? = key | u64::from(*merged) << (2 * ID_BITS);
    }
    Some(table.iter().flat_map(|slot| slot.to_le_bytes()).collect())
}

fn key(left: u32, right: u32) -> u64 {
    u64::from(left) | u64::from(right) << ID_BITS
}

#[inline]
fn home(key: u64, shift: u32) -> usize {
    (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> shift) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn finds_what_was_put_in_and_nothing_else() {
        let merges: Vec<_> = (0..5000u32).map(|i| (i * 7 % 1009, i, 1009 + i)).collect();
        let bytes = build(&merges).unwrap();
        let table = PairTable::new(bytes.as_chunks().0).unwrap();
        for (left, right, merged) in &merges {
            assert_eq!(table.find(*left, *right), *merged);
            assert_eq!(table.find(*left + 1, *right), NO_MERGE);
        }
        let largest = MAX_TOKENS as u32 - 1;
        assert_eq!(table.find(largest, largest), NO_MERGE);
        assert_eq!(build(&[(0, 1, MAX_TOKENS as u32)]), None);
    }

    #[test]
    fn a_full_table_of_lies_ends() {
        let slots = [[1u8; 8]; 64];
        assert_eq!(PairTable::new(&slots).unwrap().find(3, 4), NO_MERGE);
        assert!(PairTable::new(&slots[..3]).is_err());
        assert!(PairTable::new(&[]).is_err());
    }
}
