//! host-shim.
fn main() {}
