//! One opened device: its queue, its clock of finished work, and what everything on it shares.

use std::ffi::c_char;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, Weak};
use std::time::{Duration, Instant};

use ash::{ext, khr, vk};
use clearway_graph::place::SlabRule;

use super::Counting;
use super::counts::{Counters, VulkanCounts};
use super::guards::Features;
use super::handle::{Handle, Timeline};
use super::heap::Heap;
use super::instance::{Adapter, Instance};
use super::memory::VulkanMemory;
use super::order;
use super::pipeline::Pipelines;
use super::program::VulkanProgram;
use super::transfer::Transfers;
use crate::device::{DeviceInfo, limited};
use crate::error::{GpuError, Result};
use crate::lowering::cache::DiskCache;
use crate::lowering::guard::Vetted;
use crate::lowering::lowered::Lowered;
use crate::lowering::tune::{Timing, Tuner};
use crate::lowering::{Backend, MAX_COUNTED_BINDINGS, Workgroups};
use crate::wgsl::{Packing, Target, Trust};

/// How long the host polls before it blocks: a decode step of a small model is shorter.
const SPIN: Duration = Duration::from_micros(300);
/// How long the host waits for the device at all, unless the options say otherwise.
const PATIENCE: Duration = Duration::from_secs(600);

/// An opened device.
pub(super) struct Context {
    pub(super) info: DeviceInfo,
    pub(super) adapter: Adapter,
    /// Device functions.
    pub(super) raw: Arc<Handle>,
    /// Locked alone to submit, and together by those who keep the device idle.
    queue: RwLock<vk::Queue>,
    timeline: Timeline,
    /// Submissions so far; written under the lock of the queue.
    submitted: AtomicU64,
    lost: AtomicBool,
    /// Whether the host last waited for the device in vain.
    stuck: AtomicBool,
    /// Whether workgroups may wait for counters, once somebody asked.
    ordered: OnceLock<bool>,
    /// Whether some have waited in vain.
    stalled: AtomicBool,
    patience: Duration,
    pub(super) counters: Counters,
    /// Device memory, and memory of the host for what it looks at while work is under way.
    pub(super) heap: Heap,
    pub(super) host_visible: Heap,
    pub(super) transfers: Transfers,
    pub(super) pipelines: Pipelines,
    /// Users' kernels that were looked at.
    pub(super) vetted: Vetted,
    pub(super) tuner: Tuner,
    /// Buffers alive, by identity.
    pub(super) buffers: crate::lowering::Buffers<VulkanMemory>,
    /// Names commands for debuggers and for what the validation layer says.
    pub(super) labels: Option<ext::debug_utils::Device>,
    pub(super) instance: Arc<Instance>,
}

impl Context {
    pub(super) fn open(instance: Arc<Instance>, adapter: Adapter) -> Result<Arc<Self>> {
        let name = format!("vulkan:{}", adapter.index);
        if let Some(missing) = adapter.missing {
            return Err(GpuError::Unsupported { device: adapter.name, missing });
        }
        let raw = create_device(&instance, &adapter).map_err(|e| GpuError::NoDevice {
            reason: format!("{} cannot be opened ({e})", adapter.name),
        })?;
        let raw = Handle::new(raw, instance.clone());
        // SAFETY: VUID-vkGetDeviceQueue-queueFamilyIndex-00384 and -queueIndex-00385: `create_device` asks for one
        // queue of this family, without flags (-flags-01841).
        let queue = unsafe { raw.get_device_queue(adapter.queue_family, 0) };
        let timeline =
            Timeline::new(&raw).map_err(|e| driver_error(&name, "vkCreateSemaphore", e))?;
        let limit = instance.options.memory_limit;
        let info = DeviceInfo {
            name,
            description: adapter.describe(),
            arena_align: adapter.limits.min_storage_buffer_offset_alignment.max(64),
            max_buffer_bytes: adapter
                .max_buffer_bytes
                .min(u64::from(adapter.limits.max_storage_buffer_range)),
            slab_rule: SlabRule::Any,
            memory_bytes: limited(adapter.local_bytes(), limit),
        };
        let (heap, host_visible) =
            (Heap::device(&adapter, limit.unwrap_or(u64::MAX)), Heap::host(&adapter));
        let transfers = Transfers::new(&raw, &adapter, &info.name)?;
        let pipelines = Pipelines::new(&instance, &raw, &adapter, &info.name)?;
        let timing = Timing {
            software: adapter.kind == vk::PhysicalDeviceType::CPU,
            clock: adapter.timestamp_bits > 0,
        };
        let disk = DiskCache::open(instance.options.disk_cache);
        let tuner = Tuner::new(instance.options.tuning, timing, disk, &adapter.cache_key);
        let labels =
            instance.options.validate.then(|| ext::debug_utils::Device::new(&instance.raw, &raw));
        Ok(Arc::new(Self {
            labels,
            info,
            adapter,
            raw,
            queue: RwLock::new(queue),
            timeline,
            submitted: AtomicU64::new(0),
            lost: AtomicBool::new(false),
            stuck: AtomicBool::new(false),
            ordered: OnceLock::new(),
            stalled: AtomicBool::new(false),
            patience: instance.options.patience.unwrap_or(PATIENCE),
            counters: Counters::default(),
            heap,
            host_visible,
            transfers,
            pipelines,
            vetted: Vetted::default(),
            tuner,
            buffers: Mutex::default(),
            instance,
        }))
    }

