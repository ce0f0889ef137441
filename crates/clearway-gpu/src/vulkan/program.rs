//! The lowered list: pipelines, descriptor sets and commands, made once and submitted again and again.

use std::ffi::CString;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ash::vk;
use clearway_graph::Dispatch;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::context::Context;
use super::heap::ALIGN;
use super::memory::VulkanMemory;
use super::pipeline::Wanted;
use super::prefetch::{self, Range};
use crate::device::{DeviceMemory, Program};
use crate::error::Result;
use crate::profile::{Profile, ProfileClock, ProfileMode, ProfileSpan};
use crate::wgsl::{Kernel, Packing, Scratch};

type Ranges = SmallVec<[vk::DescriptorBufferInfo; 6]>;

/// The memory of one kernel.
#[derive(Default)]
pub(super) struct Bound {
    pub(super) ranges: Ranges,
    /// Which of them are weights, and which are written.
    pub(super) weights: SmallVec<[usize; 2]>,
    pub(super) written: SmallVec<[usize; 2]>,
}

/// Dispatches as kernels, ranges and words: everything but handles of the device.
#[derive(Default)]
pub(super) struct Lowered {
    steps: Vec<Step>,
    /// One past the last step of each group that a barrier closed.
    group_ends: Vec<usize>,
    /// Every distinct text, and the name of the first kernel that had it.
    sources: Vec<(String, String)>,
    by_source: FxHashMap<String, usize>,
    /// The uniform blocks, one after another.
    words: Vec<u32>,
    /// Bytes of scratch the open group uses, and the most any group does.
    scratch: (u64, u64),
    tickets: u64,
}

struct Step {
    source: usize,
    bound: Bound,
    /// The step's uniform block, in words.
    block: (usize, usize),
    /// Where its scratch and its tickets start, and their bytes.
    scratch: Option<[(u64, u64); 2]>,
    groups: [u32; 3],
    role: Role,
    /// Name for debuggers.
    label: CString,
}

/// What a step is to the list.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// A dispatch, or the last part of one.
    Last,
    /// A part of a dispatch.
    Part,
    /// Reads ahead.
    Ahead,
}

impl Lowered {
    /// Adds a kernel of a dispatch; `last` says whether it is the last one.
    pub(super) fn push(&mut self, dispatch: &Dispatch, kernel: Kernel, bound: Bound, last: bool) {
        let label = format!("{} {}", dispatch.kernel, dispatch.label).replace('\0', " ");
        let role = if last { Role::Last } else { Role::Part };
        self.push_step(&dispatch.kernel, &label, kernel, bound, role);
    }

    /// Adds a kernel that is a group and a dispatch of its own.
    pub(super) fn push_alone(&mut self, kernel: Kernel, bound: Bound) {
        self.push_step("tuning", "tuning", kernel, bound, Role::Last);
        self.barrier();
    }

    fn push_step(&mut self, name: &str, label: &str, kernel: Kernel, bound: Bound, role: Role) {
        let next = self.sources.len();
        let source = *self.by_source.entry(kernel.source.clone()).or_insert(next);
        if source == next {
            self.sources.push((name.to_owned(), kernel.source));
        }
        let block = (self.words.len(), kernel.words.len());
        self.words.extend(kernel.words);
        self.words.resize(self.words.len().next_multiple_of(ALIGN as usize / 4), 0);
        // Groups are kept apart by barriers, so they may share scratch; tickets stay zero between runs
        // and belong to one step each.
        let scratch = kernel.scratch.map(|Scratch { bytes, tickets }| {
            let (bytes, tickets) = (bytes.next_multiple_of(ALIGN), u64::from(tickets) * 4);
            let at = (self.scratch.0, self.tickets);
            self.scratch.0 += bytes;
            self.scratch.1 = self.scratch.1.max(self.scratch.0);
            self.tickets += tickets.next_multiple_of(ALIGN);
            [(at.0, bytes), (at.1, tickets)]
        });
        let label = CString::new(label).unwrap_or_default();
        self.steps.push(Step { source, bound, block, scratch, groups: kernel.groups, role, label });
    }

    pub(super) fn barrier(&mut self) {
        self.scratch.0 = 0;
        self.group_ends.push(self.steps.len());
    }

