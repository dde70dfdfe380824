//! What CPython's C pickler writes, protocol 5, for the values that the hashes need.
//!
//! Every bytes, text and tuple object is numbered in the order of its end (MEMOIZE); an object that comes again is
//! written as its number. Opcodes stand in frames with their length before them: a frame ends before the first value
//! that finds 64 KiB in it. Texts and bytes of 64 KiB and more, which stand outside frames, are not told apart: no salt or
//! name has such a length.

use super::Serializer;

const PROTO_5: [u8; 2] = [0x80, 5];
const FRAME: u8 = 0x95;
const FRAME_HEAD: usize = 9;
const FRAME_TARGET: usize = 64 << 10;
const STOP: u8 = b'.';
const NONE: u8 = b'N';
const MARK: u8 = b'(';
const TUPLE: u8 = b't';
const TUPLE_1: u8 = 0x85;
const TUPLE_2: u8 = 0x86;
const TUPLE_3: u8 = 0x87;
const EMPTY_TUPLE: u8 = b')';
const MEMOIZE: u8 = 0x94;
const BIN_GET: u8 = b'h';
const LONG_BIN_GET: u8 = b'j';
const INT_U8: u8 = b'K';
const INT_U16: u8 = b'M';
const INT_I32: u8 = b'J';
const LONG: u8 = 0x8a;
const BYTES_U8: u8 = b'C';
const BYTES_U32: u8 = b'B';
const TEXT_U8: u8 = 0x8c;
const TEXT_U32: u8 = b'X';

/// A pickle in the making: appends to a vector.
pub(super) struct Pickle<'a> {
    out: &'a mut Vec<u8>,
    /// Of the open frame's head.
    frame: usize,
    /// Numbered objects.
    memo: u32,
    /// Those that may come again.
    literals: Vec<(&'static str, u32)>,
}

impl<'a> Pickle<'a> {
    /// Begins a pickle in place of what `out` holds.
    pub(super) fn begin(out: &'a mut Vec<u8>) -> Pickle<'a> {
        out.clear();
        out.extend_from_slice(&PROTO_5);
        let mut pickle = Pickle::resume(out, 0);
        pickle.open_frame();
        pickle
    }

    /// Goes on with a pickle whose open frame began at `frame`.
    pub(super) fn resume(out: &'a mut Vec<u8>, frame: usize) -> Pickle<'a> {
        Pickle { out, frame, memo: 0, literals: Vec::new() }
    }

    /// A part for [`Pickle::append`], to stand behind `memo` numbered objects.
    pub(super) fn part(out: &'a mut Vec<u8>, memo: u32) -> Pickle<'a> {
        let frame = out.len();
        Pickle { out, frame, memo, literals: Vec::new() }
    }

    /// Where the open frame began.
    pub(super) fn frame(&self) -> usize {
        self.frame
    }

    /// A value that was written as a part.
    pub(super) fn append(&mut self, part: &[u8]) {
        self.value();
        self.out.extend_from_slice(part);
    }

    /// Ends the pickle.
    pub(super) fn end(mut self) {
        self.out.push(STOP);
        self.close_frame();
    }

    /// To be called before each value.
    fn value(&mut self) {
        if self.frame_len() >= FRAME_TARGET {
            self.close_frame();
            self.open_frame();
        }
    }

    fn open_frame(&mut self) {
        self.frame = self.out.len();
        self.out.push(FRAME);
        self.out.extend_from_slice(&[0; FRAME_HEAD - 1]);
    }

    fn close_frame(&mut self) {
        let len = self.frame_len() as u64;
        let at = self.frame + 1;
        if let Some(place) = self.out.get_mut(at..at + 8) {
            place.copy_from_slice(&len.to_le_bytes());
        }
    }

    fn frame_len(&self) -> usize {
        self.out.len().saturating_sub(self.frame + FRAME_HEAD)
    }

    fn memoize(&mut self) -> u32 {
        self.out.push(MEMOIZE);
        self.memo += 1;
        self.memo - 1
    }

    /// A length of one byte after `short`, or of four after `long`.
    fn sized(&mut self, short: u8, long: u8, bytes: &[u8]) {
        self.value();
        match u8::try_from(bytes.len()) {
            Ok(len) => self.out.extend_from_slice(&[short, len]),
            Err(_) => {
                self.out.push(long);
                self.out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            }
        }
        self.out.extend_from_slice(bytes);
    }
}

impl Serializer for Pickle<'_> {
    fn begin_tuple(&mut self, len: usize) {
        self.value();
        match len {
            0 => self.out.push(EMPTY_TUPLE),
            1..=3 => {}
            _ => self.out.push(MARK),
        }
    }

    fn end_tuple(&mut self, len: usize) {
        self.out.push(match len {
            0 => return,
            1 => TUPLE_1,
            2 => TUPLE_2,
            3 => TUPLE_3,
            _ => TUPLE,
        });
        self.memoize();
    }

    fn none(&mut self) {
        self.value();
        self.out.push(NONE);
    }

    /// The shortest form. The narrowing casts follow from the ranges.
    fn int(&mut self, value: i64) {
        self.value();
        match value {
            0..=0xff => self.out.extend_from_slice(&[INT_U8, value as u8]),
            0x100..=0xffff => {
                self.out.push(INT_U16);
                self.out.extend_from_slice(&(value as u16).to_le_bytes());
            }
            -0x8000_0000..=0x7fff_ffff => {
                self.out.push(INT_I32);
                self.out.extend_from_slice(&(value as i32).to_le_bytes());
            }
            _ => {
                // Two's complement: as many bytes as hold the value with its sign.
                let significant = if value < 0 { !value } else { value };
                let len = (64 - significant.leading_zeros() as usize) / 8 + 1;
                self.out.extend_from_slice(&[LONG, len as u8]);
                self.out.extend(value.to_le_bytes().iter().take(len));
            }
        }
    }

    fn bytes(&mut self, value: &[u8]) {
        self.sized(BYTES_U8, BYTES_U32, value);
        self.memoize();
    }

    fn text(&mut self, value: &str) {
        self.sized(TEXT_U8, TEXT_U32, value.as_bytes());
        self.memoize();
    }

    fn literal(&mut self, value: &'static str) {
        let known = self.literals.iter().find(|(literal, _)| *literal == value);
        let Some(&(_, number)) = known else {
            self.text(value);
            return self.literals.push((value, self.memo - 1));
        };
        self.value();
        match u8::try_from(number) {
            Ok(number) => self.out.extend_from_slice(&[BIN_GET, number]),
            Err(_) => {
                self.out.push(LONG_BIN_GET);
                self.out.extend_from_slice(&number.to_le_bytes());
            }
        }
    }
}
