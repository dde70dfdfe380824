//! The pre-tokenizer of Qwen2, Qwen2.5 and Qwen3: cuts text into words as this pattern does, match after match:
//!
//! ```text
//! (?i:'s|'t|'re|'ve|'m|'ll|'d)      a contraction
//! |[^\r\n\p{L}\p{N}]?\p{L}+         letters, with one leading character that is neither newline, letter nor number
//! |\p{N}                            one number
//! | ?[^\s\p{L}\p{N}]+[\r\n]*        others, with a leading space, with the newlines behind
//! |\s*[\r\n]+                       white space to its last newline
//! |\s+(?!\S)                        white space but its last character if a word follows
//! |\s+
//! ```
//! Every character is in one of four kinds, so there is no text between matches.
//!
//! [`cut`] also says whether it looked at the end of the text: if text may go on there, the cut is not certain.
//!
//! Cost: O(word), except for white space before a word, whose last character is read twice.

use super::classes::{Classes, Kind};

/// [`super::artifact::Section::Settings`] value of this pattern.
pub const ID: u32 = 1;

/// The pattern as it stands in tokenizer.json.
pub const PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The end of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    pub(super) end: usize,
    /// The end of the text was looked at: more text could move the cut.
    pub(super) open: bool,
}

/// Where the word that starts at `at` ends. `at` is inside of `text`, on a character boundary.
#[inline]
pub(super) fn cut(classes: &Classes<'_>, text: &[u8], at: usize) -> Cut {
    let Some((kind, length)) = classes.peek(text, at) else { return Cut { end: text.len(), open: true } };
    let after = at + length;
    match kind {
        Kind::Letter => letters(classes, text, after),
        Kind::Number => Cut { end: after, open: after == text.len() },
        Kind::Space => space(classes, text, at, after),
        Kind::Other => other(classes, text, at, after),
    }
}

fn space(classes: &Classes<'_>, text: &[u8], at: usize, after: usize) -> Cut {
    let first = text.get(at).copied();
    if !matches!(first, Some(b'\r' | b'\n')) {
        match classes.peek(text, after) {
            Some((Kind::Letter, length)) => return letters(classes, text, after + length),
            Some((Kind::Other, length)) if first == Some(b' ') => {
                return others(classes, text, after + length);
            }
            _ => {}
        }
    }
    white_space(classes, text, at)
}

fn other(classes: &Classes<'_>, text: &[u8], at: usize, after: usize) -> Cut {
    // A contraction needs up to two characters behind the apostrophe.
    let mut open = false;
    if text.get(at) == Some(&b'\'') {
        match text.get(after..).and_then(contraction) {
            Some(length) => return Cut { end: after + length, open: after + length == text.len() },
            None => open = after + 2 > text.len(),
        }
    }
    let cut = match classes.peek(text, after) {
        Some((Kind::Letter, length)) => letters(classes, text, after + length),
        _ => others(classes, text, after),
    };
    Cut { open: cut.open | open, ..cut }
}

/// Bytes of the contraction that `text`, behind an apostrophe, starts with. "ſ" is an "s" without regard to case.
fn contraction(text: &[u8]) -> Option<usize> {
    let lower = |at: usize| text.get(at).map(u8::to_ascii_lowercase);
    match (lower(0)?, lower(1)) {
        (b's' | b't' | b'm' | b'd', _) => Some(1),
        (b'r' | b'v', Some(b'e')) | (b'l', Some(b'l')) | (0xc5, Some(0xbf)) => Some(2),
        _ => None,
    }
}

#[inline]
fn letters(classes: &Classes<'_>, text: &[u8], from: usize) -> Cut {
    run(classes, text, from, Kind::Letter)
}

#[inline]
fn others(classes: &Classes<'_>, text: &[u8], from: usize) -> Cut {
    let mut cut = run(classes, text, from, Kind::Other);
    while let Some(b'\r' | b'\n') = text.get(cut.end) {
        cut.end += 1;
    }
    Cut { end: cut.end, open: cut.end == text.len() }
}

#[inline]
fn run(classes: &Classes<'_>, text: &[u8], from: usize, wanted: Kind) -> Cut {
    let mut end = from;
    while let Some((kind, length)) = classes.peek(text, end) {
        if kind != wanted {
            return Cut { end, open: false };
        }
        end += length;
    }
    Cut { end, open: true }
}

fn white_space(classes: &Classes<'_>, text: &[u8], at: usize) -> Cut {
    let (mut end, mut last, mut newline) = (at, at, None);
    while let Some((Kind::Space, length)) = classes.peek(text, end) {
        last = end;
        end += length;
        if let Some(b'\r' | b'\n') = text.get(last) {
            newline = Some(end);
        }
    }
    let open = end == text.len();
    match newline {
        Some(newline) => Cut { end: newline, open },
        None if open || last == at => Cut { end, open },
        None => Cut { end: last, open },
    }
}

#[cfg(test)]
mod tests {
    use super::super::classes;
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn words<'t>(classes: &Classes<'_>, text: &'t str) -> Vec<&'t str> {
        let mut words = Vec::new();
        let mut at = 0;
        while at < text.len() {
            let Cut { end, open } = cut(classes, text.as_bytes(), at);
            for more in ["a", "1", ".", " ", "\n", "'", "s", "e"] {
                let longer = [text, more].concat();
                assert!(open || cut(classes, longer.as_bytes(), at).end == end, "{text:?} {at} {more:?}");
            }
            words.push(&text[at..end]);
            at = end;
        }
        words
    }

    #[test]
    fn every_alternative() {
        let (index, blocks) = classes::build(|c| match char::from_u32(c) {
            Some(c) if c.is_alphabetic() => Kind::Letter as u8,
            Some(c) if c.is_numeric() => Kind::Number as u8,
            Some(c) if c.is_whitespace() => Kind::Space as u8,
            _ => Kind::Other as u8,
        });
        let classes = Classes::new(index.as_chunks().0, blocks.as_chunks().0).unwrap();
        for (text, expected) in [
            ("Hello world", &["Hello", " world"][..]),
            ("it's I'LL 're 'ſx '!", &["it", "'s", " I", "'LL", " '", "re", " '", "ſx", " '!"]),
            ("'sx'tx'd'", &["'s", "x", "'t", "x", "'d", "'"]),
            ("'re've'll'm'l", &["'re", "'ve", "'ll", "'m", "'l"]),
            ("a1234", &["a", "1", "2", "3", "4"]),
            ("x  y", &["x", " ", " y"]),
            ("x \t y", &["x", " \t", " y"]),
            ("x   ", &["x", "   "]),
            ("x \n y", &["x", " \n", " y"]),
            ("\n\n a", &["\n\n", " a"]),
            ("\r\nb", &["\r\n", "b"]),
            ("if (x) {\n\t}\n", &["if", " (", "x", ")", " {\n", "\t", "}\n"]),
            ("\t(", &["\t", "("]),
            ("(a", &["(a"]),
            ("...\r\n\r\nb", &["...\r\n\r\n", "b"]),
            ("\u{3000}中文。", &["\u{3000}中文", "。"]),
            ("  .", &[" ", " ."]),
            ("'", &["'"]),
            ("😀a", &["😀a"]),
        ] {
            assert_eq!(words(&classes, text), expected, "{text:?}");
        }
    }
}