    /// Hands command buffers to the device; returns what the clock will show when they are done.
    pub(super) fn submit(&self, commands: &[vk::CommandBufferSubmitInfo<'_>]) -> Result<u64> {
        let queue = self.queue.write().unwrap_or_else(PoisonError::into_inner);
        let value = self.submitted.load(Ordering::Relaxed) + 1;
        let signal = [vk::SemaphoreSubmitInfo::default()
            .semaphore(self.timeline.semaphore)
            .value(value)
            .stage_mask(vk::PipelineStageFlags2::ALL_COMMANDS)];
        let submit = [vk::SubmitInfo2::default()
            .command_buffer_infos(commands)
            .signal_semaphore_infos(&signal)];
        // SAFETY: the queue needs outside synchronisation, and its lock is held alone. The value is above all before
        // it (VUID-VkSubmitInfo2-semaphore-03882). Callers submit commands whose recording has ended
        // (VUID-vkQueueSubmit2-commandBuffer-03874), that are not under way unless recorded for
        // simultaneous use (-03875), and that they keep with all they use until the clock shows this value:
        // `VulkanProgram` until it is dropped, `Transfers` by waiting for a segment's last value.
        unsafe { self.raw.queue_submit2(*queue, &submit, vk::Fence::null()) }
            .map_err(|e| self.error("vkQueueSubmit2", e))?;
        self.submitted.store(value, Ordering::Release);
        Ok(value)
    }

    /// Waits until the clock shows `value`.
    pub(super) fn wait(&self, value: u64) -> Result<()> {
        if value == 0 {
            return Ok(());
        }
        let start = Instant::now();
        // A software device runs on the cores that would spin.
        let spin = self.adapter.kind != vk::PhysicalDeviceType::CPU;
        while spin && start.elapsed() < SPIN {
            if self.done()? >= value {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        self.sleep(value)
    }

    /// As [`wait`](Self::wait) for what takes long: the host does something else meanwhile.
    pub(super) fn sleep(&self, value: u64) -> Result<()> {
        let (semaphores, values) = ([self.timeline.semaphore], [value]);
        let info = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
        // SAFETY: the semaphore is this context's, which lives, and a timeline (VUID-VkSemaphoreWaitInfo-
        // pSemaphores-03256).
        match unsafe { self.raw.wait_semaphores(&info, self.patience.as_nanos() as u64) } {
            Ok(()) => {
                self.stuck.store(false, Ordering::Relaxed);
                Ok(())
            }
            Err(vk::Result::TIMEOUT) => {
                self.stuck.store(true, Ordering::Relaxed);
                Err(GpuError::Timeout {
                    device: self.info.name.clone(),
                    seconds: self.patience.as_secs_f64().ceil() as u64,
                })
            }
            Err(e) => Err(self.error("vkWaitSemaphores", e)),
        }
    }

    /// Waits until nothing runs on the device, and keeps it so: while the result lives nothing is
    /// submitted.
    pub(super) fn idle(&self) -> Result<Idle<'_>> {
        let queue = self.queue.read().unwrap_or_else(PoisonError::into_inner);
        self.wait_all()?;
        Ok(Idle { _queue: queue })
    }

    /// Notes that workgroups have waited in vain: no list that is made from now on lets them wait.
    pub(super) fn stall(&self) {
        self.stalled.store(true, Ordering::Relaxed);
    }

    /// Why workgroups may not wait for counters here, if they may not.
    pub(super) fn without_counters(self: &Arc<Self>) -> Option<&'static str> {
        let bindings = self.adapter.limits.max_per_stage_descriptor_storage_buffers as usize;
        let counting = self.instance.options.counting;
        let tested = counting == Counting::Tested;
        if counting == Counting::Never {
            Some("counters are turned off")
        } else if bindings < MAX_COUNTED_BINDINGS {
            Some("kernels of the device bind too few buffers for counters")
        } else if self.stalled.load(Ordering::Relaxed) {
            Some("workgroups have waited in vain: barriers since then")
        } else if tested && self.is_software() {
            Some("software drivers have no counters")
        } else if tested && !*self.ordered.get_or_init(|| order::is_kept(self)) {
            Some("the device failed the test of the order in which it starts workgroups")
        } else {
            None
        }
    }

    /// Whether it is a software driver on the CPU.
    pub(super) fn is_software(&self) -> bool {
        self.adapter.is_software()
    }

    /// Whether the device is done with what was submitted up to `value`, so that it may be freed. The host
    /// waits for it, but not again once it waited in vain. A lost device is done with everything.
    pub(super) fn settled(&self, value: u64) -> bool {
        if self.done().is_ok_and(|done| done >= value) {
            return true;
        }
        let again = !self.stuck.load(Ordering::Relaxed);
        (again && self.wait(value).is_ok()) || self.lost.load(Ordering::Relaxed)
    }

    /// As [`settled`](Self::settled), for everything that was submitted so far.
    pub(super) fn all_settled(&self) -> bool {
        self.settled(self.submitted())
    }

    /// Waits until everything submitted so far is done.
    pub(super) fn wait_all(&self) -> Result<()> {
        self.wait(self.submitted())
    }

    /// What the clock shows when everything submitted so far is done.
    pub(super) fn submitted(&self) -> u64 {
        self.submitted.load(Ordering::Acquire)
    }

    /// What the clock shows.
    pub(super) fn done(&self) -> Result<u64> {
        // SAFETY: the semaphore is this context's, which lives, and a timeline (VUID-vkGetSemaphoreCounterValue-
        // semaphore-03255).
        unsafe { self.raw.get_semaphore_counter_value(self.timeline.semaphore) }
            .map_err(|e| self.error("vkGetSemaphoreCounterValue", e))
    }

    /// What was done so far.
    pub(super) fn counts(&self) -> VulkanCounts {
        VulkanCounts {
            submissions: self.submitted.load(Ordering::Relaxed),
            recordings: self.counters.recordings.value(),
            sets_written: self.counters.sets_written.value(),
            pieces: self.counters.pieces.value(),
        }
    }

    /// The error for a failed call.
    pub(super) fn error(&self, call: &'static str, code: vk::Result) -> GpuError {
        if code == vk::Result::ERROR_DEVICE_LOST {
            self.lost.store(true, Ordering::Relaxed);
        }
        driver_error(&self.info.name, call, code)
    }

    /// Bytes the driver would still give, as far as it tells.
    pub(super) fn available(&self, heap: u32) -> u64 {
        let size = self.adapter.memory.memory_heaps[heap as usize].size;
        if !self.adapter.has_budget {
            return size;
        }
        self.instance.free(self.adapter.raw)[heap as usize]
    }
}

impl Backend for Context {
    type Memory = VulkanMemory;
    type Program = VulkanProgram;

