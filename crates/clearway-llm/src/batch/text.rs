//! Tokens of a stream to pieces of text, with stop strings.
//!
//! A text ends at the first stop string, which is not part of it; tokens that the device has chosen beyond it are dropped
//! and the text is cancelled.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::request::{EndReason, Failure, TokenUsage};
use super::runner::Chosen;
use super::service::{Output, Stream};
use crate::engine::LogProbs;
use crate::generate::stop::Stops;
use crate::generate::{End, Piece};
use crate::text::{DecodeOptions, DecoderState, TextError, Tokenizer};

/// What comes out of a [`TextStream`].
#[derive(Clone, Debug)]
pub enum TextOutput {
    /// Some whole characters of one of the texts, with the log probabilities of their tokens where they were asked for.
    Piece {
        /// Which text.
        choice: usize,
        /// The characters.
        piece: Piece,
        /// The tokens since the last piece.
        tokens: Vec<u32>,
        /// What the text took so far.
        usage: TokenUsage,
    },
    /// One of the texts ended.
    End {
        /// Which text.
        choice: usize,
        /// Why: [`End::Stopped`] where it was cancelled.
        end: Result<End, TextFailure>,
        /// What it took. Tokens behind a stop string do not count.
        usage: TokenUsage,
    },
}

/// Why a text could not go on.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextFailure {
    /// No token could be computed.
    #[error(transparent)]
    Tokens(#[from] Failure),
    /// A token has no text.
    #[error("a token cannot be written as text: {0}")]
    Text(String),
}

/// The texts of a request as pieces of whole characters. An iterator that waits; dropping it cancels what has not ended.
pub struct TextStream {
    stream: Stream,
    tokenizer: Arc<Tokenizer>,
    context: usize,
    texts: Vec<Text>,
    ready: VecDeque<TextOutput>,
}

/// One of the texts.
struct Text {
    decoder: DecoderState,
    stops: Stops,
    /// Log probabilities and tokens that no piece has carried yet.
    held: Vec<LogProbs>,
    tokens: Vec<u32>,
    count: usize,
    over: bool,
}

impl TextStream {
    /// The texts of a stream of `n` texts that end at `stop_strings`. `context` is what the device can hold of one.
    pub fn new(
        stream: Stream,
        n: usize,
        tokenizer: Arc<Tokenizer>,
        stop_strings: &[String],
        context: usize,
    ) -> Self {
        let text = |_| Text {
            decoder: DecoderState::new(DecodeOptions::default()),
            stops: Stops::new(stop_strings),
            held: Vec::new(),
            tokens: Vec::new(),
            count: 0,
            over: false,
        };
        let texts = (0..n).map(text).collect();
        Self { stream, tokenizer, context, texts, ready: VecDeque::new() }
    }

    /// The stream of tokens below.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Whether all texts have ended.
    pub fn is_over(&self) -> bool {
        self.ready.is_empty() && self.texts.iter().all(|text| text.over)
    }

    /// What comes next, for asynchronous code: the waker is woken when something came.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<TextOutput>> {
        loop {
            if let Some(output) = self.ready.pop_front() {
                return Poll::Ready(Some(output));
            }
            if self.is_over() {
                return Poll::Ready(None);
            }
            match ready!(self.stream.poll_next(context)) {
                Some(output) => self.absorb(output),
                None => return Poll::Ready(None),
            }
        }
    }

    fn absorb(&mut self, output: Output) {
        let (Output::Tokens { choice, .. } | Output::End { choice, .. }) = output;
        let Some(text) = self.texts.get_mut(choice).filter(|text| !text.over) else { return };
        match output {
            Output::Tokens { tokens, usage, .. } => {
                let came = text.push(tokens, &self.tokenizer);
                let usage = TokenUsage { generated: text.count, ..usage };
                let (written, end) = match came {
                    Ok((written, stop)) => (written, stop.map(|stop| Ok(End::StopString(stop)))),
                    Err(error) => {
                        let failure = TextFailure::Text(error.to_string());
                        (String::new(), Some(Err(failure)))
                    }
                };
                self.ready.extend(text.piece(choice, written, usage));
                if let Some(end) = end {
                    text.over = true;
                    self.stream.cancel_choice(choice);
                    self.ready.push_back(TextOutput::End { choice, end, usage });
                }
            }
            Output::End { reason, usage, .. } => {
                text.over = true;
                let rest = text.decoder.finish();
                let (mut rest, stop) = text.stops.push(&rest);
                rest.push_str(&text.stops.finish());
                self.ready.extend(text.piece(choice, rest, usage));
                let end = match (stop, reason) {
                    (Some(stop), _) => Ok(End::StopString(stop)),
                    (None, EndReason::Token(token)) => Ok(End::Token(token)),
                    (None, EndReason::Budget) => Ok(End::Budget),
                    (None, EndReason::Context) => Ok(End::ContextFull { context: self.context }),
                    (None, EndReason::Cancelled) => Ok(End::Stopped),
                    (None, EndReason::Failed(failure)) => Err(failure.into()),
                };
                self.ready.push_back(TextOutput::End { choice, end, usage });
            }
        }
    }
}

impl Text {
    /// What may pass after more tokens, and the stop string that ended it.
    fn push(
        &mut self,
        tokens: Vec<Chosen>,
        tokenizer: &Tokenizer,
    ) -> Result<(String, Option<String>), TextError> {
        let mut written = String::new();
        for Chosen { token, log_probs } in tokens {
            self.count += 1;
            self.tokens.push(token);
            self.held.extend(log_probs);
            let text = self.decoder.push(tokenizer, token)?;
            let (text, stop) = self.stops.push(&text);
            written.push_str(&text);
            if stop.is_some() {
                return Ok((written, stop));
            }
        }
        Ok((written, None))
    }

    /// A piece with what was held, unless there is nothing to tell.
    fn piece(&mut self, choice: usize, text: String, usage: TokenUsage) -> Option<TextOutput> {
        let piece = Piece { text, log_probs: std::mem::take(&mut self.held) };
        if piece == Piece::default() {
            return None;
        }
        let tokens = std::mem::take(&mut self.tokens);
        Some(TextOutput::Piece { choice, piece, tokens, usage })
    }
}

impl Iterator for TextStream {
    type Item = TextOutput;

    fn next(&mut self) -> Option<TextOutput> {
        loop {
            if let Some(output) = self.ready.pop_front() {
                return Some(output);
            }
            if self.is_over() {
                return None;
            }
            let output = self.stream.next()?;
            self.absorb(output);
        }
    }
}
