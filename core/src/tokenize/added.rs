//! Added tokens: texts such as `<|im_start|>` that are cut out of the raw text before anything else.
//!
//! The leftmost match wins, the longest among those that start there, matches do not overlap (as the reference's
//! Aho-Corasick "leftmost longest"). Section `AddedTokens`: per token u32 id and the length-prefixed text, texts
//! ascending by bytes, none empty. Tokens that strip or need word boundaries, or match normalized text, are refused
//! by the compiler: pieces between matches can be encoded alone.
//!
//! Cost: one table read per byte of text; a binary search per byte of a candidate.

use super::artifact::{ArtifactError, Section, put_string, take_string};
use std::ops::Range;

const MAX_ADDED: usize = 1 << 16;

/// Where the added tokens lie in their section.
#[derive(Debug)]
pub(super) struct AddedTokens {
    /// Text (range in the section) and id, ascending by text.
    tokens: Vec<(Range<usize>, u32)>,
    /// Whether a token starts with this byte.
    first: [bool; 256],
}

/// The tokens together with the section that holds their texts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AddedView<'a> {
    tokens: &'a [(Range<usize>, u32)],
    first: &'a [bool],
    section: &'a [u8],
}

/// An added token in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Match {
    pub(super) place: Range<usize>,
    pub(super) id: u32,
}

impl AddedTokens {
    pub(super) fn read(section: &[u8]) -> Result<AddedTokens, ArtifactError> {
        let bad = |problem| ArtifactError::Section { section: Section::AddedTokens, problem };
        let mut added = AddedTokens { tokens: Vec::new(), first: [false; 256] };
        let mut last: &[u8] = &[];
        let mut rest = section;
        while let Some((id, behind)) = rest.split_first_chunk::<4>() {
            rest = behind;
            let text = take_string(&mut rest).ok_or(bad("cut off"))?;
            let first = text.first().ok_or(bad("a text is empty"))?;
            if text <= last {
                return Err(bad("texts do not ascend"));
            }
            if added.tokens.len() == MAX_ADDED {
                return Err(bad("too many"));
            }
            added.tokens.try_reserve(1).map_err(|_| ArtifactError::OutOfMemory)?;
            let end = section.len() - rest.len();
            added.tokens.push((end - text.len()..end, u32::from_le_bytes(*id)));
            if let Some(first) = added.first.get_mut(usize::from(*first)) {
                *first = true;
            }
            last = text;
        }
        if rest.is_empty() { Ok(added) } else { Err(bad("cut off")) }
    }

    pub(super) fn view<'a>(&'a self, section: &'a [u8]) -> AddedView<'a> {
        AddedView { tokens: &self.tokens, first: &self.first, section }
    }
}

impl AddedView<'_> {
    /// The first match in `text` that starts in `starts`.
    pub(super) fn find(&self, text: &[u8], starts: Range<usize>) -> Option<Match> {
        let mut at = starts.start;
        while let Some(skipped) = text.get(at..starts.end)?.iter().position(|byte| self.begins(*byte)) {
            at += skipped;
            if let Some((length, id)) = self.longest(text.get(at..)?) {
                return Some(Match { place: at..at + length, id });
            }
            at += 1;
        }
        None
    }

    fn begins(&self, byte: u8) -> bool {
        self.first.get(usize::from(byte)).copied().unwrap_or_default()
    }

    /// Length and id of the longest token that `text` starts with.
    fn longest(&self, text: &[u8]) -> Option<(usize, u32)> {
        let mut candidates = self.tokens;
        let mut best = None;
        for (depth, byte) in text.iter().enumerate() {
            // All candidates share the `depth` bytes before; order by the next byte, "no more bytes" first.
            let next = |token: &(Range<usize>, u32)| {
                self.section
                    .get(token.0.clone())
                    .and_then(|text| text.get(depth))
                    .map_or(-1, |byte| i32::from(*byte))
            };
            let byte = i32::from(*byte);
            let (_, from) =
                candidates.split_at_checked(candidates.partition_point(|token| next(token) < byte))?;
            let (with, _) = from.split_at_checked(from.partition_point(|token| next(token) <= byte))?;
            candidates = with;
            let Some((place, id)) = candidates.first() else { break };
            if place.len() == depth + 1 {
                best = Some((depth + 1, *id));
            }
        }
        best
    }
}

/// The section for these tokens, sorted here. Texts are distinct and not empty.
pub fn build(mut tokens: Vec<(&[u8], u32)>) -> Vec<u8> {
    tokens.sort();
    let mut section = Vec::new();
    for (text, id) in tokens {
        section.extend_from_slice(&id.to_le_bytes());
        put_string(&mut section, text);
    }
    section
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn all(tokens: &[&str], text: &str) -> Vec<(usize, usize, u32)> {
        let section = build(tokens.iter().zip(0..).map(|(token, id)| (token.as_bytes(), id)).collect());
        let added = AddedTokens::read(&section).unwrap();
        let mut found = Vec::new();
        let mut at = 0;
        while let Some(Match { place, id }) = added.view(&section).find(text.as_bytes(), at..text.len()) {
            at = place.end;
            found.push((place.start, place.end, id));
        }
        found
    }

    #[test]
    fn leftmost_longest() {
        let tokens = ["<a>", "<a><b>", "<b>", "b><", "<", "x"];
        assert_eq!(all(&tokens, "<a><b>"), [(0, 6, 1)]);
        assert_eq!(all(&tokens, "<a><c"), [(0, 3, 0), (3, 4, 4)]);
        assert_eq!(all(&tokens, "ab><b>x"), [(1, 4, 3), (6, 7, 5)]);
        assert_eq!(all(&tokens, "nothing"), []);
        assert_eq!(all(&tokens, ""), []);
        assert_eq!(all(&[], "<a>"), []);
    }

    #[test]
    fn bad_sections_are_errors() {
        let good = build(vec![(b"<a>", 1), (b"<b>", 2)]);
        for cut in [1, 5, 9, good.len() - 1] {
            assert!(AddedTokens::read(&good[..cut]).is_err(), "cut at {cut}");
        }
        assert!(AddedTokens::read(&build(vec![(b"", 1)])).is_err());
        assert!(AddedTokens::read(&[build(vec![(b"b", 1)]), build(vec![(b"a", 1)])].concat()).is_err());
    }
}
