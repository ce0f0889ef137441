//! Device memory: large blocks, each one buffer, cut into pieces.
//!
//! One buffer for each block keeps the number of allocations far below the driver's limit, and
//! outside checkers see one buffer with exact ranges instead of many that alias.

use std::sync::{Mutex, PoisonError};

use ash::vk;

use super::context::Context;
use super::instance::Adapter;
use crate::error::{GpuError, Result};

/// Pieces start at multiples of this: no device wants more for any binding.
pub(super) const ALIGN: u64 = crate::lowering::ALIGN;
/// Bytes of a block that holds several pieces, in device memory and in the host's.
const BLOCK: u64 = 64 << 20;
const HOST_BLOCK: u64 = 64 << 10;

/// A piece of a block.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) buffer: vk::Buffer,
    pub(super) offset: u64,
    /// Bytes in the piece, at least as many as asked for.
    pub(super) len: u64,
    /// Where the host sees its first byte, if it can.
    pub(super) mapped: Option<Mapped>,
    block: u64,
}

/// The address of device memory on the host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mapped {
    pub(super) start: *mut u8,
    /// Whether the host's caches hold it, so that reading is fast.
    pub(super) cached: bool,
}

// SAFETY: an address may go to any thread. It is good as long as its block is, and `Transfers`, which alone
// follows it, gets it with a piece of that block.
unsafe impl Send for Mapped {}
// SAFETY: a shared address only gives a copy of itself. Who may touch the bytes behind it when is settled by the
// lock of the piece's `VulkanMemory` and by `Context::idle`.
unsafe impl Sync for Mapped {}

/// All blocks of one kind of memory.
pub(super) struct Heap {
    /// Bytes of a block that holds several pieces.
    block: u64,
    memory_type: u32,
    flags: vk::MemoryPropertyFlags,
    heap: u32,
    /// Bytes of all blocks at most, beside what the driver says.
    limit: u64,
    blocks: Mutex<Blocks>,
}

#[derive(Default)]
struct Blocks {
    list: Vec<Block>,
    next: u64,
}

struct Block {
    id: u64,
    buffer: vk::Buffer,
    memory: vk::DeviceMemory,
    mapped: Option<Mapped>,
    size: u64,
    /// Free ranges by offset, never touching.
    free: Vec<(u64, u64)>,
}

impl Heap {
    /// Device memory of at most so many bytes; visible to the host too where that is true of most of it.
    pub(super) fn device(adapter: &Adapter, limit: u64) -> Self {
        Self::new(adapter, device_type(adapter), BLOCK, limit)
    }

    /// Memory of the host that the device reaches.
    pub(super) fn host(adapter: &Adapter) -> Self {
        Self::new(adapter, host_type(adapter), HOST_BLOCK, u64::MAX)
    }

    fn new(adapter: &Adapter, memory_type: u32, block: u64, limit: u64) -> Self {
        let vk::MemoryType { property_flags: flags, heap_index: heap } =
            adapter.memory.memory_types[memory_type as usize];
        Self { block, memory_type, flags, heap, limit, blocks: Mutex::default() }
    }

    /// Memory for `bytes` bytes.
    pub(super) fn alloc(&self, context: &Context, bytes: u64) -> Result<Piece> {
        let len = bytes.max(4).checked_next_multiple_of(ALIGN);
        let len = len.ok_or_else(|| self.out_of_memory(context, bytes))?;
        context.counters.pieces.add(1);
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let found = blocks.list.iter_mut().find_map(|block| block.take(len));
        if let Some(piece) = found {
            return Ok(piece);
        }
        let size = if len >= self.block / 2 { len } else { self.block };
        let block = match self.new_block(context, &blocks, size) {
            Err(GpuError::OutOfMemory { .. }) if size > len => {
                self.new_block(context, &blocks, len)?
            }
            other => other?,
        };
        blocks.next += 1;
        blocks.list.push(block);
        let last = blocks.list.last_mut().and_then(|block| block.take(len));
        last.ok_or_else(|| self.out_of_memory(context, len))
    }

    /// Gives a piece back. Nothing on the device may use it any more.
    pub(super) fn free(&self, context: &Context, piece: &Piece) {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(index) = blocks.list.iter().position(|block| block.id == piece.block) else {
            return;
        };
        let block = &mut blocks.list[index];
        block.give(piece.offset, piece.len);
        // Copies may still be under way. Where they do not end the block stays, for other pieces: what is done to
        // those comes later in the same queue.
        if block.free == [(0, block.size)] && context.all_settled() {
            blocks.list.swap_remove(index).destroy(&context.raw);
        }
    }

