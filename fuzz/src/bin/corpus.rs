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
    Ok(())
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
