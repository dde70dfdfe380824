//! The event sockets, read by two independent implementations of ZeroMQ.

mod support;

use engine_sim::EngineSim;
use engine_sim::config::Release;
use serde_json::{Value, json};
use std::process::Stdio;
use support::{PATIENCE, ask, config};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage};

#[tokio::test]
async fn batches_arrive_in_order_and_the_last_ones_can_be_replayed() {
    for release in [Release::V0_22, Release::V0_32] {
        let mut config = config();
        config.cache.release = release;
        let engine = EngineSim::start(config).await.unwrap();
        let mut subscriber = SubSocket::new();
        subscriber.connect(&engine.endpoints().unwrap().events).await.unwrap();
        subscriber.subscribe("").await.unwrap();
        let live = first_batches(&engine, &mut subscriber).await;

        let mut dealer = DealerSocket::new();
        dealer.connect(engine.endpoints().unwrap().replay.as_ref().unwrap()).await.unwrap();
        // Malformed: no empty frame, a short number. Neither is answered, both leave the socket working.
        dealer.send(frames([&0u64.to_be_bytes()])).await.unwrap();
        dealer.send(frames([b"", b"short"])).await.unwrap();
        dealer.send(frames([b"", &0u64.to_be_bytes()])).await.unwrap();
        // Of all batches the last six are kept.
        let kept = &live[live.len() - 6..];
        for (seq, payload) in kept {
            let reply = receive(&mut dealer).await;
            assert_eq!(reply[reply.len() - 2..], [seq.to_be_bytes().to_vec(), payload.clone()]);
            assert_eq!(reply[0], b"");
            match release {
                Release::V0_22 => assert_eq!(reply.len(), 3),
                Release::V0_32 => assert_eq!((reply.len(), &reply[1][..]), (4, &b"kv@test"[..])),
            }
        }
        let end = receive(&mut dealer).await;
        assert_eq!(end[end.len() - 2..], [vec![0xff; 8], vec![]]);
        assert_eq!(end.len(), if release == Release::V0_22 { 3 } else { 4 });

        dealer.send(frames([b"", &1_000_000u64.to_be_bytes()])).await.unwrap();
        assert_eq!(receive(&mut dealer).await, end);
        engine.stop().await;
    }
}

#[tokio::test]
async fn a_reset_is_announced_with_the_next_request() {
    let engine = EngineSim::start(config()).await.unwrap();
    let mut subscriber = SubSocket::new();
    subscriber.connect(&engine.endpoints().unwrap().events).await.unwrap();
    subscriber.subscribe("kv@").await.unwrap();
    first_batches(&engine, &mut subscriber).await;
    assert_eq!(ask(&engine, "/reset_prefix_cache", Value::Null).await, json!({"success": true}));
    complete(&engine, 9000).await;
    let (_, payload) = batch(&mut subscriber).await;
    // [ts, [{"type": "AllBlocksCleared"}, {"type": "BlockStored", ...
    assert_eq!(payload[10..12], [0x92, 0x81]);
    assert_eq!(&payload[12..34], b"\xa4type\xb0AllBlocksCleared");
}

/// libzmq, if INFERENCE_CACHE_PYTHON names a Python that has pyzmq.
#[tokio::test]
async fn libzmq_reads_batches_and_replays() {
    let Some(python) = std::env::var_os("INFERENCE_CACHE_PYTHON") else {
        #[allow(clippy::print_stderr, reason = "says that nothing was tested")]
        {
            eprintln!("INFERENCE_CACHE_PYTHON is not set: libzmq is not tried");
        }
        return;
    };
    let engine = EngineSim::start(config()).await.unwrap();
    let endpoints = engine.endpoints().unwrap();
    let mut client = tokio::process::Command::new(python)
        .arg("-c")
        .arg(LIBZMQ_CLIENT)
        .args([&endpoints.events, endpoints.replay.as_ref().unwrap()])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut output = BufReader::new(client.stdout.take().unwrap());
    let mut line = String::new();
    let connected = async {
        // Batches of before the subscription are lost: one request after the other until the client has one.
        for first in 0.. {
            complete(&engine, 1000 + first * 32).await;
            let wait = std::time::Duration::from_millis(100);
            if tokio::time::timeout(wait, output.read_line(&mut line)).await.is_ok() {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, connected).await.unwrap();
    assert_eq!(line, "live kv@test\n");
    let mut rest = String::new();
    tokio::time::timeout(PATIENCE, output.read_to_string(&mut rest)).await.unwrap().unwrap();
    assert_eq!(rest, "replayed and ended\n");
}

const LIBZMQ_CLIENT: &str = r#"
import struct, sys, zmq
context = zmq.Context()
sub = context.socket(zmq.SUB)
sub.setsockopt(zmq.RCVTIMEO, 15000)
sub.setsockopt(zmq.SUBSCRIBE, b"")
sub.connect(sys.argv[1])
topic, seq, payload = sub.recv_multipart()
print("live", topic.decode(), flush=True)
dealer = context.socket(zmq.DEALER)
dealer.setsockopt(zmq.RCVTIMEO, 15000)
dealer.connect(sys.argv[2])
dealer.send_multipart([b"", seq])
empty, topic, replayed, again = dealer.recv_multipart()
assert (empty, topic, replayed, again) == (b"", b"kv@test", seq, payload)
while True:
    empty, topic, number, payload = dealer.recv_multipart()
    if number == b"\xff" * 8:
        assert (topic, payload) == (b"", b"")
        break
print("replayed and ended", flush=True)
context.destroy(linger=0)
"#;

type Batch = (u64, Vec<u8>);

/// Sends requests until the subscription works, and eight more; the batches that arrived, in order.
async fn first_batches(engine: &EngineSim, subscriber: &mut SubSocket) -> Vec<Batch> {
    let mut first = 0;
    let mut batches = Vec::new();
    while batches.is_empty() {
        assert!(first < 200, "nothing arrives");
        complete(engine, 1000 + first * 20).await;
        first += 1;
        let wait = std::time::Duration::from_millis(50);
        batches.extend(tokio::time::timeout(wait, batch(subscriber)).await.ok());
    }
    for next in first..first + 8 {
        complete(engine, 1000 + next * 20).await;
    }
    while batches.last().is_none_or(|(seq, _)| *seq + 1 < first as u64 + 8) {
        batches.push(batch(subscriber).await);
    }
    assert!(batches.windows(2).all(|pair| pair[0].0 + 1 == pair[1].0));
    batches
}

/// A request that fills one block, so that one batch is published.
async fn complete(engine: &EngineSim, first: u32) {
    let prompt: Vec<u32> = (first..first + 20).collect();
    ask(engine, "/v1/completions", json!({"prompt": prompt, "max_tokens": 1})).await;
}

async fn batch(subscriber: &mut SubSocket) -> Batch {
    let message = receive(subscriber).await;
    let [topic, seq, payload] = &message[..] else { panic!("{} frames", message.len()) };
    assert_eq!(topic, b"kv@test");
    (u64::from_be_bytes(seq[..].try_into().unwrap()), payload.clone())
}

async fn receive(socket: &mut impl SocketRecv) -> Vec<Vec<u8>> {
    let message = tokio::time::timeout(PATIENCE, socket.recv()).await.unwrap().unwrap();
    message.into_vec().into_iter().map(Vec::from).collect()
}

fn frames<const N: usize>(frames: [&[u8]; N]) -> ZmqMessage {
    let frames: Vec<bytes::Bytes> = frames.iter().map(|frame| bytes::Bytes::copy_from_slice(frame)).collect();
    ZmqMessage::try_from(frames).unwrap()
}
