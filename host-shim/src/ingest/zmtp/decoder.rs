//! What a peer sends, without sockets: bytes in, greeting, READY, messages and pings out.

use super::super::transport::Message;
use bytes::{Buf, Bytes, BytesMut};

pub(super) const GREETING_LEN: usize = 64;
pub(super) const MORE: u8 = 1;
pub(super) const LONG: u8 = 2;
pub(super) const COMMAND: u8 = 4;
/// Longest body of a command; READY has a few short properties.
const MAX_COMMAND: usize = 4096;

/// Bounds of what a peer may send.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of a frame's body.
    pub frame_bytes: usize,
    /// Frames of a message.
    pub frames: usize,
    /// Bytes of the bodies of a message together.
    pub message_bytes: usize,
}

/// One thing that a peer said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// It speaks ZMTP 3 and accepts the NULL mechanism.
    Greeting,
    /// It is ready for messages.
    Ready(SocketType),
    /// A message; at least one frame.
    Message(Vec<Bytes>),
    /// To be answered with a PONG of the same context.
    Ping(Bytes),
}

/// Socket types that matter to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketType {
    /// PUB or XPUB.
    Pub,
    /// SUB or XSUB.
    Sub,
    /// DEALER.
    Dealer,
    /// ROUTER.
    Router,
    /// Any other.
    Other,
}

/// Why a peer cannot be understood any further.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// Not ZMTP.
    #[error("the peer does not speak ZMTP")]
    Signature,
    /// ZMTP 1 or 2.
    #[error("the peer speaks ZMTP {0}, not 3")]
    Version(u8),
    /// PLAIN, CURVE or another.
    #[error("the peer wants another security mechanism than NULL")]
    Mechanism,
    /// Reserved bits are set, or a command has more frames.
    #[error("flags {0:#04x}")]
    Flags(u8),
    /// A length above the limits.
    #[error("a frame of {0} bytes")]
    FrameLength(u64),
    /// Too much in one message.
    #[error("a message of too many frames or bytes")]
    MessageLength,
    /// A message before READY.
    #[error("a message during the handshake")]
    Early,
    /// A command that ends too soon.
    #[error("a malformed command")]
    Command,
    /// An ERROR command.
    #[error("the peer refuses: {0}")]
    Refused(String),
}

/// Reads what one peer sends.
#[derive(Debug)]
pub struct Decoder {
    limits: Limits,
    stage: Stage,
    buffer: BytesMut,
    /// Of the message that is not complete.
    frames: Vec<Bytes>,
    frame_bytes: usize,
    failed: Option<ProtocolError>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Greeting,
    Handshake,
    Traffic,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { frame_bytes: 16 << 20, frames: 16, message_bytes: 16 << 20 }
    }
}

impl Decoder {
    /// For a peer that has not said anything.
    pub fn new(limits: Limits) -> Decoder {
        Decoder {
            limits,
            stage: Stage::Greeting,
            buffer: BytesMut::new(),
            frames: Vec::new(),
            frame_bytes: 0,
            failed: None,
        }
    }

    /// Where what arrives is to be appended, with room for a read: at least 4 KiB, at most twice what is there.
    pub fn buffer(&mut self) -> &mut BytesMut {
        const LEAST: usize = 4 << 10;
        const READ: usize = 64 << 10;
        let len = self.buffer.len();
        if self.buffer.capacity() - len < LEAST {
            self.buffer.reserve(len.max(READ));
        }
        &mut self.buffer
    }

