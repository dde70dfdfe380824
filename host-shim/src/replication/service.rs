//! The gRPC service over the writer.

use super::proto::replication_server::Replication;
use crate::models::Model;
use crate::writer::WriterHandle;
use futures::stream::{self, BoxStream, StreamExt};
use inference_cache_core::replication::PROTOCOL_VERSION;
use inference_cache_core::replication::proto::{
    ArtifactChunk, FetchArtifactRequest, Frame, SubscribeRequest,
};
use std::sync::Arc;
use tonic::{Request, Response, Status};

const CHUNK: usize = 64 << 10;
const MAX_SUBSCRIBER: usize = 256;

#[derive(Clone, Debug)]
pub(crate) struct Service {
    writer: WriterHandle,
    models: Arc<[Model]>,
}

impl Service {
    pub(crate) fn new(writer: WriterHandle, models: Arc<[Model]>) -> Service {
        Service { writer, models }
    }
}

#[tonic::async_trait]
impl Replication for Service {
    type SubscribeStream = BoxStream<'static, Result<Frame, Status>>;
    type FetchArtifactStream = BoxStream<'static, Result<ArtifactChunk, Status>>;

    async fn subscribe(
        &self,
        request: Request<SubscribeRequest>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        let request = request.into_inner();
        if request.protocol_version < PROTOCOL_VERSION {
            return Err(Status::failed_precondition("protocol version 1 is the oldest spoken"));
        }
        if request.subscriber.is_empty() || request.subscriber.len() > MAX_SUBSCRIBER {
            return Err(Status::invalid_argument("subscriber: must be 1 to 256 bytes"));
        }
        if !request.models.is_empty() {
            return Err(Status::unimplemented("models: streams of some models only are not served yet"));
        }
        tracing::info!(
            subscriber = request.subscriber,
            epoch = request.epoch,
            seq = request.seq,
            "subscribed"
        );
        let queue = self
            .writer
            .subscribe(request.subscriber, (request.epoch, request.seq))
            .await
            .ok_or_else(|| Status::unavailable("host-shim is shutting down"))?;
        let frames = stream::unfold(Some(queue), |queue| async move {
            let queue = queue?;
            match queue.next().await {
                Ok(frame) => Some((Ok(frame), Some(queue))),
                Err(status) => Some((Err(status), None)),
            }
        });
        Ok(Response::new(frames.boxed()))
    }

    async fn fetch_artifact(
        &self,
        request: Request<FetchArtifactRequest>,
    ) -> Result<Response<Self::FetchArtifactStream>, Status> {
        let digest = request.into_inner().digest;
        let model = self.models.iter().find(|model| model.digest[..] == digest[..]);
        let artifact =
            model.ok_or_else(|| Status::not_found("no artifact with this digest"))?.artifact.clone();
        let chunks = (0..artifact.len().max(1)).step_by(CHUNK).map(move |start| {
            let data = artifact.slice(start..artifact.len().min(start + CHUNK));
            let size = if start == 0 { artifact.len() as u64 } else { 0 };
            Ok(ArtifactChunk { size, data: data.to_vec() })
        });
        Ok(Response::new(stream::iter(chunks).boxed()))
    }
}
