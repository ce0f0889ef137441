//! The Vulkan backend: explicit barriers on real GPUs, and on software drivers.
//!
//! A list is proven, lowered to WGSL kernels with exact bindings, and recorded once into a command
//! buffer that is submitted again and again. Barriers stand exactly where the list has them, or counters in their place.
//!
//! | module | what it does |
//! |---|---|
//! | `instance`, `slack` | the loader, devices and what they can do; threads a driver starts |
//! | `handle` | the device itself, destroyed after all that was made from it |
//! | `context`, `counts` | one opened device: queue, clock of finished work, errors, what it did |
//! | `heap`, `memory`, `transfer` | device memory, buffers, copies |
//! | `weights` | weight tensors packed for kernels |
//! | `pipeline`, `guards` | kernels compiled once, in memory and on disk; what the compiler adds to them |
//! | `statistics` | what the driver says of compiled kernels |
//! | `emulate` | cooperative matrices as arrays, for tests |
//! | `spirv` | what the Vulkan memory model asks for, added to naga's words |
//! | `scratch` | memory beside the operands |
//! | `program`, `record` | the recorded commands |
//! | `waits`, `order`, `measured` | counters in place of barriers; whether a device starts workgroups in order; how long they wait |
//!
//! Bindings, checks and the proof of a list are those of `lowering`.

mod context;
mod counts;
mod emulate;
mod guards;
mod handle;
mod heap;
mod instance;
mod measured;
mod memory;
mod order;
mod pipeline;
mod program;
mod record;
mod resident;
mod scratch;
#[cfg(feature = "testkit")]
pub mod shaders;
mod slack;
mod spirv;
mod statistics;
mod transfer;
mod waits;
mod weights;

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use clearway_graph::{FusedRequest, Layout, TensorView};

use crate::device::{Buffer, Device, DeviceInfo, Encoder, HostWork, KernelStatistics};
use crate::error::{GpuError, Result};
use crate::lowering::Backend as _;
use crate::lowering::encoder::ListEncoder;
use crate::registry::KernelRegistry;
use crate::wgsl::{self, listing::WgslTarget};
use context::Context;
use instance::{Adapter, Instance};
use memory::VulkanMemory;

pub use crate::lowering::Tuning;
pub use counts::VulkanCounts;
pub use resident::{Meeting, ResidentChain};

/// How a device is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VulkanOptions {
    /// Load the validation layer with synchronization validation, collect what it says, and name every
    /// dispatch for it and for debuggers.
    pub validate: bool,
    /// Compile kernels with every index and loop guarded.
    pub checks: bool,
    /// Keep compiled kernels on disk.
    pub disk_cache: bool,
    /// Bytes one binding may cover, if less than the device allows.
    pub max_binding: Option<u64>,
    /// Bytes of device memory that are told and given out, if less than the device has.
    pub memory_limit: Option<u64>,
    /// Processors that work is cut for, if not those of the device: kernels for large models are taken for small
    /// ones, too, where there are few.
    pub processors: Option<u32>,
    /// Bytes of weights that idle groups read ahead, if not what suits the device.
    pub read_ahead: Option<u64>,
    /// Whether kernels on cooperative matrices are taken, where the device has them.
    pub matrices: bool,
    /// Where barriers of a list may become counters, if its owner asks for them.
    pub counting: Counting,
    /// Where products are timed to find the fastest variant.
    pub tuning: Tuning,
    /// Whether the driver is asked what it made of each kernel, where it tells; see [`Device::kernel_statistics`].
    pub statistics: bool,
    /// Whether products with block weights take their inputs as floats instead of rounding them to 8 bits:
    /// weights then stay as files have them, which is several times slower.
    pub float_activations: bool,
    /// How long the host waits for the device, if not ten minutes. What a device that took longer may still
    /// use is never freed.
    pub patience: Option<Duration>,
}

/// Where barriers may become counters that workgroups wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Counting {
    /// On devices that are no software and pass a test of it, once for each driver.
    #[default]
    Tested,
    /// Nowhere.
    Never,
    /// On every device, whether the owner of a list asks for them or not: a run may then fail with [`GpuError::Stalled`].
    Always,
    /// For tests: the kernels of `Always`, with barriers between all groups.
    Idle,
    /// For tests: on every device, and every list has a wait that never ends.
    Stalling,
    /// For tests: on every device, and nobody looks at a counter more than twice.
    Impatient,
}

/// Bytes of memory from which on a device takes prompts in long batches.
const LARGE_MEMORY: u64 = 24 << 30;

impl Default for VulkanOptions {
    fn default() -> Self {
        Self {
            validate: false,
            checks: false,
            disk_cache: true,
            max_binding: None,
            memory_limit: None,
            processors: None,
            read_ahead: None,
            matrices: true,
            counting: Counting::default(),
            tuning: Tuning::Hardware,
            statistics: false,
            float_activations: false,
            patience: None,
        }
    }
}

