//! The part of canonical CBOR (RFC 8949, section 4.2.1) that the hashes need: shortest, definite.

use super::Serializer;

const UINT: u8 = 0x00;
const NEGATIVE: u8 = 0x20;
const BYTES: u8 = 0x40;
const TEXT: u8 = 0x60;
const ARRAY: u8 = 0x80;
const NULL: u8 = 0xf6;

/// Appends to a vector.
pub(super) struct Cbor<'a>(pub(super) &'a mut Vec<u8>);

impl Serializer for Cbor<'_> {
    fn begin_tuple(&mut self, len: usize) {
        head(self.0, ARRAY, len as u64);
    }

    fn end_tuple(&mut self, _len: usize) {}

    fn none(&mut self) {
        self.0.push(NULL);
    }

    fn int(&mut self, value: i64) {
        match u64::try_from(value) {
            Ok(value) => head(self.0, UINT, value),
            Err(_) => head(self.0, NEGATIVE, !value.cast_unsigned()),
        }
    }

    fn bytes(&mut self, value: &[u8]) {
        head(self.0, BYTES, value.len() as u64);
        self.0.extend_from_slice(value);
    }

    fn text(&mut self, value: &str) {
        head(self.0, TEXT, value.len() as u64);
        self.0.extend_from_slice(value.as_bytes());
    }

    fn literal(&mut self, value: &'static str) {
        self.text(value);
    }
}

/// Major type and argument, in the fewest bytes. The narrowing casts follow from the ranges.
fn head(out: &mut Vec<u8>, major: u8, value: u64) {
    match value {
        0..=23 => out.push(major | value as u8),
        24..=0xff => out.extend_from_slice(&[major | 24, value as u8]),
        0x100..=0xffff => {
            out.push(major | 25);
            out.extend_from_slice(&(value as u16).to_be_bytes());
        }
        0x1_0000..=0xffff_ffff => {
            out.push(major | 26);
            out.extend_from_slice(&(value as u32).to_be_bytes());
        }
        _ => {
            out.push(major | 27);
            out.extend_from_slice(&value.to_be_bytes());
        }
    }
}
