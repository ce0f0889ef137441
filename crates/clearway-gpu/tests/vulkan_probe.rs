//! Whether this machine has a Vulkan device that works. `cargo xtask test` runs this first, so that a missing
//! driver is known before anything else is built.
#![allow(clippy::unwrap_used, clippy::panic)] // a test stops at the first surprise

use clearway_gpu::vulkan::VulkanOptions;
use clearway_gpu::{Device, Upload};
use clearway_graph::testkit::say;

mod vulkan;

#[test]
fn a_vulkan_device_keeps_what_it_is_given() {
    let options = VulkanOptions { disk_cache: false, ..VulkanOptions::default() };
    let Some(device) = vulkan::open(options) else { return };
    say(&format!("Vulkan device: {}", device.info().description));
    let buffer = device.upload(&[1_u32, 2, 3]).unwrap();
    assert_eq!(buffer.read_vec::<u32>(0, 3).unwrap(), [1, 2, 3]);
}