    /// Lets groups that leave memory idle read up to `window` bytes of weights ahead.
    fn read_ahead(&mut self, context: &Arc<Context>, window: u64) -> Result<Option<VulkanMemory>> {
        let infos = |steps: &[Step], which: fn(&Bound) -> &[usize]| -> Vec<_> {
            let bound = steps.iter().map(|step| &step.bound);
            bound.flat_map(|b| which(b).iter().map(|&index| b.ranges[index])).collect()
        };
        let groups = self.groups();
        let weights: Vec<Vec<vk::DescriptorBufferInfo>> =
            groups.iter().map(|group| infos(&self.steps[group.clone()], |b| &b.weights)).collect();
        let ranges: Vec<Vec<Range>> =
            weights.iter().map(|group| group.iter().map(Range::of).collect()).collect();
        let written = infos(&self.steps, |b| &b.written);
        let written: Vec<Range> = written.iter().map(Range::of).collect();
        let plan = prefetch::plan(&ranges, &written, window);
        let count: usize = plan.iter().map(Vec::len).sum();
        if count == 0 {
            return Ok(None);
        }
        let sink = VulkanMemory::new(context, count as u64 * ALIGN, Packing::Plain)?;
        let mut steps = std::mem::take(&mut self.steps).into_iter();
        self.group_ends.clear();
        let mut at = sink.piece.offset;
        for (group, pulls) in groups.iter().zip(&plan) {
            self.steps.extend(steps.by_ref().take(group.len()));
            for pull in pulls {
                let weights = weights[pull.group][pull.range];
                let to = vk::DescriptorBufferInfo {
                    buffer: sink.piece.buffer,
                    offset: at,
                    range: ALIGN,
                };
                at += ALIGN;
                let bound =
                    Bound { ranges: [weights, to].into_iter().collect(), ..Bound::default() };
                self.push_step(
                    "read_ahead",
                    "read ahead",
                    prefetch::kernel(pull),
                    bound,
                    Role::Ahead,
                );
            }
            self.group_ends.push(self.steps.len());
        }
        Ok(Some(sink))
    }

    /// Gives scratch and tickets memory and binds them behind the operands.
    fn bind_scratch(&mut self, context: &Arc<Context>) -> Result<Vec<Arc<VulkanMemory>>> {
        if self.tickets == 0 {
            return Ok(Vec::new());
        }
        let scratch = VulkanMemory::new(context, self.scratch.1, Packing::Plain)?;
        let tickets = VulkanMemory::zeroed(context, self.tickets)?;
        for step in &mut self.steps {
            for (memory, (at, range)) in
                [&scratch, &tickets].into_iter().zip(step.scratch.into_iter().flatten())
            {
                let offset = memory.piece.offset + at;
                let buffer = memory.piece.buffer;
                step.bound.ranges.push(vk::DescriptorBufferInfo { buffer, offset, range });
            }
        }
        Ok(vec![Arc::new(scratch), Arc::new(tickets)])
    }

    /// Ranges of steps between barriers.
    fn groups(&self) -> Vec<std::ops::Range<usize>> {
        let mut start = 0;
        let ends = self.group_ends.iter().copied().chain([self.steps.len()]);
        let mut groups: Vec<_> = ends.map(|end| std::mem::replace(&mut start, end)..end).collect();
        groups.retain(|group| !group.is_empty());
        groups
    }
}

/// A proven and lowered list on a device.
pub(super) struct VulkanProgram {
    context: Arc<Context>,
    pool: vk::CommandPool,
    commands: vk::CommandBuffer,
    sets_pool: vk::DescriptorPool,
    launches: Vec<Launch>,
    groups: Vec<std::ops::Range<usize>>,
    /// What the clock shows when the last submission is done.
    running: u64,
    /// How long one of many runs took last.
    pace: Option<Duration>,
    /// Keeps operands and uniform blocks alive.
    _memory: Vec<Arc<VulkanMemory>>,
}

/// Command buffers of one submission at most.
const TOGETHER: usize = 32;
/// More runs than this are not worth polling for.
const LONG: usize = 4;
/// The part of the time that many runs took before through which the host sleeps: they may be faster now.
const SLEPT: f64 = 0.85;

/// Barriers in a row to see what one costs.
const CALIBRATION: u64 = 32;

/// One dispatch, ready to be recorded.
struct Launch {
    pipeline: vk::Pipeline,
    layout: vk::PipelineLayout,
    set: vk::DescriptorSet,
    groups: [u32; 3],
    role: Role,
    label: CString,
}

