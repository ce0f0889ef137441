//! The device: opening it, buffers, kernels, submissions. No raw handle leaves this module; errors name the line of
//! the call.
//!
//! Nothing is destroyed before the process ends, so every handle stays good. One thread records and submits, and
//! waits for each submission; only `Compiler` goes to other threads.

use std::ffi::{CStr, c_void};
use std::ptr;

use ash::{khr, vk};

pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong, and the line of the call that said so.
pub struct Error(pub String);

impl<E: std::fmt::Display> From<E> for Error {
    #[track_caller]
    fn from(error: E) -> Self {
        Self(format!("{}: {error}", std::panic::Location::caller()))
    }
}

/// Timestamps of a submission, at most.
pub const QUERIES: u32 = 320;

const MATRIX2: &CStr = c"VK_NV_cooperative_matrix2";

/// VkPhysicalDeviceCooperativeMatrix2FeaturesNV, which ash does not have yet. The flags: workgroup scope, flexible
/// dimensions, reductions, conversions, operations on elements, tensor addressing, block loads.
#[repr(C)]
struct Matrix2Features {
    s_type: i32,
    p_next: *mut c_void,
    flags: [u32; 7],
}

/// VkPhysicalDeviceCooperativeMatrix2PropertiesNV.
#[repr(C)]
struct Matrix2Properties {
    s_type: i32,
    p_next: *mut c_void,
    most_invocations: u32,
    largest_dimension: u32,
    reserved_bytes: u32,
}

/// VkCooperativeMatrixFlexibleDimensionsPropertiesNV: multiples of M, N and K, component types of A, B, C and the
/// result, saturation, scope (2, the workgroup) and its invocations.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Dimensions {
    s_type: i32,
    p_next: *mut c_void,
    pub multiples: [u32; 3],
    pub types: [i32; 4],
    pub saturating: u32,
    pub scope: i32,
    pub invocations: u32,
}

type DimensionsFn =
    unsafe extern "system" fn(vk::PhysicalDevice, *mut u32, *mut Dimensions) -> vk::Result;

pub struct Gpu {
    /// Keeps the loader's library.
    _entry: ash::Entry,
    device: ash::Device,
    memory: vk::PhysicalDeviceMemoryProperties,
    queue: vk::Queue,
    queries: vk::QueryPool,
    fence: vk::Fence,
    commands: vk::CommandBuffer,
    set_layout: vk::DescriptorSetLayout,
    layout: vk::PipelineLayout,
    sets: vk::DescriptorPool,
    executables: khr::pipeline_executable_properties::Device,
    tick_ns: f64,
    tick_mask: u64,
    staging: Option<Buffer>,
    pub dimensions: Vec<Dimensions>,
    pub most_invocations: u32,
    pub largest_dimension: u32,
}

/// A buffer, and where it is mapped if it is the host's.
#[derive(Clone, Copy)]
pub struct Buffer {
    raw: vk::Buffer,
    pub bytes: u64,
    start: *mut u8,
}

#[derive(Clone, Copy)]
pub struct Kernel(vk::Pipeline);

/// Buffers for the four bindings of a kernel.
#[derive(Clone, Copy)]
pub struct Set(vk::DescriptorSet);

