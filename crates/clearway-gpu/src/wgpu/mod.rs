//! The wgpu backend: the same kernels on Metal, DX12 and Vulkan.
//!
//! wgpu follows whole buffers and puts its own barriers between dispatches, so an arena is spread over several buffers
//! ([`SlabRule::GroupsApart`](clearway_graph::place::SlabRule::GroupsApart)), and
//! [`tracked_barriers`](clearway_graph::tracked_barriers) says how many barriers that leaves. Its command buffers
//! are used up by a submission: every run is encoded anew, several to a submission.
//!
//! | module | what it does |
//! |---|---|
//! | `instance` | adapters, what they can do, which one is preferred |
//! | `context` | one opened device: queue, clock of finished work, errors |
//! | `memory`, `transfer`, `host_visible` | buffers and copies |
//! | `weights` | weight tensors packed for kernels |
//! | `pipeline` | kernels compiled once |
//! | `program`, `profile` | bind groups, encoding, time stamps |
//!
//! Bindings, checks and the proof of a list are those of `lowering`.

mod context;
mod host_visible;
mod instance;
mod memory;
mod pipeline;
mod profile;
mod program;
#[cfg(feature = "testkit")]
pub mod shaders;
mod transfer;
mod weights;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clearway_graph::{FusedRequest, Layout, TensorView};

use crate::device::{Buffer, Device, DeviceInfo, Encoder, HostTimes, HostWork};
use crate::error::Result;
use crate::lowering::encoder::ListEncoder;
use crate::lowering::{Backend as _, Piece as _};
use crate::registry::KernelRegistry;
use crate::wgsl::{self, listing::WgslTarget};
use context::Context;
use instance::Adapter;
use memory::WgpuMemory;

pub use crate::lowering::Tuning;
pub use instance::{AdapterKind, Api, Facts};

/// How a device is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WgpuOptions {
    /// Let wgpu load the validation layers of its backend.
    pub validate: bool,
    /// Compile kernels with every index and loop guarded.
    pub checks: bool,
    /// Keep what was measured on disk.
    pub disk_cache: bool,
    /// Use subgroups where the adapter has them and their size is known.
    pub subgroups: bool,
    /// Use f16 in kernels where the adapter has it.
    pub halves: bool,
    /// Let workgroups leave results for one another where the adapter promises that they see them.
    pub tickets: bool,
    /// Bytes one binding may cover, if less than the device allows.
    pub max_binding: Option<u64>,
    /// Bytes of memory that are told, if less than the device has: models are laid out by it.
    pub memory_limit: Option<u64>,
    /// Processors that work is cut for; wgpu does not tell how many a device has.
    pub processors: Option<u32>,
    /// Where products are timed to find the fastest variant.
    pub tuning: Tuning,
    /// Whether products with block weights take their inputs as floats instead of rounding them to 8 bits.
    pub float_activations: bool,
    /// How long the host waits for the device, if not ten minutes.
    pub patience: Option<Duration>,
}

impl Default for WgpuOptions {
    fn default() -> Self {
        Self {
            validate: false,
            checks: false,
            disk_cache: true,
            subgroups: true,
            halves: true,
            tickets: true,
            max_binding: None,
            memory_limit: None,
            processors: None,
            tuning: Tuning::Hardware,
            float_activations: false,
            patience: None,
        }
    }
}

/// A device that could be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WgpuDeviceInfo {
    /// Name the command line uses, such as `wgpu:0`.
    pub name: String,
    /// One line for people: model, interface, driver, what fell back.
    pub description: String,
    /// What decides whether it is preferred.
    pub facts: Facts,
    /// Whether it can be opened.
    pub usable: bool,
}

/// What the host did for a device so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WgpuCounts {
    /// Submissions, those of copies included.
    pub submissions: u64,
    /// Command buffers encoded for runs of programs.
    pub encodings: u64,
    /// Buffers made.
    pub allocations: u64,
    /// Bind groups made.
    pub bind_groups: u64,
}

/// A GPU, or a software driver, behind wgpu.
pub struct WgpuDevice {
    context: Arc<Context>,
}

impl WgpuDevice {
    /// The adapters of this machine, in the order `wgpu:N` counts them.
    pub fn list() -> Vec<WgpuDeviceInfo> {
        let adapters = instance::adapters(&WgpuOptions::default());
        adapters.iter().map(summary).collect()
    }

    /// The best adapter: a card of its own before an integrated one before software.
    ///
    /// # Errors
    /// [`GpuError::NoAdapter`](crate::GpuError::NoAdapter) where there is none;
    /// [`GpuError::Unsupported`](crate::GpuError::Unsupported) if none can be used.
    pub fn open(options: WgpuOptions) -> Result<Self> {
        let adapter = instance::best(instance::adapters(&options))?;
        Ok(Self { context: Context::open(adapter, options)? })
    }

