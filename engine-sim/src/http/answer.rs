//! Bodies of answers, whole or in chunks, field for field as vLLM 0.32 writes them.

use super::body::Parameters;
use super::{App, since_epoch};
use crate::engine::Output;
use crate::text::Text;
use serde_json::{Map, Value, json};

/// Which endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Completion,
    Chat,
}

/// An answer as far as it is known.
#[derive(Debug)]
pub(super) struct Answer {
    kind: Kind,
    id: String,
    created: u64,
    block_size: u64,
    parameters: Parameters,
    choices: Vec<Choice>,
}

#[derive(Debug)]
struct Choice {
    prompt: Vec<u32>,
    text: String,
    tokens: Vec<u32>,
    cached_tokens: u32,
    finish_reason: Option<&'static str>,
}

impl Answer {
    /// An answer to `prompts` without tokens yet.
    pub(super) fn new(app: &App, kind: Kind, parameters: Parameters, prompts: Vec<Vec<u32>>) -> Answer {
        let choice = |prompt| Choice {
            prompt,
            text: String::new(),
            tokens: Vec::new(),
            cached_tokens: 0,
            finish_reason: None,
        };
        Answer {
            kind,
            id: app.response_id(match kind {
                Kind::Completion => "cmpl",
                Kind::Chat => "chatcmpl",
            }),
            created: since_epoch().as_secs(),
            block_size: u64::from(app.config.cache.block_size.tokens()),
            parameters,
            choices: prompts.into_iter().map(choice).collect(),
        }
    }

    /// Adds a token.
    pub(super) fn add(&mut self, text: &Text, output: Output) {
        let choice = &mut self.choices[output.prompt];
        choice.cached_tokens = output.cached_tokens;
        choice.tokens.push(output.token);
        choice.text.push_str(text.text_of(output.token));
        choice.finish_reason = output.last.then(|| if text.is_end(output.token) { "stop" } else { "length" });
    }

    /// Whether every prompt has its last token.
    pub(super) fn is_complete(&self) -> bool {
        self.choices.iter().all(|choice| choice.finish_reason.is_some())
    }

    /// The body of an answer that is not streamed.
    pub(super) fn whole(&self) -> Value {
        let choices = self.choices.iter().enumerate();
        let choices: Vec<Value> = match self.kind {
            Kind::Completion => {
                choices.map(|(index, choice)| self.completion_choice(index, choice)).collect()
            }
            Kind::Chat => choices.map(|(index, choice)| self.chat_choice(index, choice)).collect(),
        };
        let object = match self.kind {
            Kind::Completion => "text_completion",
            Kind::Chat => "chat.completion",
        };
        let mut body = self.envelope(object, choices);
        body.insert("service_tier".into(), Value::Null);
        body.insert("system_fingerprint".into(), Value::Null);
        body.insert("usage".into(), self.usage());
        if self.kind == Kind::Chat {
            body.insert("prompt_logprobs".into(), Value::Null);
            body.insert("prompt_token_ids".into(), self.ids(&self.choices[0].prompt));
        }
        body.insert("kv_transfer_params".into(), Value::Null);
        Value::Object(body)
    }

    /// Adds a token; the chunks that tell it.
    pub(super) fn chunks(&mut self, text: &Text, output: Output) -> Vec<String> {
        let first = self.choices[output.prompt].tokens.is_empty();
        self.add(text, output);
        match self.kind {
            Kind::Completion => vec![self.completion_chunk(text, output, first)],
            Kind::Chat => {
                let opening = first.then(|| self.chat_opening(output.prompt));
                opening.into_iter().chain([self.chat_chunk(text, output)]).collect()
            }
        }
    }

    /// The chunk that ends a stream if `stream_options.include_usage` was set.
    pub(super) fn usage_chunk(&self) -> Option<String> {
        self.parameters.include_usage.then(|| {
            let mut chunk = self.envelope(self.chunk_object(), Vec::new());
            chunk.insert("usage".into(), self.usage());
            Value::Object(chunk).to_string()
        })
    }

