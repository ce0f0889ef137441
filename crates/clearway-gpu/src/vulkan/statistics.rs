//! What the driver says of compiled kernels: registers, spills, bytes of workgroup memory.

use std::sync::{Mutex, PoisonError};

use ash::{khr, vk};

use super::handle::Handle;
use super::instance::{Adapter, Instance};
use crate::device::KernelStatistics;

/// Collects statistics, where the device was opened for that.
pub(super) struct Statistics {
    calls: Option<khr::pipeline_executable_properties::Device>,
    found: Mutex<Vec<KernelStatistics>>,
}

impl Statistics {
    pub(super) fn new(instance: &Instance, raw: &Handle, adapter: &Adapter) -> Self {
        let asked = instance.options.statistics && adapter.has_statistics;
        let new = || khr::pipeline_executable_properties::Device::new(&instance.raw, raw);
        let calls = asked.then(new);
        Self { calls, found: Mutex::default() }
    }

    /// What pipelines are made with.
    pub(super) fn flags(&self) -> vk::PipelineCreateFlags {
        match self.calls {
            Some(_) => vk::PipelineCreateFlags::CAPTURE_STATISTICS_KHR,
            None => vk::PipelineCreateFlags::empty(),
        }
    }

    /// Notes what the driver says of a pipeline that was made with [`flags`](Self::flags).
    pub(super) fn note(&self, kernel: &str, source: &str, pipeline: vk::Pipeline) {
        let Some(calls) = &self.calls else { return };
        let info = vk::PipelineInfoKHR::default().pipeline(pipeline);
        // SAFETY: VUID-vkGetPipelineExecutablePropertiesKHR-pipelineExecutableInfo-03270: the device was opened with
        // the feature, since there are calls; the pipeline is of the same device and alive.
        let executables = unsafe { calls.get_pipeline_executable_properties(&info) };
        let mut values = Vec::new();
        for index in 0..executables.map_or(0, |found| found.len()) as u32 {
            let info =
                vk::PipelineExecutableInfoKHR::default().pipeline(pipeline).executable_index(index);
            // SAFETY: as above; VUID-vkGetPipelineExecutableStatisticsKHR-pipeline-03274: the pipeline was made with the
            // flag, and the index is below the number of its executables.
            let found = unsafe { calls.get_pipeline_executable_statistics(&info) };
            values.extend(found.unwrap_or_default().iter().map(named));
        }
        let entry =
            KernelStatistics { kernel: kernel.to_owned(), source: source.to_owned(), values };
        self.found.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
    }

    /// All that was noted, by name of the kernel.
    pub(super) fn all(&self) -> Vec<KernelStatistics> {
        let mut all = self.found.lock().unwrap_or_else(PoisonError::into_inner).clone();
        all.sort_by(|a, b| (&a.kernel, &a.source).cmp(&(&b.kernel, &b.source)));
        all
    }
}

fn named(statistic: &vk::PipelineExecutableStatisticKHR<'_>) -> (String, f64) {
    let name = statistic.name_as_c_str().unwrap_or(c"").to_string_lossy().into_owned();
    // Every bit pattern is a number of each of these types.
    let bits = statistic_bits(&statistic.value);
    let value = match statistic.format {
        vk::PipelineExecutableStatisticFormatKHR::INT64 => bits as i64 as f64,
        vk::PipelineExecutableStatisticFormatKHR::FLOAT64 => f64::from_bits(bits),
        vk::PipelineExecutableStatisticFormatKHR::BOOL32 => f64::from((bits as u32 != 0) as u8),
        _ => bits as f64,
    };
    (name, value)
}

fn statistic_bits(value: &vk::PipelineExecutableStatisticValueKHR) -> u64 {
    // SAFETY: the union has eight bytes, all of which were written: it starts as zeros, and the driver writes one of its
    // members over them.
    unsafe { value.u64 }
}
