//! The CPU backend: always there, and the oracle for the others.
//!
//! A list is proven, lowered to kernels on workgroup-sized [`Piece`]s, and run by workers that stay
//! resident from the first group to the last: inside a group they claim pieces without joining,
//! between groups they meet at a spinning barrier. In the adversarial mode the pieces of a group
//! run in an order drawn from a seed, so that a schedule that is wrong on any machine is wrong
//! here; or barriers become counters, as on a GPU, and pieces run in any order that those allow.
//!
//! | module | what it does |
//! |---|---|
//! | `memory` | buffers, and the lock that keeps transfers apart from runs |
//! | `piece` | what a kernel sees: operands, and the part of the outputs that is its own |
//! | `kernels` | an implementation of every op |
//! | `simd` | weights in row blocks, and vector instructions |
//! | `program` | the lowered list |
//! | `pool`, `barrier` | the workers and where they meet |
//! | `profile` | time stamps at those barriers |

mod barrier;
mod group;
mod joint;
mod kernels;
mod memory;
mod piece;
mod pool;
mod profile;
mod program;
mod simd;

pub use barrier::SpinBarrier;
pub use piece::{CpuKernel, Grid, Piece};

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use clearway_graph::place::SlabRule;
use clearway_graph::{FusedRequest, Layout};
use rustc_hash::FxHashMap;

use crate::device::{Buffer, Device, DeviceInfo, Encoder, HostWork, limited};
use crate::error::{GpuError, Result};
use crate::registry::KernelRegistry;
pub(crate) use memory::system_bytes;
use memory::{HostMemory, WeightMemory};
use pool::Pool;
use simd::packed::Packed;

/// Alignment of buffers and of values in the arena: a cache line, and any vector load.
pub const ALIGN: usize = 64;

/// How the CPU is used.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuOptions {
    /// Workers, the calling thread included; all cores where it is `None`.
    pub threads: Option<usize>,
    /// Whether products with block weights take their inputs as floats instead of rounding them to 8 bits:
    /// several times slower, and closer to what the weights say.
    pub float_activations: bool,
    /// Bytes of memory that are told, if less than the machine has: models are laid out by it.
    pub memory_limit: Option<u64>,
}

/// The CPU as a device.
pub struct CpuDevice {
    shared: Arc<Shared>,
}

/// What an adversarial device draws from its seed.
#[derive(Clone, Copy, Debug)]
enum Order {
    /// The order of pieces within a group.
    WithinGroups { seed: u64 },
    /// The order of all pieces, as far as counters in place of barriers allow.
    Counters { seed: u64 },
}

/// What buffers, encoders and programs of one device share.
pub(crate) struct Shared {
    info: DeviceInfo,
    pool: Pool,
    /// Buffers alive, by identity.
    buffers: Mutex<FxHashMap<usize, Weak<HostMemory>>>,
    weights: WeightMemory,
    adversary: Option<Order>,
    float_activations: bool,
    /// Lists lowered and buffers given out.
    encodings: AtomicU64,
    allocations: AtomicU64,
}

impl CpuDevice {
    /// A device that uses every core.
    pub fn new() -> Self {
        Self::with_options(CpuOptions::default())
    }

    /// A device with this many workers, the calling thread included.
    pub fn with_threads(threads: usize) -> Self {
        Self::with_options(CpuOptions { threads: Some(threads), ..CpuOptions::default() })
    }

    /// A device with these options.
    pub fn with_options(options: CpuOptions) -> Self {
        Self::build(options, None)
    }

    /// A device that runs any legal interleaving of each group, drawn from `seed`.
    pub fn adversarial(threads: usize, seed: u64) -> Self {
        let options = CpuOptions { threads: Some(threads), ..CpuOptions::default() };
        Self::build(options, Some(Order::WithinGroups { seed }))
    }

    /// A device that waits for counters instead of barriers where a GPU might, and runs any order that they allow, drawn from
    /// `seed`. One thread does it all.
    pub fn adversarial_with_counters(seed: u64) -> Self {
        let options = CpuOptions { threads: Some(1), ..CpuOptions::default() };
        Self::build(options, Some(Order::Counters { seed }))
    }

