//! A source between a live stream and a replay socket, both hostile: any frames in any order. No panic; whatever is sent,
//! the index is what the source says that it holds, and what is kept stays within the limits.
//!
//! Input: a sequence of `[kind, length u16 LE, bytes]`; kind 0 is a live payload with the next number, 1 a live payload
//! with a number in front, 2 a replay's payload, 3 raw replay frames, split at zero bytes, 4 and above are calls.
#![no_main]

use inference_cache_core::events::{Reply, replay_frames};
use inference_cache_core::hash::{BlockHash, BlockSize};
use inference_cache_core::ingest::{Limits, ReplayRequest, Sink, Source, Stored};
use libfuzzer_sys::fuzz_target;
use std::collections::HashSet;

#[derive(Default)]
struct Index(HashSet<(String, BlockHash)>);

impl Sink for Index {
    fn stored(&mut self, stored: Stored<'_>) {
        self.0.extend(stored.hashes.iter().map(|&hash| (stored.adapter.to_owned(), hash)));
    }

    fn removed(&mut self, adapter: &str, hashes: &[BlockHash]) {
        hashes.iter().for_each(|&hash| drop(self.0.remove(&(adapter.to_owned(), hash))));
    }

    fn cleared(&mut self) {
        self.0.clear();
    }
}

fuzz_target!(|input: &[u8]| {
    let limits = Limits {
        blocks: 4096,
        orphans: 16,
        orphan_tokens: 4096,
        held_batches: 16,
        held_bytes: 1 << 16,
        group_to: BlockSize::new(16),
        ..Limits::default()
    };
    let (mut source, mut index) = (Source::new(true, limits), Index::default());
    let mut request: Option<ReplayRequest> = None;
    let mut rest = input;
    let (mut now, mut live) = (0, 0);
    while let [kind, low, high, tail @ ..] = rest {
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(tail.len());
        let (bytes, tail) = tail.split_at(length);
        rest = tail;
        now += 50;
        let ticket = request.map_or(0, |request| request.ticket);
        match kind % 10 {
            0 => {
                source.batch(live, bytes, now, &mut index);
                live += 1;
            }
            1 => {
                if let Some((seq, payload)) = bytes.split_first() {
                    live = u64::from(*seq);
                    source.batch(live, payload, now, &mut index);
                    live += 1;
                }
            }
            2 => {
                if let Some((seq, payload)) = bytes.split_first() {
                    source.replayed(ticket, u64::from(*seq), payload, now, &mut index);
                }
            }
            3 => {
                let frames: Vec<&[u8]> = bytes.split(|&byte| byte == 0).collect();
                match replay_frames(&frames) {
                    Ok(Reply::Batch { seq, payload }) => {
                        source.replayed(ticket, seq, payload, now, &mut index)
                    }
                    Ok(Reply::End) => source.replay_ended(ticket, true, now, &mut index),
                    Err(error) => source.refuse(error.reason()),
                }
            }
            4 => source.connected(),
            5 => request = source.replay_request(now).or(request),
            6 => source.replay_ended(ticket, bytes.is_empty(), now, &mut index),
            7 => {
                now += 30_000;
                source.tick(now);
            }
            8 => source.process_started(length as f64, &mut index),
            _ => source.lost(&mut index),
        }
        assert!(
            index.0.len() <= 4096 * 2 && source.map_bytes() < 16 << 20 && source.waiting_blocks() <= 4096
        );
    }
});
