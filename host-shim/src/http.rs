//! HTTP: `/metrics`, `/healthz`, `/readyz` on one listener; `/snapshot`, which names tenants, on another.

mod snapshot;

use crate::ingest::{SourceStatus, Statuses};
use crate::metrics::{self, Scrape};
use crate::producers::Counters;
use crate::reload::Reloads;
use crate::stats::Board;
use crate::writer::WriterHandle;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use inference_cache_core::ingest::State as SourceState;
use snapshot::Snapshot;
use std::sync::Arc;

#[derive(Clone, Debug)]
pub(crate) struct Views {
    pub(crate) writer: WriterHandle,
    pub(crate) statuses: Statuses,
    pub(crate) board: Board,
    pub(crate) reloads: Arc<Reloads>,
    pub(crate) producers: Arc<Counters>,
    pub(crate) models: Arc<[String]>,
}

pub(crate) fn public(views: Views) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(scrape))
        .with_state(views)
}

pub(crate) fn private(views: Views) -> Router {
    Router::new().route("/snapshot", get(snapshot)).with_state(views)
}

/// Ready once no connected source is still catching up; an engine that is down must not hold back the gateways.
async fn ready(State(views): State<Views>) -> Response {
    let behind = |status: &SourceStatus| {
        status.connected && matches!(status.state, SourceState::Gap | SourceState::Replaying)
    };
    match views.statuses.all().iter().filter(|status| behind(status)).count() {
        0 => "ok\n".into_response(),
        n => (StatusCode::SERVICE_UNAVAILABLE, format!("{n} sources are catching up\n")).into_response(),
    }
}

async fn scrape(State(views): State<Views>) -> Response {
    let Some(view) = views.writer.view().await else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    let scrape = Scrape {
        view,
        sources: views.statuses.all(),
        engines: views.board.scraped(),
        scrape_failures: views.board.failures(),
        models: views.models.to_vec(),
        reloads: views.reloads,
        producers: views.producers,
    };
    match metrics::render(scrape) {
        Ok(text) => ([("content-type", "application/openmetrics-text; version=1.0.0; charset=utf-8")], text)
            .into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn snapshot(State(views): State<Views>) -> Response {
    let Some(view) = views.writer.view().await else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    axum::Json(Snapshot::new(&view, &views.statuses.all(), &views.board)).into_response()
}
