//! The ZeroMQ framing around payloads: live messages, replay requests and replies.
//!
//! Live: `[topic, seq, payload]`. Request from a DEALER: `[empty, start seq]`. Reply: `[empty, seq, payload]` (vLLM up
//! to 0.25, SGLang up to 0.5.21) or `[empty, topic, seq, payload]` (later); the end is a reply with seq 2^64-1.
//! Sequence numbers are 8 bytes, big-endian. The topic says nothing that the connection does not.

/// A message that is not framed as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Another number of frames.
    #[error("unexpected number of frames")]
    Count,
    /// The sequence number is not 8 bytes.
    #[error("sequence number is not 8 bytes")]
    Seq,
}

impl FrameError {
    /// A bounded label for metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            FrameError::Count => "frame_count",
            FrameError::Seq => "frame_seq",
        }
    }
}

/// One reply to a replay request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    /// A batch of the publisher's ring.
    Batch {
        /// Its sequence number.
        seq: u64,
        /// Its payload.
        payload: &'a [u8],
    },
    /// Nothing more follows.
    End,
}

/// Sequence number and payload of a live message.
pub fn live_frames<F: AsRef<[u8]>>(frames: &[F]) -> Result<(u64, &[u8]), FrameError> {
    match frames {
        [_topic, seq, payload] => Ok((parse_seq(seq.as_ref())?, payload.as_ref())),
        _ => Err(FrameError::Count),
    }
}

/// What a message on the replay socket says.
pub fn replay_frames<F: AsRef<[u8]>>(frames: &[F]) -> Result<Reply<'_>, FrameError> {
    let (seq, payload) = match frames {
        [_empty, seq, payload] | [_empty, _, seq, payload] => (parse_seq(seq.as_ref())?, payload.as_ref()),
        _ => return Err(FrameError::Count),
    };
    Ok(if seq == u64::MAX { Reply::End } else { Reply::Batch { seq, payload } })
}

/// The frames of a request for everything from `start` on.
pub fn replay_request(start: u64) -> [Vec<u8>; 2] {
    [Vec::new(), start.to_be_bytes().to_vec()]
}

fn parse_seq(frame: &[u8]) -> Result<u64, FrameError> {
    frame.try_into().map(u64::from_be_bytes).map_err(|_| FrameError::Seq)
}
