//! The lists there are, and who stands in for those that are not made yet.
//!
//! Lists are made when they are first needed, and the work waits; or, once [`Shelf::make_ahead`] was called, on threads of their own
//! ([`Maker`]). Then a work takes lists that are there: a step of more rows, several short lists of prompts in place of a long one, two lists in place of
//! one of both. Rows that nobody uses do nothing, so what is computed is the same.

use std::sync::Arc;

use rustc_hash::FxHashSet;

use super::lists::{CopyList, ReadList, StepKey, StepList};
use super::maker::{List, ListKey, Made, Maker, Source};
use crate::batch::runner::ListCounts;
use crate::engine::EngineError;
use crate::engine::sizes::Kept;

type Result<T> = std::result::Result<T, EngineError>;

/// A list of prompts may have so many times the rows that are needed before several shorter ones are better.
const LONGER: usize = 2;

pub(super) struct Shelf {
    source: Arc<Source>,
    steps: Kept<StepKey, StepList>,
    read: Kept<usize, ReadList>,
    /// Lists that stand in for all others, which are never given up.
    first: Vec<ListKey>,
    copy: Option<CopyList>,
    maker: Option<Maker>,
    /// Lists that a work needed before they were there.
    needed: FxHashSet<ListKey>,
    counts: ListCounts,
}

impl Shelf {
    /// Lists of steps, and those of prompts, have so many rows together.
    pub(super) fn new(source: Source, kept_rows: usize) -> Self {
        Self {
            source: Arc::new(source),
            steps: Kept::new(kept_rows),
            read: Kept::new(kept_rows),
            first: Vec::new(),
            copy: None,
            maker: None,
            needed: FxHashSet::default(),
            counts: ListCounts::default(),
        }
    }

    /// From now on no work waits for a list that another can stand in for. `first` are made before this returns: they stand in for all
    /// others. `then` are made in this order while nobody needs anything else.
    pub(super) fn make_ahead(&mut self, first: &[ListKey], then: &[ListKey]) -> Result<()> {
        for &key in first {
            self.prepare(key)?;
        }
        self.first = first.to_vec();
        self.copy_list()?;
        if self.maker.is_none() {
            let then = then.iter().copied().filter(|&key| !self.has(key)).collect();
            // Where the system gives no thread, works wait as before.
            self.maker = Maker::new(Arc::clone(&self.source), then).ok();
        }
        Ok(())
    }

    /// Makes a list before anybody needs it.
    pub(super) fn prepare(&mut self, key: ListKey) -> Result<()> {
        if !self.has(key) {
            let list = self.source.make(key)?;
            self.counts.ahead += 1;
            self.put(list);
        }
        Ok(())
    }

    /// Takes in what was made since the last call.
    pub(super) fn refill(&mut self) {
        while let Some(Made { key, list, time }) = self.maker.as_ref().and_then(Maker::take) {
            let needed = self.needed.contains(&key);
            self.counts.making += time;
            match list {
                Ok(list) => {
                    self.needed.remove(&key);
                    self.counts.late += u64::from(needed);
                    self.counts.ahead += u64::from(!needed);
                    self.put(list);
                }
                // Others stand in for it for good: one that is ordered already is not ordered again.
                Err(_) => {
                    self.needed.insert(key);
                    self.counts.failed += 1;
                }
            }
        }
    }

    /// Gives up lists that were not used for longest, where all together take too much memory. Nothing may be under way.
    pub(super) fn give_up(&mut self) {
        let first = &self.first;
        self.steps.give_up_but(0, |&key| first.contains(&ListKey::Step(key)));
        self.read.give_up_but(0, |&rows| first.contains(&ListKey::Read(rows)));
    }

    pub(super) fn counts(&self) -> ListCounts {
        let missing = (self.needed.len() as u64).saturating_sub(self.counts.failed);
        ListCounts { missing, ..self.counts }
    }

    /// Whether a list is there.
    pub(super) fn has(&self, key: ListKey) -> bool {
        match key {
            ListKey::Step(key) => self.steps.get(&key).is_some(),
            ListKey::Read(rows) => self.read.get(&rows).is_some(),
        }
    }

    /// The list of a step for `rows` rows that decode, or one that stands in for it. `None` where a list of rows of prompts and a step is
    /// not there: each has a list of its own then.
    ///
    /// # Errors
    /// What the device reports where the work has to wait for the list.
    pub(super) fn step_for(&mut self, key: StepKey, rows: usize) -> Result<Option<StepKey>> {
        if !self.is_missing(ListKey::Step(key))? {
            return Ok(Some(key));
        }
        let fits = |other: &&StepKey| {
            let same = (other.read == 0) == (key.read == 0) && other.choice.serves(key.choice);
            // Rows of both kinds: more of them than one list in place of two is worth are no help.
            let few = key.read == 0 || 2 * other.rows() <= 3 * key.rows();
            same && few && other.read >= key.read && other.decode >= rows
        };
        let nearest = self.steps.keys().filter(fits).min_by_key(|other| other.rows()).copied();
        match nearest {
            None if key.read > 0 => self.counts.apart += 1,
            None => return self.make_now(ListKey::Step(key)).map(|()| Some(key)),
            Some(_) => {}
        }
        Ok(nearest)
    }

    /// Rows of the list that reads so many rows of prompts, or of one that stands in for it: fewer rows say that several are needed.
    ///
    /// # Errors
    /// As [`step_for`](Self::step_for).
    pub(super) fn read_for(&mut self, rows: usize) -> Result<usize> {
        if !self.is_missing(ListKey::Read(rows))? {
            return Ok(rows);
        }
        let there = || self.read.keys().copied();
        let longer = there().filter(|&other| other > rows).min();
        let shorter = there().filter(|&other| other < rows).max();
        match (longer, shorter) {
            (Some(longer), _) if longer <= LONGER * rows => Ok(longer),
            (_, Some(shorter)) => Ok(shorter),
            (Some(longer), None) => Ok(longer),
            (None, None) => self.make_now(ListKey::Read(rows)).map(|()| rows),
        }
    }

    /// A step that is there.
    pub(super) fn step(&mut self, key: StepKey) -> Result<&mut StepList> {
        self.steps.get_mut(&key).ok_or(EngineError::NotOnDevice)
    }

    /// Rows of prompts that are there.
    pub(super) fn read(&mut self, rows: usize) -> Result<&mut ReadList> {
        self.read.get_mut(&rows).ok_or(EngineError::NotOnDevice)
    }

    /// The list that copies blocks.
    pub(super) fn copy_list(&mut self) -> Result<&mut CopyList> {
        let list = match self.copy.take() {
            Some(list) => list,
            None => CopyList::new(&self.source.steps, &self.source.tables)?,
        };
        Ok(self.copy.insert(list))
    }

    /// Whether a list is not there. It is ordered then; without a thread it is made at once.
    fn is_missing(&mut self, key: ListKey) -> Result<bool> {
        if self.has(key) {
            return Ok(false);
        }
        let Some(maker) = &self.maker else { return self.make_now(key).map(|()| false) };
        self.needed.insert(key);
        maker.order(key);
        Ok(true)
    }

    /// The work waits for a list.
    fn make_now(&mut self, key: ListKey) -> Result<()> {
        let list = self.source.make(key)?;
        self.counts.waits += 1;
        self.counts.late += 1;
        self.put(list);
        Ok(())
    }

    fn put(&mut self, list: List) {
        match list {
            List::Step(key, list) => drop(self.steps.put(key, key.rows(), list)),
            List::Read(rows, list) => drop(self.read.put(rows, rows, list)),
        }
    }
}
