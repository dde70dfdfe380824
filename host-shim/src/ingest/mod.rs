//! From sockets to operations: one receive task and one source task per source, which is a (replica, rank).

mod fleet;
mod receiver;
mod status;
mod transport;
mod worker;
pub mod zmtp;

pub(crate) use fleet::Fleet;
pub use status::{SourceStatus, Statuses};
