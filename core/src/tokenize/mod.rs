//! Exact tokenization over a compiled artifact.
