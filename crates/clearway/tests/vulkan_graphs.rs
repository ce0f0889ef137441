//! Random graphs on Vulkan: what the CPU computes, and the same bits whatever the runtime does.
#![allow(clippy::unwrap_used)] // a test stops at the first surprise

use std::sync::{Arc, Mutex, PoisonError};

use clearway::GraphExecutor;
use clearway::testkit::open_vulkan;
use clearway::vulkan::{VulkanDevice, VulkanOptions};

mod graphs;

/// Tests share a device, and with it the kernels that are compiled.
#[track_caller]
fn device() -> Option<Arc<VulkanDevice>> {
    static DEVICE: Mutex<Option<Arc<VulkanDevice>>> = Mutex::new(None);
    // Reading weights ahead must not change a bit either.
    let read_ahead = Some(8 << 10);
    let options = VulkanOptions { disk_cache: false, read_ahead, ..VulkanOptions::default() };
    let mut device = DEVICE.lock().unwrap_or_else(PoisonError::into_inner);
    if device.is_none() {
        // Each test that finds none says so for itself.
        *device = open_vulkan(options).unwrap().map(Arc::new);
    }
    device.clone()
}

fn executor() -> Option<GraphExecutor> {
    Some(GraphExecutor::on(device()?))
}

#[test]
fn vulkan_computes_what_the_cpu_does() {
    let Some(vulkan) = executor() else { return };
    graphs::computes_what_the_cpu_does(&vulkan, "vulkan", 20);
    println!("{} kernels so far", device().unwrap().pipeline_count());
}

#[test]
fn switches_do_not_change_a_bit() {
    let Some(vulkan) = executor() else { return };
    graphs::switches_do_not_change_a_bit(&vulkan, "vulkan", 20);
}

#[test]
fn replays_give_the_same_bits_every_time() {
    let Some(vulkan) = executor() else { return };
    graphs::replays_give_the_same_bits_every_time(&vulkan, "vulkan", 20);
}
