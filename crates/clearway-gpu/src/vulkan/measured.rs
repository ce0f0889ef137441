//! How long workgroups wait for counters.
//!
//! The same commands with another entry point in each kernel that is counted: its workgroups read the device's clock and
//! leave notes behind the counters (`counted_measured.wgsl`). Bindings stay as they are. Time stamps stand only where barriers
//! are left: those between other dispatches would keep them apart.
//!
//! The list runs three times: to warm up, to learn what the clock shows, so that times of the last run fit a word, and to be
//! measured. The time stamps of the last two runs say how fast the clock goes.

use std::time::Duration;

use ash::vk;

use super::pipeline::Wanted;
use super::program::VulkanProgram;
use super::record::{Clock, Stamps};
use crate::counters::APART;
use crate::device::DeviceMemory;
use crate::error::{GpuError, Result};
use crate::lowering::lowered::Role;
use crate::profile::{Counted, DispatchWait, ProfileSpan, WaitProfile};
use crate::wgsl::{COUNTED_ENTRY, MEASURED_ENTRY, SYNC_WORDS, Trust};

/// Where the place of the notes lies in the counters, in bytes, and behind it what is subtracted from times.
const NOTES_AT: u64 = 8;
/// Words of the notes of one step.
pub(super) const NOTE_WORDS: u32 = APART;
/// Steps that have a number: five bits of three words.
const MOST_STEPS: usize = 1 << 15;
/// Time between the two runs. A clock of a gigahertz does not come round in it, and is known to a thousandth.
const PAUSE: Duration = Duration::from_millis(5);

/// The notes of one step, in ticks since the first run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Note {
    first_start: u32,
    last_start: u32,
    end: u32,
    /// Start of the first workgroup by number.
    start_of_first: u32,
    released: u32,
    longest_wait: u32,
    wait: u64,
    waited: u32,
    polls: u32,
    most_polls: u32,
}

impl Note {
    /// What a step starts with: the least of nothing is the largest number.
    const EMPTY: [u32; 5] = [u32::MAX, 0, 0, 0, u32::MAX];

    fn of(words: &[u32]) -> Self {
        Self {
            first_start: words[0],
            last_start: words[1],
            end: words[2],
            start_of_first: words[3],
            released: words[4],
            longest_wait: words[5],
            wait: u64::from(words[6]) | u64::from(words[7]) << 32,
            waited: words[8],
            polls: words[9],
            most_polls: words[10],
        }
    }
}

/// What one run left.
struct Run {
    /// Time stamps in ticks of the queue: at the start, at each barrier that is left, at the end.
    stamps: Vec<u64>,
    /// Of each launch; `None` where its kernel is not counted.
    notes: Vec<Option<Note>>,
}

impl VulkanProgram {
    /// Runs the list three times and says how long workgroups waited in the last.
    pub(super) fn measure_waits(&mut self) -> Result<WaitProfile> {
        let no = |reason| GpuError::NoWaits { device: self.context.info.name.clone(), reason };
        let Some(waits) = self.waits.as_ref().filter(|waits| waits.are_used()) else {
            return Err(no("its barriers are no counters"));
        };
        if !self.context.adapter.has_clock || self.context.adapter.timestamp_bits == 0 {
            return Err(no("kernels cannot read the clock of the device"));
        }
        if self.launches.len() > MOST_STEPS {
            return Err(no("it has too many steps"));
        }
        let edges = 2 + waits.groups.iter().skip(1).filter(|&&wait| !wait).count();
        let mut pipelines = self.measured_pipelines()?;
        let mut words = vec![0_u32; self.blocks.len as usize / 4];
        self.blocks.read(0, bytemuck::cast_slice_mut(&mut words))?;
        let plain = words.clone();
        for (step, launch) in self.launches.iter().enumerate() {
            if let Some(at) = launch.sync {
                number(&mut words[at..at + SYNC_WORDS], step as u32);
            }
        }
        self.blocks.write(0, bytemuck::cast_slice(&words))?;
        self.swap_pipelines(&mut pipelines);
        let runs = self.clocked(Stamps::Barriers, edges as u32, |program, clock, commands| {
            program.record(commands, 1, Some(clock))?;
            // Some drivers compile a kernel when it first runs.
            program.noted_run(clock, commands, 0)?;
            let first = program.noted_run(clock, commands, 0)?;
            std::thread::sleep(PAUSE);
            let base = first.notes.iter().flatten().next().map_or(0, |note| note.start_of_first);
            Ok([first, program.noted_run(clock, commands, base)?])
        });
        self.swap_pipelines(&mut pipelines);
        let restored = self.blocks.write(0, bytemuck::cast_slice(&plain));
        // A wait in vain fails this run as it would any other.
        self.check_waits()?;
        let runs = runs?;
        restored?;
        self.profile_of(&runs).ok_or(GpuError::NoWaits {
            device: self.context.info.name.clone(),
            reason: "the clock that kernels read stands still",
        })
    }

