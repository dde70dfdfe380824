//! Decoder of the KV-cache events that engines publish.
//!
//! A message is `[topic, seq, payload]`; the payload is one msgpack array `[ts, events, data_parallel_rank]`. An event
//! is a positional array (vLLM up to 0.23, SGLang up to 0.5.19) or a map tagged `"type"` (later releases); both may
//! occur, and arrays have the length of their release. Unknown tags, fields and trailing slots are accepted.
//!
//! Contract: [`Batch::decode`] reads the envelope; [`Batch::events`] then decodes one event at a time, so memory is
//! bounded by eight times the payload's bytes whatever the lengths claim. An event that is well-formed msgpack but not
//! what it should be is an `Err` of its own and the next one follows; bytes that are not msgpack end the batch with one
//! `Err`. [`shape`] describes a payload without its values, for people who must find out why it was refused. Nothing
//! here interprets events: that is [`crate::ingest`].
//!
//! Cost: one pass; tokens and hashes are copied once. A refused event is stepped over in a second pass.
//!
//! Checked against payloads encoded by the engines' own classes (19 vLLM and 7 SGLang releases) and against
//! recordings of running engines.

mod frames;
mod msgpack;
mod shape;
mod stored;

pub use frames::{FrameError, Reply, live_frames, replay_frames, replay_request};
pub use shape::shape;
pub use stored::{BlockRemoved, BlockStored, ExtraKey};

use msgpack::{Malformed, Reader, Value};

/// An engine's own block hash: an opaque id inside one source. Integers keep their 64-bit pattern: vLLM's are the low 64
/// bits of a digest, SGLang's (signed) and TensorRT-LLM's the first 8 bytes. Of byte strings, which only vLLM sends, the
/// last 8 bytes, big-endian: the same number as in its integer form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EngineHash(pub u64);

/// One published message.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// The engine's wall clock, seconds since the epoch; not monotonic.
    pub ts: f64,
    /// Slots behind the events.
    trailing: u32,
    count: u32,
    events: Reader<'a>,
}

/// What happened to blocks of the engine's cache.
#[derive(Clone, Debug, PartialEq)]
pub enum Event<'a> {
    /// Blocks became reusable.
    Stored(BlockStored<'a>),
    /// One copy of each block went away.
    Removed(BlockRemoved<'a>),
    /// The whole cache was emptied.
    Cleared,
    /// An event that this decoder does not know.
    Unknown,
}

/// Why an event, or a whole payload, could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EventError {
    /// The bytes are not msgpack, or end early.
    #[error("not msgpack or cut off")]
    Malformed,
    /// The payload is not `[ts, events, ..]`.
    #[error("not an event batch")]
    NotABatch,
    /// The event is neither an array nor a map with a tag.
    #[error("event without a tag")]
    NoTag,
    /// A field has another type or range than it should.
    #[error("field `{0}` has a wrong type or value")]
    Field(&'static str),
    /// A field that the event cannot do without is absent.
    #[error("field `{0}` is missing")]
    Missing(&'static str),
}

impl EventError {
    /// A bounded label for metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            EventError::Malformed => "malformed",
            EventError::NotABatch => "not_a_batch",
            EventError::NoTag => "no_tag",
            EventError::Field(_) => "wrong_field",
            EventError::Missing(_) => "missing_field",
        }
    }
}

impl From<Malformed> for EventError {
    fn from(_: Malformed) -> EventError {
        EventError::Malformed
    }
}

