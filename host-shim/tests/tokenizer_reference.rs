//! The compiled demo tokenizer against the reference implementation on random texts, and what hostile bytes do.

use inference_cache_core::tokenize::artifact::{self, Section};
use inference_cache_core::tokenize::{EncodeError, MAX_WORD, Tokenizer};
use proptest::prelude::*;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/demo");

static ARTIFACT: LazyLock<Vec<u8>> =
    LazyLock::new(|| host_shim::tokenizer::compile(Path::new(DEMO)).unwrap());
static OURS: LazyLock<Tokenizer> = LazyLock::new(|| Tokenizer::load(ARTIFACT.clone()).unwrap());
static REFERENCE: LazyLock<tokenizers::Tokenizer> =
    LazyLock::new(|| tokenizers::Tokenizer::from_file(format!("{DEMO}/tokenizer.json")).unwrap());

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn tokens_are_those_of_the_reference(parts in prop::collection::vec(part(), 0..12), step in 1usize..20) {
        let text = parts.concat();
        let expected = REFERENCE.encode_fast(text.as_str(), true).unwrap();
        let mut tokens = Vec::new();
        let mut encoder = OURS.encode(&text, true);
        loop {
            let before = tokens.len();
            let more = encoder.fill(&mut tokens, step).unwrap();
            prop_assert!(!more || tokens.len() >= before + step);
            if !more {
                break;
            }
        }
        prop_assert_eq!(tokens, expected.get_ids());
    }

    /// Damage behind a right checksum: any bytes in any section.
    #[test]
    fn an_artifact_of_lies_ends_in_an_error_or_in_tokens(
        section in 1u32..=15,
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..200),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let directory = artifact::open(&ARTIFACT).unwrap();
        let mut sections: Vec<(Section, Vec<u8>)> =
            SECTIONS.iter().map(|section| (*section, directory.section(&ARTIFACT, *section).to_vec())).collect();
        let (_, bytes) = &mut sections[section as usize - 1];
        for (at, value) in edits {
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len().max(1)));
        }
        if let Ok(tokenizer) = Tokenizer::load(artifact::seal(&sections)) {
            let text = format!("Some words, é e\u{301} 한 \u{1112}\u{1161} <|im_start|>12 \n\n don't {}", "ab".repeat(100));
            let mut tokens = Vec::new();
            let _ = tokenizer.encode(&text, false).fill(&mut tokens, usize::MAX);
            prop_assert!(tokens.len() <= text.len() * 4);
        }
    }
}

/// Long words cross window borders; the one beyond the limit is refused after the tokens before it.
#[test]
fn long_words_and_their_limit() {
    for unit in ["a", " ", "\n", "=", "e\u{301}", "中", "ab "] {
        let text = format!("start {} end", unit.repeat(20_000));
        let expected = REFERENCE.encode_fast(text.as_str(), false).unwrap();
        let mut tokens = Vec::new();
        assert_eq!(OURS.encode(&text, false).fill(&mut tokens, usize::MAX), Ok(false));
        assert_eq!(tokens, expected.get_ids(), "{unit:?}");
    }
    let endless = format!("start {}", "x".repeat(MAX_WORD * 2));
    let mut tokens = Vec::new();
    assert_eq!(OURS.encode(&endless, false).fill(&mut tokens, usize::MAX), Err(EncodeError::WordTooLong));
    assert_eq!(tokens, REFERENCE.encode_fast("start", false).unwrap().get_ids());
    let marks = "e".to_owned() + &"\u{301}".repeat(1 << 20);
    assert_eq!(OURS.encode(&marks, false).fill(&mut Vec::new(), usize::MAX), Err(EncodeError::WordTooLong));
}

#[test]
fn settings_of_the_demo() {
    assert!(OURS.chat_template().unwrap().contains("<|im_start|>"));
    let settings = OURS.template_settings();
    let eos = ("eos_token".to_owned(), "<|im_end|>".to_owned());
    assert!(settings.special_tokens.contains(&eos), "{settings:?}");
}