    /// Bytes of all blocks.
    pub(super) fn bytes(&self) -> u64 {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner).bytes()
    }

    /// Bytes that new blocks could have.
    pub(super) fn free_bytes(&self, context: &Context) -> u64 {
        context.available(self.heap).min(self.limit.saturating_sub(self.bytes()))
    }

    pub(super) fn destroy(&self, device: &ash::Device) {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        blocks.list.drain(..).for_each(|block| block.destroy(device));
    }

    fn out_of_memory(&self, context: &Context, wanted: u64) -> GpuError {
        let available = context.available(self.heap);
        GpuError::OutOfMemory { device: context.info.name.clone(), wanted, available }
    }

    /// A block beside those there are.
    fn new_block(&self, context: &Context, blocks: &Blocks, size: u64) -> Result<Block> {
        let (id, count) = (blocks.next, blocks.list.len());
        let left = self.limit.saturating_sub(blocks.bytes());
        if size > left {
            let available = left.min(context.available(self.heap));
            let device = context.info.name.clone();
            return Err(GpuError::OutOfMemory { device, wanted: size, available });
        }
        if size > context.adapter.max_buffer_bytes || size > context.available(self.heap) {
            return Err(self.out_of_memory(context, size));
        }
        // Two heaps and the staging ring share what the device allows.
        if count >= context.adapter.limits.max_memory_allocation_count as usize / 2 - 1 {
            return Err(self.out_of_memory(context, size));
        }
        let (buffer, memory) = allocate(context, size, self.memory_type, buffer_usage()).map_err(
            |error| match error {
                GpuError::OutOfMemory { .. } => self.out_of_memory(context, size),
                other => other,
            },
        )?;
        let mapped = map(context, memory, self.flags).inspect_err(|_| {
            let free = Vec::new();
            Block { id, buffer, memory, mapped: None, size, free }.destroy(&context.raw);
        })?;
        Ok(Block { id, buffer, memory, mapped, size, free: vec![(0, size)] })
    }
}

impl Blocks {
    fn bytes(&self) -> u64 {
        self.list.iter().map(|block| block.size).sum()
    }
}

impl Block {
    fn take(&mut self, len: u64) -> Option<Piece> {
        let fits = |&(_, free): &(u64, u64)| free >= len;
        let index = self.free.iter().position(fits)?;
        let (offset, free) = self.free[index];
        if free == len {
            self.free.remove(index);
        } else {
            self.free[index] = (offset + len, free - len);
        }
        let mapped = self.mapped.map(|block| Mapped {
            start: block.start.wrapping_add(offset as usize),
            cached: block.cached,
        });
        Some(Piece { buffer: self.buffer, offset, len, mapped, block: self.id })
    }

    fn give(&mut self, offset: u64, len: u64) {
        let index = self.free.partition_point(|&(start, _)| start < offset);
        self.free.insert(index, (offset, len));
        for at in [index, index.wrapping_sub(1)] {
            let (Some(&(start, len)), Some(&(next, more))) =
                (self.free.get(at), self.free.get(at.wrapping_add(1)))
            else {
                continue;
            };
            if start + len == next {
                self.free[at].1 += more;
                self.free.remove(at + 1);
            }
        }
    }

    fn destroy(&self, device: &ash::Device) {
        // SAFETY: VUID-vkDestroyBuffer-buffer-00922: every piece was given back, which programs do when they are done
        // with it, and the caller has waited for copies: `Heap::free` by `Context::all_settled`, and
        // `Context::drop` likewise.
        unsafe { device.destroy_buffer(self.buffer, None) };
        // SAFETY: VUID-vkFreeMemory-memory-00677: the one buffer bound to it is gone, and with it whatever used it.
        // This ends the mapping, whose addresses went with the pieces.
        unsafe { device.free_memory(self.memory, None) };
    }
}

/// What blocks are used for.
fn buffer_usage() -> vk::BufferUsageFlags {
    vk::BufferUsageFlags::STORAGE_BUFFER
        | vk::BufferUsageFlags::UNIFORM_BUFFER
        | vk::BufferUsageFlags::TRANSFER_SRC
        | vk::BufferUsageFlags::TRANSFER_DST
}

fn device_type(adapter: &Adapter) -> u32 {
    use vk::MemoryPropertyFlags as Flags;
    let types = adapter.memory.memory_types_as_slice();
    let heap_size = |t: &vk::MemoryType| adapter.memory.memory_heaps[t.heap_index as usize].size;
    let largest = adapter.local_bytes();
    let visible = Flags::HOST_VISIBLE | Flags::HOST_COHERENT;
    let usable = |t: &vk::MemoryType| {
        let exotic = Flags::PROTECTED | Flags::DEVICE_COHERENT_AMD | Flags::LAZILY_ALLOCATED;
        !t.property_flags.intersects(exotic)
    };
    let score = |t: &vk::MemoryType| {
        let local = t.property_flags.contains(Flags::DEVICE_LOCAL);
        let whole = heap_size(t) >= largest / 2;
        (
            usable(t) && local && whole,
            t.property_flags.contains(visible),
            t.property_flags.contains(Flags::HOST_CACHED),
        )
    };
    (0..types.len()).rev().max_by_key(|&i| score(&types[i])).unwrap_or(0) as u32
}

