//! One reply: from a prompt to pieces of text.

use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

use super::stop::Stops;
use crate::engine::{
    Chosen, Engine, EngineError, LogProbs, Result, Sampler, Sampling, TokenStream,
};
use crate::speculate::{DraftCounts, Speculation};
use crate::text::{ChatMessage, DecodeOptions, StreamDecoder, Tokenizer};

/// Some whole characters of a reply.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Piece {
    /// The characters.
    pub text: String,
    /// Log probabilities of the tokens since the last piece, where they were asked for.
    pub log_probs: Vec<LogProbs>,
}

impl fmt::Display for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

/// Why a reply ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum End {
    /// The model has said all: this token ended it.
    Token(u32),
    /// A stop string came. It is not part of the text.
    StopString(String),
    /// The budget is spent.
    Budget,
    /// [`Reply::stop_when`] said so.
    Stopped,
    /// The context is full.
    ContextFull {
        /// Tokens that fit.
        context: usize,
    },
}

/// What a reply took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Tokens of the prompt that the model still remembered.
    pub cached: usize,
    /// Reading the rest of the prompt.
    pub prompt: Rate,
    /// Tokens of the reply, without the one that ended it.
    pub tokens: usize,
    /// Writing the reply from its second token on: the first comes with the prompt.
    pub decode: Rate,
    /// What drafts were worth; `None` where none were made.
    pub drafts: Option<DraftCounts>,
}

/// Tokens and the time they took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rate {
    /// How many.
    pub tokens: usize,
    /// How long.
    pub time: Duration,
}

impl Rate {
    /// Tokens per second; 0 if nothing was measured.
    pub fn rate(&self) -> f64 {
        let seconds = self.time.as_secs_f64();
        if seconds > 0.0 { self.tokens as f64 / seconds } else { 0.0 }
    }
}

/// A reply as it is written: an iterator over pieces of whole characters. The prompt is read when the first is asked for.
/// After an error there are no more pieces.
pub struct Reply<'a> {
    engine: &'a mut Engine,
    tokenizer: &'a Tokenizer,
    /// Tokens in the engine's cache.
    read: &'a mut Vec<u32>,
    /// Who drafts, and what drafts were worth before this reply.
    speculation: Option<(&'a mut Speculation, DraftCounts)>,
    /// Where the text goes when the reply ends.
    messages: Option<&'a mut Vec<ChatMessage>>,
    prompt: Vec<u32>,
    sampler: Sampler,
    stream: StreamDecoder<'a>,
    stops: Stops,
    stop_when: Option<Box<dyn FnMut() -> bool + 'a>>,
    watch_prompt: Option<Box<dyn FnMut(usize, usize) + 'a>>,
    state: State,
    /// When the first token was chosen.
    started: Instant,
    text: String,
    log_probs: Vec<LogProbs>,
    usage: Usage,
    end: Option<End>,
}

/// Where the next token comes from.
enum State {
    /// The prompt is not read.
    Prompt,
    /// This is the last token, which is not in the cache. The host chooses the next.
    Host(u32),
    /// As `Host`; the device chooses.
    Device(u32, Option<TokenStream>),
    /// As `Host`; steps check drafts. Behind it are tokens that were chosen already.
    Drafted(u32, VecDeque<Chosen>),
    /// There are no more.
    Over,
}

impl<'a> Reply<'a> {
    pub(super) fn new(
        engine: &'a mut Engine,
        tokenizer: &'a Tokenizer,
        read: &'a mut Vec<u32>,
        speculation: Option<&'a mut Speculation>,
        messages: Option<&'a mut Vec<ChatMessage>>,
        prompt: Vec<u32>,
        sampling: &Sampling,
    ) -> Self {
        let usage = Usage { cached: read.len(), ..Usage::default() };
        Self {
            engine,
            tokenizer,
            read,
            speculation: speculation.map(|speculation| {
                let before = speculation.counts();
                (speculation, before)
            }),
            messages,
            prompt,
            sampler: Sampler::new(sampling.clone()),
            stream: StreamDecoder::new(tokenizer, DecodeOptions::default()),
            stops: Stops::new(&sampling.stop_strings),
            stop_when: None,
            watch_prompt: None,
            state: State::Prompt,
            started: Instant::now(),
            text: String::new(),
            log_probs: Vec::new(),
            usage,
            end: None,
        }
    }

