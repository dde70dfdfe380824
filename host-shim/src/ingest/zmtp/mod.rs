//! ZMTP 3.0, the wire protocol of ZeroMQ, as far as a subscriber needs it.
//!
//! Why our own: a publisher is another process, and a message's length is whatever it says. What is read here grows with
//! the bytes that arrived, never with the length that was announced, and has limits. [`Decoder`] is the protocol without
//! sockets; [`Zmtp`] puts it on TCP and Unix sockets: SUB connecting, SUB bound for several publishers, DEALER
//! connecting. Only the NULL mechanism is spoken; filters, identities and outgoing queues do not exist.
//!
//! ```text
//! both sides    greeting   FF ········ 7F | 03 00 | "NULL" padded with 0 to 20 | as-server 00 | 31 × 00     64 bytes
//!               READY      frame with COMMAND: 05 "READY", then (1-byte length, name, 4-byte length, value)*
//! subscriber    frame 01 ‖ topic: the subscription, a message of ZMTP 3.0
//! then          messages: frames, all but the last with MORE; commands in between: PING is answered with PONG
//!
//! frame         flags (1: MORE, 2: LONG, 4: COMMAND) | length, 1 byte, or 8 bytes big-endian with LONG | body
//! ```
//!
//! Invariants: a decoder holds at most one message of the limits and what one read brings beyond it; once it has failed,
//! it fails for ever, as nobody knows where the next frame begins. Cost: O(bytes), bodies are not copied.
//!
//! Sources: rfc.zeromq.org/spec/23, and what libzmq 4.3 sends.

mod connection;
mod decoder;
mod encode;
mod sockets;

pub use decoder::{Decoder, Item, Limits, ProtocolError, SocketType};
pub(crate) use sockets::Zmtp;
