//! Kernels compiled once: WGSL to SPIR-V to the driver's code, kept in memory and on disk.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ash::vk;
use rustc_hash::FxHashMap;

use super::VulkanOptions;
use super::context::driver_error;
use super::guards::{Features, Guards};
use super::handle::Handle;
use super::instance::{Adapter, Instance};
use super::statistics::Statistics;
use super::{emulate, spirv};
use crate::device::KernelStatistics;
use crate::error::{GpuError, Result};
use crate::lowering::cache::DiskCache;
use crate::lowering::lowered::Text;
use crate::lowering::{MAX_COUNTED_BINDINGS, parallel};
use crate::wgsl::{CLOCK, COUNTERS, Trust};

/// Stands for what turns text into SPIR-V: another number where that gives other words, so that those
/// on disk are not taken for them.
pub(super) const COMPILER: u32 = 5;

/// Every pipeline of a device, and what they are made from.
pub(super) struct Pipelines {
    handle: Arc<Handle>,
    device: String,
    options: VulkanOptions,
    disk: DiskCache,
    driver_cache: vk::PipelineCache,
    /// For each number of storage bindings, the layouts of its sets and pipelines.
    layouts: Vec<(vk::DescriptorSetLayout, vk::PipelineLayout)>,
    /// Subgroup size to ask for, where the driver would choose among several.
    subgroup: Option<u32>,
    features: Features,
    /// Whether cooperative matrices become ordinary arrays.
    emulated: bool,
    made: Mutex<Made>,
    grown: AtomicBool,
    statistics: Statistics,
}

/// Pipelines by the text of their kernel. The same text of another author is another pipeline.
#[derive(Default)]
struct Made(FxHashMap<String, FxHashMap<Trust, vk::Pipeline>>);

impl Made {
    fn get(&self, kernel: &Wanted<'_>) -> Option<vk::Pipeline> {
        self.0.get(kernel.source)?.get(&kernel.trust).copied()
    }
}

/// A kernel that is needed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    pub(super) name: &'a str,
    pub(super) source: &'a str,
    pub(super) trust: Trust,
    pub(super) bindings: usize,
}

impl<'a> Wanted<'a> {
    pub(super) fn new(text: &'a Text, bindings: usize) -> Self {
        let Text { name, source, trust } = text;
        Self { name, source, trust: *trust, bindings }
    }
}

impl Pipelines {
    pub(super) fn new(
        instance: &Instance,
        raw: &Arc<Handle>,
        adapter: &Adapter,
        device: &str,
    ) -> Result<Self> {
        let options = instance.options;
        let disk = DiskCache::open(options.disk_cache);
        let data = disk.load("pipelines", &adapter.cache_key).unwrap_or_default();
        let info = vk::PipelineCacheCreateInfo::default().initial_data(&data);
        // SAFETY: VUID-VkPipelineCacheCreateInfo-initialDataSize-00768 and -00769: the data is empty, or what `save` got
        // from the driver that the file is named after. Its checksum finds damage; whoever may write the
        // user's cache folder is trusted as the user is.
        let driver_cache = unsafe { raw.create_pipeline_cache(&info, None) }
            .map_err(|e| driver_error(device, "vkCreatePipelineCache", e))?;
        let mut pipelines = Self {
            handle: raw.clone(),
            device: device.to_owned(),
            options,
            disk,
            driver_cache,
            layouts: Vec::with_capacity(MAX_COUNTED_BINDINGS + 1),
            subgroup: (!adapter.fixed_subgroup).then_some(adapter.target.subgroup),
            features: Features::of(adapter),
            emulated: adapter.emulated,
            made: Mutex::default(),
            grown: AtomicBool::new(false),
            statistics: Statistics::new(instance, raw, adapter),
        };
        let most = adapter.limits.max_per_stage_descriptor_storage_buffers as usize;
        for bindings in 0..=MAX_COUNTED_BINDINGS.min(most) {
            let layouts = layout(raw, bindings)
                .map_err(|e| driver_error(device, "vkCreatePipelineLayout", e))?;
            pipelines.layouts.push(layouts);
        }
        Ok(pipelines)
    }

