//! The loader, the instance, and what its devices can do.

use std::ffi::{CStr, c_char};
use std::sync::{Arc, Mutex, PoisonError};

use ash::{ext, khr, nv, vk};

use super::VulkanOptions;
use crate::error::{GpuError, Result};
use crate::lowering::MAX_BINDINGS;
use crate::lowering::prefetch;
use crate::wgsl::Target;

/// The loaded library and one instance of it. Devices keep it alive.
pub(super) struct Instance {
    pub(super) raw: ash::Instance,
    pub(super) options: VulkanOptions,
    messenger: Option<(ext::debug_utils::Instance, vk::DebugUtilsMessengerEXT)>,
    /// What the validation layers said.
    pub(super) messages: Arc<Mutex<Vec<String>>>,
    entry: ash::Entry,
}

/// A device that was found, and everything decided from its properties.
#[derive(Clone)]
pub(super) struct Adapter {
    pub(super) raw: vk::PhysicalDevice,
    /// Index in the loader's order, as `vulkan:N` names it.
    pub(super) index: usize,
    pub(super) name: String,
    pub(super) kind: vk::PhysicalDeviceType,
    /// Driver and version, for people.
    pub(super) driver: String,
    /// Names the driver's binaries: a pipeline cache is good for one of these only.
    pub(super) cache_key: String,
    pub(super) limits: vk::PhysicalDeviceLimits,
    pub(super) max_buffer_bytes: u64,
    pub(super) memory: vk::PhysicalDeviceMemoryProperties,
    pub(super) has_budget: bool,
    /// Whether kernels can read the device's clock.
    pub(super) has_clock: bool,
    /// Tells what it made of kernels.
    pub(super) has_statistics: bool,
    /// Bytes the driver would still give of each heap, where it tells.
    pub(super) free: Option<[u64; vk::MAX_MEMORY_HEAPS]>,
    pub(super) queue_family: u32,
    pub(super) timestamp_bits: u32,
    pub(super) fixed_subgroup: bool,
    /// What invocations of a subgroup can do together.
    pub(super) subgroup_operations: vk::SubgroupFeatureFlags,
    pub(super) target: Target,
    /// Whether cooperative matrices are emulated.
    pub(super) emulated: bool,
    /// Bytes of weights that groups may read ahead.
    pub(super) read_ahead: u64,
    /// What it lacks that cannot be done without.
    pub(super) missing: Option<&'static str>,
    /// What fell back, and why.
    pub(super) notes: Vec<String>,
}

/// Bytes of weights that groups of a card read ahead: a small part of its cache. Larger windows cost more
/// than they bring.
const READ_AHEAD: u64 = 4 << 20;

/// Workgroups in each dimension that every device starts.
const LEAST_GROUPS: u32 = 65_535;

/// What our kernels do with subgroups.
const SUBGROUP_OPERATIONS: vk::SubgroupFeatureFlags = vk::SubgroupFeatureFlags::from_raw(
    vk::SubgroupFeatureFlags::BASIC.as_raw()
        | vk::SubgroupFeatureFlags::VOTE.as_raw()
        | vk::SubgroupFeatureFlags::ARITHMETIC.as_raw()
        | vk::SubgroupFeatureFlags::SHUFFLE.as_raw(),
);

const VALIDATION: &CStr = c"VK_LAYER_KHRONOS_validation";

