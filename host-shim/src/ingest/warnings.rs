//! Why a source can never help: the causes that operators can do something about.
//!
//! | cause | what is wrong |
//! | --- | --- |
//! | `other_block_size` | blocks of another size than all other sources of the model have |
//! | `no_events` | the engine computed prompts for thousands of tokens, but says nothing of blocks |
//! | `unrouted_adapter` | events name an adapter that the replica's configuration does not |
//! | `decode_errors` | no event could be read |
//! | any other | no event was indexed, all for this reason: `sparse_group`, `nameless_adapter`, … |

use super::status::{SourceStatus, Statuses};
use crate::index::ReplicaId;
use crate::stats::Board;
use crate::writer::{HolderView, WriterHandle};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval};

const INTERVAL: Duration = Duration::from_secs(2);
/// Tokens that an engine cannot compute without filling blocks.
const TELLING_TOKENS: f64 = 4096.0;

/// Looks at all sources again and again; each cause is logged when it appears.
pub(crate) async fn watch(writer: WriterHandle, statuses: Statuses, board: Board) {
    let mut served = Served::default();
    let mut tick = interval(INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let Some(view) = writer.view().await else { return };
        let sources = statuses.all();
        let silent = served.without_events(&sources, &board);
        for source in &sources {
            let causes = causes(source, &view.holders, silent.contains(&source.id));
            for cause in causes.difference(&source.warnings) {
                tracing::warn!(replica = source.replica, rank = source.rank, cause, "{}", advice(cause));
            }
            statuses.update(source.id, |status| status.warnings = causes);
        }
    }
}

/// What is wrong with a source.
fn causes(source: &SourceStatus, holders: &[HolderView], silent: bool) -> BTreeSet<&'static str> {
    let mut causes = BTreeSet::new();
    if silent {
        causes.insert("no_events");
    }
    if let Some(own) = holders.iter().find(|holder| holder.id == source.id) {
        let model = &own.holder.replica.model;
        let others =
            holders.iter().filter(|other| other.id != own.id && other.holder.replica.model == *model);
        let mut sizes = others.filter_map(|other| other.block_size).peekable();
        let is_compared = own.block_size.is_some() && sizes.peek().is_some();
        if is_compared && sizes.all(|size| Some(size) != own.block_size) {
            causes.insert("other_block_size");
        }
        if own.unrouted_adapters > 0 {
            causes.insert("unrouted_adapter");
        }
    }
    let stats = &source.stats;
    if stats.stored_blocks == 0 {
        let skipped =
            stats.skipped.iter().filter(|(reason, _)| **reason != "unknown_event").collect::<Vec<_>>();
        match skipped[..] {
            [(&reason, _)] => {
                causes.insert(reason);
            }
            [] if stats.events == 0 && !stats.decode_errors.is_empty() => {
                causes.insert("decode_errors");
            }
            _ => {}
        }
    }
    causes
}

fn advice(cause: &str) -> &'static str {
    match cause {
        "no_events" => {
            "the engine serves requests but sends no events: are they enabled, is this its endpoint?"
        }
        "other_block_size" => {
            "no other source of the model has blocks of this size: prompts match one of them at most"
        }
        "unrouted_adapter" => {
            "events name an adapter that is not among the replica's adapters: nobody asks for it"
        }
        "decode_errors" => "no event can be read: is this an engine's event stream, of a supported release?",
        "sparse_group" => "all events are of sparse groups of a hybrid model: nothing can be indexed",
        "nameless_adapter" => "all events are of adapters without a name: the engine's release is too old",
        _ => "no event can be indexed",
    }
}

/// Tokens that engines had computed when their sources were silent for the first time.
#[derive(Debug, Default)]
struct Served(BTreeMap<ReplicaId, f64>);

impl Served {
    fn without_events(&mut self, sources: &[SourceStatus], board: &Board) -> BTreeSet<ReplicaId> {
        let scraped = board.scraped();
        let mut silent = BTreeSet::new();
        let mut since = BTreeMap::new();
        for source in sources.iter().filter(|source| source.connected && source.has_said_nothing()) {
            let Some(scraped) = scraped.get(&(source.replica.clone(), source.rank)) else { continue };
            let reading = &scraped.reading;
            let Some(queried) = reading.queried_tokens else { continue };
            let computed = queried - reading.hit_tokens.unwrap_or(0.0);
            let first = self.0.get(&source.id).copied().unwrap_or(computed).min(computed);
            since.insert(source.id, first);
            if computed - first >= TELLING_TOKENS {
                silent.insert(source.id);
            }
        }
        self.0 = since;
        silent
    }
}

impl SourceStatus {
    fn has_said_nothing(&self) -> bool {
        self.stats.batches == 0 && self.stats.replayed == 0 && self.stats.decode_errors.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::directory::Holder;
    use std::sync::Arc;

    /// Sources 1 to 3 of one model with these block sizes.
    fn sources(block_sizes: [Option<u32>; 3]) -> (Vec<SourceStatus>, Vec<HolderView>) {
        let statuses = Statuses::default();
        let config = Config::from_yaml(
            "models: [{ name: m, path: x }]\n\
             replicas: [{ id: a, address: 127.0.0.1:1, model: m, events: { endpoint: tcp://127.0.0.1:2 } }]\n",
        )
        .unwrap();
        let replica = Arc::new(config.replicas[0].clone());
        let holders = (1..).zip(block_sizes).map(|(id, block_size)| {
            statuses.add(id, "a".into(), id - 1);
            let holder = Holder { replica: replica.clone(), rank: id - 1 };
            HolderView { id, holder, block_size, entries: 0, unrouted_adapters: 0 }
        });
        let holders = holders.collect();
        (statuses.all(), holders)
    }

    #[test]
    fn a_block_size_of_its_own_is_told() {
        let all = |block_sizes| {
            let (statuses, holders) = sources(block_sizes);
            statuses.iter().map(|source| causes(source, &holders, false).len()).collect::<Vec<_>>()
        };
        assert_eq!(all([Some(16), Some(16), Some(32)]), [0, 0, 1]);
        assert_eq!(all([Some(16), Some(64), Some(32)]), [1, 1, 1]);
        assert_eq!(all([Some(16), None, None]), [0, 0, 0]);
    }

    #[test]
    fn one_reason_for_everything_is_told() {
        let (mut statuses, mut holders) = sources([Some(16); 3]);
        let source = &mut statuses[0];
        source.stats.skipped.insert("sparse_group", 7);
        assert!(causes(source, &holders, false).contains("sparse_group"));
        source.stats.stored_blocks = 1;
        assert!(causes(source, &holders, false).is_empty());
        source.stats = Default::default();
        source.stats.decode_errors.insert("not_a_batch", 1);
        holders[0].unrouted_adapters = 1;
        let expected = BTreeSet::from(["decode_errors", "no_events", "unrouted_adapter"]);
        assert_eq!(causes(source, &holders, true), expected);
    }
}
