//! The decoder against payloads that the engines' own classes encoded, and against recordings of running engines.
#![cfg(not(target_arch = "wasm32"))]
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

mod recordings;

use inference_cache_core::events::{
    Batch, BlockRemoved, BlockStored, EngineHash, Event, ExtraKey, Reply, live_frames, replay_frames,
};
use serde_json::Value;

const INTS: [u64; 2] = [0xf0e1_d2c3_b4a5_9687, 0x0123_4567_89ab_cdef];
const SIGNED: [i64; 2] = [-1_234_567_890_123_456_789, 0x0123_4567_89ab_cdef];
/// Last 8 bytes, big-endian, of 00..1f and 20..3f.
const DIGESTS: [u64; 2] = [0x1819_1a1b_1c1d_1e1f, 0x3839_3a3b_3c3d_3e3f];
const TOKENS: [u32; 8] = [1, 127, 128, 255, 256, 65_535, 65_536, 151_643];

/// What `wire_vectors.json` says a release's classes were given, restricted to the fields that the release has.
struct Release<'a> {
    stored: Vec<&'a str>,
    removed: Vec<&'a str>,
    sglang: bool,
}

impl Release<'_> {
    fn has(&self, field: &str) -> bool {
        self.stored.contains(&field)
    }

    fn hashes(&self) -> Vec<EngineHash> {
        if self.sglang {
            SIGNED.map(|hash| EngineHash(hash as u64)).into()
        } else {
            INTS.map(EngineHash).into()
        }
    }

    fn stored(&self) -> BlockStored<'static> {
        BlockStored {
            hashes: self.hashes(),
            tokens: TOKENS.to_vec(),
            block_size: 4,
            medium: self.has("medium").then_some("GPU"),
            extra_keys: self.keys(&[(1, ExtraKey::Text("tenant-a"))]),
            group: self.has("group_idx").then_some(0),
            spec_kind: self.has("kv_cache_spec_kind").then_some("full_attention"),
            ..BlockStored::default()
        }
    }

    fn stored_digests(&self) -> BlockStored<'static> {
        BlockStored {
            hashes: DIGESTS.map(EngineHash).into(),
            parent: Some(EngineHash(0xaaaa_aaaa_aaaa_aaaa)),
            ..self.stored()
        }
    }

    fn keys(&self, keys: &[(u32, ExtraKey<'static>)]) -> Vec<(u32, ExtraKey<'static>)> {
        if self.has("extra_keys") { keys.to_vec() } else { Vec::new() }
    }

    fn removed(&self) -> BlockRemoved<'static> {
        BlockRemoved {
            hashes: self.hashes(),
            medium: self.removed.contains(&"medium").then_some("GPU"),
            group: self.removed.contains(&"group_idx").then_some(0),
        }
    }

    fn expected(&self, note: &str) -> (Vec<Event<'static>>, Option<u32>) {
        match note {
            "BlockStored int hashes, root" => (vec![Event::Stored(self.stored())], Some(0)),
            "BlockStored bytes hashes, with parent, cache_salt in extra_keys of block 1" => {
                (vec![Event::Stored(self.stored_digests())], Some(0))
            }
            "LoRA, rank 1" => {
                let name = ExtraKey::Text("ad-a");
                let stored = BlockStored {
                    lora_id: Some(3),
                    lora_name: self.has("lora_name").then_some("ad-a"),
                    extra_keys: self.keys(&[(0, name), (1, name)]),
                    ..self.stored_digests()
                };
                (vec![Event::Stored(stored)], Some(1))
            }
            "offload placeholder: no tokens, block_size 0, medium CPU" => {
                let stored = BlockStored {
                    hashes: vec![EngineHash(DIGESTS[0])],
                    medium: self.has("medium").then_some("CPU"),
                    ..BlockStored::default()
                };
                (vec![Event::Stored(stored)], Some(0))
            }
            "multimodal extra keys (identifier, offset)" => {
                let content = |bytes| ExtraKey::Content(bytes);
                let stored = BlockStored {
                    extra_keys: self.keys(&[
                        (0, content(b"\x92\xa6abc123\xfd")),
                        (1, content(b"\x92\xa6abc123\x00")),
                        (1, content(b"\x92\xa6def456\x02")),
                    ]),
                    ..self.stored_digests()
                };
                (vec![Event::Stored(stored)], Some(0))
            }
            "BlockRemoved" => (vec![Event::Removed(self.removed())], Some(0)),
            "AllBlocksCleared" => (vec![Event::Cleared], Some(0)),
            "mixed batch, rank unset" => {
                (vec![Event::Removed(self.removed()), Event::Cleared, Event::Stored(self.stored())], None)
            }
            "medium CPU_PINNED / salt, rank 2" => {
                let stored = BlockStored {
                    medium: self.has("medium").then_some("CPU_PINNED"),
                    cache_salt: self.has("cache_salt").then_some("tenant-a"),
                    ..self.stored()
                };
                (vec![Event::Stored(stored)], Some(2))
            }
            other => panic!("unknown vector: {other}"),
        }
    }
}

#[test]
fn payloads_of_every_release() {
    let file = recordings::json("wire_vectors.json");
    let vectors = file["vectors"].as_array().unwrap();
    assert_eq!(vectors.len(), 187);
    for vector in vectors {
        let schema = file["schema"].as_array().unwrap();
        let same =
            |entry: &&Value| entry["engine"] == vector["engine"] && entry["version"] == vector["version"];
        let schema = schema.iter().find(same).unwrap();
        let names = |field: &str| {
            schema[field].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect()
        };
        let release = Release {
            stored: names("block_stored_fields"),
            removed: names("block_removed_fields"),
            sglang: vector["engine"] == "sglang",
        };
        let payload = recordings::base64(&vector["payload_b64"]);
        let batch = Batch::decode(&payload).unwrap();
        let events: Vec<_> = batch.events().map(Result::unwrap).collect();
        let place = format!("{} {} {}", vector["engine"], vector["version"], vector["note"]);
        assert_eq!(batch.ts, 1_700_000_000.25, "{place}");
        assert_eq!((events, batch.rank()), release.expected(vector["note"].as_str().unwrap()), "{place}");
    }
}

#[test]
fn every_recorded_frame_decodes() {
    let mut stored = 0;
    for scenario in recordings::scenarios() {
        for record in recordings::records(&scenario) {
            let payload = match record.source.as_str() {
                "sub" => live_frames(&record.frames).unwrap().1,
                "replay_reply" | "replay_reply_REQ" if record.frames.len() > 2 => {
                    match replay_frames(&record.frames).unwrap() {
                        Reply::Batch { payload, .. } => payload,
                        Reply::End => continue,
                    }
                }
                _ => continue,
            };
            for event in Batch::decode(payload).unwrap().events() {
                match event.unwrap_or_else(|error| panic!("{scenario}: {error}")) {
                    Event::Stored(_) => stored += 1,
                    Event::Unknown => panic!("{scenario}: unknown event"),
                    Event::Removed(_) | Event::Cleared => {}
                }
            }
        }
    }
    assert!(stored > 300, "{stored}");
}

#[test]
fn flipped_bytes_never_end_the_decoder() {
    let file = recordings::json("wire_vectors.json");
    for vector in file["vectors"].as_array().unwrap() {
        let payload = recordings::base64(&vector["payload_b64"]);
        for at in 0..payload.len() {
            for bit in [0x01, 0x10, 0x80] {
                let mut damaged = payload.clone();
                damaged[at] ^= bit;
                if let Ok(batch) = Batch::decode(&damaged) {
                    batch.events().for_each(drop);
                }
            }
        }
    }
}
