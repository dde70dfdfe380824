//! What the ingest needs of a message transport.

use crate::config::Endpoint;
use bytes::Bytes;
use futures::future::BoxFuture;

/// The frames of one message.
pub(crate) type Message = Vec<Bytes>;

/// Something that happened on a live stream.
#[derive(Debug)]
pub(crate) enum Incoming {
    /// A publisher is connected (again): messages before this may be lost.
    Connected,
    /// No publisher is connected any more; others may come. In connect mode the subscription ends instead.
    Disconnected,
    /// A message.
    Message(Message),
}

/// A live stream of messages.
pub(crate) trait Subscription: Send {
    /// What happens next; an error ends the subscription.
    fn next(&mut self) -> BoxFuture<'_, Result<Incoming, TransportError>>;
}

/// A request and its replies.
pub(crate) trait Conversation: Send {
    /// The next reply.
    fn next(&mut self) -> BoxFuture<'_, Result<Message, TransportError>>;
}

/// Opens streams.
pub(crate) trait Transport: Send + Sync + 'static {
    /// Connects to a publisher, or binds for it.
    fn subscribe<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        bind: bool,
    ) -> BoxFuture<'a, Result<Box<dyn Subscription>, TransportError>>;
    /// Sends a request.
    fn request<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        request: Message,
    ) -> BoxFuture<'a, Result<Box<dyn Conversation>, TransportError>>;
}

/// What a transport says when it fails.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct TransportError(pub(crate) String);
