//! Floats that the parts of a step leave for the piece that joins them.

use std::cell::UnsafeCell;
use std::ops::Range;

/// Floats of which different workers have different ranges.
pub(super) struct Joint(Box<[UnsafeCell<f32>]>);

// SAFETY: the floats are reached through `floats` only, whose callers answer that ranges which are held
// at the same time do not overlap.
unsafe impl Sync for Joint {}

impl Joint {
    pub(super) fn new(floats: usize) -> Self {
        Self((0..floats).map(|_| UnsafeCell::new(0.0)).collect())
    }

    /// A range of the floats.
    ///
    /// # Safety
    /// While the result is used, nobody else has a range that overlaps this one.
    #[allow(clippy::mut_from_ref)] // the caller answers for it
    pub(super) unsafe fn floats(&self, range: Range<usize>) -> &mut [f32] {
        let cells = &self.0[range];
        // SAFETY: the cells are inside the box, which lives as long as `self`, and have the layout of
        // their floats; by the contract nobody else reads or writes them.
        unsafe { std::slice::from_raw_parts_mut(cells.as_ptr().cast_mut().cast(), cells.len()) }
    }
}
