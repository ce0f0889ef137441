//! What tests of the Vulkan backend share.
#![allow(dead_code)] // not every test uses all of it

use clearway_gpu::GpuError;
use clearway_gpu::vulkan::{VulkanDevice, VulkanOptions};
use clearway_graph::testkit::skip;

/// The best device. The test is skipped where there is none.
#[track_caller]
pub fn open(options: VulkanOptions) -> Option<VulkanDevice> {
    opened(VulkanDevice::open(options))
}

/// A device that was opened in some way. The test is skipped where there is none.
#[track_caller]
pub fn opened(device: Result<VulkanDevice, GpuError>) -> Option<VulkanDevice> {
    available(found(device))
}

/// The best device, or why there is none.
pub fn try_open(options: VulkanOptions) -> Result<VulkanDevice, String> {
    found(VulkanDevice::open(options))
}

fn found(device: Result<VulkanDevice, GpuError>) -> Result<VulkanDevice, String> {
    match device {
        Ok(device) => Ok(device),
        Err(error @ (GpuError::NoDevice { .. } | GpuError::Unsupported { .. })) => {
            Err(error.to_string())
        }
        Err(error) => panic!("{error}"),
    }
}

/// What [`try_open`] found. The test is skipped where that is nothing; tests that share a device call this
/// each for itself, so that each is counted.
#[track_caller]
pub fn available<T>(found: Result<T, impl std::fmt::Display>) -> Option<T> {
    found.map_err(|why| skip("vulkan", why)).ok()
}
