//! Refused configurations name their field.

use host_shim::config::{Config, EventsMode, ReportMode};
use inference_cache_core::hash::vllm::{Algorithm, ExtraKeysFormat};
use std::time::Duration;

const GOOD: &str = "\
listen: { grpc: 127.0.0.1:0, http: 127.0.0.1:0, snapshot: 127.0.0.1:0 }
index: { ttl: 30m, sweepInterval: 10s }
models:
- { name: demo, path: models/demo }
replicas:
- id: engine-0
  address: 127.0.0.1:8000
  model: demo
  adapters: [ad-a]
  events: { endpoint: tcp://127.0.0.1:5557, replay: tcp://127.0.0.1:5558 }
- id: engine-1
  address: 127.0.0.1:8001
  model: demo
  tenant: other
  events: { endpoint: tcp://127.0.0.1:5567, mode: bind }
";

#[test]
fn a_good_configuration() {
    let config = Config::from_yaml(GOOD).unwrap();
    assert_eq!(config.index.ttl, Duration::from_secs(1800));
    assert_eq!(config.replicas[0].tenant, "default");
    assert_eq!(config.replicas[0].events.mode, EventsMode::Connect);
    assert_eq!(config.replicas[1].events.mode, EventsMode::Bind);
    let events = &config.replicas[0].events;
    assert_eq!((events.ranks, events.lost_after), (1, Duration::from_secs(60)));
    assert_eq!(events.group_to.unwrap().tokens(), 16);
    assert_eq!(events.report_mode, ReportMode::Default);
}

#[test]
fn what_is_left_out_has_its_default() {
    let config = Config::from_yaml("models: []\nreplicas: []\n").unwrap();
    assert_eq!(config.listen.grpc.port(), 9090);
    assert_eq!(config.index.sweep_interval, Duration::from_secs(10));
}

#[test]
fn refusals_name_the_field() {
    // (replace, with, how the error begins)
    let cases = [
        ("grpc: 127.0.0.1:0", "grpc: localhost", "listen.grpc: \"localhost\" is not ip:port"),
        ("snapshot: 127.0.0.1:0", "snapshot: 0.0.0.0:0", "listen.snapshot: is not a loopback address"),
        ("ttl: 30m", "ttl: 30", "index.ttl: \"30\" is not a duration"),
        ("ttl: 30m", "ttl: 0s", "index.ttl: \"0s\" is not a duration"),
        ("ttl: 30m", "ttl: 500ms", "index.ttl: must be at least 1s"),
        ("sweepInterval: 10s", "sweepInterval: 1ms", "index.sweepInterval: must be"),
        ("name: demo", "name: \"\"", "models[0].name: must be 1 to 256"),
        ("path: models/demo", "path: \"\"", "models[0].path: must not be empty"),
        ("id: engine-1", "id: engine-0", "replicas[1].id: \"engine-0\" is already at replicas[0].id"),
        ("id: engine-1", "id: \"a b\"", "replicas[1].id: must be 1 to 256"),
        ("127.0.0.1:8001", "engine:8001", "replicas[1].address: \"engine:8001\" is not ip:port"),
        ("127.0.0.1:8001", "127.0.0.1:0", "replicas[1].address: port must not be 0"),
        ("127.0.0.1:8001", "127.0.0.1:8000", "replicas[1].address: \"127.0.0.1:8000\" is already at"),
        (
            "model: demo\n  tenant",
            "model: demon\n  tenant",
            "replicas[1].model: \"demon\" is not one of the models",
        ),
        ("tenant: other", "tenant: \"\"", "replicas[1].tenant: must be"),
        ("[ad-a]", "[ad-a, ad-a]", "replicas[0].adapters[1]: \"ad-a\" is already at replicas[0].adapters[0]"),
        ("[ad-a]", "[demo]", "replicas[0].adapters[0]: has the name of a model"),
        (
            "tcp://127.0.0.1:5567",
            "127.0.0.1:5567",
            "replicas[1].events.endpoint: \"127.0.0.1:5567\" is not tcp://",
        ),
        (
            "tcp://127.0.0.1:5567",
            "tcp://127.0.0.1:5557",
            "replicas[1].events.endpoint: \"tcp://127.0.0.1:5557\" is already",
        ),
        ("tcp://127.0.0.1:5558", "udp://x", "replicas[0].events.replay: \"udp://x\" is not"),
        (
            "model: demo\n  tenant",
            "model: demo\n  metrics: { url: \"https://x/metrics\" }\n  tenant",
            "replicas[1].metrics.url: \"https://x/metrics\" is not http://",
        ),
        (
            "model: demo\n  tenant",
            "model: demo\n  metrics: { interval: 10ms }\n  tenant",
            "replicas[1].metrics.interval: must be at least 100ms",
        ),
        (
            "replicas:",
            "producers: { streamIdle: 5 }\nreplicas:",
            "producers.streamIdle: \"5\" is not a duration",
        ),
        ("mode: bind", "mode: listen", "replicas[1].events.mode: \"listen\" is neither"),
        ("mode: bind", "mode: bind, discover: true", "replicas[1].events.discover: is for mode connect"),
        ("mode: bind", "ranks: 0", "replicas[1].events.ranks: must be 1 to"),
        ("mode: bind", "ranks: 9999999", "replicas[1].events.ranks: must be 1 to"),
        (
            "replay: tcp",
            "ranks: 2, replay: tcp",
            "replicas[0].events.replay: \"tcp://127.0.0.1:5558\" is already at",
        ),
        (
            "tcp://127.0.0.1:5567, mode: bind",
            "ipc:///kv, ranks: 2",
            "replicas[1].events.endpoint: has no port for rank 1",
        ),
        ("mode: bind", "lostAfter: 60", "replicas[1].events.lostAfter: \"60\" is not a duration"),
        ("mode: bind", "groupTo: 70000", "replicas[1].events.groupTo: is no block size"),
        ("mode: bind", "reportMode: all", "replicas[1].events.reportMode: \"all\" is neither"),
        ("tenant: other", "engine: tgi", "replicas[1].engine: \"tgi\" is neither \"vllm\" nor \"sglang\""),
    ];
    for (replace, with, expected) in cases {
        assert!(GOOD.contains(replace), "{replace}");
        let error = Config::from_yaml(&GOOD.replacen(replace, with, 1)).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{replace} -> {with}: {error}");
    }
}

#[test]
fn unknown_and_missing_fields_are_refused_by_name() {
    for (replace, with, name) in [
        ("tenant: other", "tennant: other", "tennant"),
        ("index: { ttl", "index: { tll", "tll"),
        ("  model: demo\n  tenant", "  tenant", "model"),
        ("replicas:", "replicase:", "replicase"),
        ("adapters: [ad-a]", "adapters: 7", "7"),
    ] {
        assert!(GOOD.contains(replace), "{replace}");
        let error = Config::from_yaml(&GOOD.replacen(replace, with, 1)).unwrap_err().to_string();
        assert!(error.contains(name) || error.contains("sequence"), "{with}: {error}");
    }
}

#[test]
fn engine_schemes_are_checked_by_field() {
    let with = |scheme: &str| {
        let path = format!("path: models/demo, engineSchemes: [{{ {scheme} }}]");
        Config::from_yaml(&GOOD.replace("path: models/demo", &path))
    };
    let good = with("name: vllm, algorithm: sha256_cbor, extraKeys: tagged, blockSize: 16").unwrap();
    let scheme = &good.models[0].engine_schemes[0];
    assert_eq!((scheme.algorithm, scheme.seed.as_str()), (Algorithm::Sha256Cbor, "vllm-none-hash"));
    assert_eq!((scheme.extra_keys, scheme.block_size.tokens()), (ExtraKeysFormat::Tagged, 16));
    let cases = [
        ("name: xxh3-1337, algorithm: sha256_cbor, extraKeys: tagged, blockSize: 16", "name: is the name"),
        ("name: v, algorithm: md5, extraKeys: tagged, blockSize: 16", "algorithm: \"md5\" is not"),
        ("name: v, algorithm: xxhash, extraKeys: tagged, blockSize: 16", "seed: is required"),
        ("name: v, algorithm: sha256, extraKeys: both, blockSize: 16", "extraKeys: \"both\" is neither"),
        ("name: v, algorithm: sha256, extraKeys: untagged, blockSize: 0", "blockSize: must be 1 to 65535"),
    ];
    for (scheme, problem) in cases {
        let error = with(scheme).unwrap_err().to_string();
        assert!(error.starts_with(&format!("models[0].engineSchemes[0].{problem}")), "{error}");
    }
}
