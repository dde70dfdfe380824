//! Bytes to messages, with a bound on what the bytes unfold to.
//!
//! An empty `PrefixEntry` takes 2 bytes on the wire and about 130 in memory: 4 MiB would unfold to 250 MiB. So the
//! prefixes and blocks of an update are counted before it is decoded. O(bytes), no allocation.

use super::limits;
use super::proto::CacheStateUpdate;
use prost::Message;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

/// Field numbers of `CacheStateUpdate.prefixes` and of `PrefixEntry.block_hashes`.
const PREFIXES: u32 = 6;
const BLOCK_HASHES: u32 = 3;

/// Why bytes are no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Not protobuf, or not of this type.
    #[error("malformed message")]
    Malformed,
    /// More than [`limits::ENTRIES`] prefixes and blocks.
    #[error("an update has at most {} prefixes and blocks", limits::ENTRIES)]
    TooManyEntries,
    /// More than [`limits::MESSAGE_BYTES`].
    #[error("a message has at most {} bytes", limits::MESSAGE_BYTES)]
    TooLarge,
}

impl WireError {
    /// Label of the counter.
    pub fn reason(&self) -> &'static str {
        match self {
            WireError::Malformed => "malformed",
            WireError::TooManyEntries => "too_many_entries",
            WireError::TooLarge => "too_large",
        }
    }
}

/// Decodes an update.
pub fn decode_update(bytes: &[u8]) -> Result<CacheStateUpdate, WireError> {
    if bytes.len() > limits::MESSAGE_BYTES {
        return Err(WireError::TooLarge);
    }
    let mut room = limits::ENTRIES;
    for_each_field(bytes, PREFIXES, |prefix| {
        take(&mut room)?;
        for_each_field(prefix, BLOCK_HASHES, |_| take(&mut room))
    })?;
    decode(bytes)
}

/// Decodes a message that holds nothing repeated.
pub fn decode<M: Message + Default>(bytes: &[u8]) -> Result<M, WireError> {
    if bytes.len() > limits::MESSAGE_BYTES {
        return Err(WireError::TooLarge);
    }
    M::decode(bytes).map_err(|_| WireError::Malformed)
}

fn take(room: &mut usize) -> Result<(), WireError> {
    *room = room.checked_sub(1).ok_or(WireError::TooManyEntries)?;
    Ok(())
}

/// Visits the length-delimited fields with this number.
fn for_each_field(
    mut message: &[u8],
    number: u32,
    mut visit: impl FnMut(&[u8]) -> Result<(), WireError>,
) -> Result<(), WireError> {
    while !message.is_empty() {
        let (tag, wire_type) = decode_key(&mut message).map_err(|_| WireError::Malformed)?;
        if tag == number && wire_type == WireType::LengthDelimited {
            let length = decode_varint(&mut message).map_err(|_| WireError::Malformed)?;
            let length = usize::try_from(length).map_err(|_| WireError::Malformed)?;
            let (field, rest) = message.split_at_checked(length).ok_or(WireError::Malformed)?;
            visit(field)?;
            message = rest;
        } else {
            skip_field(wire_type, tag, &mut message, DecodeContext::default())
                .map_err(|_| WireError::Malformed)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::proto::PrefixEntry;
    use super::*;
    use proptest::prelude::*;

    fn update(prefixes: usize, blocks: usize) -> Vec<u8> {
        let entry = PrefixEntry { block_hashes: vec![Vec::new(); blocks], ..Default::default() };
        CacheStateUpdate { prefixes: vec![entry; prefixes], ..Default::default() }.encode_to_vec()
    }

    #[test]
    fn what_unfolds_too_far_is_not_decoded() {
        assert_eq!(
            decode_update(&update(limits::ENTRIES, 0)).map(|update| update.prefixes.len()),
            Ok(1 << 16)
        );
        assert_eq!(decode_update(&update(limits::ENTRIES + 1, 0)), Err(WireError::TooManyEntries));
        assert!(decode_update(&update(256, 255)).is_ok());
        assert_eq!(decode_update(&update(256, 256)), Err(WireError::TooManyEntries));
        assert_eq!(decode_update(&vec![0; limits::MESSAGE_BYTES + 1]), Err(WireError::TooLarge));
    }

    /// A message as a producer of the first release writes it, without adapter and tier, byte by byte.
    #[test]
    fn bytes_of_an_old_producer() {
        let mut bytes = b"\x0a\x02r1\x12\x01m\x1a\x01t\x22\x04vllm\x28\x07".to_vec();
        bytes.extend(b"\x32\x0c\x0a\x08\x01\x02\x03\x04\x05\x06\x07\x08\x10\x20");
        bytes.extend(b"\x32\x18\x1a\x08\x00\x00\x00\x00\x00\x00\x00\x01\x1a\x08\x00\x00\x00\x00\x00\x00\x00\x02\x22\x02\x10\x10");
        bytes.extend(b"\x3a\x09\x0a\x02r1\x1d\x00\x00\x00\x3f");
        let update = decode_update(&bytes).unwrap();
        assert_eq!((update.replica_id.as_str(), update.model_id.as_str()), ("r1", "m"));
        assert_eq!(
            (update.tenant_id.as_str(), update.hash_scheme.as_str(), update.timestamp_us),
            ("t", "vllm", 7)
        );
        assert_eq!(update.prefixes[0].prefix_hash, [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!((update.prefixes[0].token_count, update.prefixes[0].tier), (32, 0));
        assert_eq!(
            (update.prefixes[1].block_hashes.len(), &update.prefixes[1].block_token_counts[..]),
            (2, &[16, 16][..])
        );
        assert_eq!(update.stats.unwrap().hit_rate, 0.5);
    }

    proptest! {
        #[test]
        fn the_count_refuses_nothing_that_is_valid(prefixes in 0usize..20, blocks in 0usize..20, cut in 0usize..400) {
            let bytes = update(prefixes, blocks);
            prop_assert!(decode_update(&bytes).is_ok());
            let _ = decode_update(&bytes[..cut.min(bytes.len())]);
        }

        #[test]
        fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            // What prost takes, we take.
            prop_assert_eq!(decode_update(&bytes).ok(), CacheStateUpdate::decode(&bytes[..]).ok());
        }
    }
}