/// Everything that would change tokens and is not implemented is refused with its field named.
#[test]
fn what_is_not_known_is_refused_by_name() {
    for (file, from, to, field) in [
        ("tokenizer.json", r#""type":"NFC""#, r#""type":"NFKC""#, "normalizer.type"),
        ("tokenizer.json", r"\\p{N}|", r"\\p{N}{1,3}|", "pre_tokenizer.pretokenizers[0].pattern.Regex"),
        ("tokenizer.json", r#""byte_fallback":false"#, r#""byte_fallback":true"#, "model.byte_fallback"),
        ("tokenizer.json", r#""ignore_merges":false"#, r#""ignore_merges":true"#, "model.ignore_merges"),
        ("tokenizer.json", r#""dropout":null"#, r#""dropout":0.1"#, "model.dropout"),
        ("tokenizer.json", r#""lstrip":false"#, r#""lstrip":true"#, "added_tokens[0].lstrip"),
        ("tokenizer.json", r#""normalized":false"#, r#""normalized":true"#, "added_tokens[0].normalized"),
        ("tokenizer.json", r#""truncation":null"#, r#""truncation":{"max_length":8}"#, "truncation"),
        ("tokenizer.json", r#""padding":null"#, r#""novelty":1"#, "novelty"),
        (
            "tokenizer.json",
            r#""behavior":"Isolated""#,
            r#""behavior":"Removed""#,
            "pretokenizers[0].behavior",
        ),
        ("tokenizer_config.json", r#""add_bos_token": false"#, r#""add_bos_token": true"#, "add_bos_token"),
        ("tokenizer_config.json", r#""unk_token": null"#, r#""unk_token": "<unk>""#, "unk_token"),
        ("tokenizer_config.json", r#""errors""#, r#""novelty""#, "novelty"),
    ] {
        let dir = Folder::new(field);
        for name in ["tokenizer.json", "tokenizer_config.json"] {
            let text = std::fs::read_to_string(format!("{DEMO}/{name}")).unwrap();
            let changed = if name == file { text.replacen(from, to, 1) } else { text.clone() };
            assert!(name != file || changed != text, "{from} is not in {file}");
            std::fs::write(dir.0.join(name), changed).unwrap();
        }
        let error = host_shim::tokenizer::compile(&dir.0).unwrap_err().to_string();
        assert!(error.contains(file) && error.contains(field), "{field}: {error}");
    }
}

const SECTIONS: [Section; 15] = [
    Section::Source,
    Section::Settings,
    Section::ByteSymbols,
    Section::TokenOffsets,
    Section::TokenBytes,
    Section::Pairs,
    Section::Words,
    Section::ClassIndex,
    Section::ClassBlocks,
    Section::Decompositions,
    Section::Compositions,
    Section::CombiningClasses,
    Section::AddedTokens,
    Section::ChatTemplate,
    Section::SpecialTokens,
];

fn part() -> impl Strategy<Value = String> {
    let special =
        ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_", "'s", "'LL", "'ſ", "\r\n", "  ", "\u{3000}"];
    let marks =
        ["e\u{301}", "\u{323}\u{307}", "\u{1112}\u{1161}\u{11ab}", "क\u{93c}", "\u{2f800}", "=\u{338}", "가"];
    prop_oneof![
        ".{0,8}",
        "[a-zA-Z' ]{0,30}",
        "[ \\t\\n\\r.,!'0-9a-c]{0,20}",
        "[\u{80}-\u{3100}]{0,10}",
        prop::sample::select(special.to_vec()).prop_map(str::to_owned),
        prop::sample::select(marks.to_vec()).prop_map(str::to_owned),
        "[a-z=\u{301}]{60,70}",
    ]
}

/// A folder of this test process that goes away.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let name = name.replace(['[', ']', '.'], "_");
        let dir = std::env::temp_dir().join(format!("tokenizer-reference-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Folder(dir)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
