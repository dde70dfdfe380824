//! Everything beside the completions.

use super::body::{object, with_model};
use super::error::ApiError;
use super::{App, Shared, since_epoch};
use crate::metrics;
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// What vLLM's publisher has by default: reported, not used here.
const HWM: u32 = 100_000;

pub(super) async fn health() {}

pub(super) async fn version(State(app): State<Shared>) -> Json<Value> {
    Json(json!({"version": app.config.cache.release.version()}))
}

/// The model and its adapters.
pub(super) async fn models(State(app): State<Shared>) -> Json<Value> {
    let config = &app.config;
    let base = &config.served_model_name;
    let card = |id: &str, root: String, parent: Option<&str>| {
        json!({
            "id": id,
            "object": "model",
            "created": app.started.as_secs(),
            "owned_by": "vllm",
            "root": root,
            "parent": parent,
            "max_model_len": parent.is_none().then_some(config.cache.max_model_len),
        })
    };
    let adapters = config.loras.iter().map(|lora| card(&lora.name, lora.path.clone(), Some(base)));
    let base = card(base, config.model.display().to_string(), None);
    let models: Vec<Value> = std::iter::once(base).chain(adapters).collect();
    Json(json!({"object": "list", "data": models}))
}

/// Tokens of `prompt` or of `messages`, as a request with the same fields would have them.
pub(super) async fn tokenize(State(app): State<Shared>, body: Bytes) -> Result<Json<Value>, ApiError> {
    let max_model_len = app.config.cache.max_model_len;
    let tokens = tokio::task::spawn_blocking(move || tokens(&app, &body)).await;
    let tokens = tokens.map_err(|_| ApiError::internal("the request could not be read"))??;
    Ok(Json(json!({
        "count": tokens.len(),
        "max_model_len": max_model_len,
        "tokens": tokens,
        "token_strs": null,
    })))
}

fn tokens(app: &App, body: &[u8]) -> Result<Vec<u32>, ApiError> {
    let fields = object(body)?;
    // Longer texts than the context are tokenized too, but not without limit.
    let limit = app.config.cache.max_model_len.saturating_mul(4);
    let tokens = match fields.get("prompt") {
        Some(Value::String(prompt)) => {
            let special = fields.get("add_special_tokens").and_then(Value::as_bool).unwrap_or(true);
            app.text.encode(prompt, special, limit)
        }
        _ => {
            let body = with_model(app, body, &fields);
            app.text.encode_chat(&body, since_epoch().as_millis() as u64, limit)
        }
    };
    tokens.map_err(|error| ApiError::of_prompt(error, limit))
}

pub(super) async fn metrics(State(app): State<Shared>) -> Response {
    let page = metrics::render(&app.config, &app.engine.stats(), app.started.as_secs_f64());
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page).into_response()
}

/// Where each rank's events are: one rank, as since 0.31.
pub(super) async fn kv_event_sources(State(app): State<Shared>) -> Json<Value> {
    let (Some(events), Some(endpoints)) = (&app.config.events, &app.endpoints) else {
        return Json(json!({}));
    };
    Json(json!({
        "0": {
            "enable_kv_cache_events": true,
            "publisher": "zmq",
            "endpoint": endpoints.events,
            "replay_endpoint": endpoints.replay,
            "buffer_steps": events.buffer_steps,
            "hwm": HWM,
            "max_queue_size": HWM,
            "topic": events.topic,
        }
    }))
}

/// The event of a reset is published with the next step, not before.
pub(super) async fn reset_prefix_cache(State(app): State<Shared>) -> Json<Value> {
    Json(json!({"success": app.engine.reset_prefix_cache().await}))
}

/// Length and digest of the body as it arrived: the proof that a proxy passed it byte for byte.
pub(super) async fn echo(body: Bytes) -> Json<Value> {
    let digest: String = Sha256::digest(&body).iter().map(|byte| format!("{byte:02x}")).collect();
    Json(json!({"length": body.len(), "sha256": digest}))
}
