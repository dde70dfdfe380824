//! engine-sim as a library.
