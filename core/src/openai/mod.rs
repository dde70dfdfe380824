//! The body of an OpenAI request, as far as it decides the prompt.
//!
//! [`parse`] reads `/v1/completions` and `/v1/chat/completions` and gives what the engine will build its prompt from,
//! after the changes that vLLM makes to messages and tools before its chat template sees them (release 0.32,
//! `vllm/renderers/chat_utils.py`). What cannot be turned into the engine's tokens is refused with a reason: the caller
//! then routes without a hint. What an engine would refuse may be accepted here; its answer does not depend on us.
//!
//! A body whose end was not seen (`complete = false`) gives what is in its start. Lost are: every field behind the
//! cut, a message whose role or content did not begin, tokens and numbers at the cut. If a field behind the cut
//! changes the start of the prompt (`tools` after `messages`), the tokens differ from the engine's and nothing matches.
//!
//! Cost: one pass over the body, one copy of each text that the prompt needs, linear in the body.
//! This is no validator and no server: sampling parameters are skipped unread.

mod chat;
mod json;
mod value;

pub use chat::{Chat, ContentFormat, conversation};
pub use value::{Number, Object, Value};

use json::{JsonError, Parser};

/// Which body it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// `/v1/completions`
    Completions,
    /// `/v1/chat/completions`
    ChatCompletions,
}

/// What decides the prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The model's served name; never empty.
    pub model: String,
    /// The prompt.
    pub prompt: Prompt,
    /// Separates prefix caches: requests share blocks only with requests of the same salt.
    pub cache_salt: Option<String>,
    /// Whether the engine adds special tokens to the text; the engine's default if none (completions: yes, chat: no).
    pub add_special_tokens: Option<bool>,
}

/// A prompt before tokenization.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// Text; the first of a list.
    Text(String),
    /// Token ids; the first of a list of lists.
    Tokens(Vec<u32>),
    /// Messages for the chat template.
    Chat(Box<Chat>),
}

/// Why a body gives no prompt. Carries nothing of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// Not JSON in UTF-8.
    #[error("the body is not JSON")]
    NotJson,
    /// More than 128 levels of nesting.
    #[error("the body is nested too deeply")]
    TooDeep,
    /// A lone surrogate in a text that is needed.
    #[error("the body has text that is not Unicode")]
    NotUnicode,
    /// JSON, but no object.
    #[error("the body is not an object")]
    NotObject,
    /// `model` is missing, empty or no string.
    #[error("the body names no model")]
    NoModel,
    /// `prompt` is missing or empty.
    #[error("the body has no prompt")]
    NoPrompt,
    /// `prompt` is neither text nor token ids.
    #[error("the prompt is neither text nor tokens")]
    BadPrompt,
    /// `messages` is missing or no list.
    #[error("the body has no messages")]
    NoMessages,
    /// `messages` is empty.
    #[error("the list of messages is empty")]
    EmptyMessages,
    /// A message without role, or with content or tool calls that are malformed.
    #[error("a message is malformed")]
    BadMessage,
    /// Images, audio, embeddings: tokens alone do not tell them.
    #[error("the prompt is not text alone")]
    NotText,
    /// A field has the wrong type.
    #[error("field `{0}` is malformed")]
    BadField(&'static str),
    /// A field that changes the prompt in a way that is not followed here.
    #[error("field `{0}` is not supported")]
    Unsupported(&'static str),
    /// The body does not fit into memory.
    #[error("the body does not fit into memory")]
    Memory,
}

impl BodyError {
    /// A label for metrics; one of 14.
    pub fn reason(&self) -> &'static str {
        match self {
            BodyError::NotJson => "not_json",
            BodyError::TooDeep => "too_deep",
            BodyError::NotUnicode => "not_unicode",
            BodyError::NotObject => "not_object",
            BodyError::NoModel => "no_model",
            BodyError::NoPrompt => "no_prompt",
            BodyError::BadPrompt => "bad_prompt",
            BodyError::NoMessages => "no_messages",
            BodyError::EmptyMessages => "empty_messages",
            BodyError::BadMessage => "bad_message",
            BodyError::NotText => "not_text",
            BodyError::BadField(_) => "bad_field",
            BodyError::Unsupported(_) => "unsupported_field",
            BodyError::Memory => "memory",
        }
    }
}

impl From<JsonError> for BodyError {
    fn from(error: JsonError) -> BodyError {
        match error {
            JsonError::Syntax => BodyError::NotJson,
            JsonError::TooDeep => BodyError::TooDeep,
            JsonError::LoneSurrogate => BodyError::NotUnicode,
            JsonError::Memory => BodyError::Memory,
        }
    }
}

const COMMON: &[&str] = &["model", "cache_salt", "add_special_tokens", "truncate_prompt_tokens"];
const COMPLETIONS: &[&str] = &["prompt", "prompt_embeds"];
const CHAT: &[&str] = &[
    "messages",
    "tools",
    "documents",
    "chat_template",
    "chat_template_kwargs",
    "reasoning_effort",
    "add_generation_prompt",
    "continue_final_message",
];

