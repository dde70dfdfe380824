//! Imported functions. Each `unsafe` call passes pointers to live Rust values of the length given beside them.

use super::Returned;

mod raw {
    #[link(wasm_import_module = "env")]
    unsafe extern "C" {
        pub(super) fn proxy_log(level: u32, data: *const u8, size: usize) -> u32;
        pub(super) fn proxy_get_current_time_nanoseconds(time: *mut u64) -> u32;
        pub(super) fn proxy_set_tick_period_milliseconds(period: u32) -> u32;
        pub(super) fn proxy_get_buffer_bytes(
            kind: u32,
            start: usize,
            max: usize,
            data: *mut *mut u8,
            size: *mut usize,
        ) -> u32;
        pub(super) fn proxy_get_header_map_pairs(map: u32, data: *mut *mut u8, size: *mut usize) -> u32;
        pub(super) fn proxy_get_header_map_value(
            map: u32,
            key: *const u8,
            key_size: usize,
            data: *mut *mut u8,
            size: *mut usize,
        ) -> u32;
        pub(super) fn proxy_remove_header_map_value(map: u32, key: *const u8, key_size: usize) -> u32;
        pub(super) fn proxy_replace_header_map_value(
            map: u32,
            key: *const u8,
            key_size: usize,
            value: *const u8,
            value_size: usize,
        ) -> u32;
        pub(super) fn proxy_get_property(
            path: *const u8,
            path_size: usize,
            data: *mut *mut u8,
            size: *mut usize,
        ) -> u32;
        pub(super) fn proxy_get_shared_data(
            key: *const u8,
            key_size: usize,
            data: *mut *mut u8,
            size: *mut usize,
            cas: *mut u32,
        ) -> u32;
        pub(super) fn proxy_set_shared_data(
            key: *const u8,
            key_size: usize,
            value: *const u8,
            value_size: usize,
            cas: u32,
        ) -> u32;
        pub(super) fn proxy_register_shared_queue(name: *const u8, name_size: usize, id: *mut u32) -> u32;
        pub(super) fn proxy_enqueue_shared_queue(id: u32, value: *const u8, value_size: usize) -> u32;
        pub(super) fn proxy_dequeue_shared_queue(id: u32, data: *mut *mut u8, size: *mut usize) -> u32;
        pub(super) fn proxy_continue_stream(stream: u32) -> u32;
        pub(super) fn proxy_grpc_stream(
            upstream: *const u8,
            upstream_size: usize,
            service: *const u8,
            service_size: usize,
            method: *const u8,
            method_size: usize,
            metadata: *const u8,
            metadata_size: usize,
            token: *mut u32,
        ) -> u32;
        pub(super) fn proxy_grpc_send(
            token: u32,
            message: *const u8,
            message_size: usize,
            end_of_stream: u32,
        ) -> u32;
        pub(super) fn proxy_grpc_cancel(token: u32) -> u32;
        pub(super) fn proxy_set_effective_context(context: u32) -> u32;
        pub(super) fn proxy_define_metric(kind: u32, name: *const u8, name_size: usize, id: *mut u32) -> u32;
        pub(super) fn proxy_increment_metric(id: u32, by: i64) -> u32;
        pub(super) fn proxy_record_metric(id: u32, value: u64) -> u32;
    }

    #[link(wasm_import_module = "wasi_snapshot_preview1")]
    unsafe extern "C" {
        pub(super) fn clock_time_get(clock: u32, precision: u64, time: *mut u64) -> u32;
    }
}

pub(crate) fn proxy_log(level: u32, message: &[u8]) -> u32 {
    // SAFETY: see the module doc.
    unsafe { raw::proxy_log(level, message.as_ptr(), message.len()) }
}

pub(crate) fn proxy_get_current_time_nanoseconds(time: &mut u64) -> u32 {
    // SAFETY: see the module doc.
    unsafe { raw::proxy_get_current_time_nanoseconds(time) }
}

pub(crate) fn proxy_set_tick_period_milliseconds(period: u32) -> u32 {
    // SAFETY: no pointers.
    unsafe { raw::proxy_set_tick_period_milliseconds(period) }
}

pub(crate) fn proxy_get_buffer_bytes(kind: u32, start: usize, max: usize, out: &mut Returned) -> u32 {
    // SAFETY: see the module doc.
    unsafe { raw::proxy_get_buffer_bytes(kind, start, max, &mut out.data, &mut out.size) }
}

pub(crate) fn proxy_get_header_map_pairs(map: u32, out: &mut Returned) -> u32 {
    // SAFETY: see the module doc.
    unsafe { raw::proxy_get_header_map_pairs(map, &mut out.data, &mut out.size) }
}

