//! An OpenAI client that also reads what the plugin decided and what the engine reports.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures::StreamExt;
use reqwest::header::HeaderMap;
use serde_json::Value;

/// What came back for one request.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    pub status: u16,
    /// From the plugin's debug headers; `None` without the plugin.
    pub hint: Hint,
    /// The generated text.
    pub text: String,
    /// From the engine's `usage`.
    pub prompt_tokens: Option<u64>,
    /// From the engine's `usage.prompt_tokens_details`.
    pub cached_tokens: Option<u64>,
    /// The engine's own ids of the prompt, where `return_token_ids` asked for them.
    pub prompt_token_ids: Option<Vec<u32>>,
    /// Until the first byte of the body.
    pub first_byte: Duration,
    /// The body as it came, where it was not a stream.
    pub body: Value,
}

/// The plugin's debug headers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hint {
    pub replica: Option<String>,
    pub reason: Option<String>,
    pub mode: Option<String>,
    pub matched_tokens: Option<u64>,
    pub hashed_tokens: Option<u64>,
}

/// A client of one gateway (or engine).
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    url: String,
}

impl Client {
    /// HTTP/1.1. Connections are not reused: each request meets any of Envoy's workers.
    pub fn new(url: String) -> Result<Client> {
        let http = reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0).build()?;
        Ok(Client { http, url })
    }

    /// HTTP/2 by prior knowledge.
    pub fn http2(url: String) -> Result<Client> {
        let http = reqwest::Client::builder().no_proxy().http2_prior_knowledge().build()?;
        Ok(Client { http, url })
    }

    /// A request to be finished by the caller.
    pub fn request(&self, method: reqwest::Method, path: &str) -> reqwest::RequestBuilder {
        self.http.request(method, format!("{}{path}", self.url))
    }

    pub async fn chat(&self, body: &Value) -> Result<Answer> {
        self.send("/v1/chat/completions", body, &[]).await
    }

    pub async fn completion(&self, body: &Value) -> Result<Answer> {
        self.send("/v1/completions", body, &[]).await
    }

    /// Posts `body` and reads the answer, streamed or whole as `body["stream"]` says. An HTTP error is an answer too.
    pub async fn send(&self, path: &str, body: &Value, headers: &[(&str, &str)]) -> Result<Answer> {
        let mut request = self.request(reqwest::Method::POST, path).json(body);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let began = Instant::now();
        let response = request.send().await?;
        let mut answer = Answer {
            status: response.status().as_u16(),
            hint: Hint::from_headers(response.headers()),
            ..Answer::default()
        };
        let mut bytes = Vec::new();
        let mut chunks = response.bytes_stream();
        while let Some(chunk) = chunks.next().await {
            if bytes.is_empty() {
                answer.first_byte = began.elapsed();
            }
            bytes.extend_from_slice(&chunk?);
        }
        if answer.status == 200 && body["stream"] == true {
            answer.read_stream(&bytes)?;
        } else {
            answer.body = serde_json::from_slice(&bytes).unwrap_or_default();
            let whole = std::mem::take(&mut answer.body);
            answer.read_event(&whole);
            answer.body = whole;
        }
        Ok(answer)
    }
}

impl Answer {
    /// Server-sent events: `data: JSON` lines, closed by `data: [DONE]`.
    fn read_stream(&mut self, bytes: &[u8]) -> Result<()> {
        let text = std::str::from_utf8(bytes).context("the stream is not UTF-8")?;
        for data in text.lines().filter_map(|line| line.strip_prefix("data:")).map(str::trim) {
            if data == "[DONE]" {
                return Ok(());
            }
            self.read_event(&serde_json::from_str(data).with_context(|| format!("event {data:?}"))?);
        }
        bail!("the stream ended without [DONE]")
    }

    /// A whole answer or one event of a stream.
    fn read_event(&mut self, event: &Value) {
        let choice = &event["choices"][0];
        let texts = [&choice["text"], &choice["message"]["content"], &choice["delta"]["content"]];
        self.text.extend(texts.iter().filter_map(|text| text.as_str()));
        let usage = &event["usage"];
        if let Some(count) = usage["prompt_tokens"].as_u64() {
            self.prompt_tokens = Some(count);
            self.cached_tokens = Some(usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0));
        }
        // Chat has the ids beside the choices, completions in each choice.
        for ids in [&event["prompt_token_ids"], &choice["prompt_token_ids"]] {
            if let Some(ids) = ids.as_array() {
                self.prompt_token_ids =
                    Some(ids.iter().filter_map(|id| u32::try_from(id.as_u64()?).ok()).collect());
            }
        }
    }
}

impl Hint {
    fn from_headers(headers: &HeaderMap) -> Hint {
        let text =
            |name: &str| Some(headers.get(format!("x-inference-cache-{name}"))?.to_str().ok()?.to_owned());
        let number = |name: &str| text(name)?.parse().ok();
        Hint {
            replica: text("replica"),
            reason: text("reason"),
            mode: text("mode"),
            matched_tokens: number("matched-tokens"),
            hashed_tokens: number("hashed-tokens"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_yields_text_and_usage() {
        let stream = b"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n\
            data: {\"choices\":[{\"delta\":{\"content\":\"b\"}}]}\n\n\
            data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n\
            data: [DONE]\n\n";
        let mut answer = Answer::default();
        answer.read_stream(stream).unwrap();
        assert_eq!(
            (answer.text.as_str(), answer.prompt_tokens, answer.cached_tokens),
            ("ab", Some(9), Some(4))
        );
        assert!(Answer::default().read_stream(b"data: {}\n\n").is_err(), "cut off");
    }
}
