//! Whole words: the bytes of every token, and a hash table from bytes to the token that encodes them alone.
//!
//! ```text
//! slot  u32  token (20 bits) | tag << 20; all ones = empty
//! home  top bits of word_hash(bytes); tag = its low 12 bits
//! ```
//! Only tokens whose bytes, merged on their own, give back that one token are in the table: for those, looking up and
//! merging are the same. A power of two of slots, linear probing, at most [`PROBES`] slots from home.
//!
//! Cost: 4 bytes a slot; a look-up reads one or two slots and compares one token's bytes.

use super::artifact::{ArtifactError, MAX_TOKENS, Section};

/// What [`WordTable::find`] says of bytes that are not one token.
pub const NO_TOKEN: u32 = u32::MAX;

const PROBES: usize = 128;
const EMPTY: u32 = u32::MAX;
const ID_BITS: u32 = 20;
const ID: u32 = (1 << ID_BITS) - 1;

/// The tokens and the words among them.
#[derive(Clone, Copy, Debug, Default)]
pub struct WordTable<'a> {
    slots: &'a [[u8; 4]],
    mask: usize,
    shift: u32,
    offsets: &'a [[u8; 4]],
    bytes: &'a [u8],
}

impl<'a> WordTable<'a> {
    /// # Errors
    /// The number of slots is not a power of two, or there are more tokens than ids.
    pub fn new(
        slots: &'a [[u8; 4]],
        offsets: &'a [[u8; 4]],
        bytes: &'a [u8],
    ) -> Result<WordTable<'a>, ArtifactError> {
        if slots.len() < 2 || !slots.len().is_power_of_two() {
            let problem = "the number of slots is not a power of two";
            return Err(ArtifactError::Section { section: Section::Words, problem });
        }
        if offsets.len() > MAX_TOKENS + 1 {
            let problem = "more tokens than ids";
            return Err(ArtifactError::Section { section: Section::TokenOffsets, problem });
        }
        Ok(WordTable { slots, mask: slots.len() - 1, shift: u64::BITS - slots.len().ilog2(), offsets, bytes })
    }

    /// The one token that encodes `word`, or [`NO_TOKEN`]. `hash` is [`word_hash`] of it.
    #[inline]
    pub fn find(&self, word: &[u8], hash: u64) -> u32 {
        let home = (hash >> self.shift) as usize;
        for at in home..home + PROBES {
            let slot = self.slots.get(at & self.mask).map_or(EMPTY, |slot| u32::from_le_bytes(*slot));
            if slot == EMPTY {
                return NO_TOKEN;
            }
            if slot >> ID_BITS == tag(hash) && self.token(slot & ID) == Some(word) {
                return slot & ID;
            }
        }
        NO_TOKEN
    }

    #[inline]
    fn token(&self, id: u32) -> Option<&'a [u8]> {
        let start = u32::from_le_bytes(*self.offsets.get(id as usize)?);
        let end = u32::from_le_bytes(*self.offsets.get(id as usize + 1)?);
        self.bytes.get(start as usize..end as usize)
    }
}

/// The slots of a table with these words. `None` if an id is too large.
pub fn build(words: &[(&[u8], u32)]) -> Option<Vec<u8>> {
    if !words.iter().all(|(_, id)| (*id as usize) < MAX_TOKENS) {
        return None;
    }
    let slots = (words.len() * 3 / 2).next_power_of_two().max(2);
    [slots, slots * 2, slots * 4, slots * 8].into_iter().find_map(|slots| place(words, slots))
}

fn place(words: &[(&[u8], u32)], slots: usize) -> Option<Vec<u8>> {
    let mut table = vec![EMPTY; slots];
    let shift = u64::BITS - slots.ilog2();
    for (word, id) in words {
        let hash = word_hash(word);
        let free = (0..PROBES)
            .map(|step| ((hash >> shift) as usize + step) & (slots - 1))
            .find(|at| table.get(*at) == Some(&EMPTY))?;
        *table.get_mut(free)? = id | tag(hash) << ID_BITS;
    }
    Some(table.iter().flat_map(|slot| slot.to_le_bytes()).collect())
}

#[inline]
fn tag(hash: u64) -> u32 {
    (hash & 0xfff) as u32
}

/// Hash of a word: part of the format. Not keyed: the table is fixed when it is compiled, and its probes are bounded.
#[inline]
pub fn word_hash(word: &[u8]) -> u64 {
    const A: u64 = 0x9E37_79B9_7F4A_7C15;
    const B: u64 = 0xC2B2_AE3D_27D4_EB4F;
    let mut hash = (word.len() as u64).wrapping_mul(A);
    let mut mix = |a: u64, b: u64| {
        let mixed = (hash ^ a).wrapping_mul(A) ^ b.wrapping_mul(B).rotate_left(31);
        hash = mixed ^ (mixed >> 29);
    };
    if let (Some(head), Some(tail)) = (word.first_chunk::<8>(), word.last_chunk::<8>()) {
        let (middle, _) = word.get(8..).unwrap_or_default().as_chunks::<8>();
        for eight in middle {
            mix(u64::from_le_bytes(*eight), 0);
        }
        mix(u64::from_le_bytes(*head), u64::from_le_bytes(*tail));
    } else if let (Some(head), Some(tail)) = (word.first_chunk::<4>(), word.last_chunk::<4>()) {
        mix(u64::from(u32::from_le_bytes(*head)), u64::from(u32::from_le_bytes(*tail)));
    } else if let (Some(head), Some(tail)) = (word.first_chunk::<2>(), word.last_chunk::<2>()) {
        mix(u64::from(u16::from_le_bytes(*head)), u64::from(u16::from_le_bytes(*tail)));
    } else {
        mix(word.first().copied().map_or(0, u64::from), 0);
    }
    hash.wrapping_mul(B) ^ (hash >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn finds_every_length_and_nothing_else() {
        let words: Vec<Vec<u8>> = (0..300u32)
            .map(|i| (0..i % 40).map(|k| (i * 31 + k * 7) as u8).chain(i.to_le_bytes()).collect())
            .collect();
        let mut offsets = vec![0u32.to_le_bytes()];
        let mut bytes = Vec::new();
        for word in &words {
            bytes.extend_from_slice(word);
            offsets.push((bytes.len() as u32).to_le_bytes());
        }
        let entries: Vec<_> = words.iter().zip(0u32..).map(|(word, id)| (&word[..], id)).collect();
        let slots = build(&entries).unwrap();
        let table = WordTable::new(slots.as_chunks().0, &offsets, &bytes).unwrap();
        for (word, id) in &entries {
            assert_eq!(table.find(word, word_hash(word)), *id);
            let longer = [word, &b"x"[..]].concat();
            assert_eq!(table.find(&longer, word_hash(&longer)), NO_TOKEN);
        }
        assert_eq!(table.find(b"", word_hash(b"")), NO_TOKEN);
    }

    #[test]
    fn a_table_of_lies_ends() {
        let slots = [[7u8; 4]; 64];
        let table = WordTable::new(&slots, &[[255; 4], [0; 4]], b"abc").unwrap();
        assert_eq!(table.find(b"abc", 0x707), NO_TOKEN);
        assert!(WordTable::new(&slots[..3], &[], b"").is_err());
    }
}