pub(crate) fn proxy_get_header_map_value(map: u32, key: &[u8], out: &mut Returned) -> u32 {
    // SAFETY: see the module doc.
    unsafe { raw::proxy_get_header_map_value(map, key.as_ptr(), key.len(), &mut out.data, &mut out.size) }
}

pub(crate) fn proxy_remove_header_map_value(map: u32, key: &[u8]) -> u32 {
    // SAFETY: see the module doc.
    unsafe { raw::proxy_remove_header_map_value(map, key.as_ptr(), key.len()) }
}

pub(crate) fn proxy_replace_header_map_value(map: u32, key: &[u8], value: &[u8]) -> u32 {
    // SAFETY: see the module doc.
    unsafe { raw::proxy_replace_header_map_value(map, key.as_ptr(), key.len(), value.as_ptr(), value.len()) }
}

pub(crate) fn proxy_get_property(path: &[u8], out: &mut Returned) -> u32 {
    // SAFETY: see the module doc.
    unsafe { raw::proxy_get_property(path.as_ptr(), path.len(), &mut out.data, &mut out.size) }
}

pub(crate) fn proxy_get_shared_data(key: &[u8], out: &mut Returned, cas: &mut u32) -> u32 {
    // SAFETY: see the module doc.
    unsafe { raw::proxy_get_shared_data(key.as_ptr(), key.len(), &mut out.data, &mut out.size, cas) }
}

pub(crate) fn proxy_set_shared_data(key: &[u8], value: &[u8], cas: u32) -> u32 {
    // SAFETY: see the module doc.
    unsafe { raw::proxy_set_shared_data(key.as_ptr(), key.len(), value.as_ptr(), value.len(), cas) }
}

pub(crate) fn proxy_register_shared_queue(name: &[u8], id: &mut u32) -> u32 {
    // SAFETY: see the module doc.
    unsafe { raw::proxy_register_shared_queue(name.as_ptr(), name.len(), id) }
}

pub(crate) fn proxy_enqueue_shared_queue(id: u32, value: &[u8]) -> u32 {
    // SAFETY: see the module doc.
    unsafe { raw::proxy_enqueue_shared_queue(id, value.as_ptr(), value.len()) }
}

pub(crate) fn proxy_dequeue_shared_queue(id: u32, out: &mut Returned) -> u32 {
    // SAFETY: see the module doc.
    unsafe { raw::proxy_dequeue_shared_queue(id, &mut out.data, &mut out.size) }
}

pub(crate) fn proxy_continue_stream(stream: u32) -> u32 {
    // SAFETY: no pointers.
    unsafe { raw::proxy_continue_stream(stream) }
}

pub(crate) fn proxy_grpc_stream(
    upstream: &[u8],
    service: &[u8],
    method: &[u8],
    metadata: &[u8],
    token: &mut u32,
) -> u32 {
    // SAFETY: see the module doc.
    unsafe {
        raw::proxy_grpc_stream(
            upstream.as_ptr(),
            upstream.len(),
            service.as_ptr(),
            service.len(),
            method.as_ptr(),
            method.len(),
            metadata.as_ptr(),
            metadata.len(),
            token,
        )
    }
}

pub(crate) fn proxy_grpc_send(token: u32, message: &[u8], end_of_stream: bool) -> u32 {
    // SAFETY: see the module doc.
    unsafe { raw::proxy_grpc_send(token, message.as_ptr(), message.len(), u32::from(end_of_stream)) }
}

pub(crate) fn proxy_grpc_cancel(token: u32) -> u32 {
    // SAFETY: no pointers.
    unsafe { raw::proxy_grpc_cancel(token) }
}

pub(crate) fn proxy_set_effective_context(context: u32) -> u32 {
    // SAFETY: no pointers.
    unsafe { raw::proxy_set_effective_context(context) }
}

pub(crate) fn proxy_define_metric(kind: u32, name: &[u8], id: &mut u32) -> u32 {
    // SAFETY: see the module doc.
    unsafe { raw::proxy_define_metric(kind, name.as_ptr(), name.len(), id) }
}

pub(crate) fn proxy_increment_metric(id: u32, by: i64) -> u32 {
    // SAFETY: no pointers.
    unsafe { raw::proxy_increment_metric(id, by) }
}

pub(crate) fn proxy_record_metric(id: u32, value: u64) -> u32 {
    // SAFETY: no pointers.
    unsafe { raw::proxy_record_metric(id, value) }
}

pub(crate) fn wasi_clock_time_get(clock: u32, time: &mut u64) -> u32 {
    // SAFETY: see the module doc.
    unsafe { raw::clock_time_get(clock, 1_000, time) }
}