    fn completion_choice(&self, index: usize, choice: &Choice) -> Value {
        json!({
            "index": index,
            "text": choice.text,
            "logprobs": null,
            "finish_reason": choice.finish_reason,
            "stop_reason": null,
            "token_ids": self.ids(&choice.tokens),
            "prompt_logprobs": null,
            "prompt_token_ids": self.ids(&choice.prompt),
        })
    }

    fn chat_choice(&self, index: usize, choice: &Choice) -> Value {
        json!({
            "index": index,
            "message": {
                "role": "assistant",
                "content": choice.text,
                "refusal": null,
                "annotations": null,
                "audio": null,
                "function_call": null,
                "tool_calls": [],
                "reasoning": null,
            },
            "logprobs": null,
            "finish_reason": choice.finish_reason,
            "stop_reason": null,
            "token_ids": self.ids(&choice.tokens),
        })
    }

    fn completion_chunk(&self, text: &Text, output: Output, first: bool) -> String {
        let choice = &self.choices[output.prompt];
        let mut part = json!({
            "index": output.prompt,
            "text": text.text_of(output.token),
            "logprobs": null,
            "finish_reason": choice.finish_reason,
            "stop_reason": null,
            "token_ids": self.ids(&[output.token]),
        });
        if first {
            part["prompt_token_ids"] = self.ids(&choice.prompt);
        }
        Value::Object(self.envelope(self.chunk_object(), vec![part])).to_string()
    }

    /// Role without text, and the prompt's tokens if wanted.
    fn chat_opening(&self, index: usize) -> String {
        let delta = json!({"role": "assistant", "content": ""});
        let choice = json!({"index": index, "delta": delta, "logprobs": null, "finish_reason": null});
        let mut chunk = self.envelope(self.chunk_object(), vec![choice]);
        chunk.insert("prompt_token_ids".into(), self.ids(&self.choices[index].prompt));
        Value::Object(chunk).to_string()
    }

    fn chat_chunk(&self, text: &Text, output: Output) -> String {
        let choice = json!({
            "index": output.prompt,
            "delta": {"content": text.text_of(output.token)},
            "logprobs": null,
            "finish_reason": self.choices[output.prompt].finish_reason,
            "stop_reason": null,
            "token_ids": self.ids(&[output.token]),
        });
        Value::Object(self.envelope(self.chunk_object(), vec![choice])).to_string()
    }

    fn chunk_object(&self) -> &'static str {
        match self.kind {
            Kind::Completion => "text_completion",
            Kind::Chat => "chat.completion.chunk",
        }
    }

    fn envelope(&self, object: &str, choices: Vec<Value>) -> Map<String, Value> {
        let fields = [
            ("id", json!(self.id)),
            ("object", json!(object)),
            ("created", json!(self.created)),
            ("model", json!(self.parameters.model)),
            ("choices", Value::Array(choices)),
        ];
        fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// Token ids if they were asked for.
    fn ids(&self, tokens: &[u32]) -> Value {
        if self.parameters.return_token_ids { json!(tokens) } else { Value::Null }
    }

    fn usage(&self) -> Value {
        let sum = |count: fn(&Choice) -> u64| self.choices.iter().map(count).sum::<u64>();
        let prompt = sum(|choice| choice.prompt.len() as u64);
        let completion = sum(|choice| choice.tokens.len() as u64);
        let cached = sum(|choice| u64::from(choice.cached_tokens));
        // Chats tell what of the prompt is in the cache since this request; completions do not.
        let created = (prompt / self.block_size * self.block_size).saturating_sub(cached);
        let created = (self.kind == Kind::Chat && created > 0).then_some(created);
        json!({
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
            "prompt_tokens_details": {
                "cached_tokens": cached,
                "created_cache_tokens": created,
                "multimodal_tokens": null,
            },
            "completion_tokens_details": null,
        })
    }
}
