//! Copies between host and device.
//!
//! Where the host sees device memory it writes there directly; elsewhere, and for reading where the
//! host's caches do not hold it, copies go through a ring of staging segments. A segment is used
//! again only when the clock shows that its last copy is done.
//!
//! Against programs: where the host touches device memory itself, the device is idle and nothing can be
//! submitted meanwhile ([`Context::idle`]); elsewhere the queue keeps the order. Only a host-visible buffer is looked at while
//! work is under way. Against each other, transfers hold the lock of their memory.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use ash::vk;

use super::context::{Context, driver_error};
use super::handle::Handle;
use super::heap::{self, Mapped, Piece};
use super::instance::Adapter;
use crate::error::{GpuError, Result};

/// Segments of the ring, and bytes of each: copying into one overlaps with the copy out of another.
const SEGMENTS: usize = 4;
const SEGMENT: u64 = 4 << 20;
/// Up to here the host reads device memory directly even if its caches do not hold it.
const SMALL_READ: usize = 256;

/// The staging ring and its commands.
pub(super) struct Transfers {
    device: Arc<Handle>,
    memory_type: u32,
    flags: vk::MemoryPropertyFlags,
    pool: vk::CommandPool,
    commands: Vec<vk::CommandBuffer>,
    staging: OnceLock<Staging>,
    /// For each segment, what the clock shows when its last copy is done.
    ring: Mutex<Ring>,
}

struct Staging {
    buffer: vk::Buffer,
    memory: vk::DeviceMemory,
    mapped: Mapped,
}

#[derive(Default)]
struct Ring {
    next: usize,
    busy: [u64; SEGMENTS],
}

#[derive(Clone, Copy)]
enum Direction {
    ToDevice,
    ToHost,
}

impl Transfers {
    pub(super) fn new(device: &Arc<Handle>, adapter: &Adapter, name: &str) -> Result<Self> {
        let memory_type = heap::host_type(adapter);
        let pool = vk::CommandPoolCreateInfo::default()
            .queue_family_index(adapter.queue_family)
            .flags(vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER);
        // SAFETY: VUID-vkCreateCommandPool-queueFamilyIndex-01937: the family is the one the device was opened with.
        let pool = unsafe { device.create_command_pool(&pool, None) }
            .map_err(|e| driver_error(name, "vkCreateCommandPool", e))?;
        let mut transfers = Self {
            device: device.clone(),
            memory_type,
            flags: adapter.memory.memory_types[memory_type as usize].property_flags,
            pool,
            commands: Vec::new(),
            staging: OnceLock::new(),
            ring: Mutex::default(),
        };
        let info = vk::CommandBufferAllocateInfo::default()
            .command_pool(pool)
            .command_buffer_count(SEGMENTS as u32);
        // SAFETY: the pool was just made and nobody else has it.
        transfers.commands = unsafe { device.allocate_command_buffers(&info) }
            .map_err(|e| driver_error(name, "vkAllocateCommandBuffers", e))?;
        Ok(transfers)
    }

    /// Writes `bytes` behind byte `offset` of a piece.
    ///
    /// # Safety
    /// The bytes lie inside the piece, and until this returns no other transfer touches them.
    pub(super) unsafe fn write(
        &self,
        context: &Context,
        piece: &Piece,
        offset: u64,
        bytes: &[u8],
    ) -> Result<()> {
        if let Some(mapped) = piece.mapped {
            let _idle = context.idle()?;
            let start = mapped.start.wrapping_add(offset as usize);
            // SAFETY: the caller says that the bytes lie inside the piece, which is mapped as long as it lives, and
            // that no other transfer touches them. The device does not either while it is idle. `bytes` is
            // memory of the program and no device memory, whose address never leaves this backend.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len()) };
            return Ok(());
        }
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        for (chunk, at) in bytes.chunks(SEGMENT as usize).zip((offset..).step_by(SEGMENT as usize))
        {
            let (segment, start) = self.segment(context, &mut ring)?;
            // SAFETY: the segment is as long as a chunk at least, it is ours while the ring is locked, and `turn`
            // has waited for the last copy from it.
            unsafe { std::ptr::copy_nonoverlapping(chunk.as_ptr(), start, chunk.len()) };
            let copy = (piece.offset + at, chunk.len() as u64);
            ring.busy[segment] = self.copy(context, segment, piece, copy, Direction::ToDevice)?;
        }
        Ok(())
    }

