//! Adapters: what wgpu finds on this machine, what each can do, and which one is preferred.

use std::future::Future;
use std::pin::pin;
use std::task::{Context as TaskContext, Poll, Waker};

use wgpu::{Backend, Backends, DeviceType, Features, InstanceDescriptor, InstanceFlags};

use super::WgpuOptions;
use crate::error::{GpuError, Result};
use crate::lowering::MAX_BINDINGS;
use crate::wgsl::Target;

/// What kernels are made with where an adapter has it.
const WANTED: Features = Features::SUBGROUP
    .union(Features::SHADER_F16)
    .union(Features::TIMESTAMP_QUERY)
    .union(Features::MEMORY_DECORATION_COHERENT);

/// Processors of a card that does not tell: only how work is cut depends on it.
const PROCESSORS: u32 = 64;

/// Invocations of a subgroup of every GPU of Apple; Metal reports a range that covers all its devices.
const APPLE_SUBGROUP: u32 = 32;
const APPLE: u32 = 0x106b;

/// A device that wgpu found.
#[derive(Clone)]
pub(super) struct Adapter {
    pub(super) raw: wgpu::Adapter,
    pub(super) index: usize,
    pub(super) facts: Facts,
    pub(super) features: Features,
    pub(super) limits: wgpu::Limits,
    pub(super) target: Target,
    /// What it lacks to be used at all.
    pub(super) missing: Option<&'static str>,
    pub(super) notes: Vec<String>,
}

/// What decides which adapter is preferred.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Name of the device.
    pub name: String,
    /// What drives it.
    pub backend: Api,
    /// What kind of device it is.
    pub kind: AdapterKind,
    /// Name of the driver.
    pub driver: String,
}

/// What wgpu drives a device with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// Metal.
    Metal,
    /// DirectX 12.
    Dx12,
    /// Vulkan.
    Vulkan,
    /// OpenGL, which this build does not ask for.
    Gl,
    /// Something else.
    Other,
}

impl std::fmt::Display for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Metal => "Metal",
            Self::Dx12 => "DX12",
            Self::Vulkan => "Vulkan",
            Self::Gl => "GL",
            Self::Other => "an unknown interface",
        })
    }
}

/// What kind of device an adapter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdapterKind {
    /// A card with memory of its own.
    Discrete,
    /// A part of the processor.
    Integrated,
    /// A device that is shared or not known.
    Other,
    /// A driver that computes on the CPU.
    Software,
}

impl Facts {
    /// Smaller is better; `None` where the CPU backend is better.
    pub fn rank(&self) -> Option<u8> {
        match (self.backend, self.kind) {
            (Api::Gl | Api::Other, _) | (_, AdapterKind::Software) => None,
            (_, AdapterKind::Discrete) => Some(0),
            (_, AdapterKind::Integrated) => Some(1),
            (_, AdapterKind::Other) => Some(2),
        }
    }
}

/// The interfaces that are asked for. GL has no place for our kernels.
fn backends() -> Backends {
    Backends::VULKAN | Backends::METAL | Backends::DX12
}

/// The adapters of this machine, in wgpu's order.
pub(super) fn adapters(options: &WgpuOptions) -> Vec<Adapter> {
    let flags = match options.validate {
        true => InstanceFlags::VALIDATION | InstanceFlags::DEBUG,
        false => InstanceFlags::empty(),
    };
    let description = InstanceDescriptor {
        backends: backends(),
        flags,
        ..InstanceDescriptor::new_without_display_handle()
    };
    let instance = wgpu::Instance::new(description);
    let found = now(instance.enumerate_adapters(backends())).unwrap_or_default();
    let describe = |(index, raw): (usize, wgpu::Adapter)| describe(index, raw, options);
    found.into_iter().enumerate().map(describe).collect()
}

