//! From sockets to operations: one receive task and one source task per source, which is a (replica, rank).

mod discovery;
mod fleet;
mod receiver;
mod status;
pub(crate) mod transport;
mod warnings;
mod worker;
pub mod zmtp;

pub(crate) use fleet::Fleet;
pub use status::{SourceStatus, Statuses};
pub(crate) use warnings::watch;
