//! What a VM knows, and the way from a callback to the context that it is about.
//!
//! One value per VM behind one cell. It is borrowed for the length of a callback; a host that calls back from inside a
//! hostcall, or about a context that does not exist, gets the harmless answer (go on) instead of a trap.

use std::cell::RefCell;

use hashbrown::HashMap;

use crate::config::Config;
use crate::host::{self, Buffer, Level, Map};
use crate::metrics::{self, Metrics};
use crate::request::{Env, Request};
use crate::root::{Root, TICK_MS};
use crate::source::Source;

/// What the host is to do with a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Action {
    Continue = 0,
    Pause = 1,
}

/// When a callback began.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Milliseconds, monotonic.
    pub ms: u64,
    /// Milliseconds of the Unix clock as it was when the VM started, plus what has passed since: never goes back.
    pub unix_ms: u64,
}

#[derive(Debug, Default)]
struct Vm {
    roots: HashMap<u32, Root>,
    /// By [`Config::source_key`]: outlives a configuration, so that an update keeps a warm index.
    sources: HashMap<u64, Source>,
    requests: HashMap<u32, Request>,
    metrics: Metrics,
    clock: Clock,
}

thread_local! {
    static VM: RefCell<Vm> = RefCell::new(Vm::default());
}

/// Before anything else. A panic is a defect; should there be one, its place is logged, never its message, which could
/// quote a request.
pub fn initialize() {
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map(|place| format!("{}:{}", place.file(), place.line()));
        host::log(Level::Error, &format!("inference-cache: panic at {}", place.unwrap_or_default()));
    }));
}

/// `parent` 0: a root context, which comes to life with its configuration; otherwise a request.
pub fn on_context_create(context: u32, parent: u32) {
    with((), |vm| {
        if parent != 0 && vm.requests.try_reserve(1).is_ok() {
            vm.requests.insert(context, Request::new(parent));
        }
    });
}

/// Checks the configuration. False refuses it. No side effects: this may be a canary.
pub fn on_configure(root: u32, size: usize) -> bool {
    let Ok(text) = host::buffer(Buffer::PluginConfiguration, size) else {
        host::log(Level::Error, "inference-cache: cannot read the plugin configuration");
        return false;
    };
    match Config::parse(&text) {
        Ok(config) => with(false, |vm| vm.configure(root, config)),
        Err(error) => {
            host::log(Level::Error, &format!("inference-cache: plugin configuration refused: {error}"));
            false
        }
    }
}

/// Lets go what was held in vain, then drives replication.
pub fn on_tick(root: u32) {
    with((), |vm| {
        let now = vm.clock.now();
        vm.let_go(root, now);
        if let Some(source) = vm.source_of(root) {
            source.0.tick(root, source.1, now);
        }
    });
}

/// A shared queue has an entry.
pub fn on_queue_ready(root: u32, queue: u32) {
    with((), |vm| {
        let now = vm.clock.now();
        if let Some((source, metrics)) = vm.source_of(root) {
            source.queue_ready(queue, metrics, now);
        }
    });
}

/// See [`Request::on_request_headers`].
pub fn on_request_headers(context: u32, end_of_stream: bool) -> Action {
    with_request(context, |request, env| request.on_request_headers(context, end_of_stream, env))
        .unwrap_or_else(|| {
            // No configuration says what the header is called: this is its name by convention.
            let _ = host::remove_header(Map::Request, b"x-gateway-destination-endpoint");
            Action::Continue
        })
}

/// See [`Request::on_request_body`].
pub fn on_request_body(context: u32, size: usize, end_of_stream: bool) -> Action {
    with_request(context, |request, env| request.on_request_body(size, end_of_stream, env))
        .unwrap_or(Action::Continue)
}

/// See [`Request::on_request_trailers`].
pub fn on_request_trailers(context: u32) -> Action {
    with_request(context, |request, env| request.on_request_trailers(context, env))
        .unwrap_or(Action::Continue)
}

/// See [`Request::on_response_headers`].
pub fn on_response_headers(context: u32, end_of_stream: bool) {
    with_request(context, |request, env| request.on_response_headers(end_of_stream, env));
}

/// See [`Request::on_response_body`].
pub fn on_response_body(context: u32, size: usize, end_of_stream: bool) {
    with_request(context, |request, env| request.on_response_body(size, end_of_stream, env));
}

/// The request is over.
pub fn on_log(context: u32) {
    with_request(context, |request, env| request.on_end(context, env));
}

/// A context is gone.
pub fn on_delete(context: u32) {
    on_log(context);
    with((), |vm| {
        vm.requests.remove(&context);
        let Some(root) = vm.roots.remove(&context) else { return };
        let key = root.config.source_key;
        let now = vm.clock.now();
        if vm.roots.values().any(|other| other.config.source_key == key) {
            if let Some(source) = vm.sources.get_mut(&key) {
                source.root_deleted(context, now);
            }
        } else {
            vm.sources.remove(&key);
        }
    });
}

