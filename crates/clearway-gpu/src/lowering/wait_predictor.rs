//! When runs that were handed over will be done, from how long earlier ones took.
//!
//! Waiting costs: a driver polls or is woken, and each time that is tens of microseconds of a core. A
//! host that knows when to look again sleeps until then. Where more work stands in the queue it may
//! look late and the device still has something to do; only where it finds that it came too early
//! does it have to wait, and learns from that how long runs take.

use std::time::{Duration, Instant};

use crate::device::Ticket;
use crate::error::Result;

/// Where nothing stands behind the runs the host must be there when they end: it sleeps this part of
/// what they are expected to take, since they may be faster now, and waits for the rest.
const ALONE: f64 = 0.85;
/// Where more stands behind them: how much later than expected the host looks, as a part of the runs.
const LATE: f64 = 1.0 / 16.0;
/// The host looks at least this often: what it expects may be far off.
const LONGEST: Duration = Duration::from_millis(100);
/// How much faster runs are taken to be after each look that came late enough. Nothing else would say
/// that they have become faster.
const DOUBT: f64 = 1.0 / 256.0;
/// An expectation holds if what was seen differs from it by this factor at most.
const ALIKE: f64 = 1.1;

/// Runs counted from the first, and when they were done.
#[derive(Clone, Copy, Debug)]
struct Mark {
    runs: u64,
    at: Instant,
}

#[derive(Debug, Default)]
pub(crate) struct WaitPredictor {
    /// How long a run takes.
    run: Option<Duration>,
    /// The last end, or start from rest, that was seen when it happened.
    seen: Option<Mark>,
    /// The last one that was seen or is taken to have happened.
    taken: Option<Mark>,
    /// What was seen last is what was expected. Otherwise the host does not sleep: it waits, and sees when runs end.
    trusted: bool,
}

impl WaitPredictor {
    /// The device had nothing to do when runs after the first `runs` were handed over.
    pub(crate) fn rested(&mut self, runs: u64, now: Instant) {
        self.seen = Some(Mark { runs, at: now });
        self.taken = self.seen;
    }

    /// Runs after those so far were handed over behind work of others: nobody knows when they begin.
    pub(crate) fn behind_others(&mut self) {
        (self.seen, self.taken) = (None, None);
    }

    /// How long the host may sleep before it looks whether the first `runs` are done; `more` says
    /// whether others stand behind them.
    pub(crate) fn sleep(&self, runs: u64, more: bool, now: Instant) -> Duration {
        let Some((end, length)) = self.expected(runs).filter(|_| self.trusted) else {
            return Duration::ZERO;
        };
        let left = end.saturating_duration_since(now);
        let sleep = if more { left + length.mul_f64(LATE) } else { left.mul_f64(ALONE) };
        sleep.min(LONGEST)
    }

    /// The first `runs` are done, and the host looked too late to see when.
    pub(crate) fn late(&mut self, runs: u64) {
        if let Some((at, _)) = self.expected(runs) {
            self.taken = Some(Mark { runs, at });
            self.run = self.run.map(|run| run.mul_f64(1.0 - DOUBT));
        }
    }

    /// All `runs` that were handed over are done, and the device may have had nothing to do for long.
    pub(crate) fn too_late(&mut self, runs: u64, now: Instant) {
        if let (Some(run), Some(Mark { runs: before, at })) = (self.run, self.taken)
            && runs > before
        {
            let most = now.saturating_duration_since(at).div_f64((runs - before) as f64);
            self.run = Some(run.min(most) / 2);
        }
        self.trusted = false;
        self.rested(runs, now);
    }

    /// The first `runs` have just been done.
    pub(crate) fn seen(&mut self, runs: u64, now: Instant) {
        if let Some(Mark { runs: before, at }) = self.seen
            && runs > before
        {
            let run = (now - at).div_f64((runs - before) as f64);
            let alike = |old: Duration| old.mul_f64(ALIKE) >= run && run.mul_f64(ALIKE) >= old;
            self.trusted = self.run.is_some_and(alike);
            self.run = Some(run);
        }
        self.rested(runs, now);
    }

    /// Waits for runs of those that are `running`: sleeps as long as they should take, looks what is `done`, and lets the
    /// device `wait` only where that was too early.
    pub(crate) fn finish(
        &mut self,
        runs: Ticket,
        running: Ticket,
        done: impl FnOnce() -> Result<u64>,
        wait: impl FnOnce(u64) -> Result<()>,
    ) -> Result<()> {
        // The clock of another device may show what this one never will.
        let runs = if runs.clock > running.clock { running } else { runs };
        let more = running.clock > runs.clock;
        std::thread::sleep(self.sleep(runs.runs, more, Instant::now()));
        let done = done()?;
        if done >= running.clock {
            self.too_late(running.runs, Instant::now());
        } else if done >= runs.clock {
            self.late(runs.runs);
        } else {
            wait(runs.clock)?;
            self.seen(runs.runs, Instant::now());
        }
        Ok(())
    }