    fn build(options: CpuOptions, adversary: Option<Order>) -> Self {
        let CpuOptions { threads, float_activations, memory_limit } = options;
        let cores = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let threads = threads.unwrap_or_else(cores).max(1);
        let memory_bytes = limited(system_bytes(), memory_limit);
        let order = if adversary.is_some() { ", adversarial order" } else { "" };
        let float = if float_activations { ", float activations" } else { "" };
        let info = DeviceInfo {
            name: "cpu".into(),
            description: format!("{threads} threads, {}{float}{order}", simd::ISA.name()),
            arena_align: ALIGN as u64,
            max_buffer_bytes: isize::MAX as u64,
            slab_rule: SlabRule::Any,
            memory_bytes,
        };
        let pool = Pool::new(threads);
        let (buffers, weights) = (Mutex::default(), WeightMemory::default());
        let (encodings, allocations) = (AtomicU64::new(0), AtomicU64::new(0));
        let shared = Shared {
            info,
            pool,
            buffers,
            weights,
            adversary,
            float_activations,
            encodings,
            allocations,
        };
        Self { shared: Arc::new(shared) }
    }
}

impl Default for CpuDevice {
    fn default() -> Self {
        Self::new()
    }
}

impl Device for CpuDevice {
    fn info(&self) -> &DeviceInfo {
        &self.shared.info
    }

    fn rows_are_independent(&self) -> bool {
        true
    }

    fn alloc(&self, bytes: u64) -> Result<Buffer> {
        Ok(self.shared.keep(HostMemory::zeroed(bytes, &self.shared)?))
    }

    fn upload_weights(&self, layout: &Layout, bytes: &[u8]) -> Result<Buffer> {
        let wanted = layout.span_bytes();
        if bytes.len() as u64 != wanted {
            return Err(GpuError::TransferMismatch {
                what: "bytes of a weight tensor",
                found: bytes.len().to_string(),
                expected: wanted.to_string(),
            });
        }
        let memory = match Packed::of(layout) {
            Some(tensor) => {
                let threads = self.shared.pool.threads();
                HostMemory::packed_rows(tensor, bytes, &self.shared, threads)?
            }
            None => HostMemory::copied(bytes, &self.shared)?,
        };
        Ok(self.shared.keep(memory))
    }

    fn quantises_activations(&self) -> bool {
        !self.shared.float_activations
    }

    fn host_work(&self) -> Option<HostWork> {
        let [encodings, allocations] = [&self.shared.encodings, &self.shared.allocations]
            .map(|count| count.load(Ordering::Relaxed));
        Some(HostWork { encodings, allocations })
    }

    fn buffer(&self, buf_id: usize) -> Result<Buffer> {
        let memory = self.shared.memory(buf_id)?;
        Ok(Buffer::with_id(buf_id, memory.len() as u64, memory))
    }

    fn has_fused(&self, request: &FusedRequest<'_>) -> bool {
        let rounded = request.bindings.iter().any(|view| view.layout.dtype().is_form());
        !rounded && kernels::builtin(request.kind, self.shared.float_activations).is_some()
    }

    fn encoder(&self, kernels: &KernelRegistry) -> Box<dyn Encoder> {
        Box::new(program::CpuEncoder::new(self.shared.clone(), kernels.clone()))
    }
}

impl Shared {
    /// Gives memory an identity, under which encoders find it.
    fn keep(&self, memory: HostMemory) -> Buffer {
        self.allocations.fetch_add(1, Ordering::Relaxed);
        let memory = Arc::new(memory);
        let buffer = Buffer::new(memory.len() as u64, memory.clone());
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        if buffers.len() == buffers.capacity() {
            buffers.retain(|_, memory| memory.strong_count() > 0);
        }
        buffers.insert(buffer.id(), Arc::downgrade(&memory));
        buffer
    }

    fn memory(&self, buf_id: usize) -> Result<Arc<HostMemory>> {
        let buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        buffers
            .get(&buf_id)
            .and_then(Weak::upgrade)
            .ok_or_else(|| GpuError::ForeignBuffer { buf_id, device: self.info.name.clone() })
    }
}
