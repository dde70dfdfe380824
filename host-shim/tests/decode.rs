//! Streams made readable.

mod harness;

use harness::{distinct_ports, message, publisher, recorded};
use host_shim::decode::{self, Printer};
use std::path::{Path, PathBuf};
use zeromq::SocketSend;

fn recording(scenario: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests-data/kv-events").join(scenario).join("frames.jsonl")
}

fn decoded(path: &Path, tokens: bool) -> String {
    let mut out = Vec::new();
    let mut printer = Printer::new(&mut out, tokens);
    decode::file(path, &mut printer).unwrap();
    printer.finish().unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn a_recording_is_readable_and_keeps_its_tokens() {
    let path = recording("vllm-0.32.0/lora-cbor-bs32");
    let text = decoded(&path, false);
    let first = text.lines().next().unwrap();
    assert!(first.starts_with("seq=0 rank=0 age=- BlockStored blocks="), "{first}");
    assert!(text.contains("block_size=32") && text.contains("adapter=ad-"), "{text}");
    assert!(text.contains("recomputed"), "{text}");
    assert!(text.contains("block sizes: 32 (") && text.contains("refused:     none"), "{text}");
    assert!(!text.contains("token_ids"));
    assert!(decoded(&path, true).contains("token_ids=["));
    let hybrid = decoded(&recording("vllm-0.32.0/swa-cbor-bs32"), false);
    assert!(hybrid.contains("kind=sliding_window") && hybrid.contains("BlockRemoved"), "{hybrid}");
}

#[test]
fn what_cannot_be_read_is_described() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("payload-{}", std::process::id()));
    // [1.0, [["BlockStored", 7], ["Other"]]]
    std::fs::write(&path, b"\x92\xcb\x3f\xf0\0\0\0\0\0\0\x92\x92\xabBlockStored\x07\x91\xa5Other").unwrap();
    let text = decoded(&path, false);
    assert!(text.contains("seq=- rank=- age=- refused: field"), "{text}");
    assert!(text.contains("unknown"), "{text}");
    std::fs::write(&path, b"\xc1").unwrap();
    assert!(decoded(&path, false).contains("refused:"));
    std::fs::remove_file(&path).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_is_listened_to() {
    let port = distinct_ports(1)[0];
    let mut engine = publisher(port).await;
    let batches = recorded("vllm-0.32.0/cbor-bs32-seed0-bytes", "sub");
    let (ended, end) = tokio::sync::oneshot::channel::<()>();
    let sending = tokio::spawn(async move {
        for _ in 0..40 {
            for batch in &batches[..2] {
                engine.send(message(batch)).await.unwrap();
            }
            tokio::time::sleep(std::time::Duration::from_millis(25)).await;
        }
        ended.send(()).unwrap();
        engine
    });
    let mut out = Vec::new();
    let mut printer = Printer::new(&mut out, false);
    let endpoint = format!("tcp://127.0.0.1:{port}").parse().unwrap();
    let stop = Box::pin(async move { end.await.unwrap() });
    decode::live(&endpoint, None, &mut printer, stop).await.unwrap();
    printer.finish().unwrap();
    drop(sending.await.unwrap());
    let text = String::from_utf8(out).unwrap();
    assert!(text.contains("seq=0 rank=0 age=") && text.contains("seq=1"), "{text}");
}
