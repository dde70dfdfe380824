//! The decoder: any payload. No panic, and nothing read costs more memory than a multiple of the payload.
#![no_main]

use inference_cache_core::events::{Batch, Event, shape};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|payload: &[u8]| {
    assert!(shape(payload).len() < 4096);
    let Ok(batch) = Batch::decode(payload) else { return };
    let _ = batch.rank();
    let mut values = 0;
    for event in batch.events() {
        values += match event {
            Ok(Event::Stored(stored)) => stored.hashes.len() + stored.tokens.len() + stored.extra_keys.len(),
            Ok(Event::Removed(removed)) => removed.hashes.len(),
            Ok(_) | Err(_) => 0,
        };
    }
    assert!(values <= payload.len());
});
