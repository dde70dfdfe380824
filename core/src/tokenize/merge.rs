//! Byte-level BPE: merges the bytes of one word, lowest rank first, leftmost among equals, until nothing merges.
//!
//! Words up to 64 bytes: the candidates are scanned for the lowest rank each time; longer: a heap over a linked list.
//! Cost: O(n * tokens merged) with n <= 64, or O(n log n); 20 bytes of memory per byte of a long word.

use super::EncodeError;
use super::pairs::{NO_MERGE, PairTable};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Longest word that is encoded, in bytes. Text without any word boundary for this long is not language.
pub const MAX_WORD: usize = 128 * 1024;

const SHORT: usize = 64;
const END: u32 = u32::MAX;

/// Memory for long words, used again from word to word.
#[derive(Debug, Default)]
pub(super) struct LongWords {
    /// Symbols of the word as a linked list; a symbol that was merged into its left one is [`NO_MERGE`].
    symbols: Vec<Symbol>,
    /// Possible merges: rank (the merged id) and position of the left symbol.
    heap: BinaryHeap<Reverse<(u32, u32)>>,
}

#[derive(Clone, Copy, Debug)]
struct Symbol {
    id: u32,
    previous: u32,
    next: u32,
}

/// The token of each byte.
pub(super) type ByteSymbols<'a> = &'a [[u8; 4]];

/// Appends the tokens of `word` to `out`.
pub(super) fn merge(
    bytes: ByteSymbols<'_>,
    pairs: &PairTable<'_>,
    long: &mut LongWords,
    word: &[u8],
    out: &mut Vec<u32>,
) -> Result<(), EncodeError> {
    out.try_reserve(word.len()).map_err(|_| EncodeError::OutOfMemory)?;
    if word.len() <= SHORT {
        merge_short(bytes, pairs, word, out);
        Ok(())
    } else if word.len() <= MAX_WORD {
        long.merge(bytes, pairs, word, out)
    } else {
        Err(EncodeError::WordTooLong)
    }
}

fn merge_short(bytes: ByteSymbols<'_>, pairs: &PairTable<'_>, word: &[u8], out: &mut Vec<u32>) {
    // merged[i]: what symbols i and i + 1 merge into.
    let mut symbols = [0u32; SHORT];
    let mut merged = [NO_MERGE; SHORT];
    let mut count = word.len().min(SHORT);
    for (symbol, byte) in symbols.iter_mut().zip(word) {
        *symbol = symbol_of(bytes, *byte);
    }
    for (merged, pair) in merged.iter_mut().zip(symbols.get(..count).unwrap_or_default().array_windows()) {
        let [left, right] = *pair;
        *merged = pairs.find(left, right);
    }
    while let Some((at, lowest)) = lowest(merged.get(..count.saturating_sub(1)).unwrap_or_default()) {
        symbols.copy_within(at + 2..count, at + 1);
        merged.copy_within(at + 1..count, at);
        count -= 1;
        set(&mut symbols, at, lowest);
        let right = symbols.get(at + 1).copied().filter(|_| at + 1 < count);
        set(&mut merged, at, right.map_or(NO_MERGE, |right| pairs.find(lowest, right)));
        if let Some(before) = at.checked_sub(1) {
            let left = symbols.get(before).copied().unwrap_or_default();
            set(&mut merged, before, pairs.find(left, lowest));
        }
    }
    out.extend_from_slice(symbols.get(..count).unwrap_or_default());
}

/// Position and value of the leftmost lowest rank; `None` if nothing merges.
#[inline]
fn lowest(merged: &[u32]) -> Option<(usize, u32)> {
    let (mut at, mut lowest) = (0, NO_MERGE);
    for (index, rank) in merged.iter().enumerate() {
        if *rank < lowest {
            (at, lowest) = (index, *rank);
        }
    }
    (lowest != NO_MERGE).then_some((at, lowest))
}

#[inline]
fn set(array: &mut [u32; SHORT], at: usize, value: u32) {
    if let Some(place) = array.get_mut(at) {
        *place = value;
    }
}

#[inline]
fn symbol_of(bytes: ByteSymbols<'_>, byte: u8) -> u32 {
    bytes.get(usize::from(byte)).map_or(0, |id| u32::from_le_bytes(*id))
}

