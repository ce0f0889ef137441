//! The runner that the thread owns, and what happens when it is lost.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::Reopen;
use crate::batch::device::maker::words;
use crate::batch::runner::{Limits, ListCounts, Runner, SlotTokens, Work};
use crate::engine::{Embedding, EngineError};

type Result<T> = std::result::Result<T, EngineError>;

/// A runner that is opened again once its device is lost. A panic in it is an error, too, and then it is lost.
pub(super) struct Held {
    runner: Option<Box<dyn Runner>>,
    reopen: Option<Reopen>,
    limits: Limits,
    /// What runners counted that were given up.
    before: ListCounts,
}

impl Held {
    pub(super) fn new(runner: Box<dyn Runner>, reopen: Option<Reopen>) -> Self {
        let limits = runner.limits();
        Self { runner: Some(runner), reopen, limits, before: ListCounts::default() }
    }

    /// Whether there is a runner.
    pub(super) fn is_open(&self) -> bool {
        self.runner.is_some()
    }

    /// Gives up a runner that is lost, if it can be opened again. What it held on the device is freed. Whether it was given
    /// up.
    pub(super) fn give_up(&mut self) -> bool {
        if self.reopen.is_none() {
            return false;
        }
        self.before = ListCounts { missing: 0, ..self.lists() };
        let runner = self.runner.take();
        // A runner that broke down may do so again.
        let _ = catch_unwind(AssertUnwindSafe(move || drop(runner)));
        true
    }

    /// Opens it again, where it was given up.
    ///
    /// # Errors
    /// What prevents it; the next call tries again.
    pub(super) fn open(&mut self) -> Result<()> {
        if self.is_open() {
            return Ok(());
        }
        let Some(reopen) = &mut self.reopen else { return Err(EngineError::LostBefore) };
        let runner = caught(reopen)?;
        let (found, limits) = (runner.limits(), self.limits);
        if found != limits {
            // It was opened with less: what was promised to requests does not hold.
            return Err(EngineError::Context { wanted: limits.blocks * limits.block });
        }
        self.runner = Some(runner);
        Ok(())
    }

    pub(super) fn start(&mut self, work: &Work) -> Result<()> {
        self.with(|runner| runner.start(work))
    }

    pub(super) fn finish(&mut self) -> Result<Vec<SlotTokens>> {
        self.with(|runner| runner.finish())
    }

    pub(super) fn embed(&mut self, text: &mut Embedding, most: usize) -> Result<Option<Vec<f32>>> {
        self.with(|runner| runner.embed(text, most))
    }

    /// Lists of all runners so far.
    pub(super) fn lists(&self) -> ListCounts {
        let now = self.runner.as_ref().map(|runner| runner.lists()).unwrap_or_default();
        self.before.and(now)
    }

    fn with<T>(&mut self, work: impl FnOnce(&mut dyn Runner) -> Result<T>) -> Result<T> {
        match &mut self.runner {
            // Without a way back nobody can tell what a panic left behind: the thread ends with it.
            Some(runner) if self.reopen.is_none() => work(&mut **runner),
            Some(runner) => caught(|| work(&mut **runner)),
            None => Err(EngineError::LostBefore),
        }
    }
}

/// A panic as an error.
fn caught<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|panic| Err(EngineError::Panicked { what: words(&*panic) }))
}
