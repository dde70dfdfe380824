//! Hostcalls: each returns what it did or the status that says why not.
//!
//! Nothing here panics, needs UTF-8 or trusts a status to be one of a list. Cost, measured in Envoy: clock 80 ns,
//! header get 550 ns, header set 170 ns, the whole header map 880 ns, property 700 ns, metric 60 ns.

use crate::abi::{self, Returned};
use crate::headers::Headers;

/// What a hostcall answered when it was not "ok".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// No such header, property, key, stream.
    NotFound,
    /// Refused argument, or not allowed in this callback.
    BadArgument,
    /// The queue is empty.
    Empty,
    /// The value is not the one that was read.
    CasMismatch,
    /// The host could not do it.
    InternalFailure,
    /// Any other value.
    Other(u32),
}

impl Status {
    fn of(code: u32) -> Result<(), Status> {
        Err(match code {
            0 => return Ok(()),
            1 => Status::NotFound,
            2 => Status::BadArgument,
            7 => Status::Empty,
            8 => Status::CasMismatch,
            10 => Status::InternalFailure,
            other => Status::Other(other),
        })
    }
}

/// The result of a hostcall.
pub type Outcome<T> = Result<T, Status>;

/// Log levels.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub enum Level {
    Info = 2,
    Warn = 3,
    Error = 4,
}

/// Header maps.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub enum Map {
    Request = 0,
    Response = 2,
}

/// Buffers.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub enum Buffer {
    RequestBody = 0,
    GrpcMessage = 5,
    PluginConfiguration = 7,
}

/// Metric types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Metric {
    Counter = 0,
    Gauge = 1,
}

/// Writes to the proxy's log. A log that fails has nowhere to say so.
pub fn log(level: Level, message: &str) {
    abi::proxy_log(level as u32, message.as_bytes());
}

/// Milliseconds on the monotonic clock, which all VMs of a process share.
pub fn monotonic_ms() -> Option<u64> {
    const MONOTONIC: u32 = 1;
    let mut time = 0;
    (abi::wasi_clock_time_get(MONOTONIC, &mut time) == 0).then_some(time / 1_000_000)
}

/// Microseconds on the monotonic clock: for measuring how long a slice of work took.
pub fn monotonic_us() -> Option<u64> {
    const MONOTONIC: u32 = 1;
    let mut time = 0;
    (abi::wasi_clock_time_get(MONOTONIC, &mut time) == 0).then_some(time / 1_000)
}

/// Milliseconds since 1970. Not to be trusted for intervals.
pub fn wall_clock_ms() -> Outcome<u64> {
    let mut time = 0;
    Status::of(abi::proxy_get_current_time_nanoseconds(&mut time))?;
    Ok(time / 1_000_000)
}

/// Asks for a tick of the current root context every `ms` milliseconds.
pub fn set_tick_period(ms: u32) -> Outcome<()> {
    Status::of(abi::proxy_set_tick_period_milliseconds(ms))
}

/// At most `max` bytes from the start of a buffer. Empty if there are none.
pub fn buffer(buffer: Buffer, max: usize) -> Outcome<Vec<u8>> {
    let mut out = Returned::new();
    match Status::of(abi::proxy_get_buffer_bytes(buffer as u32, 0, max, &mut out)) {
        Ok(()) => Ok(out.take().unwrap_or_default()),
        Err(Status::NotFound | Status::Empty) => Ok(Vec::new()),
        Err(status) => Err(status),
    }
}

/// All headers of a map.
pub fn headers(map: Map) -> Outcome<Headers> {
    let mut out = Returned::new();
    Status::of(abi::proxy_get_header_map_pairs(map as u32, &mut out))?;
    Ok(Headers::new(out.take().unwrap_or_default()))
}

/// The value of one header; several values come joined by commas or as the first, as the host does it.
pub fn header(map: Map, name: &str) -> Outcome<Option<Vec<u8>>> {
    let mut out = Returned::new();
    match Status::of(abi::proxy_get_header_map_value(map as u32, name.as_bytes(), &mut out)) {
        Ok(()) => Ok(Some(out.take().unwrap_or_default())),
        Err(Status::NotFound) => Ok(None),
        Err(status) => Err(status),
    }
}

/// Removes all values of a header.
pub fn remove_header(map: Map, name: &[u8]) -> Outcome<()> {
    Status::of(abi::proxy_remove_header_map_value(map as u32, name))
}

