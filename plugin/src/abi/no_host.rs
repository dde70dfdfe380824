//! No host: what native unit tests link. Every import answers "unimplemented".

use super::Returned;

const UNIMPLEMENTED: u32 = 12;

pub(crate) fn proxy_log(_: u32, _: &[u8]) -> u32 {
    UNIMPLEMENTED
}

pub(crate) fn proxy_get_current_time_nanoseconds(_: &mut u64) -> u32 {
    UNIMPLEMENTED
}

pub(crate) fn proxy_set_tick_period_milliseconds(_: u32) -> u32 {
    UNIMPLEMENTED
}

pub(crate) fn proxy_get_buffer_bytes(_: u32, _: usize, _: usize, _: &mut Returned) -> u32 {
    UNIMPLEMENTED
}

pub(crate) fn proxy_get_header_map_pairs(_: u32, _: &mut Returned) -> u32 {
    UNIMPLEMENTED
}

pub(crate) fn proxy_get_header_map_value(_: u32, _: &[u8], _: &mut Returned) -> u32 {
    UNIMPLEMENTED
}

pub(crate) fn proxy_remove_header_map_value(_: u32, _: &[u8]) -> u32 {
    UNIMPLEMENTED
}

pub(crate) fn proxy_replace_header_map_value(_: u32, _: &[u8], _: &[u8]) -> u32 {
    UNIMPLEMENTED
}

pub(crate) fn proxy_get_property(_: &[u8], _: &mut Returned) -> u32 {
    UNIMPLEMENTED
}

pub(crate) fn proxy_get_shared_data(_: &[u8], _: &mut Returned, _: &mut u32) -> u32 {
    UNIMPLEMENTED
}

pub(crate) fn proxy_set_shared_data(_: &[u8], _: &[u8], _: u32) -> u32 {
    UNIMPLEMENTED
}

pub(crate) fn proxy_register_shared_queue(_: &[u8], _: &mut u32) -> u32 {
    UNIMPLEMENTED
}

pub(crate) fn proxy_enqueue_shared_queue(_: u32, _: &[u8]) -> u32 {
    UNIMPLEMENTED
}

pub(crate) fn proxy_dequeue_shared_queue(_: u32, _: &mut Returned) -> u32 {
    UNIMPLEMENTED
}

pub(crate) fn proxy_continue_stream(_: u32) -> u32 {
    UNIMPLEMENTED
}

pub(crate) fn proxy_grpc_stream(_: &[u8], _: &[u8], _: &[u8], _: &[u8], _: &mut u32) -> u32 {
    UNIMPLEMENTED
}

pub(crate) fn proxy_grpc_send(_: u32, _: &[u8], _: bool) -> u32 {
    UNIMPLEMENTED
}

pub(crate) fn proxy_grpc_cancel(_: u32) -> u32 {
    UNIMPLEMENTED
}

pub(crate) fn proxy_set_effective_context(_: u32) -> u32 {
    UNIMPLEMENTED
}

pub(crate) fn proxy_define_metric(_: u32, _: &[u8], _: &mut u32) -> u32 {
    UNIMPLEMENTED
}

pub(crate) fn proxy_increment_metric(_: u32, _: i64) -> u32 {
    UNIMPLEMENTED
}

pub(crate) fn proxy_record_metric(_: u32, _: u64) -> u32 {
    UNIMPLEMENTED
}

pub(crate) fn wasi_clock_time_get(_: u32, _: &mut u64) -> u32 {
    UNIMPLEMENTED
}
