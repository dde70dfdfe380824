//! Generates the service of `inferencecache.replication.v1`; its messages are those of core.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let proto = "../proto/inferencecache/replication/v1/replication.proto";
    println!("cargo::rerun-if-changed={proto}");
    let descriptors = protox::compile([proto], ["../proto"])?;
    tonic_prost_build::configure()
        .extern_path(".inferencecache.replication.v1", "::inference_cache_core::replication::proto")
        .compile_fds(descriptors)?;
    Ok(())
}
