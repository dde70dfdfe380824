//! A pull reader over msgpack bytes: one head at a time, no recursion, no allocation.
//!
//! rmp names the markers; lengths and numbers are read here, because every length must be checked against what is
//! really there before anything is sized by it.

use rmp::Marker;

/// The bytes are not msgpack, or end early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// A scalar, or the head of a container whose elements follow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value<'a> {
    Nil,
    Bool,
    Int(Int),
    Float(f64),
    /// Not necessarily UTF-8.
    Str(&'a [u8]),
    Bin(&'a [u8]),
    /// So many values follow.
    Array(u32),
    /// So many pairs of values follow.
    Map(u32),
    Ext,
}

/// An integer: its 64-bit two's complement pattern and whether it was written as a negative number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Int {
    pub(super) bits: u64,
    negative: bool,
}

impl Int {
    pub(super) fn as_u32(self) -> Option<u32> {
        if self.negative { None } else { u32::try_from(self.bits).ok() }
    }

    pub(super) fn is_negative(self) -> bool {
        self.negative
    }

    pub(super) fn as_f64(self) -> f64 {
        if self.negative { self.bits.cast_signed() as f64 } else { self.bits as f64 }
    }
}

/// A position in msgpack bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    /// The bytes from here to the end.
    pub(super) fn bytes(&self) -> &'a [u8] {
        self.rest
    }

    /// Reads a scalar or a container's head.
    pub(super) fn read(&mut self) -> Result<Value<'a>, Malformed> {
        let unsigned = |bits| Value::Int(Int { bits, negative: false });
        let signed = |value: i64| Value::Int(Int { bits: value.cast_unsigned(), negative: value < 0 });
        Ok(match Marker::from_u8(self.u8()?) {
            Marker::Null => Value::Nil,
            Marker::True | Marker::False => Value::Bool,
            Marker::FixPos(value) => unsigned(u64::from(value)),
            Marker::FixNeg(value) => signed(i64::from(value)),
            Marker::U8 => unsigned(u64::from(self.u8()?)),
            Marker::U16 => unsigned(u64::from(self.u16()?)),
            Marker::U32 => unsigned(u64::from(self.u32()?)),
            Marker::U64 => unsigned(u64::from_be_bytes(self.array()?)),
            Marker::I8 => signed(i64::from(i8::from_be_bytes(self.array()?))),
            Marker::I16 => signed(i64::from(i16::from_be_bytes(self.array()?))),
            Marker::I32 => signed(i64::from(i32::from_be_bytes(self.array()?))),
            Marker::I64 => signed(i64::from_be_bytes(self.array()?)),
            Marker::F32 => Value::Float(f64::from(f32::from_be_bytes(self.array()?))),
            Marker::F64 => Value::Float(f64::from_be_bytes(self.array()?)),
            Marker::FixStr(len) => Value::Str(self.take(u32::from(len))?),
            Marker::Str8 => Value::Str(self.sized8()?),
            Marker::Str16 => Value::Str(self.sized16()?),
            Marker::Str32 => Value::Str(self.sized32()?),
            Marker::Bin8 => Value::Bin(self.sized8()?),
            Marker::Bin16 => Value::Bin(self.sized16()?),
            Marker::Bin32 => Value::Bin(self.sized32()?),
            Marker::FixArray(len) => self.container(u32::from(len), Value::Array)?,
            Marker::Array16 => {
                let len = u32::from(self.u16()?);
                self.container(len, Value::Array)?
            }
            Marker::Array32 => {
                let len = self.u32()?;
                self.container(len, Value::Array)?
            }
            Marker::FixMap(len) => self.container(u32::from(len), Value::Map)?,
            Marker::Map16 => {
                let len = u32::from(self.u16()?);
                self.container(len, Value::Map)?
            }
            Marker::Map32 => {
                let len = self.u32()?;
                self.container(len, Value::Map)?
            }
            Marker::FixExt1 => self.ext(1)?,
            Marker::FixExt2 => self.ext(2)?,
            Marker::FixExt4 => self.ext(4)?,
            Marker::FixExt8 => self.ext(8)?,
            Marker::FixExt16 => self.ext(16)?,
            Marker::Ext8 => {
                let len = u32::from(self.u8()?);
                self.ext(len)?
            }
            Marker::Ext16 => {
                let len = u32::from(self.u16()?);
                self.ext(len)?
            }
            Marker::Ext32 => {
                let len = self.u32()?;
                self.ext(len)?
            }
            Marker::Reserved => return Err(Malformed),
        })
    }

    /// Reads unsigned integers of up to 32 bits, at most `count`, as far as there are such ones and the bytes do not end
    /// soon; how many. Most of what engines publish are such numbers, of widths that no branch predictor can foresee: so
    /// the widths are computed and not branched on.
    pub(super) fn small_uints(&mut self, count: u32, out: &mut Vec<u32>) -> u32 {
        let mut rest = self.rest;
        let mut left = count;
        while left > 0 {
            let Some(head) = rest.first_chunk() else { break };
            let word = u64::from_be_bytes(*head);
            let marker = word >> 56;
            // Bytes of the marker and of the value; a value below 0x80 is its own marker.
            let (skip, bytes) = match marker {
                0..0x80 => (0, 1),
                0xcc..=0xce => (1, 1 << (marker - 0xcc)),
                _ => break,
            };
            let Some(behind) = rest.get(skip + bytes..) else { break };
            rest = behind;
            out.push(((word << (8 * skip)) >> (64 - 8 * bytes)) as u32);
            left -= 1;
        }
        self.rest = rest;
        count - left
    }

    /// Reads an unsigned integer that was written with 64 bits; `None`, without a step, if anything else comes.
    #[inline]
    pub(super) fn wide_uint(&mut self) -> Option<u64> {
        let [0xcf, a, b, c, d, e, f, g, h, ref rest @ ..] = *self.rest else { return None };
        self.rest = rest;
        Some(u64::from_be_bytes([a, b, c, d, e, f, g, h]))
    }

    /// Reads a map's key: its bytes if it is a string, `None` (and past it) if it is anything else.
    pub(super) fn read_key(&mut self) -> Result<Option<&'a [u8]>, Malformed> {
        let mut ahead = *self;
        if let Value::Str(key) = ahead.read()? {
            *self = ahead;
            return Ok(Some(key));
        }
        self.skip()?;
        Ok(None)
    }

    /// Steps over one whole value. Terminates because every pending value needs a byte of its own.
    pub(super) fn skip(&mut self) -> Result<(), Malformed> {
        let mut pending = 1_u64;
        while pending > 0 {
            pending -= 1;
            match self.read()? {
                Value::Array(len) => pending += u64::from(len),
                Value::Map(len) => pending += 2 * u64::from(len),
                _ => {}
            }
        }
        Ok(())
    }

    /// Steps over one whole value and returns a reader over exactly its bytes.
    pub(super) fn take_value(&mut self) -> Result<Reader<'a>, Malformed> {
        let start = self.rest;
        self.skip()?;
        let extent = start.get(..start.len() - self.rest.len()).ok_or(Malformed)?;
        Ok(Reader::new(extent))
    }

    /// A container that claims more elements than bytes are left is a lie.
    fn container(&self, len: u32, head: fn(u32) -> Value<'a>) -> Result<Value<'a>, Malformed> {
        if len as usize > self.rest.len() { Err(Malformed) } else { Ok(head(len)) }
    }

    fn ext(&mut self, len: u32) -> Result<Value<'a>, Malformed> {
        self.u8()?;
        self.take(len).map(|_| Value::Ext)
    }

    fn sized8(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.u8()?;
        self.take(u32::from(len))
    }

    fn sized16(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.u16()?;
        self.take(u32::from(len))
    }

    fn sized32(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.u32()?;
        self.take(len)
    }

    fn u8(&mut self) -> Result<u8, Malformed> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_be_bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(Malformed)?;
        self.rest = rest;
        Ok(*head)
    }

    fn take(&mut self, len: u32) -> Result<&'a [u8], Malformed> {
        let (head, rest) = self.rest.split_at_checked(len as usize).ok_or(Malformed)?;
        self.rest = rest;
        Ok(head)
    }
}
