//! Chat templates, rendered as transformers renders them for vLLM.
//!
//! A template is compiled once per model ([`ChatTemplate::compile`], milliseconds) and rendered per request
//! ([`ChatTemplate::render`], time proportional to the text). The engine behind it is minijinja with the settings of
//! transformers 5.24 (`trim_blocks`, `lstrip_blocks`, loop controls, `raise_exception`, `strftime_now`, `tojson`,
//! `{% generation %}`) and what it takes to print values as Python does.
//!
//! A render is bounded in steps and in output, so a template that loops over a hostile chat ends in an error. Templates
//! come from the operator with the model: a template that is hostile itself can still use memory up.
//!
//! Errors never carry text of the chat.

mod clock;
mod continuation;
mod filters;
mod python;
mod source;
mod system;
mod values;

use crate::openai::{self, Chat, ContentFormat, Object, Value};
use minijinja::{Environment, ErrorKind};
use std::fmt;
use std::io;
use std::sync::Arc;

/// Steps of a render: a turn of a chat takes 30 to 200.
const MAX_STEPS: u64 = 5_000_000;
/// Bytes of a rendered prompt.
const MAX_OUTPUT: usize = 16 << 20;
/// Nested calls and blocks. Their frames must fit into the stack of a wasm VM (1 MiB).
const MAX_RECURSION: usize = 200;
const NAME: &str = "chat";

/// What a template takes from the model and the engine's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TemplateSettings {
    /// The special tokens that transformers passes by name (`special_tokens_map`): `bos_token`, `eos_token`,
    /// `pad_token`, `unk_token`, … and their text. One that the tokenizer does not define is left out.
    pub special_tokens: Vec<(String, String)>,
    /// How the template reads content.
    pub content_format: ContentFormat,
    /// Offset of the engine's local time, seconds east of UTC: what `strftime_now` prints.
    pub utc_offset_seconds: i32,
}

/// A compiled chat template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    settings: TemplateSettings,
    has_developer: bool,
    has_content: bool,
}

/// Why there is no prompt. Carries nothing of the chat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The template is not valid.
    #[error("the template does not compile: {kind} in line {line}")]
    Compile {
        /// What is wrong.
        kind: ErrorKind,
        /// Where; 0 if unknown.
        line: usize,
    },
    /// The template refused the chat (`raise_exception`). Engines answer such a request with an error.
    #[error("the template refuses the chat")]
    Refused,
    /// The template failed on the chat.
    #[error("the template fails: {kind} in line {line}")]
    Failed {
        /// What happened.
        kind: ErrorKind,
        /// Where; 0 if unknown.
        line: usize,
    },
    /// More steps than a chat can need.
    #[error("the template takes too many steps")]
    TooManySteps,
    /// More output than any model reads.
    #[error("the rendered chat is too large")]
    TooLarge,
    /// The request brings its own template.
    #[error("the request has a template of its own")]
    OwnTemplate,
    /// `chat_template_kwargs` names a variable that is not free.
    #[error("the request sets a reserved variable")]
    Reserved,
    /// `continue_final_message` with a generation prompt, or with a message that the template does not end in.
    #[error("the last message cannot be continued")]
    NotContinuable,
}

/// Variables that a request cannot set: the engine would pass them twice, or treat them as its own arguments.
const RESERVED: [&str; 5] = ["messages", "tools", "conversation", "chat_template", "tokenize"];