/// Sets a header to one value.
pub fn set_header(map: Map, name: &str, value: &[u8]) -> Outcome<()> {
    Status::of(abi::proxy_replace_header_map_value(map as u32, name.as_bytes(), value))
}

/// A property of the request or the proxy; `path` is joined with NUL.
pub fn property(path: &[u8]) -> Outcome<Option<Vec<u8>>> {
    let mut out = Returned::new();
    match Status::of(abi::proxy_get_property(path, &mut out)) {
        Ok(()) => Ok(out.take()),
        Err(Status::NotFound) => Ok(None),
        Err(status) => Err(status),
    }
}

/// A value of the data that all VMs of one vm_id share, and its version for [`set_shared_data`].
pub fn shared_data(key: &str) -> Outcome<Option<(Vec<u8>, u32)>> {
    let (mut out, mut cas) = (Returned::new(), 0);
    match Status::of(abi::proxy_get_shared_data(key.as_bytes(), &mut out, &mut cas)) {
        Ok(()) => Ok(Some((out.take().unwrap_or_default(), cas))),
        Err(Status::NotFound) => Ok(None),
        Err(status) => Err(status),
    }
}

/// `cas` for "create, or tell me that it exists": closes the race of the first write.
pub const CREATE: u32 = u32::MAX;

/// Writes a value if its version still is `cas`.
pub fn set_shared_data(key: &str, value: &[u8], cas: u32) -> Outcome<()> {
    Status::of(abi::proxy_set_shared_data(key.as_bytes(), value, cas))
}

/// Registers the current root context as the one that is told about entries of a queue.
pub fn register_queue(name: &str) -> Outcome<u32> {
    let mut id = 0;
    Status::of(abi::proxy_register_shared_queue(name.as_bytes(), &mut id))?;
    Ok(id)
}

/// Appends to a queue.
pub fn enqueue(queue: u32, value: &[u8]) -> Outcome<()> {
    Status::of(abi::proxy_enqueue_shared_queue(queue, value))
}

/// Takes the oldest entry of a queue; `None` if it is empty.
pub fn dequeue(queue: u32) -> Outcome<Option<Vec<u8>>> {
    let mut out = Returned::new();
    match Status::of(abi::proxy_dequeue_shared_queue(queue, &mut out)) {
        Ok(()) => Ok(Some(out.take().unwrap_or_default())),
        Err(Status::Empty | Status::NotFound) => Ok(None),
        Err(status) => Err(status),
    }
}

/// Makes hostcalls act on another context, such as a held request from the tick.
pub fn set_effective_context(context: u32) -> Outcome<()> {
    Status::of(abi::proxy_set_effective_context(context))
}

/// Lets the held request of the effective context go on.
pub fn continue_request() -> Outcome<()> {
    const HTTP_REQUEST: u32 = 0;
    Status::of(abi::proxy_continue_stream(HTTP_REQUEST))
}

/// Opens a gRPC stream for the current root context and returns its token. `upstream` is a serialized `GrpcService`
/// ([`crate::link::grpc_service`]), never a bare cluster name: some names abort the whole Envoy process.
pub fn open_grpc_stream(upstream: &[u8], service: &str, method: &str) -> Outcome<u32> {
    const NO_METADATA: [u8; 4] = [0; 4];
    let mut token = 0;
    Status::of(abi::proxy_grpc_stream(
        upstream,
        service.as_bytes(),
        method.as_bytes(),
        &NO_METADATA,
        &mut token,
    ))?;
    Ok(token)
}

/// Sends the last message of a stream.
pub fn send_last_grpc_message(token: u32, message: &[u8]) -> Outcome<()> {
    Status::of(abi::proxy_grpc_send(token, message, true))
}

/// Resets a stream. Nothing is heard of it again.
pub fn cancel_grpc_stream(token: u32) -> Outcome<()> {
    Status::of(abi::proxy_grpc_cancel(token))
}

/// The id of a metric, defined if it is not yet.
pub fn define_metric(kind: Metric, name: &str) -> Outcome<u32> {
    let mut id = 0;
    Status::of(abi::proxy_define_metric(kind as u32, name.as_bytes(), &mut id))?;
    Ok(id)
}

/// Adds to a counter.
pub fn increment_metric(id: u32, by: u64) -> Outcome<()> {
    Status::of(abi::proxy_increment_metric(id, i64::try_from(by).unwrap_or(i64::MAX)))
}

/// Sets a gauge.
pub fn record_metric(id: u32, value: u64) -> Outcome<()> {
    Status::of(abi::proxy_record_metric(id, value))
}
