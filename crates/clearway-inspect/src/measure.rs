//! Times of a device: per group in the schedule as it is, per dispatch in the serialised mode.

use std::time::{Duration, Instant};

use clearway::{
    CompileOptions, ComputeGraph, DType, Executable, GraphExecutor, Ops, Profile, ProfileMode,
    ProfileSpan,
};

use crate::error::{InspectError, Result};
use crate::report::{LostTime, Measured, Report};

/// Runs before times are kept: kernels are loaded and caches settle.
const WARM_RUNS: u32 = 2;
/// How long a device beside the host is kept busy before times are kept: its clocks go up with work.
const WARM_UP: Duration = Duration::from_millis(300);
/// Timed runs of each mode at most.
const MAX_RUNS: usize = 21;
/// No further run starts after this long in one mode.
const PATIENCE: Duration = Duration::from_millis(700);
/// Bytes of each of the two tensors of the bandwidth test: beyond any cache.
const COPY_BYTES: u64 = 256 << 20;
/// How many groups lead the list of lost time.
const TOP: usize = 10;

/// What a device took for one list.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// The device, in words.
    pub device: String,
    /// Times of groups, in the schedule as it runs.
    pub groups: Profile,
    /// Times of dispatches, each with a barrier after it.
    pub serialised: Profile,
    /// Timed runs; of each mode the one of median time is kept.
    pub runs: u32,
    /// Bandwidth of a copy on this device; `None` if it has no memory for one.
    pub copy_bytes_per_ns: Option<f64>,
}

/// Runs a compiled graph some times, and a copy to see what the device's memory gives.
///
/// # Errors
/// [`clearway::GpuError::ProfileUnsupported`] where the device cannot time its work; what it reports.
pub fn measure(executor: &GraphExecutor, graph: &mut Executable) -> Result<Measurement> {
    let started = Instant::now();
    for run in 0.. {
        let cold = executor.device().host_is_far() && started.elapsed() < WARM_UP;
        if run >= WARM_RUNS && !cold {
            break;
        }
        graph.run()?;
    }
    let (groups, runs) = median_run(graph, ProfileMode::Groups)?;
    let (serialised, _) = median_run(graph, ProfileMode::Serialised)?;
    let [groups, serialised] = [groups, serialised].map(|p| with_left_out(graph.graph(), p));
    let info = executor.device().info();
    let device = format!("{} ({})", info.name, info.description);
    let copy_bytes_per_ns = copy_bandwidth(executor).ok();
    Ok(Measurement { device, groups, serialised, runs, copy_bytes_per_ns })
}

impl Report {
    /// Adds times.
    ///
    /// # Errors
    /// [`InspectError::ForeignTimes`] if they are those of another list.
    pub fn attach(&mut self, times: &Measurement) -> Result<()> {
        let expect = |what, found: usize, expected: usize| match found == expected {
            true => Ok(()),
            false => Err(InspectError::ForeignTimes { what, found, expected }),
        };
        let (groups, serialised) = (&times.groups, &times.serialised);
        expect("groups", groups.spans.len(), self.group_list.len())?;
        expect("dispatches", serialised.spans.len(), self.dispatch_list.len())?;

        let rate = |bytes: u64, ns: u64| bytes as f64 / ns.max(1) as f64;
        // No single group sets the mark: one whose bytes all lie in caches is faster than memory.
        let all: u64 = self.group_list.iter().map(|group| group.bytes).sum();
        let reached = rate(all, groups.total_ns());
        let bytes_per_ns = times.copy_bytes_per_ns.unwrap_or(0.0).max(reached);
        let mut lost: Vec<LostTime> = (0..)
            .zip(self.group_list.iter().zip(&groups.spans))
            .map(|(group, (row, span))| {
                let measured_ns = span.duration_ns();
                let needed = (row.bytes as f64 / bytes_per_ns.max(f64::MIN_POSITIVE)) as u64;
                LostTime { group, measured_ns, lost_ns: measured_ns.saturating_sub(needed) }
            })
            .collect();
        lost.sort_by_key(|row| (std::cmp::Reverse(row.lost_ns), row.group));
        lost.truncate(TOP);

        for (group, span) in self.group_list.iter_mut().zip(&groups.spans) {
            let ns = span.duration_ns();
            group.measured_ns = Some(ns);
            let share = if group.bytes == 0 { 0.0 } else { rate(group.bytes, ns) / bytes_per_ns };
            group.bandwidth_share = Some(share).filter(|share| share.is_finite());
            group.barrier_share = groups.barrier_ns.map(|b| (b as f64 / ns.max(1) as f64).min(1.0));
        }
        for (row, span) in self.dispatch_list.iter_mut().zip(&serialised.spans) {
            row.serialised_ns = Some(span.duration_ns());
        }
        self.summary.measured_ns = Some(groups.total_ns());
        self.measured = Some(Measured {
            device: times.device.clone(),
            clock: groups.clock.name(),
            runs: times.runs,
            group_start_ns: groups.spans.iter().map(|span| span.start_ns).collect(),
            total_ns: groups.total_ns(),
            submit_ns: groups.submit_ns,
            wait_ns: groups.wait_ns,
            barrier_ns: groups.barrier_ns,
            bytes_per_ns,
            serialised_start_ns: serialised.spans.iter().map(|span| span.start_ns).collect(),
            serialised_ns: serialised.total_ns(),
            top_lost: lost,
        });
        Ok(())
    }
}

