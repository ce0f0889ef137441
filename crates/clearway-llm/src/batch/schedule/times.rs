//! How long steps and chunks of prompts took, and what follows for the next ones.
//!
//! Steps are measured by how many rows they had and chunks by how many tokens, in classes of a factor of two. Medians of the
//! last few count, so that one slow work changes nothing. A class that was not measured for long is measured again.
//!
//! A chunk beside a step has classes of its own, and the time of both together counts. On a device that reads weights once for both, a
//! chunk adds nothing up to some size and much beyond it, so what it adds says little about a larger one. The whole divided by the tokens only
//! falls with their number: a chunk that is chosen by that takes no longer than expected.

use std::time::Duration;

/// Measurements that a median is taken of.
const RECENT: usize = 7;
/// Classes: up to 2^15 rows or tokens.
const CLASSES: usize = 16;
/// A class whose last measurement is so many measurements old counts as not measured.
const STALE: u64 = 512;

/// What was measured.
#[derive(Debug, Default)]
pub(super) struct Times {
    /// Seconds of a step.
    steps: [Class; CLASSES],
    /// Seconds of a token of a chunk that is read alone.
    chunks: Chunks,
    /// Seconds of a step and a chunk beside it, for each token of the chunk.
    beside: Chunks,
    count: u64,
}

type Chunks = [Class; CLASSES];

#[derive(Clone, Copy, Debug, Default)]
struct Class {
    values: [f64; RECENT],
    len: usize,
    next: usize,
    last: u64,
}

impl Class {
    fn push(&mut self, value: f64, now: u64) {
        if self.len > 0 && now - self.last > STALE {
            *self = Self::default();
        }
        self.values[self.next] = value;
        self.next = (self.next + 1) % RECENT;
        self.len = (self.len + 1).min(RECENT);
        self.last = now;
    }

    fn median(&self) -> Option<f64> {
        let mut values = self.values;
        let values = &mut values[..self.len];
        values.sort_unstable_by(f64::total_cmp);
        values.get(self.len / 2).copied()
    }
}

fn class_of(count: usize) -> usize {
    (count.max(1).ilog2() as usize).min(CLASSES - 1)
}

impl Times {
    /// One decode step of `rows` rows took so long.
    pub(super) fn step_took(&mut self, rows: usize, time: Duration) {
        self.count += 1;
        self.steps[class_of(rows)].push(time.as_secs_f64(), self.count);
    }

    /// A chunk of `tokens` tokens took so long, alone.
    pub(super) fn chunk_took(&mut self, tokens: usize, time: Duration) {
        self.count += 1;
        let tokens = tokens.max(1);
        self.chunks[class_of(tokens)].push(time.as_secs_f64() / tokens as f64, self.count);
    }

    /// A step and a chunk of `tokens` tokens beside it took so long.
    pub(super) fn beside_took(&mut self, tokens: usize, time: Duration) {
        self.count += 1;
        let tokens = tokens.max(1);
        self.beside[class_of(tokens)].push(time.as_secs_f64() / tokens as f64, self.count);
    }

    /// How long a step of `rows` rows takes, by the measured class that is nearest; `None` before the first.
    pub(super) fn step(&self, rows: usize) -> Option<Duration> {
        let class = class_of(rows);
        let near = |away: usize| {
            let below = class.checked_sub(away).and_then(|at| self.steps[at].median());
            below.or_else(|| self.steps.get(class + away).and_then(Class::median))
        };
        (0..CLASSES).find_map(near).map(Duration::from_secs_f64)
    }

    /// How long a chunk of `tokens` tokens takes alone; `None` before the first.
    pub(super) fn chunk(&self, tokens: usize) -> Option<Duration> {
        of_chunk(&self.chunks, tokens)
    }

    /// How long a step and a chunk of `tokens` tokens beside it take; `None` before the first.
    pub(super) fn beside(&self, tokens: usize) -> Option<Duration> {
        of_chunk(&self.beside, tokens)
    }

