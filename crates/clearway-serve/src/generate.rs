//! One text from its request to its end: tokens to parts, with times and counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use clearway_llm::engine::LogProbs;
use clearway_llm::generate::Stops;
use clearway_llm::text::{DecodeOptions, StreamDecoder};
use tokio::sync::mpsc;

use crate::app::App;
use crate::backend::{End, Event, Failure, Request, Ticket};
use crate::error::{ApiError, Result};
use crate::metrics::Metrics;
use crate::model::Served;
use crate::sampling::Choosing;
use crate::split::{Delta, SplitOptions, Splitter};

/// A stream that says nothing for so long says that it is alive.
const SILENCE: Duration = Duration::from_secs(10);

/// What a request took so far: for its log line and for `usage`.
#[derive(Debug, Default)]
pub struct Tally {
    /// Tokens of all prompts.
    pub prompt: AtomicUsize,
    /// Tokens of prompts that were cached.
    pub cached: AtomicUsize,
    /// Tokens of all answers.
    pub tokens: AtomicUsize,
    /// Microseconds to the first token; 0 for none.
    pub first: AtomicU64,
    /// What went wrong after the answer began.
    pub error: std::sync::Mutex<Option<String>>,
}

/// A text under way.
pub struct Writing {
    ticket: Ticket,
    started: Instant,
    deadline: tokio::time::Instant,
    stops: Vec<String>,
    split: SplitOptions,
}

/// What a piece of a text is made of.
#[derive(Debug, Default)]
pub struct Step {
    /// Its parts.
    pub deltas: Vec<Delta>,
    /// Tokens since the last piece.
    pub tokens: Vec<u32>,
    /// Their log probabilities, where they were asked for.
    pub log_probs: Vec<LogProbs>,
}

/// Why a text ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model has said all.
    Stop,
    /// A stop string came.
    StopString(String),
    /// The budget is spent or the context is full.
    Length,
}

/// A text that ended.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Why.
    pub finish: Finish,
}

impl Writing {
    /// Hands a text to the engine.
    ///
    /// # Errors
    /// A grammar that cannot be enforced, a prompt that does not fit, a full queue.
    pub fn start(
        app: &App,
        served: &Served,
        prompt: Vec<u32>,
        choosing: Choosing,
        split: SplitOptions,
    ) -> Result<Self> {
        let Choosing { mut sampling, stops, ignore_end, grammar } = choosing;
        if let Some(grammar) = &grammar {
            sampling.constraint = Some(app.constraint(served, grammar)?);
        }
        let ticket = served.backend.submit(Request { prompt, sampling, ignore_end })?;
        let started = Instant::now();
        let deadline = tokio::time::Instant::now() + app.config.timeout;
        Ok(Self { ticket, started, deadline, stops, split })
    }

