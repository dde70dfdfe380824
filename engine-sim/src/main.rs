//! engine-sim.
fn main() {}