    fn name(&self) -> &str {
        &self.info.name
    }

    fn target(&self) -> &Target {
        &self.adapter.target
    }

    fn align(&self) -> u64 {
        self.adapter.limits.min_storage_buffer_offset_alignment.max(16)
    }

    fn workgroups(&self) -> Workgroups {
        let limits = &self.adapter.limits;
        Workgroups {
            count: limits.max_compute_work_group_count,
            size: limits.max_compute_work_group_size,
            invocations: self.adapter.target.max_invocations,
            shared_bytes: limits.max_compute_shared_memory_size,
        }
    }

    fn capabilities(&self, trust: Trust) -> naga::valid::Capabilities {
        Features::of(&self.adapter).capabilities(trust)
    }

    fn vetted(&self) -> &Vetted {
        &self.vetted
    }

    fn tuner(&self) -> &Tuner {
        &self.tuner
    }

    fn counters(self: &Arc<Self>) -> bool {
        self.without_counters().is_none()
    }

    fn memory(&self, buf_id: usize) -> Result<Arc<VulkanMemory>> {
        let buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        buffers
            .get(&buf_id)
            .and_then(Weak::upgrade)
            .ok_or_else(|| GpuError::ForeignBuffer { buf_id, device: self.info.name.clone() })
    }

    fn alloc_piece(self: &Arc<Self>, bytes: u64) -> Result<VulkanMemory> {
        VulkanMemory::new(self, bytes, Packing::Plain)
    }

