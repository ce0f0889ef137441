//! Rows of prompts, as many at once as a list holds.

use super::lists::Row;
use crate::batch::runner::Slot;

/// Rows of prompts that one list reads, and their sequences.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) rows: Vec<Row>,
    pub(super) sequences: Vec<Slot>,
}

impl Batch {
    /// The same rows in batches of at most so many rows and sequences.
    pub(super) fn parts(&self, rows: usize, sequences: usize) -> Vec<Self> {
        let mut parts = Batches::new(rows, sequences);
        for row in &self.rows {
            parts.push(self.sequences[row.sequence as usize], *row);
        }
        parts.done()
    }
}

/// Batches of at most so many rows and sequences, row by row.
pub(super) struct Batches {
    rows: usize,
    sequences: usize,
    done: Vec<Batch>,
    open: Batch,
}

impl Batches {
    pub(super) fn new(rows: usize, sequences: usize) -> Self {
        Self { rows, sequences, done: Vec::new(), open: Batch::default() }
    }

    /// Adds a row of a slot; which sequence of the batch that is, is found here.
    pub(super) fn push(&mut self, slot: Slot, row: Row) {
        let is_new = !self.open.sequences.contains(&slot);
        let is_full = is_new && self.open.sequences.len() == self.sequences;
        if is_full || self.open.rows.len() == self.rows {
            self.done.push(std::mem::take(&mut self.open));
        }
        let Batch { rows, sequences } = &mut self.open;
        let known = sequences.iter().position(|&other| other == slot);
        let sequence = known.unwrap_or_else(|| {
            sequences.push(slot);
            sequences.len() - 1
        });
        rows.push(Row { sequence: sequence as u32, ..row });
    }

    pub(super) fn done(mut self) -> Vec<Batch> {
        if !self.open.rows.is_empty() {
            self.done.push(self.open);
        }
        self.done
    }
}