impl VulkanProgram {
    pub(super) fn new(
        context: &Arc<Context>,
        mut lowered: Lowered,
        mut memory: Vec<Arc<VulkanMemory>>,
    ) -> Result<Self> {
        let raw = &context.raw;
        memory.extend(lowered.bind_scratch(context)?);
        memory.extend(lowered.read_ahead(context, context.adapter.read_ahead)?.map(Arc::new));
        let wanted: Vec<Wanted<'_>> = lowered
            .sources
            .iter()
            .enumerate()
            .map(|(index, (name, source))| {
                let step = lowered.steps.iter().find(|step| step.source == index);
                Wanted { name, source, bindings: step.map_or(0, |step| step.bound.ranges.len()) }
            })
            .collect();
        let pipelines = context.pipelines.get_all(raw, &wanted)?;
        context.pipelines.save(raw, &context.adapter);

        let blocks = VulkanMemory::new(context, lowered.words.len() as u64 * 4, Packing::Plain)?;
        blocks.write(0, bytemuck::cast_slice(&lowered.words))?;

        let pool = vk::CommandPoolCreateInfo::default()
            .queue_family_index(context.adapter.queue_family)
            .flags(vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER);
        // SAFETY: the family is that of the device's queue.
        let pool = unsafe { raw.create_command_pool(&pool, None) }
            .map_err(|e| context.error("vkCreateCommandPool", e))?;
        let mut program = Self {
            context: context.clone(),
            pool,
            commands: vk::CommandBuffer::null(),
            sets_pool: vk::DescriptorPool::null(),
            launches: Vec::with_capacity(lowered.steps.len()),
            groups: lowered.groups(),
            running: 0,
            pace: None,
            _memory: Vec::new(),
        };
        program.make_sets(&lowered, &blocks, &pipelines)?;
        memory.push(Arc::new(blocks));
        program._memory = memory;
        program.commands = program.allocate_commands()?;
        program.record(program.commands, None)?;
        Ok(program)
    }

    /// Hands the work over.
    pub(super) fn submit(&mut self) -> Result<()> {
        let commands = [vk::CommandBufferSubmitInfo::default().command_buffer(self.commands)];
        self.running = self.context.submit(&commands)?;
        Ok(())
    }

    /// Waits for the last submission.
    pub(super) fn wait(&mut self) -> Result<()> {
        self.context.wait(self.running)
    }