impl Instance {
    pub(super) fn load(options: VulkanOptions) -> Result<Self> {
        let no_device = |reason: String| GpuError::NoDevice { reason };
        // SAFETY: this runs the initialisers of the system's Vulkan loader, which is trusted as its administrator
        // trusts it. The entry is kept as long as anything that was loaded through it.
        let entry = unsafe { ash::Entry::load() }
            .map_err(|e| no_device(format!("the Vulkan loader is not installed ({e})")))?;
        let app = vk::ApplicationInfo::default()
            .application_name(c"clearway")
            .engine_name(c"clearway")
            .api_version(vk::API_VERSION_1_3);
        let mut extensions: Vec<*const c_char> = Vec::new();
        let mut layers: Vec<*const c_char> = Vec::new();
        // SAFETY: the entry was loaded above; no layer is named.
        let known = unsafe { entry.enumerate_instance_extension_properties(None) };
        let known = known.map_err(|e| no_device(format!("the loader reports {e}")))?;
        let has = |name: &CStr| known.iter().any(|p| p.extension_name_as_c_str() == Ok(name));
        let mut flags = vk::InstanceCreateFlags::empty();
        if has(khr::portability_enumeration::NAME) {
            extensions.push(khr::portability_enumeration::NAME.as_ptr());
            flags |= vk::InstanceCreateFlags::ENUMERATE_PORTABILITY_KHR;
        }
        if options.validate {
            // SAFETY: the entry was loaded above.
            let found = unsafe { entry.enumerate_instance_layer_properties() };
            let found = found.unwrap_or_default();
            if !found.iter().any(|p| p.layer_name_as_c_str() == Ok(VALIDATION)) {
                let reason =
                    "the validation layer is not installed (Debian: vulkan-validationlayers)";
                return Err(no_device(reason.into()));
            }
            layers.push(VALIDATION.as_ptr());
            extensions.push(ext::debug_utils::NAME.as_ptr());
            extensions.push(ext::validation_features::NAME.as_ptr());
        }
        let enables = [vk::ValidationFeatureEnableEXT::SYNCHRONIZATION_VALIDATION];
        let mut features =
            vk::ValidationFeaturesEXT::default().enabled_validation_features(&enables);
        let mut info = vk::InstanceCreateInfo::default()
            .application_info(&app)
            .enabled_extension_names(&extensions)
            .enabled_layer_names(&layers)
            .flags(flags);
        if options.validate {
            info = info.push_next(&mut features);
        }
        // SAFETY: VUID-vkCreateInstance-ppEnabledExtensionNames-01388: portability is asked for where the loader has it,
        // the others come with the validation layer, which was found. Unknown ones would be an error and
        // nothing worse. Everything the info points to is a local of this function.
        let raw = unsafe { entry.create_instance(&info, None) }
            .map_err(|e| no_device(format!("no driver could be started ({e})")))?;
        let messages = Arc::new(Mutex::new(Vec::new()));
        let mut instance = Self { raw, options, messenger: None, messages, entry };
        if options.validate {
            instance.listen()?;
        }
        Ok(instance)
    }

    /// Collects what the validation layers report.
    fn listen(&mut self) -> Result<()> {
        use vk::{
            DebugUtilsMessageSeverityFlagsEXT as Severity, DebugUtilsMessageTypeFlagsEXT as Kind,
        };
        let user = Arc::as_ptr(&self.messages).cast_mut().cast();
        let info = vk::DebugUtilsMessengerCreateInfoEXT::default()
            .message_severity(Severity::ERROR | Severity::WARNING)
            .message_type(Kind::VALIDATION | Kind::PERFORMANCE)
            .pfn_user_callback(Some(on_message))
            .user_data(user);
        let utils = ext::debug_utils::Instance::new(&self.entry, &self.raw);
        // SAFETY: the extension was enabled with the instance. The callback expects the list of messages as user
        // data; the instance owns it and destroys the messenger before it goes.
        let messenger =
            unsafe { utils.create_debug_utils_messenger(&info, None) }.map_err(|e| {
                GpuError::NoDevice { reason: format!("the debug messenger reports {e}") }
            })?;
        self.messenger = Some((utils, messenger));
        Ok(())
    }

    /// Every device, in the loader's order.
    pub(super) fn adapters(&self) -> Result<Vec<Adapter>> {
        // SAFETY: the instance is ours and destroyed only when `self` is dropped.
        let found = unsafe { self.raw.enumerate_physical_devices() }.map_err(|e| {
            GpuError::NoDevice { reason: format!("devices cannot be listed ({e})") }
        })?;
        Ok(found.into_iter().enumerate().map(|(index, raw)| self.adapter(index, raw)).collect())
    }

