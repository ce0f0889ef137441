//! Time stamps of a run, taken by the calling thread each time it passes a barrier. The schedule is
//! not disturbed: workers meet there anyway, and the others take no stamp.

use std::time::Instant;

use crate::error::Result;
use crate::profile::{Profile, ProfileClock, ProfileMode, ProfileSpan};

/// Barriers passed in a row to see what one costs.
pub(super) const CALIBRATION: usize = 128;

/// Times `run`, which passes `groups` barriers and says so.
pub(super) fn of_run(
    mode: ProfileMode,
    groups: usize,
    run: impl FnOnce(&mut dyn FnMut(usize)) -> Result<()>,
) -> Result<Profile> {
    let mut spans = vec![ProfileSpan::default(); groups];
    let started = Instant::now();
    let since_start = || u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let mut last = 0;
    run(&mut |group| {
        let now = since_start();
        spans[group] = ProfileSpan { start_ns: last, end_ns: now };
        last = now;
    })?;
    // The caller is a worker: handing over and working are one, so all of it is waiting.
    Ok(Profile {
        mode,
        clock: ProfileClock::Cpu,
        spans,
        submit_ns: 0,
        wait_ns: since_start(),
        barrier_ns: None,
    })
}

/// The middle of the durations.
pub(super) fn median_ns(spans: &[ProfileSpan]) -> Option<u64> {
    let mut durations: Vec<u64> = spans.iter().map(ProfileSpan::duration_ns).collect();
    durations.sort_unstable();
    durations.get(durations.len() / 2).copied()
}
