//! One connection to one peer: opened, greeted, read.

use super::super::transport::{Message, TransportError};
use super::decoder::{Decoder, Item, Limits, ProtocolError, SocketType};
use super::encode;
use crate::config::Endpoint;
use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// From the connection to the peer's READY.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// What we send is short: a peer that does not take it is stuck.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// A peer that vanished without a word is noticed after `IDLE + RETRIES * INTERVAL`.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 3;

/// What we are to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Sub,
    Dealer,
}

#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A peer that is ready for messages.
#[derive(Debug)]
pub(super) struct Connection {
    stream: Stream,
    decoder: Decoder,
}

impl Connection {
    /// Connects to a peer that listens.
    pub(super) async fn connect(endpoint: &Endpoint, role: Role) -> Result<Connection, TransportError> {
        let connect = async {
            match endpoint {
                Endpoint::Tcp { host, port } => {
                    TcpStream::connect((host.as_str(), *port)).await.map(Stream::Tcp)
                }
                Endpoint::Ipc(path) => UnixStream::connect(path).await.map(Stream::Unix),
            }
        };
        let stream = timeout(CONNECT_TIMEOUT, connect).await.map_err(|_| slow("connecting"))??;
        Connection::open(stream, role).await
    }

    /// Shakes hands; a SUB subscribes to everything.
    pub(super) async fn open(stream: Stream, role: Role) -> Result<Connection, TransportError> {
        if let Stream::Tcp(stream) = &stream {
            stream.set_nodelay(true)?;
            let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL);
            SockRef::from(stream).set_tcp_keepalive(&keepalive.with_retries(KEEPALIVE_RETRIES))?;
        }
        let mut connection = Connection { stream, decoder: Decoder::new(Limits::default()) };
        timeout(HANDSHAKE_TIMEOUT, connection.handshake(role)).await.map_err(|_| slow("the handshake"))??;
        Ok(connection)
    }

    async fn handshake(&mut self, role: Role) -> Result<(), TransportError> {
        self.write(&encode::greeting()).await?;
        let Item::Greeting = self.item().await? else { return Err(ProtocolError::Signature.into()) };
        let (name, peer) = match role {
            Role::Sub => ("SUB", SocketType::Pub),
            Role::Dealer => ("DEALER", SocketType::Router),
        };
        self.write(&encode::ready(name)).await?;
        match self.item().await? {
            Item::Ready(found) if found == peer => {}
            _ => return Err(TransportError(format!("the peer is no partner of a {name} socket"))),
        }
        match role {
            Role::Sub => self.write(&encode::subscribe_all()).await,
            Role::Dealer => Ok(()),
        }
    }

    pub(super) async fn send(&mut self, frames: &Message) -> Result<(), TransportError> {
        self.write(&encode::message(frames)).await
    }

    /// The next message; pings are answered on the way.
    pub(super) async fn receive(&mut self) -> Result<Message, TransportError> {
        loop {
            match self.item().await? {
                Item::Message(message) => return Ok(message),
                Item::Ping(context) => self.write(&encode::pong(&context)).await?,
                Item::Greeting | Item::Ready(_) => {}
            }
        }
    }

    async fn item(&mut self) -> Result<Item, TransportError> {
        loop {
            if let Some(item) = self.decoder.poll()? {
                return Ok(item);
            }
            if self.stream.read_buf(self.decoder.buffer()).await? == 0 {
                return Err(TransportError("the peer closed the connection".into()));
            }
        }
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), TransportError> {
        timeout(WRITE_TIMEOUT, self.stream.write_all(bytes)).await.map_err(|_| slow("writing"))??;
        Ok(())
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_read(cx, into),
            Stream::Unix(stream) => Pin::new(stream).poll_read(cx, into),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_write(cx, from),
            Stream::Unix(stream) => Pin::new(stream).poll_write(cx, from),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

impl From<io::Error> for TransportError {
    fn from(error: io::Error) -> TransportError {
        TransportError(error.to_string())
    }
}

impl From<ProtocolError> for TransportError {
    fn from(error: ProtocolError) -> TransportError {
        TransportError(error.to_string())
    }
}

fn slow(what: &str) -> TransportError {
    TransportError(format!("{what} took too long"))
}