    fn adapter(&self, index: usize, raw: vk::PhysicalDevice) -> Adapter {
        // SAFETY: `adapters` got the handle from this instance, which keeps it valid; no layer is named.
        let extensions = unsafe { self.raw.enumerate_device_extension_properties(raw) };
        let extensions = extensions.unwrap_or_default();
        let has = |name: &CStr| extensions.iter().any(|p| p.extension_name_as_c_str() == Ok(name));
        let mut vulkan11 = vk::PhysicalDeviceVulkan11Properties::default();
        let mut vulkan12 = vk::PhysicalDeviceVulkan12Properties::default();
        let mut vulkan13 = vk::PhysicalDeviceVulkan13Properties::default();
        let mut sm = vk::PhysicalDeviceShaderSMBuiltinsPropertiesNV::default();
        // SAFETY: `adapters` got the handle from this instance, which keeps it valid.
        let basic = unsafe { self.raw.get_physical_device_properties(raw) };
        let modern = basic.api_version >= vk::API_VERSION_1_3;
        let properties = if modern {
            let mut properties = vk::PhysicalDeviceProperties2::default()
                .push_next(&mut vulkan11)
                .push_next(&mut vulkan12)
                .push_next(&mut vulkan13);
            if has(nv::shader_sm_builtins::NAME) {
                properties = properties.push_next(&mut sm);
            }
            // SAFETY: the handle comes from this instance. VUID-VkPhysicalDeviceProperties2-pNext-pNext: the device
            // has version 1.3, and the extension of the last structure where that is in the chain.
            unsafe { self.raw.get_physical_device_properties2(raw, &mut properties) };
            properties.properties
        } else {
            basic
        };
        // SAFETY: `adapters` got the handle from this instance, which keeps it valid.
        let memory = unsafe { self.raw.get_physical_device_memory_properties(raw) };
        // SAFETY: `adapters` got the handle from this instance, which keeps it valid.
        let families = unsafe { self.raw.get_physical_device_queue_family_properties(raw) };
        let computes =
            |f: &vk::QueueFamilyProperties| f.queue_flags.contains(vk::QueueFlags::COMPUTE);
        let family = families.iter().position(computes);

        let text = |bytes: std::result::Result<&CStr, _>| {
            bytes.map_or(String::new(), |s: &CStr| s.to_string_lossy().into_owned())
        };
        let name = text(properties.device_name_as_c_str());
        let driver = format!(
            "{} {}",
            text(vulkan12.driver_name_as_c_str()),
            text(vulkan12.driver_info_as_c_str())
        );
        let uuid: String =
            properties.pipeline_cache_uuid.iter().map(|b| format!("{b:02x}")).collect();

        let fixed_subgroup = vulkan13.min_subgroup_size == vulkan13.max_subgroup_size;
        let mut notes = Vec::new();
        let mut missing = match (modern, family) {
            (false, _) => Some("Vulkan 1.3"),
            (_, None) => Some("a compute queue"),
            _ => None,
        };
        let (mut cooperative, mut packed_dot, mut has_clock) = (false, false, false);
        if missing.is_none() {
            let features = self.features(
                raw,
                has(khr::cooperative_matrix::NAME),
                has(khr::shader_clock::NAME),
            );
            has_clock = features.clock;
            missing = features.missing.or_else(|| {
                let has = vulkan11.subgroup_supported_operations.contains(SUBGROUP_OPERATIONS);
                (!has).then_some("subgroup arithmetic, votes or shuffles")
            });
            // A driver that chooses among sizes must let us choose.
            let sizes = vulkan13.required_subgroup_size_stages;
            if !fixed_subgroup && !sizes.contains(vk::ShaderStageFlags::COMPUTE) {
                missing = missing.or(Some("a subgroup size that can be asked for"));
            }
            if properties.limits.max_per_stage_descriptor_storage_buffers < MAX_BINDINGS as u32 {
                missing = missing.or(Some("ten storage buffers in a kernel"));
            }
            packed_dot = vulkan13.integer_dot_product4x8_bit_packed_signed_accelerated == vk::TRUE;
            cooperative = self.options.matrices
                && features.cooperative
                && vulkan11.subgroup_size == 32
                && self.has_square_tiles(raw);
            if !packed_dot {
                notes.push("packed 8-bit dots are emulated".into());
            }
            if !cooperative {
                notes.push(
                    "no 16x16 cooperative matrices of 32 invocations: products of many rows use tiles"
                        .into(),
                );
            }
        }
        let limits = properties.limits;
        let has_budget = modern && has(ext::memory_budget::NAME);
        let processors = if let Some(processors) = self.options.processors {
            processors.max(1)
        } else if sm.shader_sm_count > 0 {
            sm.shader_sm_count
        } else if properties.device_type == vk::PhysicalDeviceType::CPU {
            std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as u32
        } else {
            32 // a mid-sized card: only how work is cut depends on it
        };
        let subgroup = vulkan11.subgroup_size.clamp(1, 128);
        // Where a size is asked for, a workgroup has so many subgroups at most.
        let most_invocations = match fixed_subgroup {
            true => u32::MAX,
            false => subgroup.saturating_mul(vulkan13.max_compute_workgroup_subgroups),
        };
        let max_groups =
            limits.max_compute_work_group_count.into_iter().min().unwrap_or(LEAST_GROUPS);
        let target = Target {
            subgroup,
            max_invocations: limits.max_compute_work_group_invocations.min(most_invocations),
            shared_bytes: limits.max_compute_shared_memory_size,
            max_groups,
            max_binding: u64::from(limits.max_storage_buffer_range)
                .min(self.options.max_binding.unwrap_or(u64::MAX)),
            packed_dot,
            cooperative,
            halves: true,
            tickets: true,
            counters: false,
            processors,
        };
        Adapter {
            raw,
            index,
            name,
            kind: properties.device_type,
            driver: driver.trim().to_owned(),
            cache_key: format!(
                "{:08x}-{:08x}-{uuid}",
                properties.vendor_id, properties.driver_version
            ),
            limits,
            max_buffer_bytes: if modern { vulkan13.max_buffer_size } else { 1 << 30 },
            memory,
            has_budget,
            has_clock,
            has_statistics: modern && has(khr::pipeline_executable_properties::NAME),
            free: has_budget.then(|| self.free(raw)),
            queue_family: family.unwrap_or(0) as u32,
            timestamp_bits: family.map_or(0, |f| families[f].timestamp_valid_bits),
            fixed_subgroup,
            subgroup_operations: vulkan11.subgroup_supported_operations,
            target,
            emulated: false,
            read_ahead: self
                .options
                .read_ahead
                .unwrap_or(match properties.device_type {
                    vk::PhysicalDeviceType::DISCRETE_GPU => READ_AHEAD,
                    _ => 0, // memory that is shared with the host is never idle enough
                })
                .min(u64::from(max_groups) * prefetch::GROUP_BYTES),
            missing,
            notes,
        }
    }