    fn program(
        self: &Arc<Self>,
        lowered: Lowered<vk::DescriptorBufferInfo>,
        memory: Vec<Arc<VulkanMemory>>,
    ) -> Result<VulkanProgram> {
        VulkanProgram::new(self, lowered, memory)
    }
}

/// Nothing runs on the device, and nothing is submitted, while this lives.
pub(super) struct Idle<'a> {
    _queue: RwLockReadGuard<'a, vk::Queue>,
}

impl Drop for Context {
    fn drop(&mut self) {
        if !self.all_settled() {
            // Commands may run and use any of it for ever.
            self.raw.abandon();
            return;
        }
        // The other parts destroy what they made themselves, after this.
        self.heap.destroy(&self.raw);
        self.host_visible.destroy(&self.raw);
    }
}

fn create_device(instance: &Instance, adapter: &Adapter) -> Result<ash::Device, vk::Result> {
    let priorities = [1.0];
    let queues = [vk::DeviceQueueCreateInfo::default()
        .queue_family_index(adapter.queue_family)
        .queue_priorities(&priorities)];
    let mut extensions: Vec<*const c_char> = Vec::new();
    if adapter.has_budget {
        extensions.push(ext::memory_budget::NAME.as_ptr());
    }
    if adapter.has_matrices() {
        extensions.push(khr::cooperative_matrix::NAME.as_ptr());
    }
    if adapter.has_clock {
        extensions.push(khr::shader_clock::NAME.as_ptr());
    }
    let tells = instance.options.statistics && adapter.has_statistics;
    if tells {
        extensions.push(khr::pipeline_executable_properties::NAME.as_ptr());
    }
    let mut f11 = vk::PhysicalDeviceVulkan11Features::default()
        .storage_buffer16_bit_access(true)
        .uniform_and_storage_buffer16_bit_access(true);
    let mut f12 = vk::PhysicalDeviceVulkan12Features::default()
        .shader_float16(true)
        .timeline_semaphore(true)
        .host_query_reset(true)
        .vulkan_memory_model(adapter.has_matrices())
        .vulkan_memory_model_device_scope(adapter.has_matrices());
    let mut f13 = vk::PhysicalDeviceVulkan13Features::default()
        .synchronization2(true)
        .maintenance4(true)
        .shader_integer_dot_product(true)
        .subgroup_size_control(!adapter.fixed_subgroup);
    let mut matrix =
        vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default().cooperative_matrix(true);
    let mut info = vk::DeviceCreateInfo::default()
        .queue_create_infos(&queues)
        .enabled_extension_names(&extensions)
        .push_next(&mut f11)
        .push_next(&mut f12)
        .push_next(&mut f13);
    if adapter.has_matrices() {
        info = info.push_next(&mut matrix);
    }
    let mut clock = vk::PhysicalDeviceShaderClockFeaturesKHR::default().shader_device_clock(true);
    if adapter.has_clock {
        info = info.push_next(&mut clock);
    }
    // Who has the extension has the feature.
    let mut executables = vk::PhysicalDevicePipelineExecutablePropertiesFeaturesKHR::default()
        .pipeline_executable_info(true);
    if tells {
        info = info.push_next(&mut executables);
    }
    // SAFETY: VUID-vkCreateDevice-ppEnabledExtensionNames-01387: `Instance::adapter` found the extensions on this
    // device. It found the features, too, or `Context::open` refuses the device; missing ones would be an error
    // and nothing worse. The queue family is one of the device (VUID-VkDeviceQueueCreateInfo-
    // queueFamilyIndex-00381). The chain lives until the call returns.
    unsafe { instance.raw.create_device(adapter.raw, &info, None) }
}

