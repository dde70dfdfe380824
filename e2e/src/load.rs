//! A scripted conversation load, the same in every run: what a gateway sees where several applications share engines.
//!
//! Each application has a long system prompt that all its conversations share; conversations have several turns, each
//! carrying the whole history with the answers that really came; in between come prompts that share nothing.
//! The script is a list of waves. Requests of a wave run at the same time; a wave begins when the one before is
//! answered and its KV events have arrived, and no two requests of a wave introduce the same new prefix. So what an
//! engine holds when a request comes is determined, and a prediction is right or wrong, never early.

use std::time::Duration;

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use serde_json::{Value, json};

use crate::client::{Answer, Client};

/// What to play.
#[derive(Debug, Clone)]
pub struct Script {
    pub model: String,
    /// Names of applications; each has a system prompt of its own.
    pub applications: Vec<&'static str>,
    pub conversations_per_application: usize,
    pub turns: usize,
    /// Prompts without anything shared, spread over the run.
    pub unshared: usize,
    pub system_words: usize,
    pub turn_words: usize,
    /// Tokens to generate per request.
    pub max_tokens: u32,
    /// Further fields of every request body.
    pub extra: Value,
}

impl Script {
    /// The load of the demo.
    pub fn demo(model: &str) -> Script {
        Script {
            model: model.to_owned(),
            applications: vec!["support", "contracts", "travel", "code review"],
            conversations_per_application: 3,
            turns: 3,
            unshared: 6,
            system_words: 900,
            turn_words: 40,
            max_tokens: 16,
            extra: json!({"temperature": 0}),
        }
    }
}

/// One answered request.
#[derive(Debug, Clone)]
pub struct Played {
    /// 1-based, in the order of the script.
    pub number: usize,
    /// "support 2, turn 1", "unshared 4".
    pub title: String,
    /// What identifies the conversation; `None` for a prompt that stands alone.
    pub conversation: Option<String>,
    /// The body that was sent.
    pub body: Value,
    pub answer: Answer,
}

impl Played {
    /// Whether the gateway said exactly what the engine then reported.
    pub fn predicted_right(&self) -> bool {
        self.answer.cached_tokens.is_some() && self.answer.hint.matched_tokens.unwrap_or(0) == self.cached()
    }

    /// Prompt tokens that the engine found in its cache.
    pub fn cached(&self) -> u64 {
        self.answer.cached_tokens.unwrap_or(0)
    }
}

/// Sums over a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Totals {
    pub requests: usize,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub mean_first_byte: Duration,
}

impl Totals {
    pub fn of(played: &[Played]) -> Totals {
        let first_bytes: Duration = played.iter().map(|one| one.answer.first_byte).sum();
        Totals {
            requests: played.len(),
            prompt_tokens: played.iter().filter_map(|one| one.answer.prompt_tokens).sum(),
            cached_tokens: played.iter().map(Played::cached).sum(),
            mean_first_byte: first_bytes / u32::try_from(played.len().max(1)).unwrap_or(u32::MAX),
        }
    }

    /// Share of prompt tokens found in a cache, 0 to 1.
    pub fn hit_rate(&self) -> f64 {
        self.cached_tokens as f64 / (self.prompt_tokens.max(1)) as f64
    }
}

/// Plays `script` through `client`. `settle` is awaited after each wave; `each` sees every answer as it comes.
pub async fn play(
    script: &Script,
    client: &Client,
    settle: impl AsyncFn(),
    mut each: impl FnMut(&Played),
) -> Result<Vec<Played>> {
    let mut conversations = conversations(script);
    let mut all: Vec<Played> = Vec::new();
    let mut unshared = 0;
    for wave in waves(script) {
        let mut requests: Vec<Request> = Vec::new();
        for (index, turn) in wave {
            requests.push(conversations[index].ask(script, index, turn));
        }
        // Standing alone, they may come at any time: one beside each wave while there are any.
        if unshared < script.unshared {
            unshared += 1;
            requests.push(Request::unshared(script, unshared));
        }
        let first = all.len() + 1;
        let sent =
            requests.into_iter().enumerate().map(|(offset, request)| request.send(client, first + offset));
        let answered = try_join_all(sent).await?;
        for (index, played) in answered {
            if let Some(index) = index {
                conversations[index]
                    .messages
                    .push(json!({"role": "assistant", "content": played.answer.text}));
            }
            each(&played);
            all.push(played);
        }
        settle().await;
    }
    Ok(all)
}

/// The conversations (by number) and turns that run at the same time. The first conversation of each application comes
/// first and alone in its application: it brings the system prompt in.
fn waves(script: &Script) -> Vec<Vec<(usize, usize)>> {
    let per_application = script.conversations_per_application;
    let openers = (0..script.applications.len()).map(|application| application * per_application);
    let mut waves: Vec<Vec<(usize, usize)>> = vec![openers.map(|index| (index, 0)).collect()];
    for turn in 0..script.turns {
        for member in 0..per_application {
            let wave: Vec<(usize, usize)> = (0..script.applications.len())
                .map(|application| (application * per_application + member, turn))
                .filter(|_| (member, turn) != (0, 0))
                .collect();
            if !wave.is_empty() {
                waves.push(wave);
            }
        }
    }
    waves
}

