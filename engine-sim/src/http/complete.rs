//! `/v1/completions` and `/v1/chat/completions`.

use super::answer::{Answer, Kind};
use super::body::{Parameters, RawPrompt, object, prompts, with_model};
use super::error::ApiError;
use super::{App, Shared, since_epoch};
use crate::engine::Output;
use crate::sequence::Request;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use std::convert::Infallible;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

pub(super) async fn completions(State(app): State<Shared>, body: Bytes) -> Result<Response, ApiError> {
    complete(app, body, Kind::Completion).await
}

pub(super) async fn chat_completions(State(app): State<Shared>, body: Bytes) -> Result<Response, ApiError> {
    complete(app, body, Kind::Chat).await
}

async fn complete(app: Shared, body: Bytes, kind: Kind) -> Result<Response, ApiError> {
    let reader = app.clone();
    let read = tokio::task::spawn_blocking(move || read(&reader, &body, kind)).await;
    let (parameters, prompts) = read.map_err(|_| ApiError::internal("the request could not be read"))??;
    let requests = prompts.iter().map(|prompt| request(&app, &parameters, prompt)).collect();
    let outputs = app.engine.submit(requests).await?;
    let stream = parameters.stream;
    let answer = Answer::new(&app, kind, parameters, prompts);
    match stream {
        true => Ok(streamed(app, answer, outputs)),
        false => whole(app, answer, outputs).await,
    }
}

/// Parameters and the tokens of each prompt.
fn read(app: &App, body: &[u8], kind: Kind) -> Result<(Parameters, Vec<Vec<u32>>), ApiError> {
    let fields = object(body)?;
    let parameters = Parameters::read(app, &fields, kind == Kind::Chat)?;
    let limit = app.config.cache.context_limit();
    let of_prompt = |error| ApiError::of_prompt(error, limit);
    let special = fields.get("add_special_tokens").and_then(|value| value.as_bool()).unwrap_or(true);
    let tokens = match kind {
        Kind::Chat => {
            let now = since_epoch().as_millis() as u64;
            vec![app.text.encode_chat(&with_model(app, body, &fields), now, limit).map_err(of_prompt)?]
        }
        Kind::Completion => prompts(&fields)?
            .into_iter()
            .map(|prompt| match prompt {
                RawPrompt::Text(text) => app.text.encode(&text, special, limit).map_err(of_prompt),
                RawPrompt::Tokens(tokens) => Ok(tokens),
            })
            .collect::<Result<_, _>>()?,
    };
    for prompt in &tokens {
        check_length(prompt.len() as u64, parameters.max_tokens, limit)?;
    }
    Ok((parameters, tokens))
}

/// The prompt must leave room for what is asked for, or for one token if nothing is.
fn check_length(prompt: u64, max_tokens: Option<u64>, limit: u32) -> Result<(), ApiError> {
    let wanted = max_tokens.unwrap_or(1);
    match prompt.saturating_add(wanted) > u64::from(limit) {
        true => Err(ApiError::too_long(limit, format!("{prompt} input tokens and asks for {wanted} more"))),
        false => Ok(()),
    }
}

fn request(app: &App, parameters: &Parameters, prompt: &[u32]) -> Request {
    let room = u64::from(app.config.cache.context_limit()).saturating_sub(prompt.len() as u64);
    let max_tokens = parameters.max_tokens.unwrap_or(room).min(room) as usize;
    Request {
        prompt: prompt.to_vec(),
        answer: app.text.answer(prompt, max_tokens, parameters.ignore_eos),
        lora: parameters.lora.clone(),
        cache_salt: parameters.cache_salt.clone(),
        report_full: parameters.report_full,
    }
}

async fn whole(
    app: Shared,
    mut answer: Answer,
    mut outputs: mpsc::Receiver<Output>,
) -> Result<Response, ApiError> {
    while let Some(output) = outputs.recv().await {
        answer.add(&app.text, output);
    }
    match answer.is_complete() {
        true => Ok(axum::Json(answer.whole()).into_response()),
        false => Err(ApiError::internal("the engine stopped before the answer was complete")),
    }
}

/// One event per token, then the usage if wanted, then `[DONE]`. Dropped with the connection, which ends the request.
fn streamed(app: Shared, mut answer: Answer, outputs: mpsc::Receiver<Output>) -> Response {
    let chunks = ReceiverStream::new(outputs).flat_map(move |output| {
        let mut chunks = answer.chunks(&app.text, output);
        if answer.is_complete() {
            chunks.extend(answer.usage_chunk());
            chunks.push("[DONE]".to_owned());
        }
        futures::stream::iter(chunks)
    });
    Sse::new(chunks.map(|chunk| Ok::<_, Infallible>(Event::default().data(chunk)))).into_response()
}
