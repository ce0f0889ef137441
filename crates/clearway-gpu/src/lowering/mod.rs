//! From a list to kernels and bindings: what every backend that compiles WGSL does in the same way.
//!
//! A backend says what its memory and its limits are ([`Backend`], [`Piece`]) and turns a [`Lowered`] list into
//! its own commands. All that decides whether a dispatch may run stands here once: contracts, bounds, overlap,
//! alignment, users' kernels, and the proof of the list before anything of it becomes a program.
//!
//! | module | what it does |
//! |---|---|
//! | `encoder` | from dispatches to bindings and kernels; the proof |
//! | `lowered` | the list on its way to the device |
//! | `guard` | users' kernels against the device and their contracts |
//! | `tune` | which variant of a product is the fastest |
//! | `weights` | weight tensors packed into planes, in parts where one binding is too small |
//! | `prefetch` | weights that idle groups read ahead |
//! | `waits` | barriers as counters that workgroups wait for |
//! | `wait_predictor` | when runs will be done |
//! | `cache` | files that are kept on disk |
//! | `parallel` | the same work for many things on all cores |

pub(crate) mod cache;
pub(crate) mod encoder;
pub(crate) mod guard;
pub(crate) mod lowered;
pub(crate) mod parallel;
pub(crate) mod prefetch;
pub(crate) mod tune;
pub(crate) mod wait_predictor;
pub(crate) mod waits;
pub(crate) mod weights;

use std::sync::{Arc, Mutex, PoisonError, Weak};

use clearway_graph::{Layout, TensorView};
use rustc_hash::FxHashMap;

use crate::device::{Buffer, DeviceMemory, Program};
use crate::error::{GpuError, Result};
pub(crate) use crate::wgsl::MAX_BINDINGS;
use crate::wgsl::{Packing, Target, Trust};
use lowered::Lowered;

/// With the counters of a list and its fault word.
pub(crate) const MAX_COUNTED_BINDINGS: usize = MAX_BINDINGS + 2;

/// Where bindings of every device may start: uniform blocks and scratch are cut at multiples of it.
pub(crate) const ALIGN: u64 = 256;

/// Where products are timed to find the fastest variant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tuning {
    /// On devices that are no software.
    #[default]
    Hardware,
    /// On every device.
    Always,
    /// Nowhere: the variant that is expected to be the fastest is taken.
    Never,
    /// Nowhere: this variant is taken, as far as a product has it.
    Variant(u8),
}

/// What a device says to those who lower a list for it.
pub(crate) trait Backend: Send + Sync + Sized + 'static {
    /// Memory behind a buffer.
    type Memory: Piece + Send + Sync + 'static;
    /// Commands on the device.
    type Program: Submitted + 'static;

    /// Name of the device.
    fn name(&self) -> &str;

    /// What kernels may count on.
    fn target(&self) -> &Target;

    /// Alignment of storage bindings.
    fn align(&self) -> u64;

    /// Limits of workgroups.
    fn workgroups(&self) -> Workgroups;

    /// What the texts of this author may use.
    fn capabilities(&self, trust: Trust) -> naga::valid::Capabilities;

    /// Users' kernels that were looked at.
    fn vetted(&self) -> &guard::Vetted;

    /// What is known about the speed of kernels.
    fn tuner(&self) -> &tune::Tuner;

    /// Whether barriers may become counters that workgroups wait for.
    fn counters(self: &Arc<Self>) -> bool {
        false
    }

    /// The memory of a buffer.
    fn memory(&self, buf_id: usize) -> Result<Arc<Self::Memory>>;

    /// Memory that holds anything.
    fn alloc_piece(self: &Arc<Self>, bytes: u64) -> Result<Self::Memory>;

    /// The commands for a list that is proven. `memory` is what its operands lie in.
    fn program(
        self: &Arc<Self>,
        lowered: Lowered<RangeOf<Self>>,
        memory: Vec<Arc<Self::Memory>>,
    ) -> Result<Self::Program>;

    /// Refuses workgroups that the device does not start.
    fn check_groups(&self, kernel: &str, found: [u32; 3]) -> Result<()> {
        let limit = self.workgroups().count;
        if found.iter().zip(limit).all(|(found, limit)| (1..=limit).contains(found)) {
            return Ok(());
        }
        let (kernel, device) = (kernel.to_owned(), self.name().to_owned());
        Err(GpuError::GroupCount { kernel, device, found, limit })
    }
}