    /// The adapter `wgpu:index`.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_index(index: usize, options: WgpuOptions) -> Result<Self> {
        let adapters = instance::adapters(&options);
        let count = adapters.len();
        let adapter = adapters.into_iter().nth(index).ok_or_else(|| {
            instance::no_adapter(&format!("there is no adapter wgpu:{index}, {count} in all"))
        })?;
        Ok(Self { context: Context::open(adapter, options)? })
    }

    /// What decides whether it is preferred.
    pub fn facts(&self) -> &Facts {
        &self.context.adapter.facts
    }

    /// Whether it is a software driver on the CPU.
    pub fn is_software(&self) -> bool {
        self.context.adapter.is_software()
    }

    /// Number of kernels compiled so far.
    pub fn pipeline_count(&self) -> usize {
        self.context.pipelines.count()
    }

    /// Products that were timed to find the fastest variant, now or in an earlier run.
    pub fn tuned(&self) -> usize {
        self.context.tuner.count()
    }

    /// What the host did for the device so far.
    pub fn counts(&self) -> WgpuCounts {
        let counters = &self.context.counters;
        WgpuCounts {
            submissions: self.context.handed_over(),
            encodings: counters.encodings.load(Ordering::Relaxed),
            allocations: counters.allocations.load(Ordering::Relaxed),
            bind_groups: counters.bind_groups.load(Ordering::Relaxed),
        }
    }

    /// Ends the device as a driver that fails does: everything after it is an error.
    #[cfg(feature = "testkit")]
    pub fn lose(&self) {
        self.context.device.destroy();
        let _ = self.context.poll(wgpu::PollType::Poll);
    }

    /// Whether weights lie so that kernels of few rows read them. Of tensors that have no memory yet it
    /// is taken that they will be uploaded as weights.
    fn suits(&self, weights: &TensorView) -> bool {
        let quantised = weights.layout.dtype().is_quantised();
        let Ok(memory) = self.context.memory(weights.buf_id) else {
            return !quantised || packs_weights(&self.context);
        };
        match quantised {
            true => memory.packing() == wgsl::Packing::Planes,
            false => weights.offset.is_multiple_of(16),
        }
    }

    fn keep(&self, bytes: u64, memory: WgpuMemory) -> Buffer {
        crate::lowering::keep(&self.context.buffers, bytes, memory)
    }
}

impl Device for WgpuDevice {
    fn info(&self) -> &DeviceInfo {
        &self.context.info
    }

    fn alloc(&self, bytes: u64) -> Result<Buffer> {
        Ok(self.keep(bytes, WgpuMemory::new(&self.context, bytes)?))
    }

    fn alloc_host_visible(&self, bytes: u64) -> Result<Buffer> {
        Ok(self.keep(bytes, WgpuMemory::host_visible(&self.context, bytes)?))
    }

    fn upload_weights(&self, layout: &Layout, bytes: &[u8]) -> Result<Buffer> {
        let memory = weights::upload(&self.context, layout, bytes)?;
        Ok(self.keep(layout.span_bytes(), memory))
    }

    fn quantises_activations(&self) -> bool {
        packs_weights(&self.context)
    }

    fn host_is_far(&self) -> bool {
        true
    }

    fn batch_tokens(&self) -> usize {
        if self.is_software() { 64 } else { 512 }
    }

    fn host_work(&self) -> Option<HostWork> {
        let WgpuCounts { encodings, allocations, .. } = self.counts();
        Some(HostWork { encodings, allocations })
    }

    fn host_times(&self) -> Option<HostTimes> {
        let counters = &self.context.counters;
        let [encoding, submission] = [&counters.encoding, &counters.submission]
            .map(|ns| Duration::from_nanos(ns.load(Ordering::Relaxed)));
        Some(HostTimes { encoding, submission })
    }

    fn buffer(&self, buf_id: usize) -> Result<Buffer> {
        let memory = self.context.memory(buf_id)?;
        Ok(Buffer::with_id(buf_id, memory.len(), memory))
    }

    fn has_fused(&self, request: &FusedRequest<'_>) -> bool {
        wgsl::has_fused(request, &self.context.adapter.target, &|view| self.suits(view))
    }

    fn wgsl_target(&self) -> Option<WgslTarget> {
        let Context { adapter, tuner, info, .. } = &*self.context;
        Some(WgslTarget {
            name: format!("{}, {}", info.name, info.description),
            target: adapter.target.clone(),
            align: self.context.align(),
            planes: packs_weights(&self.context),
            tuned: tuner.variants(),
        })
    }

    fn encoder(&self, kernels: &KernelRegistry) -> Box<dyn Encoder> {
        Box::new(ListEncoder::new(self.context.clone(), kernels.clone()))
    }
}

/// Subgroups that the kernels for packed weights need at least.
const LEAST_SUBGROUP: u32 = 8;

/// Whether block weights are packed into planes: all kernels that read them round activations and need subgroups.
fn packs_weights(context: &Context) -> bool {
    !context.options.float_activations && context.adapter.target.subgroup >= LEAST_SUBGROUP
}

/// Bytes of memory, 0 where they are not known: wgpu does not tell. Memory that is shared with the host is the host's.
fn memory_bytes(adapter: &Adapter, told: Option<u64>) -> u64 {
    match adapter.facts.kind {
        AdapterKind::Software | AdapterKind::Integrated => crate::cpu::system_bytes(),
        AdapterKind::Discrete | AdapterKind::Other => told.unwrap_or(0),
    }
}

/// Processors and bytes of memory that Vulkan tells of a card which wgpu drives with it.
#[cfg(feature = "vulkan")]
fn told_by_vulkan(facts: &Facts) -> Option<(u32, u64)> {
    let card = facts.backend == Api::Vulkan && facts.kind == AdapterKind::Discrete;
    card.then(|| crate::vulkan::facts_of(&facts.name)).flatten()
}

#[cfg(not(feature = "vulkan"))]
fn told_by_vulkan(_: &Facts) -> Option<(u32, u64)> {
    None
}

fn summary(adapter: &Adapter) -> WgpuDeviceInfo {
    WgpuDeviceInfo {
        name: format!("wgpu:{}", adapter.index),
        description: adapter.describe(),
        facts: adapter.facts.clone(),
        usable: adapter.missing.is_none(),
    }
}
