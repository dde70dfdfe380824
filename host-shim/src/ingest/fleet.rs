//! The sources that run: started, changed and ended as the configuration says.
//!
//! A replica whose configuration changes is another one: its tasks end, its entries leave the index, and it begins anew
//! under new ids. Only its list of adapters changes in place, as nothing that was heard depends on it.

use super::status::Statuses;
use super::worker;
use crate::config::ReplicaConfig;
use crate::directory::Holder;
use crate::index::ReplicaId;
use crate::models::Model;
use crate::stats::{self, Board};
use crate::writer::WriterHandle;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::task::JoinSet;

#[derive(Debug)]
pub(crate) struct Fleet {
    writer: WriterHandle,
    statuses: Statuses,
    board: Board,
    models: Arc<[Model]>,
    /// By name.
    replicas: BTreeMap<String, Running>,
}

#[derive(Debug)]
struct Running {
    config: Arc<ReplicaConfig>,
    /// One per rank.
    ids: Vec<ReplicaId>,
    tasks: JoinSet<()>,
}

impl Fleet {
    pub(crate) fn new(writer: WriterHandle, statuses: Statuses, board: Board, models: Arc<[Model]>) -> Fleet {
        Fleet { writer, statuses, board, models, replicas: BTreeMap::new() }
    }

    /// Makes these the replicas that run.
    pub(crate) async fn set(&mut self, wanted: &[ReplicaConfig]) {
        let stays = |running: &Running| wanted.iter().any(|config| same_source(config, &running.config));
        let gone: Vec<_> = self
            .replicas
            .iter()
            .filter(|(_, running)| !stays(running))
            .map(|(name, _)| name.clone())
            .collect();
        for name in gone {
            self.end(&name).await;
        }
        for config in wanted {
            match self.replicas.get_mut(&config.id) {
                None => self.begin(config).await,
                Some(running) if *running.config != *config => {
                    running.config = Arc::new(config.clone());
                    for (rank, &id) in (0..).zip(&running.ids) {
                        self.writer.update(id, Holder { replica: running.config.clone(), rank }).await;
                    }
                    tracing::info!(replica = config.id, "adapters changed");
                }
                Some(_) => {}
            }
        }
    }

    /// Ends all tasks; what they said stays.
    pub(crate) async fn shutdown(mut self) {
        for running in self.replicas.values_mut() {
            running.tasks.shutdown().await;
        }
    }

    async fn begin(&mut self, config: &ReplicaConfig) {
        let config = Arc::new(config.clone());
        let mut running = Running { config: config.clone(), ids: Vec::new(), tasks: JoinSet::new() };
        for rank in 0..config.events.ranks {
            let holder = Holder { replica: config.clone(), rank };
            let Some(id) = self.writer.enroll(holder.clone()).await else { return };
            running.ids.push(id);
            self.statuses.add(id, config.id.clone(), rank);
            let (writer, statuses) = (self.writer.clone(), self.statuses.clone());
            let process_started = self.board.process_started(&config.id, rank);
            let seeds = self.hash_seeds(&config.model);
            worker::start(&mut running.tasks, id, &holder, seeds, writer, statuses, process_started);
        }
        if let Some(metrics) = &config.metrics {
            stats::start(&mut running.tasks, config.id.clone(), metrics.clone(), self.board.clone());
        }
        self.replicas.insert(config.id.clone(), running);
    }

    /// Seeds that a model's engines may hash with.
    fn hash_seeds(&self, model: &str) -> Vec<String> {
        let schemes = self.models.iter().filter(|of| of.name == model).flat_map(|of| &of.engine_schemes);
        schemes.map(|scheme| scheme.seed.clone()).collect()
    }

    async fn end(&mut self, name: &str) {
        let Some(mut running) = self.replicas.remove(name) else { return };
        // Sockets are closed when this returns, so that the next one may bind them.
        running.tasks.shutdown().await;
        self.board.forget(name);
        for id in running.ids {
            self.writer.retire(id).await;
            self.statuses.remove(id);
        }
    }
}

/// Whether events of the one mean the same as events of the other.
fn same_source(one: &ReplicaConfig, other: &ReplicaConfig) -> bool {
    ReplicaConfig { adapters: Vec::new(), ..one.clone() }
        == ReplicaConfig { adapters: Vec::new(), ..other.clone() }
}
