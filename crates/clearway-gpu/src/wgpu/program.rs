//! A program on the device: pipelines and bind groups made once, encoded anew for every submission.
//!
//! wgpu's command buffers are used up by a submission, so each run is encoded when it is handed over. A run has a command
//! buffer of its own: inside one, wgpu puts a barrier in front of every write to a buffer that was bound before.
//! Several runs go over in one submission.

use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rustc_hash::FxHashMap;
use wgpu::{
    BindGroupDescriptor, BindGroupEntry, BindingResource, BufferBinding, BufferUsages,
    CommandBuffer, ComputePassDescriptor, ComputePassTimestampWrites,
};

use super::context::Context;
use super::host_visible::HostVisible;
use super::memory::{Range, WgpuMemory};
use super::pipeline::{Made, Wanted};
use super::profile::Clock;
use crate::device::{Program, Ticket};
use crate::error::{GpuError, Result};
use crate::lowering::lowered::{Lowered, Role, Step, Text};
use crate::lowering::wait_predictor::WaitPredictor;
use crate::lowering::{Backend, Piece, Submitted};
use crate::profile::{Profile, ProfileMode};
use crate::wgsl::portable::{self, BindingKind};

/// Runs of one submission at most: the device begins with them while the next are encoded.
const TOGETHER: usize = 8;

/// A proven and lowered list on a device.
pub(super) struct WgpuProgram {
    pub(super) context: Arc<Context>,
    pub(super) launches: Vec<Launch>,
    pub(super) groups: Vec<std::ops::Range<usize>>,
    /// What was handed over last.
    running: Ticket,
    predictor: WaitPredictor,
    /// Operands that the host looks at while work is under way.
    host_visible: Vec<Arc<WgpuMemory>>,
    /// Other operands, alive as long as the program.
    _memory: Vec<Arc<WgpuMemory>>,
}

/// One dispatch, ready to be encoded.
pub(super) struct Launch {
    made: Arc<Made>,
    group: wgpu::BindGroup,
    groups: [u32; 3],
    pub(super) role: Role,
}

impl WgpuProgram {
    pub(super) fn new(
        context: &Arc<Context>,
        mut lowered: Lowered<Range>,
        memory: Vec<Arc<WgpuMemory>>,
    ) -> Result<Self> {
        let mut memory = memory;
        memory.extend(bind_scratch(context, &mut lowered)?);
        check(context, &lowered)?;
        let wanted: Vec<Wanted> = lowered.steps.iter().map(|step| wanted(&lowered, step)).collect();
        let made = context.pipelines.get_all(context, &wanted)?;
        let blocks = blocks(context, &lowered.words)?;
        let bind = || -> Vec<Launch> {
            let pairs = lowered.steps.iter().zip(made);
            pairs.map(|(step, made)| launch(context, step, made, &blocks)).collect()
        };
        let launches = context.scoped("Device::create_bind_group", 0, bind)?;
        context.counters.bind_groups.fetch_add(launches.len() as u64, Ordering::Relaxed);
        let (host_visible, memory) =
            memory.into_iter().partition(|memory| memory.host_visible.is_some());
        Ok(Self {
            context: context.clone(),
            launches,
            groups: lowered.groups(),
            running: Ticket::default(),
            predictor: WaitPredictor::default(),
            host_visible,
            _memory: memory,
        })
    }

    /// Encodes one run. With a clock, every part has a pass of its own and two time stamps.
    pub(super) fn encode(&self, clock: Option<&Clock>, last: bool) -> Result<Encoded> {
        let context = &self.context;
        context.counters.encodings.fetch_add(1, Ordering::Relaxed);
        let started = Instant::now();
        let mut encoder = context.device.create_command_encoder(&Default::default());
        match clock {
            None => self.pass(&mut encoder, 0..self.launches.len(), None),
            Some(clock) => {
                for (index, part) in clock.parts.iter().enumerate() {
                    self.pass(&mut encoder, part.clone(), Some(clock.writes(index)));
                }
                clock.resolve(&mut encoder);
            }
        }
        let mut copies = Vec::new();
        for memory in self.host_visible.iter().filter(|_| last) {
            let copy = HostVisible::copy(memory, context, &mut encoder)?;
            copies.extend(copy.map(|copy| (memory.clone(), copy)));
        }
        let commands = encoder.finish();
        let ns = started.elapsed().as_nanos() as u64;
        context.counters.encoding.fetch_add(ns, Ordering::Relaxed);
        Ok(Encoded { commands, copies })
    }

