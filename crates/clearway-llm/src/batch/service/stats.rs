//! Numbers that anybody may read at any time without waiting for the engine.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::batch::request::{EndReason, Event, Since, What};
use crate::batch::runner::ListCounts;
use crate::batch::schedule::{Counts, Load};

/// Upper bounds of a histogram's classes in microseconds; the last class has none. They go from a microsecond to a
/// thousand seconds in steps of 1, 2 and 5.
pub const BOUNDS_US: [u64; 28] = {
    let mut bounds = [0; 28];
    let (mut at, mut decade) = (0, 1);
    while at < 28 {
        bounds[at] = decade * [1, 2, 5][at % 3];
        at += 1;
        if at % 3 == 0 {
            decade *= 10;
        }
    }
    bounds
};

const CLASSES: usize = BOUNDS_US.len() + 1;

/// Times, counted by class.
#[derive(Debug, Default)]
pub struct Histogram {
    counts: [AtomicU64; CLASSES],
    sum_ns: AtomicU64,
}

/// What a histogram held at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Times {
    /// Times in each class of [`BOUNDS_US`], and behind them those beyond the last bound.
    pub counts: [u64; CLASSES],
    /// All of them together.
    pub sum: Duration,
}

impl Histogram {
    /// Counts `times` times.
    pub fn add(&self, time: Duration, times: u64) {
        let us = u64::try_from(time.as_nanos().div_ceil(1000)).unwrap_or(u64::MAX);
        let class = BOUNDS_US.partition_point(|&bound| bound < us);
        self.counts[class].fetch_add(times, Ordering::Relaxed);
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.sum_ns.fetch_add(ns.saturating_mul(times), Ordering::Relaxed);
    }

    /// What it holds.
    pub fn read(&self) -> Times {
        let mut counts = [0; CLASSES];
        for (count, own) in counts.iter_mut().zip(&self.counts) {
            *count = own.load(Ordering::Relaxed);
        }
        Times { counts, sum: Duration::from_nanos(self.sum_ns.load(Ordering::Relaxed)) }
    }
}

impl Times {
    /// How many times were counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The mean; zero if nothing was counted.
    pub fn mean(&self) -> Duration {
        self.sum.checked_div(u32::try_from(self.count()).unwrap_or(u32::MAX)).unwrap_or_default()
    }

    /// A bound that this share of the times does not exceed; zero if nothing was counted.
    pub fn quantile(&self, share: f64) -> Duration {
        let wanted = (share * self.count() as f64).ceil() as u64;
        let mut sum = 0;
        for (&count, &bound) in self.counts.iter().zip(&BOUNDS_US) {
            sum += count;
            if sum >= wanted {
                return if wanted == 0 { Duration::ZERO } else { Duration::from_micros(bound) };
            }
        }
        Duration::MAX
    }
}

macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Numbers of a service at one time. Those that only grow say so with "so far".
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Numbers {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Numbers {
            /// All of them by their names.
            pub fn by_name(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }

        #[derive(Debug, Default)]
        struct Atomics {
            $($name: AtomicU64,)*
        }

        impl Atomics {
            fn read(&self) -> Numbers {
                Numbers { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

numbers! {
    /// Slots there are.
    slots,
    /// Texts that wait for a slot and were written down by the scheduler.
    waiting,
    /// Texts whose prompt is read.
    reading,
    /// Texts that decode.
    decoding,
    /// Works under way.
    under_way,
    /// Blocks there are.
    blocks,
    /// Tokens of a block.
    block_size,
    /// Blocks that somebody holds.
    blocks_in_use,
    /// Blocks that nobody holds and that can be found again.
    blocks_cached,
    /// Requests that were accepted so far.
    requests,
    /// Requests that were refused since too many waited so far.
    refused,
    /// Texts that ended with a token so far.
    ended_by_token,
    /// Texts that ended with their budget so far.
    ended_by_budget,
    /// Texts that ended with the context so far.
    ended_by_context,
    /// Texts that were cancelled so far.
    cancelled,
    /// Texts that failed so far.
    failed,
    /// Works so far.
    works,
    /// Works so far in which rows of prompts and a step were one.
    mixed_works,
    /// Works so far in which they were two lists, since the list of both was not made yet.
    apart_works,
    /// Lists so far that were made before a work needed them.
    lists_ahead,
    /// Lists so far that were made after a work had needed them.
    lists_late,
    /// Lists so far that could not be made.
    lists_failed,
    /// Lists so far that a work waited for.
    list_waits,
    /// Lists that works needed and that are not made yet.
    lists_missing,
    /// Microseconds so far that lists took which nobody waited for, of all threads together.
    lists_us,
    /// Decode steps so far.
    steps,
    /// Tokens of prompts that were read so far.
    prompt_tokens,
    /// Tokens of prompts that the cache had so far.
    cached_tokens,
    /// Tokens that were generated so far.
    generated_tokens,
    /// Texts that lost their blocks so far.
    preempted,
    /// Blocks that were copied so far.
    copied_blocks,
    /// Full blocks that were looked for so far.
    block_queries,
    /// Full blocks that were found so far.
    block_hits,
    /// Full blocks whose memory was needed so far.
    evicted,
    /// Times that a lost device was opened again so far.
    reopened,
}

/// What a service counts and measures. Reading it waits for nobody.
#[derive(Debug, Default)]
pub struct Stats {
    numbers: Atomics,
    /// Texts that were submitted and have no slot yet.
    pub(super) queued: AtomicUsize,
    /// Mean time between two texts that end, in nanoseconds.
    pub(super) interval_ns: AtomicU64,
    /// From submission to the first token.
    pub first_token: Histogram,
    /// Between tokens. Tokens that come together share the time.
    pub between_tokens: Histogram,
    /// Between two deliveries of tokens to one text.
    pub between_deliveries: Histogram,
    /// From submission to a slot.
    pub queue: Histogram,
    /// From a slot to the first token.
    pub prompt: Histogram,
    /// What the host did for a decode step, waiting for the device left out.
    pub host_per_step: Histogram,
}

impl Stats {
    /// The numbers now.
    pub fn numbers(&self) -> Numbers {
        self.numbers.read()
    }

    /// Texts that were submitted and have no slot yet.
    pub fn queued(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }

    /// How long a text that is submitted now waits for a slot, by the pace of those that ended last.
    pub fn expected_wait(&self) -> Duration {
        let interval = Duration::from_nanos(self.interval_ns.load(Ordering::Relaxed));
        // Before anything ended nothing is known.
        let interval = if interval.is_zero() { Duration::from_millis(100) } else { interval };
        interval.saturating_mul(u32::try_from(self.queued()).unwrap_or(u32::MAX))
    }

    pub(super) fn limits(&self, slots: usize, block_size: usize) {
        self.numbers.slots.store(slots as u64, Ordering::Relaxed);
        self.numbers.block_size.store(block_size as u64, Ordering::Relaxed);
    }

    pub(super) fn accepted(&self) {
        self.numbers.requests.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn reopened(&self) {
        self.numbers.reopened.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn refused(&self) {
        self.numbers.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// How things stand in the scheduler and on the device.
    pub(super) fn stand(&self, load: &Load, counts: &Counts, lists: &ListCounts) {
        let Atomics { waiting, reading, decoding, under_way, .. } = &self.numbers;
        let Atomics { blocks, blocks_in_use, blocks_cached, .. } = &self.numbers;
        let Atomics { mixed_works, apart_works, .. } = &self.numbers;
        let Atomics { lists_ahead, lists_late, lists_failed, list_waits, .. } = &self.numbers;
        let Atomics { lists_missing, lists_us, .. } = &self.numbers;
        let Atomics { works, steps, prompt_tokens, cached_tokens, generated_tokens, .. } =
            &self.numbers;
        let Atomics { preempted, copied_blocks, block_queries, block_hits, evicted, .. } =
            &self.numbers;
        for (number, value) in [
            (waiting, load.waiting as u64),
            (reading, load.reading as u64),
            (decoding, load.decoding as u64),
            (under_way, load.under_way as u64),
            (blocks, load.blocks as u64),
            (blocks_in_use, load.blocks_in_use as u64),
            (blocks_cached, load.blocks_cached as u64),
            (works, counts.works),
            (mixed_works, counts.mixed),
            (apart_works, counts.apart),
            (lists_ahead, lists.ahead),
            (lists_late, lists.late),
            (lists_failed, lists.failed),
            (list_waits, lists.waits),
            (lists_missing, lists.missing),
            (lists_us, u64::try_from(lists.making.as_micros()).unwrap_or(u64::MAX)),
            (steps, counts.steps),
            (prompt_tokens, counts.read),
            (cached_tokens, counts.cached),
            (generated_tokens, counts.generated),
            (preempted, counts.preempted),
            (copied_blocks, counts.copied),
            (block_queries, counts.pool.found + counts.pool.missed),
            (block_hits, counts.pool.found),
            (evicted, counts.pool.evicted),
        ] {
            number.store(value, Ordering::Relaxed);
        }
    }

    /// Counts what happened to a text.
    pub(super) fn happened(&self, event: &Event) {
        match &event.what {
            What::Admitted { waited } => self.queue.add(*waited, 1),
            What::Tokens { tokens, since, .. } => match *since {
                Since::First { submitted, admitted } => {
                    self.first_token.add(submitted, 1);
                    self.prompt.add(admitted, 1);
                }
                Since::Last(time) => {
                    let count = tokens.len().max(1);
                    self.between_deliveries.add(time, 1);
                    self.between_tokens.add(time / count as u32, count as u64);
                }
            },
            What::Ended { reason, .. } => {
                let numbers = &self.numbers;
                let number = match reason {
                    EndReason::Token(_) => &numbers.ended_by_token,
                    EndReason::Budget => &numbers.ended_by_budget,
                    EndReason::Context => &numbers.ended_by_context,
                    EndReason::Cancelled => &numbers.cancelled,
                    EndReason::Failed(_) => &numbers.failed,
                };
                number.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_counted_by_class() {
        assert_eq!((BOUNDS_US[0], BOUNDS_US[2], BOUNDS_US[27]), (1, 5, 1_000_000_000));
        let histogram = Histogram::default();
        for us in [1, 2, 3, 900] {
            histogram.add(Duration::from_micros(us), 1);
        }
        histogram.add(Duration::from_micros(4), 4);
        let times = histogram.read();
        assert_eq!(times.counts[..4], [1, 1, 5, 0]);
        assert_eq!((times.count(), times.sum), (8, Duration::from_micros(922)));
        assert_eq!(times.quantile(0.5), Duration::from_micros(5));
        assert_eq!(times.quantile(1.0), Duration::from_millis(1));
        assert_eq!(Histogram::default().read().quantile(0.99), Duration::ZERO);
    }
}
