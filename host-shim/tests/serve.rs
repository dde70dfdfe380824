//! The whole service over real sockets: recorded events in, replication out.

mod harness;

use harness::{Follower, client, config, free_port, heard_by, message, publisher, recorded, request, until};
use host_shim::HostShim;
use inference_cache_core::ingest::State;
use inference_cache_core::replication::proto::{FetchArtifactRequest, SubscribeRequest};
use sha2::{Digest, Sha256};
use tonic::Code;
use zeromq::{RouterSocket, Socket, SocketRecv, SocketSend};

const SCENARIO: &str = "vllm-0.32.0/cbor-bs32-seed0-bytes";

async fn heard(shim: &HostShim, publisher: &mut zeromq::PubSocket) {
    heard_by(shim, 0, publisher).await;
}

async fn last_seq(shim: &HostShim, seq: u64) {
    until("the last batch", async || shim.sources()[0].last_seq == Some(seq)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recorded_session_reaches_subscribers() {
    let port = free_port();
    let mut publisher = publisher(port).await;
    let shim = HostShim::start(config(&format!("{{ endpoint: 'tcp://127.0.0.1:{port}' }}"))).await.unwrap();
    heard(&shim, &mut publisher).await;
    let mut grpc = client(&shim).await;
    let mut early = grpc.subscribe(request("early")).await.unwrap().into_inner();
    let mut early_follower = Follower::default();
    early_follower.apply(early.message().await.unwrap().unwrap());

    // Garbage between the batches is counted and skipped.
    let batches = recorded(SCENARIO, "sub");
    for batch in &batches {
        publisher.send(message(&[b"".to_vec(), b"short".to_vec(), b"x".to_vec()])).await.unwrap();
        publisher.send(message(batch)).await.unwrap();
    }
    last_seq(&shim, batches.len() as u64 - 1).await;
    early_follower.catch_up(&mut early, &shim).await;
    assert!(!early_follower.entries.is_empty());
    assert_eq!(early_follower.directory.models[0].block_sizes, [32]);

    // A late subscriber gets the same in a snapshot, and one that comes back the frames that it missed.
    let mut late = grpc.subscribe(request("late")).await.unwrap().into_inner();
    let mut late_follower = Follower::default();
    late_follower.catch_up(&mut late, &shim).await;
    assert_eq!((late_follower.snapshots, late_follower.seq), (1, early_follower.seq));
    let resume = SubscribeRequest { epoch: shim.epoch(), seq: 0, ..request("back") };
    let mut back = grpc.subscribe(resume).await.unwrap().into_inner();
    let first = back.message().await.unwrap().unwrap();
    assert_eq!((first.base_seq, first.seq), (0, 1));

    // Another stream of the same name ends the older one.
    let _newer = grpc.subscribe(request("late")).await.unwrap();
    let status = loop {
        if let Err(status) = late.message().await {
            break status;
        }
    };
    assert_eq!(status.code(), Code::Aborted);

    let http = format!("http://{}", shim.http_addr());
    let metrics = reqwest::get(format!("{http}/metrics")).await.unwrap().text().await.unwrap();
    assert!(metrics.contains("inferencecache_server_up 1"), "{metrics}");
    assert!(metrics.contains(
        "inferencecache_source_decode_errors_total{replica=\"engine-0\",rank=\"0\",reason=\"frame_seq\"}"
    ));
    assert_eq!(reqwest::get(format!("{http}/healthz")).await.unwrap().status(), 200);
    assert_eq!(reqwest::get(format!("{http}/readyz")).await.unwrap().status(), 200);
    let snapshot: serde_json::Value = reqwest::get(format!("http://{}/snapshot", shim.snapshot_addr()))
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(snapshot["sources"][0]["state"], "synced");
    assert_eq!(snapshot["replicas"][0]["prefixCount"], early_follower.entries.len());

    let address = shim.grpc_addr();
    shim.shutdown().await;
    let ended = loop {
        match early.message().await {
            Ok(Some(_)) => {}
            Ok(None) => break Code::Ok,
            Err(status) => break status.code(),
        }
    };
    assert_eq!(ended, Code::Unavailable);
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_start_learns_the_ring_by_replay() {
    // Both framings, as recorded.
    for scenario in ["vllm-0.32.0/cbor-bs32-seed0-int", "vllm-0.22.1/v022-cbor-bs16-seed0-int"] {
        let (events, ring) = (free_port(), free_port());
        let _publisher = publisher(events).await;
        let mut router = RouterSocket::new();
        router.bind(&format!("tcp://127.0.0.1:{ring}")).await.unwrap();
        let replies = recorded(scenario, "replay_reply");
        let end = 1 + replies.iter().position(|reply| reply[reply.len() - 2] == [0xff; 8]).unwrap();
        let batches = end as u64 - 1;
        let answering = tokio::spawn(async move {
            while let Ok(request) = router.recv().await {
                let request = request.into_vec();
                assert_eq!((request.len(), request[1].len()), (3, 0));
                for reply in &replies[..end] {
                    let mut frames = vec![request[0].to_vec()];
                    frames.extend(reply.iter().cloned());
                    router.send(message(&frames)).await.unwrap();
                }
            }
        });
        let endpoints =
            format!("{{ endpoint: 'tcp://127.0.0.1:{events}', replay: 'tcp://127.0.0.1:{ring}' }}");
        let shim = HostShim::start(config(&endpoints)).await.unwrap();
        last_seq(&shim, batches - 1).await;
        until("synced", async || shim.sources()[0].state == State::Synced).await;
        assert!(shim.view().await.unwrap().entries > 0);
        shim.shutdown().await;
        answering.abort();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publisher_may_come_late_go_and_come_back() {
    let port = free_port();
    let shim = HostShim::start(config(&format!("{{ endpoint: 'tcp://127.0.0.1:{port}' }}"))).await.unwrap();
    let batches = recorded(SCENARIO, "sub");
    for round in 1..=2 {
        let mut publisher = publisher(port).await;
        until("the publisher", async || shim.sources()[0].connected).await;
        let seen = shim.sources()[0].stats.decode_errors.get("frame_count").copied().unwrap_or(0);
        until("the subscription", async || {
            publisher.send(message(&[b"probe".to_vec()])).await.unwrap();
            shim.sources()[0].stats.decode_errors.get("frame_count").copied().unwrap_or(0) > seen
        })
        .await;
        // The second process has another history under the same numbers.
        let shift = round as usize - 1;
        for (seq, batch) in batches[shift..shift + 2].iter().enumerate() {
            let numbered = [batch[0].clone(), (seq as u64).to_be_bytes().to_vec(), batch[2].clone()];
            publisher.send(message(&numbered)).await.unwrap();
        }
        until("the epoch", async || {
            shim.sources()[0].epoch == round && shim.sources()[0].last_seq == Some(1)
        })
        .await;
        drop(publisher);
        until("the loss", async || !shim.sources()[0].connected).await;
    }
    shim.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_subscriber_is_cut() {
    let port = free_port();
    let mut publisher = publisher(port).await;
    let config = config(&format!("{{ endpoint: 'tcp://127.0.0.1:{port}', groupTo: 1 }}"));
    let shim = HostShim::start_with(config, 4096).await.unwrap();
    heard(&shim, &mut publisher).await;
    let mut stream = client(&shim).await.subscribe(request("slow")).await.unwrap().into_inner();
    // HTTP/2 windows take 64 KiB and more before the server's queue grows.
    let event = |seq: u64| {
        let mut out = vec![0x93, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0, 0x91, 0x95];
        rmp::encode::write_str(&mut out, "BlockStored").unwrap();
        rmp::encode::write_array_len(&mut out, 4000).unwrap();
        (0..4000).for_each(|n| rmp::encode::write_u64(&mut out, seq << 32 | n).unwrap());
        rmp::encode::write_nil(&mut out).unwrap();
        rmp::encode::write_array_len(&mut out, 4000).unwrap();
        (0..4000).for_each(|n| rmp::encode::write_u32(&mut out, (seq << 16) as u32 | n).unwrap());
        rmp::encode::write_u32(&mut out, 1).unwrap();
        out.push(0x00);
        out
    };
    for seq in 0..60_u64 {
        publisher.send(message(&[vec![], seq.to_be_bytes().to_vec(), event(seq)])).await.unwrap();
    }
    last_seq(&shim, 59).await;
    let status = loop {
        match stream.message().await {
            Ok(frame) => assert!(frame.is_some()),
            Err(status) => break status,
        }
    };
    assert_eq!(status.code(), Code::ResourceExhausted);
    // A snapshot larger than the buffer still goes through.
    let mut again = client(&shim).await.subscribe(request("slow")).await.unwrap().into_inner();
    let mut follower = Follower::default();
    follower.catch_up(&mut again, &shim).await;
    assert_eq!(follower.entries.len(), 60 * 4000);
    shim.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn artifacts_come_by_digest() {
    let shim = HostShim::start(config("{ endpoint: 'tcp://127.0.0.1:1' }")).await.unwrap();
    let mut grpc = client(&shim).await;
    let mut stream = grpc.subscribe(request("one")).await.unwrap().into_inner();
    let mut follower = Follower::default();
    follower.catch_up(&mut stream, &shim).await;
    let model = &follower.directory.models[0];
    let fetch = FetchArtifactRequest { digest: model.artifact_digest.clone() };
    let mut chunks = grpc.fetch_artifact(fetch).await.unwrap().into_inner();
    let mut artifact = Vec::new();
    while let Some(chunk) = chunks.message().await.unwrap() {
        assert!(chunk.data.len() <= 64 << 10);
        artifact.extend(chunk.data);
    }
    assert_eq!(artifact.len() as u64, model.artifact_size);
    assert_eq!(Sha256::digest(&artifact)[..], model.artifact_digest[..]);
    let unknown = grpc.fetch_artifact(FetchArtifactRequest { digest: vec![0; 32] }).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
    shim.shutdown().await;
}

/// libzmq, through pyzmq, in both directions of connecting.
#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::print_stderr, reason = "says that nothing was tested")]
async fn libzmq_publishers_are_understood() {
    let Ok(python) = std::env::var("INFERENCE_CACHE_PYTHON") else {
        eprintln!("skipped: INFERENCE_CACHE_PYTHON names no interpreter with pyzmq");
        return;
    };
    let batches = recorded(SCENARIO, "sub");
    let frames = format!("{}/../tests-data/kv-events/{SCENARIO}/frames.jsonl", env!("CARGO_MANIFEST_DIR"));
    for (mode, how) in [("connect", "bind"), ("bind", "connect")] {
        let port = free_port();
        let endpoint = format!("tcp://127.0.0.1:{port}");
        let shim =
            HostShim::start(config(&format!("{{ endpoint: '{endpoint}', mode: {mode} }}"))).await.unwrap();
        let script = format!("{}/tests/harness/publish.py", env!("CARGO_MANIFEST_DIR"));
        let mut publisher = tokio::process::Command::new(&python)
            .args([&script, how, &endpoint, &frames])
            .stdin(std::process::Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        last_seq(&shim, batches.len() as u64 - 1).await;
        assert!(shim.view().await.unwrap().entries > 0);
        assert_eq!(shim.sources()[0].stats.gaps, 0);
        drop(publisher.stdin.take());
        assert!(publisher.wait().await.unwrap().success());
        shim.shutdown().await;
    }
}