    fn pass(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        launches: std::ops::Range<usize>,
        timestamp_writes: Option<ComputePassTimestampWrites<'_>>,
    ) {
        let mut pass =
            encoder.begin_compute_pass(&ComputePassDescriptor { label: None, timestamp_writes });
        let mut bound: Option<&Arc<Made>> = None;
        for launch in &self.launches[launches] {
            if !bound.is_some_and(|made| Arc::ptr_eq(made, &launch.made)) {
                pass.set_pipeline(&launch.made.pipeline);
                bound = Some(&launch.made);
            }
            pass.set_bind_group(0, &launch.group, &[]);
            let [x, y, z] = launch.groups;
            pass.dispatch_workgroups(x, y, z);
        }
    }

    /// Hands runs over that were encoded.
    pub(super) fn hand_over(&mut self, runs: Vec<Encoded>) -> Result<()> {
        let count = runs.len() as u64;
        let (mut commands, mut copies) = (Vec::with_capacity(runs.len()), Vec::new());
        for run in runs {
            commands.push(run.commands);
            copies.extend(run.copies);
        }
        self.running.clock = self.context.submit(commands)?;
        self.running.runs += count;
        for (memory, copy) in copies {
            if let Some(host_visible) = &memory.host_visible {
                host_visible.map(copy, self.running.clock);
            }
        }
        self.context.check("Buffer::map_async")
    }
}

/// A run that is encoded, and the copies of host-visible buffers at its end.
pub(super) struct Encoded {
    commands: CommandBuffer,
    copies: Vec<(Arc<WgpuMemory>, wgpu::Buffer)>,
}

/// The kernel of a step. A buffer that one of its bindings writes is bound for writing by all of them.
fn wanted(lowered: &Lowered<Range>, step: &Step<Range>) -> Wanted {
    let Text { name, source, trust } = &lowered.sources[step.source];
    let bindings = portable::bindings(source);
    let range = |slot: u32| step.bound.ranges.get(slot as usize);
    let is_written = |buffer: &wgpu::Buffer| {
        let mut writing = bindings.iter().filter(|b| b.kind == BindingKind::ReadWrite);
        writing.any(|b| range(b.slot).is_some_and(|range| range.buffer == *buffer))
    };
    let both_ways: Vec<u32> = bindings
        .iter()
        .filter(|b| b.kind == BindingKind::Read)
        .filter(|b| range(b.slot).is_some_and(|range| is_written(&range.buffer)))
        .map(|b| b.slot)
        .collect();
    let source = match both_ways.is_empty() {
        true => source.clone(),
        false => portable::writable(source, &both_ways),
    };
    Wanted { name: name.clone(), source, trust: *trust }
}

fn launch(context: &Context, step: &Step<Range>, made: Arc<Made>, blocks: &wgpu::Buffer) -> Launch {
    let buffer = |buffer, offset, bytes| {
        BindingResource::Buffer(BufferBinding { buffer, offset, size: NonZero::new(bytes) })
    };
    let (at, len) = step.block;
    let entries: Vec<BindGroupEntry<'_>> = made
        .bindings
        .iter()
        .filter_map(|binding| {
            let resource = match binding.kind {
                BindingKind::Uniform => buffer(blocks, at as u64 * 4, len as u64 * 4),
                BindingKind::Read | BindingKind::ReadWrite => {
                    let range = step.bound.ranges.get(binding.slot as usize)?;
                    buffer(&range.buffer, range.offset, range.bytes)
                }
            };
            Some(BindGroupEntry { binding: binding.slot, resource })
        })
        .collect();
    let description = BindGroupDescriptor { label: None, layout: &made.layout, entries: &entries };
    let group = context.device.create_bind_group(&description);
    Launch { made, group, groups: step.groups, role: step.role }
}

