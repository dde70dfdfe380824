//! Writes the seeds of the fuzz targets, `corpus/TARGET/…`, from the recorded engines in `tests-data/kv-events`.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde_json::Value;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR"));
    let data = fuzz.join("../tests-data/kv-events");
    let corpus = fuzz.join("corpus");
    let vectors: Value = serde_json::from_str(&fs::read_to_string(data.join("wire_vectors.json"))?)?;
    let mut events = Seeds::new(corpus.join("events"))?;
    let mut source = Seeds::new(corpus.join("source"))?;
    for payload in payloads(&vectors) {
        events.add(&BASE64_STANDARD.decode(payload)?)?;
    }
    for engine in folders(&data)? {
        for scenario in folders(&engine)? {
            let mut session = Vec::new();
            for line in fs::read_to_string(scenario.join("frames.jsonl"))?.lines() {
                let record: Value = serde_json::from_str(line)?;
                let frames = record["frames"].as_array().into_iter().flatten();
                let frames: Vec<Vec<u8>> = frames
                    .filter_map(Value::as_str)
                    .map(|frame| BASE64_STANDARD.decode(frame))
                    .collect::<std::result::Result<_, _>>()?;
                match (record["src"].as_str(), frames.as_slice()) {
                    (Some("sub"), [_, _, payload]) => {
                        events.add(payload)?;
                        step(&mut session, 0, payload);
                    }
                    (Some("replay_request"), _) => step(&mut session, 5, &[]),
                    (Some("replay_reply"), [.., seq, payload]) => {
                        let number = seq.last().copied().unwrap_or_default();
                        step(&mut session, 2, &[&[number], payload.as_slice()].concat());
                    }
                    _ => {}
                }
            }
            // libFuzzer mutates short inputs best.
            session.chunks(4096).try_for_each(|part| source.add(part))?;
        }
    }
    zmtp(Seeds::new(corpus.join("zmtp"))?)?;
    producers(Seeds::new(corpus.join("producers"))?)
}

/// Greeting, READY, and messages of every framing, in pieces of several sizes.
fn zmtp(mut seeds: Seeds) -> Result<()> {
    let mut session = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01NULL".to_vec();
    session.resize(64, 0);
    session.extend(b"\x04\x27\x05READY\x0bSocket-Type\0\0\0\x04XPUB\x08Identity\0\0\0\0");
    session.extend(b"\x01\x00\x01\x08\0\0\0\0\0\0\0\x07\x00\x03abc\x04\x09\x04PING\0\x0aab");
    session.extend(b"\x02\0\0\0\0\0\0\x01\x00");
    session.resize(session.len() + 256, 7);
    [1, 7, 64, 255].iter().try_for_each(|&step| seeds.add(&[&[step], session.as_slice()].concat()))
}

/// Updates and events in protobuf, written by hand: field number and wire type, length, value.
fn producers(mut seeds: Seeds) -> Result<()> {
    let text = |field: u8, value: &[u8]| [&[field << 3 | 2, value.len() as u8], value].concat();
    let names = [text(1, b"r"), text(2, b"m"), text(3, b"t"), text(4, b"vllm")].concat();
    let chain =
        [text(3, &[1; 8]), text(3, &[2; 32]), text(4, &[16, 16]), vec![0x28, 2], text(6, b"ad")].concat();
    let exact = [text(1, &[3; 16]), vec![0x10, 64]].concat();
    let stats = [text(1, b"r"), vec![0x1d, 0, 0, 0x80, 0x3f]].concat();
    seeds
        .add(&[names.clone(), text(6, &chain), text(6, &exact), text(7, &stats), text(8, b"ad")].concat())?;
    seeds.add(&[vec![8, 2], text(2, b"r"), text(3, b"m"), text(4, b"t"), text(5, &[1; 8])].concat())
}

/// One step of `source`'s input.
fn step(out: &mut Vec<u8>, kind: u8, bytes: &[u8]) {
    let Ok(length) = u16::try_from(bytes.len()) else { return };
    out.push(kind);
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(bytes);
}

struct Seeds {
    folder: PathBuf,
    count: usize,
}

impl Seeds {
    fn new(folder: PathBuf) -> Result<Seeds> {
        fs::create_dir_all(&folder)?;
        Ok(Seeds { folder, count: 0 })
    }

    fn add(&mut self, bytes: &[u8]) -> Result<()> {
        fs::write(self.folder.join(format!("seed-{:05}", self.count)), bytes)?;
        self.count += 1;
        Ok(())
    }
}

fn folders(of: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(of)?.collect::<std::result::Result<Vec<_>, _>>()?;
    let mut folders: Vec<_> =
        entries.into_iter().map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    folders.sort();
    Ok(folders)
}

/// Every `payload_b64` in a document.
fn payloads(value: &Value) -> Vec<&str> {
    match value {
        Value::Array(values) => values.iter().flat_map(payloads).collect(),
        Value::Object(values) => {
            let own = values.get("payload_b64").and_then(Value::as_str);
            own.into_iter().chain(values.values().flat_map(payloads)).collect()
        }
        _ => Vec::new(),
    }
}