impl Gpu {
    /// Opens the first NVIDIA device, and prints what it says of matrices.
    pub fn open() -> Result<Self> {
        // SAFETY: this runs the initialisers of the system's Vulkan loader, which is trusted. The entry is kept.
        let entry = unsafe { ash::Entry::load() }?;
        let app = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_3);
        let info = vk::InstanceCreateInfo::default().application_info(&app);
        // SAFETY: the entry was loaded above; neither extensions nor layers are named.
        let instance = unsafe { entry.create_instance(&info, None) }?;
        // SAFETY: the instance was made above.
        let found = unsafe { instance.enumerate_physical_devices() }?;
        let devices = found.into_iter().map(|p| {
            // SAFETY: the device is one of the instance.
            (p, unsafe { instance.get_physical_device_properties(p) })
        });
        let (physical, properties) =
            devices.into_iter().find(|d| d.1.vendor_id == 0x10de).ok_or("no NVIDIA device")?;
        let name = properties.device_name_as_c_str().unwrap_or_default();
        println!("# {}, driver {:#x}", name.to_string_lossy(), properties.driver_version);
        // SAFETY: the device is one of the instance.
        let families = unsafe { instance.get_physical_device_queue_family_properties(physical) };
        let usable = |f: &vk::QueueFamilyProperties| {
            f.queue_flags.contains(vk::QueueFlags::COMPUTE) && f.timestamp_valid_bits > 0
        };
        let family = families.iter().position(usable).ok_or("no compute queue with timestamps")?;
        let bits = families[family].timestamp_valid_bits;
        let family = family as u32;
        let device = create_device(&instance, physical, family)?;
        let executables = khr::pipeline_executable_properties::Device::new(&instance, &device);
        let limits = limits(&instance, physical);
        let dimensions = dimensions(&entry, &instance, physical)?;

        // SAFETY: VUID-vkGetDeviceQueue-queueFamilyIndex-00384: the device has one queue, of this family.
        let queue = unsafe { device.get_device_queue(family, 0) };
        let info = vk::CommandPoolCreateInfo::default()
            .queue_family_index(family)
            .flags(vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER);
        // SAFETY: VUID-vkCreateCommandPool-queueFamilyIndex-01937: the family is one of the device.
        let pool = unsafe { device.create_command_pool(&info, None) }?;
        let info =
            vk::CommandBufferAllocateInfo::default().command_pool(pool).command_buffer_count(1);
        // SAFETY: the pool was made above, and no other thread has it.
        let commands = unsafe { device.allocate_command_buffers(&info) }?[0];
        let info = vk::QueryPoolCreateInfo::default()
            .query_type(vk::QueryType::TIMESTAMP)
            .query_count(QUERIES);
        // SAFETY: VUID-VkQueryPoolCreateInfo-queryCount-02763: the count is not zero.
        let queries = unsafe { device.create_query_pool(&info, None) }?;
        let info = vk::FenceCreateInfo::default();
        // SAFETY: the device was made above.
        let fence = unsafe { device.create_fence(&info, None) }?;

