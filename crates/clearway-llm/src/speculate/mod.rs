//! Drafts of what comes next, checked by the model as extra rows of one step.
//!
//! | module | what it does |
//! |---|---|
//! | [`ngram`] | drafts from the text itself: what followed the last tokens when they were there before |
//! | [`model`] | drafts of a second, smaller model with the same vocabulary |
//! | [`worth`] | how long a draft may be for its rows to pay |
//!
//! A step reads the last token of a text and a draft, and chooses a token after each of them. The draft is kept as far as it
//! is what was chosen, and the choice behind the last token that is kept comes on top. A choice depends on the text before
//! it, on the seed and on the position alone, so **a draft never changes a text**: it only makes a step longer. Rows of the
//! cache behind what is kept are written again before anybody sees them.
//!
//! That a row of a step gives the logits of a step of its own holds to the bit on the CPU. Kernels of GPUs differ by the
//! number of rows in the order of their sums; [`EngineOptions::deterministic`](crate::engine::EngineOptions) gives all
//! steps that generate the same number of rows, and with it the same kernels.

pub mod model;
pub mod ngram;
pub mod worth;

pub use model::DraftModel;
pub use ngram::Ngrams;

use std::collections::VecDeque;
use std::time::Instant;

use crate::engine::{Chosen, Engine, Result, Sampler, Sampling};
use worth::Worth;

/// Tokens that a device generates without the host in between where nothing is drafted, at most.
const LONGEST_RUN: usize = 32;
/// Tokens that pass before a drafter that takes time and did not pay is asked again, at first and at last.
const PAUSE: usize = 32;
const LONGEST_PAUSE: usize = 1024;

/// Proposes tokens.
pub trait Drafter: Send {
    /// Whether there is a draft of what comes after `text`, and how sure it is: an index below [`worth::KINDS`], the larger
    /// the surer.
    fn kind(&mut self, text: &[u32]) -> Option<usize>;

    /// Tokens that may come after `text`, `most` at most. `sampling` is how the text's own tokens are chosen.
    ///
    /// # Errors
    /// What keeps it from drafting at all. That there is no draft is no error.
    fn draft(&mut self, text: &[u32], most: usize, sampling: &Sampling) -> Result<Vec<u32>>;

    /// Whether a draft takes no time worth mentioning. Such a drafter is looked at even while its drafts are not checked.
    fn is_free(&self) -> bool;
}

/// What drafts were worth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraftCounts {
    /// Drafts that were checked.
    pub drafts: u64,
    /// Their tokens.
    pub drafted: u64,
    /// Tokens of them that were kept.
    pub kept: u64,
    /// Steps, those without a draft included.
    pub steps: u64,
    /// Tokens that the steps gave.
    pub tokens: u64,
}

impl DraftCounts {
    /// Share of the drafted tokens that were kept; 0 without drafts.
    pub fn kept_share(&self) -> f64 {
        if self.drafted == 0 { 0.0 } else { self.kept as f64 / self.drafted as f64 }
    }

    /// Tokens that a step gave on average; 0 without steps.
    pub fn tokens_per_step(&self) -> f64 {
        if self.steps == 0 { 0.0 } else { self.tokens as f64 / self.steps as f64 }
    }

    /// What came since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            drafts: self.drafts - before.drafts,
            drafted: self.drafted - before.drafted,
            kept: self.kept - before.kept,
            steps: self.steps - before.steps,
            tokens: self.tokens - before.tokens,
        }
    }
}

/// A drafter, and what is known about its drafts.
pub struct Speculation {
    drafter: Box<dyn Drafter>,
    worth: Worth,
    counts: DraftCounts,
    /// Tokens that are generated next without the host in between, where there is no draft.
    run: usize,
    /// A draft that was not checked: where it begins, its kind and its tokens.
    shadow: Option<(usize, usize, Vec<u32>)>,
    /// Tokens that still pass before a drafter that takes time is asked again, and how many next time.
    pause: (usize, usize),
    adaptive: bool,
}

impl std::fmt::Debug for Speculation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Speculation").field("counts", &self.counts).finish_non_exhaustive()
    }
}

impl Speculation {
    /// Drafts of this drafter, as long as they pay.
    pub fn new(drafter: impl Drafter + 'static) -> Self {
        Self {
            drafter: Box::new(drafter),
            worth: Worth::default(),
            counts: DraftCounts::default(),
            run: 1,
            shadow: None,
            pause: (0, PAUSE),
            adaptive: true,
        }
    }

    /// Drafts from the text itself.
    pub fn ngram() -> Self {
        Self::new(Ngrams::default())
    }

    /// Checks every draft, as long as it may be, whether it pays or not.
    #[must_use]
    pub fn always(mut self) -> Self {
        self.adaptive = false;
        self
    }

    /// What drafts were worth so far.
    pub fn counts(&self) -> DraftCounts {
        self.counts
    }