    /// For each launch its pipeline, with notes where it is counted.
    fn measured_pipelines(&self) -> Result<Vec<vk::Pipeline>> {
        let pipelines = &self.context.pipelines;
        let texts: Vec<Option<String>> = self
            .launches
            .iter()
            .map(|launch| {
                launch.sync?;
                let text = pipelines.source_of(launch.pipeline)?;
                Some(text.replace(COUNTED_ENTRY, MEASURED_ENTRY))
            })
            .collect();
        let wanted: Vec<Wanted<'_>> = self
            .launches
            .iter()
            .zip(&texts)
            .filter_map(|(launch, text)| {
                let (name, source) = (launch.label.to_str().unwrap_or("measured"), text.as_ref()?);
                Some(Wanted { name, source, trust: Trust::Own, bindings: launch.bindings })
            })
            .collect();
        let mut made = pipelines.get_all(&self.context.raw, &wanted)?.into_iter();
        let all = self.launches.iter().zip(&texts).map(|(launch, text)| match text {
            Some(_) => made.next().unwrap_or(launch.pipeline),
            None => launch.pipeline,
        });
        Ok(all.collect())
    }

    fn swap_pipelines(&mut self, others: &mut [vk::Pipeline]) {
        for (launch, other) in self.launches.iter_mut().zip(others) {
            std::mem::swap(&mut launch.pipeline, other);
        }
    }

    /// One run with notes; `base` is subtracted from all times.
    fn noted_run(&mut self, clock: &Clock, commands: vk::CommandBuffer, base: u32) -> Result<Run> {
        let context = self.context.clone();
        let Some(waits) = &self.waits else {
            return Ok(Run { stamps: Vec::new(), notes: Vec::new() });
        };
        let (counters, notes_at) = (waits.counters.clone(), waits.notes_at);
        let mut words = vec![0_u32; self.launches.len() * NOTE_WORDS as usize];
        for line in words.chunks_mut(NOTE_WORDS as usize) {
            line[..Note::EMPTY.len()].copy_from_slice(&Note::EMPTY);
        }
        counters.write(NOTES_AT, bytemuck::cast_slice(&[notes_at, base]))?;
        counters.write(u64::from(notes_at) * 4, bytemuck::cast_slice(&words))?;
        self.reset_clock(clock);
        let info = [vk::CommandBufferSubmitInfo::default().command_buffer(commands)];
        self.running.clock = context.submit(&info)?;
        context.wait(self.running.clock)?;
        let stamps = self.stamps(clock, clock.stamps)?;
        counters.read(u64::from(notes_at) * 4, bytemuck::cast_slice_mut(&mut words))?;
        let lines = words.chunks(NOTE_WORDS as usize).map(Note::of);
        let notes = self.launches.iter().zip(lines);
        let notes = notes.map(|(launch, note)| launch.sync.map(|_| note)).collect();
        Ok(Run { stamps, notes })
    }

    /// Both runs as times. `None` where the clock of kernels does not move.
    fn profile_of(&self, [first, second]: &[Run; 2]) -> Option<WaitProfile> {
        let waits = self.waits.as_ref()?;
        let period = f64::from(self.context.adapter.limits.timestamp_period);
        let ticks = |from: u64, to: u64| to.wrapping_sub(from) & self.stamp_mask();
        let ns = |stamp: u64| ticks(second.stamps[0], stamp) as f64 * period;
        // The stretch between barriers that each group lies in.
        let mut stretch = 0;
        let stretches: Vec<usize> = (0..self.groups.len())
            .map(|group| {
                stretch += usize::from(group > 0 && !waits.groups[group]);
                stretch
            })
            .collect();
        let edges: Vec<f64> = second.stamps.iter().map(|&stamp| ns(stamp)).collect();
        let groups = self.groups.iter().enumerate();
        let group_of: Vec<usize> =
            groups.flat_map(|(group, steps)| steps.clone().map(move |_| group)).collect();

        // How fast the clock of kernels goes: the same workgroup in both runs.
        let at = second.notes.iter().position(Option::is_some)?;
        let edge = stretches[group_of[at]];
        let passed = ticks(first.stamps[edge], second.stamps[edge]) as f64 * period;
        let moved = second.notes[at]?.start_of_first;
        let tick_ns = passed / f64::from(moved);
        if moved == 0 || !tick_ns.is_finite() || tick_ns <= 0.0 {
            return None;
        }
        // Where it stands against time stamps: as early as it may be, so that nobody starts before his barrier.
        let starts = second.notes.iter().enumerate().filter_map(|(at, note)| {
            Some(edges[stretches[group_of[at]]] - f64::from((*note)?.first_start) * tick_ns)
        });
        let offset = starts.fold(f64::NEG_INFINITY, f64::max);
        let time = |ticks: u32| (f64::from(ticks) * tick_ns + offset).max(0.0) as u64;
        let length = |ticks: f64| (ticks * tick_ns) as u64;

        let mut dispatches: Vec<DispatchWait> = Vec::new();
        // Of each group its dispatches.
        let mut members: Vec<Vec<usize>> = vec![Vec::new(); self.groups.len()];
        let mut parts: Vec<DispatchWait> = Vec::new();
        for (at, launch) in self.launches.iter().enumerate() {
            let group = group_of[at];
            let workgroups = launch.groups.iter().product();
            parts.push(match second.notes[at] {
                None => {
                    let edge = stretches[group];
                    let (start_ns, end_ns) = (edges[edge] as u64, edges[edge + 1] as u64);
                    DispatchWait { span: ProfileSpan { start_ns, end_ns }, counted: None }
                }
                Some(note) => {
                    let (start_ns, end_ns) = (time(note.first_start), time(note.end));
                    let counted = Counted {
                        workgroups,
                        last_start_ns: time(note.last_start),
                        waits_for: None,
                        waited: note.waited,
                        released_ns: if note.waited > 0 { time(note.released) } else { start_ns },
                        wait_ns: length(note.wait as f64),
                        longest_wait_ns: length(f64::from(note.longest_wait)),
                        polls: u64::from(note.polls),
                        most_polls: note.most_polls,
                    };
                    DispatchWait { span: ProfileSpan { start_ns, end_ns }, counted: Some(counted) }
                }
            });
            if launch.role == Role::Last {
                let mut dispatch = together(&std::mem::take(&mut parts));
                if let Some(counted) = dispatch.counted.as_mut().filter(|_| waits.groups[group]) {
                    let before = members[group - 1].iter().copied();
                    counted.waits_for = before.max_by_key(|&other| dispatches[other].span.end_ns);
                }
                members[group].push(dispatches.len());
                dispatches.push(dispatch);
            }
        }
        let mut seen: Vec<u32> = second
            .notes
            .iter()
            .flatten()
            .flat_map(|note| [note.first_start, note.last_start, note.end])
            .collect();
        seen.sort_unstable();
        let steps = seen.windows(2).map(|pair| pair[1] - pair[0]).filter(|&step| step > 0);
        let clock_step_ns = steps.min().map_or(0.0, |step| f64::from(step) * tick_ns);
        let total_ns = edges.last().copied().unwrap_or(0.0) as u64;
        Some(WaitProfile { dispatches, total_ns, clock_step_ns })
    }
}

