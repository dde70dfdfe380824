//! Messages and tools of a chat, as vLLM hands them to the chat template.
//!
//! vLLM 0.32 rebuilds every message from the fields that it knows (`_parse_chat_message_content`), reads the arguments
//! of tool calls (`_postprocess_messages`) and writes tools back from its own types (`ChatCompletionToolsParam`), so
//! key order, `null` and unknown fields of the request are not what a template sees. transformers 5.24 then copies
//! reasoning to the names that templates look for.

use super::json::{self, JsonError};
use super::value::{Object, Value};
use super::{BodyError, bool_field, text_field};
use std::sync::Arc;

/// Input of a chat template.
#[derive(Clone, Debug, PartialEq)]
pub struct Chat {
    /// Objects with `role`, `content` (text, or a list of text parts) and what else the engine passes on. Use
    /// [`conversation`] to bring content into the form that the template expects.
    pub messages: Vec<Value>,
    /// A list of objects.
    pub tools: Option<Value>,
    /// A list of objects.
    pub documents: Option<Value>,
    /// A template of the request's own. Engines refuse it unless told otherwise.
    pub chat_template: Option<String>,
    /// More variables for the template.
    pub chat_template_kwargs: Object,
    /// `reasoning_effort`; also switches thinking on or off.
    pub reasoning_effort: Option<Arc<str>>,
    /// Whether the prompt ends with the head of an answer.
    pub add_generation_prompt: bool,
    /// Whether the prompt ends inside the last message.
    pub continue_final_message: bool,
}

/// The form in which a template reads the content of a message (vLLM's `--chat-template-content-format`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContentFormat {
    /// Text; parts are joined by newlines. vLLM's `string`.
    #[default]
    Text,
    /// A list of parts. vLLM's `openai`: templates that loop over the content.
    Parts,
}

/// The messages of `chat` with their content in `format`.
pub fn conversation(messages: &[Value], format: ContentFormat) -> Vec<Value> {
    messages.iter().map(|message| with_content(message, format)).collect()
}

/// `cut`: the end of `messages` may be missing.
pub(super) fn chat(fields: &Object, cut: bool) -> Result<Chat, BodyError> {
    let Some(Value::Array(raw)) = fields.get_some("messages") else { return Err(BodyError::NoMessages) };
    let mut messages = Vec::new();
    messages.try_reserve_exact(raw.len()).map_err(|_| BodyError::Memory)?;
    for (place, message) in raw.iter().enumerate() {
        let message = message.as_object().ok_or(BodyError::BadMessage)?;
        if cut && place + 1 == raw.len() && !has_begun(message) {
            break;
        }
        messages.push(self::message(message)?);
    }
    if messages.is_empty() {
        return Err(BodyError::EmptyMessages);
    }
    let kwargs = match fields.get_some("chat_template_kwargs") {
        None => Object::default(),
        Some(Value::Object(kwargs)) => kwargs.as_ref().clone(),
        Some(_) => return Err(BodyError::BadField("chat_template_kwargs")),
    };
    let reasoning_effort = match fields.get_some("reasoning_effort") {
        None => None,
        Some(Value::String(effort)) => Some(Arc::clone(effort)),
        Some(_) => return Err(BodyError::BadField("reasoning_effort")),
    };
    Ok(Chat {
        messages,
        tools: tools(fields)?,
        documents: documents(fields)?,
        chat_template: text_field(fields, "chat_template")?,
        chat_template_kwargs: kwargs,
        reasoning_effort,
        add_generation_prompt: bool_field(fields, "add_generation_prompt")?.unwrap_or(true),
        continue_final_message: bool_field(fields, "continue_final_message")?.unwrap_or(false),
    })
}

/// Whether a cut message has its whole role and the start of its content. The last entry may be incomplete.
fn has_begun(message: &Object) -> bool {
    let last = message.len().checked_sub(1).and_then(|last| message.at(last));
    message.get("role").is_some()
        && message.get("content").is_some()
        && last.is_some_and(|(key, _)| **key != *"role")
}