struct Conversation {
    name: String,
    messages: Vec<Value>,
}

impl Conversation {
    /// Adds the user's next message; the request carries all so far.
    fn ask(&mut self, script: &Script, index: usize, turn: usize) -> Request {
        let question = words(1_000 + index as u64 * 100 + turn as u64, script.turn_words);
        self.messages.push(json!({"role": "user", "content": question}));
        let body = with_extra(script, json!({"messages": self.messages}));
        let title = format!("{}, turn {}", self.name, turn + 1);
        Request { path: "/v1/chat/completions", title, conversation: Some((index, self.name.clone())), body }
    }
}

struct Request {
    path: &'static str,
    title: String,
    conversation: Option<(usize, String)>,
    body: Value,
}

impl Request {
    fn unshared(script: &Script, number: usize) -> Request {
        let prompt = words(500_000 + number as u64, script.system_words / 3);
        let body = with_extra(script, json!({"prompt": prompt}));
        Request { path: "/v1/completions", title: format!("unshared {number}"), conversation: None, body }
    }

    async fn send(self, client: &Client, number: usize) -> Result<(Option<usize>, Played)> {
        let headers: Vec<(&str, &str)> =
            self.conversation.iter().map(|(_, name)| ("x-conversation-id", name.as_str())).collect();
        let answer = client.send(self.path, &self.body, &headers).await?;
        ensure!(answer.status == 200, "{}: HTTP status {}, {}", self.title, answer.status, answer.body);
        let (index, conversation) = self.conversation.unzip();
        Ok((index, Played { number, title: self.title, conversation, body: self.body, answer }))
    }
}

fn conversations(script: &Script) -> Vec<Conversation> {
    let mut all = Vec::new();
    for (number, application) in script.applications.iter().enumerate() {
        // The difference comes at once: applications share no block.
        let system = format!("{application}: {}", words(number as u64, script.system_words));
        for member in 1..=script.conversations_per_application {
            let messages = vec![json!({"role": "system", "content": system})];
            all.push(Conversation { name: format!("{application} {member}"), messages });
        }
    }
    all
}

/// The script's common fields added to a body; streamed, with usage at the end.
fn with_extra(script: &Script, mut body: Value) -> Value {
    let common = json!({
        "model": script.model,
        "max_tokens": script.max_tokens,
        "stream": true,
        "stream_options": {"include_usage": true},
    });
    for fields in [&common, &script.extra] {
        for (name, value) in fields.as_object().into_iter().flatten() {
            body[name] = value.clone();
        }
    }
    body
}

/// `count` words of pseudo-random prose; different seeds differ from the first words on.
pub fn words(seed: u64, count: usize) -> String {
    const WORDS: &[&str] = &[
        "the", "customer", "asks", "about", "a", "delivery", "that", "was", "late", "and", "we", "answer",
        "with", "all", "we", "know", "of", "order", "price", "date", "place", "please", "check", "whether",
        "contract", "allows", "change", "before", "end", "month", "flight", "hotel", "train", "city",
        "north", "river", "open", "function", "returns", "error", "value", "list", "test", "fails",
        "because", "input", "empty", "never", "promise", "refund", "without", "approval", "explain", "each",
        "step", "short", "clear", "words", "in", "their", "language", "then", "offer", "help",
    ];
    // splitmix64: any seed is a good one.
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    };
    let mut text = String::new();
    for index in 0..count {
        text += if index == 0 { "" } else { " " };
        text += WORDS[(next() % WORDS.len() as u64) as usize];
        if index % 11 == 10 {
            text.push('.');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_turn_is_played_once_and_in_order() {
        let script = Script::demo("m");
        let mut turns = vec![0; script.applications.len() * script.conversations_per_application];
        for wave in waves(&script) {
            for (conversation, turn) in wave {
                assert_eq!(turns[conversation], turn, "conversation {conversation}");
                turns[conversation] += 1;
            }
        }
        assert!(turns.iter().all(|&count| count == script.turns), "{turns:?}");
    }

    #[test]
    fn a_wave_never_brings_in_the_same_prefix_twice() {
        let script = Script::demo("m");
        let per_application = script.conversations_per_application;
        for wave in waves(&script) {
            let mut applications: Vec<usize> =
                wave.iter().map(|(index, _)| index / per_application).collect();
            applications.sort_unstable();
            applications.dedup();
            assert_eq!(applications.len(), wave.len());
        }
    }

    #[test]
    fn texts_depend_on_the_seed_alone() {
        assert_eq!(words(1, 50), words(1, 50));
        assert_ne!(words(1, 8), words(2, 8));
        assert_eq!(words(3, 22).split(' ').count(), 22);
    }
}
