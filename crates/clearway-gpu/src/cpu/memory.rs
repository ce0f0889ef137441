//! Buffers in host memory.
//!
//! Kernels reach the bytes through raw pointers while a program runs. Transfers from and to the host
//! take the device's run lock, so they never overlap a running program.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use super::simd::packed::{Packed, ROWS};
use super::{ALIGN, Shared};
use crate::device::DeviceMemory;
use crate::error::{GpuError, Result};

/// Bytes that are worth a thread to pack them.
const PACK_SHARE: usize = 256 << 10;

/// Bytes of a buffer. Freed when the last handle and the last program that uses it are gone.
pub(super) struct HostMemory {
    start: NonNull<u8>,
    layout: Layout,
    len: usize,
    device: Weak<Shared>,
    /// How the bytes are packed, if they are weights.
    packed: Option<Packed>,
}

// SAFETY: the bytes are plain memory owned by this value; who may touch them when is settled by the
// run lock (transfers against programs) and by the proof of the list (kernels against each other).
unsafe impl Send for HostMemory {}
// SAFETY: as for Send; `&HostMemory` gives out bytes only under the run lock or inside a program.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// `bytes` zero bytes.
    pub(super) fn zeroed(bytes: u64, device: &Arc<Shared>) -> Result<Self> {
        let out_of_memory = || GpuError::OutOfMemory {
            device: "cpu".into(),
            wanted: bytes,
            available: available_bytes(),
        };
        let len = usize::try_from(bytes).map_err(|_| out_of_memory())?;
        // Linux hands out zero pages it does not have; ask before it has to kill someone.
        if bytes > (1 << 30) && bytes > available_bytes() {
            return Err(out_of_memory());
        }
        // At least one byte, since a layout of size 0 must not be allocated.
        let layout = Layout::from_size_align(len.max(1), ALIGN).map_err(|_| out_of_memory())?;
        // SAFETY: the size of `layout` is not 0.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).ok_or_else(out_of_memory)?;
        Ok(Self { start, layout, len, device: Arc::downgrade(device), packed: None })
    }

    /// A copy of bytes.
    pub(super) fn copied(bytes: &[u8], device: &Arc<Shared>) -> Result<Self> {
        let memory = Self::zeroed(bytes.len() as u64, device)?;
        memory.write(0, bytes)?;
        Ok(memory)
    }

    /// The rows of a weight tensor, packed by `threads` threads.
    pub(super) fn packed_rows(
        tensor: Packed,
        plain: &[u8],
        device: &Arc<Shared>,
        threads: usize,
    ) -> Result<Self> {
        let mut memory = Self::zeroed(plain.len() as u64, device)?;
        memory.packed = Some(tensor);
        // SAFETY: the allocation has `len` bytes, zeroed, and nobody else has it yet.
        let target = unsafe { std::slice::from_raw_parts_mut(memory.start(), memory.len) };
        let group = ROWS * tensor.row_bytes();
        let (target, tail) = target.split_at_mut(tensor.packed_rows() * tensor.row_bytes());
        let (plain, plain_tail) = plain.split_at(target.len());
        tail.copy_from_slice(plain_tail);
        let share =
            (target.len() / group).div_ceil(threads).max(PACK_SHARE.div_ceil(group)) * group;
        std::thread::scope(|scope| {
            let mut shares = plain.chunks(share).zip(target.chunks_mut(share));
            let own = shares.next();
            for (plain, target) in shares {
                scope.spawn(move || tensor.pack(plain, target));
            }
            if let Some((plain, target)) = own {
                tensor.pack(plain, target);
            }
        });
        Ok(memory)
    }

    /// How the bytes are packed, if they are weights.
    pub(super) fn packed(&self) -> Option<Packed> {
        self.packed
    }

    /// Bytes in the buffer.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// First byte, for operands of a lowered dispatch.
    pub(super) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Runs `transfer` while no program of the device runs.
    fn exclusive(&self, transfer: impl FnOnce()) {
        match self.device.upgrade() {
            Some(shared) => shared.pool.exclusive(transfer),
            None => transfer(), // the device is gone, and its programs with it
        }
    }
}

impl DeviceMemory for HostMemory {
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let offset = offset as usize;
        assert!(offset + bytes.len() <= self.len, "checked by Buffer");
        // SAFETY: `offset` is inside the allocation by the assertion.
        let target = unsafe { self.start.as_ptr().add(offset) };
        self.exclusive(|| {
            // SAFETY: `bytes.len()` bytes from `target` are inside the allocation; `bytes` is a live
            // slice of other memory; no program runs while the lock is held.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) }
        });
        Ok(())
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let offset = offset as usize;
        assert!(offset + bytes.len() <= self.len, "checked by Buffer");
        // SAFETY: `offset` is inside the allocation by the assertion.
        let source = unsafe { self.start.as_ptr().add(offset) };
        self.exclusive(|| {
            // SAFETY: `bytes.len()` bytes from `source` are inside the allocation; `bytes` is a live
            // slice of other memory; no program runs while the lock is held.
            unsafe { std::ptr::copy_nonoverlapping(source, bytes.as_mut_ptr(), bytes.len()) }
        });
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // SAFETY: `start` came from `alloc_zeroed` with this layout and is freed once, here.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// Bytes of memory in the machine; 0 where the system does not say.
pub(super) fn system_bytes() -> u64 {
    meminfo("MemTotal:").unwrap_or(0)
}

/// Bytes of memory that can still be had; unlimited where the system does not say.
fn available_bytes() -> u64 {
    meminfo("MemAvailable:").unwrap_or(u64::MAX)
}

fn meminfo(key: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}