fn message(raw: &Object) -> Result<Value, BodyError> {
    let role = match raw.get("role") {
        Some(Value::String(role)) => Arc::clone(role),
        _ => return Err(BodyError::BadMessage),
    };
    let is_assistant = *role == *"assistant";
    let is_system = *role == *"system";
    let reasoning = raw.get_some("reasoning").or_else(|| raw.get_some("reasoning_content"));
    let reasoning = reasoning.filter(|_| is_assistant);

    let mut message = Object::default();
    // transformers puts the name that gpt-oss reads first.
    if let Some(reasoning) = reasoning {
        message.insert("thinking", reasoning.clone());
    }
    message.insert("role", Value::String(Arc::clone(&role)));
    message.insert("content", content(raw.get_some("content"), is_system)?);
    if is_assistant && let Some(calls) = raw.get_some("tool_calls") {
        let calls = calls.as_array().ok_or(BodyError::BadMessage)?;
        if !calls.is_empty() {
            let calls = calls.iter().map(tool_call).collect::<Result<Vec<_>, _>>()?;
            message.insert("tool_calls", Value::from(calls));
        }
    }
    if let Some(reasoning) = reasoning {
        message.insert("reasoning", reasoning.clone());
        message.insert("reasoning_content", reasoning.clone());
    }
    if *role == *"tool"
        && let Some(id) = raw.get_some("tool_call_id")
    {
        message.insert("tool_call_id", id.clone());
    }
    for name in ["name", "task"] {
        if let Some(value @ Value::String(_)) = raw.get(name) {
            message.insert(name, value.clone());
        }
    }
    if *role == *"developer"
        && let Some(tools) = raw.get_some("tools")
    {
        message.insert("tools", tools.clone());
    }
    Ok(Value::from(message))
}

fn content(raw: Option<&Value>, is_system: bool) -> Result<Value, BodyError> {
    match raw {
        None => Ok(Value::from(Vec::new())),
        Some(Value::String(text)) if is_system && text.starts_with(BILLING_HEADER) => {
            Ok(Value::from(without_first_line(text)))
        }
        Some(text @ Value::String(_)) => Ok(text.clone()),
        Some(Value::Array(parts)) => {
            let mut kept = Vec::new();
            kept.try_reserve_exact(parts.len()).map_err(|_| BodyError::Memory)?;
            for part in parts.iter() {
                kept.extend(self::part(part, is_system)?);
            }
            Ok(Value::from(kept))
        }
        Some(_) => Err(BodyError::BadMessage),
    }
}

/// A part of content; none if the engine skips it.
fn part(raw: &Value, is_system: bool) -> Result<Option<Value>, BodyError> {
    let text = match raw {
        Value::String(text) => text,
        Value::Object(part) => {
            let kind = part.get_some("type").and_then(Value::as_str).ok_or(BodyError::NotText)?;
            if part.get_some("uuid").is_some() {
                return Err(BodyError::NotText);
            }
            let field = match kind {
                "text" | "input_text" | "output_text" => "text",
                "refusal" | "thinking" => kind,
                "tool_reference" => "name",
                _ => return Err(BodyError::NotText),
            };
            match (part.get_some(field), kind) {
                (Some(name @ Value::String(_)), "tool_reference") => {
                    let reference = [("type", Value::from(kind)), ("name", name.clone())];
                    return Ok(Some(Value::from(reference.into_iter().collect::<Object>())));
                }
                (Some(Value::String(text)), _) => text,
                (None, "text" | "refusal") => return Ok(None),
                _ => return Err(BodyError::BadMessage),
            }
        }
        _ => return Err(BodyError::BadMessage),
    };
    if is_system && text.starts_with(BILLING_HEADER) {
        let rest = without_first_line(text);
        return Ok((!rest.is_empty()).then(|| text_part(Value::from(rest))));
    }
    Ok(Some(text_part(Value::String(Arc::clone(text)))))
}

/// A line that one client puts before its system prompt and that changes with every request; vLLM removes it.
const BILLING_HEADER: &str = "x-anthropic-billing-header";

fn without_first_line(text: &str) -> &str {
    text.split_once('\n').map_or("", |(_, rest)| rest)
}

fn text_part(text: Value) -> Value {
    Value::from([("type", Value::from("text")), ("text", text)].into_iter().collect::<Object>())
}

