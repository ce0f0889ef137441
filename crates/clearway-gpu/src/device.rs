//! The surface every backend implements: devices, buffers, encoders, programs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytemuck::Pod;
use clearway_graph::place::SlabRule;
use clearway_graph::{CommandEncoder, DType, FusedRequest, GraphError, Layout, TensorView};

use crate::error::{GpuError, Result};
use crate::profile::{Profile, ProfileMode, WaitProfile};
use crate::registry::KernelRegistry;
use crate::wgsl::listing::WgslTarget;

/// What a device says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Name the command line uses, such as `cpu` or `vulkan:0`.
    pub name: String,
    /// One line for people: model, driver, what it can do.
    pub description: String,
    /// Alignment of values in the arena, in bytes.
    pub arena_align: u64,
    /// Bytes of the largest buffer, and so of a slab of the arena.
    pub max_buffer_bytes: u64,
    /// Which values may share a slab of the arena.
    pub slab_rule: SlabRule,
    /// Bytes of memory in all, as far as the device tells.
    pub memory_bytes: u64,
}

/// Bytes of memory that a device tells where no more than `limit` shall be used. 0 stands for a number that is not known.
pub(crate) fn limited(bytes: u64, limit: Option<u64>) -> u64 {
    match (bytes, limit) {
        (bytes, None) => bytes,
        (0, Some(limit)) => limit,
        (bytes, Some(limit)) => bytes.min(limit),
    }
}

/// What the host did for a device since it was opened. A replayed step adds nothing to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostWork {
    /// Lists of commands written, those of copies included where copies need commands.
    pub encodings: u64,
    /// Pieces of device memory given out.
    pub allocations: u64,
}

/// Time that the host spent for a device since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostTimes {
    /// On writing lists of commands for runs: nothing where they are replayed.
    pub encoding: Duration,
    /// On handing them over.
    pub submission: Duration,
}

/// A device: makes buffers and encoders. Shared by everything that runs on it.
pub trait Device: Send + Sync {
    /// What the device says about itself.
    fn info(&self) -> &DeviceInfo;

    /// Bytes that can still be had, as far as the device tells; 0 where that is not known.
    fn free_bytes(&self) -> u64 {
        self.info().memory_bytes
    }

    /// Memory for `bytes` bytes, filled with zeros.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`].
    fn alloc(&self, bytes: u64) -> Result<Buffer>;

    /// Memory for a few results that the host looks at while later work is under way
    /// ([`Buffer::peek_vec`]), filled with zeros. Kernels write it a little slower than other memory.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`].
    fn alloc_host_visible(&self, bytes: u64) -> Result<Buffer> {
        self.alloc(bytes)
    }

    /// A buffer for one weight tensor, in the order of bytes this device's products read fastest.
    /// `bytes` are rows of `layout` one after another, as model files have them. The buffer is as
    /// long as `layout` says, but only ops that take weights may read it, and only as the whole
    /// tensor; what [`Buffer::read`] gives back is the device's business.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc) and [`Buffer::write`].
    fn upload_weights(&self, layout: &Layout, bytes: &[u8]) -> Result<Buffer> {
        let buffer = self.alloc(layout.span_bytes())?;
        buffer.write(0, bytes)?;
        Ok(buffer)
    }

    /// Whether the device has kernels for weights of this type.
    fn supports_weights(&self, dtype: DType) -> bool {
        dtype != DType::U32
    }

    /// Whether products with block weights round their inputs to 8 bits.
    fn quantises_activations(&self) -> bool {
        false
    }

    /// Whether products of many rows and attention of many tokens round what they multiply to f16.
    fn multiplies_halves(&self) -> bool {
        false
    }

    /// Whether the host between two short steps costs more than a step: then work that follows from
    /// results should stay on the device.
    fn host_is_far(&self) -> bool {
        false
    }

    /// Why barriers of a list do not become counters on this device, whoever asks for it; `None` where they may. Devices that
    /// must be tested for it are tested when first asked.
    fn without_counters(&self) -> Option<&'static str> {
        Some("this backend has no counters")
    }

    /// Whether a row of a step has the same bits whatever other rows the step has.
    fn rows_are_independent(&self) -> bool {
        false
    }

    /// Tokens of a step at most: enough that fetching the weights costs nothing.
    fn batch_tokens(&self) -> usize {
        256
    }

    /// What the host did for the device so far; `None` where it is not counted.
    fn host_work(&self) -> Option<HostWork> {
        None
    }

    /// Time that the host spent so far on encoding and submission; `None` where it is not measured.
    fn host_times(&self) -> Option<HostTimes> {
        None
    }

    /// What the driver says of the kernels compiled so far, where it was asked to and does, and how long variants of products took
    /// that were timed.
    fn kernel_statistics(&self) -> Vec<KernelStatistics> {
        Vec::new()
    }

    /// The buffer of this device with this identity.
    ///
    /// # Errors
    /// [`GpuError::ForeignBuffer`] if this device has none.
    fn buffer(&self, buf_id: usize) -> Result<Buffer>;

    /// Whether the device has a kernel for a fused request.
    fn has_fused(&self, request: &FusedRequest<'_>) -> bool;

    /// What its kernels are made for, where they are WGSL; [`listing`](crate::wgsl::listing) shows them.
    fn wgsl_target(&self) -> Option<WgslTarget> {
        None
    }

    /// A fresh encoder that finds user kernels in `kernels`.
    fn encoder(&self, kernels: &KernelRegistry) -> Box<dyn Encoder>;
}

