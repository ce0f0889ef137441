//! Times of the parts of a run, from time stamps at the edges of passes.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use wgpu::{
    BufferUsages, CommandEncoder, ComputePassTimestampWrites, Features, QuerySet,
    QuerySetDescriptor, QueryType,
};

use super::context::Context;
use super::memory::WgpuMemory;
use super::program::WgpuProgram;
use crate::device::DeviceMemory;
use crate::error::{GpuError, Result};
use crate::lowering::Submitted;
use crate::lowering::lowered::Role;
use crate::profile::{Profile, ProfileClock, ProfileMode, ProfileSpan};

/// Parts of one query set: two stamps each, and wgpu allows 4,096.
const PARTS_OF_SET: usize = 2048;
const STAMP_BYTES: u64 = 8;

/// Time stamps of one run.
pub(super) struct Clock {
    /// The dispatches of each part.
    pub(super) parts: Vec<Range<usize>>,
    sets: Vec<QuerySet>,
    resolved: wgpu::Buffer,
    /// Where the stamps can be read from.
    stamps: WgpuMemory,
}

impl Clock {
    fn new(context: &Arc<Context>, parts: Vec<Range<usize>>) -> Result<Self> {
        let size = (parts.len() as u64 * 2 * STAMP_BYTES).max(STAMP_BYTES);
        let make = || {
            let set = |parts: &[Range<usize>]| {
                context.device.create_query_set(&QuerySetDescriptor {
                    label: None,
                    ty: QueryType::Timestamp,
                    count: parts.len() as u32 * 2,
                })
            };
            let sets = parts.chunks(PARTS_OF_SET).map(set).collect();
            let resolved = context.device.create_buffer(&wgpu::BufferDescriptor {
                label: None,
                size,
                usage: BufferUsages::QUERY_RESOLVE | BufferUsages::COPY_SRC,
                mapped_at_creation: false,
            });
            (sets, resolved)
        };
        let (sets, resolved) = context.scoped("Device::create_query_set", size, make)?;
        let stamps = WgpuMemory::new(context, size)?;
        Ok(Self { parts, sets, resolved, stamps })
    }

    /// Where the stamps of a part go.
    pub(super) fn writes(&self, part: usize) -> ComputePassTimestampWrites<'_> {
        let first = (part % PARTS_OF_SET) as u32 * 2;
        ComputePassTimestampWrites {
            query_set: &self.sets[part / PARTS_OF_SET],
            beginning_of_pass_write_index: Some(first),
            end_of_pass_write_index: Some(first + 1),
        }
    }

    /// Brings all stamps to where they can be read.
    pub(super) fn resolve(&self, encoder: &mut CommandEncoder) {
        let mut at = 0;
        for (set, parts) in self.sets.iter().zip(self.parts.chunks(PARTS_OF_SET)) {
            encoder.resolve_query_set(set, 0..parts.len() as u32 * 2, &self.resolved, at);
            at += parts.len() as u64 * 2 * STAMP_BYTES;
        }
        encoder.copy_buffer_to_buffer(
            &self.resolved,
            0,
            &self.stamps.buffer,
            0,
            self.resolved.size(),
        );
    }
}

/// Runs a program once and says how long its parts took.
pub(super) fn profile(program: &mut WgpuProgram, mode: ProfileMode) -> Result<Profile> {
    let context = program.context.clone();
    if !context.adapter.features.contains(Features::TIMESTAMP_QUERY) {
        return Err(GpuError::ProfileUnsupported { mode });
    }
    let parts = match mode {
        ProfileMode::Groups => program.groups.clone(),
        ProfileMode::Serialised => {
            let mut start = 0;
            let ends = program.launches.iter().enumerate();
            let ends = ends.filter(|(_, l)| l.role == Role::Last).map(|(index, _)| index + 1);
            ends.map(|end| std::mem::replace(&mut start, end)..end).collect()
        }
    };
    let clock = Clock::new(&context, parts)?;
    let start = Instant::now();
    let encoded = program.encode(Some(&clock), true)?;
    program.hand_over(vec![encoded])?;
    let submit_ns = start.elapsed().as_nanos() as u64;
    program.wait()?;
    let wait_ns = start.elapsed().as_nanos() as u64 - submit_ns;
    let mut bytes = vec![0; clock.parts.len() * 2 * STAMP_BYTES as usize];
    clock.stamps.read(0, &mut bytes)?;
    let stamps: Vec<u64> = bytemuck::pod_collect_to_vec(&bytes);
    let period = f64::from(context.queue.get_timestamp_period());
    let first = stamps.first().copied().unwrap_or(0);
    let ns = |stamp: u64| (stamp.saturating_sub(first) as f64 * period) as u64;
    let spans = stamps
        .chunks_exact(2)
        .map(|pair| ProfileSpan { start_ns: ns(pair[0]), end_ns: ns(pair[1].max(pair[0])) })
        .collect();
    Ok(Profile { mode, clock: ProfileClock::Gpu, spans, submit_ns, wait_ns, barrier_ns: None })
}
