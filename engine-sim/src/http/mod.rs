//! The engine's HTTP server: the OpenAI endpoints and the rest of what vLLM serves that a router can meet.

mod admin;
mod answer;
mod body;
mod complete;
mod error;

use crate::config::{Config, MAX_BODY_BYTES};
use crate::engine::EngineHandle;
use crate::publisher::EventEndpoints;
use crate::text::Text;
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::routing::{get, post};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio_util::sync::CancellationToken;

/// What the handlers share.
pub(crate) struct App {
    config: Config,
    text: Text,
    engine: EngineHandle,
    endpoints: Option<EventEndpoints>,
    started: Duration,
    requests: AtomicU64,
}

type Shared = Arc<App>;

impl App {
    /// An id of a response that no other of this engine has.
    fn response_id(&self, prefix: &str) -> String {
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        format!("{prefix}-{:x}-{number}", self.started.as_millis())
    }
}

/// All routes.
pub(crate) fn router(
    config: Config,
    text: Text,
    engine: EngineHandle,
    endpoints: Option<EventEndpoints>,
) -> Router {
    let app = App { config, text, engine, endpoints, started: since_epoch(), requests: AtomicU64::new(0) };
    Router::new()
        .route("/v1/completions", post(complete::completions))
        .route("/v1/chat/completions", post(complete::chat_completions))
        .route("/v1/models", get(admin::models))
        .route("/tokenize", post(admin::tokenize))
        .route("/health", get(admin::health))
        .route("/version", get(admin::version))
        .route("/metrics", get(admin::metrics))
        .route("/kv_event_sources", get(admin::kv_event_sources))
        .route("/reset_prefix_cache", post(admin::reset_prefix_cache))
        .route("/echo", post(admin::echo))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(Arc::new(app))
}

/// Serves until `stop`, then lets running requests finish for at most `grace`.
pub(crate) async fn serve(listener: TcpListener, router: Router, stop: CancellationToken, grace: Duration) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "the HTTP listener does not work"),
    };
    let stopped = stop.clone();
    let server = axum::serve(listener, router).with_graceful_shutdown(stopped.cancelled_owned());
    let deadline = async {
        stop.cancelled().await;
        tokio::time::sleep(grace).await;
    };
    tokio::select! {
        result = server => if let Err(error) = result { tracing::error!(%error, "HTTP server"); },
        () = deadline => tracing::info!("requests still running are cut off"),
    }
}

fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
