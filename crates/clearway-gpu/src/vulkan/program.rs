//! A program on the device: pipelines, descriptor sets and commands, made once and submitted again and again.

use std::ffi::CString;
use std::sync::Arc;
use std::time::Instant;

use ash::vk;
use smallvec::SmallVec;

use super::context::Context;
use super::memory::VulkanMemory;
use super::pipeline::Wanted;
use super::record::{Clock, Edge, Stamps};
use super::scratch::Scratch;
use super::waits::Waits;
use crate::device::{DeviceMemory, Program, Ticket};
use crate::error::{GpuError, Result};
use crate::lowering::lowered::{Lowered as List, Role};
use crate::lowering::wait_predictor::WaitPredictor;
use crate::lowering::{Backend, Submitted};
use crate::profile::{Profile, ProfileClock, ProfileMode, ProfileSpan, WaitProfile};
use crate::wgsl::{Packing, SYNC_WORDS};

type Lowered = List<vk::DescriptorBufferInfo>;

/// A proven and lowered list on a device.
pub(super) struct VulkanProgram {
    pub(super) context: Arc<Context>,
    pool: vk::CommandPool,
    /// One run.
    commands: vk::CommandBuffer,
    /// Many runs, once somebody wanted so many.
    many: Option<vk::CommandBuffer>,
    sets_pool: vk::DescriptorPool,
    pub(super) launches: Vec<Launch>,
    pub(super) groups: Vec<std::ops::Range<usize>>,
    /// Barriers that are counters.
    pub(super) waits: Option<Waits>,
    /// The uniform blocks.
    pub(super) blocks: Arc<VulkanMemory>,
    /// What was handed over last.
    pub(super) running: Ticket,
    predictor: WaitPredictor,
    /// Operands and uniform blocks, alive as long as the device may use them.
    memory: Vec<Arc<VulkanMemory>>,
}

/// Command buffers of one submission at most.
const TOGETHER: usize = 32;
/// Runs of the commands for many: a driver takes about as long for each command buffer it gets.
const MANY: usize = 8;
/// More runs than this are not worth polling for.
const LONG: usize = 4;

/// Barriers in a row to see what one costs.
const CALIBRATION: u64 = 32;

/// One dispatch, ready to be recorded.
pub(super) struct Launch {
    pub(super) pipeline: vk::Pipeline,
    pub(super) layout: vk::PipelineLayout,
    pub(super) set: vk::DescriptorSet,
    pub(super) groups: [u32; 3],
    pub(super) role: Role,
    /// Storage bindings.
    pub(super) bindings: usize,
    /// Where its words for counters lie in the uniform blocks, if it is counted.
    pub(super) sync: Option<usize>,
    pub(super) label: CString,
}

