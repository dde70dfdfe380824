//! Normalization form C over tables of the artifact.
//!
//! The engines' tokenizers carry Unicode 9 tables, so a current normalization crate gives other tokens for newer marks.
//! The tables here are what the compiler read out of the engines' own crate, the algorithm is that crate's too.
//!
//! | section | record |
//! | --- | --- |
//! | `Decompositions` | u32 code point, 4 u32: its full canonical decomposition, zeros behind; ascending; without Hangul |
//! | `Compositions` | u32 first, u32 second, u32 composed; ascending; without Hangul |
//! | `CombiningClasses` | u32 code point << 8 or class, where the class is not 0; ascending |
//!
//! A character is *stable* if it is its own NFC, and its decomposition starts with a starter that composes with nothing
//! before it ([`super::classes::UNSTABLE`] marks the others). Text of stable characters is NFC already, and text may
//! be cut before any stable character and its parts normalized alone. The caller does both and brings here only text
//! around unstable characters.
//!
//! Cost: a few binary searches per unstable character; memory: 8 bytes per character of a stretch without stable ones.

use super::artifact::{ArtifactError, Directory, Section};
use super::classes::Classes;

/// Longest stretch from one stable character to the next that is normalized, in characters. Real text has below 100.
pub const MAX_STRETCH: usize = 64 * 1024;

/// The tables.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nfc<'a> {
    decompositions: &'a [[u8; 20]],
    compositions: &'a [[u8; 12]],
    combining_classes: &'a [[u8; 4]],
}

/// A stretch is longer than [`MAX_STRETCH`], or there is no memory for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

/// Memory that is used again from call to call.
#[derive(Debug, Default)]
pub struct Scratch {
    decomposed: Vec<(u8, char)>,
    blocked: Vec<char>,
}

impl<'a> Nfc<'a> {
    /// # Errors
    /// A section's length is not a multiple of its record.
    pub fn new(directory: &Directory, file: &'a [u8]) -> Result<Nfc<'a>, ArtifactError> {
        Ok(Nfc {
            decompositions: directory.records(file, Section::Decompositions)?,
            compositions: directory.records(file, Section::Compositions)?,
            combining_classes: directory.records(file, Section::CombiningClasses)?,
        })
    }

    /// Appends the NFC of `text`, which starts and ends where text may be cut, to `out`.
    pub fn normalize(
        &self,
        text: &str,
        classes: &Classes<'_>,
        scratch: &mut Scratch,
        out: &mut String,
    ) -> Result<(), TooLong> {
        out.try_reserve(text.len()).map_err(|_| TooLong)?;
        let mut rest = text;
        while !rest.is_empty() {
            let (stable, tail) = self.split_stable(rest, classes);
            out.push_str(stable);
            // One stable character that the unstable ones behind it may change, and those.
            let mut characters = tail.char_indices().skip(1);
            let end =
                characters.find(|(_, next)| !classes.is_unstable(*next)).map_or(tail.len(), |(at, _)| at);
            let (stretch, behind) = tail.split_at_checked(end).unwrap_or((tail, ""));
            self.stretch(stretch, scratch, out)?;
            rest = behind;
        }
        Ok(())
    }

    /// `text` before the last stable character that an unstable one follows, and the rest.
    fn split_stable<'t>(&self, text: &'t str, classes: &Classes<'_>) -> (&'t str, &'t str) {
        let unstable = classes.first_unstable(text.as_bytes(), 0, text.len());
        if unstable == text.len() {
            return (text, "");
        }
        let base =
            text.get(..unstable).and_then(|before| before.char_indices().next_back()).map_or(0, |(at, _)| at);
        text.split_at_checked(base).unwrap_or(("", text))
    }

    fn stretch(&self, text: &str, scratch: &mut Scratch, out: &mut String) -> Result<(), TooLong> {
        let Scratch { decomposed, blocked } = scratch;
        decomposed.clear();
        for character in text.chars() {
            decomposed.try_reserve(4).map_err(|_| TooLong)?;
            self.decompose(character, |part| decomposed.push((self.combining_class(part), part)));
            if decomposed.len() > MAX_STRETCH {
                return Err(TooLong);
            }
        }
        for run in decomposed.chunk_by_mut(|_, (class, _)| *class != 0) {
            // The first of a run may be a starter: its class, 0, keeps it there. The sort is stable, as it has to be.
            run.sort_by_key(|(class, _)| *class);
        }
        self.compose_all(decomposed, blocked, out);
        Ok(())
    }

    /// Canonical composition, step by step as in `unicode-normalization-alignments` 0.1.12 `recompose.rs`.
    fn compose_all(&self, decomposed: &[(u8, char)], blocked: &mut Vec<char>, out: &mut String) {
        let mut starter: Option<char> = None;
        let mut last_class = 0; // of `blocked`'s last; 0 while it is empty
        blocked.clear();
        for (class, character) in decomposed.iter().copied() {
            let Some(first) = starter else {
                match class {
                    0 => starter = Some(character),
                    _ => out.push(character),
                }
                continue;
            };
            let reachable = blocked.is_empty() || last_class < class;
            if let Some(composed) = reachable.then(|| self.compose(first, character)).flatten() {
                starter = Some(composed);
            } else if class == 0 {
                out.push(first);
                out.extend(blocked.drain(..));
                starter = Some(character);
            } else {
                blocked.push(character);
                last_class = class;
            }
        }
        out.extend(starter);
        out.extend(blocked.drain(..));
    }