/// The parts of a dispatch as one.
fn together(parts: &[DispatchWait]) -> DispatchWait {
    let [first, rest @ ..] = parts else { return DispatchWait::default() };
    rest.iter().fold(*first, |all, part| DispatchWait {
        span: ProfileSpan {
            start_ns: all.span.start_ns.min(part.span.start_ns),
            end_ns: all.span.end_ns.max(part.span.end_ns),
        },
        counted: all.counted.zip(part.counted).map(|(a, b)| Counted {
            workgroups: a.workgroups + b.workgroups,
            last_start_ns: a.last_start_ns.max(b.last_start_ns),
            waits_for: None,
            waited: a.waited + b.waited,
            released_ns: a.released_ns.min(b.released_ns),
            wait_ns: a.wait_ns + b.wait_ns,
            longest_wait_ns: a.longest_wait_ns.max(b.longest_wait_ns),
            polls: a.polls + b.polls,
            most_polls: a.most_polls.max(b.most_polls),
        }),
    })
}

/// Puts the number of a step into the low bits of its counters, which are whole lines apart.
fn number(sync: &mut [u32], step: u32) {
    let [wait, _, add, reset] = sync else { return };
    for (word, shift) in [(wait, 0), (add, 5), (reset, 10)] {
        *word |= step >> shift & (APART - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the text makes of the words must be what was put in.
    #[test]
    fn numbers_of_steps_leave_the_counters_as_they_are() {
        for step in [0, 1, 31, 32, 1_023, 1_024, 32_767] {
            let before = [64, 2_112, 0, 96];
            let mut sync = before;
            number(&mut sync, step);
            assert_eq!(sync[1], before[1]);
            assert_eq!(sync.map(|word| word & !31)[2..], before[2..]);
            let found = sync[0] & 31 | (sync[2] & 31) << 5 | (sync[3] & 31) << 10;
            assert_eq!(found, step);
        }
    }

    #[test]
    fn parts_of_a_dispatch_are_one() {
        let part = |start_ns, end_ns, waited| DispatchWait {
            span: ProfileSpan { start_ns, end_ns },
            counted: Some(Counted { workgroups: 4, waited, wait_ns: 10, ..Counted::default() }),
        };
        let both = together(&[part(5, 9, 1), part(3, 7, 2)]);
        assert_eq!(both.span, ProfileSpan { start_ns: 3, end_ns: 9 });
        let counted = both.counted.unwrap();
        assert_eq!((counted.workgroups, counted.waited, counted.wait_ns), (8, 3, 20));
        assert_eq!(together(&[part(5, 9, 1), DispatchWait::default()]).counted, None);
    }

    #[test]
    fn only_the_entry_point_of_a_measured_kernel_is_another() {
        assert!(MEASURED_ENTRY.contains("polls % 64u == 0u"), "the bound is looked at as often");
        for function in ["fn wait_for_inputs(lid: u32, group: vec3<u32>, word: u32)", "fn main("] {
            assert!(COUNTED_ENTRY.contains(function) && MEASURED_ENTRY.contains(function));
        }
    }
}
