//! Generates the services: `inferencecache.replication.v1`, whose messages are core's, and `inferencecache.v1alpha1`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let replication = "../proto/inferencecache/replication/v1/replication.proto";
    let public = "../proto/inferencecache/v1alpha1/inferencecache.proto";
    println!("cargo::rerun-if-changed={replication}");
    println!("cargo::rerun-if-changed={public}");
    tonic_prost_build::configure()
        .extern_path(".inferencecache.replication.v1", "::inference_cache_core::replication::proto")
        .compile_fds(protox::compile([replication], ["../proto"])?)?;
    tonic_prost_build::configure()
        // Producers are not trusted with memory: see the codec.
        .codec_path("crate::producers::BoundedCodec")
        .compile_fds(protox::compile([public], ["../proto"])?)?;
    Ok(())
}
