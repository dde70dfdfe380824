//! HTTP: `/metrics`, `/healthz`, `/readyz` on one listener; `/snapshot`, which names tenants, on another.

use crate::ingest::{SourceStatus, Statuses};
use crate::metrics;
use crate::reload::Reloads;
use crate::stats::Board;
use crate::writer::{HolderView, View, WriterHandle};
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use inference_cache_core::ingest::State as SourceState;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

#[derive(Clone, Debug)]
pub(crate) struct Views {
    pub(crate) writer: WriterHandle,
    pub(crate) statuses: Statuses,
    pub(crate) board: Board,
    pub(crate) reloads: Arc<Reloads>,
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
    match metrics::render(view, views.statuses.all(), views.models.to_vec(), views.reloads) {
        Ok(text) => ([("content-type", "application/openmetrics-text; version=1.0.0; charset=utf-8")], text)
            .into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn snapshot(State(views): State<Views>) -> Response {
    let Some(view) = views.writer.view().await else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    axum::Json(Snapshot::new(&view, &views.statuses.all())).into_response()
}

/// The reference's shape, plus `sources` and `replication`. Rates that no producer has reported are 0.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Snapshot {
    replicas: Vec<Replica>,
    tenants: Vec<Tenant>,
    total_prefixes: usize,
    hot_prefixes: usize,
    sources: Vec<Source>,
    replication: Replication,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Replica {
    replica_id: String,
    tenant: String,
    cache_memory_bytes: i64,
    hit_rate: f32,
    pressure: f32,
    last_update: Option<u64>,
    prefix_count: usize,
    /// Milliseconds since the Unix epoch.
    last_event_at: Option<u64>,
    stats_reported: bool,
    t2_hit_tokens: i64,
    t2_query_tokens: i64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Tenant {
    tenant_id: String,
    index_entries: usize,
    hit_rate: f32,
    hit_rate_reported: bool,
    memory_used: i64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Source {
    replica_id: String,
    rank: u32,
    connected: bool,
    state: &'static str,
    epoch: u64,
    last_seq: Option<u64>,
    blocks: usize,
    waiting_blocks: usize,
    gaps: u64,
    missed_batches: u64,
    shed_messages: u64,
    losses: u64,
    decode_errors: BTreeMap<&'static str, u64>,
    /// The first error of each reason, described without its values.
    decode_error_samples: BTreeMap<&'static str, String>,
    skipped_events: BTreeMap<&'static str, u64>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Replication {
    /// Hexadecimal: JSON numbers do not hold 64 bits.
    epoch: String,
    seq: u64,
    subscribers: usize,
    storage_entries: usize,
}

impl Snapshot {
    fn new(view: &View, statuses: &[SourceStatus]) -> Snapshot {
        let millis = |status: &SourceStatus| {
            let since = status.last_event_at?.duration_since(UNIX_EPOCH).ok()?;
            u64::try_from(since.as_millis()).ok()
        };
        // The ranks of a replica stand beside each other.
        let replicas = view.holders.chunk_by(|one, other| one.holder.replica.id == other.holder.replica.id);
        let last_event = |ranks: &[HolderView]| {
            let of = |status: &&SourceStatus| ranks.iter().any(|rank| rank.id == status.id);
            statuses.iter().filter(of).filter_map(millis).max()
        };
        let mut tenants: BTreeMap<&str, usize> =
            view.holders.iter().map(|rank| (rank.holder.replica.tenant.as_str(), 0)).collect();
        for ((tenant, _), keys) in &view.keys {
            *tenants.entry(tenant).or_default() += keys;
        }
        Snapshot {
            replicas: replicas
                .filter_map(|ranks| Some((&ranks.first()?.holder.replica, ranks)))
                .map(|(replica, ranks)| Replica {
                    replica_id: replica.id.clone(),
                    tenant: replica.tenant.clone(),
                    cache_memory_bytes: 0,
                    hit_rate: 0.0,
                    pressure: 0.0,
                    last_update: last_event(ranks),
                    prefix_count: ranks.iter().map(|rank| rank.entries).sum(),
                    last_event_at: last_event(ranks),
                    stats_reported: false,
                    t2_hit_tokens: 0,
                    t2_query_tokens: 0,
                })
                .collect(),
            tenants: tenants
                .into_iter()
                .map(|(tenant, keys)| Tenant {
                    tenant_id: tenant.to_owned(),
                    index_entries: keys,
                    hit_rate: 0.0,
                    hit_rate_reported: false,
                    memory_used: 0,
                })
                .collect(),
            total_prefixes: view.keys.values().sum(),
            hot_prefixes: 0,
            sources: statuses.iter().map(Source::new).collect(),
            replication: Replication {
                epoch: format!("{:016x}", view.epoch),
                seq: view.seq,
                subscribers: view.subscribers,
                storage_entries: view.entries,
            },
        }
    }
}

impl Source {
    fn new(status: &SourceStatus) -> Source {
        Source {
            replica_id: status.replica.clone(),
            rank: status.rank,
            connected: status.connected,
            state: status.state.as_str(),
            epoch: status.epoch,
            last_seq: status.last_seq,
            blocks: status.blocks,
            waiting_blocks: status.waiting_blocks,
            gaps: status.stats.gaps,
            missed_batches: status.stats.missed_batches,
            shed_messages: status.shed,
            losses: status.losses,
            decode_errors: status.stats.decode_errors.clone(),
            decode_error_samples: status.stats.samples.clone(),
            skipped_events: status.stats.skipped.clone(),
        }
    }
}
