//! What a device says of matrices of a whole workgroup. ash has no names for VK_NV_cooperative_matrix2 yet: structures are laid
//! out here as its header has them.

use std::ffi::{CStr, c_void};
use std::ptr;

use ash::vk;

use crate::wgsl::WideMatrices;

/// The extension.
pub(in super::super) const NAME: &CStr = c"VK_NV_cooperative_matrix2";

/// Invocations of a workgroup: with fewer, the largest tiles take ten times as long.
const INVOCATIONS: u32 = 256;

/// VkPhysicalDeviceCooperativeMatrix2FeaturesNV.
#[repr(C)]
pub(in super::super) struct Features {
    s_type: vk::StructureType,
    p_next: *mut c_void,
    workgroup_scope: vk::Bool32,
    flexible_dimensions: vk::Bool32,
    reductions: vk::Bool32,
    conversions: vk::Bool32,
    operations_on_elements: vk::Bool32,
    tensor_addressing: vk::Bool32,
    block_loads: vk::Bool32,
}

// SAFETY: the header lets the structure stand in this chain, and begins it with its type and a pointer.
unsafe impl vk::ExtendsPhysicalDeviceFeatures2 for Features {}
// SAFETY: as for the other chain.
unsafe impl vk::ExtendsDeviceCreateInfo for Features {}

impl Features {
    const NONE: Self = Self {
        s_type: vk::StructureType::from_raw(1_000_593_000),
        p_next: ptr::null_mut(),
        workgroup_scope: vk::FALSE,
        flexible_dimensions: vk::FALSE,
        reductions: vk::FALSE,
        conversions: vk::FALSE,
        operations_on_elements: vk::FALSE,
        tensor_addressing: vk::FALSE,
        block_loads: vk::FALSE,
    };

    /// What kernels on these matrices use.
    pub(in super::super) fn of(matrices: WideMatrices) -> Self {
        Self {
            workgroup_scope: vk::TRUE,
            flexible_dimensions: vk::TRUE,
            tensor_addressing: vk::TRUE,
            block_loads: matrices.decodes.into(),
            ..Self::NONE
        }
    }
}

/// VkPhysicalDeviceCooperativeMatrix2PropertiesNV: limits of matrices of a workgroup.
#[repr(C)]
struct Properties {
    s_type: vk::StructureType,
    p_next: *mut c_void,
    most_invocations: u32,
    largest: u32,
    reserved_bytes: u32,
}

// SAFETY: the header lets the structure stand in this chain, and begins it with its type and a pointer.
unsafe impl vk::ExtendsPhysicalDeviceProperties2 for Properties {}

/// VkCooperativeMatrixFlexibleDimensionsPropertiesNV.
#[repr(C)]
#[derive(Clone, Copy)]
struct Dimensions {
    s_type: vk::StructureType,
    p_next: *mut c_void,
    /// Of rows and columns of sums, and of columns of the left side.
    multiples: [u32; 3],
    /// Components of both sides, of sums before and after.
    types: [vk::ComponentTypeKHR; 4],
    saturating: vk::Bool32,
    scope: vk::ScopeKHR,
    invocations: u32,
}

type ListDimensions =
    unsafe extern "system" fn(vk::PhysicalDevice, *mut u32, *mut Dimensions) -> vk::Result;

/// A device that has the extension and version 1.3, and the instance it belongs to.
#[derive(Clone, Copy)]
pub(in super::super) struct Asked<'a> {
    entry: &'a ash::Entry,
    instance: &'a ash::Instance,
    raw: vk::PhysicalDevice,
}

impl<'a> Asked<'a> {
    /// `raw` is a device of the instance, has version 1.3 and the extension.
    pub(in super::super) fn new(
        entry: &'a ash::Entry,
        instance: &'a ash::Instance,
        raw: vk::PhysicalDevice,
    ) -> Self {
        Self { entry, instance, raw }
    }

    /// The matrices that kernels can have, if there are any.
    pub(in super::super) fn matrices(self, shared_bytes: u32) -> Option<WideMatrices> {
        let mut f12 = vk::PhysicalDeviceVulkan12Features::default();
        let mut wide = Features::NONE;
        let mut features =
            vk::PhysicalDeviceFeatures2::default().push_next(&mut f12).push_next(&mut wide);
        // SAFETY: VUID-VkPhysicalDeviceFeatures2-pNext-pNext: `new` says that the device has version 1.3 and the extension of
        // the last structure.
        unsafe { self.instance.get_physical_device_features2(self.raw, &mut features) };
        let needed = [wide.workgroup_scope, wide.flexible_dimensions, wide.tensor_addressing];
        if needed.contains(&vk::FALSE) {
            return None;
        }
        let mut limits = Properties {
            s_type: vk::StructureType::from_raw(1_000_593_002),
            p_next: ptr::null_mut(),
            most_invocations: 0,
            largest: 0,
            reserved_bytes: 0,
        };
        let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut limits);
        // SAFETY: VUID-VkPhysicalDeviceProperties2-pNext-pNext: as above.
        unsafe { self.instance.get_physical_device_properties2(self.raw, &mut properties) };
        // Kernels declare no workgroup memory: what the driver stages with is all there is.
        if limits.most_invocations < INVOCATIONS || limits.reserved_bytes > shared_bytes {
            return None;
        }
        let decodes = wide.block_loads == vk::TRUE && f12.buffer_device_address == vk::TRUE;
        self.dimensions()?.into_iter().find_map(|found| {
            let (half, full) = (vk::ComponentTypeKHR::FLOAT16, vk::ComponentTypeKHR::FLOAT32);
            let fits = found.types == [half, half, full, full]
                && found.saturating == vk::FALSE
                && found.scope == vk::ScopeKHR::WORKGROUP
                && found.invocations == INVOCATIONS;
            let (multiples, largest) = (found.multiples, limits.largest);
            fits.then_some(WideMatrices { multiples, invocations: INVOCATIONS, largest, decodes })
        })
    }

    fn dimensions(self) -> Option<Vec<Dimensions>> {
        let name = c"vkGetPhysicalDeviceCooperativeMatrixFlexibleDimensionsPropertiesNV";
        // SAFETY: the instance lives as long as `self`, and the name is a string.
        let call =
            unsafe { self.entry.get_instance_proc_addr(self.instance.handle(), name.as_ptr()) }?;
        // SAFETY: the loader gave this function for the name, and the header has it with this signature.
        let call =
            unsafe { std::mem::transmute::<unsafe extern "system" fn(), ListDimensions>(call) };
        let mut count = 0;
        // SAFETY: the device has the extension; without a list the call only counts.
        unsafe { call(self.raw, &mut count, ptr::null_mut()) }.result().ok()?;
        let blank = Dimensions {
            s_type: vk::StructureType::from_raw(1_000_593_001),
            p_next: ptr::null_mut(),
            multiples: [0; 3],
            types: [vk::ComponentTypeKHR::from_raw(-1); 4],
            saturating: vk::FALSE,
            scope: vk::ScopeKHR::from_raw(0),
            invocations: 0,
        };
        let mut list = vec![blank; count as usize];
        // SAFETY: the list has as many structures as `count` says, each with its type.
        let listed = unsafe { call(self.raw, &mut count, list.as_mut_ptr()) };
        // A list that has become longer is as good as what there is of it.
        (listed == vk::Result::SUCCESS || listed == vk::Result::INCOMPLETE).then_some(())?;
        list.truncate(count as usize);
        Some(list)
    }
}
