//! Bad configurations are refused with the field named; good ones leave no trace before the first tick.

use crate::common::*;
use wasm_tests::Host;

#[test]
fn refusals_name_the_field_in_the_log() {
    let host = Host::new();
    for (config, field) in [
        ("", "EOF"),
        ("[]", "expected"),
        ("{}", "hostShim"),
        (r#"{"hostShim": {"cluster": ""}}"#, "hostShim.cluster"),
        (r#"{"hostShim": {"cluster": "c", "port": 1}}"#, "port"),
        (r#"{"hostShim": {"cluster": "c"}, "maxBodyBytes": -1}"#, "maxBodyBytes"),
        (r#"{"hostShim": {"cluster": "c"}, "mode": "fast"}"#, "mode"),
        (r#"{"hostShim": {"cluster": "c"}, "gateway": {"fallbacks": 99}}"#, "gateway.fallbacks"),
        (r#"{"hostShim": {"cluster": "c"}, "tenant": {"fixed": ""}}"#, "tenant.fixed"),
    ] {
        assert_eq!(host.vm().configure(config), None, "{config}");
        let line = host.log().last().expect("a line").clone();
        assert!(line.level >= 4 && line.message.contains(field), "{}", line.message);
    }
}

#[test]
fn a_canary_leaves_no_trace() {
    let host = Host::new();
    let mut vm = host.vm();
    let root = vm.configure(CONFIG).expect("valid");
    vm.delete_root(root);
    assert!(host.streams().is_empty());
    assert!(
        host.calls().keys().all(|call| !call.contains("shared") && !call.contains("grpc")),
        "{:?}",
        host.calls()
    );
}

#[test]
fn a_root_without_configuration_lets_requests_pass() {
    let host = Host::new();
    let mut vm = host.vm();
    assert_eq!(vm.configure("?"), None);
    let context = vm.open(1, &post("/v1/completions", &[(DESTINATION, b"6.6.6.6:6")]), false);
    vm.body(context, b"{}", true);
    let exchange = vm.end(context);
    assert!(exchange.upstream_complete);
    assert_eq!(destination(&exchange), None);
}

#[test]
fn an_update_keeps_the_index_warm() {
    let prompt = tokens(1, 64);
    let mut setup = setup(Host::new(), CONFIG, vec![stored(2, &prompt, 4)]);
    let update = CONFIG.replace("true", "false");
    let new = setup.vm.configure(&update).expect("valid");
    setup.vm.delete_root(setup.root);
    setup.root = new;
    assert_eq!(first(&setup.complete(&prompt)), B, "before any new stream");
    setup.vm.run_for(500);
    let streams = setup.host.streams();
    assert_eq!(streams.iter().filter(|stream| stream.open).count(), 1);
    assert_eq!(streams.last().expect("a stream").context, new, "the new root drives");
}
