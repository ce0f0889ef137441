//! What tests of the Vulkan backend share.

use clearway_gpu::GpuError;
use clearway_gpu::vulkan::{VulkanDevice, VulkanOptions};

/// The best device, or a line that says why there is none.
pub fn open(options: VulkanOptions) -> Option<VulkanDevice> {
    opened(VulkanDevice::open(options))
}

/// The device, or a line that says why there is none.
pub fn opened(device: Result<VulkanDevice, GpuError>) -> Option<VulkanDevice> {
    match device {
        Ok(device) => Some(device),
        Err(error @ (GpuError::NoDevice { .. } | GpuError::Unsupported { .. })) => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}
