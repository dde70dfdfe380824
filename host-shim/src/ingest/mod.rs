//! From sockets to operations: one receive task and one source task per replica.

mod status;
mod transport;
mod worker;
mod zmq;

pub use status::{SourceStatus, Statuses};
pub(crate) use worker::start;
