//! The proxy process: what its VMs share.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wasmtime::{Engine, InstancePre, Linker, Module};

use crate::grpc::GrpcStream;
use crate::hostcalls;
use crate::metrics::Metrics;
use crate::plugin::plugin_wasm;
use crate::shared::{Queues, SharedData};
use crate::vm::{Vm, VmData};

/// See the crate.
#[derive(Clone)]
pub struct Host {
    engine: Engine,
    instance: Arc<InstancePre<VmData>>,
    pub(crate) process: Arc<Mutex<Process>>,
}

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// 0 trace to 5 critical.
    pub level: u32,
    #[allow(missing_docs)]
    pub message: String,
}

#[derive(Debug)]
pub(crate) struct Process {
    /// Monotonic, nanoseconds.
    pub(crate) clock: u64,
    /// How far the clock goes on each time it is read.
    pub(crate) clock_step: u64,
    /// Unix time minus monotonic time, nanoseconds.
    pub(crate) wall_offset: u64,
    /// `allow_on_headers_stop_iteration`.
    pub(crate) body_callbacks_while_held: bool,
    /// Whether clusters have an endpoint.
    pub(crate) grpc_reachable: bool,
    /// Bytes of a held body before the proxy answers 413.
    pub(crate) buffer_limit: usize,
    pub(crate) shared: SharedData,
    pub(crate) queues: Queues,
    pub(crate) metrics: Metrics,
    pub(crate) log: Vec<LogLine>,
    pub(crate) properties: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(crate) streams: Vec<GrpcStream>,
    /// Hostcall name -> status that it answers.
    pub(crate) failures: HashMap<String, u32>,
    pub(crate) calls: BTreeMap<&'static str, u64>,
    vms: usize,
}

impl Host {
    /// A process with no VM yet, whose proxy lets headers be held.
    ///
    /// # Panics
    /// If the plugin does not load.
    pub fn new() -> Host {
        static LOADED: Mutex<Option<(Engine, Arc<InstancePre<VmData>>)>> = Mutex::new(None);
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        let (engine, instance) = loaded.get_or_insert_with(load).clone();
        let process = Process {
            clock: 1_000_000_000,
            clock_step: 0,
            wall_offset: 1_790_000_000_000_000_000,
            body_callbacks_while_held: true,
            grpc_reachable: true,
            buffer_limit: 1 << 20,
            shared: SharedData::default(),
            queues: Queues::default(),
            metrics: Metrics::default(),
            log: Vec::new(),
            properties: BTreeMap::new(),
            streams: Vec::new(),
            failures: HashMap::new(),
            calls: BTreeMap::new(),
            vms: 0,
        };
        Host { engine, instance, process: Arc::new(Mutex::new(process)) }
    }

    /// A process whose proxy lacks `allow_on_headers_stop_iteration`.
    pub fn without_header_stop() -> Host {
        let host = Host::new();
        host.lock().body_callbacks_while_held = false;
        host
    }

    /// A new VM, started, without a configuration.
    ///
    /// # Panics
    /// If it traps while starting.
    pub fn vm(&self) -> Vm {
        let number = {
            let mut process = self.lock();
            process.vms += 1;
            process.vms - 1
        };
        Vm::start(self.clone(), &self.engine, &self.instance, number)
    }

    /// Lets time pass.
    pub fn advance(&self, ms: u64) {
        self.lock().clock += ms * 1_000_000;
    }

    /// Milliseconds on the monotonic clock.
    pub fn now(&self) -> u64 {
        self.lock().clock / 1_000_000
    }

    /// Lets the clock go on each time a VM reads it.
    pub fn set_clock_step(&self, ns: u64) {
        self.lock().clock_step = ns;
    }

    /// Turns `allow_on_headers_stop_iteration` on or off for requests to come.
    pub fn set_header_stop(&self, on: bool) {
        self.lock().body_callbacks_while_held = on;
    }

    /// Whether gRPC streams can be opened from now on.
    pub fn set_grpc_reachable(&self, on: bool) {
        self.lock().grpc_reachable = on;
    }

    /// A property, with its path joined by NUL.
    pub fn set_property(&self, path: &str, value: &[u8]) {
        self.lock().properties.insert(path.into(), value.to_vec());
    }

    /// Has a hostcall answer `status` from now on, or work again with 0.
    pub fn fail(&self, hostcall: &str, status: u32) {
        let mut process = self.lock();
        if status == 0 {
            process.failures.remove(hostcall);
        } else {
            process.failures.insert(hostcall.to_owned(), status);
        }
    }

    /// How often each hostcall was called.
    pub fn calls(&self) -> BTreeMap<&'static str, u64> {
        self.lock().calls.clone()
    }

    /// The value of a metric; 0 if nobody defined it.
    pub fn metric(&self, name: &str) -> i64 {
        self.lock().metrics.get(name)
    }

    /// All metrics.
    pub fn metrics(&self) -> BTreeMap<String, i64> {
        self.lock().metrics.all()
    }

    /// The log so far.
    pub fn log(&self) -> Vec<LogLine> {
        self.lock().log.clone()
    }

    /// Shared data, as a VM reads it.
    pub fn shared_data(&self, key: &str) -> Option<Vec<u8>> {
        self.lock().shared.get(key.as_bytes()).map(|(value, _)| value.clone())
    }

    /// Overwrites all shared data whose key starts with `prefix`, as something that is not the plugin might.
    pub fn overwrite_shared_data(&self, prefix: &str, value: &[u8]) {
        self.lock().shared.overwrite(prefix.as_bytes(), value);
    }

    /// All gRPC streams that were opened, oldest first.
    pub fn streams(&self) -> Vec<GrpcStream> {
        self.lock().streams.clone()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Process> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Host {
    fn default() -> Host {
        Host::new()
    }
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").field("process", &self.process).finish_non_exhaustive()
    }
}

fn load() -> (Engine, Arc<InstancePre<VmData>>) {
    let engine = Engine::default();
    let module = Module::new(&engine, plugin_wasm()).expect("the plugin is a valid module");
    let mut linker = Linker::new(&engine);
    hostcalls::link(&mut linker).expect("hostcalls have one definition each");
    let instance = linker.instantiate_pre(&module).expect("the plugin imports what the host offers");
    (engine, Arc::new(instance))
}