        let bindings: Vec<_> = (0..4)
            .map(|binding| {
                vk::DescriptorSetLayoutBinding::default()
                    .binding(binding)
                    .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                    .descriptor_count(1)
                    .stage_flags(vk::ShaderStageFlags::COMPUTE)
            })
            .collect();
        let info = vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings);
        // SAFETY: VUID-VkDescriptorSetLayoutCreateInfo-binding-00279: no binding is there twice.
        let set_layouts = [unsafe { device.create_descriptor_set_layout(&info, None) }?];
        let constants =
            [vk::PushConstantRange::default().stage_flags(vk::ShaderStageFlags::COMPUTE).size(12)];
        let info = vk::PipelineLayoutCreateInfo::default()
            .set_layouts(&set_layouts)
            .push_constant_ranges(&constants);
        // SAFETY: the layout of the set was made above; every device has 12 bytes of push constants.
        let layout = unsafe { device.create_pipeline_layout(&info, None) }?;
        let sizes = [vk::DescriptorPoolSize::default()
            .ty(vk::DescriptorType::STORAGE_BUFFER)
            .descriptor_count(4 * 128)];
        let info = vk::DescriptorPoolCreateInfo::default().max_sets(128).pool_sizes(&sizes);
        // SAFETY: VUID-VkDescriptorPoolCreateInfo-descriptorPoolOverallocation-09227: neither count is zero.
        let sets = unsafe { device.create_descriptor_pool(&info, None) }?;
        // SAFETY: the device is one of the instance.
        let memory = unsafe { instance.get_physical_device_memory_properties(physical) };
        let mut gpu = Self {
            _entry: entry,
            device,
            memory,
            queue,
            queries,
            fence,
            commands,
            set_layout: set_layouts[0],
            layout,
            sets,
            executables,
            tick_ns: properties.limits.timestamp_period.into(),
            tick_mask: u64::MAX >> (64 - bits.min(64)),
            staging: None,
            dimensions,
            most_invocations: limits.most_invocations,
            largest_dimension: limits.largest_dimension,
        };
        gpu.staging = Some(gpu.buffer(64 << 20, true)?);
        Ok(gpu)
    }

    /// A buffer in the device's memory, or in the host's and mapped. `bytes` is not zero.
    pub fn buffer(&self, bytes: u64, host: bool) -> Result<Buffer> {
        let mut usage = vk::BufferUsageFlags::STORAGE_BUFFER
            | vk::BufferUsageFlags::TRANSFER_SRC
            | vk::BufferUsageFlags::TRANSFER_DST;
        let visible =
            vk::MemoryPropertyFlags::HOST_VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT;
        let wanted: &[_] = if host {
            &[visible | vk::MemoryPropertyFlags::HOST_CACHED, visible]
        } else {
            usage |= vk::BufferUsageFlags::SHADER_DEVICE_ADDRESS;
            &[vk::MemoryPropertyFlags::DEVICE_LOCAL]
        };
        let info = vk::BufferCreateInfo::default().size(bytes).usage(usage);
        // SAFETY: VUID-VkBufferCreateInfo-size-00912: callers ask for more than nothing. The usage is not empty.
        let raw = unsafe { self.device.create_buffer(&info, None) }?;
        // SAFETY: the buffer was made above from the same device.
        let needs = unsafe { self.device.get_buffer_memory_requirements(raw) };
        let types = self.memory.memory_types_as_slice();
        let kind = wanted.iter().find_map(|&wanted| {
            let fits = |&i: &usize| {
                needs.memory_type_bits >> i & 1 != 0 && types[i].property_flags.contains(wanted)
            };
            (0..types.len()).find(fits)
        });
        let mut flags = vk::MemoryAllocateFlagsInfo::default();
        let mut info = vk::MemoryAllocateInfo::default()
            .allocation_size(needs.size)
            .memory_type_index(kind.ok_or("no type of memory fits")? as u32);
        if !host {
            flags.flags = vk::MemoryAllocateFlags::DEVICE_ADDRESS;
            info = info.push_next(&mut flags);
        }
        // SAFETY: VUID-vkAllocateMemory-pAllocateInfo-01714: the type is one of the device, whose addresses are on
        // (VUID-VkMemoryAllocateInfo-flags-03331). A size beyond the heap is an error and nothing worse.
        let memory = unsafe { self.device.allocate_memory(&info, None) }?;
        // SAFETY: VUID-vkBindBufferMemory-buffer-07459, -memory-01035, -memoryOffset-01036 and -size-01037: the
        // buffer is new, its type is one it takes, the offset is zero and the memory as large as it needs.
        unsafe { self.device.bind_buffer_memory(raw, memory, 0) }?;
        let mut start = ptr::null_mut();
        if host {
            let (all, flags) = (vk::WHOLE_SIZE, vk::MemoryMapFlags::empty());
            // SAFETY: VUID-vkMapMemory-memory-00682 and -00678: the type is host-visible, and the memory was
            // allocated above and is mapped once.
            start = unsafe { self.device.map_memory(memory, 0, all, flags) }?;
        }
        Ok(Buffer { raw, bytes, start: start.cast() })
    }

    /// A set over parts of buffers: offset and length in bytes, within the buffer.
    pub fn set(&self, parts: [(Buffer, u64, u64); 4]) -> Result<Set> {
        let layouts = [self.set_layout];
        let info = vk::DescriptorSetAllocateInfo::default()
            .descriptor_pool(self.sets)
            .set_layouts(&layouts);
        // SAFETY: pool and layout are this device's. A pool without room is an error and nothing worse.
        let set = unsafe { self.device.allocate_descriptor_sets(&info) }?[0];
        let parts = parts.map(|(buffer, offset, range)| {
            [vk::DescriptorBufferInfo { buffer: buffer.raw, offset, range }]
        });
        let writes: Vec<_> = (0..)
            .zip(&parts)
            .map(|(binding, part)| {
                vk::WriteDescriptorSet::default()
                    .dst_set(set)
                    .dst_binding(binding)
                    .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                    .buffer_info(part)
            })
            .collect();
        // SAFETY: the set is new, so nothing uses it. Callers name parts of live buffers (VUID-VkDescriptorBufferInfo-
        // offset-00340 and -range-00342) at multiples of 256 bytes (VUID-VkWriteDescriptorSet-descriptorType-00328).
        unsafe { self.device.update_descriptor_sets(&writes, &[]) };
        Ok(Set(set))
    }

    /// Begins to record.
    pub fn begin(&self) -> Result<()> {
        let info = vk::CommandBufferBeginInfo::default()
            .flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
        // SAFETY: VUID-vkBeginCommandBuffer-commandBuffer-00049: `submit` waits, so nothing is under way. The pool
        // lets its buffers be reset (-00050).
        unsafe { self.device.begin_command_buffer(self.commands, &info) }?;
        // SAFETY: recording began above; all queries of the pool are reset.
        unsafe { self.device.cmd_reset_query_pool(self.commands, self.queries, 0, QUERIES) };
        Ok(())
    }

    /// All before is done and seen by all behind, copies and the host included.
    pub fn barrier(&self) {
        let stages = vk::PipelineStageFlags::TRANSFER | vk::PipelineStageFlags::COMPUTE_SHADER;
        let any = vk::AccessFlags::MEMORY_READ | vk::AccessFlags::MEMORY_WRITE;
        self.ordered(stages, any, stages | vk::PipelineStageFlags::HOST, any);
    }

    /// What a dispatch wrote is seen by the next.
    pub fn phase(&self) {
        let stages = vk::PipelineStageFlags::COMPUTE_SHADER;
        let write = vk::AccessFlags::SHADER_WRITE;
        self.ordered(stages, write, stages, write | vk::AccessFlags::SHADER_READ);
    }

    fn ordered(
        &self,
        before: vk::PipelineStageFlags,
        written: vk::AccessFlags,
        behind: vk::PipelineStageFlags,
        read: vk::AccessFlags,
    ) {
        let barriers =
            [vk::MemoryBarrier::default().src_access_mask(written).dst_access_mask(read)];
        let flags = vk::DependencyFlags::empty();
        let commands = self.commands;
        // SAFETY: callers record; a compute queue has these stages, and they have these accesses.
        unsafe {
            self.device.cmd_pipeline_barrier(commands, before, behind, flags, &barriers, &[], &[])
        };
    }

    /// Notes the time when all before is done. `query` is below `QUERIES` and used once in a submission.
    pub fn stamp(&self, query: u32) {
        let stage = vk::PipelineStageFlags::BOTTOM_OF_PIPE;
        // SAFETY: callers record; VUID-vkCmdWriteTimestamp-None-00830: `begin` reset the query.
        unsafe { self.device.cmd_write_timestamp(self.commands, stage, self.queries, query) };
    }

    /// Fills a buffer with bytes of all ones, which are not a number.
    pub fn fill(&self, buffer: Buffer) {
        let (raw, all) = (buffer.raw, vk::WHOLE_SIZE);
        // SAFETY: callers record; the buffer lives and may be copied to (VUID-vkCmdFillBuffer-dstBuffer-00029).
        unsafe { self.device.cmd_fill_buffer(self.commands, raw, 0, all, u32::MAX) };
    }

    /// Copies parts: from, to and length in bytes, within the buffers.
    pub fn copy(&self, from: Buffer, to: Buffer, parts: &[(u64, u64, u64)]) {
        let region =
            |&(src_offset, dst_offset, size): &_| vk::BufferCopy { src_offset, dst_offset, size };
        let regions: Vec<_> = parts.iter().map(region).collect();
        // SAFETY: callers record, and name parts within both buffers (VUID-vkCmdCopyBuffer-size-00115 and -00116),
        // which are two.
        unsafe { self.device.cmd_copy_buffer(self.commands, from.raw, to.raw, &regions) };
    }

    /// Kernel and shape for the dispatches that follow.
    pub fn bind(&self, kernel: Kernel, shape: [u32; 3]) {
        let (commands, point) = (self.commands, vk::PipelineBindPoint::COMPUTE);
        // SAFETY: callers record; the pipeline is one for compute.
        unsafe { self.device.cmd_bind_pipeline(commands, point, kernel.0) };
        let (stages, bytes) = (vk::ShaderStageFlags::COMPUTE, bytemuck::bytes_of(&shape));
        // SAFETY: callers record; the layout has these 12 bytes for this stage (VUID-vkCmdPushConstants-offset-01795).
        unsafe { self.device.cmd_push_constants(commands, self.layout, stages, 0, bytes) };
    }

    /// So many workgroups of the kernel over a set that has all it reads and writes.
    pub fn dispatch(&self, set: Set, groups: (u32, u32)) {
        let (commands, point) = (self.commands, vk::PipelineBindPoint::COMPUTE);
        let sets = [set.0];
        // SAFETY: callers record; the set was allocated with the set layout of this pipeline layout.
        unsafe {
            self.device.cmd_bind_descriptor_sets(commands, point, self.layout, 0, &sets, &[])
        };
        // SAFETY: callers bound a kernel of this layout. Shapes are whole tiles and the set's parts as large as the
        // shape, so the kernel stays within them.
        unsafe { self.device.cmd_dispatch(commands, groups.0, groups.1, 1) };
    }

    /// Ends, submits and waits at most so many seconds. An error ends the use of the device.
    pub fn submit(&self, seconds: u64) -> Result<()> {
        // SAFETY: callers record, and record nothing more.
        unsafe { self.device.end_command_buffer(self.commands) }?;
        let commands = [self.commands];
        let info = [vk::SubmitInfo::default().command_buffers(&commands)];
        // SAFETY: one thread has the queue. The recording has ended (VUID-vkQueueSubmit-pCommandBuffers-00070), and
        // the fence is not signalled (-fence-00063): it is reset below.
        unsafe { self.device.queue_submit(self.queue, &info, self.fence) }?;
        let (fences, limit) = ([self.fence], seconds * 1_000_000_000);
        // SAFETY: the fence is this device's.
        unsafe { self.device.wait_for_fences(&fences, true, limit) }?;
        // SAFETY: VUID-vkResetFences-pFences-01123: the submission it stood for is done.
        Ok(unsafe { self.device.reset_fences(&fences) }?)
    }

    /// Microseconds between one timestamp of the last submission and the next, of the first `count`.
    pub fn times(&self, count: usize) -> Result<Vec<f64>> {
        let mut ticks = vec![0u64; count];
        let flags = vk::QueryResultFlags::TYPE_64 | vk::QueryResultFlags::WAIT;
        // SAFETY: callers wrote these queries in a submission that is done, and count no more than `QUERIES`
        // (VUID-vkGetQueryPoolResults-None-09401 and -firstQuery-09437).
        unsafe { self.device.get_query_pool_results(self.queries, 0, &mut ticks, flags) }?;
        let us = |w: &[u64]| (w[1].wrapping_sub(w[0]) & self.tick_mask) as f64 * self.tick_ns / 1e3;
        Ok(ticks.windows(2).map(us).collect())
    }

    /// Puts bytes into a buffer of the device that is as large.
    pub fn upload(&self, to: Buffer, bytes: &[u8]) -> Result<()> {
        let staging = self.staging.ok_or("no staging buffer")?;
        let mut offset = 0;
        for part in bytes.chunks(staging.bytes as usize) {
            // SAFETY: the staging buffer is mapped, no smaller than the part, and nothing is under way that uses it.
            unsafe { ptr::copy_nonoverlapping(part.as_ptr(), staging.start, part.len()) };
            self.begin()?;
            self.copy(staging, to, &[(0, offset, part.len() as u64)]);
            self.barrier();
            self.submit(10)?;
            offset += part.len() as u64;
        }
        Ok(())
    }

    /// The bytes of a buffer of the host, copied. Nothing that writes them is under way.
    pub fn read(&self, from: Buffer) -> Vec<u8> {
        let mut bytes = vec![0; from.bytes as usize];
        if !from.start.is_null() {
            // SAFETY: the buffer is mapped, as long as the vector, and callers have waited for what writes it.
            unsafe { ptr::copy_nonoverlapping(from.start, bytes.as_mut_ptr(), bytes.len()) };
        }
        bytes
    }

    /// What makes kernels, on any thread.
    pub fn compiler(&self) -> Compiler {
        let (device, executables) = (self.device.clone(), self.executables.clone());
        Compiler { device, layout: self.layout, executables }
    }
}

