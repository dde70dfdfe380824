//! What we send.

use super::decoder::{COMMAND, GREETING_LEN, LONG, MORE};
use bytes::Bytes;

/// Version 3.0, mechanism NULL.
pub(super) fn greeting() -> [u8; GREETING_LEN] {
    let mut greeting = [0; GREETING_LEN];
    let start = b"\xff\0\0\0\0\0\0\0\0\x7f\x03\0NULL";
    greeting.iter_mut().zip(start).for_each(|(to, from)| *to = *from);
    greeting
}

/// READY of a socket type such as `SUB`.
pub(super) fn ready(socket_type: &str) -> Vec<u8> {
    const NAME: &[u8] = b"\x05READY\x0bSocket-Type\0\0\0";
    // At most 6 letters.
    let length = u8::try_from(socket_type.len()).unwrap_or(u8::MAX);
    let body = [NAME, &[length], socket_type.as_bytes()].concat();
    let mut out = Vec::new();
    frame(&mut out, COMMAND, &body);
    out
}

/// The subscription to all topics.
pub(super) fn subscribe_all() -> Vec<u8> {
    let mut out = Vec::new();
    frame(&mut out, 0, &[1]);
    out
}

/// The answer to a PING with this context.
pub(super) fn pong(context: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    frame(&mut out, COMMAND, &[b"\x04PONG", context].concat());
    out
}

/// A message of these frames.
pub(super) fn message(frames: &[Bytes]) -> Vec<u8> {
    let mut out = Vec::new();
    for (nth, body) in frames.iter().enumerate() {
        frame(&mut out, if nth + 1 < frames.len() { MORE } else { 0 }, body);
    }
    out
}

fn frame(out: &mut Vec<u8>, flags: u8, body: &[u8]) {
    match u8::try_from(body.len()) {
        Ok(length) => out.extend([flags, length]),
        Err(_) => {
            out.push(flags | LONG);
            out.extend((body.len() as u64).to_be_bytes());
        }
    }
    out.extend(body);
}