impl VulkanProgram {
    pub(super) fn new(
        context: &Arc<Context>,
        mut lowered: Lowered,
        mut memory: Vec<Arc<VulkanMemory>>,
    ) -> Result<Self> {
        let raw = &context.raw;
        let scratch = lowered.bind_scratch(context)?;
        let tickets = scratch.as_ref().map(|scratch| scratch.tickets.clone());
        memory.extend(scratch.into_iter().flat_map(Scratch::memory));
        // Weights that are asked for before a wait need no reading ahead.
        let waits = lowered.bind_counters(context, tickets)?;
        match &waits {
            Some(waits) => memory.extend(waits.memory()),
            None => {
                let sink = lowered.read_ahead(context, context.adapter.read_ahead)?;
                memory.extend(sink.map(Arc::new));
            }
        }
        check(context, &lowered)?;
        let wanted: Vec<Wanted<'_>> = lowered
            .sources
            .iter()
            .enumerate()
            .map(|(index, text)| {
                let step = lowered.steps.iter().find(|step| step.source == index);
                let bindings = step.map_or(0, |step| step.bound.ranges.len());
                Wanted::new(text, bindings)
            })
            .collect();
        let pipelines = context.pipelines.get_all(raw, &wanted)?;
        context.pipelines.save(raw, &context.adapter);

        let blocks = VulkanMemory::new(context, lowered.words.len() as u64 * 4, Packing::Plain)?;
        blocks.write(0, bytemuck::cast_slice(&lowered.words))?;

        let pool = vk::CommandPoolCreateInfo::default()
            .queue_family_index(context.adapter.queue_family)
            .flags(vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER);
        // SAFETY: VUID-vkCreateCommandPool-queueFamilyIndex-01937: the family is the one the device was opened with.
        let pool = unsafe { raw.create_command_pool(&pool, None) }
            .map_err(|e| context.error("vkCreateCommandPool", e))?;
        let mut program = Self {
            context: context.clone(),
            pool,
            commands: vk::CommandBuffer::null(),
            many: None,
            sets_pool: vk::DescriptorPool::null(),
            launches: Vec::with_capacity(lowered.steps.len()),
            groups: lowered.groups(),
            waits,
            blocks: Arc::new(blocks),
            running: Ticket::default(),
            predictor: WaitPredictor::default(),
            memory: Vec::new(),
        };
        program.make_sets(&lowered, &pipelines)?;
        memory.push(program.blocks.clone());
        program.memory = memory;
        program.commands = program.allocate_commands()?;
        program.record(program.commands, 1, None)?;
        Ok(program)
    }