    /// One descriptor set for each step, written once with exact ranges.
    fn make_sets(
        &mut self,
        lowered: &Lowered,
        blocks: &VulkanMemory,
        pipelines: &[vk::Pipeline],
    ) -> Result<()> {
        let context = self.context.clone();
        let (raw, steps) = (&context.raw, &lowered.steps);
        if steps.is_empty() {
            return Ok(());
        }
        let storage: usize = steps.iter().map(|step| step.bound.ranges.len()).sum();
        let size = |ty, count: usize| vk::DescriptorPoolSize { ty, descriptor_count: count as u32 };
        let mut sizes = vec![size(vk::DescriptorType::UNIFORM_BUFFER, steps.len())];
        if storage > 0 {
            sizes.push(size(vk::DescriptorType::STORAGE_BUFFER, storage));
        }
        let info =
            vk::DescriptorPoolCreateInfo::default().max_sets(steps.len() as u32).pool_sizes(&sizes);
        // SAFETY: the structure is complete.
        self.sets_pool = unsafe { raw.create_descriptor_pool(&info, None) }
            .map_err(|e| context.error("vkCreateDescriptorPool", e))?;
        let layouts: Vec<_> = steps
            .iter()
            .map(|step| context.pipelines.set_layout(step.bound.ranges.len()))
            .collect();
        let info = vk::DescriptorSetAllocateInfo::default()
            .descriptor_pool(self.sets_pool)
            .set_layouts(&layouts);
        // SAFETY: the pool has room for exactly these sets.
        let sets = unsafe { raw.allocate_descriptor_sets(&info) }
            .map_err(|e| context.error("vkAllocateDescriptorSets", e))?;
        context.counters.sets_written.add(sets.len() as u64);
        for (step, &set) in steps.iter().zip(&sets) {
            let (at, len) = step.block;
            let block = [vk::DescriptorBufferInfo {
                buffer: blocks.piece.buffer,
                offset: blocks.piece.offset + at as u64 * 4,
                range: len as u64 * 4,
            }];
            let mut writes = SmallVec::<[vk::WriteDescriptorSet<'_>; 8]>::new();
            for (slot, range) in step.bound.ranges.chunks(1).enumerate() {
                writes.push(
                    vk::WriteDescriptorSet::default()
                        .dst_set(set)
                        .dst_binding(slot as u32)
                        .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                        .buffer_info(range),
                );
            }
            writes.push(
                vk::WriteDescriptorSet::default()
                    .dst_set(set)
                    .dst_binding(step.bound.ranges.len() as u32)
                    .descriptor_type(vk::DescriptorType::UNIFORM_BUFFER)
                    .buffer_info(&block),
            );
            // SAFETY: the set is not in use, and its buffers live as long as the program.
            unsafe { raw.update_descriptor_sets(&writes, &[]) };
            self.launches.push(Launch {
                pipeline: pipelines[step.source],
                layout: context.pipelines.pipeline_layout(step.bound.ranges.len()),
                set,
                groups: step.groups,
                role: step.role,
                label: step.label.clone(),
            });
        }
        Ok(())
    }

    fn allocate_commands(&self) -> Result<vk::CommandBuffer> {
        let info = vk::CommandBufferAllocateInfo::default()
            .command_pool(self.pool)
            .command_buffer_count(1);
        // SAFETY: the pool is alive.
        let commands = unsafe { self.context.raw.allocate_command_buffers(&info) }
            .map_err(|e| self.context.error("vkAllocateCommandBuffers", e))?;
        Ok(commands[0])
    }

    /// Writes all commands. With a clock, a time stamp stands before the first part and after each.
    fn record(&self, commands: vk::CommandBuffer, clock: Option<&Clock>) -> Result<()> {
        let raw = &self.context.raw;
        self.context.counters.recordings.add(1);
        // The same commands may stand several times in a queue.
        let begin = vk::CommandBufferBeginInfo::default()
            .flags(vk::CommandBufferUsageFlags::SIMULTANEOUS_USE);
        // SAFETY: the commands are not in use.
        unsafe { raw.begin_command_buffer(commands, &begin) }
            .map_err(|e| self.context.error("vkBeginCommandBuffer", e))?;
        self.barrier(commands, Edge::Start);
        let serialised = clock.is_some_and(|clock| clock.mode == ProfileMode::Serialised);
        let mut stamp = 0;
        self.stamp(commands, clock, &mut stamp);
        let mut bound = vk::Pipeline::null();
        for (index, group) in self.groups.iter().enumerate() {
            if index > 0 && !serialised {
                self.barrier(commands, Edge::Group);
            }
            for launch in &self.launches[group.clone()] {
                if serialised && launch.role == Role::Ahead {
                    continue; // each dispatch is timed alone
                }
                if launch.pipeline != bound {
                    bound = launch.pipeline;
                    // SAFETY: the commands are being recorded and the pipeline lives in the context.
                    unsafe {
                        raw.cmd_bind_pipeline(commands, vk::PipelineBindPoint::COMPUTE, bound);
                    }
                }
                let point = vk::PipelineBindPoint::COMPUTE;
                // SAFETY: the set has the layout of the pipeline and lives as long as the program.
                unsafe {
                    raw.cmd_bind_descriptor_sets(
                        commands,
                        point,
                        launch.layout,
                        0,
                        &[launch.set],
                        &[],
                    );
                }
                let label = vk::DebugUtilsLabelEXT::default().label_name(&launch.label);
                if let Some(labels) = &self.context.labels {
                    // SAFETY: the commands are being recorded, and the extension is enabled.
                    unsafe { labels.cmd_begin_debug_utils_label(commands, &label) };
                }
                let [x, y, z] = launch.groups;
                // SAFETY: lowering keeps the workgroups within the device's limits, and the list is
                // proven: nothing in this group writes what this dispatch touches.
                unsafe { raw.cmd_dispatch(commands, x, y, z) };
                if let Some(labels) = &self.context.labels {
                    // SAFETY: a label was begun above.
                    unsafe { labels.cmd_end_debug_utils_label(commands) };
                }
                if serialised && launch.role == Role::Last {
                    self.barrier(commands, Edge::Group);
                    self.stamp(commands, clock, &mut stamp);
                }
            }
            if clock.is_some() && !serialised {
                self.stamp(commands, clock, &mut stamp);
            }
        }
        self.barrier(commands, Edge::End);
        // SAFETY: the commands are being recorded.
        unsafe { raw.end_command_buffer(commands) }
            .map_err(|e| self.context.error("vkEndCommandBuffer", e))
    }

    fn barrier(&self, commands: vk::CommandBuffer, edge: Edge) {
        use vk::{AccessFlags2 as Access, PipelineStageFlags2 as Stage};
        let (shader, transfer) = (Stage::COMPUTE_SHADER, Stage::TRANSFER);
        let written = Access::SHADER_STORAGE_WRITE;
        let touched = written | Access::SHADER_STORAGE_READ;
        let barrier = vk::MemoryBarrier2::default();
        let barrier = [match edge {
            Edge::Group => barrier
                .src_stage_mask(shader)
                .src_access_mask(written)
                .dst_stage_mask(shader)
                .dst_access_mask(touched),
            Edge::Start => barrier
                .src_stage_mask(shader | transfer)
                .src_access_mask(written | Access::TRANSFER_WRITE)
                .dst_stage_mask(shader)
                .dst_access_mask(touched | Access::UNIFORM_READ),
            Edge::End => barrier
                .src_stage_mask(shader)
                .src_access_mask(written)
                .dst_stage_mask(Stage::HOST | transfer)
                .dst_access_mask(
                    Access::HOST_READ | Access::TRANSFER_READ | Access::TRANSFER_WRITE,
                ),
        }];
        let info = vk::DependencyInfo::default().memory_barriers(&barrier);
        // SAFETY: the commands are being recorded, outside any render pass.
        unsafe { self.context.raw.cmd_pipeline_barrier2(commands, &info) };
    }

    fn stamp(&self, commands: vk::CommandBuffer, clock: Option<&Clock>, next: &mut u32) {
        let Some(clock) = clock else { return };
        let stage = vk::PipelineStageFlags2::COMPUTE_SHADER;
        // SAFETY: the pool has a query for every stamp, reset before the submission.
        unsafe { self.context.raw.cmd_write_timestamp2(commands, stage, clock.pool, *next) };
        *next += 1;
    }

    fn measure(&mut self, clock: &Clock, commands: vk::CommandBuffer) -> Result<Profile> {
        let context = self.context.clone();
        self.record(commands, Some(clock))?;
        // SAFETY: no submission uses the pool.
        unsafe { context.raw.reset_query_pool(clock.pool, 0, clock.stamps) };
        let start = Instant::now();
        let info = [vk::CommandBufferSubmitInfo::default().command_buffer(commands)];
        self.running = context.submit(&info)?;
        let submit_ns = start.elapsed().as_nanos() as u64;
        self.wait()?;
        let wait_ns = start.elapsed().as_nanos() as u64 - submit_ns;
        let ns = self.stamps_ns(clock, clock.stamps)?;
        let spans = ns.windows(2).map(|w| ProfileSpan { start_ns: w[0], end_ns: w[1] }).collect();
        Ok(Profile {
            mode: clock.mode,
            clock: ProfileClock::Gpu,
            spans,
            submit_ns,
            wait_ns,
            barrier_ns: Some(self.barrier_ns(clock, commands)?),
        })
    }

    /// What one of the barriers between groups costs, from many in a row with nothing between them.
    /// They have a submission of their own, which adds nothing to the times of the parts.
    fn barrier_ns(&mut self, clock: &Clock, commands: vk::CommandBuffer) -> Result<u64> {
        let context = self.context.clone();
        let raw = &context.raw;
        let begin = vk::CommandBufferBeginInfo::default()
            .flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
        // SAFETY: the commands' last submission is done.
        unsafe { raw.begin_command_buffer(commands, &begin) }
            .map_err(|e| context.error("vkBeginCommandBuffer", e))?;
        self.barrier(commands, Edge::Start);
        let mut stamp = 0;
        self.stamp(commands, Some(clock), &mut stamp);
        for _ in 0..CALIBRATION {
            self.barrier(commands, Edge::Group);
        }
        self.stamp(commands, Some(clock), &mut stamp);
        // SAFETY: the commands are being recorded.
        unsafe { raw.end_command_buffer(commands) }
            .map_err(|e| context.error("vkEndCommandBuffer", e))?;
        // SAFETY: no submission uses the pool.
        unsafe { raw.reset_query_pool(clock.pool, 0, stamp) };
        let info = [vk::CommandBufferSubmitInfo::default().command_buffer(commands)];
        self.running = context.submit(&info)?;
        self.wait()?;
        Ok(self.stamps_ns(clock, stamp)?[1] / CALIBRATION)
    }

    /// The first `count` stamps of a submission that is done, in nanoseconds after the first.
    fn stamps_ns(&self, clock: &Clock, count: u32) -> Result<Vec<u64>> {
        let context = &self.context;
        let mut stamps = vec![0_u64; count as usize];
        let flags = vk::QueryResultFlags::TYPE_64 | vk::QueryResultFlags::WAIT;
        // SAFETY: every query of the range was written by the submission that is done.
        unsafe { context.raw.get_query_pool_results(clock.pool, 0, &mut stamps, flags) }
            .map_err(|e| context.error("vkGetQueryPoolResults", e))?;
        let period = f64::from(context.adapter.limits.timestamp_period);
        let mask = match context.adapter.timestamp_bits {
            64.. => u64::MAX,
            bits => (1 << bits) - 1,
        };
        let first = stamps.first().copied().unwrap_or(0);
        let since_first = |s: &u64| ((s.wrapping_sub(first) & mask) as f64 * period) as u64;
        Ok(stamps.iter().map(since_first).collect())
    }
}

impl Program for VulkanProgram {
    fn run(&mut self) -> Result<()> {
        self.submit()?;
        self.wait()
    }