/// What a driver says of a compiled kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelStatistics {
    /// Name of the first op that needed it.
    pub kernel: String,
    /// Its text.
    pub source: String,
    /// Names and numbers as the driver gives them: registers, bytes of memory, instructions.
    pub values: Vec<(String, f64)>,
}

/// Memory of a device, behind a [`Buffer`].
pub trait DeviceMemory: Send + Sync {
    /// Copies from the host. Ordered before everything committed later.
    ///
    /// # Errors
    /// What the device reports.
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()>;

    /// Copies to the host, after everything committed earlier.
    ///
    /// # Errors
    /// What the device reports.
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()>;

    /// Copies to the host what finished work has left, and waits for nothing where the memory is a
    /// host-visible buffer. Bytes that work under way writes are anyone's guess.
    ///
    /// # Errors
    /// What the device reports.
    fn peek(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.read(offset, bytes)
    }

    /// Where the bytes lie in the memory of this process, where they do and have the order that the host gave them. Whoever
    /// touches them there must see to it that no program of the device runs meanwhile and that this memory still exists.
    fn host_start(&self) -> Option<std::ptr::NonNull<u8>> {
        None
    }

    /// For the backend that made it.
    fn as_any(&self) -> &dyn std::any::Any;
}

/// Memory of a device. Clones share it; it is freed with the last one.
#[derive(Clone)]
pub struct Buffer {
    id: usize,
    len: u64,
    memory: Arc<dyn DeviceMemory>,
}

/// Where encoded work goes on a device. Dispatches name buffers by identity; the encoder finds
/// and keeps them.
pub trait Encoder: CommandEncoder<Error = GpuError> + Send {
    /// Lets barriers of dispatches that come after this call become counters that workgroups wait for, where the device can do
    /// that. Runs may then fail with [`GpuError::Stalled`], and the caller must be able to run them again.
    fn use_counters(&mut self) {}

    /// Waits until everything committed has finished.
    ///
    /// # Errors
    /// What the device reports.
    fn wait(&mut self) -> Result<()>;

    /// Ends encoding without committing: what was written can then be run again and again.
    ///
    /// # Errors
    /// [`GpuError::Unverified`] where the backend proves its list and the proof fails.
    fn into_program(self: Box<Self>) -> Result<Box<dyn Program>>;
}

/// Runs that were handed to a device: see [`Program::start`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ticket {
    /// What the device's clock shows when they are done.
    pub(crate) clock: u64,
    /// Runs of the program handed over until then.
    pub(crate) runs: u64,
}

/// Encoded work that can be run again and again without encoding.
pub trait Program: Send {
    /// Runs it once and waits.
    ///
    /// # Errors
    /// What the device reports.
    fn run(&mut self) -> Result<()>;

    /// Hands over `times` runs, one after another and after those handed over before. A device that
    /// works beside the host returns at once.
    ///
    /// # Errors
    /// What the device reports.
    fn start(&mut self, times: usize) -> Result<Ticket> {
        (0..times).try_for_each(|_| self.run())?;
        Ok(Ticket::default())
    }

    /// Waits for runs of this program that were handed over, and for those before them. Where more were handed over
    /// since, the host may sleep a little longer than they take.
    ///
    /// # Errors
    /// What the device reports.
    fn finish(&mut self, _runs: Ticket) -> Result<()> {
        Ok(())
    }

    /// Runs it `times` times, one after another, and waits for the last.
    ///
    /// # Errors
    /// What the device reports.
    fn run_many(&mut self, times: usize) -> Result<()> {
        let runs = self.start(times)?;
        self.finish(runs)
    }

    /// Runs it once, waits, and says how long its parts took. The memory afterwards is that of
    /// [`run`](Self::run) in both modes.
    ///
    /// # Errors
    /// [`GpuError::ProfileUnsupported`] where the device has no clock; what the device reports.
    fn profile(&mut self, mode: ProfileMode) -> Result<Profile> {
        Err(GpuError::ProfileUnsupported { mode })
    }

    /// Groups whose workgroups wait for the group before them by a counter instead of a barrier.
    fn waiting_groups(&self) -> usize {
        0
    }

    /// Runs it, waits, and says when each dispatch ran beside others and how long its workgroups waited. The memory afterwards
    /// is that of three runs.
    ///
    /// # Errors
    /// [`GpuError::NoWaits`] where nobody waits for counters; what the device reports.
    fn profile_waits(&mut self) -> Result<WaitProfile> {
        Err(GpuError::NoWaits { device: String::new(), reason: "its barriers are no counters" })
    }

