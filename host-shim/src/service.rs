//! The whole service in one value: start, addresses, shutdown.

use crate::config::Config;
use crate::http::{self, Views};
use crate::ingest::{self, Fleet, SourceStatus, Statuses};
use crate::models::{self, Model, ModelError};
use crate::producers::proto::inference_cache_server::InferenceCacheServer;
use crate::producers::{self, Counters};
use crate::reload::Reloads;
use crate::replication;
use crate::replication::proto::replication_server::ReplicationServer;
use crate::stats::Board;
use crate::writer::{Dump, Entry, View, Writer, WriterHandle};
use futures::FutureExt;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;

/// How long connections have to end by themselves.
const GRACE: Duration = Duration::from_secs(1);
/// Bytes of frames that may wait for one subscriber, its snapshot not counted.
const SUBSCRIBER_BUFFER: usize = 16 << 20;

/// A running host-shim.
#[derive(Debug)]
pub struct HostShim {
    grpc: SocketAddr,
    http: SocketAddr,
    snapshot: SocketAddr,
    epoch: u64,
    writer: WriterHandle,
    writer_task: JoinHandle<()>,
    statuses: Statuses,
    board: Board,
    fleet: Fleet,
    /// What the service runs with.
    config: Config,
    reloads: Arc<Reloads>,
    tasks: JoinSet<()>,
    stop: CancellationToken,
}

/// Why the service cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A model cannot be loaded.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// An address is taken or not ours.
    #[error("{field}: cannot listen on {address}: {error}")]
    Listen {
        /// Field of the configuration.
        field: &'static str,
        /// The address.
        address: SocketAddr,
        /// What the system says.
        error: std::io::Error,
    },
    /// A task of the start died.
    #[error("the start was interrupted")]
    Interrupted,
}

impl HostShim {
    /// Loads the models, opens the sockets and starts all tasks in the current tokio runtime.
    pub async fn start(config: Config) -> Result<HostShim, StartError> {
        HostShim::start_with(config, SUBSCRIBER_BUFFER).await
    }

    /// As [`HostShim::start`], with another bound on what waits for one subscriber, bytes.
    pub async fn start_with(config: Config, subscriber_buffer: usize) -> Result<HostShim, StartError> {
        let models = load_models(&config).await?;
        let grpc = listen("listen.grpc", config.listen.grpc).await?;
        let http = listen("listen.http", config.listen.http).await?;
        let snapshot = listen("listen.snapshot", config.listen.snapshot).await?;
        let stop = CancellationToken::new();
        let epoch = RandomState::new().hash_one(std::process::id()).max(1);
        let (writer, writer_task) =
            Writer::start(&config, models.clone(), epoch, subscriber_buffer, stop.clone());
        let statuses = Statuses::default();
        let board = Board::default();
        let mut fleet = Fleet::new(writer.clone(), statuses.clone(), board.clone(), models.clone());
        fleet.set(&config.replicas).await;
        let mut tasks = JoinSet::new();
        let reloads = Arc::<Reloads>::default();
        let counters = Arc::<Counters>::default();
        tasks.spawn(expire(board.clone(), config.index.ttl, config.index.sweep_interval, stop.clone()));
        let views = Views {
            writer: writer.clone(),
            statuses: statuses.clone(),
            board: board.clone(),
            models: models.iter().map(|model| model.name.clone()).collect(),
            reloads: reloads.clone(),
            producers: counters.clone(),
        };
        let watching = ingest::watch(writer.clone(), statuses.clone(), board.clone());
        tasks.spawn(stop.clone().run_until_cancelled_owned(watching).map(drop));
        let (grpc_address, grpc_listener) = grpc;
        let producers =
            producers::Service::new(writer.clone(), board.clone(), counters, config.producers.stream_idle);
        let replication = replication::Service::new(writer.clone(), models);
        tasks.spawn(serve_grpc(grpc_listener, replication, producers, stop.clone()));
        let (http_address, http_listener) = http;
        tasks.spawn(serve_http(http_listener, http::public(views.clone()), stop.clone()));
        let (snapshot_address, snapshot_listener) = snapshot;
        tasks.spawn(serve_http(snapshot_listener, http::private(views), stop.clone()));
        Ok(HostShim {
            grpc: grpc_address,
            http: http_address,
            snapshot: snapshot_address,
            epoch,
            writer,
            writer_task,
            statuses,
            board,
            fleet,
            config,
            reloads,
            tasks,
            stop,
        })
    }

    /// Where gRPC is served.
    pub fn grpc_addr(&self) -> SocketAddr {
        self.grpc
    }