/// The error for a failed call of a device with this name.
pub(super) fn driver_error(device: &str, call: &'static str, code: vk::Result) -> GpuError {
    let device = device.to_owned();
    match code {
        vk::Result::ERROR_DEVICE_LOST => GpuError::DeviceLost { device, call },
        vk::Result::ERROR_OUT_OF_DEVICE_MEMORY | vk::Result::ERROR_OUT_OF_HOST_MEMORY => {
            GpuError::OutOfMemory { device, wanted: 0, available: 0 }
        }
        code => GpuError::Driver { device, call, reason: code.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use clearway_graph::testkit::skip;

    use super::super::VulkanOptions;
    use super::*;

    #[test]
    fn what_was_made_of_a_device_goes_before_it_wherever_opening_stops() {
        let options = VulkanOptions { disk_cache: false, ..VulkanOptions::default() };
        let opened = Instance::load(options).and_then(|i| Ok((i.adapters()?, Arc::new(i))));
        let (adapters, instance) = match opened {
            Ok(opened) => opened,
            Err(error) => return skip("vulkan", error),
        };
        let Some(adapter) = adapters.into_iter().find(|adapter| adapter.missing.is_none()) else {
            return skip("vulkan", "no device can be used");
        };
        for made in 0..4 {
            let raw = create_device(&instance, &adapter).unwrap();
            let device = Handle::new(raw, instance.clone());
            let timeline = (made > 0).then(|| Timeline::new(&device).unwrap());
            let transfers = (made > 1).then(|| Transfers::new(&device, &adapter, "").unwrap());
            let pipelines =
                (made > 2).then(|| Pipelines::new(&instance, &device, &adapter, "").unwrap());
            assert_eq!(Arc::strong_count(&device), 1 + made, "each keeps the device");
            drop((timeline, transfers, pipelines));
            assert_eq!(Arc::strong_count(&device), 1, "nothing is left of them");
        }
        let context = Context::open(instance.clone(), adapter.clone()).unwrap();
        let device = Arc::downgrade(&context.raw);
        drop(context);
        assert!(device.upgrade().is_none(), "the device is destroyed");
        assert_eq!(Arc::strong_count(&instance), 1);

        // One whose work never ends: its instance must stay, as it does.
        let context = Context::open(instance.clone(), adapter).unwrap();
        context.submitted.store(1, Ordering::Release);
        context.stuck.store(true, Ordering::Relaxed);
        drop(context);
        assert_eq!(Arc::strong_count(&instance), 2, "the device is not destroyed");
    }

    #[test]
    fn what_a_driver_reports_is_typed() {
        let of = |code| driver_error("vulkan:0", "vkQueueSubmit2", code);
        let device = "vulkan:0".to_owned();
        let (wanted, available) = (0, 0);
        let lost = GpuError::DeviceLost { device: device.clone(), call: "vkQueueSubmit2" };
        assert_eq!(of(vk::Result::ERROR_DEVICE_LOST), lost);
        let full = GpuError::OutOfMemory { device, wanted, available };
        assert_eq!(of(vk::Result::ERROR_OUT_OF_DEVICE_MEMORY), full);
        assert_eq!(of(vk::Result::ERROR_OUT_OF_HOST_MEMORY), full);
        let other = of(vk::Result::ERROR_INITIALIZATION_FAILED);
        assert!(matches!(other, GpuError::Driver { call: "vkQueueSubmit2", .. }), "{other}");
    }
}
