//! From a prompt to an answer, token by token; what `run` and `chat` share.

use std::time::{Duration, Instant};

use anyhow::Result;
use clearway_llm::engine::{Engine, EngineError, Sampler};
use clearway_llm::text::{DecodeOptions, StreamDecoder, Tokenizer};

use crate::interrupt;

/// Prompt tokens read between two looks at the user.
const PREFILL: usize = 512;

/// An answer and how long it took.
pub struct Answer {
    /// The text.
    pub text: String,
    /// Tokens whose values are in the cache after those of the prompt.
    pub tokens: Vec<u32>,
    /// Why it ends.
    pub end: End,
    /// Reading the prompt.
    pub prefill: Pace,
    /// Writing the answer, from its second token on: the first comes with the prompt.
    pub decode: Pace,
}

/// Why an answer ends.
pub enum End {
    /// The model has said all, or the limit is reached.
    Done,
    /// The user wants no more.
    Stopped,
    /// The context is full.
    Full(EngineError),
}

/// Tokens and the time they took.
#[derive(Clone, Copy, Default)]
pub struct Pace {
    /// How many.
    pub tokens: usize,
    /// How long.
    pub time: Duration,
}

impl Pace {
    /// Tokens per second; 0 if nothing was measured.
    pub fn rate(&self) -> f64 {
        let seconds = self.time.as_secs_f64();
        if seconds > 0.0 { self.tokens as f64 / seconds } else { 0.0 }
    }
}

/// Everything that answers.
pub struct Talker<'a> {
    /// The model.
    pub engine: &'a mut Engine,
    /// Its vocabulary.
    pub tokenizer: &'a Tokenizer,
    /// How tokens are chosen.
    pub sampler: &'a mut Sampler,
    /// Tokens of an answer at most.
    pub limit: usize,
}

/// Compiles what decoding will need, where that stays on the device.
///
/// # Errors
/// What the device reports.
pub fn prepare(engine: &mut Engine, sampler: &Sampler) -> Result<()> {
    if engine.feeds_back() && sampler.runs_on_device() {
        engine.prepare(sampler.options())?;
    }
    Ok(())
}

impl Talker<'_> {
    /// Reads a prompt and passes the answer on as it comes, in whole characters.
    ///
    /// # Errors
    /// A prompt that does not fit the context, before anything is computed; what the device reports;
    /// what `out` reports.
    pub fn answer(
        &mut self,
        prompt: &[u32],
        out: &mut dyn FnMut(&str) -> Result<()>,
    ) -> Result<Answer> {
        let (wanted, context) = (self.engine.position() + prompt.len(), self.engine.context());
        if wanted > context {
            return Err(EngineError::ContextFull { wanted, context }.into());
        }
        let mut answer = Answer {
            text: String::new(),
            tokens: Vec::new(),
            end: End::Done,
            prefill: Pace::default(),
            decode: Pace::default(),
        };
        let started = Instant::now();
        let mut logits = Vec::new();
        for part in prompt.chunks(PREFILL) {
            if interrupt::wanted() {
                answer.end = End::Stopped;
                return Ok(answer);
            }
            logits = self.engine.eval(part)?;
            answer.prefill.tokens += part.len();
        }
        answer.prefill.time = started.elapsed();
        if self.engine.feeds_back() && self.sampler.runs_on_device() {
            self.decode_on_device(&logits, &mut answer, out)?;
        } else {
            self.decode(logits, &mut answer, out)?;
        }
        Ok(answer)
    }

    /// As [`decode`](Self::decode), with the tokens after the first chosen by the device.
    fn decode_on_device(
        &mut self,
        logits: &[f32],
        answer: &mut Answer,
        out: &mut dyn FnMut(&str) -> Result<()>,
    ) -> Result<()> {
        let tokenizer = self.tokenizer;
        let mut stream = StreamDecoder::new(tokenizer, DecodeOptions::default());
        let started = Instant::now();
        let mut token = self.sampler.sample(logits);
        let (mut ended, mut failure) = (tokenizer.is_end(token), None);
        let mut emit = |token: u32, answer: &mut Answer| -> Result<()> {
            let text = stream.push(token)?;
            answer.text.push_str(&text);
            out(&text)
        };
        if !ended && self.limit > 0 {
            emit(token, answer)?;
            let room = self.engine.context() - self.engine.position();
            let count = room.min(self.limit - 1);
            let options = *self.sampler.options();
            self.engine.generate(token, count, &options, &mut |next| {
                answer.tokens.push(token);
                token = next;
                ended = tokenizer.is_end(next);
                if interrupt::wanted() {
                    answer.end = End::Stopped;
                } else if !ended {
                    failure = emit(next, answer).err();
                }
                !ended && failure.is_none() && !matches!(answer.end, End::Stopped)
            })?;
            if let Some(failure) = failure {
                return Err(failure);
            }
            if !ended && matches!(answer.end, End::Done) && count < self.limit - 1 {
                let (wanted, context) = (self.engine.position() + 1, self.engine.context());
                answer.end = End::Full(EngineError::ContextFull { wanted, context });
            }
        }
        answer.decode = Pace { tokens: answer.tokens.len(), time: started.elapsed() };
        let rest = stream.finish();
        answer.text.push_str(&rest);
        out(&rest)
    }

    fn decode(
        &mut self,
        mut logits: Vec<f32>,
        answer: &mut Answer,
        out: &mut dyn FnMut(&str) -> Result<()>,
    ) -> Result<()> {
        let mut stream = StreamDecoder::new(self.tokenizer, DecodeOptions::default());
        let started = Instant::now();
        for generated in 1..=self.limit {
            if interrupt::wanted() {
                answer.end = End::Stopped;
                break;
            }
            let token = self.sampler.sample(&logits);
            if self.tokenizer.is_end(token) {
                break;
            }
            let text = stream.push(token)?;
            answer.text.push_str(&text);
            out(&text)?;
            if generated == self.limit {
                break;
            }
            logits = match self.engine.eval(&[token]) {
                Ok(logits) => logits,
                Err(full @ EngineError::ContextFull { .. }) => {
                    answer.end = End::Full(full);
                    break;
                }
                Err(error) => return Err(error.into()),
            };
            answer.tokens.push(token);
        }
        answer.decode = Pace { tokens: answer.tokens.len(), time: started.elapsed() };
        let rest = stream.finish();
        answer.text.push_str(&rest);
        out(&rest)
    }
}
