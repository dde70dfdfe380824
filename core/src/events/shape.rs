//! What a payload looks like, without what it says: samples of what was refused, fit for logs.
//!
//! Types, lengths and the names of known tags and fields are shown; numbers, hashes, tokens and all other text are not.
//! Cost and size are bounded: [`DEPTH`] levels, [`ITEMS`] elements of a container, [`LENGTH`] bytes of description.

use super::msgpack::{Malformed, Reader, Value};
use std::fmt::Write;

const DEPTH: u32 = 5;
const ITEMS: u32 = 14;
const LENGTH: usize = 512;

/// Words that engines put into every event, and nothing that a client could have put there.
const KNOWN: [&str; 20] = [
    "type",
    "BlockStored",
    "BlockRemoved",
    "AllBlocksCleared",
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
    "cache_salt",
    "session_id",
    "locality",
    "ownership",
    "lookahead_token_ids",
];

/// Describes msgpack bytes, such as `[f64, [{"type": "BlockStored", "block_hashes": [u64 ×3], …}], nil]`. Bytes that are
/// not msgpack are described as far as they are.
pub fn shape(payload: &[u8]) -> String {
    let mut out = String::new();
    let mut reader = Reader::new(payload);
    if describe(&mut reader, DEPTH, &mut out).is_err() {
        out.push_str(" <malformed>");
    } else if !reader.bytes().is_empty() {
        let _ = write!(out, " <{} more bytes>", reader.bytes().len());
    }
    out
}

fn describe(reader: &mut Reader<'_>, depth: u32, out: &mut String) -> Result<(), Malformed> {
    let start = *reader;
    match reader.read()? {
        Value::Nil => out.push_str("nil"),
        Value::Bool => out.push_str("bool"),
        Value::Int(int) => out.push_str(if int.is_negative() { "negative int" } else { "int" }),
        Value::Float(_) => out.push_str("f64"),
        Value::Ext => out.push_str("ext"),
        Value::Bin(bytes) => drop(write!(out, "bin({})", bytes.len())),
        Value::Str(text) => match KNOWN.iter().find(|known| known.as_bytes() == text) {
            Some(known) => drop(write!(out, "\"{known}\"")),
            None => drop(write!(out, "str({})", text.len())),
        },
        Value::Array(len) | Value::Map(len) if depth == 0 || out.len() > LENGTH => {
            let _ = write!(out, "…({len})");
            *reader = start;
            reader.skip()?;
        }
        Value::Array(len) => {
            out.push('[');
            items(reader, len, out, |reader, out| describe(reader, depth - 1, out))?;
            out.push(']');
        }
        Value::Map(len) => {
            out.push('{');
            items(reader, len, out, |reader, out| {
                describe(reader, 0, out)?;
                out.push_str(": ");
                describe(reader, depth - 1, out)
            })?;
            out.push('}');
        }
    }
    Ok(())
}

/// The elements of a container, equal neighbours only once.
fn items(
    reader: &mut Reader<'_>,
    len: u32,
    out: &mut String,
    mut one: impl FnMut(&mut Reader<'_>, &mut String) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    let mut last = (String::new(), 0_u32);
    let mut shown = 0;
    for at in 0..len {
        let mut item = String::new();
        one(reader, &mut item)?;
        if item == last.0 {
            last.1 += 1;
            continue;
        }
        repeat(out, last.1);
        if shown >= ITEMS || out.len() > LENGTH {
            let _ = write!(out, ", …({})", len - at);
            return (at + 1..len).try_for_each(|_| one(reader, &mut String::new()));
        }
        out.push_str(if at > 0 { ", " } else { "" });
        out.push_str(&item);
        last = (item, 1);
        shown += 1;
    }
    repeat(out, last.1);
    Ok(())
}

fn repeat(out: &mut String, times: u32) {
    if times > 1 {
        let _ = write!(out, " ×{times}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    /// `[1.5, [{"type": "BlockStored", "token_ids": [1, 2, 70000], "lora_name": "secret"}], nil]`.
    const PAYLOAD: &[u8] = b"\x93\xcb\x3f\xf8\0\0\0\0\0\0\x91\x83\xa4type\xabBlockStored\xa9token_ids\
        \x93\x01\x02\xce\0\x01\x11\x70\xa9lora_name\xa6secret\xc0";

    #[test]
    fn names_and_lengths_are_shown_and_values_are_not() {
        assert_eq!(
            shape(PAYLOAD),
            r#"[f64, [{"type": "BlockStored", "token_ids": [int ×3], "lora_name": str(6)}], nil]"#
        );
    }

    #[test]
    fn what_is_cut_off_is_described_as_far_as_it_goes() {
        assert!(shape(&PAYLOAD[..20]).ends_with("<malformed>"));
        assert_eq!(shape(b""), " <malformed>");
        assert_eq!(shape(b"\xc0\xc0"), "nil <1 more bytes>");
    }

    #[test]
    fn the_description_is_bounded() {
        let mut wide = vec![0xdc, 0x10, 0];
        (0..4096_u32).for_each(|i| wide.push(if i % 2 == 0 { 0xc0 } else { 0x01 }));
        assert!(shape(&wide).len() < 200);
        let mut deep = vec![0x91; 1 << 16];
        deep.push(0xc0);
        assert!(shape(&deep).len() < 200);
    }
}
