//! Steps that check a draft: a token is chosen after each of several tokens.
//!
//! The rows of such a step are the last token of a text and the tokens of a draft, at the positions they would have. Each row
//! sees the cache rows up to its own position, so what it gives is what a step of its own would give if the draft before it is
//! right. Cache rows behind the tokens that are kept hold a draft that was wrong. Nobody sees them: a row sees no position
//! behind its own, and the next step writes its own positions before it reads them.

use std::collections::VecDeque;

use clearway::{Buffer, DType, NO_INDEX, Upload};

use super::choose::{self, Choice, DrawnBy};
use super::sampling::{DRAW_WORDS, Sampling};
use super::{Engine, EngineError, LogProbs, Result, Sampler, Step, finite};
use crate::model::{Logits, POSITIONS};
use crate::speculate::worth::ROWS;

/// A token that was chosen.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Chosen {
    /// The token.
    pub(crate) token: u32,
    /// Its log probabilities, where the row asks for them.
    pub(crate) log_probs: Option<LogProbs>,
}

/// A compiled step that chooses a token after each of its tokens.
pub(super) struct CheckStep {
    step: Step,
    /// The tokens it chose.
    chosen: Buffer,
    /// The row of sampling data.
    row: Buffer,
    choice: Choice,
}

impl Engine {
    /// Compiles the steps that check drafts for such a row.
    pub(crate) fn prepare_checks(&mut self, sampling: &Sampling) -> Result<()> {
        if !self.options.replay {
            return Ok(());
        }
        if self.feeds_back()
            && let Some(choice) = Choice::of(sampling)
        {
            self.prepare(sampling)?;
            for rows in ROWS.into_iter().skip(1) {
                self.check_step(rows, choice)?;
            }
            return Ok(());
        }
        for rows in ROWS {
            let rows: Vec<usize> = (0..rows).collect();
            let (size, kind) = self.size_of_step(rows.len(), &rows);
            self.compiled(size, kind)?;
        }
        Ok(())
    }

    /// The token after `text`, whose last token is not in the cache, and those behind it that the draft had right. Nothing is
    /// chosen behind a token that `ends` the text. The position stays where it is.
    ///
    /// A draft may lead where there are no numbers, though the text never goes there. Kernels may multiply rows of the cache
    /// behind a token by zero, which is no number either. So a step with such a row counts for nothing: it is done again with
    /// tokens of the text in place of the draft, which write numbers to the same rows of the cache.
    pub(crate) fn check_draft(
        &mut self,
        text: &mut Vec<u32>,
        draft: &[u32],
        sampler: &mut Sampler,
        ends: &dyn Fn(u32) -> bool,
    ) -> Result<VecDeque<Chosen>> {
        let Some(&input) = text.last() else { return Err(EngineError::Empty) };
        let mut tokens: Vec<u32> = std::iter::once(input).chain(draft.iter().copied()).collect();
        self.check(&tokens)?;
        if self.feeds_back() && sampler.runs_on_device() {
            let mut ids = self.choose_rows(&tokens, sampler.sampling())?;
            if ids.contains(&NO_INDEX) {
                tokens.fill(input);
                ids = self.choose_rows(&tokens, sampler.sampling())?;
            }
            if ids.first() == Some(&NO_INDEX) {
                return Err(self.not_finite(&[input]));
            }
            let ids = ids.into_iter().take_while(|&id| id != NO_INDEX);
            let chosen = ids.map(|token| Chosen { token, log_probs: None });
            return Ok(agreed(chosen, &tokens[1..], ends));
        }
        let (vocab, rows) = (self.shape.vocab, (0..tokens.len()).collect::<Vec<_>>());
        let mut logits = self.run_step(&tokens, &rows)?;
        if !logits.chunks_exact(vocab).all(finite::is_sound) {
            tokens.fill(input);
            logits = self.run_step(&tokens, &rows)?;
        }
        let (draft, length) = (&tokens[1..], text.len());
        let sound = |logits: &&[f32]| finite::is_sound(logits);
        let rows = logits.chunks_exact(vocab).take_while(sound).enumerate();
        // Only rows whose text came about are looked at, so a constraint hears of each token once.
        let choose = |(row, logits): (usize, &[f32])| {
            text.truncate(length);
            text.extend_from_slice(&draft[..row]);
            let token = sampler.sample(logits, text)?;
            Some(Chosen { token, log_probs: sampler.log_probs(logits, token) })
        };
        let chosen = agreed(rows.map_while(choose), draft, ends);
        text.truncate(length);
        match logits.get(..vocab) {
            Some(first) if !finite::is_sound(first) => Err(self.not_finite(&[input])),
            _ if chosen.is_empty() => Err(EngineError::NoToken { position: length }),
            _ => Ok(chosen),
        }
    }