    /// Bytes the driver would still give of each heap of a device that has the budget extension.
    pub(super) fn free(&self, raw: vk::PhysicalDevice) -> [u64; vk::MAX_MEMORY_HEAPS] {
        let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
        let mut properties = vk::PhysicalDeviceMemoryProperties2::default().push_next(&mut budget);
        // SAFETY: both callers have seen that the device has version 1.3 and the budget extension, so every structure
        // in the chain is known to it (VUID-VkPhysicalDeviceMemoryProperties2-pNext-pNext).
        unsafe { self.raw.get_physical_device_memory_properties2(raw, &mut properties) };
        std::array::from_fn(|heap| budget.heap_budget[heap].saturating_sub(budget.heap_usage[heap]))
    }

    fn features(&self, raw: vk::PhysicalDevice, ask_cooperative: bool, ask_clock: bool) -> Found {
        let mut f11 = vk::PhysicalDeviceVulkan11Features::default();
        let mut f12 = vk::PhysicalDeviceVulkan12Features::default();
        let mut f13 = vk::PhysicalDeviceVulkan13Features::default();
        let mut matrix = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default();
        let mut clock = vk::PhysicalDeviceShaderClockFeaturesKHR::default();
        let mut features = vk::PhysicalDeviceFeatures2::default()
            .push_next(&mut f11)
            .push_next(&mut f12)
            .push_next(&mut f13);
        if ask_cooperative {
            features = features.push_next(&mut matrix);
        }
        if ask_clock {
            features = features.push_next(&mut clock);
        }
        // SAFETY: VUID-VkPhysicalDeviceFeatures2-pNext-pNext: `adapter` calls this for devices of version 1.3, and says
        // whether they have the extensions of the last structures.
        unsafe { self.raw.get_physical_device_features2(raw, &mut features) };
        let needed = [
            (f11.storage_buffer16_bit_access, "16-bit storage"),
            // Naga asks for it wherever it asks for the other.
            (f11.uniform_and_storage_buffer16_bit_access, "16-bit uniform storage"),
            (f12.shader_float16, "16-bit float arithmetic"),
            (f12.timeline_semaphore, "timeline semaphores"),
            (f12.host_query_reset, "query reset from the host"),
            (f13.synchronization2, "synchronization2"),
            (f13.maintenance4, "maintenance4"),
            (f13.shader_integer_dot_product, "integer dot products"),
        ];
        let missing = needed.iter().find(|(has, _)| *has != vk::TRUE).map(|&(_, name)| name);
        // Naga's words for matrices declare the Vulkan memory model, and barriers of buffers have scope `Device`.
        let model =
            f12.vulkan_memory_model == vk::TRUE && f12.vulkan_memory_model_device_scope == vk::TRUE;
        let cooperative = matrix.cooperative_matrix == vk::TRUE && model;
        Found { missing, cooperative, clock: clock.shader_device_clock == vk::TRUE }
    }