fn with_content(message: &Value, format: ContentFormat) -> Value {
    let Value::Object(object) = message else { return message.clone() };
    let is_tool = object.get("role").and_then(Value::as_str) == Some("tool");
    let content = match (object.get("content"), format) {
        // Tool results are text to most templates; references stay structured.
        (Some(Value::Array(parts)), ContentFormat::Parts) if is_tool && parts.iter().all(is_text) => {
            joined(parts)
        }
        (Some(Value::Array(parts)), ContentFormat::Text) => joined(parts),
        (Some(text @ Value::String(_)), ContentFormat::Parts) if !is_tool => {
            Value::from(vec![text_part(text.clone())])
        }
        _ => return message.clone(),
    };
    let mut changed = object.as_ref().clone();
    changed.insert("content", content);
    Value::from(changed)
}

fn is_text(part: &Value) -> bool {
    part.as_object().is_some_and(|part| part.get("text").is_some())
}

fn joined(parts: &[Value]) -> Value {
    let text = |part: &Value| {
        let part = part.as_object()?;
        match part.get("text").or_else(|| part.get("name"))? {
            Value::String(text) => Some(Arc::clone(text)),
            _ => None,
        }
    };
    let mut texts: Vec<Arc<str>> = parts.iter().filter_map(text).collect();
    match texts.len() {
        1 => texts.pop().map_or(Value::Null, Value::String),
        _ => Value::from(texts.join("\n").as_str()),
    }
}

/// A tool call with its arguments read from JSON; what is no object becomes an empty one.
fn tool_call(raw: &Value) -> Result<Value, BodyError> {
    let call = raw.as_object().ok_or(BodyError::BadMessage)?;
    let function = call.get("function").and_then(Value::as_object).ok_or(BodyError::BadMessage)?;
    if !matches!(call.get("type").map(Value::as_str), None | Some(Some("function"))) {
        return Err(BodyError::BadMessage);
    }
    let arguments = match function.get("arguments") {
        Some(arguments @ Value::Object(_)) => Some(arguments.clone()),
        Some(Value::String(text)) => match json::parse(text) {
            Ok(arguments) => Some(arguments).filter(|arguments| arguments.as_object().is_some()),
            Err(JsonError::Syntax) => None,
            Err(error) => return Err(error.into()),
        },
        _ => None,
    };
    let mut function = function.clone();
    function.insert("arguments", arguments.unwrap_or_else(|| Value::from(Object::default())));
    let mut call = call.clone();
    call.insert("function", Value::from(function));
    Ok(Value::from(call))
}

fn tools(fields: &Object) -> Result<Option<Value>, BodyError> {
    match fields.get_some("tools") {
        None => Ok(None),
        Some(Value::Array(tools)) => {
            let tools = tools.iter().map(|tool| self::tool(tool).ok_or(BodyError::BadField("tools")));
            Ok(Some(Value::from(tools.collect::<Result<Vec<_>, _>>()?)))
        }
        Some(_) => Err(BodyError::BadField("tools")),
    }
}

/// A tool as vLLM's types write it: known fields in their order, `null` where two of them are missing.
fn tool(raw: &Value) -> Option<Value> {
    let raw = raw.as_object()?;
    let from = raw.get("function")?.as_object()?;
    let defer = raw.get_some("defer_loading");
    let or_null = |name| from.get(name).cloned().unwrap_or(Value::Null);

    let mut function = Object::default();
    function.insert("name", from.get("name").filter(|name| name.as_str().is_some())?.clone());
    function.insert("description", or_null("description"));
    function.insert("parameters", or_null("parameters"));
    if let Some(strict) = from.get_some("strict") {
        function.insert("strict", strict.clone());
    }
    if let Some(defer) = from.get_some("defer_loading").or(defer) {
        function.insert("defer_loading", defer.clone());
    }
    let mut tool = Object::default();
    tool.insert("type", raw.get("type").cloned().unwrap_or_else(|| Value::from("function")));
    tool.insert("function", Value::from(function));
    if let Some(defer) = defer {
        tool.insert("defer_loading", defer.clone());
    }
    Some(Value::from(tool))
}

fn documents(fields: &Object) -> Result<Option<Value>, BodyError> {
    match fields.get_some("documents") {
        None => Ok(None),
        Some(list @ Value::Array(items)) if items.iter().all(|item| item.as_object().is_some()) => {
            Ok(Some(list.clone()))
        }
        Some(_) => Err(BodyError::BadField("documents")),
    }
}

#[cfg(test)]
mod tests;