    /// Tokens of a chunk that takes at most `time` together with the step beside it: between `least` and `most`.
    pub(super) fn tokens_within(&self, time: Duration, least: usize, most: usize) -> usize {
        let time = time.as_secs_f64();
        let fresh = |class: &Class| self.count - class.last <= STALE;
        let mut wanted = least;
        // The smallest class above that was measured does not fit.
        let mut below = usize::MAX;
        for class in (0..CLASSES).rev() {
            let measured = self.beside[class];
            let Some(of_token) = measured.median().filter(|_| fresh(&measured)) else { continue };
            let fit = (time / of_token.max(1e-12)).min(1e9) as usize;
            if fit >= 1 << class {
                // Beyond its class a measurement says little: the next one is tried at its lower end.
                wanted = fit.min(1 << (class + 1)).min(below - 1);
                break;
            }
            (wanted, below) = (fit, 1 << class);
        }
        wanted.clamp(least.min(most), most)
    }
}

/// What a chunk of `tokens` tokens takes by the measured class that is nearest.
fn of_chunk(chunks: &Chunks, tokens: usize) -> Option<Duration> {
    let class = class_of(tokens);
    let near = |away: usize| {
        let above = chunks.get(class + away).and_then(Class::median);
        above.or_else(|| class.checked_sub(away).and_then(|at| chunks[at].median()))
    };
    let of_token = (0..CLASSES).find_map(near)?;
    Some(Duration::from_secs_f64(of_token * tokens as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(time: f64) -> Duration {
        Duration::from_secs_f64(time / 1e3)
    }

    #[test]
    fn the_median_ignores_a_slow_step_and_follows_a_change() {
        let mut times = Times::default();
        assert_eq!(times.step(4), None);
        for time in [2.0, 2.0, 50.0, 2.0, 2.0] {
            times.step_took(4, ms(time));
        }
        assert_eq!(times.step(5), Some(ms(2.0)));
        assert_eq!(times.step(64), Some(ms(2.0)), "the nearest class");
        (0..4).for_each(|_| times.step_took(4, ms(3.0)));
        assert_eq!(times.step(4), Some(ms(3.0)));
    }

    #[test]
    fn chunks_grow_into_a_budget_and_stay_within_it() {
        // Reading takes 3 ms, and 0.05 ms for each token beyond 60.
        let truth = |tokens: usize| ms(3.0_f64.max(0.05 * tokens as f64));
        let mut times = Times::default();
        let budget = ms(10.0);
        let mut sizes = Vec::new();
        for _ in 0..40 {
            let tokens = times.tokens_within(budget, 16, 1024);
            sizes.push(tokens);
            times.beside_took(tokens, truth(tokens));
        }
        assert_eq!(sizes[0], 16);
        let over = sizes.iter().filter(|&&tokens| truth(tokens) > budget.mul_f64(1.3)).count();
        assert!(over <= 1, "{sizes:?}");
        assert!(sizes[39] >= 150, "{sizes:?}");
        // Chunks that were read while nobody waited say nothing about those beside steps.
        times.chunk_took(1024, truth(1024));
        times.chunk_took(100, ms(0.001));
        assert_eq!(times.chunk(100), Some(ms(0.001)));
        assert!(times.beside(100).is_some_and(|time| time > ms(1.0)));
        assert!(times.tokens_within(budget, 16, 1024) >= 150);
        // A budget that nothing fits gives the least.
        assert_eq!(times.tokens_within(ms(0.1), 16, 1024), 16);
    }

    #[test]
    fn a_class_with_one_bad_measurement_is_measured_again_after_a_while() {
        let mut times = Times::default();
        times.beside_took(32, ms(1.0));
        times.beside_took(64, ms(500.0));
        assert!(times.tokens_within(ms(10.0), 16, 256) <= 64);
        let mut largest = 0;
        for _ in 0..STALE + 20 {
            let tokens = times.tokens_within(ms(10.0), 16, 256);
            largest = largest.max(tokens);
            times.beside_took(tokens, ms(1.0));
        }
        assert!(largest > 128, "{largest}");
    }
}