/// A device that could be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VulkanDeviceInfo {
    /// Name the command line uses, such as `vulkan:0`.
    pub name: String,
    /// One line for people: model, driver, memory, what it can do and what fell back.
    pub description: String,
    /// Bytes of device memory.
    pub memory_bytes: u64,
    /// Whether it is a software driver on the CPU.
    pub software: bool,
    /// Whether it can be opened.
    pub usable: bool,
}

/// A GPU, or a software driver.
pub struct VulkanDevice {
    context: Arc<Context>,
}

impl VulkanDevice {
    /// The devices of this machine, in the order `vulkan:N` counts them.
    ///
    /// # Errors
    /// [`GpuError::NoDevice`] where there is no loader or no driver.
    pub fn list() -> Result<Vec<VulkanDeviceInfo>> {
        let instance = Instance::load(VulkanOptions::default())?;
        let adapters = instance.adapters()?;
        Ok(adapters.iter().map(summary).collect())
    }

    /// The best device: a card of its own before an integrated one before software.
    ///
    /// # Errors
    /// [`GpuError::NoDevice`] where there is none; [`GpuError::Unsupported`] if none can be used.
    pub fn open(options: VulkanOptions) -> Result<Self> {
        Self::open_one(options, best)
    }

    /// The best device, with cooperative matrices that are arrays of ordinary invocations: their kernels
    /// then run where no driver has matrices, slowly.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    #[cfg(feature = "testkit")]
    pub fn open_emulating_matrices(options: VulkanOptions) -> Result<Self> {
        Self::open_one(options, |adapters| best(adapters).map(Adapter::emulating_matrices))
    }

    /// Number of kernels compiled so far from a text with these words in it.
    #[cfg(feature = "testkit")]
    pub fn kernels_with(&self, words: &str) -> usize {
        self.context.pipelines.count_with(words)
    }

    /// The device `vulkan:index`.
    ///
    /// # Errors
    /// As [`open`](Self::open); [`GpuError::NoDevice`] names how many there are.
    pub fn open_index(index: usize, options: VulkanOptions) -> Result<Self> {
        Self::open_one(options, |adapters| {
            let count = adapters.len();
            adapters.into_iter().nth(index).ok_or_else(|| {
                no_driver(&format!("there is no device vulkan:{index}, {count} in all"))
            })
        })
    }

    fn open_one(
        options: VulkanOptions,
        choose: impl FnOnce(Vec<Adapter>) -> Result<Adapter>,
    ) -> Result<Self> {
        slack::with_slack(|| {
            let instance = Arc::new(Instance::load(options)?);
            let adapter = choose(instance.adapters()?)?;
            Ok(Self { context: Context::open(instance, adapter)? })
        })
    }

    /// Takes what the validation layer has reported since the last call.
    pub fn take_messages(&self) -> Vec<String> {
        let mut list =
            self.context.instance.messages.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *list)
    }

    /// Number of kernels compiled so far.
    pub fn pipeline_count(&self) -> usize {
        self.context.pipelines.count()
    }

    /// What the host did for the device so far.
    pub fn counts(&self) -> VulkanCounts {
        self.context.counts()
    }

    /// Products that were timed to find the fastest variant, now or in an earlier run.
    pub fn tuned(&self) -> usize {
        self.context.tuner.count()
    }

    /// Bytes of device memory taken from the driver for buffers, used or not.
    pub fn allocated_bytes(&self) -> u64 {
        self.context.heap.bytes()
    }

    /// An encoder that submits its list without proof, for tests of outside race checkers: they must
    /// report a list whose barrier was removed. What such a list computes is anyone's guess.
    #[cfg(feature = "testkit")]
    pub fn unproven_encoder(&self, kernels: &KernelRegistry) -> Box<dyn Encoder> {
        Box::new(ListEncoder::unproven(self.context.clone(), kernels.clone()))
    }

    /// Whether workgroups may wait for counters here, if a list asks for it. Found out when first asked.
    pub fn counts_workgroups(&self) -> bool {
        self.context.counters()
    }

    /// Whether the test that decides this passes now.
    ///
    /// # Errors
    /// What the device reports.
    #[cfg(feature = "testkit")]
    pub fn test_counters(&self) -> Result<bool> {
        order::test(&self.context)
    }

    /// Whether it is a software driver on the CPU.
    pub fn is_software(&self) -> bool {
        self.context.is_software()
    }

    /// Whether weights lie so that kernels of few rows read them. Of tensors that have no memory yet it
    /// is taken that they will be uploaded as weights.
    fn suits(&self, weights: &TensorView) -> bool {
        let quantised = weights.layout.dtype().is_quantised();
        let Ok(memory) = self.context.memory(weights.buf_id) else {
            return !(quantised && self.context.instance.options.float_activations);
        };
        match quantised {
            true => memory.packing == wgsl::Packing::Planes,
            false => weights.offset.is_multiple_of(16),
        }
    }

    fn keep(&self, bytes: u64, memory: VulkanMemory) -> Buffer {
        crate::lowering::keep(&self.context.buffers, bytes, memory)
    }
}

