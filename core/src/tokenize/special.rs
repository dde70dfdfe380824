//! Section `SpecialTokens`: names from tokenizer_config.json (`bos_token`, `eos_token`, …) and their texts.

use super::artifact::{ArtifactError, Section, put_string, take_string};

/// Name and text of every special token that the chat template may name, in the order of the section.
pub(super) fn read(mut section: &[u8]) -> impl Iterator<Item = Result<(&str, &str), ArtifactError>> {
    let bad =
        || ArtifactError::Section { section: Section::SpecialTokens, problem: "not pairs of UTF-8 strings" };
    std::iter::from_fn(move || {
        if section.is_empty() {
            return None;
        }
        let mut string = || std::str::from_utf8(take_string(&mut section)?).ok();
        let pair = string().zip(string()).ok_or_else(bad);
        if pair.is_err() {
            section = &[];
        }
        Some(pair)
    })
}

/// The section for these names and texts.
pub fn build<'a>(tokens: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<u8> {
    let mut section = Vec::new();
    for (name, text) in tokens {
        put_string(&mut section, name.as_bytes());
        put_string(&mut section, text.as_bytes());
    }
    section
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn pairs_come_back() {
        let section = build([("bos_token", "<s>"), ("eos_token", "é")]);
        let pairs: Result<Vec<_>, _> = read(&section).collect();
        assert_eq!(pairs.unwrap(), [("bos_token", "<s>"), ("eos_token", "é")]);
        for cut in 1..section.len() {
            let cut_off: Result<Vec<_>, _> = read(&section[..cut]).collect();
            assert!(cut_off.is_err() || cut == 4 + 9 + 4 + 3);
        }
    }
}
