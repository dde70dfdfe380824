//! The last encodings of short words that are not one token: direct-mapped, 2^13 entries of 64 bytes.
//!
//! A hit compares the bytes of the word, so nobody's input can change the tokens of another's; it can only be slower.
//! Cost: 512 KiB for each tokenizer; one cache line a look-up.

use std::sync::{Mutex, PoisonError};

const ENTRIES: usize = 1 << 13;
const WORD: usize = 38;
const TOKENS: usize = 6;

#[derive(Clone, Copy, Debug)]
struct Entry {
    tokens: [u32; TOKENS],
    count: u8,
    length: u8,
    word: [u8; WORD],
}

const EMPTY: Entry = Entry { tokens: [0; TOKENS], count: 0, length: 0, word: [0; WORD] };

/// The cache; without memory for it, it holds nothing.
#[derive(Debug, Default)]
pub(super) struct WordCache {
    entries: Vec<Entry>,
}

impl WordCache {
    pub(super) fn new() -> WordCache {
        let mut entries = Vec::new();
        if entries.try_reserve_exact(ENTRIES).is_ok() {
            entries.resize(ENTRIES, EMPTY);
        }
        WordCache { entries }
    }

    /// The tokens of `word`, whose hash is `hash`, if they are held.
    #[inline]
    pub(super) fn get(&self, word: &[u8], hash: u64) -> Option<&[u32]> {
        let entry = self.entries.get(slot(hash))?;
        let held = entry.word.get(..usize::from(entry.length))?;
        if held != word {
            return None;
        }
        entry.tokens.get(..usize::from(entry.count))
    }

    /// Holds `tokens` for `word` if both fit.
    #[inline]
    pub(super) fn put(&mut self, word: &[u8], hash: u64, tokens: &[u32]) {
        let Some(entry) = self.entries.get_mut(slot(hash)) else { return };
        let (Some(bytes), Some(ids)) =
            (entry.word.get_mut(..word.len()), entry.tokens.get_mut(..tokens.len()))
        else {
            return;
        };
        bytes.copy_from_slice(word);
        ids.copy_from_slice(tokens);
        (entry.length, entry.count) = (word.len() as u8, tokens.len() as u8);
    }
}

/// Where a tokenizer keeps its cache between encoders. An encoder takes it; a second one at the same time works without.
#[derive(Debug, Default)]
pub(super) struct CacheSlot {
    resting: Mutex<Option<WordCache>>,
}

impl CacheSlot {
    pub(super) fn new() -> CacheSlot {
        CacheSlot { resting: Mutex::new(Some(WordCache::new())) }
    }

    pub(super) fn take(&self) -> Option<WordCache> {
        self.resting.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(super) fn put_back(&self, cache: WordCache) {
        *self.resting.lock().unwrap_or_else(PoisonError::into_inner) = Some(cache);
    }
}

fn slot(hash: u64) -> usize {
    (hash >> 17) as usize & (ENTRIES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn holds_the_last_word_of_a_slot() {
        let mut cache = WordCache::new();
        assert_eq!(cache.get(b"ab", 1), None);
        cache.put(b"ab", 1, &[1, 2]);
        cache.put(&[7; 39], 1 << 20, &[3]);
        cache.put(b"x", 1 << 21, &[1; 7]);
        assert_eq!(cache.get(b"ab", 1), Some(&[1, 2][..]));
        assert_eq!(cache.get(b"ac", 1), None);
        assert_eq!(cache.get(&[7; 39], 1 << 20), None);
        assert_eq!(cache.get(b"x", 1 << 21), None);
        cache.put(b"ac", 1, &[]);
        assert_eq!(cache.get(b"ab", 1), None);
        assert_eq!(cache.get(b"ac", 1), Some(&[][..]));
    }

    #[test]
    fn one_encoder_at_a_time_has_it() {
        let slot = CacheSlot::new();
        let cache = slot.take().unwrap();
        assert!(slot.take().is_none());
        slot.put_back(cache);
        assert!(slot.take().is_some());
    }
}
