//! The scheduler in real time: a task that runs steps, publishes their events and hands out their tokens.
//!
//! A step's events are published and its tokens delivered after the step's time ([`crate::config::Timing`]). A request
//! whose receiver is gone is given up before the next step. Memory is bounded: requests by [`MAX_WAITING`] and
//! `max_num_seqs`, tokens on their way by the length of the answer.

use crate::config::{Config, MAX_WAITING};
use crate::events::BatchEncoder;
use crate::publisher::Publisher;
use crate::scheduler::{Refused, Scheduler, StepOutput, Totals};
use crate::sequence::{Request, RequestId};
use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Commands that wait for the end of a step.
const MAX_COMMANDS: usize = 1024;

/// One answer token of one of the prompts of a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Output {
    /// Which prompt, in the order of the submission.
    pub(crate) prompt: usize,
    pub(crate) token: u32,
    pub(crate) last: bool,
    pub(crate) cached_tokens: u32,
}

/// What `/metrics` tells.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stats {
    pub(crate) running: usize,
    pub(crate) waiting: usize,
    pub(crate) cache_usage: f64,
    pub(crate) totals: Totals,
}

/// Why a submission was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SubmitError {
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error("the engine has {MAX_WAITING} requests waiting")]
    Busy,
    #[error("the engine is shutting down")]
    Stopped,
}

/// The way to the engine's task.
#[derive(Clone, Debug)]
pub(crate) struct EngineHandle {
    commands: mpsc::Sender<Command>,
    stats: watch::Receiver<Stats>,
}

impl EngineHandle {
    /// Starts the task; it ends with `stop`.
    pub(crate) fn start(
        config: &Config,
        publisher: Option<Publisher>,
        stop: CancellationToken,
    ) -> EngineHandle {
        let (commands, receiver) = mpsc::channel(MAX_COMMANDS);
        let (stats, stats_receiver) = watch::channel(Stats::default());
        let engine = Engine {
            scheduler: Scheduler::new(config.cache.clone()),
            encoder: config.cache.batch_encoder(),
            timing: config.timing,
            publisher,
            commands: receiver,
            stats,
            sinks: HashMap::new(),
            busy_until: Instant::now(),
        };
        tokio::spawn(stop.run_until_cancelled_owned(engine.run()));
        EngineHandle { commands, stats: stats_receiver }
    }

    /// Queues the requests of one submission; their tokens come interleaved, each prompt's in order.
    pub(crate) async fn submit(&self, requests: Vec<Request>) -> Result<mpsc::Receiver<Output>, SubmitError> {
        let tokens = requests.iter().map(|request| request.answer.len()).sum::<usize>();
        let (sink, outputs) = mpsc::channel(tokens.max(1));
        self.ask(|reply| Command::Submit { requests, sink, reply }).await.ok_or(SubmitError::Stopped)??;
        Ok(outputs)
    }

    /// Empties the prefix cache; `false` if requests hold blocks or the engine has ended.
    pub(crate) async fn reset_prefix_cache(&self) -> bool {
        self.ask(Command::Reset).await.unwrap_or(false)
    }

    pub(crate) fn stats(&self) -> Stats {
        *self.stats.borrow()
    }

    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).await.ok()?;
        answer.await.ok()
    }
}

#[derive(Debug)]
enum Command {
    Submit {
        requests: Vec<Request>,
        sink: mpsc::Sender<Output>,
        reply: oneshot::Sender<Result<(), SubmitError>>,
    },
    Reset(oneshot::Sender<bool>),
}

struct Engine {
    scheduler: Scheduler,
    encoder: BatchEncoder,
    timing: crate::config::Timing,
    publisher: Option<Publisher>,
    commands: mpsc::Receiver<Command>,
    stats: watch::Sender<Stats>,
    /// Where a request's tokens go, and which prompt of the submission it is.
    sinks: HashMap<RequestId, (mpsc::Sender<Output>, usize)>,
    /// End of the last step: steps do not drift by the timer's resolution.
    busy_until: Instant,
}

impl Engine {
    async fn run(mut self) {
        loop {
            while let Ok(command) = self.commands.try_recv() {
                self.obey(command);
            }
            self.give_up_abandoned();
            if let Some(step) = self.scheduler.schedule() {
                self.report();
                self.pass(self.timing.step(step.prefill_tokens, step.decodes)).await;
                let output = self.scheduler.finish(step);
                self.deliver(output).await;
                self.report();
            } else {
                self.report();
                let Some(command) = self.commands.recv().await else { return };
                self.obey(command);
            }
        }
    }

    async fn pass(&mut self, time: Duration) {
        self.busy_until = self.busy_until.max(Instant::now()) + time;
        tokio::time::sleep_until(self.busy_until).await;
    }

    fn obey(&mut self, command: Command) {
        // Who asked may be gone: then nobody reads the answer.
        match command {
            Command::Submit { requests, sink, reply } => {
                let _ = reply.send(self.submit(requests, &sink));
            }
            Command::Reset(reply) => {
                let _ = reply.send(self.scheduler.reset_prefix_cache());
            }
        }
    }

    fn submit(&mut self, requests: Vec<Request>, sink: &mpsc::Sender<Output>) -> Result<(), SubmitError> {
        if self.scheduler.waiting() + requests.len() > MAX_WAITING {
            return Err(SubmitError::Busy);
        }
        let mut added = Vec::new();
        for (prompt, request) in requests.into_iter().enumerate() {
            match self.scheduler.add(request) {
                Ok(id) => added.push((id, prompt)),
                Err(refused) => {
                    added.iter().for_each(|&(id, _)| self.scheduler.abort(id));
                    return Err(refused.into());
                }
            }
        }
        self.sinks.extend(added.into_iter().map(|(id, prompt)| (id, (sink.clone(), prompt))));
        Ok(())
    }

    fn give_up_abandoned(&mut self) {
        let scheduler = &mut self.scheduler;
        self.sinks.retain(|&id, (sink, _)| {
            let wanted = !sink.is_closed();
            if !wanted {
                scheduler.abort(id);
            }
            wanted
        });
    }

    async fn deliver(&mut self, output: StepOutput) {
        if let Some(publisher) = self.publisher.as_mut().filter(|_| !output.events.is_empty()) {
            publisher.publish(self.encoder.encode(unix_seconds(), &output.events)).await;
        }
        for sampled in output.tokens {
            let Some((sink, prompt)) = self.sinks.get(&sampled.request) else { continue };
            let (token, last, cached_tokens) = (sampled.token, sampled.last, sampled.cached_tokens);
            // The channel holds the whole answer; it only fails if the receiver is gone.
            let _ = sink.try_send(Output { prompt: *prompt, token, last, cached_tokens });
            if last {
                self.sinks.remove(&sampled.request);
            }
        }
    }

    fn report(&self) {
        self.stats.send_replace(Stats {
            running: self.scheduler.running(),
            waiting: self.scheduler.waiting(),
            cache_usage: self.scheduler.pool().usage(),
            totals: self.scheduler.totals(),
        });
    }
}

fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
