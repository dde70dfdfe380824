//! The sockets that the ingest uses: SUB connecting, SUB bound, DEALER connecting.

use super::super::transport::{Conversation, Incoming, Message, Subscription, Transport, TransportError};
use super::connection::{Connection, Role, Stream};
use crate::config::Endpoint;
use futures::future::BoxFuture;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::time::Duration;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Publishers of one bound socket: one, and those of its process before that have not gone yet.
const MAX_PEERS: usize = 16;
/// What all of them have read and nobody has taken.
const PEER_QUEUE: usize = 8;
/// Pause after a connection that could not be accepted, such as for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The transport.
#[derive(Debug)]
pub(crate) struct Zmtp;

impl Transport for Zmtp {
    fn subscribe<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        bind: bool,
    ) -> BoxFuture<'a, Result<Box<dyn Subscription>, TransportError>> {
        Box::pin(async move {
            let subscription: Box<dyn Subscription> = if bind {
                Box::new(Bound::new(endpoint).await?)
            } else {
                let connection = Connection::connect(endpoint, Role::Sub).await?;
                Box::new(Connected { connection, told: false })
            };
            Ok(subscription)
        })
    }

    fn request<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        request: Message,
    ) -> BoxFuture<'a, Result<Box<dyn Conversation>, TransportError>> {
        Box::pin(async move {
            let mut connection = Connection::connect(endpoint, Role::Dealer).await?;
            connection.send(&request).await?;
            Ok(Box::new(connection) as Box<dyn Conversation>)
        })
    }
}

impl Conversation for Connection {
    fn next(&mut self) -> BoxFuture<'_, Result<Message, TransportError>> {
        Box::pin(self.receive())
    }
}

/// A connection to the publisher.
struct Connected {
    connection: Connection,
    /// That it is there.
    told: bool,
}

impl Subscription for Connected {
    fn next(&mut self) -> BoxFuture<'_, Result<Incoming, TransportError>> {
        Box::pin(async move {
            if !std::mem::replace(&mut self.told, true) {
                return Ok(Incoming::Connected);
            }
            Ok(Incoming::Message(self.connection.receive().await?))
        })
    }
}

/// A listener and the publishers that came. Each has a task, so that a bad one cannot hold up the others.
struct Bound {
    listener: Listener,
    peers: JoinSet<()>,
    /// Peers that have shaken hands.
    ready: usize,
    sender: mpsc::Sender<Peer>,
    receiver: mpsc::Receiver<Peer>,
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// What a peer's task tells.
enum Peer {
    Ready,
    Message(Message),
    Gone,
}

impl Bound {
    async fn new(endpoint: &Endpoint) -> Result<Bound, TransportError> {
        let listener = match endpoint {
            Endpoint::Tcp { host, port } => {
                let host = if host == "*" { "0.0.0.0" } else { host };
                Listener::Tcp(TcpListener::bind((host, *port)).await?)
            }
            Endpoint::Ipc(path) => {
                // A socket that is left over cannot be bound again.
                if std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket()) {
                    std::fs::remove_file(path)?;
                }
                Listener::Unix(UnixListener::bind(path)?)
            }
        };
        let (sender, receiver) = mpsc::channel(PEER_QUEUE);
        Ok(Bound { listener, peers: JoinSet::new(), ready: 0, sender, receiver })
    }

    async fn accepted(&mut self, accepted: io::Result<Stream>) {
        match accepted {
            Ok(stream) => {
                self.peers.spawn(read(stream, self.sender.clone()));
            }
            Err(error) => {
                tracing::debug!(%error, "a publisher could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

impl Subscription for Bound {
    fn next(&mut self) -> BoxFuture<'_, Result<Incoming, TransportError>> {
        Box::pin(async move {
            loop {
                while self.peers.try_join_next().is_some() {}
                tokio::select! {
                    accepted = self.listener.accept(), if self.peers.len() < MAX_PEERS => {
                        self.accepted(accepted).await;
                    }
                    // At the limit, the end of a peer lets the next one in.
                    Some(_) = self.peers.join_next(), if self.peers.len() >= MAX_PEERS => {}
                    Some(said) = self.receiver.recv() => match said {
                        Peer::Ready => {
                            self.ready += 1;
                            return Ok(Incoming::Connected);
                        }
                        Peer::Message(message) => return Ok(Incoming::Message(message)),
                        Peer::Gone => {
                            self.ready = self.ready.saturating_sub(1);
                            if self.ready == 0 {
                                return Ok(Incoming::Disconnected);
                            }
                        }
                    },
                }
            }
        })
    }
}

impl Listener {
    async fn accept(&self) -> io::Result<Stream> {
        match self {
            Listener::Tcp(listener) => Ok(Stream::Tcp(listener.accept().await?.0)),
            Listener::Unix(listener) => Ok(Stream::Unix(listener.accept().await?.0)),
        }
    }
}

/// Reads a publisher to its end. Ends early if nobody listens any more.
async fn read(stream: Stream, to: mpsc::Sender<Peer>) {
    let mut connection = match Connection::open(stream, Role::Sub).await {
        Ok(connection) => connection,
        Err(error) => return tracing::debug!(%error, "a publisher is refused"),
    };
    if to.send(Peer::Ready).await.is_err() {
        return;
    }
    let error = loop {
        match connection.receive().await {
            Ok(message) => {
                if to.send(Peer::Message(message)).await.is_err() {
                    return;
                }
            }
            Err(error) => break error,
        }
    };
    tracing::debug!(%error, "a publisher has gone");
    let _ = to.send(Peer::Gone).await;
}