    /// When the first `runs` should be done, and how long those not known to be done take of it.
    fn expected(&self, runs: u64) -> Option<(Instant, Duration)> {
        let (run, taken) = (self.run?, self.taken?);
        let length = run.mul_f64(runs.saturating_sub(taken.runs) as f64);
        Some((taken.at + length, length))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const RUN: Duration = Duration::from_millis(2);

    /// A device and the host that keeps two batches of runs in its queue.
    struct Simulated {
        predictor: WaitPredictor,
        now: Instant,
        queue: VecDeque<(u64, Instant)>,
        handed: u64,
        /// When the device has nothing more to do.
        free: Instant,
        /// Batches, those the host had to wait for, and how long the device waited for the host.
        batches: usize,
        waits: usize,
        idle: Duration,
    }

    impl Simulated {
        fn new() -> Self {
            let now = Instant::now();
            let (predictor, queue, idle) =
                (WaitPredictor::default(), VecDeque::new(), Duration::ZERO);
            Self { predictor, now, queue, handed: 0, free: now, batches: 0, waits: 0, idle }
        }

        /// Some text: short batches first, then long ones.
        fn generate(&mut self, run: impl Fn(u64) -> Duration) {
            self.now += Duration::from_millis(70); // a user
            self.free = self.now;
            for runs in [8, 32, 32, 32, 24] {
                if self.queue.len() == 2 {
                    self.finish();
                }
                self.start(runs, &run);
            }
            while !self.queue.is_empty() {
                self.finish();
            }
        }

        fn start(&mut self, runs: u64, run: &dyn Fn(u64) -> Duration) {
            if self.free <= self.now {
                self.predictor.rested(self.handed, self.now);
                self.idle += self.now - self.free;
                self.free = self.now;
            }
            for _ in 0..runs {
                self.handed += 1;
                self.free += run(self.handed);
            }
            self.queue.push_back((self.handed, self.free));
        }

        fn finish(&mut self) {
            let (runs, end) = self.queue.pop_front().unwrap();
            self.batches += 1;
            self.now += self.predictor.sleep(runs, !self.queue.is_empty(), self.now);
            if self.now >= self.free {
                self.predictor.too_late(self.handed, self.now);
            } else if self.now >= end {
                self.predictor.late(runs);
            } else {
                (self.now, self.waits) = (end, self.waits + 1);
                self.predictor.seen(runs, self.now);
            }
        }
    }

    #[test]
    fn a_steady_device_is_never_idle_and_seldom_waited_for() {
        let mut steady = Simulated::new();
        for _ in 0..20 {
            steady.generate(|_| RUN);
        }
        assert_eq!(steady.idle, Duration::ZERO);
        let (waits, batches) = (steady.waits, steady.batches);
        assert!(waits * 3 < batches, "{waits} waits for {batches} batches");
        let run = steady.predictor.run.unwrap();
        assert!(run > RUN.mul_f64(0.95) && run < RUN.mul_f64(1.05), "{run:?}");
    }

    #[test]
    fn runs_that_become_slower_are_followed() {
        let mut slower = Simulated::new();
        for _ in 0..6 {
            slower.generate(|run| RUN + Duration::from_micros(1) * run as u32);
        }
        assert_eq!(slower.idle, Duration::ZERO);
        assert!(slower.waits * 2 < slower.batches, "{} of {}", slower.waits, slower.batches);
    }

    #[test]
    fn a_slow_start_is_forgotten_soon() {
        // Drivers compile, clocks rise: the first run may take a hundred times as long.
        let mut slow = Simulated::new();
        for _ in 0..20 {
            slow.generate(|run| if run < 8 { RUN * 100 } else { RUN });
        }
        let run = slow.predictor.run.unwrap();
        assert!(run > RUN.mul_f64(0.95) && run < RUN.mul_f64(1.05), "{run:?}");
        assert!(slow.idle < LONGEST, "{:?}", slow.idle);
        let before = slow.idle;
        slow.generate(|_| RUN);
        assert_eq!(slow.idle, before);
    }

    #[test]
    fn work_of_others_in_front_is_not_counted() {
        let (mut predictor, start) = (WaitPredictor::default(), Instant::now());
        predictor.rested(0, start);
        predictor.seen(5, start + RUN * 5);
        predictor.seen(10, start + RUN * 10);
        predictor.behind_others();
        assert_eq!(predictor.sleep(11, false, start + RUN * 10), Duration::ZERO);
        predictor.seen(11, start + RUN * 100);
        assert_eq!(predictor.run, Some(RUN));
        let sleep = predictor.sleep(21, true, start + RUN * 100);
        assert!(sleep < RUN * 11, "{sleep:?}");
    }

    #[test]
    fn an_expectation_is_followed_when_it_held_once() {
        let (mut predictor, start) = (WaitPredictor::default(), Instant::now());
        let asleep = |predictor: &WaitPredictor, runs| {
            predictor.sleep(runs, true, start + RUN * 500 + RUN * runs as u32)
        };
        predictor.rested(0, start);
        // A slow start, runs that are faster, and as fast again.
        predictor.seen(1, start + RUN * 500 + RUN);
        assert_eq!(asleep(&predictor, 11), Duration::ZERO);
        predictor.seen(11, start + RUN * 511);
        assert_eq!(asleep(&predictor, 21), Duration::ZERO);
        predictor.seen(21, start + RUN * 521);
        assert!(asleep(&predictor, 31) < RUN, "it should be done");
        assert!(predictor.sleep(31, true, start + RUN * 521) > RUN * 10);
        // All is done long before it was expected.
        predictor.too_late(41, start + RUN * 531);
        assert_eq!(asleep(&predictor, 51), Duration::ZERO);
    }

    #[test]
    fn a_host_that_must_be_there_in_time_wakes_early() {
        let (mut predictor, start) = (WaitPredictor::default(), Instant::now());
        assert_eq!(predictor.sleep(10, false, start), Duration::ZERO, "nothing is known yet");
        predictor.rested(0, start);
        predictor.seen(5, start + RUN * 5);
        predictor.seen(10, start + RUN * 10);
        let sleep = predictor.sleep(20, false, start + RUN * 10);
        assert!(sleep < RUN * 9 && sleep > RUN * 8, "{sleep:?}");
        let later = start + RUN * 100;
        predictor.rested(10, later);
        assert_eq!(predictor.sleep(20, false, later), sleep, "rest in between does not count");
    }
}