/// The type of memory that the host reads fastest, outside the device where there is such memory.
pub(super) fn host_type(adapter: &Adapter) -> u32 {
    use vk::MemoryPropertyFlags as Flags;
    let types = adapter.memory.memory_types_as_slice();
    let visible = Flags::HOST_VISIBLE | Flags::HOST_COHERENT;
    let score = |t: &vk::MemoryType| {
        (
            t.property_flags.contains(visible),
            t.property_flags.contains(Flags::HOST_CACHED),
            !t.property_flags.contains(Flags::DEVICE_LOCAL),
        )
    };
    (0..types.len()).rev().max_by_key(|&i| score(&types[i])).unwrap_or(0) as u32
}

/// A buffer with memory of its own.
pub(super) fn allocate(
    context: &Context,
    size: u64,
    memory_type: u32,
    usage: vk::BufferUsageFlags,
) -> Result<(vk::Buffer, vk::DeviceMemory)> {
    let info = vk::BufferCreateInfo::default().size(size).usage(usage);
    // SAFETY: VUID-VkBufferCreateInfo-size-00912 and -06409: the size is not zero and within the largest buffer:
    // pieces are 256 bytes at least, `new_block` checks its size, and the staging ring is 16 MiB, which every
    // device has. The flags are empty and the usage is not.
    let buffer = unsafe { context.raw.create_buffer(&info, None) }
        .map_err(|e| context.error("vkCreateBuffer", e))?;
    // SAFETY: the buffer was made above from the same device and is alive.
    let needs = unsafe { context.raw.get_buffer_memory_requirements(buffer) };
    let info = vk::MemoryAllocateInfo::default()
        .allocation_size(needs.size)
        .memory_type_index(memory_type);
    let heap = context.adapter.memory.memory_types[memory_type as usize].heap_index;
    let heap_bytes = context.adapter.memory.memory_heaps[heap as usize].size;
    // What the two calls below demand of a size and of a type. Buffers of this kind lie in every usual type.
    let fits = needs.size <= heap_bytes && needs.memory_type_bits & (1 << memory_type) != 0;
    let memory = if fits {
        // SAFETY: VUID-vkAllocateMemory-pAllocateInfo-01713 and -01714: the size is within the heap, as just
        // checked, and the type was chosen among those of the device. `Heap` bounds the number of
        // allocations (VUID-vkAllocateMemory-maxMemoryAllocationCount-04101).
        unsafe { context.raw.allocate_memory(&info, None) }
    } else {
        Err(vk::Result::ERROR_OUT_OF_DEVICE_MEMORY)
    };
    let bound = memory.and_then(|memory| {
        // SAFETY: VUID-vkBindBufferMemory-buffer-07459, -memory-01035, -memoryOffset-01036 and -size-01037: the
        // buffer is new and not bound, the type is one it takes, as just checked, the offset is zero and the
        // memory as large as it needs.
        unsafe { context.raw.bind_buffer_memory(buffer, memory, 0) }
            // SAFETY: VUID-vkFreeMemory-memory-00677: binding failed, so nothing uses it.
            .inspect_err(|_| unsafe { context.raw.free_memory(memory, None) })
            .map(|()| memory)
    });
    match bound {
        Ok(memory) => Ok((buffer, memory)),
        Err(code) => {
            // SAFETY: VUID-vkDestroyBuffer-buffer-00922: it was made above and nothing was submitted that uses it.
            unsafe { context.raw.destroy_buffer(buffer, None) };
            Err(context.error("vkAllocateMemory", code))
        }
    }
}

/// The host's address of a whole allocation, if it may have one.
pub(super) fn map(
    context: &Context,
    memory: vk::DeviceMemory,
    flags: vk::MemoryPropertyFlags,
) -> Result<Option<Mapped>> {
    use vk::MemoryPropertyFlags as Flags;
    if !flags.contains(Flags::HOST_VISIBLE | Flags::HOST_COHERENT) {
        return Ok(None);
    }
    // SAFETY: VUID-vkMapMemory-memory-00682 and -00678: the type is host-visible, as just checked, and both callers
    // map memory that they have just allocated, once. All of it is mapped (-size-00680).
    let start =
        unsafe { context.raw.map_memory(memory, 0, vk::WHOLE_SIZE, vk::MemoryMapFlags::empty()) }
            .map_err(|e| context.error("vkMapMemory", e))?;
    Ok(Some(Mapped { start: start.cast(), cached: flags.contains(Flags::HOST_CACHED) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_given_back_in_any_order_make_the_block_whole() {
        let mut block = Block {
            id: 0,
            buffer: vk::Buffer::null(),
            memory: vk::DeviceMemory::null(),
            mapped: None,
            size: 1024,
            free: vec![(0, 1024)],
        };
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 3, 1]] {
            let pieces: Vec<Piece> = (0..4).filter_map(|_| block.take(256)).collect();
            assert_eq!(pieces.iter().map(|p| p.offset).collect::<Vec<_>>(), [0, 256, 512, 768]);
            assert!(block.take(256).is_none());
            for index in order {
                block.give(pieces[index].offset, pieces[index].len);
            }
            assert_eq!(block.free, [(0, 1024)], "{order:?}");
        }
    }
}
