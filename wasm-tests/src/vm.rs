//! One VM: its contexts, and the callbacks that a proxy makes.
//!
//! A trap is a failed test: every callback panics on it, with the log.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use wasmtime::{Engine, Instance, InstancePre, Memory, Store, TypedFunc, WasmParams, WasmResults};

use crate::host::{Host, Process};
use crate::http::{Exchange, Headers, Held};

/// A VM with the plugin in it.
pub struct Vm {
    host: Host,
    store: Store<VmData>,
    instance: Instance,
    next_context: u32,
}

/// What a callback returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Action {
    Continue,
    Pause,
}

/// What hostcalls see of their VM.
pub(crate) struct VmData {
    pub(crate) process: Arc<Mutex<Process>>,
    pub(crate) number: usize,
    pub(crate) memory: Option<Memory>,
    pub(crate) allocate: Option<TypedFunc<u32, u32>>,
    /// The context that hostcalls act on.
    pub(crate) effective: u32,
    pub(crate) roots: BTreeSet<u32>,
    pub(crate) exchanges: BTreeMap<u32, Exchange>,
    /// By root context, milliseconds.
    pub(crate) tick_periods: BTreeMap<u32, u32>,
    pub(crate) configuration: Vec<u8>,
    pub(crate) grpc_message: Option<Vec<u8>>,
}

impl Vm {
    pub(crate) fn start(host: Host, engine: &Engine, plugin: &InstancePre<VmData>, number: usize) -> Vm {
        let data = VmData {
            process: host.process.clone(),
            number,
            memory: None,
            allocate: None,
            effective: 0,
            roots: BTreeSet::new(),
            exchanges: BTreeMap::new(),
            tick_periods: BTreeMap::new(),
            configuration: Vec::new(),
            grpc_message: None,
        };
        let mut store = Store::new(engine, data);
        let instance = plugin.instantiate(&mut store).expect("the plugin instantiates");
        let memory = instance.get_memory(&mut store, "memory");
        let allocate = instance.get_typed_func(&mut store, "proxy_on_memory_allocate").ok();
        store.data_mut().memory = memory;
        store.data_mut().allocate = allocate;
        let mut vm = Vm { host, store, instance, next_context: 1 };
        vm.call::<_, ()>("_initialize", 0, ());
        vm
    }

    /// Creates a root context with a configuration. `None` if the plugin refuses it.
    pub fn configure(&mut self, configuration: &str) -> Option<u32> {
        let root = self.create_context(0);
        self.store.data_mut().roots.insert(root);
        let size = configuration.len() as u32;
        self.store.data_mut().configuration = configuration.into();
        let accepted = self.call("proxy_on_vm_start", root, (root, 0u32)).unwrap_or(1) != 0
            && self.call("proxy_on_configure", root, (root, size)).unwrap_or(1) != 0;
        accepted.then_some(root)
    }

    /// Deletes a root context, as the proxy does when its configuration is replaced.
    pub fn delete_root(&mut self, root: u32) {
        self.finish_context(root);
        self.store.data_mut().roots.remove(&root);
        self.store.data_mut().tick_periods.remove(&root);
        let mut process = self.host.lock();
        for stream in process.streams.iter_mut().filter(|stream| stream.context == root) {
            stream.open = false;
        }
    }

    /// One tick of each root context that asked for ticks.
    pub fn tick(&mut self) {
        let roots: Vec<u32> = self.store.data().tick_periods.keys().copied().collect();
        for root in roots {
            self.call::<_, ()>("proxy_on_tick", root, (root,));
        }
        self.resume();
    }

    /// Delivers what waits in shared queues. Returns how many callbacks that took.
    pub fn pump(&mut self) -> usize {
        for done in 0..100_000 {
            let number = self.store.data().number;
            let next = {
                let ready = &mut self.host.lock().queues.ready;
                let at = ready.iter().position(|(vm, ..)| *vm == number);
                at.and_then(|at| ready.remove(at))
            };
            let Some((_, root, queue)) = next else { return done };
            self.call::<_, ()>("proxy_on_queue_ready", root, (root, queue));
        }
        panic!("the plugin wakes itself without end");
    }

    /// Ticks of 20 ms, with what they set off, for `ms` milliseconds.
    pub fn run_for(&mut self, ms: u64) {
        for _ in 0..ms.div_ceil(20) {
            self.host.advance(20);
            self.tick();
            self.pump();
        }
    }