    /// Layout of the descriptor sets of kernels with this many storage bindings.
    pub(super) fn set_layout(&self, bindings: usize) -> vk::DescriptorSetLayout {
        self.layouts[bindings].0
    }

    /// Layout of the pipelines of kernels with this many storage bindings.
    pub(super) fn pipeline_layout(&self, bindings: usize) -> vk::PipelineLayout {
        self.layouts[bindings].1
    }

    /// Number of pipelines made so far.
    pub(super) fn count(&self) -> usize {
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.0.values().map(FxHashMap::len).sum()
    }

    /// What the driver says of the pipelines made so far.
    pub(super) fn statistics(&self) -> Vec<KernelStatistics> {
        self.statistics.all()
    }

    /// The text of a pipeline that was made here.
    pub(super) fn source_of(&self, pipeline: vk::Pipeline) -> Option<String> {
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let is_of =
            |of_text: &FxHashMap<Trust, vk::Pipeline>| of_text.values().any(|&p| p == pipeline);
        made.0.iter().find(|(_, of_text)| is_of(of_text)).map(|(source, _)| source.clone())
    }

    /// Number of pipelines made of a text with these words in it.
    #[cfg(feature = "testkit")]
    pub(super) fn count_with(&self, words: &str) -> usize {
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.0.keys().filter(|source| source.contains(words)).count()
    }

