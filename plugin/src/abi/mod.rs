//! The border to the host: proxy-wasm ABI 0.2.1, as far as it is used, and one WASI clock.
//!
//! The only module with unsafe code. Imports are declared with plain integers (a status is a `u32`, whatever its
//! value), exports take plain integers and forward to [`crate::vm`]. Natively, where unit tests run, there is no host:
//! every import answers "unimplemented".

#![allow(unsafe_code)]

#[cfg(target_arch = "wasm32")]
mod exports;
#[cfg(target_arch = "wasm32")]
mod imports;
#[cfg(not(target_arch = "wasm32"))]
#[path = "no_host.rs"]
mod imports;

pub(crate) use imports::{
    proxy_continue_stream, proxy_define_metric, proxy_dequeue_shared_queue, proxy_enqueue_shared_queue,
    proxy_get_buffer_bytes, proxy_get_current_time_nanoseconds, proxy_get_header_map_pairs,
    proxy_get_header_map_value, proxy_get_property, proxy_get_shared_data, proxy_grpc_cancel,
    proxy_grpc_send, proxy_grpc_stream, proxy_increment_metric, proxy_log, proxy_record_metric,
    proxy_register_shared_queue, proxy_remove_header_map_value, proxy_replace_header_map_value,
    proxy_set_effective_context, proxy_set_shared_data, proxy_set_tick_period_milliseconds,
    wasi_clock_time_get,
};

/// Where a hostcall puts bytes: memory that the host asked [`allocate`] for.
#[derive(Debug)]
pub(crate) struct Returned {
    pub(crate) data: *mut u8,
    pub(crate) size: usize,
}

impl Returned {
    pub(crate) const fn new() -> Returned {
        Returned { data: std::ptr::null_mut(), size: 0 }
    }

    /// The bytes, owned. `None` if the host returned none.
    pub(crate) fn take(self) -> Option<Vec<u8>> {
        if self.data.is_null() || self.size == 0 {
            return None;
        }
        // SAFETY: a host returns a pointer that it got from `allocate(size)` in this very hostcall and gives it away;
        // the layout of `allocate` is that of a `Vec<u8>` whose capacity is `size`. `self` is consumed: no second owner.
        Some(unsafe { Vec::from_raw_parts(self.data, self.size, self.size) })
    }
}

/// Memory for the host to put `size` bytes into; null if there is none, which the hostcall then reports as a status.
#[cfg(target_arch = "wasm32")]
fn allocate(size: usize) -> *mut u8 {
    let Ok(layout) = std::alloc::Layout::array::<u8>(size) else { return std::ptr::null_mut() };
    if size == 0 {
        return std::ptr::null_mut();
    }
    // SAFETY: the layout has a size other than zero.
    unsafe { std::alloc::alloc(layout) }
}
