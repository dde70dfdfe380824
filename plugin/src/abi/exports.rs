//! Exported functions: what the host calls. Each forwards to [`crate::vm`]; none can panic.
//!
//! Callbacks that the plugin has no use for (network filters, HTTP calls, foreign functions) are not exported: hosts
//! look exports up by name and leave out what is missing.

use crate::vm;

unsafe extern "C" {
    fn __wasm_call_ctors();
}

#[unsafe(no_mangle)]
extern "C" fn _initialize() {
    // SAFETY: provided by the linker; a host calls `_initialize` once, before anything else.
    unsafe { __wasm_call_ctors() };
    vm::initialize();
}

#[unsafe(no_mangle)]
extern "C" fn proxy_abi_version_0_2_1() {}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_memory_allocate(size: usize) -> *mut u8 {
    super::allocate(size)
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_context_create(context: u32, parent: u32) {
    vm::on_context_create(context, parent);
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_vm_start(_context: u32, _size: u32) -> u32 {
    1
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_configure(context: u32, size: usize) -> u32 {
    u32::from(vm::on_configure(context, size))
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_tick(context: u32) {
    vm::on_tick(context);
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_queue_ready(context: u32, queue: u32) {
    vm::on_queue_ready(context, queue);
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_request_headers(context: u32, _count: u32, end_of_stream: u32) -> u32 {
    vm::on_request_headers(context, end_of_stream != 0) as u32
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_request_body(context: u32, size: usize, end_of_stream: u32) -> u32 {
    vm::on_request_body(context, size, end_of_stream != 0) as u32
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_request_trailers(context: u32, _count: u32) -> u32 {
    vm::on_request_trailers(context) as u32
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_response_headers(context: u32, _count: u32, end_of_stream: u32) -> u32 {
    vm::on_response_headers(context, end_of_stream != 0);
    vm::Action::Continue as u32
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_response_body(context: u32, size: usize, end_of_stream: u32) -> u32 {
    vm::on_response_body(context, size, end_of_stream != 0);
    vm::Action::Continue as u32
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_response_trailers(context: u32, _count: u32) -> u32 {
    vm::on_response_body(context, 0, true);
    vm::Action::Continue as u32
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_grpc_receive(context: u32, token: u32, size: usize) {
    vm::on_grpc_receive(context, token, size);
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_grpc_close(context: u32, token: u32, status: u32) {
    vm::on_grpc_close(context, token, status);
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_done(_context: u32) -> u32 {
    1
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_log(context: u32) {
    vm::on_log(context);
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_delete(context: u32) {
    vm::on_delete(context);
}