    /// Chooses the tokens after `text`, whose last token is not in the cache and all others are: one, and those behind it
    /// that a draft had right; `most` at most, which is at least 1. Nothing is chosen behind a token that `ends` the text.
    /// The engine's position stays where it is: [`Engine::keep_token`] moves it token by token. `text` is left as it was.
    ///
    /// # Errors
    /// What a step without a draft reports. A row of a draft from which no token can be chosen is no error: the text may
    /// never come there.
    pub(crate) fn next(
        &mut self,
        engine: &mut Engine,
        text: &mut Vec<u32>,
        sampler: &mut Sampler,
        most: usize,
        ends: &dyn Fn(u32) -> bool,
    ) -> Result<VecDeque<Chosen>> {
        let asked = Instant::now();
        let most = most.min(engine.context().saturating_sub(engine.position())).max(1);
        let (kind, mut draft) = self.propose(text, most - 1, sampler.sampling())?;
        // A drafter is not trusted: what is too long or no token of the vocabulary is cut off.
        let known = |&token: &u32| (token as usize) < engine.shape().vocab;
        draft.truncate(draft.iter().take(most - 1).take_while(|token| known(token)).count());
        let started = Instant::now();
        if let Some(time) = (started - asked).checked_div(draft.len() as u32)
            && !self.drafter.is_free()
        {
            self.worth.drafted(time);
        }
        let on_device = engine.feeds_back() && sampler.runs_on_device();
        let chosen = if draft.is_empty() && on_device {
            engine.run_ahead(text, sampler, self.run.min(most), ends)?
        } else {
            engine.check_draft(text, &draft, sampler, ends)?
        };
        let time = started.elapsed();
        self.counts.tokens += chosen.len() as u64;
        if draft.is_empty() {
            self.counts.steps += chosen.len() as u64;
            self.worth.took(1, time / chosen.len().max(1) as u32);
            self.run = (2 * self.run).min(LONGEST_RUN);
        } else {
            let kept = chosen.len().saturating_sub(1);
            self.counts.steps += 1;
            self.counts.drafts += 1;
            self.counts.drafted += draft.len() as u64;
            self.counts.kept += kept as u64;
            self.worth.took(draft.len() + 1, time);
            // A text that ends inside a draft says nothing of the rest of it.
            let looked_at = match chosen.back() {
                Some(last) if ends(last.token) => kept,
                _ => draft.len(),
            };
            self.worth.learn(kind, kept, looked_at);
            self.run = 1;
            if kept > 0 {
                self.pause.1 = PAUSE;
            }
        }
        self.look_on(text, &chosen);
        Ok(chosen)
    }

    /// Compiles the steps that check drafts for such a row, so that no text has to wait for it.
    ///
    /// # Errors
    /// What the device reports.
    pub(crate) fn prepare(&self, engine: &mut Engine, sampling: &Sampling) -> Result<()> {
        engine.prepare_checks(sampling)
    }

    /// A draft that pays, and its kind; often none.
    fn propose(
        &mut self,
        text: &[u32],
        most: usize,
        sampling: &Sampling,
    ) -> Result<(usize, Vec<u32>)> {
        const NONE: (usize, Vec<u32>) = (0, Vec::new());
        let longest = worth::LONGEST.min(most);
        let Some(kind) = self.drafter.kind(text).filter(|_| longest > 0) else { return Ok(NONE) };
        let free = self.drafter.is_free();
        let wanted = match self.adaptive {
            true => self.worth.length(kind, longest),
            false => longest,
        };
        if wanted > 0 {
            self.shadow = None;
            let draft = self.drafter.draft(text, wanted, sampling)?;
            return Ok((kind, draft));
        }
        if free {
            if self.shadow.is_none() {
                let draft = self.drafter.draft(text, longest, sampling)?;
                self.shadow = Some((text.len(), kind, draft));
            }
            return Ok(NONE);
        }
        match &mut self.pause {
            (0, next) => {
                self.pause = (*next, (2 * *next).min(LONGEST_PAUSE));
                Ok((kind, self.drafter.draft(text, longest.min(1), sampling)?))
            }
            (left, _) => {
                *left -= 1;
                Ok(NONE)
            }
        }
    }

    /// Compares a draft that was not checked with what came.
    fn look_on(&mut self, text: &[u32], chosen: &VecDeque<Chosen>) {
        let Some((start, kind, draft)) = self.shadow.take() else { return };
        let Some(before) = text.get(start..) else { return };
        let came = before.iter().copied().chain(chosen.iter().map(|chosen| chosen.token));
        let count = before.len() + chosen.len();
        let right = came.zip(&draft).take_while(|(came, drafted)| came == *drafted).count();
        match right == count.min(draft.len()) && right < draft.len() {
            // It may still be right.
            true => self.shadow = Some((start, kind, draft)),
            false => self.worth.learn(kind, right, draft.len()),
        }
    }
}
