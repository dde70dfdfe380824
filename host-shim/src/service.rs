//! The whole service in one value: start, addresses, shutdown.

use crate::config::Config;
use crate::http::{self, Views};
use crate::index::ReplicaId;
use crate::ingest::{self, SourceStatus, Statuses};
use crate::models::{self, Model, ModelError};
use crate::replication::Service;
use crate::replication::proto::replication_server::ReplicationServer;
use crate::stats::{self, Board};
use crate::writer::{Dump, View, Writer, WriterHandle};
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
        let statuses = Statuses::new(config.replicas.iter().map(|replica| replica.id.clone()));
        let board = Board::default();
        let mut tasks = JoinSet::new();
        for (at, replica) in config.replicas.iter().enumerate() {
            let id = at as ReplicaId + 1;
            ingest::start(
                &mut tasks,
                at,
                id,
                &replica.events,
                writer.clone(),
                statuses.clone(),
                stop.clone(),
            );
            if let Some(metrics) = &replica.metrics {
                let (id, metrics) = (replica.id.clone(), metrics.clone());
                stats::start(&mut tasks, id, metrics, board.clone(), stop.clone());
            }
        }
        let views = Views {
            writer: writer.clone(),
            statuses: statuses.clone(),
            board: board.clone(),
            models: models.iter().map(|model| model.name.clone()).collect(),
            replicas: config.replicas.into(),
        };
        let (grpc_address, grpc_listener) = grpc;
        tasks.spawn(serve_grpc(grpc_listener, Service::new(writer.clone(), models), stop.clone()));
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

    /// The sources, in order of the configuration.
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
    pub async fn dump(&self) -> Option<Dump> {
        self.writer.dump().await
    }

    /// Ends streams, sockets and tasks; returns when they are gone, at the latest after about a second.
    pub async fn shutdown(mut self) {
        self.stop.cancel();
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

async fn serve_grpc(listener: TcpListener, service: Service, stop: CancellationToken) {
    let server = tonic::transport::Server::builder()
        .tcp_nodelay(true)
        .http2_keepalive_interval(Some(Duration::from_secs(10)))
        .add_service(ReplicationServer::new(service))
        .serve_with_incoming_shutdown(TcpListenerStream::new(listener), stop.cancelled());
    if let Err(error) = server.await {
        tracing::error!(%error, "the gRPC server failed");
    }
}

async fn serve_http(listener: TcpListener, router: axum::Router, stop: CancellationToken) {
    let server = axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned());
    if let Err(error) = server.await {
        tracing::error!(%error, "an HTTP server failed");
    }
}