    /// Request headers arrive. Returns the context of the exchange.
    pub fn open(&mut self, root: u32, headers: &[(&str, &[u8])], end_of_stream: bool) -> u32 {
        let context = self.create_context(root);
        let lower = |(name, value): &(&str, &[u8])| (name.to_ascii_lowercase().into_bytes(), value.to_vec());
        let request_headers: Headers = headers.iter().map(lower).collect();
        let count = request_headers.len() as u32;
        let exchange = Exchange { request_headers, ended: end_of_stream, ..Exchange::default() };
        self.store.data_mut().exchanges.insert(context, exchange);
        let action =
            self.action("proxy_on_request_headers", context, (context, count, u32::from(end_of_stream)));
        let body_callbacks = self.host.lock().body_callbacks_while_held;
        if let Some(exchange) = self.store.data_mut().exchanges.get_mut(&context) {
            match action {
                Action::Continue => exchange.forward(end_of_stream),
                Action::Pause if body_callbacks => exchange.held = Held::Headers,
                Action::Pause => exchange.held = Held::Everything,
            }
        }
        self.resume();
        context
    }

    /// A piece of the request body arrives.
    pub fn body(&mut self, context: u32, piece: &[u8], end_of_stream: bool) {
        let Some(exchange) = self.store.data_mut().exchanges.get_mut(&context) else { return };
        if exchange.too_large {
            return;
        }
        exchange.buffer.extend_from_slice(piece);
        exchange.ended = end_of_stream;
        if exchange.held != Held::Everything {
            self.deliver(context);
        }
        self.resume();
    }

    /// The request ends with trailers.
    pub fn trailers(&mut self, context: u32) {
        let Some(exchange) = self.store.data_mut().exchanges.get_mut(&context) else { return };
        exchange.ended = true;
        if exchange.held == Held::Everything {
            return;
        }
        let action = self.action("proxy_on_request_trailers", context, (context, 1u32));
        if let (Action::Continue, Some(exchange)) =
            (action, self.store.data_mut().exchanges.get_mut(&context))
        {
            exchange.forward(true);
        }
        self.resume();
    }

    /// The upstream's response arrives: headers, then body pieces, of which the last ends it.
    pub fn respond(&mut self, context: u32, status: &str, pieces: &[&[u8]]) {
        let Some(exchange) = self.store.data_mut().exchanges.get_mut(&context) else { return };
        exchange.response_headers = vec![(b":status".to_vec(), status.as_bytes().to_vec())];
        let ends = u32::from(pieces.is_empty());
        self.action("proxy_on_response_headers", context, (context, 1u32, ends));
        for (at, piece) in pieces.iter().enumerate() {
            let ends = u32::from(at + 1 == pieces.len());
            self.action("proxy_on_response_body", context, (context, piece.len() as u32, ends));
        }
        self.resume();
    }

    /// The exchange is over: done, logged, deleted. Returns what became of it.
    pub fn end(&mut self, context: u32) -> Exchange {
        self.finish_context(context);
        self.store.data_mut().exchanges.remove(&context).unwrap_or_default()
    }

    /// An exchange that is not over.
    ///
    /// # Panics
    /// If there is none.
    pub fn exchange(&self, context: u32) -> &Exchange {
        &self.store.data().exchanges[&context]
    }

    /// A message arrives on a gRPC stream of this VM.
    pub fn grpc_message(&mut self, token: u32, message: &[u8]) {
        let Some(context) = self.stream_context(token) else { return };
        self.store.data_mut().grpc_message = Some(message.to_vec());
        self.call::<_, ()>("proxy_on_grpc_receive", context, (context, token, message.len() as u32));
        self.store.data_mut().grpc_message = None;
    }

    /// The server closes a gRPC stream of this VM.
    pub fn grpc_close(&mut self, token: u32, status: u32) {
        let Some(context) = self.stream_context(token) else { return };
        for stream in self.host.lock().streams.iter_mut().filter(|stream| stream.token == token) {
            stream.open = false;
        }
        self.call::<_, ()>("proxy_on_grpc_close", context, (context, token, status));
    }

