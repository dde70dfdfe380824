//! Prompts that are asked again: what the plugin predicts for them is what the index knows, what vLLM reports is what the
//! engines hold.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use e2e::Stack;
use e2e::load::Played;
use serde_json::{Value, json};

use crate::checks::Checks;

#[derive(Clone)]
pub(crate) struct Probes(Vec<(String, Value)>);

impl Probes {
    /// The last request of every conversation, and what stood alone.
    pub(crate) fn of(played: &[Played]) -> Probes {
        let mut last = BTreeMap::new();
        for one in played {
            last.insert(one.conversation.clone().unwrap_or_else(|| one.title.clone()), one.body.clone());
        }
        Probes(last.into_iter().collect())
    }

    pub(crate) fn one(title: String, body: Value) -> Probes {
        Probes(vec![(title, body)])
    }

    /// The same prompts for another model.
    pub(crate) fn with_model(&self, model: &str) -> Probes {
        let mut probes = self.clone();
        for (title, body) in &mut probes.0 {
            *title = format!("{model}: {title}");
            body["model"] = json!(model);
        }
        probes
    }

    pub(crate) fn first(mut self, count: usize) -> Probes {
        self.0.truncate(count);
        self
    }

    pub(crate) fn extend(&mut self, more: Probes) {
        self.0.extend(more.0);
    }

    /// Asks one after the other and checks each; the tokens that vLLM found in its caches.
    pub(crate) async fn ask(&self, stack: &Stack, checks: &mut Checks) -> Result<u64> {
        let mut cached = 0;
        for (number, (title, body)) in self.0.iter().enumerate() {
            let path =
                if body.get("messages").is_some() { "/v1/chat/completions" } else { "/v1/completions" };
            let answer = stack.client.send(path, body, &[]).await?;
            ensure!(answer.status == 200, "{title}: HTTP status {}, {}", answer.status, answer.body);
            // A prompt whose blocks were evicted may go anywhere: its place is not checked.
            let played = Played {
                number: number + 1,
                title: title.clone(),
                conversation: None,
                body: body.clone(),
                answer,
            };
            checks.check(&played);
            cached += played.cached();
            stack.settle().await;
        }
        Ok(cached)
    }
}
