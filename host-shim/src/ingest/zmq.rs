//! ZeroMQ, in pure Rust.
//!
//! The library reconnects by itself, but backs off to 30 s and tells nobody what was lost; so in connect mode a
//! subscription ends with its connection and the receive task opens the next one.

use super::transport::{Conversation, Incoming, Message, Subscription, Transport, TransportError};
use crate::config::Endpoint;
use futures::StreamExt;
use futures::channel::mpsc;
use futures::future::BoxFuture;
use std::time::Duration;
use zeromq::{DealerSocket, Socket, SocketEvent, SocketRecv, SocketSend, SubSocket, ZmqError, ZmqMessage};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct Zmq;

struct ZmqSubscription {
    socket: SubSocket,
    events: mpsc::Receiver<SocketEvent>,
}

struct ZmqConversation {
    socket: DealerSocket,
}

impl Transport for Zmq {
    fn subscribe<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        bind: bool,
    ) -> BoxFuture<'a, Result<Box<dyn Subscription>, TransportError>> {
        Box::pin(async move {
            let mut socket = SubSocket::new();
            let events = socket.monitor();
            socket.subscribe("").await?;
            if bind {
                socket.bind(&endpoint.to_string()).await?;
            } else {
                timely(socket.connect(&endpoint.to_string())).await?;
            }
            Ok(Box::new(ZmqSubscription { socket, events }) as Box<dyn Subscription>)
        })
    }

    fn request<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        request: Message,
    ) -> BoxFuture<'a, Result<Box<dyn Conversation>, TransportError>> {
        Box::pin(async move {
            let mut socket = DealerSocket::new();
            timely(socket.connect(&endpoint.to_string())).await?;
            let request =
                ZmqMessage::try_from(request).map_err(|_| TransportError("empty request".into()))?;
            socket.send(request).await?;
            Ok(Box::new(ZmqConversation { socket }) as Box<dyn Conversation>)
        })
    }
}

impl Subscription for ZmqSubscription {
    fn next(&mut self) -> BoxFuture<'_, Result<Incoming, TransportError>> {
        Box::pin(async move {
            loop {
                tokio::select! {
                    // Connections first: a message of a new connection must not be taken for one of the old.
                    biased;
                    Some(event) = self.events.next() => match event {
                        SocketEvent::Connected(..) | SocketEvent::Accepted(..) => return Ok(Incoming::Connected),
                        SocketEvent::Disconnected(_) => return Ok(Incoming::Disconnected),
                        _ => {}
                    },
                    message = self.socket.recv() => return Ok(Incoming::Message(message?.into_vec())),
                }
            }
        })
    }
}

impl Conversation for ZmqConversation {
    fn next(&mut self) -> BoxFuture<'_, Result<Message, TransportError>> {
        Box::pin(async move { Ok(self.socket.recv().await?.into_vec()) })
    }
}

impl From<ZmqError> for TransportError {
    fn from(error: ZmqError) -> TransportError {
        TransportError(error.to_string())
    }
}

async fn timely<T>(connect: impl Future<Output = Result<T, ZmqError>>) -> Result<T, TransportError> {
    match tokio::time::timeout(CONNECT_TIMEOUT, connect).await {
        Ok(result) => Ok(result?),
        Err(_) => Err(TransportError("timed out".into())),
    }
}
