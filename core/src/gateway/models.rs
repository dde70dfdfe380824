//! Model artifacts of this VM: fetched by digest, one at a time, checked, loaded, dropped when no model names them.
//!
//! The digest is computed as the chunks arrive, so that no callback hashes the whole artifact (7 MB take 20 ms in
//! wasm). An artifact that fails is not asked for again until the directory names another.

use crate::replication::{Directory, ReplicationError, proto};
use crate::template::ChatTemplate;
use crate::tokenize::Tokenizer;
use hashbrown::{HashMap, HashSet};
use prost::Message;
use sha2::{Digest as _, Sha256};

const MAX_ARTIFACT: u64 = 128 << 20;

/// SHA-256 of an artifact.
pub type Digest = [u8; 32];

/// What it takes to turn a request of a model into tokens.
#[derive(Debug)]
pub struct Model {
    /// The encoder.
    pub tokenizer: Tokenizer,
    /// The chat template; none: chats cannot be rendered.
    pub template: Option<ChatTemplate>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Models {
    loaded: HashMap<Digest, Model>,
    failed: HashSet<Digest>,
    download: Option<Download>,
}

#[derive(Debug)]
struct Download {
    digest: Digest,
    hasher: Sha256,
    bytes: Vec<u8>,
}

impl Model {
    /// Loads an artifact.
    pub fn load(artifact: Vec<u8>) -> Result<Model, ReplicationError> {
        let tokenizer = Tokenizer::load(artifact).map_err(|_| ReplicationError::Artifact("does not load"))?;
        let template = match tokenizer.chat_template() {
            Some(source) => Some(
                ChatTemplate::compile(source, tokenizer.template_settings())
                    .map_err(|_| ReplicationError::Artifact("its chat template does not compile"))?,
            ),
            None => None,
        };
        Ok(Model { tokenizer, template })
    }
}

impl Models {
    pub(super) fn get(&self, digest: &Digest) -> Option<&Model> {
        self.loaded.get(digest)
    }

    pub(super) fn count(&self) -> usize {
        self.loaded.len()
    }

    /// Drops what the directory no longer names.
    pub(super) fn retain(&mut self, directory: &Directory) {
        let named = |digest: &Digest| directory.models().any(|model| model.artifact.as_ref() == Some(digest));
        self.loaded.retain(|digest, _| named(digest));
        self.failed.retain(named);
    }

    /// The next digest to fetch; none while a download runs.
    pub(super) fn wanted(&self, directory: &Directory) -> Option<Digest> {
        if self.download.is_some() {
            return None;
        }
        let mut digests = directory.models().filter_map(|model| model.artifact);
        digests.find(|digest| !self.loaded.contains_key(digest) && !self.failed.contains(digest))
    }

    pub(super) fn begin(&mut self, digest: Digest) {
        self.download = Some(Download { digest, hasher: Sha256::new(), bytes: Vec::new() });
    }

    pub(super) fn chunk(&mut self, message: &[u8]) -> Result<(), ReplicationError> {
        let chunk = proto::ArtifactChunk::decode(message)
            .map_err(|_| ReplicationError::Malformed("artifact chunk"))?;
        let Some(download) = &mut self.download else { return Ok(()) };
        let size = (download.bytes.len() as u64 + chunk.data.len() as u64).max(chunk.size);
        if size > MAX_ARTIFACT {
            return Err(self.fail("is too large"));
        }
        let room = (size as usize).saturating_sub(download.bytes.len());
        if download.bytes.try_reserve_exact(room).is_err() {
            return Err(self.fail("does not fit into memory"));
        }
        download.hasher.update(&chunk.data);
        download.bytes.extend_from_slice(&chunk.data);
        Ok(())
    }

    /// The stream of chunks ended; `complete` if in good order.
    pub(super) fn end(&mut self, complete: bool) -> Result<(), ReplicationError> {
        let Some(Download { digest, hasher, bytes }) = self.download.take() else { return Ok(()) };
        if !complete {
            // To be asked for again: the other side may only have restarted.
            return Err(ReplicationError::Artifact("download broke off"));
        }
        if hasher.finalize().as_slice() != digest {
            self.failed.insert(digest);
            return Err(ReplicationError::Artifact("digest is wrong"));
        }
        match Model::load(bytes) {
            Ok(model) => {
                self.loaded.insert(digest, model);
                Ok(())
            }
            Err(error) => {
                self.failed.insert(digest);
                Err(error)
            }
        }
    }

    fn fail(&mut self, problem: &'static str) -> ReplicationError {
        if let Some(download) = self.download.take() {
            self.failed.insert(download.digest);
        }
        ReplicationError::Artifact(problem)
    }
}
