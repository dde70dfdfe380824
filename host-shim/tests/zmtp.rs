//! Peers on the wire: hostile ones, and libzmq.

mod harness;

use harness::{config, free_port, recorded, until};
use host_shim::HostShim;
use inference_cache_core::ingest::State;
use std::process::Stdio;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const SCENARIO: &str = "vllm-0.32.0/cbor-bs32-seed0-bytes";
const READY: &[u8] = b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03PUB";

fn greeting() -> Vec<u8> {
    let mut greeting = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01NULL".to_vec();
    greeting.resize(64, 0);
    greeting
}

/// Accepts host-shim and shakes hands as a PUB.
async fn accept(listener: &TcpListener) -> TcpStream {
    let (mut stream, _) = listener.accept().await.unwrap();
    stream.write_all(&[&greeting()[..], READY].concat()).await.unwrap();
    let mut theirs = [0; 64 + 27 + 3];
    stream.read_exact(&mut theirs).await.unwrap();
    assert_eq!(&theirs[..10], b"\xff\0\0\0\0\0\0\0\0\x7f");
    assert_eq!(&theirs[64..], b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB\0\x01\x01");
    stream
}

/// Connects to host-shim's socket, which is bound soon after the start.
async fn connect(port: u16) -> TcpStream {
    for _ in 0..1000 {
        if let Ok(stream) = TcpStream::connect(("127.0.0.1", port)).await {
            return stream;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("never bound");
}

/// The batch `seq` of the recording, as frames.
fn batch(seq: usize) -> Vec<u8> {
    let frames = &recorded(SCENARIO, "sub")[seq];
    let mut out = Vec::new();
    for (nth, frame) in frames.iter().enumerate() {
        out.push(2 | u8::from(nth + 1 < frames.len()));
        out.extend((frame.len() as u64).to_be_bytes());
        out.extend(frame);
    }
    out
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hostile_publisher_is_dropped_and_asked_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let shim = HostShim::start(config(&format!("{{ endpoint: 'tcp://127.0.0.1:{port}' }}"))).await.unwrap();
    let attacks: [&[u8]; 4] = [
        // A frame of 2^40 bytes, one of 2^64 - 1, reserved flags, a malformed command.
        b"\x02\0\0\x01\0\0\0\0\0",
        b"\x03\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\xf0\x00",
        b"\x04\x01\xff",
    ];
    for attack in attacks {
        let mut stream = accept(&listener).await;
        stream.write_all(attack).await.unwrap();
        assert_eq!(stream.read(&mut [0; 16]).await.unwrap_or(0), 0, "closed");
    }
    // Not even a handshake.
    let (mut stream, _) = listener.accept().await.unwrap();
    stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
    drop(stream);

    let mut stream = accept(&listener).await;
    stream.write_all(b"\x04\x0b\x04PING\0\x0aping").await.unwrap();
    let mut pong = [0; 11];
    stream.read_exact(&mut pong).await.unwrap();
    assert_eq!(&pong, b"\x04\x09\x04PONGping");
    // Byte by byte.
    for byte in batch(0) {
        stream.write_all(&[byte]).await.unwrap();
    }
    until("the batch", async || shim.sources()[0].last_seq == Some(0)).await;
    shim.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bound_socket_has_several_publishers() {
    let port = free_port();
    let events = format!("{{ endpoint: 'tcp://127.0.0.1:{port}', mode: bind }}");
    let shim = HostShim::start(config(&events)).await.unwrap();
    let mut bad = connect(port).await;
    bad.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let _silent = connect(port).await;
    let mut first = connect(port).await;
    first.write_all(&[&greeting()[..], READY, &batch(0)].concat()).await.unwrap();
    until("the first batch", async || shim.sources()[0].last_seq == Some(0)).await;
    // The engine's connection is replaced before the old one is noticed to be dead.
    let mut second = connect(port).await;
    second.write_all(&[&greeting()[..], READY, &batch(1)].concat()).await.unwrap();
    until("the second batch", async || shim.sources()[0].last_seq == Some(1)).await;
    drop(first);
    second.write_all(&batch(2)).await.unwrap();
    until("the third batch", async || shim.sources()[0].last_seq == Some(2)).await;
    assert!(shim.sources()[0].connected);
    drop(second);
    until("the loss", async || !shim.sources()[0].connected).await;
    shim.shutdown().await;
}

/// libzmq, through pyzmq: Unix sockets in both directions, and replay from a ROUTER in both framings.
#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::print_stderr, reason = "says that nothing was tested")]
async fn libzmq_over_ipc_and_replay() {
    let Ok(python) = std::env::var("INFERENCE_CACHE_PYTHON") else {
        eprintln!("skipped: INFERENCE_CACHE_PYTHON names no interpreter with pyzmq");
        return;
    };
    let harness = format!("{}/tests/harness", env!("CARGO_MANIFEST_DIR"));
    let frames = format!("{}/../tests-data/kv-events/{SCENARIO}/frames.jsonl", env!("CARGO_MANIFEST_DIR"));
    let start = |arguments: &[&str]| {
        let mut command = tokio::process::Command::new(&python);
        command.args(arguments).stdin(Stdio::piped()).kill_on_drop(true);
        command.spawn().unwrap()
    };
    let last = recorded(SCENARIO, "sub").len() as u64 - 1;
    for (mode, how) in [("connect", "bind"), ("bind", "connect")] {
        let endpoint = format!("ipc://{}/kv-{}-{mode}", std::env::temp_dir().display(), std::process::id());
        let shim =
            HostShim::start(config(&format!("{{ endpoint: '{endpoint}', mode: {mode} }}"))).await.unwrap();
        let _publisher = start(&[&format!("{harness}/publish.py"), how, &endpoint, &frames]);
        until("the last batch", async || shim.sources()[0].last_seq == Some(last)).await;
        shim.shutdown().await;
        let _ = std::fs::remove_file(endpoint.trim_start_matches("ipc://"));
    }
    for framing in ["topic", "bare"] {
        let replay = format!("tcp://127.0.0.1:{}", free_port());
        let live = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = live.local_addr().unwrap().port();
        let _router = start(&[&format!("{harness}/replay.py"), &replay, &frames, framing]);
        let events = format!("{{ endpoint: 'tcp://127.0.0.1:{port}', replay: '{replay}' }}");
        let shim = HostShim::start(config(&events)).await.unwrap();
        let mut stream = accept(&live).await;
        // The last batch alone: the others come by replay.
        stream.write_all(&batch(usize::try_from(last).unwrap())).await.unwrap();
        until("the replay", async || {
            let source = &shim.sources()[0];
            source.last_seq == Some(last) && source.state == State::Synced && source.stats.replayed > last
        })
        .await;
        assert!(shim.view().await.unwrap().entries > 0);
        shim.shutdown().await;
    }
}
