//! What must hold of every answer, and the table of them.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use e2e::load::Played;
use e2e::shadow::Shadow;
use inference_cache_core::openai::Endpoint;

pub(crate) struct Checks {
    shadow: Shadow,
    /// Of each conversation.
    replicas: BTreeMap<String, String>,
    pub(crate) failures: Vec<String>,
    pub(crate) requests: usize,
    phase: String,
}

impl Checks {
    pub(crate) fn new(shadow: Shadow) -> Checks {
        Checks { shadow, replicas: BTreeMap::new(), failures: Vec::new(), requests: 0, phase: String::new() }
    }

    /// Begins a part of the run.
    pub(crate) fn title(&mut self, phase: &str) {
        phase.clone_into(&mut self.phase);
        println!(
            "\n{phase}\n  # request                replica  reason        prompt  predicted  cached  tokens\n\
             --- ---------------------- -------- ------------- ------ ---------- ------- ------"
        );
    }

    /// Conversations may change their replicas, once: it lost what it held.
    pub(crate) fn may_move(&mut self) {
        self.replicas.clear();
    }

    pub(crate) fn check(&mut self, played: &Played) {
        self.requests += 1;
        let failed = self.violations(played).unwrap_or_else(|error| vec![format!("{error:#}")]);
        let Played { number, title, answer, .. } = played;
        println!(
            "{number:3} {title:22} {:8} {:13} {:6} {:10} {:7} {}",
            answer.hint.replica.as_deref().unwrap_or("-"),
            answer.hint.reason.as_deref().unwrap_or("-"),
            answer.prompt_tokens.unwrap_or(0),
            answer.hint.matched_tokens.unwrap_or(0),
            played.cached(),
            if failed.is_empty() { "equal" } else { "FAILED" }
        );
        let Checks { phase, failures, .. } = self;
        failures.extend(failed.into_iter().map(|problem| format!("{phase}, {title}: {problem}")));
    }

    fn violations(&mut self, played: &Played) -> Result<Vec<String>> {
        let answer = &played.answer;
        let mut violations = Vec::new();
        if !played.predicted_right() {
            let predicted = answer.hint.matched_tokens;
            violations.push(format!("predicted {predicted:?}, vLLM reports {:?}", answer.cached_tokens));
        }

        let is_chat = played.body.get("messages").is_some();
        let endpoint = if is_chat { Endpoint::ChatCompletions } else { Endpoint::Completions };
        let ours = self.shadow.tokens(endpoint, &played.body)?;
        let theirs = answer.prompt_token_ids.as_ref().context("vLLM returned no token ids")?;
        if ours != *theirs {
            let at = ours.iter().zip(theirs).take_while(|(ours, theirs)| ours == theirs).count();
            let (ours, theirs) = (ours.len(), theirs.len());
            violations.push(format!("token {at} differs ({ours} tokens here, {theirs} in vLLM)"));
        }

        let replica = answer.hint.replica.clone().context("no replica was named")?;
        if let Some(conversation) = &played.conversation {
            let first = self.replicas.entry(conversation.clone()).or_insert_with(|| replica.clone());
            if *first != replica {
                violations.push(format!("moved from {first} to {replica}"));
            }
        }
        Ok(violations)
    }
}