/// The uniform blocks of all steps.
fn blocks(context: &Context, words: &[u32]) -> Result<wgpu::Buffer> {
    let size = (words.len() as u64 * 4).max(16);
    let description = wgpu::BufferDescriptor {
        label: Some("constants"),
        size,
        usage: BufferUsages::UNIFORM | BufferUsages::COPY_DST,
        mapped_at_creation: false,
    };
    let make = || {
        let blocks = context.device.create_buffer(&description);
        context.queue.write_buffer(&blocks, 0, bytemuck::cast_slice(words));
        blocks
    };
    context.scoped("Device::create_buffer", size, make)
}

/// Gives scratch and tickets memory and binds them behind the operands. Steps of a group share no buffer.
fn bind_scratch(
    context: &Arc<Context>,
    lowered: &mut Lowered<Range>,
) -> Result<Vec<Arc<WgpuMemory>>> {
    let mut largest: Vec<u64> = Vec::new();
    let mut places: FxHashMap<usize, usize> = FxHashMap::default();
    for group in lowered.groups() {
        let users = group.filter_map(|step| Some((step, lowered.steps[step].scratch?)));
        for (place, (step, [(_, bytes), _])) in users.enumerate() {
            places.insert(step, place);
            if place == largest.len() {
                largest.push(0);
            }
            largest[place] = largest[place].max(bytes);
        }
    }
    let make = |&bytes: &u64| Ok(Arc::new(WgpuMemory::new(context, bytes)?));
    let mut memory = largest.iter().map(make).collect::<Result<Vec<_>>>()?;
    for (index, step) in lowered.steps.iter_mut().enumerate() {
        let (Some([(_, bytes), (_, tickets)]), Some(&place)) = (step.scratch, places.get(&index))
        else {
            continue;
        };
        let counters = Arc::new(WgpuMemory::new(context, tickets)?);
        step.bound.ranges.push(memory[place].range(0, bytes));
        step.bound.ranges.push(counters.range(0, tickets));
        memory.push(counters);
    }
    Ok(memory)
}

/// Refuses what the device's limits for dispatches and uniform blocks do not allow.
fn check(context: &Context, lowered: &Lowered<Range>) -> Result<()> {
    let limit = context.adapter.limits.max_uniform_buffer_binding_size;
    for step in &lowered.steps {
        let kernel = &lowered.sources[step.source].name;
        context.check_groups(kernel, step.groups)?;
        let bytes = step.block.1 as u64 * 4;
        if bytes > limit {
            let (kernel, device) = (kernel.clone(), context.info.name.clone());
            let operand = "constants";
            return Err(GpuError::BindingTooLarge { kernel, operand, device, bytes, limit });
        }
    }
    Ok(())
}

impl Submitted for WgpuProgram {
    fn submit(&mut self) -> Result<()> {
        let run = self.encode(None, true)?;
        self.hand_over(vec![run])
    }

    fn wait(&mut self) -> Result<()> {
        self.context.wait(self.running.clock)
    }
}

impl Program for WgpuProgram {
    fn run(&mut self) -> Result<()> {
        self.submit()?;
        self.wait()
    }

    fn start(&mut self, times: usize) -> Result<Ticket> {
        let (done, submitted) = (self.context.done()?, self.context.handed_over());
        if done >= submitted {
            self.predictor.rested(self.running.runs, Instant::now());
        } else if submitted > self.running.clock {
            self.predictor.behind_others();
        }
        let mut left = times;
        while left > 0 {
            let runs = left.min(TOGETHER);
            left -= runs;
            let encoded = (0..runs).map(|run| self.encode(None, left == 0 && run + 1 == runs));
            let encoded = encoded.collect::<Result<Vec<_>>>()?;
            self.hand_over(encoded)?;
        }
        Ok(self.running)
    }

    fn finish(&mut self, runs: Ticket) -> Result<()> {
        let context = &self.context;
        self.predictor.finish(runs, self.running, || context.done(), |clock| context.wait(clock))
    }

    fn profile(&mut self, mode: ProfileMode) -> Result<Profile> {
        super::profile::profile(self, mode)
    }
}