/// The device with one queue of the family and all that kernels use.
fn create_device(
    instance: &ash::Instance,
    physical: vk::PhysicalDevice,
    family: u32,
) -> Result<ash::Device> {
    let queues =
        [vk::DeviceQueueCreateInfo::default().queue_family_index(family).queue_priorities(&[1.0])];
    let mut matrix2 =
        Matrix2Features { s_type: 1000593000, p_next: ptr::null_mut(), flags: [1; 7] };
    let mut matrix =
        vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default().cooperative_matrix(true);
    matrix.p_next = ptr::from_mut(&mut matrix2).cast();
    let mut statistics = vk::PhysicalDevicePipelineExecutablePropertiesFeaturesKHR::default()
        .pipeline_executable_info(true);
    let mut v13 = vk::PhysicalDeviceVulkan13Features::default().maintenance4(true);
    let mut v12 = vk::PhysicalDeviceVulkan12Features::default()
        .shader_float16(true)
        .vulkan_memory_model(true)
        .vulkan_memory_model_device_scope(true)
        .buffer_device_address(true)
        .timeline_semaphore(true);
    let mut v11 = vk::PhysicalDeviceVulkan11Features::default().storage_buffer16_bit_access(true);
    let features = vk::PhysicalDeviceFeatures::default().shader_int16(true);
    let mut base = vk::PhysicalDeviceFeatures2::default().features(features);
    let extensions = [
        MATRIX2.as_ptr(),
        khr::cooperative_matrix::NAME.as_ptr(),
        khr::pipeline_executable_properties::NAME.as_ptr(),
    ];
    let info = vk::DeviceCreateInfo::default()
        .queue_create_infos(&queues)
        .enabled_extension_names(&extensions)
        .push_next(&mut matrix)
        .push_next(&mut statistics)
        .push_next(&mut v13)
        .push_next(&mut v12)
        .push_next(&mut v11)
        .push_next(&mut base);
    // SAFETY: the queue family is one of the device (VUID-VkDeviceQueueCreateInfo-queueFamilyIndex-00381). Every
    // struct of the chain is of Vulkan 1.3 or of an extension that is named, and lives until the call returns.
    // What the device does not have is an error and nothing worse.
    Ok(unsafe { instance.create_device(physical, &info, None) }?)
}

