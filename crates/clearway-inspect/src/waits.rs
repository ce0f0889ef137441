//! Dispatches beside each other: what counters in place of barriers change, and who waits how long for whom.

use std::time::{Duration, Instant};

use clearway::{Executable, WaitProfile};
use serde::Serialize;

use crate::error::{InspectError, Result};
use crate::report::Report;

/// Measured runs; the one of median time is kept.
const RUNS: usize = 7;
/// How long runs that are timed from outside take together, and how often that is done.
const ROUND: Duration = Duration::from_millis(20);
const ROUNDS: usize = 5;
/// How long a device is kept busy first: its clocks go up with work.
const WARM_UP: Duration = Duration::from_millis(300);
/// How many dispatches lead the list of waits.
const TOP: usize = 10;

/// What a device took for a list with counters.
#[derive(Clone, Debug)]
pub struct WaitMeasurement {
    /// One run in which workgroups noted when they started and how long they waited.
    pub profile: WaitProfile,
    /// Groups that wait for the one before them by a counter.
    pub waiting_groups: u32,
    /// One of many runs in a row as they are, with counters.
    pub run_ns: f64,
    /// The same with barriers and kernels without counters.
    pub barrier_run_ns: f64,
}

/// Runs a list with counters some times, and the same list with barriers.
///
/// # Errors
/// [`clearway::GpuError::NoWaits`] where nobody waits for counters, or where kernels cannot read a clock; what the device reports.
pub fn measure_waits(
    counted: &mut Executable,
    barriers: &mut Executable,
) -> Result<WaitMeasurement> {
    let barrier_run_ns = run_ns(barriers)?;
    let run_ns = run_ns(counted)?;
    let mut runs = Vec::with_capacity(RUNS);
    for _ in 0..RUNS {
        runs.push(counted.profile_waits()?);
    }
    runs.sort_by_key(|run| run.total_ns);
    let profile = runs.swap_remove(RUNS / 2);
    let waiting_groups = counted.waiting_groups() as u32;
    Ok(WaitMeasurement { profile, waiting_groups, run_ns, barrier_run_ns })
}

/// The shortest of some rounds of runs, without time stamps, once clocks are up.
fn run_ns(graph: &mut Executable) -> Result<f64> {
    let mut timed = |times: usize| -> Result<Duration> {
        let started = Instant::now();
        graph.run_many(times)?;
        Ok(started.elapsed() / times as u32)
    };
    timed(1)?;
    let started = Instant::now();
    let mut once = timed(1)?;
    while started.elapsed() < WARM_UP {
        once = once.min(timed(1)?);
    }
    let times = (ROUND.as_nanos() / once.as_nanos().max(1)).clamp(1, 256) as usize;
    let mut least = Duration::MAX;
    for _ in 0..ROUNDS {
        least = least.min(timed(times)?);
    }
    Ok(least.as_nanos() as f64)
}

/// A list with counters on a device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Waits {
    /// Groups that wait for the one before them by a counter instead of a barrier.
    pub waiting_groups: u32,
    /// One of many runs in a row, by the host's clock.
    pub run_ns: f64,
    /// The same with barriers between all groups.
    pub barrier_run_ns: f64,
    /// The run whose workgroups left notes.
    pub total_ns: u64,
    /// The smallest step of the clock that kernels read.
    pub clock_step_ns: f64,
    /// The dispatches whose workgroups waited longest.
    pub top: Vec<u32>,
}

/// When a dispatch ran with counters in place of barriers, by the clock of its own workgroups. Zero is the start of the list.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WaitRow {
    /// Start of its first workgroup. Where it is not counted: the barrier in front of it.
    pub start_ns: u64,
    /// End of its last workgroup, or the barrier behind it.
    pub end_ns: u64,
    /// Whether its workgroups noted this themselves.
    pub counted: bool,
    /// Its workgroups, where they did.
    pub workgroups: u32,
    /// The dispatch it waits for: of the group before it the one that was done last. `None` behind a barrier.
    pub waits_for: Option<u32>,
    /// Workgroups that found the counter not full yet.
    pub waited: u32,
    /// When the first of them went on.
    pub released_ns: u64,
    /// How long each of them waited, on average.
    pub mean_wait_ns: u64,
    /// How long one of them waited at most.
    pub longest_wait_ns: u64,
    /// How often they looked again, all together.
    pub polls: u64,
    /// How often one of them looked again at most.
    pub most_polls: u32,
}

impl Report {
    /// Adds what a list with counters took.
    ///
    /// # Errors
    /// [`InspectError::ForeignTimes`] if it is another list.
    pub fn attach_waits(&mut self, times: &WaitMeasurement) -> Result<()> {
        let rows = self.dispatch_list.iter().enumerate();
        let running: Vec<usize> = rows.filter(|(_, row)| !row.moot).map(|(at, _)| at).collect();
        let found = times.profile.dispatches.len();
        if found != running.len() {
            let expected = running.len();
            return Err(InspectError::ForeignTimes { what: "dispatches", found, expected });
        }
        for (wait, &at) in times.profile.dispatches.iter().zip(&running) {
            let counted = wait.counted.unwrap_or_default();
            let before = counted.waits_for.and_then(|place| running.get(place));
            self.dispatch_list[at].waits = Some(WaitRow {
                start_ns: wait.span.start_ns,
                end_ns: wait.span.end_ns,
                counted: wait.counted.is_some(),
                workgroups: counted.workgroups,
                waits_for: before.map(|&place| place as u32),
                waited: counted.waited,
                released_ns: counted.released_ns,
                mean_wait_ns: counted.wait_ns / u64::from(counted.waited.max(1)),
                longest_wait_ns: counted.longest_wait_ns,
                polls: counted.polls,
                most_polls: counted.most_polls,
            });
        }
        let longest = |at: &usize| {
            let waits = self.dispatch_list[*at].waits.as_ref();
            waits.filter(|row| row.waited > 0).map_or(0, |row| row.longest_wait_ns)
        };
        let mut top: Vec<usize> = running.into_iter().filter(|at| longest(at) > 0).collect();
        top.sort_by_key(|at| (std::cmp::Reverse(longest(at)), *at));
        top.truncate(TOP);
        self.waits = Some(Waits {
            waiting_groups: times.waiting_groups,
            run_ns: times.run_ns,
            barrier_run_ns: times.barrier_run_ns,
            total_ns: times.profile.total_ns,
            clock_step_ns: times.profile.clock_step_ns,
            top: top.into_iter().map(|at| at as u32).collect(),
        });
        self.no_waits = None;
        Ok(())
    }
}