    /// One descriptor set for each step, written once with exact ranges.
    fn make_sets(&mut self, lowered: &Lowered, pipelines: &[vk::Pipeline]) -> Result<()> {
        let (context, blocks) = (self.context.clone(), self.blocks.clone());
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
        // SAFETY: VUID-VkDescriptorPoolCreateInfo-descriptorPoolOverallocation-09227 and VUID-VkDescriptorPoolSize-
        // descriptorCount-00302: there is a set and a uniform block at least, and no kind is listed with none.
        self.sets_pool = unsafe { raw.create_descriptor_pool(&info, None) }
            .map_err(|e| context.error("vkCreateDescriptorPool", e))?;
        let layouts: Vec<_> = steps
            .iter()
            .map(|step| context.pipelines.set_layout(step.bound.ranges.len()))
            .collect();
        let info = vk::DescriptorSetAllocateInfo::default()
            .descriptor_pool(self.sets_pool)
            .set_layouts(&layouts);
        // SAFETY: the pool was just made with room for exactly these sets and is this program's alone. The layouts live
        // in the context.
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
            // SAFETY: VUID-vkUpdateDescriptorSets-None-03047: the set was just made and nothing uses it. Its layout has these
            // kinds at these bindings. The ranges lie inside their buffers, which `self.memory` keeps, start at
            // multiples the device wants (VUID-VkWriteDescriptorSet-descriptorType-00327, -00328) and are within
            // its limits (-00332, -00333): `ListEncoder::range` sees to operands, `check` to uniform blocks,
            // `bind_scratch`, `bind_counters` and `read_ahead` bind whole multiples of `heap::ALIGN`.
            unsafe { raw.update_descriptor_sets(&writes, &[]) };
            self.launches.push(Launch {
                pipeline: pipelines[step.source],
                layout: context.pipelines.pipeline_layout(step.bound.ranges.len()),
                set,
                groups: step.groups,
                role: step.role,
                bindings: step.bound.ranges.len(),
                sync: step.counted.then(|| at + len - SYNC_WORDS),
                label: CString::new(step.label.replace('\0', " ")).unwrap_or_default(),
            });
        }
        Ok(())
    }

    /// The commands for many runs, recorded when they are first wanted.
    fn many(&mut self) -> Result<vk::CommandBuffer> {
        if let Some(many) = self.many {
            return Ok(many);
        }
        let many = self.allocate_commands()?;
        self.record(many, MANY, None)?;
        self.many = Some(many);
        Ok(many)
    }

    /// Fails if workgroups have waited in vain. From then on barriers stand between all groups.
    pub(super) fn check_waits(&mut self) -> Result<()> {
        let stalled = match &self.waits {
            Some(waits) => waits.are_used() && waits.stalled()?,
            None => false,
        };
        if !stalled {
            return Ok(());
        }
        self.context.wait(self.running.clock)?;
        self.context.stall();
        self.back_to_barriers()?;
        Err(GpuError::Stalled { device: self.context.info.name.clone() })
    }

    /// Puts barriers between all groups. Nothing of the program may be under way.
    fn back_to_barriers(&mut self) -> Result<()> {
        // Until the commands with barriers are there, the old ones stay: they stall again rather than compute without order.
        let commands = self.allocate_commands()?;
        let waits = self.waits.take();
        if let Err(error) = self.record(commands, 1, None) {
            self.waits = waits;
            return Err(error);
        }
        let old: SmallVec<[vk::CommandBuffer; 2]> =
            [std::mem::replace(&mut self.commands, commands)]
                .into_iter()
                .chain(self.many.take())
                .collect();
        // SAFETY: VUID-vkFreeCommandBuffers-pCommandBuffers-00047: the last submission of this program is done, which was
        // just waited for. They come from this pool, and nothing names them any more.
        unsafe { self.context.raw.free_command_buffers(self.pool, &old) };
        // `memory` keeps the counters: kernels are still bound to them.
        waits.map_or(Ok(()), |waits| waits.stop(&self.blocks))
    }

    fn allocate_commands(&self) -> Result<vk::CommandBuffer> {
        let info = vk::CommandBufferAllocateInfo::default()
            .command_pool(self.pool)
            .command_buffer_count(1);
        // SAFETY: the pool is this program's and alive. It needs outside synchronisation: all that uses it has `self`
        // alone, or is making it.
        let commands = unsafe { self.context.raw.allocate_command_buffers(&info) }
            .map_err(|e| self.context.error("vkAllocateCommandBuffers", e))?;
        Ok(commands[0])
    }

    fn measure(
        &mut self,
        mode: ProfileMode,
        clock: &Clock,
        commands: vk::CommandBuffer,
    ) -> Result<Profile> {
        let context = self.context.clone();
        self.record(commands, 1, Some(clock))?;
        self.reset_clock(clock);
        let start = Instant::now();
        let info = [vk::CommandBufferSubmitInfo::default().command_buffer(commands)];
        self.running.clock = context.submit(&info)?;
        let submit_ns = start.elapsed().as_nanos() as u64;
        self.wait()?;
        let wait_ns = start.elapsed().as_nanos() as u64 - submit_ns;
        let ns = self.stamps_ns(clock, clock.stamps)?;
        let spans = ns.windows(2).map(|w| ProfileSpan { start_ns: w[0], end_ns: w[1] }).collect();
        Ok(Profile {
            mode,
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
        // SAFETY: VUID-vkBeginCommandBuffer-commandBuffer-00049 and -00050: `measure` has waited for their submission, and
        // the pool lets each be recorded anew.
        unsafe { raw.begin_command_buffer(commands, &begin) }
            .map_err(|e| context.error("vkBeginCommandBuffer", e))?;
        self.barrier(commands, Edge::Start);
        let mut stamp = 0;
        self.stamp(commands, Some(clock), &mut stamp);
        for _ in 0..CALIBRATION {
            self.barrier(commands, Edge::Group);
        }
        self.stamp(commands, Some(clock), &mut stamp);
        // SAFETY: VUID-vkEndCommandBuffer-commandBuffer-00059: recording began above.
        unsafe { raw.end_command_buffer(commands) }
            .map_err(|e| context.error("vkEndCommandBuffer", e))?;
        // SAFETY: VUID-vkResetQueryPool-None-02741: `measure` has waited for the one submission that uses the pool, which
        // has two queries at least (-firstQuery-09436).
        unsafe { raw.reset_query_pool(clock.pool, 0, stamp) };
        let info = [vk::CommandBufferSubmitInfo::default().command_buffer(commands)];
        self.running.clock = context.submit(&info)?;
        self.wait()?;
        Ok(self.stamps_ns(clock, stamp)?[1] / CALIBRATION)
    }

    /// Makes the stamps ready for a submission. None that uses them may be under way.
    pub(super) fn reset_clock(&self, clock: &Clock) {
        // SAFETY: VUID-vkResetQueryPool-None-02665 and -02741: host query reset is enabled, which opening requires, and
        // callers have waited for every submission that uses the pool. It has that many queries (-firstQuery-09436).
        unsafe { self.context.raw.reset_query_pool(clock.pool, 0, clock.stamps) };
    }

    /// The bits of a time stamp that count.
    pub(super) fn stamp_mask(&self) -> u64 {
        match self.context.adapter.timestamp_bits {
            64.. => u64::MAX,
            bits => (1 << bits) - 1,
        }
    }

    /// The first `count` stamps of a submission that is done, in nanoseconds after the first.
    fn stamps_ns(&self, clock: &Clock, count: u32) -> Result<Vec<u64>> {
        let stamps = self.stamps(clock, count)?;
        let period = f64::from(self.context.adapter.limits.timestamp_period);
        let first = stamps.first().copied().unwrap_or(0);
        let mask = self.stamp_mask();
        let since_first = |s: &u64| ((s.wrapping_sub(first) & mask) as f64 * period) as u64;
        Ok(stamps.iter().map(since_first).collect())
    }

    /// The first `count` stamps of a submission that is done, as the device has them.
    pub(super) fn stamps(&self, clock: &Clock, count: u32) -> Result<Vec<u64>> {
        let context = &self.context;
        let mut stamps = vec![0_u64; count as usize];
        let flags = vk::QueryResultFlags::TYPE_64 | vk::QueryResultFlags::WAIT;
        // SAFETY: VUID-vkGetQueryPoolResults-None-09401: all callers have waited for the submission that wrote these
        // queries. The room is as long as they are (-dataSize-00817), in 64 bits (-flags-02828).
        unsafe { context.raw.get_query_pool_results(clock.pool, 0, &mut stamps, flags) }
            .map_err(|e| context.error("vkGetQueryPoolResults", e))?;
        Ok(stamps)
    }

    /// Does something with so many time stamps and with commands of its own, which it waits for.
    pub(super) fn clocked<T>(
        &mut self,
        at: Stamps,
        stamps: u32,
        work: impl FnOnce(&mut Self, &Clock, vk::CommandBuffer) -> Result<T>,
    ) -> Result<T> {
        let context = self.context.clone();
        let info = vk::QueryPoolCreateInfo::default()
            .query_type(vk::QueryType::TIMESTAMP)
            // The barriers in a row need two, when the others are read.
            .query_count(stamps.max(2));
        // SAFETY: the kind is a plain one and there is a query at least (VUID-VkQueryPoolCreateInfo-queryCount-02763).
        let pool = unsafe { context.raw.create_query_pool(&info, None) }
            .map_err(|e| context.error("vkCreateQueryPool", e))?;
        let clock = Clock { pool, stamps, at };
        let commands = self.allocate_commands();
        let found = commands.and_then(|commands| {
            let found = work(self, &clock, commands);
            if context.settled(self.running.clock) {
                // SAFETY: VUID-vkFreeCommandBuffers-pCommandBuffers-00047: no submission of them is under way,
                // which was just checked. They come from this pool.
                unsafe { context.raw.free_command_buffers(self.pool, &[commands]) };
            }
            found
        });
        // A device that does not end its work keeps both; the commands go with the program, if ever.
        if context.settled(self.running.clock) {
            // SAFETY: VUID-vkDestroyQueryPool-queryPool-00793: the submissions that use the pool are this
            // program's and done, which was just checked.
            unsafe { context.raw.destroy_query_pool(pool, None) };
        }
        found
    }
}

/// Refuses what the device's limits for dispatches and uniform blocks do not allow.
fn check(context: &Context, lowered: &Lowered) -> Result<()> {
    let limit = u64::from(context.adapter.limits.max_uniform_buffer_range);
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

impl Submitted for VulkanProgram {
    fn submit(&mut self) -> Result<()> {
        let commands = [vk::CommandBufferSubmitInfo::default().command_buffer(self.commands)];
        self.running.clock = self.context.submit(&commands)?;
        self.running.runs += 1;
        Ok(())
    }

    fn wait(&mut self) -> Result<()> {
        self.context.wait(self.running.clock)?;
        self.check_waits()
    }
}

impl Program for VulkanProgram {
    fn run(&mut self) -> Result<()> {
        self.submit()?;
        self.wait()
    }

    fn start(&mut self, times: usize) -> Result<Ticket> {
        let (done, submitted) = (self.context.done()?, self.context.submitted());
        if done >= submitted {
            self.predictor.rested(self.running.runs, Instant::now());
        } else if submitted > self.running.clock {
            self.predictor.behind_others();
        }
        let many = if times >= MANY { Some(self.many()?) } else { None };
        let mut left = times;
        while left > 0 {
            let mut buffers = SmallVec::<[vk::CommandBufferSubmitInfo<'_>; TOGETHER]>::new();
            while left > 0 && buffers.len() < TOGETHER {
                let (runs, commands) = match many {
                    Some(many) if left >= MANY => (MANY, many),
                    _ => (1, self.commands),
                };
                buffers.push(vk::CommandBufferSubmitInfo::default().command_buffer(commands));
                self.running.runs += runs as u64;
                left -= runs;
            }
            self.running.clock = self.context.submit(&buffers)?;
        }
        Ok(self.running)
    }

    fn finish(&mut self, runs: Ticket) -> Result<()> {
        let context = &self.context;
        self.predictor.finish(
            runs,
            self.running,
            || context.done(),
            |clock| context.sleep(clock),
        )?;
        self.check_waits()
    }

    fn run_many(&mut self, times: usize) -> Result<()> {
        let runs = self.start(times)?;
        if times <= LONG { self.wait() } else { self.finish(runs) }
    }

    fn profile(&mut self, mode: ProfileMode) -> Result<Profile> {
        if self.context.adapter.timestamp_bits == 0 {
            return Err(GpuError::ProfileUnsupported { mode });
        }
        let parts = match mode {
            ProfileMode::Groups => self.groups.len(),
            ProfileMode::Serialised => {
                self.launches.iter().filter(|launch| launch.role == Role::Last).count()
            }
        };
        self.clocked(Stamps::Parts(mode), parts as u32 + 1, |program, clock, commands| {
            program.measure(mode, clock, commands)
        })
    }

    fn waiting_groups(&self) -> usize {
        self.waits.iter().flat_map(|waits| &waits.groups).filter(|&&wait| wait).count()
    }

    fn profile_waits(&mut self) -> Result<WaitProfile> {
        self.measure_waits()
    }

    fn use_barriers(&mut self) -> Result<()> {
        self.wait()?;
        if self.waits.is_none() { Ok(()) } else { self.back_to_barriers() }
    }
}

impl Drop for VulkanProgram {
    fn drop(&mut self) {
        if !self.context.settled(self.running.clock) {
            // The device may still run these commands: they, their sets and their memory stay for good. The memory
            // keeps the context, and that the pipelines and the device.
            std::mem::forget(std::mem::take(&mut self.memory));
            std::mem::forget(self.context.clone());
            return;
        }
        // SAFETY: VUID-vkDestroyDescriptorPool-descriptorPool-00303: the submissions that use the sets are this
        // program's and done, which was just checked. A null pool is ignored.
        unsafe { self.context.raw.destroy_descriptor_pool(self.sets_pool, None) };
        // SAFETY: VUID-vkDestroyCommandPool-commandPool-00041: as for the sets, of which the same submissions
        // are the only users.
        unsafe { self.context.raw.destroy_command_pool(self.pool, None) };
    }
}