    fn run_many(&mut self, times: usize) -> Result<()> {
        let start = Instant::now();
        let once = vk::CommandBufferSubmitInfo::default().command_buffer(self.commands);
        let commands = [once; TOGETHER];
        let mut left = times;
        while left > 0 {
            let now = left.min(TOGETHER);
            self.running = self.context.submit(&commands[..now])?;
            left -= now;
        }
        if times <= LONG {
            return self.wait();
        }
        // Drivers poll while they wait, about a hundredth of the time. Most of it is known beforehand.
        if let Some(pace) = self.pace {
            std::thread::sleep(pace.mul_f64(SLEPT * times as f64));
        }
        self.context.sleep(self.running)?;
        self.pace = Some(start.elapsed() / times as u32);
        Ok(())
    }

    fn profile(&mut self, mode: ProfileMode) -> Result<Profile> {
        let context = self.context.clone();
        if context.adapter.timestamp_bits == 0 {
            return Err(crate::error::GpuError::ProfileUnsupported { mode });
        }
        let parts = match mode {
            ProfileMode::Groups => self.groups.len(),
            ProfileMode::Serialised => {
                self.launches.iter().filter(|launch| launch.role == Role::Last).count()
            }
        };
        let stamps = parts as u32 + 1;
        let info = vk::QueryPoolCreateInfo::default()
            .query_type(vk::QueryType::TIMESTAMP)
            // The barriers in a row need two, when the others are read.
            .query_count(stamps.max(2));
        // SAFETY: the queue has time stamps.
        let pool = unsafe { context.raw.create_query_pool(&info, None) }
            .map_err(|e| context.error("vkCreateQueryPool", e))?;
        let clock = Clock { pool, stamps, mode };
        let commands = self.allocate_commands();
        let profile = commands.and_then(|commands| {
            let profile = self.measure(&clock, commands);
            // SAFETY: the submission is done, or was never made.
            unsafe { context.raw.free_command_buffers(self.pool, &[commands]) };
            profile
        });
        // SAFETY: as above.
        unsafe { context.raw.destroy_query_pool(pool, None) };
        profile
    }
}

impl Drop for VulkanProgram {
    fn drop(&mut self) {
        // A lost device has nothing under way; what is freed then is only bookkeeping.
        let _ = self.context.wait(self.running);
        // SAFETY: no submission uses the sets any more; a null pool is ignored.
        unsafe { self.context.raw.destroy_descriptor_pool(self.sets_pool, None) };
        // SAFETY: no submission uses the commands any more.
        unsafe { self.context.raw.destroy_command_pool(self.pool, None) };
    }
}

/// Time stamps of one profiled run.
struct Clock {
    pool: vk::QueryPool,
    stamps: u32,
    mode: ProfileMode,
}

/// Where a barrier stands.
#[derive(Clone, Copy)]
enum Edge {
    /// Before the first dispatch, against earlier submissions.
    Start,
    /// Between two groups.
    Group,
    /// After the last dispatch, for host and transfers.
    End,
}
