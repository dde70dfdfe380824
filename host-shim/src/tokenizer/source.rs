//! Reads a model's files and refuses what is not implemented exactly.

use super::{CompileError, sha256};
use inference_cache_core::tokenize::qwen2;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::Path;

const TOKENIZER: &str = "tokenizer.json";
const CONFIG: &str = "tokenizer_config.json";
const TEMPLATE: &str = "chat_template.jinja";

/// What the files say, checked.
pub(super) struct Source {
    /// tokenizer.json as it is, for the reference.
    pub(super) tokenizer_json: Vec<u8>,
    /// SHA-256 of tokenizer.json, tokenizer_config.json, chat_template.jinja; zeros for an absent one.
    pub(super) digests: [[u8; 32]; 3],
    pub(super) vocab: HashMap<String, u32>,
    /// In order of rank.
    pub(super) merges: Vec<(String, String)>,
    pub(super) added: Vec<AddedToken>,
    pub(super) nfc: bool,
    pub(super) chat_template: Option<String>,
    /// Names and texts of special tokens.
    pub(super) special: Vec<(String, String)>,
}

/// An added token of tokenizer.json, or of `added_tokens_decoder` (there without `id`).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AddedToken {
    #[serde(default)]
    pub(super) id: u32,
    pub(super) content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    normalized: bool,
    special: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenizerJson {
    version: Value,
    #[serde(default)]
    truncation: Value,
    #[serde(default)]
    padding: Value,
    added_tokens: Vec<AddedToken>,
    normalizer: Value,
    pre_tokenizer: Value,
    post_processor: Value,
    /// Tokens to text: of no use here.
    #[serde(rename = "decoder")]
    _decoder: Value,
    model: Model,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Model {
    #[serde(rename = "type")]
    kind: Value,
    #[serde(default)]
    dropout: Value,
    #[serde(default)]
    unk_token: Value,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    end_of_word_suffix: Option<String>,
    /// Has an effect only with an `unk_token`.
    #[serde(default, rename = "fuse_unk")]
    _fuse_unk: bool,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
    vocab: HashMap<String, u32>,
    merges: Vec<Merge>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Pair(String, String),
    Line(String),
}

impl Source {
    pub(super) fn read(dir: &Path) -> Result<Source, CompileError> {
        let tokenizer_json = read(dir, TOKENIZER)?;
        let config_json = read(dir, CONFIG)?;
        let template_file = if dir.join(TEMPLATE).exists() { Some(read(dir, TEMPLATE)?) } else { None };
        let json: TokenizerJson = parse(TOKENIZER, &tokenizer_json)?;
        let config: serde_json::Map<String, Value> = parse(CONFIG, &config_json)?;

        let nfc = check_pipeline(&json)?;
        check_added(&json.added_tokens)?;
        let special = check_config(&config, &json.added_tokens)?;
        let chat_template = match &template_file {
            // The file wins over the configuration, as in transformers.
            Some(bytes) => Some(utf8(TEMPLATE, bytes)?),
            None => template_of(&config)?,
        };
        let optional = |bytes: &Option<Vec<u8>>| bytes.as_deref().map_or([0; 32], sha256);
        let digests = [sha256(&tokenizer_json), sha256(&config_json), optional(&template_file)];
        let merges = json.model.merges.into_iter().enumerate().map(|(rank, merge)| merge.split(rank));
        Ok(Source {
            tokenizer_json,
            digests,
            vocab: json.model.vocab,
            merges: merges.collect::<Result<_, _>>()?,
            added: json.added_tokens,
            nfc,
            chat_template,
            special,
        })
    }
}

impl Merge {
    fn split(self, rank: usize) -> Result<(String, String), CompileError> {
        match self {
            Merge::Pair(left, right) => Ok((left, right)),
            Merge::Line(line) => match line.split_once(' ') {
                Some((left, right)) => Ok((left.to_owned(), right.to_owned())),
                None => Err(unsupported(format!("model.merges[{rank}]"), line)),
            },
        }
    }
}

/// Checks everything but the vocabulary and says whether text is normalized to NFC.
fn check_pipeline(json: &TokenizerJson) -> Result<bool, CompileError> {
    let byte_level = |value: &Value| {
        // Only offsets depend on `trim_offsets`.
        let trim = value.get("trim_offsets").filter(|trim| trim.is_boolean()).cloned().unwrap_or_default();
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": trim, "use_regex": false})
    };
    let last = json.pre_tokenizer.pointer("/pretokenizers/1").unwrap_or(&Value::Null);
    let split = json!({
        "type": "Split", "pattern": {"Regex": qwen2::PATTERN}, "behavior": "Isolated", "invert": false,
    });
    let pre_tokenizer = json!({"type": "Sequence", "pretokenizers": [split, byte_level(last)]});
    let nfc = !json.normalizer.is_null();
    let normalizer = if nfc { json!({"type": "NFC"}) } else { Value::Null };
    // A ByteLevel post-processor changes offsets only, whatever it says.
    let byte_level_post = json.post_processor.get("type") == Some(&json!("ByteLevel"));
    let post_processor = if byte_level_post { json.post_processor.clone() } else { Value::Null };

    let model = &json.model;
    for (field, value, supported) in [
        ("version", &json.version, json!("1.0")),
        ("truncation", &json.truncation, Value::Null),
        ("padding", &json.padding, Value::Null),
        ("normalizer", &json.normalizer, normalizer),
        ("pre_tokenizer", &json.pre_tokenizer, pre_tokenizer),
        ("post_processor", &json.post_processor, post_processor),
        ("model.type", &model.kind, json!("BPE")),
        ("model.dropout", &model.dropout, Value::Null),
        ("model.unk_token", &model.unk_token, Value::Null),
        (
            "model.continuing_subword_prefix",
            &json!(model.continuing_subword_prefix.as_deref().unwrap_or("")),
            json!(""),
        ),
        ("model.end_of_word_suffix", &json!(model.end_of_word_suffix.as_deref().unwrap_or("")), json!("")),
        ("model.byte_fallback", &json!(model.byte_fallback), json!(false)),
        ("model.ignore_merges", &json!(model.ignore_merges), json!(false)),
    ] {
        expect(field, value, &supported)?;
    }
    Ok(nfc)
}

fn check_added(added: &[AddedToken]) -> Result<(), CompileError> {
    let mut seen = HashMap::new();
    for (index, token) in added.iter().enumerate() {
        let flags = [
            ("single_word", token.single_word),
            ("lstrip", token.lstrip),
            ("rstrip", token.rstrip),
            ("normalized", token.normalized),
        ];
        if let Some((flag, _)) = flags.iter().find(|(_, set)| *set) {
            return Err(unsupported(format!("added_tokens[{index}].{flag}"), "true"));
        }
        if token.content.is_empty() || seen.insert(&token.content, ()).is_some() {
            return Err(unsupported(format!("added_tokens[{index}].content"), &token.content));
        }
    }
    Ok(())
}

/// Fields of tokenizer_config.json that change no token of an encoding.
const HARMLESS: &[&str] = &[
    "auto_map",
    "backend",
    "chat_template",
    "clean_up_tokenization_spaces",
    "errors",
    "is_local",
    "local_files_only",
    "model_max_length",
    "name_or_path",
    "padding_side",
    "processor_class",
    "tokenizer_class",
    "tokenizer_file",
    "truncation_side",
    "use_fast",
];

/// Fields that must have this value, if they are there.
const REQUIRED: &[(&str, bool)] = &[
    ("add_bos_token", false),
    ("add_eos_token", false),
    ("add_prefix_space", false),
    ("split_special_tokens", false),
];

/// Checks the configuration and says which special tokens it names.
///
/// transformers adds tokens that the configuration knows and tokenizer.json does not: those would change encodings.
fn check_config(
    config: &serde_json::Map<String, Value>,
    added: &[AddedToken],
) -> Result<Vec<(String, String)>, CompileError> {
    let refuse = |field: &str, value: &Value| {
        Err(CompileError::Unsupported { file: CONFIG, field: field.to_owned(), value: shorten(value) })
    };
    let known = |text: &str| added.iter().any(|token| token.content == text);
    let mut special = Vec::new();
    for (field, value) in config {
        if let Some((_, required)) = REQUIRED.iter().find(|(name, _)| name == field) {
            if !value.is_null() && value != &json!(required) {
                return refuse(field, value);
            }
        } else if field == "added_tokens_decoder" {
            for (id, token) in value.as_object().into_iter().flatten() {
                let declared = AddedToken::deserialize(token)
                    .map_err(|error| CompileError::Json { file: CONFIG, error })
                    .map(|token| AddedToken { id: id.parse().unwrap_or(u32::MAX), ..token })?;
                if !added.contains(&declared) {
                    return refuse(&format!("{field}.{id}"), token);
                }
            }
        } else if field == "additional_special_tokens" || field == "extra_special_tokens" {
            let texts: Vec<_> = match value {
                Value::Array(items) => items.iter().collect(),
                Value::Object(items) => items.values().collect(),
                other => vec![other],
            };
            let is_known = |value: &&Value| value.is_null() || text_of(value).is_some_and(known);
            if let Some(unknown) = texts.into_iter().find(|value| !is_known(value)) {
                return refuse(field, unknown);
            }
        } else if field.ends_with("_token") {
            match text_of(value) {
                Some(text) if known(text) => special.push((field.clone(), text.to_owned())),
                None if value.is_null() => {}
                _ => return refuse(field, value),
            }
        } else if !HARMLESS.contains(&field.as_str()) {
            return refuse(field, value);
        }
    }
    Ok(special)
}

/// The text of a token, which is a string or an object with `content`.
fn text_of(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value.get("content")?.as_str())
}

