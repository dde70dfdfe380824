//! host-shim as a library.