    fn decompose(&self, character: char, mut emit: impl FnMut(char)) {
        if let Some(syllable) = hangul::index(character) {
            return hangul::decompose(syllable, emit);
        }
        let code_point = u32::from(character);
        match self.decompositions.binary_search_by_key(&code_point, |record| field(record, 0)) {
            Err(_) => emit(character),
            Ok(at) => {
                let record = self.decompositions.get(at);
                let parts = (1..5).filter_map(|part| record.map(|record| field(record, part)));
                parts.take_while(|part| *part != 0).filter_map(char::from_u32).for_each(emit);
            }
        }
    }

    fn compose(&self, first: char, second: char) -> Option<char> {
        let key = (u32::from(first), u32::from(second));
        hangul::compose(key.0, key.1).or_else(|| {
            let at = self
                .compositions
                .binary_search_by_key(&key, |record| (field(record, 0), field(record, 1)))
                .ok()?;
            char::from_u32(field(self.compositions.get(at)?, 2))
        })
    }

    fn combining_class(&self, character: char) -> u8 {
        let code_point = u32::from(character);
        let found = self.combining_classes.binary_search_by_key(&code_point, |record| field(record, 0) >> 8);
        found.ok().and_then(|at| self.combining_classes.get(at)).map_or(0, |record| field(record, 0) as u8)
    }
}

/// The `index`th u32 of a record.
fn field(record: &[u8], index: usize) -> u32 {
    super::artifact::read_u32(record, index * 4)
}

/// Hangul syllables by arithmetic, Unicode section 3.12.
mod hangul {
    const S: u32 = 0xac00;
    const L: u32 = 0x1100;
    const V: u32 = 0x1161;
    const T: u32 = 0x11a7;
    const L_COUNT: u32 = 19;
    const V_COUNT: u32 = 21;
    const T_COUNT: u32 = 28;
    const S_COUNT: u32 = L_COUNT * V_COUNT * T_COUNT;

    pub(super) fn index(character: char) -> Option<u32> {
        u32::from(character).checked_sub(S).filter(|index| *index < S_COUNT)
    }

    pub(super) fn decompose(index: u32, emit: impl FnMut(char)) {
        let tail = index % T_COUNT;
        let parts = [
            Some(L + index / (V_COUNT * T_COUNT)),
            Some(V + index / T_COUNT % V_COUNT),
            (tail > 0).then_some(T + tail),
        ];
        parts.into_iter().flatten().filter_map(char::from_u32).for_each(emit);
    }

    pub(super) fn compose(first: u32, second: u32) -> Option<char> {
        let within =
            |code_point: u32, base: u32, count: u32| code_point.checked_sub(base).filter(|at| *at < count);
        if let (Some(lead), Some(vowel)) = (within(first, L, L_COUNT), within(second, V, V_COUNT)) {
            return char::from_u32(S + (lead * V_COUNT + vowel) * T_COUNT);
        }
        let syllable = within(first, S, S_COUNT)?;
        let tail = within(second, T + 1, T_COUNT - 1)?;
        (syllable % T_COUNT == 0).then(|| char::from_u32(first + tail + 1)).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::super::classes::{self, UNSTABLE};
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    /// é, ḍ, ṩ-like stacking and Hangul, by hand.
    fn normalized(text: &str) -> Result<String, TooLong> {
        let record =
            |fields: &[u32]| fields.iter().flat_map(|field| field.to_le_bytes()).collect::<Vec<u8>>();
        let decompositions =
            [record(&[0xe9, 0x65, 0x301, 0, 0]), record(&[0x1e0d, 0x64, 0x323, 0, 0])].concat();
        let compositions = [record(&[0x64, 0x323, 0x1e0d]), record(&[0x65, 0x301, 0xe9])].concat();
        let combining = record(&[0x301 << 8 | 230, 0x307 << 8 | 230, 0x323 << 8 | 220]);
        let nfc = Nfc {
            decompositions: decompositions.as_chunks().0,
            compositions: compositions.as_chunks().0,
            combining_classes: combining.as_chunks().0,
        };
        let (index, blocks) = classes::build(|c| match c {
            0x301 | 0x307 | 0x323 | 0x1161..=0x1175 | 0x11a8..=0x11c2 => UNSTABLE,
            _ => 0,
        });
        let classes = Classes::new(index.as_chunks().0, blocks.as_chunks().0).unwrap();
        let mut out = String::new();
        nfc.normalize(text, &classes, &mut Scratch::default(), &mut out).map(|()| out)
    }

    #[test]
    fn composes_and_orders() {
        for (text, expected) in [
            ("", ""),
            ("plain", "plain"),
            ("e\u{301}", "é"),
            ("xe\u{301}y", "xéy"),
            ("d\u{307}\u{323}", "\u{1e0d}\u{307}"),
            ("\u{301}e", "\u{301}e"),
            ("e\u{307}\u{301}", "e\u{307}\u{301}"),
            ("\u{1112}\u{1161}\u{11ab}\u{1100}\u{1173}\u{11af}", "한글"),
            ("가\u{11a8}", "각"),
            ("가\u{11a7}", "가\u{11a7}"),
        ] {
            assert_eq!(normalized(text).as_deref(), Ok(expected), "{text:?}");
        }
    }

    #[test]
    fn a_stretch_has_a_limit() {
        assert_eq!(normalized(&"\u{301}".repeat(MAX_STRETCH + 1)), Err(TooLong));
        assert!(normalized(&"e\u{301}".repeat(MAX_STRETCH + 1)).is_ok());
    }
}