    /// The next thing that is complete; `None`: more bytes are needed. After an error, always that error.
    pub fn poll(&mut self) -> Result<Option<Item>, ProtocolError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let next = match self.stage {
            Stage::Greeting => self.greeting(),
            Stage::Handshake | Stage::Traffic => self.item(),
        };
        if let Err(error) = &next {
            self.failed = Some(error.clone());
            self.buffer = BytesMut::new();
            self.frames = Vec::new();
        }
        next
    }

    fn greeting(&mut self) -> Result<Option<Item>, ProtocolError> {
        // Told as early as possible: a peer of another protocol may never send 64 bytes.
        let at = |at: usize| self.buffer.get(at).copied();
        if at(0).is_some_and(|byte| byte != 0xff) || at(9).is_some_and(|byte| byte & 1 == 0) {
            return Err(ProtocolError::Signature);
        }
        if let Some(major) = at(10).filter(|&major| major < 3) {
            return Err(ProtocolError::Version(major));
        }
        let Some((greeting, _)) = self.buffer.split_first_chunk::<GREETING_LEN>() else { return Ok(None) };
        if !matches!(greeting, [_, _, _, _, _, _, _, _, _, _, _, _, b'N', b'U', b'L', b'L', 0, ..]) {
            return Err(ProtocolError::Mechanism);
        }
        self.buffer.advance(GREETING_LEN);
        self.stage = Stage::Handshake;
        Ok(Some(Item::Greeting))
    }

    fn item(&mut self) -> Result<Option<Item>, ProtocolError> {
        while let Some((flags, body)) = self.frame()? {
            let item =
                if flags & COMMAND != 0 { self.command(body)? } else { self.message_frame(flags, body)? };
            if item.is_some() {
                return Ok(item);
            }
        }
        Ok(None)
    }

    /// Flags and body of the next frame, once all of it is there.
    fn frame(&mut self) -> Result<Option<(u8, Bytes)>, ProtocolError> {
        let Some((&flags, rest)) = self.buffer.split_first() else { return Ok(None) };
        if flags & !(MORE | LONG | COMMAND) != 0 || flags & (MORE | COMMAND) == MORE | COMMAND {
            return Err(ProtocolError::Flags(flags));
        }
        let (header, length) = if flags & LONG == 0 {
            let Some(&length) = rest.first() else { return Ok(None) };
            (2, u64::from(length))
        } else {
            let Some((length, _)) = rest.split_first_chunk() else { return Ok(None) };
            (9, u64::from_be_bytes(*length))
        };
        let limit = if flags & COMMAND == 0 { self.limits.frame_bytes } else { MAX_COMMAND };
        let length = match usize::try_from(length) {
            Ok(fits) if fits <= limit => fits,
            _ => return Err(ProtocolError::FrameLength(length)),
        };
        if flags & COMMAND == 0 {
            if self.stage == Stage::Handshake {
                return Err(ProtocolError::Early);
            }
            if self.frames.len() >= self.limits.frames
                || self.frame_bytes + length > self.limits.message_bytes
            {
                return Err(ProtocolError::MessageLength);
            }
        }
        if self.buffer.len() - header < length {
            return Ok(None);
        }
        self.buffer.advance(header);
        Ok(Some((flags, self.buffer.split_to(length).freeze())))
    }

    fn message_frame(&mut self, flags: u8, body: Bytes) -> Result<Option<Item>, ProtocolError> {
        self.frame_bytes += body.len();
        self.frames.push(body);
        if flags & MORE != 0 {
            return Ok(None);
        }
        self.frame_bytes = 0;
        let message: Message = std::mem::take(&mut self.frames);
        Ok(Some(Item::Message(message)))
    }

    /// Commands that are not known are nothing.
    fn command(&mut self, mut body: Bytes) -> Result<Option<Item>, ProtocolError> {
        let name = short(&mut body)?;
        match (self.stage, &name[..]) {
            (Stage::Handshake, b"READY") => {
                let socket_type = socket_type(body)?;
                self.stage = Stage::Traffic;
                Ok(Some(Item::Ready(socket_type)))
            }
            (_, b"ERROR") => {
                let reason = short(&mut body)?;
                Err(ProtocolError::Refused(reason.escape_ascii().to_string()))
            }
            (Stage::Traffic, b"PING") => {
                // Time to live, then up to 16 bytes of context.
                if !(2..=18).contains(&body.len()) {
                    return Err(ProtocolError::Command);
                }
                Ok(Some(Item::Ping(body.split_off(2))))
            }
            _ => Ok(None),
        }
    }
}

/// The properties of READY: the name of a property is not case-sensitive.
fn socket_type(mut properties: Bytes) -> Result<SocketType, ProtocolError> {
    let mut found = SocketType::Other;
    while !properties.is_empty() {
        let name = short(&mut properties)?;
        if properties.len() < 4 {
            return Err(ProtocolError::Command);
        }
        let length = usize::try_from(properties.get_u32()).unwrap_or(usize::MAX);
        let value = take(&mut properties, length)?;
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            found = match &value[..] {
                b"PUB" | b"XPUB" => SocketType::Pub,
                b"SUB" | b"XSUB" => SocketType::Sub,
                b"DEALER" => SocketType::Dealer,
                b"ROUTER" => SocketType::Router,
                _ => SocketType::Other,
            };
        }
    }
    Ok(found)
}

/// A string behind its length in one byte.
fn short(bytes: &mut Bytes) -> Result<Bytes, ProtocolError> {
    if bytes.is_empty() {
        return Err(ProtocolError::Command);
    }
    let length = usize::from(bytes.get_u8());
    take(bytes, length)
}

fn take(bytes: &mut Bytes, length: usize) -> Result<Bytes, ProtocolError> {
    if bytes.len() < length {
        return Err(ProtocolError::Command);
    }
    Ok(bytes.split_to(length))
}

#[cfg(test)]
mod tests {
    use super::super::encode;
    use super::*;

    const LIMITS: Limits = Limits { frame_bytes: 1000, frames: 3, message_bytes: 1500 };

    fn handshake(socket_type: &str) -> Vec<u8> {
        [encode::greeting().to_vec(), encode::ready(socket_type)].concat()
    }

    /// All items, fed in pieces of at most `step` bytes.
    fn decode(bytes: &[u8], step: usize) -> (Vec<Item>, Option<ProtocolError>) {
        let (mut decoder, mut items) = (Decoder::new(LIMITS), Vec::new());
        for piece in bytes.chunks(step) {
            decoder.buffer().extend_from_slice(piece);
            loop {
                match decoder.poll() {
                    Ok(Some(item)) => items.push(item),
                    Ok(None) => break,
                    Err(error) => {
                        assert_eq!(decoder.poll(), Err(error.clone()), "errors stay");
                        return (items, Some(error));
                    }
                }
            }
        }
        (items, None)
    }