impl Device for VulkanDevice {
    fn info(&self) -> &DeviceInfo {
        &self.context.info
    }

    fn alloc(&self, bytes: u64) -> Result<Buffer> {
        Ok(self.keep(bytes, VulkanMemory::zeroed(&self.context, bytes)?))
    }

    fn free_bytes(&self) -> u64 {
        self.context.heap.free_bytes(&self.context)
    }

    fn alloc_host_visible(&self, bytes: u64) -> Result<Buffer> {
        Ok(self.keep(bytes, VulkanMemory::host_visible(&self.context, bytes)?))
    }

    fn upload_weights(&self, layout: &Layout, bytes: &[u8]) -> Result<Buffer> {
        let memory = weights::upload(&self.context, layout, bytes)?;
        Ok(self.keep(layout.span_bytes(), memory))
    }

    fn multiplies_halves(&self) -> bool {
        self.context.adapter.target.cooperative
    }

    fn quantises_activations(&self) -> bool {
        // Products of few rows with weights in planes do.
        !self.context.instance.options.float_activations
    }

    fn without_counters(&self) -> Option<&'static str> {
        self.context.without_counters()
    }

    fn host_is_far(&self) -> bool {
        true
    }

    fn batch_tokens(&self) -> usize {
        match self.context.adapter.target.cooperative {
            _ if self.is_software() => 64,
            // Products on matrices want tiles for every processor, several times over.
            true if self.info().memory_bytes >= LARGE_MEMORY => 2048,
            _ => 512,
        }
    }

    fn host_work(&self) -> Option<HostWork> {
        let VulkanCounts { recordings, pieces, .. } = self.counts();
        Some(HostWork { encodings: recordings, allocations: pieces })
    }

    fn kernel_statistics(&self) -> Vec<KernelStatistics> {
        let Context { pipelines, tuner, .. } = &*self.context;
        [pipelines.statistics(), tuner.times()].concat()
    }

    fn buffer(&self, buf_id: usize) -> Result<Buffer> {
        let memory = self.context.memory(buf_id)?;
        Ok(Buffer::with_id(buf_id, memory.len, memory))
    }

    fn has_fused(&self, request: &FusedRequest<'_>) -> bool {
        wgsl::has_fused(request, &self.context.adapter.target, &|view| self.suits(view))
    }

    fn wgsl_target(&self) -> Option<WgslTarget> {
        let Context { adapter, instance, tuner, info, .. } = &*self.context;
        Some(WgslTarget {
            name: format!("{}, {}", info.name, info.description),
            target: adapter.target.clone(),
            align: adapter.limits.min_storage_buffer_offset_alignment.max(16),
            planes: !instance.options.float_activations,
            tuned: tuner.variants(),
        })
    }

    fn encoder(&self, kernels: &KernelRegistry) -> Box<dyn Encoder> {
        let mut encoder = ListEncoder::new(self.context.clone(), kernels.clone());
        if matches!(self.context.instance.options.counting, Counting::Always | Counting::Idle) {
            encoder.use_counters();
        }
        Box::new(encoder)
    }
}

/// Processors and bytes of memory of the device with this name, for a backend that does not tell.
#[cfg(feature = "wgpu")]
pub(crate) fn facts_of(name: &str) -> Option<(u32, u64)> {
    let instance = Instance::load(VulkanOptions::default()).ok()?;
    let adapters = instance.adapters().ok()?;
    let adapter = adapters.iter().find(|adapter| adapter.name == name)?;
    Some((adapter.target.processors, adapter.local_bytes()))
}

fn summary(adapter: &Adapter) -> VulkanDeviceInfo {
    VulkanDeviceInfo {
        name: format!("vulkan:{}", adapter.index),
        description: adapter.describe(),
        memory_bytes: adapter.local_bytes(),
        software: adapter.is_software(),
        usable: adapter.missing.is_none(),
    }
}

fn best(mut adapters: Vec<Adapter>) -> Result<Adapter> {
    adapters.sort_by_key(|a| (a.missing.is_some(), a.rank(), a.index));
    adapters.into_iter().next().ok_or_else(|| no_driver("no driver reports a device"))
}

fn no_driver(reason: &str) -> GpuError {
    GpuError::NoDevice { reason: reason.to_owned() }
}
