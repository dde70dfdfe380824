//! What of a request's body the engine itself obeys. The messages of a chat are read by `core`.

use super::App;
use super::error::ApiError;
use crate::events::Lora;
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::sync::Arc;

/// `max_tokens` of a completion that does not say.
const DEFAULT_COMPLETION_TOKENS: u64 = 16;
/// Prompts of one request.
const MAX_PROMPTS: usize = 128;

/// Fields that both endpoints share.
#[derive(Debug)]
pub(super) struct Parameters {
    pub(super) model: String,
    pub(super) lora: Option<Arc<Lora>>,
    pub(super) cache_salt: Option<Arc<str>>,
    /// `None`: as much as the context leaves.
    pub(super) max_tokens: Option<u64>,
    pub(super) ignore_eos: bool,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    pub(super) return_token_ids: bool,
    pub(super) report_full: bool,
}

/// One prompt of `/v1/completions`.
#[derive(Debug)]
pub(super) enum RawPrompt {
    Text(String),
    Tokens(Vec<u32>),
}

/// The body as a JSON object.
pub(super) fn object(body: &[u8]) -> Result<Map<String, Value>, ApiError> {
    match serde_json::from_slice(body) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(ApiError::bad_request("The body is not a JSON object.", None)),
        Err(error) => Err(ApiError::bad_request(format!("JSON decode error: {error}"), None)),
    }
}

/// `body` with a model: the parser of chats wants one, vLLM does not.
pub(super) fn with_model<'a>(app: &App, body: &'a [u8], fields: &Map<String, Value>) -> Cow<'a, [u8]> {
    if fields.get("model").is_some_and(|model| !model.is_null()) {
        return Cow::Borrowed(body);
    }
    let mut fields = fields.clone();
    fields.insert("model".into(), app.config.served_model_name.as_str().into());
    Cow::Owned(Value::Object(fields).to_string().into_bytes())
}

impl Parameters {
    /// Reads the fields; `chat` decides what `max_tokens` is called and its default.
    pub(super) fn read(app: &App, body: &Map<String, Value>, chat: bool) -> Result<Parameters, ApiError> {
        let (model, lora) = model(app, body)?;
        let cache_salt = match body.get("cache_salt") {
            None | Some(Value::Null) => None,
            Some(Value::String(salt)) if !salt.is_empty() => Some(Arc::from(salt.as_str())),
            Some(_) => {
                return Err(ApiError::bad_request(
                    "cache_salt must be a non-empty string",
                    Some("cache_salt"),
                ));
            }
        };
        let max_tokens = match chat {
            true => count(body, "max_completion_tokens")?.or(count(body, "max_tokens")?),
            false => Some(count(body, "max_tokens")?.unwrap_or(DEFAULT_COMPLETION_TOKENS)),
        };
        let report_mode = body.get("vllm_xargs").and_then(|xargs| xargs.get("kv_cache_report_mode"));
        Ok(Parameters {
            model,
            lora,
            cache_salt,
            max_tokens,
            ignore_eos: flag(body.get("ignore_eos")),
            stream: flag(body.get("stream")),
            include_usage: flag(body.get("stream_options").and_then(|options| options.get("include_usage"))),
            return_token_ids: flag(body.get("return_token_ids")),
            report_full: report_mode.and_then(Value::as_str) == Some("full"),
        })
    }
}

/// The prompts of a completion: text, token ids, or a list of either.
pub(super) fn prompts(body: &Map<String, Value>) -> Result<Vec<RawPrompt>, ApiError> {
    let refused =
        || ApiError::bad_request("prompt must be text, token ids, or a list of either", Some("prompt"));
    let prompts = match body.get("prompt") {
        Some(Value::Array(items)) if items.first().is_some_and(|item| !item.is_number()) => {
            items.iter().map(one_prompt).collect()
        }
        Some(prompt) => one_prompt(prompt).map(|prompt| vec![prompt]),
        None => None,
    };
    prompts.filter(|prompts| (1..=MAX_PROMPTS).contains(&prompts.len())).ok_or_else(refused)
}

fn one_prompt(prompt: &Value) -> Option<RawPrompt> {
    match prompt {
        Value::String(text) => Some(RawPrompt::Text(text.clone())),
        Value::Array(tokens) => {
            let token = |token: &Value| token.as_u64().and_then(|token| u32::try_from(token).ok());
            tokens.iter().map(token).collect::<Option<Vec<u32>>>().map(RawPrompt::Tokens)
        }
        _ => None,
    }
}

/// The served name and the adapter behind it. A body without a model means the base model.
fn model(app: &App, body: &Map<String, Value>) -> Result<(String, Option<Arc<Lora>>), ApiError> {
    let served = &app.config.served_model_name;
    match body.get("model") {
        None | Some(Value::Null) => Ok((served.clone(), None)),
        Some(Value::String(name)) if name == served => Ok((served.clone(), None)),
        Some(Value::String(name)) => match app.config.loras.iter().find(|lora| lora.name == *name) {
            Some(lora) => Ok((name.clone(), Some(lora.clone()))),
            None => Err(ApiError::unknown_model(name)),
        },
        Some(_) => Err(ApiError::bad_request("model must be a string", Some("model"))),
    }
}

fn count(body: &Map<String, Value>, field: &'static str) -> Result<Option<u64>, ApiError> {
    match body.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_u64() {
            Some(count) if count > 0 => Ok(Some(count)),
            _ => Err(ApiError::bad_request(format!("{field} must be at least 1"), Some(field))),
        },
    }
}

fn flag(value: Option<&Value>) -> bool {
    value.and_then(Value::as_bool).unwrap_or(false)
}