impl ChatTemplate {
    /// Compiles `source`.
    pub fn compile(source: &str, settings: TemplateSettings) -> Result<ChatTemplate, TemplateError> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_fuel(Some(MAX_STEPS));
        environment.set_recursion_limit(MAX_RECURSION);
        filters::install(&mut environment);
        environment.add_template_owned(NAME, source::normalized(source)).map_err(|error| {
            TemplateError::Compile { kind: error.kind(), line: error.line().unwrap_or(0) }
        })?;
        Ok(ChatTemplate {
            environment,
            settings,
            // As vLLM looks for it.
            has_developer: source.contains("\"developer\"") || source.contains("'developer'"),
            has_content: source.contains("content"),
        })
    }

    /// The prompt of `chat`. `now_unix_ms`: for templates that print the date.
    pub fn render(&self, chat: &Chat, now_unix_ms: u64) -> Result<String, TemplateError> {
        if chat.chat_template.is_some() {
            return Err(TemplateError::OwnTemplate);
        }
        if RESERVED.iter().any(|name| chat.chat_template_kwargs.get(name).is_some()) {
            return Err(TemplateError::Reserved);
        }
        let mut messages = openai::conversation(&chat.messages, self.settings.content_format);
        if !self.has_developer {
            messages = system::without_developer(messages);
        }
        if !chat.continue_final_message {
            return self.render_variables(&self.variables(chat, messages), now_unix_ms);
        }
        if chat.add_generation_prompt || !self.has_content {
            return Err(TemplateError::NotContinuable);
        }
        let end = continuation::mark(&mut messages).ok_or(TemplateError::NotContinuable)?;
        let text = self.render_variables(&self.variables(chat, messages), now_unix_ms)?;
        continuation::cut(text, &end).ok_or(TemplateError::NotContinuable)
    }

    /// Renders with exactly these variables, without the engine's preparation of a chat.
    pub fn render_variables(&self, variables: &Object, now_unix_ms: u64) -> Result<String, TemplateError> {
        let template = self.environment.get_template(NAME).map_err(failed)?;
        let clock = clock::function(now_unix_ms, self.settings.utc_offset_seconds);
        let context: minijinja::Value = std::iter::once((minijinja::Value::from("strftime_now"), clock))
            .chain(variables.iter().map(|(name, value)| (values::text(name), values::value(value))))
            .collect();
        let mut output = Output { bytes: Vec::new(), full: false };
        match template.render_captured_to(context, &mut output) {
            Ok(_) => String::from_utf8(output.bytes).map_err(|_| TemplateError::TooLarge),
            Err(_) if output.full => Err(TemplateError::TooLarge),
            Err(error) => Err(failed(error)),
        }
    }

    /// As vLLM and transformers pass them; later ones win.
    fn variables(&self, chat: &Chat, messages: Vec<Value>) -> Object {
        let mut variables: Object =
            self.settings.special_tokens.iter().map(|(name, text)| (&**name, Value::from(&**text))).collect();
        for (name, value) in chat.chat_template_kwargs.iter() {
            variables.insert(Arc::clone(name), value.clone());
        }
        if let Some(effort) = &chat.reasoning_effort {
            variables.insert("reasoning_effort", Value::String(Arc::clone(effort)));
            if variables.get("enable_thinking").is_none() {
                variables.insert("enable_thinking", Value::Bool(**effort != *"none"));
            }
        }
        variables.insert("messages", Value::from(messages));
        variables.insert("tools", chat.tools.clone().unwrap_or(Value::Null));
        if chat.documents.is_some() || variables.get("documents").is_none() {
            variables.insert("documents", chat.documents.clone().unwrap_or(Value::Null));
        }
        variables.insert("add_generation_prompt", Value::Bool(chat.add_generation_prompt));
        variables
    }
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate").field("settings", &self.settings).finish_non_exhaustive()
    }
}

fn failed(error: minijinja::Error) -> TemplateError {
    match error.kind() {
        ErrorKind::OutOfFuel => TemplateError::TooManySteps,
        _ if filters::is_refusal(&error) => TemplateError::Refused,
        kind => TemplateError::Failed { kind, line: error.line().unwrap_or(0) },
    }
}

/// The rendered text, up to [`MAX_OUTPUT`].
struct Output {
    bytes: Vec<u8>,
    full: bool,
}

impl io::Write for Output {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + text.len() > MAX_OUTPUT || self.bytes.try_reserve(text.len()).is_err() {
            self.full = true;
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        self.bytes.extend_from_slice(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
