//! Kernels compiled once: WGSL to wgpu's pipelines, kept in memory.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;
use wgpu::{
    BindGroupLayoutDescriptor, BindGroupLayoutEntry, BindingType, BufferBindingType,
    ComputePipelineDescriptor, PipelineCompilationOptions, PipelineLayoutDescriptor,
    ShaderModuleDescriptor, ShaderRuntimeChecks, ShaderSource, ShaderStages,
};

use super::context::Context;
use crate::error::{GpuError, Result};
use crate::lowering::parallel;
use crate::wgsl::Trust;
use crate::wgsl::portable::{self, Binding, BindingKind};

/// A compiled kernel.
pub(super) struct Made {
    pub(super) pipeline: wgpu::ComputePipeline,
    pub(super) layout: wgpu::BindGroupLayout,
    pub(super) bindings: Vec<Binding>,
}

/// A kernel that is needed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Wanted {
    pub(super) name: String,
    pub(super) source: String,
    pub(super) trust: Trust,
}

type Texts = FxHashMap<(String, Trust), Arc<Made>>;

/// Every pipeline of a device, by the text of its kernel. The same text of another author is another pipeline.
#[derive(Default)]
pub(super) struct Pipelines(Mutex<Texts>);

impl Pipelines {
    fn made(&self) -> MutexGuard<'_, Texts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of pipelines made so far.
    pub(super) fn count(&self) -> usize {
        self.made().len()
    }

    /// The pipelines of these kernels, in order; those not made yet are compiled on all cores.
    pub(super) fn get_all(&self, context: &Context, wanted: &[Wanted]) -> Result<Vec<Arc<Made>>> {
        let mut missing: Vec<&Wanted> = {
            let made = self.made();
            let known =
                |kernel: &&Wanted| made.contains_key(&(kernel.source.clone(), kernel.trust));
            wanted.iter().filter(|kernel| !known(kernel)).collect()
        };
        missing.sort_by_key(|kernel| (&kernel.source, kernel.trust as u8));
        missing.dedup_by_key(|kernel| (&kernel.source, kernel.trust));
        parallel::for_each(&missing, |_, kernel| {
            let made = Arc::new(compile(context, kernel)?);
            self.made().entry((kernel.source.clone(), kernel.trust)).or_insert(made);
            Ok(())
        })?;
        let made = self.made();
        let find = |kernel: &Wanted| {
            let found = made.get(&(kernel.source.clone(), kernel.trust)).cloned();
            found.ok_or_else(|| failed(context, kernel, "it was not compiled".into()))
        };
        wanted.iter().map(find).collect()
    }
}

fn compile(context: &Context, kernel: &Wanted) -> Result<Made> {
    let device = &context.device;
    let text = match context.adapter.target.subgroup {
        1 => portable::without_subgroups(&kernel.source),
        _ => Cow::Borrowed(kernel.source.as_str()),
    };
    let bindings = portable::bindings(&text);
    let entries: Vec<BindGroupLayoutEntry> = bindings.iter().map(entry).collect();
    let checked = context.options.checks || kernel.trust == Trust::Checked;
    let make = || {
        let description = ShaderModuleDescriptor { label: None, source: ShaderSource::Wgsl(text) };
        let module = if checked {
            device.create_shader_module(description)
        } else {
            // SAFETY: the text is one of ours, which tests hold to its operands, or its author promised the same with
            // `WgslKernel::unchecked`. Bindings hold all that the text indexes: `ListEncoder::range` sees to that.
            unsafe {
                device.create_shader_module_trusted(description, ShaderRuntimeChecks::unchecked())
            }
        };
        let layout = device.create_bind_group_layout(&BindGroupLayoutDescriptor {
            label: None,
            entries: &entries,
        });
        let pipeline_layout = device.create_pipeline_layout(&PipelineLayoutDescriptor {
            label: None,
            bind_group_layouts: &[Some(&layout)],
            immediate_size: 0,
        });
        let pipeline = device.create_compute_pipeline(&ComputePipelineDescriptor {
            label: Some(&kernel.name),
            layout: Some(&pipeline_layout),
            module: &module,
            entry_point: Some("main"),
            compilation_options: PipelineCompilationOptions {
                zero_initialize_workgroup_memory: kernel.trust == Trust::Checked,
                ..PipelineCompilationOptions::default()
            },
            cache: None,
        });
        (pipeline, layout)
    };
    match context.scoped("Device::create_compute_pipeline", 0, make) {
        Ok((pipeline, layout)) => Ok(Made { pipeline, layout, bindings }),
        Err(GpuError::Driver { reason, .. }) => Err(failed(context, kernel, reason)),
        Err(other) => Err(other),
    }
}

fn entry(binding: &Binding) -> BindGroupLayoutEntry {
    let ty = match binding.kind {
        BindingKind::Read => BufferBindingType::Storage { read_only: true },
        BindingKind::ReadWrite => BufferBindingType::Storage { read_only: false },
        BindingKind::Uniform => BufferBindingType::Uniform,
    };
    BindGroupLayoutEntry {
        binding: binding.slot,
        visibility: ShaderStages::COMPUTE,
        ty: BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None },
        count: None,
    }
}

fn failed(context: &Context, kernel: &Wanted, message: String) -> GpuError {
    let (kernel, device) = (kernel.name.clone(), context.info.name.clone());
    GpuError::KernelCompile { kernel, device, message }
}