impl LongWords {
    fn merge(
        &mut self,
        bytes: ByteSymbols<'_>,
        pairs: &PairTable<'_>,
        word: &[u8],
        out: &mut Vec<u32>,
    ) -> Result<(), EncodeError> {
        self.symbols.clear();
        self.heap.clear();
        self.symbols.try_reserve(word.len()).map_err(|_| EncodeError::OutOfMemory)?;
        // A merge takes one candidate out and puts at most two in, and there are less than n merges.
        self.heap.try_reserve(word.len() * 2).map_err(|_| EncodeError::OutOfMemory)?;
        for (at, byte) in (0u32..).zip(word) {
            let next = if at as usize + 1 < word.len() { at + 1 } else { END };
            self.symbols.push(Symbol {
                id: symbol_of(bytes, *byte),
                previous: at.checked_sub(1).unwrap_or(END),
                next,
            });
        }
        for at in 0..word.len() as u32 {
            self.offer(pairs, at);
        }
        while let Some(Reverse((rank, at))) = self.heap.pop() {
            // A candidate whose symbols have changed since is out of date.
            if self.candidate(pairs, at) != rank {
                continue;
            }
            let Some(right) = self.next(at) else { continue };
            let behind = self.symbol(right).map_or(END, |symbol| symbol.next);
            self.update(right, |symbol| symbol.id = NO_MERGE);
            self.update(at, |symbol| (symbol.id, symbol.next) = (rank, behind));
            self.update(behind, |symbol| symbol.previous = at);
            self.offer(pairs, at);
            if let Some(before) = self.symbol(at).map(|symbol| symbol.previous) {
                self.offer(pairs, before);
            }
        }
        out.extend(self.symbols.iter().map(|symbol| symbol.id).filter(|id| *id != NO_MERGE));
        Ok(())
    }

    fn offer(&mut self, pairs: &PairTable<'_>, at: u32) {
        let rank = self.candidate(pairs, at);
        if rank != NO_MERGE {
            self.heap.push(Reverse((rank, at)));
        }
    }

    /// What the symbol at `at` and the next one merge into.
    fn candidate(&self, pairs: &PairTable<'_>, at: u32) -> u32 {
        let left = self.symbol(at).map_or(NO_MERGE, |symbol| symbol.id);
        let right = self.next(at).and_then(|right| self.symbol(right)).map_or(NO_MERGE, |symbol| symbol.id);
        if left == NO_MERGE || right == NO_MERGE { NO_MERGE } else { pairs.find(left, right) }
    }

    fn symbol(&self, at: u32) -> Option<Symbol> {
        self.symbols.get(at as usize).copied()
    }

    fn next(&self, at: u32) -> Option<u32> {
        self.symbol(at).map(|symbol| symbol.next).filter(|next| *next != END)
    }

    fn update(&mut self, at: u32, change: impl FnOnce(&mut Symbol)) {
        if let Some(symbol) = self.symbols.get_mut(at as usize) {
            change(symbol);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::pairs;
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    /// Merges by the definition, without any structure.
    fn naive(merges: &[(u32, u32, u32)], word: &[u8]) -> Vec<u32> {
        let mut symbols: Vec<u32> = word.iter().copied().map(u32::from).collect();
        loop {
            let merged =
                |pair: &[u32]| merges.iter().find(|merge| pair == [merge.0, merge.1]).map(|merge| merge.2);
            let best =
                symbols.windows(2).enumerate().filter_map(|(at, pair)| Some((merged(pair)?, at))).min();
            let Some((rank, at)) = best else { return symbols };
            symbols.splice(at..at + 2, [rank]);
        }
    }

    #[test]
    fn short_and_long_words_merge_by_definition() {
        let (a, b, c) = (97, 98, 99);
        let merges = [
            (a, b, 256),
            (b, c, 257),
            (256, c, 258),
            (a, a, 259),
            (259, 259, 260),
            (258, 257, 261),
            (c, c, 262),
        ];
        let slots = pairs::build(&merges).unwrap();
        let table = PairTable::new(slots.as_chunks().0).unwrap();
        let symbols: Vec<[u8; 4]> = (0..256u32).map(u32::to_le_bytes).collect();
        let mut long = LongWords::default();
        let mut state = 1u32;
        for length in (0..200).chain([1000]) {
            let word: Vec<u8> = (0..length)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    b"aaabbc"[(state >> 8) as usize % 6]
                })
                .collect();
            let mut out = Vec::new();
            merge(&symbols, &table, &mut long, &word, &mut out).unwrap();
            assert_eq!(out, naive(&merges, &word), "{word:?}");
            out.clear();
            long.merge(&symbols, &table, &word, &mut out).unwrap();
            assert_eq!(out, naive(&merges, &word), "{word:?}");
        }
        let endless = vec![b'a'; MAX_WORD + 1];
        let refused = merge(&symbols, &table, &mut long, &endless, &mut Vec::new());
        assert_eq!(refused, Err(EncodeError::WordTooLong));
    }
}
