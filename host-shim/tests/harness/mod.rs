//! A host-shim in this process, publishers for it, and a subscriber that keeps what it is told.
#![allow(dead_code)]

use base64::Engine;
use host_shim::replication::proto::replication_client::ReplicationClient;
use host_shim::writer::{Dump, Held};
use host_shim::{Config, HostShim};
use inference_cache_core::hash::BlockHash;
use inference_cache_core::replication::frame;
use inference_cache_core::replication::proto::{self, op::Op, payload::Body};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use tonic::transport::Channel;
use zeromq::{PubSocket, Socket, SocketSend, ZmqMessage};

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// One replica with these `events`; everything on ports of the system's choice.
pub(crate) fn config(events: &str) -> Config {
    replicas(&[("engine-0", events)])
}

/// Replicas with these names and `events`, in order; nothing scrapes them.
pub(crate) fn replicas(replicas: &[(&str, &str)]) -> Config {
    Config::from_yaml(&yaml(replicas)).unwrap()
}

/// As [`replicas`], as text.
pub(crate) fn yaml(replicas: &[(&str, &str)]) -> String {
    let mut yaml = format!(
        "listen: {{ grpc: 127.0.0.1:0, http: 127.0.0.1:0, snapshot: 127.0.0.1:0 }}\n\
         models: [{{ name: tiny, path: {} }}]\n\
         replicas:\n",
        artifact().display()
    );
    for (port, (id, events)) in (8000..).zip(replicas) {
        yaml += &format!(
            "- {{ id: {id}, address: 127.0.0.1:{port}, model: tiny, adapters: [ad-a], metrics: {{ enabled: false }}, \
             events: {events} }}\n"
        );
    }
    yaml
}

/// The demo model, compiled once for all tests of the process.
fn artifact() -> &'static Path {
    static ARTIFACT: OnceLock<PathBuf> = OnceLock::new();
    ARTIFACT.get_or_init(|| {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/demo");
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("demo-{}.icart", std::process::id()));
        std::fs::write(&file, host_shim::tokenizer::compile(&model).unwrap()).unwrap();
        file
    })
}

/// A port that was free a moment ago.
pub(crate) fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// `n` ports that were free a moment ago, below those that the system gives to outgoing connections.
pub(crate) fn distinct_ports(n: usize) -> Vec<u16> {
    let start = u16::try_from(std::process::id() * 97 % 12_000).unwrap();
    let ports = (start..start + 12_000).map(|port| 15_000 + port % 12_000);
    ports.filter(|&port| std::net::TcpListener::bind(("127.0.0.1", port)).is_ok()).take(n).collect()
}

/// The first of `n` ports in a row that were free a moment ago.
pub(crate) fn free_ports(n: u16) -> u16 {
    for _ in 0..100 {
        let first = free_port();
        let free = |port: u16| std::net::TcpListener::bind(("127.0.0.1", port)).is_ok();
        if first < u16::MAX - n && (first..first + n).all(free) {
            return first;
        }
    }
    panic!("no {n} free ports in a row");
}

/// Frames of a recording with this source, in order.
pub(crate) fn recorded(scenario: &str, source: &str) -> Vec<Vec<Vec<u8>>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests-data/kv-events")
        .join(scenario)
        .join("frames.jsonl");
    let decode = |frame: &serde_json::Value| {
        base64::engine::general_purpose::STANDARD.decode(frame.as_str().unwrap()).unwrap()
    };
    std::fs::read_to_string(path)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .filter(|record| record["src"] == source)
        .map(|record| record["frames"].as_array().unwrap().iter().map(decode).collect())
        .collect()
}

pub(crate) fn message(frames: &[Vec<u8>]) -> ZmqMessage {
    let frames: Vec<bytes::Bytes> = frames.iter().cloned().map(Into::into).collect();
    ZmqMessage::try_from(frames).unwrap()
}

/// A publisher that binds this port.
pub(crate) async fn publisher(port: u16) -> PubSocket {
    let mut socket = PubSocket::new();
    socket.bind(&format!("tcp://127.0.0.1:{port}")).await.unwrap();
    socket
}

/// Until the subscription of the `nth` source has arrived: a PUB drops what nobody subscribes to.
pub(crate) async fn heard_by(shim: &HostShim, nth: usize, publisher: &mut PubSocket) {
    let probes = || shim.sources().get(nth)?.stats.decode_errors.get("frame_count").copied();
    let before = probes();
    until("the subscription", async || {
        publisher.send(message(&[b"probe".to_vec()])).await.unwrap();
        probes() > before
    })
    .await;
}

