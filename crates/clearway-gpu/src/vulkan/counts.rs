//! What a device did so far, counted, so that tests see that a replayed step only submits.

use std::sync::atomic::{AtomicU64, Ordering};

/// Work of the host for a device since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VulkanCounts {
    /// Submissions to the queue.
    pub submissions: u64,
    /// Command buffers recorded.
    pub recordings: u64,
    /// Descriptor sets written.
    pub sets_written: u64,
    /// Pieces of device memory given out.
    pub pieces: u64,
}

/// The counters behind [`VulkanCounts`]; submissions are counted by the clock.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) recordings: Counter,
    pub(super) sets_written: Counter,
    pub(super) pieces: Counter,
}

/// A number that only grows.
#[derive(Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(super) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
