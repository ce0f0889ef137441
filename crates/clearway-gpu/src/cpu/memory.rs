//! Buffers in host memory.
//!
//! Kernels reach the bytes through raw pointers while a program runs. A program and every transfer from
//! and to the host hold the device's [`RunLock`], so at most one of them touches the bytes at a time. A
//! buffer has the lock itself: it may outlive the device, and its clones may be used by many threads.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use memmap2::MmapMut;

use super::pool::RunLock;
use super::simd::packed::{Packed, ROWS};
use super::{ALIGN, Shared};
use crate::device::DeviceMemory;
use crate::error::{GpuError, Result};

/// Bytes that are worth a thread to pack them.
const PACK_SHARE: usize = 256 << 10;

/// Bytes from which on a buffer has pages of its own.
const FEWEST_PAGES: usize = 128 << 10;

/// Bytes mapped at a time for weights: many of the largest pages there are.
const WEIGHT_CHUNK: usize = 32 << 20;

/// Memory of a machine on which caches and values have large pages, too. A cache of which little is used yet takes up to one
/// large page for each of its tensors then, 120 MiB for a model of 30 layers.
const PLENTY: u64 = 8_000_000_000;

/// Bytes of a buffer. Freed when the last handle and the last program that uses it are gone.
pub(super) struct HostMemory {
    start: NonNull<u8>,
    len: usize,
    /// Held by whoever touches the bytes.
    lock: Arc<RunLock>,
    /// How the bytes are packed, if they are weights.
    packed: Option<Packed>,
    /// Keeps the bytes.
    _chunk: Arc<Chunk>,
}

/// Memory of a buffer, or of several.
struct Chunk {
    start: NonNull<u8>,
    len: usize,
    bytes: Bytes,
}

enum Bytes {
    /// From the heap, for small buffers.
    Lines(Vec<Line>),
    /// Straight from the system: zeros that take no memory before they are touched.
    Pages(MmapMut),
}

/// What buffers start at a multiple of.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[allow(dead_code)] [u8; ALIGN]);

// SAFETY: the pointer is to plain bytes that `_chunk` owns, and nothing about them belongs to a thread.
// `write` and `read` touch them under the run lock; the encoder hands the pointer to steps of a program
// only, which `Pool::run_observed` runs under the same lock.
unsafe impl Send for HostMemory {}
// SAFETY: through `&HostMemory` the bytes are reached by `write`, `read` and programs only. Each of them
// holds the run lock meanwhile, so no two threads touch the bytes at a time but the workers of one
// program, and those are kept apart by the proof of its list (`CpuEncoder::take_program`).
unsafe impl Sync for HostMemory {}
// SAFETY: the pointer is to the bytes that the chunk owns in `bytes`, and nothing about them belongs to a
// thread.
unsafe impl Send for Chunk {}
// SAFETY: no method of `&Chunk` follows the pointer. `HostMemory` does, for a part of the bytes that is
// its own: `for_weights` gives no byte of a chunk out twice.
unsafe impl Sync for Chunk {}

/// Where the next weights go: a chunk of large pages that many tensors share, since a tensor alone
/// seldom fills one, and reading weights through small pages takes twice as long.
#[derive(Default)]
pub(super) struct WeightMemory {
    /// The chunk in use and how much of it is taken.
    current: Mutex<Option<(Arc<Chunk>, usize)>>,
}

impl Chunk {
    /// `len` zero bytes.
    fn new(len: usize) -> Result<Arc<Self>> {
        let out_of_memory = || GpuError::OutOfMemory {
            device: "cpu".into(),
            wanted: len as u64,
            available: available_bytes(),
        };
        // Linux hands out zero pages it does not have; ask before it has to kill someone.
        if len as u64 > (1 << 30) && len as u64 > available_bytes() {
            return Err(out_of_memory());
        }
        let mut bytes = if len < FEWEST_PAGES {
            Bytes::Lines(vec![Line([0; ALIGN]); len.div_ceil(ALIGN).max(1)])
        } else {
            Bytes::Pages(MmapMut::map_anon(len).map_err(|_| out_of_memory())?)
        };
        let start = match &mut bytes {
            Bytes::Lines(lines) => lines.as_mut_ptr().cast(),
            Bytes::Pages(map) => map.as_mut_ptr(),
        };
        let start = NonNull::new(start).ok_or_else(out_of_memory)?;
        Ok(Arc::new(Self { start, len, bytes }))
    }

