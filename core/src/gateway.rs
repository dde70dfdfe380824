//! The request path of one VM.