/// Reads `body`; see the module for what `complete = false` means.
pub fn parse(endpoint: Endpoint, body: &[u8], complete: bool) -> Result<Request, BodyError> {
    let own = match endpoint {
        Endpoint::Completions => COMPLETIONS,
        Endpoint::ChatCompletions => CHAT,
    };
    let (fields, cut) = fields(text(body, complete)?, !complete, own)?;
    let model = fields.get("model").and_then(Value::as_str).filter(|model| !model.is_empty());
    let model = model.ok_or(BodyError::NoModel)?.to_owned();
    // Drops the start of the prompt; -1 is the model's own limit, where only prompts that are too long are cut.
    if !matches!(fields.get_some("truncate_prompt_tokens"), None | Some(Value::Number(Number::Int(-1)))) {
        return Err(BodyError::Unsupported("truncate_prompt_tokens"));
    }
    let prompt = match endpoint {
        Endpoint::Completions => prompt(&fields)?,
        Endpoint::ChatCompletions => Prompt::Chat(Box::new(chat::chat(&fields, cut)?)),
    };
    Ok(Request {
        model,
        prompt,
        cache_salt: text_field(&fields, "cache_salt")?,
        add_special_tokens: bool_field(&fields, "add_special_tokens")?,
    })
}

/// The UTF-8 text of the body. Python's parser skips a byte order mark.
fn text(body: &[u8], complete: bool) -> Result<&str, BodyError> {
    let text = match str::from_utf8(body) {
        Ok(text) => text,
        // Cut inside a character.
        Err(error) if !complete && error.error_len().is_none() => {
            let whole = body.get(..error.valid_up_to()).unwrap_or_default();
            str::from_utf8(whole).map_err(|_| BodyError::NotJson)?
        }
        Err(_) => return Err(BodyError::NotJson),
    };
    Ok(text.strip_prefix('\u{feff}').unwrap_or(text))
}

/// The top-level fields that are wanted, and whether the body was cut.
fn fields(text: &str, prefix: bool, own: &[&str]) -> Result<(Object, bool), BodyError> {
    let mut parser = Parser::new(text, prefix);
    let mut fields = Object::default();
    if !parser.enter_object()? {
        // Another JSON value, or none at all.
        parser.value()?;
        parser.end()?;
        return Err(if parser.is_cut() { BodyError::NotJson } else { BodyError::NotObject });
    }
    let mut first = true;
    while !parser.is_cut()
        && let Some(key) = parser.key(first)?
    {
        first = false;
        if !own.contains(&&*key) && !COMMON.contains(&&*key) {
            parser.skip()?;
            continue;
        }
        let value = parser.value()?;
        // A part of a prompt is a prompt; a part of a name is another name.
        if let Some(value) = value
            && (!parser.is_cut() || matches!(&*key, "messages" | "prompt"))
        {
            fields.insert(key, value);
        }
    }
    parser.end()?;
    Ok((fields, parser.is_cut()))
}

fn prompt(fields: &Object) -> Result<Prompt, BodyError> {
    if fields.get_some("prompt_embeds").is_some() {
        return Err(BodyError::NotText);
    }
    match fields.get_some("prompt") {
        None => Err(BodyError::NoPrompt),
        Some(Value::String(text)) => Ok(Prompt::Text(text.as_ref().to_owned())),
        Some(Value::Array(items)) => match items.first() {
            None => Err(BodyError::NoPrompt),
            Some(Value::String(text)) => Ok(Prompt::Text(text.as_ref().to_owned())),
            Some(Value::Array(tokens)) => token_ids(tokens),
            Some(_) => token_ids(items),
        },
        Some(_) => Err(BodyError::BadPrompt),
    }
}

fn token_ids(items: &[Value]) -> Result<Prompt, BodyError> {
    let id = |item: &Value| match item {
        Value::Number(Number::Int(id)) => u32::try_from(*id).ok(),
        _ => None,
    };
    let mut tokens = Vec::new();
    tokens.try_reserve_exact(items.len()).map_err(|_| BodyError::Memory)?;
    for item in items {
        tokens.push(id(item).ok_or(BodyError::BadPrompt)?);
    }
    if tokens.is_empty() { Err(BodyError::NoPrompt) } else { Ok(Prompt::Tokens(tokens)) }
}

fn text_field(fields: &Object, name: &'static str) -> Result<Option<String>, BodyError> {
    match fields.get_some(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.as_ref().to_owned())),
        Some(_) => Err(BodyError::BadField(name)),
    }
}

fn bool_field(fields: &Object, name: &'static str) -> Result<Option<bool>, BodyError> {
    match fields.get_some(name) {
        None => Ok(None),
        Some(Value::Bool(value)) => Ok(Some(*value)),
        Some(_) => Err(BodyError::BadField(name)),
    }
}

#[cfg(test)]
mod tests;
