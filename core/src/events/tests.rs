#[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
use wasm_bindgen_test::wasm_bindgen_test as test;

use super::*;
use rmp::encode as msg;

/// `[1.5, [..events], rank]`.
fn batch(events: &[Vec<u8>], rank: Option<u32>) -> Vec<u8> {
    let mut out = Vec::new();
    msg::write_array_len(&mut out, 3).unwrap();
    msg::write_f64(&mut out, 1.5).unwrap();
    msg::write_array_len(&mut out, events.len() as u32).unwrap();
    events.iter().for_each(|event| out.extend_from_slice(event));
    match rank {
        Some(rank) => {
            msg::write_uint(&mut out, rank.into()).unwrap();
        }
        None => msg::write_nil(&mut out).unwrap(),
    }
    out
}

fn cleared() -> Vec<u8> {
    let mut out = Vec::new();
    msg::write_array_len(&mut out, 1).unwrap();
    msg::write_str(&mut out, "AllBlocksCleared").unwrap();
    out
}

fn removed(hash: u64) -> Vec<u8> {
    let mut out = Vec::new();
    msg::write_map_len(&mut out, 3).unwrap();
    msg::write_str(&mut out, "block_hashes").unwrap();
    msg::write_array_len(&mut out, 1).unwrap();
    msg::write_uint(&mut out, hash).unwrap();
    msg::write_str(&mut out, "not_yet_invented").unwrap();
    msg::write_map_len(&mut out, 1).unwrap();
    msg::write_uint(&mut out, 7).unwrap();
    msg::write_array_len(&mut out, 0).unwrap();
    // The tag last: legal, though no engine does it.
    msg::write_str(&mut out, "type").unwrap();
    msg::write_str(&mut out, "BlockRemoved").unwrap();
    out
}

fn events(payload: &[u8]) -> Vec<Result<Event<'_>, EventError>> {
    Batch::decode(payload).unwrap().events().collect()
}

#[test]
fn one_bad_event_costs_only_itself() {
    let mut wrong = Vec::new();
    msg::write_array_len(&mut wrong, 2).unwrap();
    msg::write_str(&mut wrong, "BlockRemoved").unwrap();
    msg::write_str(&mut wrong, "not a list").unwrap();
    let mut unknown = Vec::new();
    msg::write_array_len(&mut unknown, 1).unwrap();
    msg::write_str(&mut unknown, "BlockWarmed").unwrap();
    let payload = batch(&[cleared(), wrong, vec![0x2a], unknown, removed(9)], Some(3));
    assert_eq!(Batch::decode(&payload).unwrap().rank(), Some(3));
    assert_eq!(
        events(&payload),
        [
            Ok(Event::Cleared),
            Err(EventError::Field("block_hashes")),
            Err(EventError::NoTag),
            Ok(Event::Unknown),
            Ok(Event::Removed(BlockRemoved { hashes: vec![EngineHash(9)], medium: None, group: None })),
        ]
    );
}

#[test]
fn a_cut_payload_keeps_its_leading_events() {
    let whole = batch(&[cleared(), removed(9), removed(10)], None);
    let cut = &whole[..whole.len() - 4];
    let events = events(cut);
    assert_eq!(events.len(), 3);
    assert!(events[0].is_ok() && events[1].is_ok());
    assert_eq!(events[2], Err(EventError::Malformed));
}

#[test]
fn no_prefix_of_a_payload_is_fatal() {
    let whole = batch(&[cleared(), removed(u64::MAX), removed(1 << 40)], Some(0));
    for end in 0..whole.len() {
        if let Ok(batch) = Batch::decode(&whole[..end]) {
            assert!(batch.events().count() <= 3);
        }
    }
}

#[test]
fn lengths_that_lie_allocate_nothing() {
    // An array of 2^32-1 tokens in a few bytes, as payload, as events and as a field.
    assert_eq!(Batch::decode(&[0xdd, 0xff, 0xff, 0xff, 0xff]).unwrap_err(), EventError::Malformed);
    let mut stored = Vec::new();
    msg::write_array_len(&mut stored, 5).unwrap();
    msg::write_str(&mut stored, "BlockStored").unwrap();
    stored.extend_from_slice(&[0xdd, 0xff, 0xff, 0xff, 0xff]);
    assert_eq!(events(&batch(&[stored], None)), [Err(EventError::Malformed)]);
}

#[test]
fn deep_nesting_needs_no_stack() {
    let mut deep = vec![0x91; 1 << 20];
    deep.push(0xc0);
    assert_eq!(events(&batch(&[deep, cleared()], None)), [Err(EventError::NoTag), Ok(Event::Cleared)]);
}

#[test]
fn hashes_of_every_kind_are_their_low_64_bits() {
    let mut digest = [0_u8; 32];
    digest[24..].copy_from_slice(&0x0123_4567_89ab_cdef_u64.to_be_bytes());
    let mut event = Vec::new();
    msg::write_array_len(&mut event, 2).unwrap();
    msg::write_str(&mut event, "BlockRemoved").unwrap();
    msg::write_array_len(&mut event, 4).unwrap();
    msg::write_uint(&mut event, 5).unwrap();
    msg::write_sint(&mut event, -2).unwrap();
    msg::write_uint(&mut event, u64::MAX).unwrap();
    msg::write_bin(&mut event, &digest).unwrap();
    let payload = batch(&[event], None);
    let decoded = events(&payload);
    let Ok(Event::Removed(removed)) = &decoded[0] else { panic!("{decoded:?}") };
    assert_eq!(removed.hashes, [5, u64::MAX - 1, u64::MAX, 0x0123_4567_89ab_cdef].map(EngineHash));
}

#[test]
fn frames_of_both_replay_formats() {
    let seq = 7_u64.to_be_bytes();
    let end = u64::MAX.to_be_bytes();
    assert_eq!(live_frames(&[&b"topic"[..], &seq, b"payload"]), Ok((7, &b"payload"[..])));
    assert_eq!(live_frames(&[&b"topic"[..], &seq[1..], b"payload"]), Err(FrameError::Seq));
    assert_eq!(live_frames(&[&seq[..], b"payload"]), Err(FrameError::Count));
    let batch = Ok(Reply::Batch { seq: 7, payload: b"payload" });
    assert_eq!(replay_frames(&[&b""[..], &seq, b"payload"]), batch);
    assert_eq!(replay_frames(&[&b""[..], b"topic", &seq, b"payload"]), batch);
    assert_eq!(replay_frames(&[&b""[..], &end, b""]), Ok(Reply::End));
    assert_eq!(replay_frames(&[&b""[..], b"", &end, b""]), Ok(Reply::End));
    assert_eq!(replay_frames::<&[u8]>(&[]), Err(FrameError::Count));
}
