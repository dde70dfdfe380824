//! A scripted host-shim: a directory, blocks, artifacts, served over the gRPC streams that a VM opens.

use std::collections::BTreeSet;

use inference_cache_core::replication::frame::seal;
use inference_cache_core::replication::proto::{self, payload::Body};
use prost::Message;
use sha2::{Digest, Sha256};

use crate::vm::Vm;

const CHUNK: usize = 64 << 10;

/// See the module.
#[derive(Debug, Default)]
pub struct HostShim {
    /// Of this incarnation; not 0.
    pub epoch: u64,
    /// Of the state.
    pub seq: u64,
    /// Sent whole with the snapshot.
    pub directory: proto::Directory,
    /// The entries of the snapshot.
    pub blocks: Vec<proto::Blocks>,
    /// Served by digest.
    pub artifacts: Vec<Artifact>,
    /// Tokens of the streams that were answered.
    pub served: BTreeSet<u32>,
}

/// A model artifact.
#[derive(Clone, Debug)]
pub struct Artifact {
    /// The file.
    pub bytes: Vec<u8>,
    /// SHA-256 of it.
    pub digest: Vec<u8>,
}

impl Artifact {
    /// With its digest.
    pub fn new(bytes: Vec<u8>) -> Artifact {
        let digest = Sha256::digest(&bytes).to_vec();
        Artifact { bytes, digest }
    }
}

impl HostShim {
    /// Replicas `(name, address)` of one model of the tenant `default`, with one scope of block size 16.
    pub fn with_replicas(model: &str, artifact: Option<Artifact>, replicas: &[(&str, &str)]) -> HostShim {
        let replica = |(id, (name, address)): (usize, &(&str, &str))| proto::Replica {
            id: id as u32 + 1,
            name: (*name).to_owned(),
            address: (*address).to_owned(),
            tenant: "default".to_owned(),
            model: model.to_owned(),
            ..Default::default()
        };
        let directory = proto::Directory {
            replicas: replicas.iter().enumerate().map(replica).collect(),
            scopes: vec![proto::Scope {
                id: 1,
                tenant: "default".to_owned(),
                model: model.to_owned(),
                hash_scheme: inference_cache_core::hash::SCHEME.to_owned(),
                adapter: String::new(),
            }],
            models: vec![proto::Model {
                name: model.to_owned(),
                artifact_digest: artifact
                    .as_ref()
                    .map(|artifact| artifact.digest.clone())
                    .unwrap_or_default(),
                artifact_size: artifact.as_ref().map_or(0, |artifact| artifact.bytes.len() as u64),
                block_sizes: vec![16],
                ..Default::default()
            }],
            ttl_s: 0,
        };
        HostShim {
            epoch: 0xe90c,
            seq: 1,
            directory,
            artifacts: artifact.into_iter().collect(),
            ..HostShim::default()
        }
    }

    /// Answers every stream that the VM has opened since the last call.
    pub fn serve(&mut self, vm: &mut Vm) {
        for stream in vm.host().streams() {
            if stream.vm != vm.number()
                || !stream.open
                || !stream.half_closed
                || !self.served.insert(stream.token)
            {
                continue;
            }
            assert_eq!(stream.service, "inferencecache.replication.v1.Replication");
            match stream.method.as_str() {
                "Subscribe" => self.snapshot(vm, stream.token),
                "FetchArtifact" => self.artifact(vm, stream.token, &stream.sent),
                other => panic!("unknown method {other}"),
            }
        }
    }

    /// Ticks and serves until the VM has everything, with a heartbeat each second.
    ///
    /// # Panics
    /// If that takes more than 10 s of the host's clock.
    pub fn bring_up(&mut self, vm: &mut Vm) {
        let models =
            self.directory.models.iter().filter(|model| !model.artifact_digest.is_empty()).count() as i64;
        for _ in 0..10 {
            for _ in 0..5 {
                vm.run_for(200);
                self.serve(vm);
            }
            self.send(vm, Body::Heartbeat(proto::Heartbeat {}), false);
            let metric = |name| vm.host().metric(name);
            if metric("inference_cache_ready") == 1 && metric("inference_cache_models_loaded") >= models {
                return;
            }
        }
        panic!("not ready: {:#?}\n{:#?}", vm.host().metrics(), vm.host().log());
    }

    /// Sends a delta on every open replication stream of the VM.
    pub fn delta(&mut self, vm: &mut Vm, ops: Vec<proto::Op>) {
        self.send(vm, Body::Delta(proto::Delta { directory: None, ops }), true);
    }

    /// Sends a frame on every open replication stream of the VM; `moves`: it makes a new state.
    pub fn send(&mut self, vm: &mut Vm, body: Body, moves: bool) {
        let base = self.seq;
        self.seq += u64::from(moves);
        let frame = seal(self.epoch, base, self.seq, body).encode_to_vec();
        for stream in self.open_streams(vm) {
            vm.grpc_message(stream, &frame);
        }
        vm.pump();
    }

    /// Tokens of the open replication streams of the VM.
    pub fn open_streams(&self, vm: &Vm) -> Vec<u32> {
        let is_ours = |stream: &crate::GrpcStream| {
            stream.vm == vm.number()
                && stream.open
                && stream.method == "Subscribe"
                && self.served.contains(&stream.token)
        };
        vm.host().streams().into_iter().filter(is_ours).map(|stream| stream.token).collect()
    }

    fn snapshot(&self, vm: &mut Vm, token: u32) {
        let begin = proto::SnapshotBegin { protocol_version: 1, directory: Some(self.directory.clone()) };
        let entries = self.blocks.iter().map(|blocks| blocks.hashes.len() as u64).sum();
        let chunks = self.blocks.chunks(8).map(|blocks| proto::SnapshotChunk { blocks: blocks.to_vec() });
        let bodies = std::iter::once(Body::SnapshotBegin(begin))
            .chain(chunks.map(Body::SnapshotChunk))
            .chain([Body::SnapshotEnd(proto::SnapshotEnd { entries })]);
        for body in bodies {
            vm.grpc_message(token, &seal(self.epoch, self.seq, self.seq, body).encode_to_vec());
        }
        vm.pump();
    }

    fn artifact(&self, vm: &mut Vm, token: u32, sent: &[Vec<u8>]) {
        let request =
            sent.first().and_then(|bytes| proto::FetchArtifactRequest::decode(bytes.as_slice()).ok());
        let digest = request.expect("a request").digest;
        let Some(artifact) = self.artifacts.iter().find(|artifact| artifact.digest == digest) else {
            return vm.grpc_close(token, 5);
        };
        for (at, data) in artifact.bytes.chunks(CHUNK).enumerate() {
            let size = if at == 0 { artifact.bytes.len() as u64 } else { 0 };
            vm.grpc_message(token, &proto::ArtifactChunk { size, data: data.to_vec() }.encode_to_vec());
        }
        vm.grpc_close(token, 0);
        vm.pump();
    }
}