fn describe(index: usize, raw: wgpu::Adapter, options: &WgpuOptions) -> Adapter {
    let info = raw.get_info();
    let limits = raw.limits();
    let mut features = raw.features() & WANTED;
    let mut notes = Vec::new();
    let backend = match info.backend {
        Backend::Metal => Api::Metal,
        Backend::Dx12 => Api::Dx12,
        Backend::Vulkan => Api::Vulkan,
        Backend::Gl => Api::Gl,
        _ => Api::Other,
    };
    let kind = match info.device_type {
        DeviceType::DiscreteGpu => AdapterKind::Discrete,
        DeviceType::IntegratedGpu => AdapterKind::Integrated,
        DeviceType::Cpu => AdapterKind::Software,
        _ => AdapterKind::Other,
    };
    let software = kind == AdapterKind::Software;
    if !options.halves {
        features.remove(Features::SHADER_F16);
    }
    if !options.tickets || backend != Api::Vulkan {
        // Only Vulkan's memory model promises that a workgroup sees what another left before its ticket.
        features.remove(Features::MEMORY_DECORATION_COHERENT);
    }
    let apple = backend == Api::Metal && (info.vendor == APPLE || info.name.starts_with("Apple"));
    let size = match (info.subgroup_min_size, info.subgroup_max_size) {
        _ if apple => Some(APPLE_SUBGROUP),
        (least, most) if least == most => Some(least),
        _ => None,
    };
    let size = size.filter(|_| features.contains(Features::SUBGROUP) && options.subgroups);
    if size.is_none() {
        // Who leaves results for others joins them with shuffles first.
        features.remove(Features::SUBGROUP | Features::MEMORY_DECORATION_COHERENT);
        notes.push("no subgroups of one size: kernels do without".to_owned());
    }
    if !features.contains(Features::SHADER_F16) {
        notes.push("no f16 in kernels: it is read and written as bits".to_owned());
    }
    if !features.contains(Features::MEMORY_DECORATION_COHERENT) {
        notes.push("workgroups leave nothing for one another: attention is not split".to_owned());
    }
    let missing = match () {
        () if (limits.max_storage_buffers_per_shader_stage as usize) < MAX_BINDINGS => {
            Some("ten storage buffers in a kernel")
        }
        () if limits.max_compute_workgroup_storage_size < 16 << 10 => {
            Some("16 KiB of workgroup memory")
        }
        () if limits.max_compute_invocations_per_workgroup < 256 => {
            Some("256 invocations in a workgroup")
        }
        () => None,
    };
    let processors = options.processors.unwrap_or_else(|| match software {
        true => std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as u32,
        false => PROCESSORS,
    });
    let size_x = limits.max_compute_workgroup_size_x;
    let target = Target {
        subgroup: size.unwrap_or(1),
        max_invocations: limits.max_compute_invocations_per_workgroup.min(size_x),
        shared_bytes: limits.max_compute_workgroup_storage_size,
        max_groups: limits.max_compute_workgroups_per_dimension,
        max_binding: (limits.max_storage_buffer_binding_size / 4 * 4)
            .min(options.max_binding.unwrap_or(u64::MAX)),
        packed_dot: !software,
        // wgpu's are experimental: no promise about the memory they are loaded from.
        cooperative: false,
        halves: features.contains(Features::SHADER_F16),
        tickets: features.contains(Features::MEMORY_DECORATION_COHERENT),
        counters: false,
        processors: processors.max(1),
    };
    let driver = format!("{} {}", info.driver, info.driver_info).trim().to_owned();
    let facts = Facts { name: info.name, backend, kind, driver };
    Adapter { raw, index, facts, features, limits, target, missing, notes }
}

impl Adapter {
    pub(super) fn is_software(&self) -> bool {
        self.facts.kind == AdapterKind::Software
    }

    /// One line for people.
    pub(super) fn describe(&self) -> String {
        let Facts { name, backend, driver, .. } = &self.facts;
        let mut text = format!("{name} through {backend}");
        if !driver.is_empty() {
            text += &format!(" ({driver})");
        }
        if self.is_software() {
            text += ", software";
        }
        if self.target.subgroup > 1 {
            text += &format!(", subgroups of {}", self.target.subgroup);
        }
        for note in &self.notes {
            text += ", ";
            text += note;
        }
        if let Some(missing) = self.missing {
            text += &format!(", cannot be used: {missing} is missing");
        }
        text
    }

    /// Names device and driver in what is kept on disk.
    pub(super) fn cache_key(&self) -> String {
        let all = format!("wgpu-{}-{}-{}", self.facts.backend, self.facts.name, self.facts.driver);
        all.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).take(120).collect()
    }
}

/// The adapter that is preferred: one that can be used, the best rank first, software and GL last.
pub(super) fn best(mut adapters: Vec<Adapter>) -> Result<Adapter> {
    adapters.sort_by_key(|a| (a.missing.is_some(), a.facts.rank().unwrap_or(u8::MAX), a.index));
    adapters.into_iter().next().ok_or_else(|| no_adapter("no driver reports a device"))
}

pub(super) fn no_adapter(reason: &str) -> GpuError {
    GpuError::NoAdapter { reason: reason.to_owned() }
}

/// The result of a future that is ready at once, as those of wgpu are outside browsers.
pub(super) fn now<F: Future>(future: F) -> Option<F::Output> {
    match pin!(future).poll(&mut TaskContext::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}