impl<'a> Batch<'a> {
    /// Reads the envelope of `payload`.
    pub fn decode(payload: &'a [u8]) -> Result<Batch<'a>, EventError> {
        let mut reader = Reader::new(payload);
        let Value::Array(slots @ 2..) = reader.read()? else { return Err(EventError::NotABatch) };
        let ts = match reader.read()? {
            Value::Float(ts) => ts,
            Value::Int(ts) => ts.as_f64(),
            _ => return Err(EventError::NotABatch),
        };
        let Value::Array(count) = reader.read()? else { return Err(EventError::NotABatch) };
        Ok(Batch { ts, trailing: slots - 2, count, events: reader })
    }

    /// Data-parallel rank of the publisher. Steps over the events to find it.
    pub fn rank(&self) -> Option<u32> {
        let mut reader = self.events;
        (0..self.count).try_for_each(|_| reader.skip()).ok()?;
        match (self.trailing > 0).then(|| reader.read().ok())?? {
            Value::Int(rank) => rank.as_u32(),
            _ => None,
        }
    }

    /// When `payload` was published, without reading further: [`Batch::ts`].
    pub fn timestamp(payload: &[u8]) -> Option<f64> {
        let mut reader = Reader::new(payload);
        match (reader.read().ok()?, reader.read().ok()?) {
            (Value::Array(_), Value::Float(ts)) => Some(ts),
            (Value::Array(_), Value::Int(ts)) => Some(ts.as_f64()),
            _ => None,
        }
    }

    /// The events, in order: order matters within a batch.
    pub fn events(&self) -> Events<'a> {
        Events { left: self.count, reader: self.events }
    }
}

/// Iterator over the events of a [`Batch`].
#[derive(Clone, Debug)]
pub struct Events<'a> {
    left: u32,
    reader: Reader<'a>,
}

impl<'a> Events<'a> {
    /// The bytes from the next event on.
    pub fn bytes(&self) -> &'a [u8] {
        self.reader.bytes()
    }
}

impl<'a> Iterator for Events<'a> {
    type Item = Result<Event<'a>, EventError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let start = self.reader;
        let event = decode_event(&mut self.reader);
        if event.is_err() {
            self.reader = start;
            if self.reader.skip().is_err() {
                self.left = 0;
                return Some(Err(EventError::Malformed));
            }
        }
        Some(event)
    }
}

/// The fields of one event, in either encoding.
enum Fields {
    /// So many positional slots follow.
    Slots(u32),
    /// So many name-value pairs follow, the tag among them.
    Pairs(u32),
}

/// Reads one event and leaves `event` behind it; after an error, anywhere inside it.
fn decode_event<'a>(event: &mut Reader<'a>) -> Result<Event<'a>, EventError> {
    let (tag, fields) = match event.read()? {
        Value::Array(slots @ 1..) => {
            let Value::Str(tag) = event.read()? else { return Err(EventError::NoTag) };
            (tag, Fields::Slots(slots - 1))
        }
        Value::Map(pairs) => (find_tag(*event, pairs)?, Fields::Pairs(pairs)),
        _ => return Err(EventError::NoTag),
    };
    match tag {
        b"BlockStored" => BlockStored::decode(event, fields).map(Event::Stored),
        b"BlockRemoved" => BlockRemoved::decode(event, fields).map(Event::Removed),
        b"AllBlocksCleared" => fields.skip(event).map(|()| Event::Cleared),
        _ => fields.skip(event).map(|()| Event::Unknown),
    }
}

impl Fields {
    fn skip(self, event: &mut Reader<'_>) -> Result<(), EventError> {
        let values = match self {
            Fields::Slots(slots) => u64::from(slots),
            Fields::Pairs(pairs) => 2 * u64::from(pairs),
        };
        Ok((0..values).try_for_each(|_| event.skip())?)
    }
}

/// Engines write the tag first; nothing in msgpack says so.
fn find_tag<'a>(mut event: Reader<'a>, pairs: u32) -> Result<&'a [u8], EventError> {
    for _ in 0..pairs {
        match event.read_key()? {
            Some(b"type") => match event.read()? {
                Value::Str(tag) => return Ok(tag),
                _ => return Err(EventError::NoTag),
            },
            _ => event.skip()?,
        }
    }
    Err(EventError::NoTag)
}

#[cfg(test)]
mod tests;
