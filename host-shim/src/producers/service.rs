//! The service's methods.

use super::proto::inference_cache_server::InferenceCache;
use super::proto::{
    Ack, CacheEvent, CacheStateUpdate, GetCacheStateRequest, GetCacheStateResponse, LookupPdRouteRequest,
    LookupPdRouteResponse, LookupRouteRequest, LookupRouteResponse, Metric, RenderTemplateRequest,
    RenderTemplateResponse, StreamEventsRequest, StreamMetricsRequest,
};
use super::{Change, Event, Told, Update, check, limits};
use crate::stats::Board;
use crate::writer::WriterHandle;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tonic::{Request, Response, Status, Streaming};

/// What came from producers, for metrics.
#[derive(Debug, Default)]
pub struct Counters {
    updates: AtomicU64,
    events: AtomicU64,
    refused: Mutex<BTreeMap<&'static str, u64>>,
}

#[derive(Clone, Debug)]
pub(crate) struct Service {
    writer: WriterHandle,
    board: Board,
    counters: Arc<Counters>,
    streams: Arc<Semaphore>,
    idle: Duration,
}

impl Counters {
    /// Updates received.
    pub fn updates(&self) -> u64 {
        self.updates.load(Ordering::Relaxed)
    }

    /// Events received.
    pub fn events(&self) -> u64 {
        self.events.load(Ordering::Relaxed)
    }

    /// Messages and parts of messages that were left out, by reason.
    pub fn refused(&self) -> BTreeMap<&'static str, u64> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn refuse(&self, reason: &'static str, count: u64) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        *refused.entry(reason).or_default() += count;
    }
}

impl Service {
    /// `idle`: a stream that says nothing for so long is ended.
    pub(crate) fn new(
        writer: WriterHandle,
        board: Board,
        counters: Arc<Counters>,
        idle: Duration,
    ) -> Service {
        Service { writer, board, counters, streams: Arc::new(Semaphore::new(limits::STREAMS)), idle }
    }

    async fn update(&self, message: CacheStateUpdate, verdict: &mut Verdict) -> Result<(), Status> {
        self.counters.updates.fetch_add(1, Ordering::Relaxed);
        let Update { subject, prefixes, stats, refused } = check::update(message);
        let subject = match subject {
            Ok(subject) => subject,
            Err(reason) => {
                self.refuse(reason, 1);
                verdict.refuse(reason);
                return Ok(());
            }
        };
        if !self.board.heard(&subject, stats) {
            self.refuse("too_many_subjects", 1);
            verdict.refuse("too_many_subjects");
            return Ok(());
        }
        let mut all_refused = refused;
        if !prefixes.is_empty() {
            for (reason, count) in self.tell(Told::Held { subject, prefixes }).await? {
                *all_refused.entry(reason).or_default() += count;
            }
        }
        for (reason, count) in all_refused {
            self.refuse(reason, count);
            verdict.note(reason);
        }
        Ok(())
    }

    async fn event(&self, Event { subject, change }: Event) -> Result<(), Status> {
        match change {
            Change::Added => {}
            Change::Alive => self.board.alive(&subject),
            Change::Evicted { adapter, key, own_scheme } => {
                self.board.alive(&subject);
                self.tell(Told::Evicted { subject, adapter, key, own_scheme }).await?;
            }
            Change::Cleared => {
                self.board.drop_stats(&subject);
                self.tell(Told::Cleared { subject }).await?;
            }
        }
        Ok(())
    }

    /// Returns when it is done, with what did not fit.
    async fn tell(&self, told: Told) -> Result<BTreeMap<&'static str, u64>, Status> {
        self.writer.tell(told).await.ok_or_else(|| Status::unavailable("host-shim is shutting down"))
    }

    fn refuse(&self, reason: &'static str, count: u64) {
        self.counters.refuse(reason, count);
    }
}

/// What the Ack says: not accepted if a whole message was refused; the first reason for anything left out.
#[derive(Debug, Default)]
struct Verdict {
    refused: bool,
    reason: &'static str,
}

impl Verdict {
    fn refuse(&mut self, reason: &'static str) {
        if !self.refused {
            *self = Verdict { refused: true, reason };
        }
    }

    fn note(&mut self, reason: &'static str) {
        if self.reason.is_empty() {
            self.reason = reason;
        }
    }

    fn ack(self) -> Response<Ack> {
        Response::new(Ack { accepted: !self.refused, reason_code: self.reason.to_owned() })
    }
}

type Answer<T> = Result<Response<T>, Status>;

fn not_yet<T>(what: &str) -> Answer<T> {
    Err(Status::unimplemented(what))
}

#[tonic::async_trait]
impl InferenceCache for Service {
    async fn report_cache_state(&self, request: Request<Streaming<CacheStateUpdate>>) -> Answer<Ack> {
        let _open = self.streams.try_acquire().map_err(|_| {
            self.refuse("too_many_streams", 1);
            Status::resource_exhausted(format!("more than {} streams are open", limits::STREAMS))
        })?;
        let mut updates = request.into_inner();
        let mut verdict = Verdict::default();
        loop {
            match timeout(self.idle, updates.message()).await {
                Ok(Ok(Some(update))) => self.update(update, &mut verdict).await?,
                Ok(Ok(None)) => return Ok(verdict.ack()),
                Ok(Err(status)) => {
                    self.refuse("broken_stream", 1);
                    return Err(status);
                }
                Err(_) => {
                    self.refuse("idle_stream", 1);
                    return Err(Status::deadline_exceeded(format!("no update for {:?}", self.idle)));
                }
            }
        }
    }

    async fn publish_event(&self, request: Request<CacheEvent>) -> Answer<Ack> {
        self.counters.events.fetch_add(1, Ordering::Relaxed);
        let mut verdict = Verdict::default();
        match check::event(request.into_inner()) {
            Ok(event) => self.event(event).await?,
            Err(reason) => {
                self.refuse(reason, 1);
                verdict.refuse(reason);
            }
        }
        Ok(verdict.ack())
    }

    async fn lookup_route(&self, _: Request<LookupRouteRequest>) -> Answer<LookupRouteResponse> {
        not_yet(
            "LookupRoute: lookups by the server are not served yet; gateways look up in their own replica",
        )
    }

    async fn lookup_pd_route(&self, _: Request<LookupPdRouteRequest>) -> Answer<LookupPdRouteResponse> {
        not_yet("LookupPDRoute: routes for separate prefill and decode replicas are not served yet")
    }

    async fn get_cache_state(&self, _: Request<GetCacheStateRequest>) -> Answer<GetCacheStateResponse> {
        not_yet("GetCacheState is not served yet; HTTP /snapshot has the same figures")
    }

    async fn render_template(&self, _: Request<RenderTemplateRequest>) -> Answer<RenderTemplateResponse> {
        not_yet("RenderTemplate: templates of the server are not served yet")
    }

    type StreamCacheEventsStream = tokio_stream::Empty<Result<CacheEvent, Status>>;

    async fn stream_cache_events(
        &self,
        _: Request<StreamEventsRequest>,
    ) -> Answer<Self::StreamCacheEventsStream> {
        not_yet("StreamCacheEvents is not served yet; gateways subscribe to the replication")
    }

    type StreamMetricsStream = tokio_stream::Empty<Result<Metric, Status>>;

    async fn stream_metrics(&self, _: Request<StreamMetricsRequest>) -> Answer<Self::StreamMetricsStream> {
        not_yet("StreamMetrics is not served yet; HTTP /metrics has them")
    }
}