    /// Any exported callback with any arguments, for fuzzing. Exports that are missing are skipped.
    pub fn callback<P: WasmParams>(&mut self, name: &str, context: u32, arguments: P) -> Option<u32> {
        let result = match self.instance.get_typed_func::<P, u32>(&mut self.store, name) {
            Ok(_) => self.call(name, context, arguments),
            Err(_) => {
                self.call::<P, ()>(name, context, arguments);
                None
            }
        };
        self.resume();
        result
    }

    /// What gRPC message callbacks see from now on, for fuzzing.
    pub fn set_grpc_message(&mut self, message: &[u8]) {
        self.store.data_mut().grpc_message = Some(message.to_vec());
    }

    /// The host.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Its number in the host.
    pub fn number(&self) -> usize {
        self.store.data().number
    }

    /// Bytes of linear memory.
    pub fn memory_size(&self) -> usize {
        self.store.data().memory.map_or(0, |memory| memory.data_size(&self.store))
    }

    fn create_context(&mut self, parent: u32) -> u32 {
        let context = self.next_context;
        self.next_context += 1;
        self.call::<_, ()>("proxy_on_context_create", context, (context, parent));
        context
    }

    fn finish_context(&mut self, context: u32) {
        self.call::<_, u32>("proxy_on_done", context, (context,));
        self.call::<_, ()>("proxy_on_log", context, (context,));
        self.call::<_, ()>("proxy_on_delete", context, (context,));
    }

    /// A body callback over everything buffered.
    fn deliver(&mut self, context: u32) {
        let limit = self.host.lock().buffer_limit;
        let Some(exchange) = self.store.data().exchanges.get(&context) else { return };
        let (size, ended) = (exchange.buffer.len() as u32, exchange.ended);
        let action = self.action("proxy_on_request_body", context, (context, size, u32::from(ended)));
        let Some(exchange) = self.store.data_mut().exchanges.get_mut(&context) else { return };
        match action {
            Action::Continue => exchange.forward(ended),
            Action::Pause if exchange.buffer.len() > limit => exchange.too_large = true,
            Action::Pause if exchange.held == Held::Nothing => exchange.held = Held::Body,
            Action::Pause => {}
        }
    }

    /// What was asked to go on from another context's callback does so once that has returned.
    fn resume(&mut self) {
        let asked = |(context, exchange): (&u32, &Exchange)| exchange.resume.then_some(*context);
        let contexts: Vec<u32> = self.store.data().exchanges.iter().filter_map(asked).collect();
        for context in contexts {
            let Some(exchange) = self.store.data_mut().exchanges.get_mut(&context) else { continue };
            exchange.resume = false;
            let all_was_stopped = exchange.held == Held::Everything;
            let body_waits = !exchange.buffer.is_empty() || exchange.ended;
            if all_was_stopped {
                exchange.forward_headers();
                if body_waits {
                    self.deliver(context);
                }
            } else if exchange.held != Held::Nothing {
                exchange.forward(exchange.ended);
            }
        }
    }

    fn stream_context(&self, token: u32) -> Option<u32> {
        let process = self.host.lock();
        process
            .streams
            .iter()
            .find(|stream| stream.token == token && stream.open)
            .map(|stream| stream.context)
    }

    fn action<P: WasmParams>(&mut self, name: &str, context: u32, arguments: P) -> Action {
        match self.call(name, context, arguments) {
            Some(1u32) => Action::Pause,
            _ => Action::Continue,
        }
    }

    fn call<P: WasmParams, R: WasmResults>(&mut self, name: &str, context: u32, arguments: P) -> Option<R> {
        self.instance.get_func(&mut self.store, name)?;
        let function =
            self.instance.get_typed_func::<P, R>(&mut self.store, name).expect("the ABI's signature");
        self.store.data_mut().effective = context;
        match function.call(&mut self.store, arguments) {
            Ok(result) => Some(result),
            Err(trap) => panic!("{name} trapped: {trap:?}\nlog: {:#?}", self.host.log()),
        }
    }
}

impl std::fmt::Debug for Vm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vm").field("number", &self.number()).finish_non_exhaustive()
    }
}

impl Exchange {
    fn forward_headers(&mut self) {
        self.held = Held::Nothing;
        self.upstream_headers.get_or_insert_with(|| self.request_headers.clone());
    }

    fn forward(&mut self, complete: bool) {
        self.forward_headers();
        self.upstream_body.append(&mut self.buffer);
        self.upstream_complete = complete;
    }
}