    /// The same in large pages, where the system has them.
    fn new_large(len: usize) -> Result<Arc<Self>> {
        let chunk = Self::new(len)?;
        #[cfg(target_os = "linux")]
        if let Bytes::Pages(map) = &chunk.bytes {
            // A refusal costs speed and nothing else.
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        Ok(chunk)
    }
}

impl HostMemory {
    /// `bytes` zero bytes.
    pub(super) fn zeroed(bytes: u64, device: &Arc<Shared>) -> Result<Self> {
        let len = usize::try_from(bytes).map_err(|_| GpuError::OutOfMemory {
            device: "cpu".into(),
            wanted: bytes,
            available: available_bytes(),
        })?;
        let chunk = match device.info.memory_bytes >= PLENTY {
            true => Chunk::new_large(len)?,
            false => Chunk::new(len)?,
        };
        let lock = device.pool.lock().clone();
        Ok(Self { start: chunk.start, len, lock, packed: None, _chunk: chunk })
    }

    /// `len` zero bytes next to other weights.
    fn for_weights(len: usize, device: &Arc<Shared>) -> Result<Self> {
        let current = &device.weights.current;
        let mut current = current.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |chunk: &Chunk, used: usize| len <= chunk.len - used;
        let (chunk, used) = match current.take() {
            Some((chunk, used)) if fits(&chunk, used) => (chunk, used),
            _ => (Chunk::new_large(len.max(WEIGHT_CHUNK))?, 0),
        };
        // SAFETY: `used` is inside the chunk or its end: `fits` has seen that `len` more bytes follow it,
        // and a chunk that is new has at least `len` bytes from 0 on.
        let start = unsafe { chunk.start.add(used) };
        let used = (used + len).next_multiple_of(ALIGN).min(chunk.len);
        *current = Some((chunk.clone(), used));
        let lock = device.pool.lock().clone();
        Ok(Self { start, len, lock, packed: None, _chunk: chunk })
    }

    /// A copy of a weight tensor.
    pub(super) fn copied(bytes: &[u8], device: &Arc<Shared>) -> Result<Self> {
        let memory = Self::for_weights(bytes.len(), device)?;
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
        let mut memory = Self::for_weights(plain.len(), device)?;
        memory.packed = Some(tensor);
        // SAFETY: `for_weights` gave `memory` these `len` bytes, zeroed, for itself alone, and `memory` is
        // still a local of this function: nobody else can reach them.
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

    /// Where `len` bytes from `offset` on start.
    fn window(&self, offset: u64, len: usize) -> Result<*mut u8> {
        let start = usize::try_from(offset).ok();
        let end = start.and_then(|start| start.checked_add(len));
        match (start, end) {
            (Some(start), Some(end)) if end <= self.len => {
                // SAFETY: the arm has seen that `start` is inside the allocation or its end.
                Ok(unsafe { self.start.as_ptr().add(start) })
            }
            _ => Err(GpuError::TransferMismatch {
                what: "transfer",
                found: format!("{len} bytes at byte {offset}"),
                expected: format!("bytes of a buffer of {}", self.len),
            }),
        }
    }
}

impl DeviceMemory for HostMemory {
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let target = self.window(offset, bytes.len())?;
        self.lock.exclusive(|| {
            // SAFETY: `window` has seen that `bytes.len()` bytes from `target` are inside the allocation.
            // Nobody else touches them, since all who do hold the lock. `bytes` is other memory: a
            // slice of a buffer exists only while a program of its device runs, and that holds the lock.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) }
        })
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let source = self.window(offset, bytes.len())?;
        self.lock.exclusive(|| {
            // SAFETY: `window` has seen that `bytes.len()` bytes from `source` are inside the allocation.
            // Nobody writes them, since all who touch them hold the lock. `bytes` is other memory: a
            // slice of a buffer exists only while a program of its device runs, and that holds the lock.
            unsafe { std::ptr::copy_nonoverlapping(source, bytes.as_mut_ptr(), bytes.len()) }
        })
    }

    fn host_start(&self) -> Option<NonNull<u8>> {
        self.packed.is_none().then_some(self.start)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Bytes of memory in the machine; 0 where the system does not say.
pub(crate) fn system_bytes() -> u64 {
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

#[cfg(test)]
mod tests {
    use clearway_graph::{DType, Layout};

    use crate::cpu::CpuDevice;
    use crate::device::Device;

    #[test]
    fn the_host_sees_what_has_the_order_it_was_given_in() {
        let device = CpuDevice::with_threads(1);
        assert!(device.alloc(64).unwrap().memory().host_start().is_some());
        let layout = Layout::new(DType::Q4_K, &[64, 256]).unwrap();
        let bytes = vec![0; layout.span_bytes() as usize];
        let packed = device.upload_weights(&layout, &bytes).unwrap();
        assert_eq!(packed.memory().host_start(), None, "rows of weights are packed");
    }
}