/// What matrices of a workgroup are limited to. The device has their extension.
fn limits(instance: &ash::Instance, physical: vk::PhysicalDevice) -> Matrix2Properties {
    let mut limits = Matrix2Properties {
        s_type: 1000593002,
        p_next: ptr::null_mut(),
        most_invocations: 0,
        largest_dimension: 0,
        reserved_bytes: 0,
    };
    let mut all = vk::PhysicalDeviceProperties2 {
        p_next: ptr::from_mut(&mut limits).cast(),
        ..Default::default()
    };
    // SAFETY: the chain has one struct, of an extension that the device has, laid out as its header has it.
    unsafe { instance.get_physical_device_properties2(physical, &mut all) };
    println!(
        "# workgroup scope: at most {} invocations, {} a dimension, {} bytes of shared memory reserved",
        limits.most_invocations, limits.largest_dimension, limits.reserved_bytes
    );
    limits
}

/// What the device multiplies in matrices of any size.
fn dimensions(
    entry: &ash::Entry,
    instance: &ash::Instance,
    physical: vk::PhysicalDevice,
) -> Result<Vec<Dimensions>> {
    let name = c"vkGetPhysicalDeviceCooperativeMatrixFlexibleDimensionsPropertiesNV";
    // SAFETY: the instance lives and the name is a string.
    let call = unsafe { entry.get_instance_proc_addr(instance.handle(), name.as_ptr()) };
    let call = call.ok_or("no flexible dimensions")?;
    // SAFETY: the loader gave this function for the name, and the header has it with this signature.
    let call = unsafe { std::mem::transmute::<unsafe extern "system" fn(), DimensionsFn>(call) };
    let mut count = 0;
    // SAFETY: the device has the extension; without a list the call only counts.
    unsafe { call(physical, &mut count, ptr::null_mut()) }.result()?;
    let blank = Dimensions {
        s_type: 1000593001,
        p_next: ptr::null_mut(),
        multiples: [0; 3],
        types: [-1; 4],
        saturating: 0,
        scope: 0,
        invocations: 0,
    };
    let mut list = vec![blank; count as usize];
    // SAFETY: the list has as many structs as `count` says, each with its type.
    unsafe { call(physical, &mut count, list.as_mut_ptr()) }.result()?;
    list.truncate(count as usize);
    for d in list.iter().filter(|d| d.scope == 2 && d.types[0] == 0) {
        let sums = if d.types[3] == 0 { "f16" } else { "f32" };
        let [m, n, k] = d.multiples;
        println!("# f16, sums in {sums}: multiples of {m}x{n}x{k}, {} invocations", d.invocations);
    }
    Ok(list)
}

