//! gRPC streams that a VM opened: what tests see of them.

use prost::Message;

/// A stream, open or not.
#[derive(Clone, Debug)]
pub struct GrpcStream {
    /// The host's name for it.
    pub token: u32,
    /// The VM and the root context that opened it.
    pub vm: usize,
    #[allow(missing_docs)]
    pub context: u32,
    /// From the `GrpcService`.
    pub cluster: String,
    #[allow(missing_docs)]
    pub authority: String,
    /// `package.Service`.
    pub service: String,
    #[allow(missing_docs)]
    pub method: String,
    /// Messages that the VM sent.
    pub sent: Vec<Vec<u8>>,
    /// The VM sent its last message.
    pub half_closed: bool,
    /// Nobody closed or cancelled it.
    pub open: bool,
}

/// `envoy.config.core.v3.GrpcService`, as far as it is used.
#[derive(Clone, PartialEq, Message)]
struct GrpcService {
    #[prost(message, optional, tag = "1")]
    envoy_grpc: Option<EnvoyGrpc>,
}

#[derive(Clone, PartialEq, Message)]
struct EnvoyGrpc {
    #[prost(string, tag = "1")]
    cluster_name: String,
    #[prost(string, tag = "2")]
    authority: String,
}

/// Cluster and authority, if `upstream` is what it must be. A bare name can abort a real Envoy.
pub(crate) fn parse_upstream(upstream: &[u8]) -> Option<(String, String)> {
    let envoy_grpc = GrpcService::decode(upstream).ok()?.envoy_grpc?;
    (!envoy_grpc.cluster_name.is_empty()).then_some((envoy_grpc.cluster_name, envoy_grpc.authority))
}