/// A gRPC message is there. Tokens of streams that were given up are ignored.
pub fn on_grpc_receive(root: u32, token: u32, size: usize) {
    with((), |vm| {
        let now = vm.clock.now();
        if let Some((source, metrics)) = vm.source_of(root) {
            source.message(token, size, metrics, now);
        }
    });
}

/// A gRPC stream was closed by the other side.
pub fn on_grpc_close(root: u32, token: u32, status: u32) {
    with((), |vm| {
        let now = vm.clock.now();
        if let Some((source, metrics)) = vm.source_of(root) {
            source.closed(token, status, metrics, now);
        }
    });
}

impl Vm {
    fn configure(&mut self, id: u32, config: Config) -> bool {
        if self.roots.try_reserve(1).is_err() || self.sources.try_reserve(1).is_err() {
            return false;
        }
        let nonce = self.clock.nonce(id);
        self.sources.entry(config.source_key).or_insert_with(|| Source::new(&config, nonce));
        self.roots.insert(id, Root::new(config));
        if host::set_tick_period(TICK_MS).is_err() {
            host::log(Level::Error, "inference-cache: the proxy refuses to tick");
            return false;
        }
        true
    }

    fn source_of(&mut self, root: u32) -> Option<(&mut Source, &mut Metrics)> {
        let key = self.roots.get(&root)?.config.source_key;
        Some((self.sources.get_mut(&key)?, &mut self.metrics))
    }

    fn let_go(&mut self, root_id: u32, now: Now) {
        let Some(root) = self.roots.get_mut(&root_id) else { return };
        let held = root.tick(&mut self.metrics, now.ms);
        if held.is_empty() {
            return;
        }
        for id in held {
            if host::set_effective_context(id).is_err() {
                self.metrics.count(metrics::HOSTCALL_ERRORS, "set_effective_context");
                continue;
            }
            let let_go = self.on_request(id, now, |request, env| request.let_go(env));
            if let_go == Some(true) && host::continue_request().is_err() {
                self.metrics.count(metrics::HOSTCALL_ERRORS, "continue_request");
            }
        }
        if host::set_effective_context(root_id).is_err() {
            self.metrics.count(metrics::HOSTCALL_ERRORS, "set_effective_context");
        }
    }

    fn on_request<R>(
        &mut self,
        id: u32,
        now: Now,
        f: impl FnOnce(&mut Request, &mut Env<'_>) -> R,
    ) -> Option<R> {
        let request = self.requests.get_mut(&id)?;
        let root = self.roots.get_mut(&request.root)?;
        let source = self.sources.get_mut(&root.config.source_key)?;
        let gateway = &mut source.gateway;
        Some(f(request, &mut Env { root, gateway, metrics: &mut self.metrics, now }))
    }
}

/// The clocks of the VM, read once per callback.
#[derive(Debug, Default)]
struct Clock {
    last_ms: u64,
    /// Unix time minus monotonic time, taken once.
    offset_ms: Option<u64>,
}

impl Clock {
    fn now(&mut self) -> Now {
        let ms = host::monotonic_ms().unwrap_or(self.last_ms).max(self.last_ms);
        self.last_ms = ms;
        if self.offset_ms.is_none() {
            self.offset_ms = host::wall_clock_ms().ok().map(|wall| wall.saturating_sub(ms));
        }
        Now { ms, unix_ms: ms.saturating_add(self.offset_ms.unwrap_or(0)) }
    }

    /// Different in every VM: time, the VM's own address space, the context.
    fn nonce(&self, context: u32) -> u64 {
        let time = host::monotonic_us().unwrap_or(0);
        let wall = host::wall_clock_ms().unwrap_or(0);
        let address = std::ptr::from_ref(self).addr() as u64;
        let seed =
            [time.to_le_bytes(), wall.to_le_bytes(), address.to_le_bytes(), u64::from(context).to_le_bytes()];
        xxhash_rust::xxh3::xxh3_64(&seed.concat())
    }
}

fn with<R>(otherwise: R, f: impl FnOnce(&mut Vm) -> R) -> R {
    let mut result = otherwise;
    let _ = VM.try_with(|vm| {
        if let Ok(mut vm) = vm.try_borrow_mut() {
            result = f(&mut vm);
        }
    });
    result
}

/// `None` if there is no such request or its root context has no configuration.
fn with_request<R>(context: u32, f: impl FnOnce(&mut Request, &mut Env<'_>) -> R) -> Option<R> {
    with(None, |vm| {
        let now = vm.clock.now();
        vm.on_request(context, now, f)
    })
}