/// The run of median time, and how many there were. A run is kept whole: its times add up.
fn median_run(graph: &mut Executable, mode: ProfileMode) -> Result<(Profile, u32)> {
    let started = Instant::now();
    let mut runs = vec![graph.profile(mode)?];
    while runs.len() < MAX_RUNS && started.elapsed() < PATIENCE {
        runs.push(graph.profile(mode)?);
    }
    runs.sort_by_key(Profile::total_ns);
    let count = runs.len() as u32;
    Ok((runs.swap_remove(runs.len() / 2), count))
}

/// The profile with spans of no length for what is never lowered: dispatches that have nothing to do where
/// they were placed, and groups of nothing else.
fn with_left_out(graph: &ComputeGraph, profile: Profile) -> Profile {
    let mut runs: Vec<bool> = Vec::new();
    match profile.mode {
        ProfileMode::Serialised => runs.extend(graph.dispatches().map(|d| !d.is_moot())),
        ProfileMode::Groups => {
            let mut open = false;
            for node in graph.nodes() {
                let Some(dispatch) = node.dispatch() else {
                    open = false;
                    continue;
                };
                if !std::mem::replace(&mut open, true) {
                    runs.push(false);
                }
                if let Some(group) = runs.last_mut() {
                    *group |= !dispatch.is_moot();
                }
            }
        }
    }
    let mut timed = profile.spans.iter().copied();
    let mut end = 0;
    let spans = runs.iter().map(|&runs| {
        let span = if runs { timed.next() } else { None };
        let span = span.unwrap_or(ProfileSpan { start_ns: end, end_ns: end });
        end = span.end_ns;
        span
    });
    match runs.iter().filter(|&&runs| runs).count() == profile.spans.len() {
        true => Profile { spans: spans.collect(), ..profile },
        false => profile, // another list's, which is for `attach` to say
    }
}

/// Bytes in a nanosecond of the fastest of a few copies.
fn copy_bandwidth(executor: &GraphExecutor) -> Result<f64> {
    let device = executor.device();
    let source = device.alloc(COPY_BYTES)?;
    // Pages that were never written may all be one page of zeros, which no cache has to leave.
    let chunk = vec![0_u8; 1 << 20];
    for offset in (0..COPY_BYTES).step_by(chunk.len()) {
        source.write(offset, &chunk)?;
    }
    let rows = (COPY_BYTES / 4 / 1024) as usize;
    let mut pass = executor.begin_recorded()?;
    let copied = pass.copy(source.tensor(DType::F32, &[rows, 1024])?, DType::F32)?;
    pass.output(copied)?;
    let mut graph = pass.compile(&CompileOptions::default())?;
    graph.run()?;
    let mut fastest = u64::MAX;
    for _ in 0..3 {
        fastest = fastest.min(graph.profile(ProfileMode::Groups)?.total_ns());
    }
    Ok(2.0 * COPY_BYTES as f64 / fastest.max(1) as f64)
}