    /// Asks `stop` before each token, and between batches of a long prompt, whether to end here.
    #[must_use]
    pub fn stop_when(mut self, stop: impl FnMut() -> bool + 'a) -> Self {
        self.stop_when = Some(Box::new(stop));
        self
    }

    /// Tells `watch` before each batch of the prompt how many of its tokens are read, of how many that are to be.
    #[must_use]
    pub fn watch_prompt(mut self, watch: impl FnMut(usize, usize) + 'a) -> Self {
        self.watch_prompt = Some(Box::new(watch));
        self
    }

    /// The text so far.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Why it ended; `None` while it goes on, and after an error.
    pub fn end(&self) -> Option<&End> {
        self.end.as_ref()
    }

    /// What it took so far.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        self.engine
    }

    /// The next token and the text it completes; `None` where the reply ends.
    fn advance(&mut self) -> Result<Option<String>> {
        let token = match self.next_token()? {
            Ok(token) => token,
            Err(end) => {
                self.end_with(end);
                return Ok(None);
            }
        };
        self.usage.tokens += 1;
        let text = self.stream.push(token)?;
        let (text, stop) = self.stops.push(&text);
        self.text.push_str(&text);
        if let Some(string) = stop {
            self.end_with(End::StopString(string));
        }
        Ok(Some(text))
    }

    /// The next token, or why there is none.
    fn next_token(&mut self) -> Result<Result<u32, End>> {
        if self.is_stopped() {
            return Ok(Err(End::Stopped));
        }
        let budget = self.sampler.sampling().budget;
        let next = match std::mem::replace(&mut self.state, State::Over) {
            State::Over => return Ok(Err(End::Stopped)),
            State::Prompt => match self.read_prompt()? {
                None => return Ok(Err(End::Stopped)),
                Some(_) if budget == 0 => return Ok(Err(End::Budget)),
                Some(logits) => self.choose(&logits)?,
            },
            _ if self.usage.tokens >= budget => return Ok(Err(End::Budget)),
            _ if self.is_full() => {
                return Ok(Err(End::ContextFull { context: self.engine.context() }));
            }
            State::Host(input) => {
                let logits = self.engine.eval(&[input])?;
                self.read.push(input);
                self.choose(&logits)?
            }
            State::Device(input, stream) => {
                let mut stream = match stream {
                    Some(stream) => stream,
                    None => {
                        let room = self.engine.context() - self.engine.position();
                        let count = room.min(budget - self.usage.tokens);
                        self.engine.begin(input, count, self.sampler.sampling())?
                    }
                };
                let next = self.engine.next_token(&mut stream)?;
                let Some(next) = next else { return Ok(Err(End::Budget)) };
                self.read.push(input);
                self.state = State::Device(next, Some(stream));
                next
            }
            State::Drafted(input, mut ready) => {
                if ready.is_empty() {
                    ready = self.next_tokens(input, budget - self.usage.tokens)?;
                }
                let Some(Chosen { token, log_probs }) = ready.pop_front() else {
                    return Err(EngineError::NoToken { position: self.read.len() + 1 });
                };
                self.engine.keep_token();
                self.read.push(input);
                self.log_probs.extend(log_probs);
                self.state = State::Drafted(token, ready);
                token
            }
        };
        self.measure();
        if self.tokenizer.is_end(next) || self.sampler.sampling().stop_tokens.contains(&next) {
            return Ok(Err(End::Token(next)));
        }
        if matches!(self.state, State::Over) {
            let on_device = self.engine.feeds_back() && self.sampler.runs_on_device();
            self.state = match on_device {
                _ if self.speculation.is_some() => State::Drafted(next, VecDeque::new()),
                true => State::Device(next, None),
                false => State::Host(next),
            };
        }
        Ok(Ok(next))
    }

    /// The tokens of a step that checks a draft, `most` at most.
    fn next_tokens(&mut self, input: u32, most: usize) -> Result<VecDeque<Chosen>> {
        let Some((speculation, _)) = &mut self.speculation else { return Ok(VecDeque::new()) };
        let (tokenizer, stops) = (self.tokenizer, self.sampler.sampling().stop_tokens.clone());
        let ends = |token| tokenizer.is_end(token) || stops.contains(&token);
        // The text is what was read and the token that is read next.
        self.read.push(input);
        let chosen = speculation.next(self.engine, self.read, &mut self.sampler, most, &ends);
        self.read.pop();
        chosen
    }

    /// Reads the prompt; returns the logits after it, or `None` if it was stopped.
    fn read_prompt(&mut self) -> Result<Option<Vec<f32>>> {
        let started = Instant::now();
        let Self { engine, prompt, stop_when, watch_prompt, .. } = self;
        let unread = &prompt[self.usage.cached..];
        let (batch, mut done) = (engine.batch_tokens(), 0);
        let stop = &mut || {
            if let Some(watch) = watch_prompt.as_mut() {
                watch(done, unread.len());
            }
            done += batch;
            stop_when.as_mut().is_some_and(|stop| stop())
        };
        let logits = engine.eval_unless(unread, stop);
        // Whoever watches has seen all there is.
        self.watch_prompt = None;
        let logits = logits?;
        self.read.extend_from_slice(&self.prompt[self.usage.cached..self.engine.position()]);
        self.started = Instant::now();
        let tokens = self.read.len() - self.usage.cached;
        self.usage.prompt = Rate { tokens, time: self.started - started };
        Ok(logits)
    }

    fn choose(&mut self, logits: &[f32]) -> Result<u32> {
        let position = self.read.len();
        let token = self.sampler.sample(logits, self.read);
        let token = token.ok_or(EngineError::NoToken { position })?;
        self.log_probs.extend(self.sampler.log_probs(logits, token));
        Ok(token)
    }

    fn is_stopped(&mut self) -> bool {
        self.stop_when.as_mut().is_some_and(|stop| stop())
    }

    /// Whether the cache has no room for the last token.
    fn is_full(&self) -> bool {
        self.engine.position() >= self.engine.context()
    }

    fn measure(&mut self) {
        let tokens = self.read.len() - self.usage.cached - self.usage.prompt.tokens;
        self.usage.decode = Rate { tokens, time: self.started.elapsed() };
        let drafts = self.speculation.as_ref();
        self.usage.drafts = drafts.map(|(all, before)| all.counts().since(before));
    }

    fn end_with(&mut self, end: End) {
        self.state = State::Over;
        self.end = Some(end);
    }
}

impl Iterator for Reply<'_> {
    type Item = Result<Piece>;

    fn next(&mut self) -> Option<Result<Piece>> {
        let mut text = String::new();
        while text.is_empty() {
            if matches!(self.state, State::Over) {
                break;
            }
            match self.advance() {
                Ok(Some(more)) => text = more,
                Ok(None) => {
                    // What was held back comes at last.
                    let rest = self.stream.finish();
                    let (mut rest, _) = self.stops.push(&rest);
                    rest.push_str(&self.stops.finish());
                    self.text.push_str(&rest);
                    text = rest;
                    break;
                }
                Err(error) => {
                    self.state = State::Over;
                    // Part of a prompt may have been read before the error.
                    self.engine.truncate(self.read.len());
                    return Some(Err(error));
                }
            }
        }
        let log_probs = std::mem::take(&mut self.log_probs);
        let piece = Piece { text, log_probs };
        (piece != Piece::default()).then_some(Ok(piece))
    }
}

impl Drop for Reply<'_> {
    fn drop(&mut self) {
        let came = self.end.is_some() || !self.text.is_empty();
        if let Some(messages) = self.messages.take().filter(|_| came) {
            messages.push(ChatMessage::new("assistant", std::mem::take(&mut self.text)));
        }
    }
}