    /// Whether the device multiplies 16x16 tiles of f16 into f32 sums across a subgroup.
    fn has_square_tiles(&self, raw: vk::PhysicalDevice) -> bool {
        let loader = khr::cooperative_matrix::Instance::new(&self.entry, &self.raw);
        // SAFETY: `features` found the feature, and so the extension, before `adapter` calls this.
        let shapes = unsafe { loader.get_physical_device_cooperative_matrix_properties(raw) };
        let (half, full) = (vk::ComponentTypeKHR::FLOAT16, vk::ComponentTypeKHR::FLOAT32);
        shapes.unwrap_or_default().iter().any(|p| {
            (p.m_size, p.n_size, p.k_size) == (16, 16, 16)
                && (p.a_type, p.b_type, p.c_type, p.result_type) == (half, half, full, full)
                && p.scope == vk::ScopeKHR::SUBGROUP
        })
    }
}

struct Found {
    missing: Option<&'static str>,
    cooperative: bool,
    clock: bool,
}

impl Adapter {
    /// Whether it is a software driver on the CPU.
    pub(super) fn is_software(&self) -> bool {
        self.kind == vk::PhysicalDeviceType::CPU
    }

    /// The same device, but with cooperative matrices that are arrays of ordinary invocations.
    #[cfg(feature = "testkit")]
    pub(super) fn emulating_matrices(mut self) -> Self {
        self.emulated = true;
        self.target.cooperative = true;
        // The largest tiles of a card. Software drivers promise less, but take what a kernel asks for.
        self.target.shared_bytes = self.target.shared_bytes.max(48 << 10);
        self
    }