/// What a backend binds.
pub(crate) type RangeOf<B> = <<B as Backend>::Memory as Piece>::Range;

/// A program that can be handed over and waited for apart.
pub(crate) trait Submitted: Program {
    /// Hands the work over.
    fn submit(&mut self) -> Result<()>;

    /// Waits for the last submission.
    fn wait(&mut self) -> Result<()>;
}

/// Limits of workgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Workgroups {
    /// Workgroups in each dimension.
    pub(crate) count: [u32; 3],
    /// Invocations in each dimension.
    pub(crate) size: [u32; 3],
    /// Invocations in all.
    pub(crate) invocations: u32,
    /// Bytes of workgroup memory.
    pub(crate) shared_bytes: u32,
}

/// A piece of device memory.
pub(crate) trait Piece: Sized {
    /// Bytes of it that are bound.
    type Range: Bytes + Clone + Send;

    /// Bytes that were asked for.
    fn len(&self) -> u64;

    /// Where it begins in what the device binds.
    fn base(&self) -> u64;

    /// Bytes that can be bound: a little more than were asked for.
    fn bound_len(&self) -> u64;

    /// How block weights lie in it.
    fn packing(&self) -> Packing;

    /// Rows of a tensor that is larger than one binding; the piece itself is empty then.
    fn parts(&self) -> &[RowPart<Self>];

    /// The tensor that was uploaded, where it lies in planes or parts: what a view says about it is the
    /// caller's word only.
    fn tensor(&self) -> Option<Layout>;

    /// `bytes` bytes from `start` on, both counted as [`base`](Self::base) is.
    fn range(&self, start: u64, bytes: u64) -> Self::Range;

    /// All of it.
    fn whole(&self) -> Self::Range {
        self.range(self.base(), self.bound_len())
    }

    /// Whether weights lie in it otherwise than their layout says.
    fn is_packed(&self) -> bool {
        self.packing() == Packing::Planes || !self.parts().is_empty()
    }

    /// Whether a view is exactly the packed tensor. Kernels trust its layout, and the binding is the whole piece.
    fn holds(&self, view: &TensorView) -> bool {
        self.tensor().is_some_and(|tensor| {
            let (found, rows) = (&view.layout, tensor.rows());
            let same = found.dtype() == tensor.dtype() && found.span_bytes() == tensor.span_bytes();
            view.offset == 0 && same && found.is_dense() && found.rows() == rows
        })
    }

    /// Refuses a transfer of bytes that are not there. A buffer of weights that lie in parts has none of its own.
    fn check_transfer(&self, offset: u64, len: usize) -> Result<()> {
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.len() => Ok(()),
            _ if self.parts().is_empty() => Err(GpuError::TransferMismatch {
                what: "transfer",
                found: format!("{len} bytes at byte {offset}"),
                expected: format!("bytes of a buffer of {}", self.len()),
            }),
            _ => Err(GpuError::TransferMismatch {
                what: "packed weights",
                found: format!("a transfer of {len} bytes at byte {offset}"),
                expected: "a device that keeps them in one piece".into(),
            }),
        }
    }
}

/// What is bound has a length.
pub(crate) trait Bytes {
    /// How many bytes there are.
    fn bytes(&self) -> u64;
}

/// Some rows of a weight tensor.
pub(crate) struct RowPart<M> {
    /// Its first row in the tensor.
    pub(crate) first: u32,
    /// How many rows.
    pub(crate) rows: u32,
    pub(crate) memory: Arc<M>,
}

/// Buffers of a device by identity, as long as somebody has them.
pub(crate) type Buffers<M> = Mutex<FxHashMap<usize, Weak<M>>>;

/// Makes a buffer of memory, and remembers the memory. What nobody has any more is forgotten when the table would grow.
pub(crate) fn keep<M: DeviceMemory + 'static>(
    buffers: &Buffers<M>,
    bytes: u64,
    memory: M,
) -> Buffer {
    let memory = Arc::new(memory);
    let buffer = Buffer::new(bytes, memory.clone());
    let mut buffers = buffers.lock().unwrap_or_else(PoisonError::into_inner);
    if buffers.len() == buffers.capacity() {
        buffers.retain(|_, memory| memory.strong_count() > 0);
    }
    buffers.insert(buffer.id(), Arc::downgrade(&memory));
    buffer
}