    /// Writes the text. Each piece goes through `frame`; what that makes of it goes to `out`.
    ///
    /// # Errors
    /// What the engine reports, a text that takes too long, a client that went away.
    pub async fn run(
        mut self,
        app: &App,
        served: &Served,
        tally: &Tally,
        out: Option<&mpsc::Sender<Bytes>>,
        mut frame: impl FnMut(Step) -> Option<Bytes> + Send,
    ) -> Result<Finished> {
        let metrics = &app.metrics;
        let mut given_up = GivenUp { metrics, armed: true };
        let mut decoder = StreamDecoder::new(&served.tokenizer, DecodeOptions::default());
        let mut stops = Stops::new(&self.stops);
        let mut splitter = Splitter::new(self.split);
        let mut step = Step::default();
        let (mut begun, mut last) = (false, self.started);
        let finish = loop {
            let event = match out {
                None => tokio::time::timeout_at(self.deadline, self.ticket.next()).await.ok(),
                Some(out) => loop {
                    let silence = tokio::time::Instant::now() + SILENCE;
                    match tokio::time::timeout_at(silence.min(self.deadline), self.ticket.next())
                        .await
                    {
                        Ok(event) => break Some(event),
                        Err(_) if tokio::time::Instant::now() >= self.deadline => break None,
                        Err(_) => send(out, Bytes::from_static(b": alive\n\n")).await?,
                    }
                },
            };
            let now = Instant::now();
            let mut next = Some(event.unwrap_or(Event::Failed(Failure::TimedOut)));
            // Tokens that came together are one piece and share the time.
            let mut together = 0_u32;
            let end = loop {
                match next {
                    None => break None,
                    Some(Event::Started { cached }) => {
                        tally.cached.fetch_add(cached, Relaxed);
                    }
                    Some(Event::Token { token, log_probs }) => {
                        together += 1;
                        tally.tokens.fetch_add(1, Relaxed);
                        let text = decoder
                            .push(token)
                            .map_err(|error| ApiError::internal(error.to_string()))?;
                        let (text, stop) = stops.push(&text);
                        step.tokens.push(token);
                        step.log_probs.extend(log_probs);
                        step.deltas.extend(splitter.push(&text));
                        if let Some(stop) = stop {
                            break Some(Ok(Finish::StopString(stop)));
                        }
                    }
                    Some(Event::End(end)) => {
                        let (text, _) = stops.push(&decoder.finish());
                        step.deltas.extend(splitter.push(&(text + &stops.finish())));
                        break Some(Ok(match end {
                            End::Stop => Finish::Stop,
                            End::Length => Finish::Length,
                        }));
                    }
                    Some(Event::Failed(failure)) => break Some(Err(failure)),
                }
                next = self.ticket.ready();
            };
            if together > 0 {
                let mut gaps = u64::from(together);
                if !begun {
                    begun = true;
                    gaps -= 1;
                    metrics.first_token.observe(now - self.started, 1);
                    let micros = ((now - self.started).as_micros() as u64).max(1);
                    let _ = tally.first.compare_exchange(0, micros, Relaxed, Relaxed);
                    last = now;
                }
                metrics.between_tokens.observe((now - last) / together, gaps);
                last = now;
            }
            if let Some(Ok(finish)) = end {
                break finish;
            }
            if !step.deltas.is_empty() {
                let bytes = frame(std::mem::take(&mut step));
                if let (Some(out), Some(bytes)) = (out, bytes) {
                    send(out, bytes).await?;
                }
            }
            if let Some(Err(failure)) = end {
                given_up.armed = false;
                metrics.ended("error");
                return Err(failure.into());
            }
        };
        step.deltas.extend(splitter.finish());
        if !step.deltas.is_empty() || !step.log_probs.is_empty() {
            let bytes = frame(step);
            if let (Some(out), Some(bytes)) = (out, bytes) {
                send(out, bytes).await?;
            }
        }
        given_up.armed = false;
        metrics.whole.observe(self.started.elapsed(), 1);
        metrics.ended(if finish == Finish::Length { "length" } else { "stop" });
        Ok(Finished { finish })
    }
}

/// Counts a text that nobody waited for to its end.
struct GivenUp<'a> {
    metrics: &'a Metrics,
    armed: bool,
}

impl Drop for GivenUp<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.metrics.ended("cancelled");
        }
    }
}

/// Sends to a client that may have gone away.
///
/// # Errors
/// It has.
pub async fn send(out: &mpsc::Sender<Bytes>, bytes: Bytes) -> Result<()> {
    out.send(bytes).await.map_err(|_| gone())
}

/// The error of a request whose client went away. Nobody sees it.
fn gone() -> ApiError {
    let status = axum::http::StatusCode::from_u16(499).unwrap_or_default();
    ApiError::new(status, "the client went away")
}

/// Writes several texts at once; their ends in order.
///
/// # Errors
/// The first error of any. The others are given up.
pub async fn all<F>(
    app: &Arc<App>,
    served: &Arc<Served>,
    tally: &Arc<Tally>,
    out: Option<&mpsc::Sender<Bytes>>,
    texts: Vec<(Writing, F)>,
) -> Result<Vec<Finished>>
where
    F: FnMut(Step) -> Option<Bytes> + Send + 'static,
{
    let mut texts = texts;
    if texts.len() == 1
        && let Some((writing, frame)) = texts.pop()
    {
        return Ok(vec![writing.run(app, served, tally, out, frame).await?]);
    }
    let mut tasks = tokio::task::JoinSet::new();
    for (index, (writing, frame)) in texts.into_iter().enumerate() {
        let (app, served, tally, out) = (app.clone(), served.clone(), tally.clone(), out.cloned());
        tasks.spawn(async move {
            let finished = writing.run(&app, &served, &tally, out.as_ref(), frame).await;
            finished.map(|finished| (index, finished))
        });
    }
    let mut finished = Vec::new();
    while let Some(one) = tasks.join_next().await {
        finished.push(one.map_err(|_| ApiError::internal("a text was given up"))??);
    }
    finished.sort_by_key(|(index, _)| *index);
    Ok(finished.into_iter().map(|(_, finished)| finished).collect())
}