    /// Puts barriers where workgroups wait for counters, for good. The kernels stay the same.
    ///
    /// # Errors
    /// What the device reports.
    fn use_barriers(&mut self) -> Result<()> {
        Ok(())
    }
}

/// First identity of device buffers. Those below belong to tensors that a recorder declared
/// without memory.
const FIRST_DEVICE_BUFFER: usize = 1 << 32;
static NEXT_BUFFER: AtomicUsize = AtomicUsize::new(FIRST_DEVICE_BUFFER);

impl Buffer {
    /// Wraps a backend's memory under a new identity, unique in the process.
    pub fn new(len: u64, memory: Arc<dyn DeviceMemory>) -> Self {
        let id = NEXT_BUFFER.fetch_add(1, Ordering::Relaxed);
        Self { id, len, memory }
    }

    /// Wraps a backend's memory under an identity it already has.
    pub fn with_id(id: usize, len: u64, memory: Arc<dyn DeviceMemory>) -> Self {
        Self { id, len, memory }
    }

    /// Identity of the buffer; slices share it.
    pub const fn id(&self) -> usize {
        self.id
    }

    /// Bytes in the buffer.
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether the buffer holds no byte.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The memory, for the backend that made it.
    pub fn memory(&self) -> &Arc<dyn DeviceMemory> {
        &self.memory
    }

    /// A tensor at byte `offset`.
    ///
    /// # Errors
    /// [`GraphError::ViewOutOfBounds`] if it does not fit.
    pub fn view(&self, offset: u64, layout: Layout) -> Result<TensorView> {
        let len = layout.span_bytes();
        match offset.checked_add(len) {
            Some(end) if end <= self.len => {
                Ok(TensorView { buf_id: self.id, buf_len: self.len, offset, layout })
            }
            _ => {
                Err(GraphError::ViewOutOfBounds { buf_id: self.id, offset, len, buf_len: self.len }
                    .into())
            }
        }
    }

    /// A dense tensor that starts at byte 0.
    ///
    /// # Errors
    /// A bad shape, or one that does not fit.
    pub fn tensor(&self, dtype: DType, shape: &[usize]) -> Result<TensorView> {
        self.view(0, Layout::new(dtype, shape)?)
    }

    /// Copies bytes from the host.
    ///
    /// # Errors
    /// [`GpuError::TransferOutOfBounds`], and what the device reports.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.check_transfer(offset, bytes.len() as u64)?;
        self.memory.write(offset, bytes)
    }

    /// Copies bytes to the host.
    ///
    /// # Errors
    /// [`GpuError::TransferOutOfBounds`], and what the device reports.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.check_transfer(offset, bytes.len() as u64)?;
        self.memory.read(offset, bytes)
    }

    /// Copies plain elements from the host to byte `offset`.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn write_slice<T: Pod>(&self, offset: u64, elems: &[T]) -> Result<()> {
        self.write(offset, bytemuck::cast_slice(elems))
    }

    /// Copies `count` plain elements at byte `offset` to the host.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_vec<T: Pod>(&self, offset: u64, count: usize) -> Result<Vec<T>> {
        self.copy_vec(offset, count, |bytes| self.memory.read(offset, bytes))
    }

    /// As [`read_vec`](Self::read_vec), of what finished work has left and without waiting for work
    /// under way where this is a host-visible buffer ([`Device::alloc_host_visible`]).
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn peek_vec<T: Pod>(&self, offset: u64, count: usize) -> Result<Vec<T>> {
        self.copy_vec(offset, count, |bytes| self.memory.peek(offset, bytes))
    }

    fn copy_vec<T: Pod>(
        &self,
        offset: u64,
        count: usize,
        copy: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<Vec<T>> {
        let bytes = (count as u64).saturating_mul(size_of::<T>() as u64);
        self.check_transfer(offset, bytes)?;
        let mut elems = vec![T::zeroed(); count];
        copy(bytemuck::cast_slice_mut(&mut elems))?;
        Ok(elems)
    }

    fn check_transfer(&self, offset: u64, len: u64) -> Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(GpuError::TransferOutOfBounds {
                buf_id: self.id,
                offset,
                len,
                buf_len: self.len,
            }),
        }
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Buffer").field("id", &self.id).field("len", &self.len).finish()
    }
}

/// Uploads host data into a new buffer.
pub trait Upload {
    /// A buffer that holds these elements.
    ///
    /// # Errors
    /// As [`Device::alloc`] and [`Buffer::write`].
    fn upload<T: Pod>(&self, elems: &[T]) -> Result<Buffer>;
}

impl<D: Device + ?Sized> Upload for D {
    fn upload<T: Pod>(&self, elems: &[T]) -> Result<Buffer> {
        let buffer = self.alloc(size_of_val(elems) as u64)?;
        buffer.write_slice(0, elems)?;
        Ok(buffer)
    }
}