/// Makes kernels. The driver compiles on as many threads as call it.
pub struct Compiler {
    device: ash::Device,
    layout: vk::PipelineLayout,
    executables: khr::pipeline_executable_properties::Device,
}

impl Compiler {
    /// A kernel, and what the driver says of it. The words are a valid module over this layout.
    pub fn kernel(&self, words: &[u32]) -> Result<(Kernel, String)> {
        let info = vk::ShaderModuleCreateInfo::default().code(words);
        // SAFETY: the words are a module as kernel.rs writes it, whose capabilities `Gpu::open` turned on.
        let module = unsafe { self.device.create_shader_module(&info, None) }?;
        let stage = vk::PipelineShaderStageCreateInfo::default()
            .stage(vk::ShaderStageFlags::COMPUTE)
            .module(module)
            .name(c"main");
        let flags = vk::PipelineCreateFlags::CAPTURE_STATISTICS_KHR;
        let infos = [vk::ComputePipelineCreateInfo::default()
            .stage(stage)
            .layout(self.layout)
            .flags(flags)];
        let cache = vk::PipelineCache::null();
        // SAFETY: the module has `main` for compute and uses no more than the layout has (VUID-
        // VkComputePipelineCreateInfo-layout-07987 and -07988). The feature of statistics is on.
        let made = unsafe { self.device.create_compute_pipelines(cache, &infos, None) };
        let made = made.map_err(|e| e.1)?;
        // SAFETY: the pipeline is made, and nothing else uses the module.
        unsafe { self.device.destroy_shader_module(module, None) };
        let kernel = made[0];
        if kernel == vk::Pipeline::null() {
            return Err("vkCreateComputePipelines: success, but no pipeline".into());
        }
        Ok((Kernel(kernel), self.statistics(kernel)))
    }

    fn statistics(&self, pipeline: vk::Pipeline) -> String {
        let info = vk::PipelineExecutableInfoKHR::default().pipeline(pipeline);
        // SAFETY: VUID-vkGetPipelineExecutableStatisticsKHR-pipelineExecutableInfo-03272 and -pipeline-03274: the
        // feature is on and the pipeline was made with statistics. A compute pipeline has one executable.
        let list = unsafe { self.executables.get_pipeline_executable_statistics(&info) };
        let mut text = String::new();
        for statistic in list.unwrap_or_default() {
            let name = statistic.name_as_c_str().unwrap_or_default().to_string_lossy();
            if statistic.format == vk::PipelineExecutableStatisticFormatKHR::UINT64 {
                // SAFETY: the format says that this member was written.
                let value = unsafe { statistic.value.u64 };
                text += &format!(", {name} {value}");
            }
        }
        text
    }
}