    /// The next `count` tokens after `text`, chosen on the device with no host in between; less where one `ends` it. The
    /// position stays where it is.
    pub(crate) fn run_ahead(
        &mut self,
        text: &[u32],
        sampler: &Sampler,
        count: usize,
        ends: &dyn Fn(u32) -> bool,
    ) -> Result<VecDeque<Chosen>> {
        let Some(&input) = text.last() else { return Err(EngineError::Empty) };
        let (position, mut chosen) = (self.position, VecDeque::with_capacity(count));
        let mut seen = |token| {
            chosen.push_back(Chosen { token, log_probs: None });
            !ends(token)
        };
        let result = self.generate(input, count, sampler.sampling(), &mut seen);
        self.position = position;
        match result {
            // What fails behind tokens that came fails again when it is their turn.
            Err(error) if chosen.is_empty() => Err(error),
            Ok(()) | Err(_) => Ok(chosen),
        }
    }

    /// Takes the token at the position into the text: its row of the cache is valid.
    pub(crate) fn keep_token(&mut self) {
        self.position += 1;
    }

    /// Chooses a token after each of these on the device.
    fn choose_rows(&mut self, tokens: &[u32], sampling: &Sampling) -> Result<Vec<u32>> {
        let choice = Choice::of(sampling).ok_or(EngineError::NotOnDevice)?;
        let (size, _) = self.size_of_step(tokens.len(), &[]);
        let first = self.position as u32;
        let check = self.check_step(size, choice)?;
        check.step.write(tokens, first)?;
        check.row.write_slice(0, &sampling.draw().to_words())?;
        check.step.graph.run()?;
        Ok(check.chosen.read_vec(4 * (size - tokens.len()) as u64, tokens.len())?)
    }

    fn check_step(&mut self, rows: usize, choice: Choice) -> Result<&mut CheckStep> {
        let check = match self.checks.remove(&rows).filter(|check| check.choice.serves(choice)) {
            Some(check) => check,
            None => self.compile_check(rows, choice)?,
        };
        Ok(self.checks.entry(rows).or_insert(check))
    }

    fn compile_check(&self, rows: usize, choice: Choice) -> Result<CheckStep> {
        choose::register(&self.executor)?;
        let logits = if rows == 1 { Logits::Last } else { Logits::All };
        let mut recorded = self.record(rows, logits)?;
        let device = self.executor.device();
        let bytes = 4 * rows as u64;
        let (input, positions) = (self.input(&recorded)?, device.alloc(bytes)?);
        let (chosen, row) = (device.alloc(bytes)?, device.alloc(4 * DRAW_WORDS as u64)?);
        let mut bound = self.bind(&recorded, &input, &positions, None)?;
        let position_view = recorded.external(POSITIONS).ok_or(EngineError::NotOnDevice)?;
        let recorder = &mut recorded.recorder;
        let chosen_view = recorder.external("chosen", DType::U32, &[rows])?;
        let row_view = recorder.external("sampling", DType::U32, &[1, DRAW_WORDS])?;
        let rows_view = recorder.external("sampling_rows", DType::U32, &[rows])?;
        bound.bind(chosen_view, &chosen);
        bound.bind(row_view, &row);
        bound.bind(rows_view, &device.upload(&vec![0_u32; rows])?);
        let by = DrawnBy { table: row_view, rows: rows_view, positions: position_view };
        choose::record_into(recorder.graph_mut(), choice, recorded.logits, by, chosen_view)?;
        let graph = self.executor.compile(recorded.graph(), &bound, &self.options.compile)?;
        let step = Step { graph, recorded, input, positions, rows: None };
        Ok(CheckStep { step, chosen, row, choice })
    }
}

/// Choices up to the first that the draft does not have, or that `ends` the text.
fn agreed(
    chosen: impl Iterator<Item = Chosen>,
    draft: &[u32],
    ends: &dyn Fn(u32) -> bool,
) -> VecDeque<Chosen> {
    let mut kept = VecDeque::with_capacity(draft.len() + 1);
    for chosen in chosen {
        let token = chosen.token;
        let goes_on = draft.get(kept.len()) == Some(&token) && !ends(token);
        kept.push_back(chosen);
        if !goes_on {
            break;
        }
    }
    kept
}