    /// Where `/metrics` and the probes are served.
    pub fn http_addr(&self) -> SocketAddr {
        self.http
    }

    /// Where `/snapshot` is served.
    pub fn snapshot_addr(&self) -> SocketAddr {
        self.snapshot
    }

    /// Incarnation of the replication.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Takes over the replicas of another configuration: those that are new begin, those that have gone leave the
    /// index, those that have changed do both. The names of other fields that differ: they need a restart. A replica
    /// of a model that is not loaded does not run until then.
    pub async fn reload(&mut self, config: Config) -> Vec<&'static str> {
        let fields = self.config.needs_restart(&config);
        let (replicas, waiting): (Vec<_>, Vec<_>) = config
            .replicas
            .into_iter()
            .partition(|replica| self.config.models.iter().any(|model| model.name == replica.model));
        for replica in waiting {
            tracing::warn!(replica = replica.id, model = replica.model, "the model is not loaded: restart");
        }
        for field in &fields {
            tracing::warn!(field, "changed in the configuration, but needs a restart");
        }
        self.fleet.set(&replicas).await;
        self.config.replicas = replicas;
        self.reloads.note(true);
        fields
    }

    /// Counts a configuration that was not valid; everything stays as it is.
    pub fn refuse_reload(&self, error: &crate::config::ConfigError) {
        tracing::error!(%error, "the changed configuration is refused, the one before stays");
        self.reloads.note(false);
    }

    /// Configurations taken over and refused since the start.
    pub fn reloads(&self) -> &Reloads {
        &self.reloads
    }

    /// The sources, in the order in which they came.
    pub fn sources(&self) -> Vec<SourceStatus> {
        self.statuses.all()
    }

    /// Statistics of the engines.
    pub fn stats(&self) -> &Board {
        &self.board
    }

    /// What the index holds; `None` during shutdown.
    pub async fn view(&self) -> Option<View> {
        self.writer.view().await
    }

    /// Every entry, sorted; `None` during shutdown. O(entries): for tests and debugging.
    pub async fn entries(&self) -> Option<Vec<Entry>> {
        self.writer.entries().await
    }

    /// Every entry that gateways hear of, sorted; `None` during shutdown. O(entries): for tests and debugging.
    pub async fn dump(&self) -> Option<Dump> {
        self.writer.dump().await
    }

    /// Ends streams, sockets and tasks; returns when they are gone, at the latest after about a second.
    pub async fn shutdown(mut self) {
        self.stop.cancel();
        self.fleet.shutdown().await;
        let _ = self.writer_task.await;
        let _ = tokio::time::timeout(GRACE, async { while self.tasks.join_next().await.is_some() {} }).await;
        self.tasks.shutdown().await;
    }
}

async fn load_models(config: &Config) -> Result<Arc<[Model]>, StartError> {
    let configs = config.models.clone();
    let load = move || configs.iter().map(models::load).collect::<Result<Vec<_>, _>>();
    let models = tokio::task::spawn_blocking(load).await.map_err(|_| StartError::Interrupted)??;
    Ok(models.into())
}

async fn listen(field: &'static str, address: SocketAddr) -> Result<(SocketAddr, TcpListener), StartError> {
    let refused = |error| StartError::Listen { field, address, error };
    let listener = TcpListener::bind(address).await.map_err(refused)?;
    Ok((listener.local_addr().map_err(refused)?, listener))
}

async fn serve_grpc(
    listener: TcpListener,
    replication: replication::Service,
    producers: producers::Service,
    stop: CancellationToken,
) {
    let producers =
        InferenceCacheServer::new(producers).max_decoding_message_size(producers::limits::MESSAGE_BYTES);
    let server = tonic::transport::Server::builder()
        .tcp_nodelay(true)
        .http2_keepalive_interval(Some(Duration::from_secs(10)))
        .add_service(ReplicationServer::new(replication))
        .add_service(producers)
        .serve_with_incoming_shutdown(TcpListenerStream::new(listener), stop.cancelled());
    if let Err(error) = server.await {
        tracing::error!(%error, "the gRPC server failed");
    }
}

/// Forgets what producers reported a TTL ago.
async fn expire(board: Board, ttl: Duration, every: Duration, stop: CancellationToken) {
    while tokio::time::timeout(every, stop.cancelled()).await.is_err() {
        board.expire(ttl);
    }
}

async fn serve_http(listener: TcpListener, router: axum::Router, stop: CancellationToken) {
    let server = axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned());
    if let Err(error) = server.await {
        tracing::error!(%error, "an HTTP server failed");
    }
}
