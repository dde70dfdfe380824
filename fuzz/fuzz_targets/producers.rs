//! What producers send over gRPC: any bytes as a `CacheStateUpdate` and as a `CacheEvent`. No panic, and what comes out is
//! within the limits, however little it took to ask for it.
#![no_main]

use host_shim::producers::{event_from_bytes, limits, update_from_bytes};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(update) = update_from_bytes(bytes) {
        let entries: usize = update.prefixes.iter().map(|prefixes| prefixes.entries.len()).sum();
        assert!(entries <= limits::ENTRIES && entries <= bytes.len());
    }
    let _ = event_from_bytes(bytes);
});