fn template_of(config: &serde_json::Map<String, Value>) -> Result<Option<String>, CompileError> {
    match config.get("chat_template") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(template)) => Ok(Some(template.clone())),
        // A list of named templates: which one is rendered depends on the request.
        Some(other) => {
            let (field, value) = ("chat_template".to_owned(), shorten(other));
            Err(CompileError::Unsupported { file: CONFIG, field, value })
        }
    }
}

/// Refuses `actual` if it is not `supported`, naming the innermost field that differs.
fn expect(field: &str, actual: &Value, supported: &Value) -> Result<(), CompileError> {
    match (actual, supported) {
        (Value::Object(actual), Value::Object(supported)) => {
            for (key, value) in actual {
                let inner = format!("{field}.{key}");
                expect(&inner, value, supported.get(key).unwrap_or(&Value::Null))?;
            }
            match supported.keys().find(|key| !actual.contains_key(*key)) {
                Some(missing) => Err(unsupported(format!("{field}.{missing}"), "absent")),
                None => Ok(()),
            }
        }
        (Value::Array(actual), Value::Array(supported)) if actual.len() == supported.len() => {
            let mut pairs = actual.iter().zip(supported).enumerate();
            pairs.try_for_each(|(at, (actual, supported))| {
                expect(&format!("{field}[{at}]"), actual, supported)
            })
        }
        _ if actual == supported => Ok(()),
        _ => Err(unsupported(field, shorten(actual))),
    }
}

/// A value of tokenizer.json that is not implemented.
pub(super) fn unsupported(field: impl Into<String>, value: impl Into<String>) -> CompileError {
    CompileError::Unsupported { file: TOKENIZER, field: field.into(), value: value.into() }
}

fn shorten(value: &Value) -> String {
    value.to_string().chars().take(200).collect()
}

fn parse<'a, T: Deserialize<'a>>(file: &'static str, bytes: &'a [u8]) -> Result<T, CompileError> {
    serde_json::from_slice(bytes).map_err(|error| CompileError::Json { file, error })
}

fn utf8(file: &'static str, bytes: &[u8]) -> Result<String, CompileError> {
    let refuse =
        |_| CompileError::Unsupported { file, field: "content".to_owned(), value: "not UTF-8".to_owned() };
    std::str::from_utf8(bytes).map(str::to_owned).map_err(refuse)
}

fn read(dir: &Path, file: &str) -> Result<Vec<u8>, CompileError> {
    let path = dir.join(file);
    std::fs::read(&path).map_err(|error| CompileError::Read { path, error })
}
