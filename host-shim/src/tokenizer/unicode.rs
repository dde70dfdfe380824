//! Tables of the reference's regex engine and normalizer, read out of the crates that the reference uses.

use inference_cache_core::tokenize::classes::{self, Kind, UNSTABLE};
use std::collections::BTreeSet;
use tokenizers::utils::SysRegex;
use unicode_normalization_alignments::UnicodeNormalization;
use unicode_normalization_alignments::char::{canonical_combining_class, compose, decompose_canonical};

/// Sections of the normalizer.
#[derive(Default)]
pub(super) struct NfcTables {
    pub(super) decompositions: Vec<u8>,
    pub(super) compositions: Vec<u8>,
    pub(super) combining_classes: Vec<u8>,
}

/// Sections `ClassIndex` and `ClassBlocks`. With `nfc`, characters that normalization may change are marked.
pub(super) fn classes(nfc: bool) -> (Vec<u8>, Vec<u8>) {
    let mut table = vec![0u8; char::MAX as usize + 1];
    let all: String = every_character().collect();
    for (pattern, kind) in [(r"\p{L}", Kind::Letter), (r"\p{N}", Kind::Number), (r"\s", Kind::Space)] {
        // The patterns are constants that the reference itself compiles for every Qwen tokenizer.
        let Ok(regex) = SysRegex::new(pattern) else { continue };
        for (start, end) in regex.find_iter(&all) {
            all[start..end].chars().for_each(|character| table[character as usize] = kind as u8);
        }
    }
    if nfc {
        let seconds = seconds();
        every_character().filter(|c| !is_stable(*c, &seconds)).for_each(|c| table[c as usize] |= UNSTABLE);
    }
    classes::build(|code_point| table[code_point as usize])
}

/// The layout is that of `inference_cache_core::tokenize::nfc`.
pub(super) fn nfc_tables() -> NfcTables {
    let mut tables = NfcTables::default();
    let put = |section: &mut Vec<u8>, fields: &[u32]| {
        fields.iter().for_each(|field| section.extend_from_slice(&field.to_le_bytes()));
    };
    let mut firsts = BTreeSet::new();
    for character in every_character() {
        let class = canonical_combining_class(character);
        if class != 0 {
            put(&mut tables.combining_classes, &[u32::from(character) << 8 | u32::from(class)]);
        }
        let parts = decomposition(character);
        if parts != [character] && !is_hangul(character) {
            let mut fields = [u32::from(character), 0, 0, 0, 0];
            fields[1..].iter_mut().zip(&parts).for_each(|(field, part)| *field = u32::from(*part));
            put(&mut tables.decompositions, &fields);
            firsts.extend(parts);
            firsts.insert(character);
        }
    }
    let seconds: Vec<_> = seconds().into_iter().filter(|second| !is_jamo(*second)).collect();
    for first in firsts {
        for &second in &seconds {
            if let Some(composed) = compose(first, second) {
                put(&mut tables.compositions, &[first, second, composed].map(u32::from));
            }
        }
    }
    tables
}

/// Characters that compose with one before them: later parts of decompositions, and Hangul vowels and tails.
fn seconds() -> BTreeSet<char> {
    every_character().flat_map(|character| decomposition(character).into_iter().skip(1)).collect()
}

/// See `inference_cache_core::tokenize::nfc` for what stable means. ASCII is.
fn is_stable(character: char, seconds: &BTreeSet<char>) -> bool {
    let first = decomposition(character).first().copied().unwrap_or(character);
    canonical_combining_class(first) == 0
        && canonical_combining_class(character) == 0
        && !seconds.contains(&first)
        && std::iter::once(character).nfc().map(|(composed, _)| composed).eq([character])
}

fn decomposition(character: char) -> Vec<char> {
    let mut parts = Vec::new();
    decompose_canonical(character, |part| parts.push(part));
    parts
}

fn every_character() -> impl Iterator<Item = char> {
    '\0'..=char::MAX
}

fn is_hangul(character: char) -> bool {
    ('\u{ac00}'..='\u{d7a3}').contains(&character)
}

fn is_jamo(character: char) -> bool {
    ('\u{1100}'..='\u{11ff}').contains(&character)
}
