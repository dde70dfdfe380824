//! Sealing and opening of frames.
//!
//! A frame is `(epoch, base_seq, seq, checksum, payload)`; the checksum is `xxh3_64(payload, seed = epoch ^ seq)`, so
//! that a payload under another frame's header does not pass.

use super::proto;
use prost::Message;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Why a stream cannot go on. The subscriber closes it and subscribes again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplicationError {
    /// Bytes that are no message of the protocol.
    #[error("{0} is malformed")]
    Malformed(&'static str),
    /// The payload is not what was sealed.
    #[error("checksum of frame {seq} is wrong")]
    Checksum {
        /// The frame's sequence number.
        seq: u64,
    },
    /// The frame does not follow the state held.
    #[error("frame starts at {base_seq} of epoch {epoch:x}, held is {held_seq} of {held_epoch:x}")]
    Gap {
        /// The frame's epoch.
        epoch: u64,
        /// The state that the frame applies to.
        base_seq: u64,
        /// The epoch held; 0 for none.
        held_epoch: u64,
        /// The state held.
        held_seq: u64,
    },
    /// The snapshot ended with another number of entries than it says.
    #[error("snapshot of {announced} entries brought {received}")]
    Incomplete {
        /// What the snapshot's end says.
        announced: u64,
        /// What its chunks held.
        received: u64,
    },
    /// The other side speaks a version that this one does not.
    #[error("protocol version {0} is not supported")]
    Version(u32),
    /// More is waiting than the limit allows.
    #[error("more than {0} bytes are waiting")]
    Overflow(usize),
    /// An artifact that is not what its digest says, or cannot be used.
    #[error("artifact: {0}")]
    Artifact(&'static str),
}

impl ReplicationError {
    /// A label for metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            ReplicationError::Malformed(_) => "malformed",
            ReplicationError::Checksum { .. } => "checksum",
            ReplicationError::Gap { .. } => "gap",
            ReplicationError::Incomplete { .. } => "incomplete",
            ReplicationError::Version(_) => "version",
            ReplicationError::Overflow(_) => "overflow",
            ReplicationError::Artifact(_) => "artifact",
        }
    }
}

/// Makes the frame that moves the state of `epoch` from `base_seq` to `seq`.
pub fn seal(epoch: u64, base_seq: u64, seq: u64, body: proto::payload::Body) -> proto::Frame {
    let payload = proto::Payload { body: Some(body) }.encode_to_vec();
    proto::Frame { epoch, base_seq, seq, checksum: checksum(epoch, seq, &payload), payload }
}

/// Reads a frame and checks its seal; `None` as body is a kind of payload that this version does not know.
pub fn open(bytes: &[u8]) -> Result<(proto::Frame, Option<proto::payload::Body>), ReplicationError> {
    let mut frame = proto::Frame::decode(bytes).map_err(|_| ReplicationError::Malformed("frame"))?;
    if frame.checksum != checksum(frame.epoch, frame.seq, &frame.payload) {
        return Err(ReplicationError::Checksum { seq: frame.seq });
    }
    let payload = std::mem::take(&mut frame.payload);
    let payload =
        proto::Payload::decode(payload.as_slice()).map_err(|_| ReplicationError::Malformed("payload"))?;
    Ok((frame, payload.body))
}

fn checksum(epoch: u64, seq: u64, payload: &[u8]) -> u64 {
    xxh3_64_with_seed(payload, epoch ^ seq)
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn a_sealed_frame_opens_and_a_changed_one_does_not() {
        let body = proto::payload::Body::SnapshotEnd(proto::SnapshotEnd { entries: 7 });
        let sealed = seal(5, 1, 2, body.clone());
        let (frame, opened) = open(&sealed.encode_to_vec()).unwrap();
        assert_eq!((frame.epoch, frame.base_seq, frame.seq, opened), (5, 1, 2, Some(body)));

        let moved = proto::Frame { seq: 3, ..sealed.clone() };
        assert_eq!(open(&moved.encode_to_vec()), Err(ReplicationError::Checksum { seq: 3 }));
        let mut flipped = sealed;
        flipped.payload[0] ^= 1;
        assert!(open(&flipped.encode_to_vec()).is_err());
        assert!(open(b"\xff\xff\xff").is_err());
    }

    #[test]
    fn a_payload_of_a_later_version_opens_to_nothing() {
        let payload = vec![0xaa, 0x06, 0x00]; // field 101, empty
        let frame =
            proto::Frame { epoch: 1, checksum: checksum(1, 0, &payload), payload, ..Default::default() };
        assert_eq!(open(&frame.encode_to_vec()).unwrap().1, None);
    }
}