/// Waits until `done`, or fails with `what`.
pub(crate) async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !done().await {
        assert!(start.elapsed() < PATIENCE, "waited too long: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

pub(crate) async fn client(shim: &HostShim) -> ReplicationClient<Channel> {
    ReplicationClient::connect(format!("http://{}", shim.grpc_addr())).await.unwrap()
}

pub(crate) fn request(subscriber: &str) -> proto::SubscribeRequest {
    proto::SubscribeRequest { protocol_version: 1, subscriber: subscriber.into(), ..Default::default() }
}

/// A naive subscriber.
#[derive(Default)]
pub(crate) struct Follower {
    pub(crate) epoch: u64,
    pub(crate) seq: u64,
    pub(crate) directory: proto::Directory,
    pub(crate) entries: BTreeSet<(u32, u32, u64)>,
    /// Snapshots received to their end.
    pub(crate) snapshots: usize,
    whole: bool,
    pub(crate) heartbeats: usize,
}

impl Follower {
    pub(crate) fn apply(&mut self, received: proto::Frame) {
        use prost::Message;
        assert!(received.payload.len() <= 64 << 10, "{} bytes", received.payload.len());
        let (header, body) = frame::open(&received.encode_to_vec()).unwrap();
        match body.unwrap() {
            Body::SnapshotBegin(begin) => {
                self.epoch = header.epoch;
                self.seq = header.seq;
                self.entries.clear();
                self.directory = begin.directory.unwrap();
                self.whole = false;
            }
            Body::SnapshotChunk(chunk) => chunk.blocks.iter().for_each(|blocks| self.store(blocks)),
            Body::SnapshotEnd(end) => {
                assert_eq!(end.entries, self.entries.len() as u64);
                self.whole = true;
                self.snapshots += 1;
            }
            Body::Heartbeat(_) => self.heartbeats += 1,
            Body::Delta(delta) => {
                assert_eq!((header.epoch, header.base_seq), (self.epoch, self.seq));
                if let Some(directory) = delta.directory {
                    self.directory = directory;
                }
                for op in delta.ops {
                    match op.op.unwrap() {
                        Op::Stored(blocks) => self.store(&blocks),
                        Op::Removed(blocks) => {
                            for &hash in &blocks.hashes {
                                assert!(self.entries.remove(&(blocks.scope, blocks.replica, hash)));
                            }
                        }
                        Op::Cleared(cleared) => {
                            self.entries.retain(|&(scope, replica, _)| {
                                replica != cleared.replica || (cleared.scope != 0 && cleared.scope != scope)
                            });
                        }
                    }
                }
            }
        }
        self.seq = header.seq;
    }

    fn store(&mut self, blocks: &proto::Blocks) {
        self.entries.extend(blocks.hashes.iter().map(|&hash| (blocks.scope, blocks.replica, hash)));
    }

    /// In the form of [`HostShim::dump`].
    pub(crate) fn dump(&self) -> Dump {
        let scopes: BTreeMap<_, _> = self.directory.scopes.iter().map(|scope| (scope.id, scope)).collect();
        let replicas: BTreeMap<_, _> =
            self.directory.replicas.iter().map(|replica| (replica.id, replica)).collect();
        let mut dump: Vec<_> = self
            .entries
            .iter()
            .map(|&(scope, replica, hash)| {
                let (scope, replica) = (scopes[&scope], replicas[&replica]);
                Held {
                    tenant: scope.tenant.clone(),
                    model: scope.model.clone(),
                    adapter: scope.adapter.clone(),
                    replica: replica.name.clone(),
                    rank: replica.data_parallel_rank.unwrap_or(0),
                    hash: BlockHash(hash),
                }
            })
            .collect();
        dump.sort();
        dump
    }

    /// Reads the stream until it says what the index holds now.
    pub(crate) async fn catch_up(&mut self, stream: &mut tonic::Streaming<proto::Frame>, shim: &HostShim) {
        let start = Instant::now();
        loop {
            let frame = tokio::time::timeout(PATIENCE, stream.message()).await.unwrap().unwrap().unwrap();
            self.apply(frame);
            if self.whole
                && self.seq == shim.view().await.unwrap().seq
                && self.dump() == shim.dump().await.unwrap()
            {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "never equal");
        }
    }

    /// As [`Follower::catch_up`], until the directory is as wanted, too.
    pub(crate) async fn catch_up_until(
        &mut self,
        stream: &mut tonic::Streaming<proto::Frame>,
        shim: &HostShim,
        wanted: impl Fn(&proto::Directory) -> bool,
    ) {
        let start = Instant::now();
        self.catch_up(stream, shim).await;
        while !wanted(&self.directory) {
            assert!(start.elapsed() < PATIENCE, "the directory never changes");
            self.catch_up(stream, shim).await;
        }
    }
}
