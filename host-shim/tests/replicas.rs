//! Replicas and their ranks come and go while the service runs.

mod harness;

use harness::{
    Follower, client, config, distinct_ports, free_port, free_ports, heard_by, message, publisher, recorded,
    replicas,
};
use harness::{request, until, yaml};
use host_shim::{ConfigFile, HostShim};
use inference_cache_core::ingest::State;
use inference_cache_core::replication::proto::Directory;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use zeromq::{PubSocket, SocketSend};

const SCENARIO: &str = "vllm-0.32.0/cbor-bs32-seed0-bytes";

fn connect(port: u16) -> String {
    format!("{{ endpoint: 'tcp://127.0.0.1:{port}' }}")
}

async fn play(publisher: &mut PubSocket) {
    for batch in recorded(SCENARIO, "sub") {
        publisher.send(message(&batch)).await.unwrap();
    }
}

/// Until the `nth` source has the whole recording.
async fn played(shim: &HostShim, nth: usize) {
    let last = recorded(SCENARIO, "sub").len() as u64 - 1;
    until("the last batch", async || {
        shim.sources().get(nth).and_then(|source| source.last_seq) == Some(last)
    })
    .await;
}

/// Entries by (replica, rank).
async fn held_by(shim: &HostShim, replica: &str, rank: u32) -> usize {
    let dump = shim.dump().await.unwrap();
    dump.iter().filter(|held| held.replica == replica && held.rank == rank).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_replica_leaves_and_cannot_come_back() {
    let (port_0, port_1) = (free_port(), free_port());
    let (events_0, events_1) = (connect(port_0), connect(port_1));
    let both = [("engine-0", events_0.as_str()), ("engine-1", events_1.as_str())];
    let (mut publisher_0, mut publisher_1) = (publisher(port_0).await, publisher(port_1).await);
    let mut shim = HostShim::start(replicas(&both)).await.unwrap();
    heard_by(&shim, 0, &mut publisher_0).await;
    heard_by(&shim, 1, &mut publisher_1).await;
    play(&mut publisher_0).await;
    play(&mut publisher_1).await;
    played(&shim, 0).await;
    played(&shim, 1).await;
    let mut stream = client(&shim).await.subscribe(request("gateway")).await.unwrap().into_inner();
    let mut follower = Follower::default();
    follower.catch_up(&mut stream, &shim).await;
    let entries = held_by(&shim, "engine-0", 0).await;
    assert!(entries > 0);
    assert_eq!(held_by(&shim, "engine-1", 0).await, entries);
    let first_ids: BTreeSet<u32> = follower.directory.replicas.iter().map(|replica| replica.id).collect();

    // Gone: its entries too, nobody else's, and nobody listens to its publisher any more.
    assert!(shim.reload(replicas(&both[..1])).await.is_empty());
    follower.catch_up_until(&mut stream, &shim, |directory| directory.replicas.len() == 1).await;
    assert_eq!((held_by(&shim, "engine-0", 0).await, held_by(&shim, "engine-1", 0).await), (entries, 0));
    assert_eq!(shim.sources().len(), 1);
    play(&mut publisher_1).await;

    // Another list of adapters is no other source.
    let mut adapters = replicas(&both[..1]);
    adapters.replicas[0].adapters.push("ad-b".into());
    shim.reload(adapters).await;
    follower
        .catch_up_until(&mut stream, &shim, |directory| directory.replicas[0].adapters == ["ad-a", "ad-b"])
        .await;
    assert_eq!(held_by(&shim, "engine-0", 0).await, entries);

    // Back: as somebody new. Changed: likewise.
    shim.reload(replicas(&both)).await;
    heard_by(&shim, 1, &mut publisher_1).await;
    assert_eq!(held_by(&shim, "engine-1", 0).await, 0);
    play(&mut publisher_1).await;
    played(&shim, 1).await;
    let mut changed = replicas(&both);
    changed.replicas[0].tenant = "other".into();
    changed.index.ttl *= 2;
    assert_eq!(shim.reload(changed).await, ["index"]);
    let are_new = |directory: &Directory| {
        directory.replicas.len() == 2
            && directory.replicas.iter().all(|replica| !first_ids.contains(&replica.id))
    };
    follower.catch_up_until(&mut stream, &shim, are_new).await;
    assert_eq!((held_by(&shim, "engine-0", 0).await, held_by(&shim, "engine-1", 0).await), (0, entries));
    shim.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ranks_are_sources_of_their_own() {
    let port = free_ports(2);
    let (mut rank_0, mut rank_1) = (publisher(port).await, publisher(port + 1).await);
    let events = format!("{{ endpoint: 'tcp://127.0.0.1:{port}', ranks: 2 }}");
    let shim = HostShim::start(config(&events)).await.unwrap();
    heard_by(&shim, 0, &mut rank_0).await;
    heard_by(&shim, 1, &mut rank_1).await;
    play(&mut rank_0).await;
    play(&mut rank_1).await;
    played(&shim, 0).await;
    played(&shim, 1).await;
    let mut stream = client(&shim).await.subscribe(request("gateway")).await.unwrap().into_inner();
    let mut follower = Follower::default();
    follower.catch_up(&mut stream, &shim).await;
    let ranks: Vec<_> = follower
        .directory
        .replicas
        .iter()
        .map(|replica| (replica.name.as_str(), replica.data_parallel_rank))
        .collect();
    assert_eq!(ranks, [("engine-0", Some(0)), ("engine-0", Some(1))]);

    let seq = recorded(SCENARIO, "sub").len() as u64;
    let mut clear = vec![0x93, 0xcb];
    clear.extend(2e9_f64.to_be_bytes());
    clear.extend([0x91, 0x91, 0xb0]);
    clear.extend(b"AllBlocksCleared\x00");
    rank_0.send(message(&[vec![], seq.to_be_bytes().to_vec(), clear])).await.unwrap();
    until("the clear", async || shim.sources()[0].last_seq == Some(seq)).await;
    until("the entries' end", async || held_by(&shim, "engine-0", 0).await == 0).await;
    assert!(held_by(&shim, "engine-0", 1).await > 0);
    shim.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_stays_away_is_lost() {
    let port = free_port();
    let mut engine = publisher(port).await;
    let events = format!("{{ endpoint: 'tcp://127.0.0.1:{port}', lostAfter: 300ms }}");
    let shim = HostShim::start(config(&events)).await.unwrap();
    heard_by(&shim, 0, &mut engine).await;
    play(&mut engine).await;
    played(&shim, 0).await;
    until("the entries", async || held_by(&shim, "engine-0", 0).await > 0).await;
    drop(engine);
    until("the loss", async || shim.sources()[0].losses == 1).await;
    until("the entries' end", async || held_by(&shim, "engine-0", 0).await == 0).await;
    // It is known anew when it comes back, even if it goes on where it was.
    let mut engine = publisher(port).await;
    heard_by(&shim, 0, &mut engine).await;
    play(&mut engine).await;
    played(&shim, 0).await;
    until("the entries", async || held_by(&shim, "engine-0", 0).await > 0).await;
    assert_eq!(shim.sources()[0].state, State::Synced);
    shim.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_says_where_its_sockets_are() {
    let ports = distinct_ports(3);
    let answer = |port: u16| format!(r#"{{"0": {{"endpoint": "tcp://*:{port}", "topic": "kv"}}}}"#);
    let told = Arc::new(Mutex::new(answer(ports[0])));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut config = config(&connect(ports[2]));
    config.replicas[0].address = listener.local_addr().unwrap();
    config.replicas[0].events.discover = true;
    let tells = told.clone();
    let route = axum::routing::get(async move || tells.lock().unwrap().clone());
    let router = axum::Router::new().route("/kv_event_sources", route);
    let serving = tokio::spawn(async move { axum::serve(listener, router).await });

    let mut engine = publisher(ports[0]).await;
    let shim = HostShim::start(config).await.unwrap();
    heard_by(&shim, 0, &mut engine).await;
    // It starts again, with another port.
    *told.lock().unwrap() = answer(ports[1]);
    drop(engine);
    let mut engine = publisher(ports[1]).await;
    heard_by(&shim, 0, &mut engine).await;
    // It starts again and says nothing: what is known stays.
    serving.abort();
    drop(engine);
    let mut engine = publisher(ports[1]).await;
    heard_by(&shim, 0, &mut engine).await;
    shim.shutdown().await;
}

#[test]
fn a_changed_file_is_read_once_and_a_bad_one_is_refused() {
    let path =
        std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("reload-{}.yaml", std::process::id()));
    std::fs::write(&path, yaml(&[("engine-0", "{ endpoint: 'tcp://127.0.0.1:1' }")])).unwrap();
    let (mut file, first) = ConfigFile::open(path.clone()).unwrap();
    assert!(file.changed().is_none());
    std::fs::write(&path, yaml(&[("engine-00", "{ endpoint: 'tcp://127.0.0.1:1' }")])).unwrap();
    let second = file.changed().unwrap().unwrap();
    assert_ne!(first, second);
    assert!(file.changed().is_none());
    std::fs::write(&path, yaml(&[("engine-0", "{ endpoint: 'udp://x' }")])).unwrap();
    let error = file.changed().unwrap().unwrap_err().to_string();
    assert!(error.starts_with("replicas[0].events.endpoint"), "{error}");
    assert!(file.changed().is_none());
    std::fs::remove_file(&path).unwrap();
    assert!(file.changed().is_none());
}
