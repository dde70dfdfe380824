//! A ZeroMQ peer: any bytes, arriving in pieces. No panic; what is held grows with what arrived, not with what was
//! announced, and an error is for ever.
#![no_main]

use host_shim::ingest::zmtp::{Decoder, Item, Limits};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((&step, bytes)) = input.split_first() else { return };
    let limits = Limits { frame_bytes: 4096, frames: 4, message_bytes: 8192 };
    let mut decoder = Decoder::new(limits);
    let mut arrived = 0;
    for piece in bytes.chunks(usize::from(step).max(1)) {
        arrived += piece.len();
        decoder.buffer().extend_from_slice(piece);
        assert!(decoder.buffer().capacity() <= 2 * arrived + (256 << 10));
        loop {
            match decoder.poll() {
                Ok(Some(Item::Message(frames))) => {
                    assert!(!frames.is_empty() && frames.len() <= limits.frames);
                    assert!(frames.iter().map(|frame| frame.len()).sum::<usize>() <= limits.message_bytes);
                }
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => {
                    assert!(decoder.poll().is_err());
                    return;
                }
            }
        }
    }
});