    fn message(frames: &[&[u8]]) -> Vec<Bytes> {
        frames.iter().map(|frame| Bytes::copy_from_slice(frame)).collect()
    }

    #[test]
    fn a_session_decodes_at_every_split() {
        // As libzmq 4.3.5 sends it: signature with a length in it, version 3.1, READY of an XPUB with an identity.
        let mut session = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01NULL".to_vec();
        session.resize(GREETING_LEN, 0);
        session.extend(b"\x04\x27\x05READY\x0bSocket-Type\0\0\0\x04XPUB\x08Identity\0\0\0\0");
        session.extend(b"\x01\x00\x01\x08\0\0\0\0\0\0\0\x07\x00\x03abc");
        session.extend(b"\x04\x09\x04PING\0\x0aab\x04\x0b\x09SUBSCRIBEt");
        let long = vec![7; 700];
        session.extend(b"\x02\0\0\0\0\0\0\x02\xbc");
        session.extend(&long);
        let expected = [
            Item::Greeting,
            Item::Ready(SocketType::Pub),
            Item::Message(message(&[b"", b"\0\0\0\0\0\0\0\x07", b"abc"])),
            Item::Ping(Bytes::from_static(b"ab")),
            Item::Message(message(&[&long])),
        ];
        for step in (1..=80).chain([session.len()]) {
            assert_eq!(decode(&session, step), (expected.to_vec(), None), "step {step}");
        }
        for cut in 0..session.len() {
            assert_eq!(decode(&session[..cut], usize::MAX).1, None, "cut {cut}");
        }
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        let frames = message(&[b"", &[9; 255], &[8; 256]]);
        let session = [handshake("DEALER"), encode::message(&frames)].concat();
        let items = [Item::Greeting, Item::Ready(SocketType::Dealer), Item::Message(frames)];
        assert_eq!(decode(&session, 1), (items.to_vec(), None));
    }

    #[test]
    fn what_is_beyond_the_limits_is_refused_before_it_comes() {
        let cases: [(&[u8], ProtocolError); 8] = [
            (b"\x02\0\0\x01\0\0\0\0\0", ProtocolError::FrameLength(1 << 40)),
            (b"\x02\xff\xff\xff\xff\xff\xff\xff\xff", ProtocolError::FrameLength(u64::MAX)),
            (b"\x06\0\0\0\0\0\0\x10\x01", ProtocolError::FrameLength(4097)),
            (b"\x01\0\x01\0\x01\0\x00\0", ProtocolError::MessageLength),
            (b"\x08\0", ProtocolError::Flags(8)),
            (b"\x05\0", ProtocolError::Flags(5)),
            (b"\x04\x02\x05R", ProtocolError::Command),
            (b"\x04\x0a\x05ERROR\x03no\n", ProtocolError::Refused("no\\n".into())),
        ];
        for (bytes, error) in cases {
            let (items, found) = decode(&[handshake("PUB"), bytes.to_vec()].concat(), usize::MAX);
            assert_eq!((items.len(), found), (2, Some(error)));
        }
        let mut many = handshake("PUB");
        many.extend(b"\x03\0\0\0\0\0\0\x03\xe8");
        many.extend([0; 1000]);
        many.extend(b"\x02\0\0\0\0\0\0\x01\xf5");
        assert_eq!(decode(&many, 100).1, Some(ProtocolError::MessageLength));
    }

    #[test]
    fn other_peers_are_told_at_once() {
        let greeting = encode::greeting();
        assert_eq!(decode(b"GET / HTTP/1.1", 1).1, Some(ProtocolError::Signature));
        assert_eq!(decode(b"\xff\0\0\0\0\0\0\0\x01\x7f\x01", 1).1, Some(ProtocolError::Version(1)));
        let mut curve = greeting;
        curve[12..17].copy_from_slice(b"CURVE");
        assert_eq!(decode(&curve, 1).1, Some(ProtocolError::Mechanism));
        let early = [greeting.to_vec(), b"\0\x01a".to_vec()].concat();
        assert_eq!(decode(&early, 1).1, Some(ProtocolError::Early));
        let empty = [greeting.to_vec(), b"\x04\0".to_vec()].concat();
        assert_eq!(decode(&empty, 1).1, Some(ProtocolError::Command));
        let cut = [greeting.to_vec(), b"\x04\x0a\x05READY\x01a\0\0".to_vec()].concat();
        assert_eq!(decode(&cut, 1).1, Some(ProtocolError::Command));
    }

    #[test]
    fn the_buffer_grows_with_what_arrived() {
        let mut decoder = Decoder::new(Limits::default());
        decoder.buffer().extend_from_slice(&handshake("PUB"));
        while decoder.poll().unwrap().is_some() {}
        decoder.buffer().extend_from_slice(b"\x02\0\0\0\0\0\xff\xff\xff");
        assert_eq!(decoder.poll(), Ok(None));
        assert!(decoder.buffer().capacity() <= 128 << 10, "{}", decoder.buffer.capacity());
    }
}