    /// Reads the bytes behind byte `offset` of a piece.
    ///
    /// # Safety
    /// The bytes lie inside the piece, and until this returns no other transfer writes them.
    pub(super) unsafe fn read(
        &self,
        context: &Context,
        piece: &Piece,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<()> {
        if let Some(mapped) = piece.mapped.filter(|m| m.cached || bytes.len() <= SMALL_READ) {
            let _idle = context.idle()?;
            let start = mapped.start.wrapping_add(offset as usize);
            // SAFETY: the caller says that the bytes lie inside the piece, which is mapped as long as it lives, and
            // that no other transfer writes them. The device does not either while it is idle. `bytes` is
            // memory of the program and no device memory.
            unsafe { std::ptr::copy_nonoverlapping(start, bytes.as_mut_ptr(), bytes.len()) };
            return Ok(());
        }
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        for (chunk, at) in
            bytes.chunks_mut(SEGMENT as usize).zip((offset..).step_by(SEGMENT as usize))
        {
            let (segment, start) = self.segment(context, &mut ring)?;
            let copy = (piece.offset + at, chunk.len() as u64);
            let done = self.copy(context, segment, piece, copy, Direction::ToHost)?;
            ring.busy[segment] = done;
            context.wait(done)?;
            // SAFETY: the segment is as long as a chunk at least, it is ours while the ring is locked, and the
            // copy into it is done, with a barrier for the host behind it.
            unsafe { std::ptr::copy_nonoverlapping(start, chunk.as_mut_ptr(), chunk.len()) };
        }
        Ok(())
    }

    /// As [`read`](Self::read), of what finished work has left, if the host's caches hold the memory.
    ///
    /// # Safety
    /// As for [`read`](Self::read).
    pub(super) unsafe fn peek(
        &self,
        context: &Context,
        piece: &Piece,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<()> {
        let Some(mapped) = piece.mapped.filter(|mapped| mapped.cached) else {
            // SAFETY: the caller promises what reading needs.
            return unsafe { self.read(context, piece, offset, bytes) };
        };
        let start = mapped.start.wrapping_add(offset as usize);
        for (index, byte) in bytes.iter_mut().enumerate() {
            // SAFETY: the caller says that the bytes lie inside the piece, which is mapped as long as it lives, and
            // that the host does not write them. The device may do so meanwhile, hence volatile: a byte that is
            // read then has some value, which nothing relies on.
            *byte = unsafe { start.wrapping_add(index).read_volatile() };
        }
        Ok(())
    }

    /// Fills a piece with zeros; returns what the clock shows when that is done.
    pub(super) fn fill_zero(&self, context: &Context, piece: &Piece) -> Result<u64> {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let segment = self.turn(context, &mut ring)?;
        let fill = |commands| {
            // SAFETY: `run` has begun the commands. VUID-vkCmdFillBuffer-dstOffset-00024, -00025 and -size-00026 to -00028:
            // `Heap` cuts pieces at multiples of `heap::ALIGN` inside their buffer. Blocks are made for copies into
            // them (-dstBuffer-00029), and whoever is given the piece keeps it.
            unsafe {
                context.raw.cmd_fill_buffer(commands, piece.buffer, piece.offset, piece.len, 0)
            };
        };
        let done = self.run(context, segment, fill)?;
        ring.busy[segment] = done;
        Ok(done)
    }

    /// The next segment that is free, and where the host sees it.
    fn segment(&self, context: &Context, ring: &mut Ring) -> Result<(usize, *mut u8)> {
        let segment = self.turn(context, ring)?;
        let start = self.staging(context)?.mapped.start;
        Ok((segment, start.wrapping_add(segment * SEGMENT as usize)))
    }

    fn turn(&self, context: &Context, ring: &mut Ring) -> Result<usize> {
        let segment = ring.next;
        ring.next = (ring.next + 1) % SEGMENTS;
        context.wait(ring.busy[segment])?;
        Ok(segment)
    }

    fn staging(&self, context: &Context) -> Result<&Staging> {
        if let Some(staging) = self.staging.get() {
            return Ok(staging);
        }
        let usage = vk::BufferUsageFlags::TRANSFER_SRC | vk::BufferUsageFlags::TRANSFER_DST;
        let size = SEGMENTS as u64 * SEGMENT;
        let (buffer, memory) = heap::allocate(context, size, self.memory_type, usage)?;
        let mapped =
            heap::map(context, memory, self.flags)?.ok_or_else(|| GpuError::Unsupported {
                device: context.info.name.clone(),
                missing: "memory that the host can write",
            })?;
        // The ring is locked: nobody else sets it.
        Ok(self.staging.get_or_init(|| Staging { buffer, memory, mapped }))
    }

    fn copy(
        &self,
        context: &Context,
        segment: usize,
        piece: &Piece,
        (at, len): (u64, u64),
        direction: Direction,
    ) -> Result<u64> {
        let staging = self.staging(context)?;
        let in_staging = segment as u64 * SEGMENT;
        let (from, to, region) = match direction {
            Direction::ToDevice => (
                staging.buffer,
                piece.buffer,
                vk::BufferCopy { src_offset: in_staging, dst_offset: at, size: len },
            ),
            Direction::ToHost => (
                piece.buffer,
                staging.buffer,
                vk::BufferCopy { src_offset: at, dst_offset: in_staging, size: len },
            ),
        };
        self.run(context, segment, |commands| {
            // SAFETY: `run` has begun the commands. VUID-vkCmdCopyBuffer-srcOffset-00113 to -size-00116: the bytes lie inside
            // the piece, as the callers of `read` and `write` promise, and a chunk is no longer than its segment.
            // Both buffers are made for copies from and to them (-srcBuffer-00118, -dstBuffer-00120).
            unsafe { context.raw.cmd_copy_buffer(commands, from, to, &[region]) };
        })
    }

    /// Records one transfer between barriers against everything before and after it, and submits it.
    fn run(
        &self,
        context: &Context,
        segment: usize,
        record: impl FnOnce(vk::CommandBuffer),
    ) -> Result<u64> {
        let commands = self.commands[segment];
        context.counters.recordings.add(1);
        let begin = vk::CommandBufferBeginInfo::default()
            .flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
        // SAFETY: VUID-vkBeginCommandBuffer-commandBuffer-00049 and -00050: `turn` has waited for the last submission of this
        // segment's commands, the pool lets each be recorded anew, and the ring is locked.
        unsafe { context.raw.begin_command_buffer(commands, &begin) }
            .map_err(|e| context.error("vkBeginCommandBuffer", e))?;
        full_barrier(context, commands);
        record(commands);
        full_barrier(context, commands);
        // SAFETY: VUID-vkEndCommandBuffer-commandBuffer-00059: recording began above.
        unsafe { context.raw.end_command_buffer(commands) }
            .map_err(|e| context.error("vkEndCommandBuffer", e))?;
        context.submit(&[vk::CommandBufferSubmitInfo::default().command_buffer(commands)])
    }
}

impl Drop for Transfers {
    fn drop(&mut self) {
        if self.device.is_abandoned() {
            return;
        }
        // SAFETY: VUID-vkDestroyCommandPool-commandPool-00041: `Context` waits for all submissions before its
        // fields go, or abandons the device. This frees the commands too.
        unsafe { self.device.destroy_command_pool(self.pool, None) };
        if let Some(staging) = self.staging.get() {
            // SAFETY: VUID-vkDestroyBuffer-buffer-00922: `Context` waits for all submissions before its fields go, or abandons
            // the device.
            unsafe { self.device.destroy_buffer(staging.buffer, None) };
            // SAFETY: VUID-vkFreeMemory-memory-00677: the one buffer bound to it went just before. The mapping ends with it,
            // and only transfers followed its address.
            unsafe { self.device.free_memory(staging.memory, None) };
        }
    }
}

/// Everything before it is done and visible to everything after it, the host included.
fn full_barrier(context: &Context, commands: vk::CommandBuffer) {
    use vk::{AccessFlags2 as Access, PipelineStageFlags2 as Stage};
    let work = Stage::COMPUTE_SHADER | Stage::TRANSFER;
    let barrier = [vk::MemoryBarrier2::default()
        .src_stage_mask(work)
        .src_access_mask(Access::MEMORY_READ | Access::MEMORY_WRITE)
        .dst_stage_mask(work | Stage::HOST)
        .dst_access_mask(Access::MEMORY_READ | Access::MEMORY_WRITE)];
    let info = vk::DependencyInfo::default().memory_barriers(&barrier);
    // SAFETY: `run` has begun the commands. The stages are those of a compute queue, and synchronization2 is enabled
    // (VUID-vkCmdPipelineBarrier2-synchronization2-03848).
    unsafe { context.raw.cmd_pipeline_barrier2(commands, &info) };
}