    /// The pipelines of these kernels, in order; those not made yet are compiled on all cores.
    pub(super) fn get_all(
        &self,
        raw: &ash::Device,
        wanted: &[Wanted<'_>],
    ) -> Result<Vec<vk::Pipeline>> {
        let mut missing: FxHashMap<(&str, Trust), Wanted<'_>> = FxHashMap::default();
        {
            let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
            for &kernel in wanted.iter().filter(|kernel| made.get(kernel).is_none()) {
                missing.entry((kernel.source, kernel.trust)).or_insert(kernel);
            }
        }
        let missing: Vec<Wanted<'_>> = missing.into_values().collect();
        if !missing.is_empty() {
            self.compile_all(raw, &missing)?;
        }
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        wanted
            .iter()
            .map(|kernel| {
                made.get(kernel)
                    .ok_or_else(|| self.failed(kernel.name, "it was not compiled".into()))
            })
            .collect()
    }

    fn compile_all(&self, raw: &ash::Device, missing: &[Wanted<'_>]) -> Result<()> {
        parallel::for_each(missing, |_, kernel| {
            let pipeline = self.compile(raw, kernel)?;
            self.keep(raw, kernel, pipeline);
            Ok(())
        })
    }

    /// Another thread may have made the same one meanwhile; then that one stays.
    fn keep(&self, raw: &ash::Device, kernel: &Wanted<'_>, pipeline: vk::Pipeline) {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if made.get(kernel).is_some() {
            // SAFETY: VUID-vkDestroyPipeline-pipeline-00765: `compile` has just made it and nobody else has it.
            unsafe { raw.destroy_pipeline(pipeline, None) };
        } else {
            made.0.entry(kernel.source.to_owned()).or_default().insert(kernel.trust, pipeline);
            self.grown.store(true, Ordering::Relaxed);
        }
    }

    fn compile(&self, raw: &ash::Device, kernel: &Wanted<'_>) -> Result<vk::Pipeline> {
        let words = self.spirv(kernel)?;
        let module = vk::ShaderModuleCreateInfo::default().code(&words);
        // SAFETY: VUID-VkShaderModuleCreateInfo-pCode-08737: naga wrote the words from a module it validated, using only
        // what the device was opened with: our kernels are chosen by its features, `Guards` bounds users'.
        // Words from disk were written by this function; the cache folder is trusted as the user is.
        let module = unsafe { raw.create_shader_module(&module, None) }
            .map_err(|e| self.failed(kernel.name, format!("vkCreateShaderModule: {e}")))?;
        let mut stage = vk::PipelineShaderStageCreateInfo::default()
            .stage(vk::ShaderStageFlags::COMPUTE)
            .module(module)
            .name(c"main");
        let mut size = vk::PipelineShaderStageRequiredSubgroupSizeCreateInfo::default();
        if let Some(subgroup) = self.subgroup {
            size.required_subgroup_size = subgroup;
            stage = stage.push_next(&mut size);
        }
        let info = [vk::ComputePipelineCreateInfo::default()
            .flags(self.statistics.flags())
            .stage(stage)
            .layout(self.pipeline_layout(kernel.bindings))];
        // SAFETY: module and layout are alive. VUID-VkComputePipelineCreateInfo-layout-07988 and -07990: the layout has
        // the bindings that stand in front of every text, and `guard` refuses texts with others. Workgroups
        // fit the device (VUID-RuntimeSpirv-x-06429 to -06432): ours are cut by `Target`, users' checked by
        // `guard`. A subgroup size is asked for only where compute shaders may (-pNext-02755, -02756).
        let made = unsafe { raw.create_compute_pipelines(self.driver_cache, &info, None) };
        // SAFETY: VUID-vkDestroyShaderModule-shaderModule-01092: no pipeline is being made of it any more, and made ones
        // do not need it.
        unsafe { raw.destroy_shader_module(module, None) };
        match made {
            Ok(pipelines) => {
                self.statistics.note(kernel.name, kernel.source, pipelines[0]);
                Ok(pipelines[0])
            }
            Err((_, code)) => {
                Err(self.failed(kernel.name, format!("vkCreateComputePipelines: {code}")))
            }
        }
    }

    fn spirv(&self, kernel: &Wanted<'_>) -> Result<Vec<u32>> {
        let source = match self.emulated {
            true => emulate::without_matrices(kernel.source),
            false => Cow::Borrowed(kernel.source),
        };
        let guards = Guards::new(kernel.trust, self.features, self.options.checks);
        let key = format!("{COMPILER} {}\n{source}", guards.key);
        if let Some(bytes) = self.disk.load_hashed("spirv", &key)
            && bytes.len().is_multiple_of(4)
        {
            let word = |quad: &[u8]| u32::from_le_bytes([quad[0], quad[1], quad[2], quad[3]]);
            return Ok(bytes.chunks_exact(4).map(word).collect());
        }
        let words =
            to_spirv(&source, &guards).map_err(|message| self.failed(kernel.name, message))?;
        self.disk.store_hashed("spirv", &key, bytemuck::cast_slice(&words));
        Ok(words)
    }

    fn failed(&self, kernel: &str, message: String) -> GpuError {
        GpuError::KernelCompile { kernel: kernel.to_owned(), device: self.device.clone(), message }
    }

    /// Writes the driver's cache to disk if it grew.
    pub(super) fn save(&self, raw: &ash::Device, adapter: &Adapter) {
        if self.grown.swap(false, Ordering::Relaxed) {
            // SAFETY: the cache was made with `self` and goes with it. The driver synchronises it: it was made without
            // the flag that leaves that to us.
            if let Ok(data) = unsafe { raw.get_pipeline_cache_data(self.driver_cache) } {
                self.disk.store("pipelines", &adapter.cache_key, &data);
            }
        }
    }
}

impl Drop for Pipelines {
    fn drop(&mut self) {
        let raw = &self.handle;
        if raw.is_abandoned() {
            return;
        }
        let made = self.made.get_mut().unwrap_or_else(PoisonError::into_inner);
        for pipeline in made.0.drain().flat_map(|(_, of_text)| of_text.into_values()) {
            // SAFETY: VUID-vkDestroyPipeline-pipeline-00765: `Context` waits for all submissions before its fields go,
            // or abandons the device.
            unsafe { raw.destroy_pipeline(pipeline, None) };
        }
        for &(set, pipeline) in &self.layouts {
            // SAFETY: VUID-vkDestroyPipelineLayout-pipelineLayout-02004: no commands are being recorded, since programs
            // keep the context that owns `self`.
            unsafe { raw.destroy_pipeline_layout(pipeline, None) };
            // SAFETY: sets were made from it by programs, which keep the context that owns `self` and are gone.
            unsafe { raw.destroy_descriptor_set_layout(set, None) };
        }
        // SAFETY: compiling borrows `self`, which is being dropped, so nothing uses the cache.
        unsafe { raw.destroy_pipeline_cache(self.driver_cache, None) };
    }
}

/// Storage buffers from binding 0 on, and one uniform block behind them.
fn layout(
    raw: &ash::Device,
    bindings: usize,
) -> std::result::Result<(vk::DescriptorSetLayout, vk::PipelineLayout), vk::Result> {
    let slots: Vec<_> = (0..=bindings)
        .map(|slot| {
            let kind = if slot < bindings {
                vk::DescriptorType::STORAGE_BUFFER
            } else {
                vk::DescriptorType::UNIFORM_BUFFER
            };
            vk::DescriptorSetLayoutBinding::default()
                .binding(slot as u32)
                .descriptor_type(kind)
                .descriptor_count(1)
                .stage_flags(vk::ShaderStageFlags::COMPUTE)
        })
        .collect();
    let info = vk::DescriptorSetLayoutCreateInfo::default().bindings(&slots);
    // SAFETY: VUID-VkDescriptorSetLayoutCreateInfo-binding-00279: every binding has another number; the slots live
    // until the call returns.
    let set = unsafe { raw.create_descriptor_set_layout(&info, None) }?;
    let sets = [set];
    let info = vk::PipelineLayoutCreateInfo::default().set_layouts(&sets);
    // SAFETY: the set layout was just made. VUID-VkPipelineLayoutCreateInfo-descriptorType-03018: callers ask for
    // no more storage buffers in a stage than the device has, and every device has a uniform buffer.
    let pipeline = unsafe { raw.create_pipeline_layout(&info, None) }.inspect_err(|_| {
        // SAFETY: it was just made, and what was to be made from it failed.
        unsafe { raw.destroy_descriptor_set_layout(set, None) };
    })?;
    Ok((set, pipeline))
}

/// Compiles WGSL.
pub(super) fn to_spirv(source: &str, guards: &Guards) -> std::result::Result<Vec<u32>, String> {
    use naga::back::spv;
    use naga::valid::{ValidationFlags, Validator};
    let module =
        naga::front::wgsl::parse_str(source).map_err(|error| error.emit_to_string(source))?;
    let info = Validator::new(ValidationFlags::all(), guards.capabilities)
        .validate(&module)
        .map_err(|error| error.emit_to_string(source))?;
    let policy = if guards.checks {
        // The other guard is not there for atomics.
        naga::proc::BoundsCheckPolicy::Restrict
    } else {
        naga::proc::BoundsCheckPolicy::Unchecked
    };
    let options = spv::Options {
        lang_version: (1, 3),
        flags: spv::WriterFlags::empty(),
        bounds_check_policies: naga::proc::BoundsCheckPolicies {
            index: policy,
            buffer: policy,
            ..Default::default()
        },
        // The native way needs a feature that the device is not opened with.
        zero_initialize_workgroup_memory: match guards.zeros {
            true => spv::ZeroInitializeWorkgroupMemoryMode::Polyfill,
            false => spv::ZeroInitializeWorkgroupMemoryMode::None,
        },
        capabilities: guards.declared.clone(),
        // Nothing of 16 bits goes in or out of a compute shader, and few devices have it.
        use_storage_input_output_16: false,
        force_loop_bounding: guards.checks,
        emit_int_div_checks: guards.checks,
        ..Default::default()
    };
    let entry = spv::PipelineOptions {
        shader_stage: naga::ShaderStage::Compute,
        entry_point: "main".into(),
    };
    let mut words = spv::write_vec(&module, &info, &options, Some(&entry))
        .map_err(|error| error.to_string())?;
    if guards.declared.is_none() && source.contains(COUNTERS) {
        words = spirv::fences::fences(&words).map_err(|error| error.to_string())?;
        if source.contains(CLOCK) {
            words = spirv::clock::clocks(&words).map_err(|error| error.to_string())?;
        }
    }
    spirv::repair(words).map_err(|error| error.to_string())
}
