//! What the pre-tokenizer and the normalizer need to know of a code point, in one byte.
//!
//! Two stages: `index[code point / 128]` is a block, `blocks[block * 128 + code point % 128]` the byte. The compiler
//! fills it from the tables of the reference regex engine and normalizer, so their Unicode versions are the ones that
//! count. ASCII needs no table.
//!
//! Cost: two dependent reads a code point; about 30 KB.

use super::artifact::{ArtifactError, Section};

/// Kinds of code points that the patterns tell apart. They partition Unicode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// None of the others.
    Other = 0,
    /// `\p{L}`
    Letter = 1,
    /// `\p{N}`
    Number = 2,
    /// `\s`
    Space = 3,
}

/// Set in a class byte if normalization may change text at this code point. Never set for ASCII.
pub const UNSTABLE: u8 = 4;

const KIND: u8 = 3;
const BLOCK: usize = 128;
const BLOCKS: usize = 0x11_0000 / BLOCK;

/// The table.
#[derive(Clone, Copy, Debug, Default)]
pub struct Classes<'a> {
    index: &'a [[u8; 2]],
    blocks: &'a [[u8; BLOCK]],
}

impl<'a> Classes<'a> {
    /// # Errors
    /// The index does not cover Unicode.
    pub fn new(index: &'a [[u8; 2]], blocks: &'a [[u8; BLOCK]]) -> Result<Classes<'a>, ArtifactError> {
        if index.len() != BLOCKS {
            let problem = "does not cover Unicode";
            return Err(ArtifactError::Section { section: Section::ClassIndex, problem });
        }
        Ok(Classes { index, blocks })
    }

    /// The kind and the length in bytes of the character that starts at `at`; `None` at the end of `text`.
    #[inline]
    pub fn peek(&self, text: &[u8], at: usize) -> Option<(Kind, usize)> {
        let byte = *text.get(at)?;
        if byte < 0x80 {
            return Some((ascii(byte), 1));
        }
        let (code_point, length) = decode(text, at, byte);
        Some((kind(self.class(code_point)), length))
    }

    /// Where the first unstable character of `text[from..to]` starts; `to` if there is none.
    pub fn first_unstable(&self, text: &[u8], from: usize, to: usize) -> usize {
        let mut at = from;
        while at < to {
            // Eight at a time: most text is ASCII.
            if let Some(eight) = text.get(at..).and_then(|rest| rest.first_chunk::<8>())
                && u64::from_le_bytes(*eight) & 0x8080_8080_8080_8080 == 0
            {
                at += 8;
                continue;
            }
            let byte = text.get(at).copied().unwrap_or_default();
            if byte < 0x80 {
                at += 1;
                continue;
            }
            let (code_point, length) = decode(text, at, byte);
            if self.class(code_point) & UNSTABLE != 0 {
                return at;
            }
            at += length;
        }
        to
    }

    /// Whether normalization may change text at `character`.
    pub fn is_unstable(&self, character: char) -> bool {
        !character.is_ascii() && self.class(character as u32) & UNSTABLE != 0
    }

    #[inline]
    fn class(&self, code_point: u32) -> u8 {
        let (row, column) = (code_point as usize / BLOCK, code_point as usize % BLOCK);
        let block = self.index.get(row).map_or(0, |block| u16::from_le_bytes(*block));
        self.blocks.get(usize::from(block)).and_then(|block| block.get(column)).copied().unwrap_or_default()
    }
}

/// Index and blocks of the table that `class` describes for every code point (surrogates included, whatever it says).
pub fn build(class: impl Fn(u32) -> u8) -> (Vec<u8>, Vec<u8>) {
    let (mut index, mut blocks) = (Vec::new(), Vec::<[u8; BLOCK]>::new());
    for row in 0..BLOCKS {
        let block: [u8; BLOCK] = std::array::from_fn(|column| class((row * BLOCK + column) as u32));
        let place = blocks.iter().position(|known| *known == block).unwrap_or_else(|| {
            blocks.push(block);
            blocks.len() - 1
        });
        index.extend_from_slice(&(place as u16).to_le_bytes());
    }
    (index, blocks.concat())
}

#[inline]
fn ascii(byte: u8) -> Kind {
    match byte {
        b'a'..=b'z' | b'A'..=b'Z' => Kind::Letter,
        b' ' | b'\t'..=b'\r' => Kind::Space,
        b'0'..=b'9' => Kind::Number,
        _ => Kind::Other,
    }
}

#[inline]
fn kind(class: u8) -> Kind {
    match class & KIND {
        1 => Kind::Letter,
        2 => Kind::Number,
        3 => Kind::Space,
        _ => Kind::Other,
    }
}

/// Code point and length of the character at `at`, whose first `byte` is not ASCII. `text` is UTF-8.
#[inline]
fn decode(text: &[u8], at: usize, byte: u8) -> (u32, usize) {
    let follow = |step: usize| u32::from(text.get(at + step).copied().unwrap_or_default() & 0x3f);
    let first = u32::from(byte);
    match byte {
        ..0xe0 => ((first & 0x1f) << 6 | follow(1), 2),
        0xe0..0xf0 => ((first & 0x0f) << 12 | follow(1) << 6 | follow(2), 3),
        0xf0.. => ((first & 0x07) << 18 | follow(1) << 12 | follow(2) << 6 | follow(3), 4),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn every_code_point_comes_back() {
        let class = |code_point: u32| ((code_point / 3) % 8) as u8;
        let (index, blocks) = build(class);
        let classes = Classes::new(index.as_chunks().0, blocks.as_chunks().0).unwrap();
        let mut text = [0; 4];
        for character in ('\u{80}'..=char::MAX).step_by(5) {
            let bytes = character.encode_utf8(&mut text).as_bytes();
            let expected = class(character as u32);
            assert_eq!(classes.peek(bytes, 0), Some((kind(expected), bytes.len())), "{character:?}");
            assert_eq!(classes.first_unstable(bytes, 0, bytes.len()) == 0, expected & UNSTABLE != 0);
        }
        assert_eq!(classes.peek(b"", 0), None);
    }

    #[test]
    fn first_unstable_passes_over_stable_text() {
        let (index, blocks) = build(|code_point| if code_point == 0x301 { UNSTABLE } else { 0 });
        let classes = Classes::new(index.as_chunks().0, blocks.as_chunks().0).unwrap();
        let text = "plain ascii text é中😀 then e\u{301} and more";
        let expected = text.find('\u{301}').unwrap();
        assert_eq!(classes.first_unstable(text.as_bytes(), 0, text.len()), expected);
        assert_eq!(classes.first_unstable(text.as_bytes(), 0, 10), 10);
    }
}
