//! The commands of a program: dispatches, and barriers exactly where the proven list has them.

use ash::vk;

use super::program::VulkanProgram;
use crate::error::Result;
use crate::lowering::lowered::Role;
use crate::profile::ProfileMode;

/// Time stamps of one profiled run.
pub(super) struct Clock {
    pub(super) pool: vk::QueryPool,
    pub(super) stamps: u32,
    pub(super) at: Stamps,
}

/// Where time stamps stand, besides the start.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stamps {
    /// After each part of this mode.
    Parts(ProfileMode),
    /// Where barriers are left, and at the end.
    Barriers,
}

/// Where a barrier stands.
#[derive(Clone, Copy)]
pub(super) enum Edge {
    /// Before the first dispatch, against earlier submissions.
    Start,
    /// Between two groups, or two runs.
    Group,
    /// After the last dispatch, for host and transfers.
    End,
}

impl VulkanProgram {
    /// Writes the commands of `runs` runs, one after another. With a clock, a time stamp stands before
    /// the first part and after each.
    pub(super) fn record(
        &self,
        commands: vk::CommandBuffer,
        runs: usize,
        clock: Option<&Clock>,
    ) -> Result<()> {
        let raw = &self.context.raw;
        self.context.counters.recordings.add(1);
        // The same commands may stand several times in a queue.
        let begin = vk::CommandBufferBeginInfo::default()
            .flags(vk::CommandBufferUsageFlags::SIMULTANEOUS_USE);
        // SAFETY: VUID-vkBeginCommandBuffer-commandBuffer-00049: every caller has just allocated them, so nothing uses them.
        // Their pool is this program's, and whoever records is the only one who has it.
        unsafe { raw.begin_command_buffer(commands, &begin) }
            .map_err(|e| self.context.error("vkBeginCommandBuffer", e))?;
        for run in 0..runs {
            self.barrier(commands, if run == 0 { Edge::Start } else { Edge::Group });
            self.record_run(commands, clock);
        }
        self.barrier(commands, Edge::End);
        // SAFETY: VUID-vkEndCommandBuffer-commandBuffer-00059: recording began above.
        unsafe { raw.end_command_buffer(commands) }
            .map_err(|e| self.context.error("vkEndCommandBuffer", e))
    }

    fn record_run(&self, commands: vk::CommandBuffer, clock: Option<&Clock>) {
        let raw = &self.context.raw;
        let at = clock.map(|clock| clock.at);
        let serialised = at == Some(Stamps::Parts(ProfileMode::Serialised));
        let mut stamp = 0;
        self.stamp(commands, clock, &mut stamp);
        let mut bound = vk::Pipeline::null();
        for (index, group) in self.groups.iter().enumerate() {
            let waits = self.waits.as_ref().is_some_and(|waits| waits.groups[index]);
            if index > 0 && !serialised && !waits {
                if at == Some(Stamps::Barriers) {
                    self.stamp(commands, clock, &mut stamp);
                }
                self.barrier(commands, Edge::Group);
            }
            for launch in &self.launches[group.clone()] {
                if serialised && launch.role == Role::Ahead {
                    continue; // each dispatch is timed alone
                }
                if launch.pipeline != bound {
                    bound = launch.pipeline;
                    // SAFETY: `record` has begun the commands. The pipeline is one for compute (VUID-vkCmdBindPipeline-
                    // pipelineBindPoint-00779) of the context, which the program keeps.
                    unsafe {
                        raw.cmd_bind_pipeline(commands, vk::PipelineBindPoint::COMPUTE, bound);
                    }
                }
                let point = vk::PipelineBindPoint::COMPUTE;
                // SAFETY: `record` has begun the commands. VUID-vkCmdBindDescriptorSets-pDescriptorSets-00358: set and
                // layout are those for the number of bindings of this launch. The set goes with the program.
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
                    // SAFETY: `record` has begun the commands; `labels` is there only where the extension is enabled.
                    unsafe { labels.cmd_begin_debug_utils_label(commands, &label) };
                }
                let [x, y, z] = launch.groups;
                // SAFETY: VUID-vkCmdDispatch-groupCountX-00386, -groupCountY-00387 and -groupCountZ-00388: `check` has
                // compared the workgroups with the device. Pipeline and set are bound (-None-08606, -08600) and
                // `self.memory` keeps what the set names (-None-08114). Kernels stay inside their bindings: ours
                // are tested for it, users' are guarded unless they promised it. The encoder has proven that no other
                // dispatch of the group touches what this one writes, except for tests that say `unproven`.
                unsafe { raw.cmd_dispatch(commands, x, y, z) };
                if let Some(labels) = &self.context.labels {
                    // SAFETY: VUID-vkCmdEndDebugUtilsLabelEXT-commandBuffer-01912: the label was begun above.
                    unsafe { labels.cmd_end_debug_utils_label(commands) };
                }
                if serialised && launch.role == Role::Last {
                    self.barrier(commands, Edge::Group);
                    self.stamp(commands, clock, &mut stamp);
                }
            }
            if at == Some(Stamps::Parts(ProfileMode::Groups)) {
                self.stamp(commands, clock, &mut stamp);
            }
        }
        if at == Some(Stamps::Barriers) {
            self.stamp(commands, clock, &mut stamp);
        }
    }

    pub(super) fn barrier(&self, commands: vk::CommandBuffer, edge: Edge) {
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
        // SAFETY: callers have begun the commands. Stages and accesses fit each other and a compute queue, and
        // synchronization2 is enabled (VUID-vkCmdPipelineBarrier2-synchronization2-03848).
        unsafe { self.context.raw.cmd_pipeline_barrier2(commands, &info) };
    }

    pub(super) fn stamp(&self, commands: vk::CommandBuffer, clock: Option<&Clock>, next: &mut u32) {
        let Some(clock) = clock else { return };
        let stage = vk::PipelineStageFlags2::COMPUTE_SHADER;
        // SAFETY: callers have begun the commands. `clocked` made a query for every stamp (VUID-vkCmdWriteTimestamp2-
        // query-04903) on a queue with time stamps (-timestampValidBits-03863); `reset_clock` comes before
        // each submission (-None-03864).
        unsafe { self.context.raw.cmd_write_timestamp2(commands, stage, clock.pool, *next) };
        *next += 1;
    }
}
