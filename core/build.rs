//! Generates the message types of `inferencecache.replication.v1`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let proto = "../proto/inferencecache/replication/v1/replication.proto";
    println!("cargo::rerun-if-changed={proto}");
    let descriptors = protox::compile([proto], ["../proto"])?;
    prost_build::Config::new().compile_fds(descriptors)?;
    Ok(())
}