    /// Whether kernels use cooperative matrices of the device itself.
    pub(super) fn has_matrices(&self) -> bool {
        self.target.cooperative && !self.emulated
    }

    /// Bytes of memory on the device itself.
    pub(super) fn local_bytes(&self) -> u64 {
        let heaps = self.memory.memory_heaps_as_slice().iter();
        let local = heaps.filter(|h| h.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL));
        local.map(|heap| heap.size).max().unwrap_or(0)
    }

    /// One line for people.
    pub(super) fn describe(&self) -> String {
        let Target { subgroup, packed_dot, cooperative, .. } = self.target;
        let yes = |b: bool| if b { "yes" } else { "no" };
        let mut line = format!(
            "{}, driver {}, heaps {}, subgroup {subgroup}, f16 yes, packed 8-bit dot {}, cooperative matrix {}",
            self.name,
            self.driver,
            self.heaps(),
            yes(packed_dot),
            yes(cooperative),
        );
        if let Some(missing) = self.missing {
            line.push_str(&format!("; cannot be used: {missing} is missing"));
        }
        for note in &self.notes {
            line.push_str("; ");
            line.push_str(note);
        }
        line
    }

    /// Size, place and free bytes of each heap.
    fn heaps(&self) -> String {
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        let heaps = self.memory.memory_heaps_as_slice().iter().enumerate().map(|(index, heap)| {
            let local = heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL);
            let place = if local { "device" } else { "host" };
            let free = self.free.map_or(String::new(), |f| format!(", {:.1} free", gib(f[index])));
            format!("{:.1} GiB {place}{free}", gib(heap.size))
        });
        heaps.collect::<Vec<_>>().join(" + ")
    }

    /// Order of choice: real cards before integrated ones before software.
    pub(super) fn rank(&self) -> u32 {
        match self.kind {
            vk::PhysicalDeviceType::DISCRETE_GPU => 0,
            vk::PhysicalDeviceType::INTEGRATED_GPU => 1,
            vk::PhysicalDeviceType::VIRTUAL_GPU => 2,
            vk::PhysicalDeviceType::CPU => 4,
            _ => 3,
        }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if let Some((utils, messenger)) = self.messenger.take() {
            // SAFETY: the messenger belongs to this instance and was taken out of it. No device is left that could call
            // it: each keeps the instance.
            unsafe { utils.destroy_debug_utils_messenger(messenger, None) };
        }
        // SAFETY: VUID-vkDestroyInstance-instance-00629: every `Handle` of a device keeps the instance, an abandoned
        // one for good, so no device is left, and the messenger went just before.
        unsafe { self.raw.destroy_instance(None) };
    }
}

/// Receives what the validation layers report.
///
/// # Safety
/// `data` is null or valid for the time of the call, and `user` points to the list of messages.
unsafe extern "system" fn on_message(
    _severity: vk::DebugUtilsMessageSeverityFlagsEXT,
    _kind: vk::DebugUtilsMessageTypeFlagsEXT,
    data: *const vk::DebugUtilsMessengerCallbackDataEXT<'_>,
    user: *mut std::ffi::c_void,
) -> vk::Bool32 {
    // SAFETY: the layer, which alone calls this, passes a structure that is valid for the time of the call.
    let Some(data) = (unsafe { data.as_ref() }) else { return vk::FALSE };
    // SAFETY: the layer's message is null or a string that ends in zero (VUID-VkDebugUtilsMessengerCallbackDataEXT-
    // pMessage-parameter).
    let text = unsafe { data.message_as_c_str() };
    // SAFETY: `listen` gave the list that the instance owns as user data; it outlives the messenger.
    let messages = unsafe { user.cast::<Mutex<Vec<String>>>().as_ref() };
    if let (Some(text), Some(messages)) = (text, messages) {
        let mut list = messages.lock().unwrap_or_else(PoisonError::into_inner);
        list.push(text.to_string_lossy().into_owned());
    }
    vk::FALSE
}
