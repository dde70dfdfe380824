//! Where the events come from: a file, or an engine.

use super::Printer;
use crate::config::Endpoint;
use crate::ingest::transport::{Incoming, Transport, TransportError};
use crate::ingest::zmtp::Zmtp;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use inference_cache_core::events::{Reply, replay_frames, replay_request};
use serde::Deserialize;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::timeout;

/// A replay that says nothing for so long is over.
const REPLAY_IDLE: Duration = Duration::from_secs(2);

/// What a replay socket is asked for before the live stream.
#[derive(Clone, Debug)]
pub struct Replay {
    /// The socket.
    pub endpoint: Endpoint,
    /// First batch number.
    pub from: u64,
}

/// When to stop listening.
pub type Stop = futures::future::BoxFuture<'static, ()>;

/// Why a stream cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The file cannot be read, or the output not be written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A line of the recording is no record.
    #[error("line {line}: {problem}")]
    Record {
        /// From 1.
        line: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// An engine's socket failed.
    #[error("{endpoint}: {problem}")]
    Socket {
        /// Which.
        endpoint: Endpoint,
        /// What it says.
        problem: String,
    },
}

/// Prints a recording (lines of JSON with base64 `frames`, as `tests-data/kv-events` has them) or one msgpack payload.
pub fn file<W: Write>(path: &Path, printer: &mut Printer<W>) -> Result<(), DecodeError> {
    #[derive(Deserialize)]
    struct Record {
        src: String,
        frames: Vec<String>,
    }
    let content = std::fs::read(path)?;
    // A msgpack payload begins with an array.
    let Some(text) = content.starts_with(b"{").then(|| String::from_utf8_lossy(&content)) else {
        return Ok(printer.batch(None, &content, None)?);
    };
    for (line, text) in (1..).zip(text.lines()).filter(|(_, text)| !text.trim().is_empty()) {
        let refused = |problem: String| DecodeError::Record { line, problem };
        let record: Record = serde_json::from_str(text).map_err(|error| refused(error.to_string()))?;
        let frames = record.frames.iter().map(|frame| STANDARD.decode(frame));
        let frames = frames.collect::<Result<Vec<_>, _>>().map_err(|error| refused(error.to_string()))?;
        match record.src.as_str() {
            "sub" => printer.message(&frames, None)?,
            "replay_reply" => reply(printer, &frames, None).map(drop)?,
            _ => {}
        }
    }
    Ok(())
}

/// Prints what an engine publishes, after a replay if one is wanted, until `stop`.
pub async fn live<W: Write>(
    endpoint: &Endpoint,
    replay: Option<&Replay>,
    printer: &mut Printer<W>,
    mut stop: Stop,
) -> Result<(), DecodeError> {
    let failed = |endpoint: &Endpoint, error: TransportError| DecodeError::Socket {
        endpoint: endpoint.clone(),
        problem: error.to_string(),
    };
    // First, so that nothing is missed in between.
    let mut subscription = Zmtp.subscribe(endpoint, false).await.map_err(|error| failed(endpoint, error))?;
    if let Some(Replay { endpoint, from }) = replay {
        let request = replay_request(*from).into_iter().map(Bytes::from).collect();
        let mut answers = Zmtp.request(endpoint, request).await.map_err(|error| failed(endpoint, error))?;
        while let Ok(message) = timeout(REPLAY_IDLE, answers.next()).await {
            if reply(printer, &message.map_err(|error| failed(endpoint, error))?, now_s())? {
                break;
            }
        }
    }
    loop {
        tokio::select! {
            () = &mut stop => return Ok(()),
            incoming = subscription.next() => match incoming.map_err(|error| failed(endpoint, error))? {
                Incoming::Message(message) => printer.message(&message, now_s())?,
                Incoming::Connected | Incoming::Disconnected => {}
            },
        }
    }
}

/// Prints a replay's reply; whether it was the last.
fn reply<W: Write, F: AsRef<[u8]>>(
    printer: &mut Printer<W>,
    frames: &[F],
    now_s: Option<f64>,
) -> io::Result<bool> {
    match replay_frames(frames) {
        Ok(Reply::Batch { seq, payload }) => printer.batch(Some(seq), payload, now_s).map(|()| false),
        Ok(Reply::End) => Ok(true),
        Err(error) => printer.bad_frames(&error).map(|()| false),
    }
}

fn now_s() -> Option<f64> {
    SystemTime::now().duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs_f64())
}
