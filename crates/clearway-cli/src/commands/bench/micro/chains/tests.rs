//! Chains on a driver whose workgroups wait for counters because a test says so.

use clearway::vulkan::{Counting, VulkanDevice, VulkanOptions};

use super::*;

fn vulkan(counting: Counting) -> Option<GraphExecutor> {
    let options = VulkanOptions { disk_cache: false, counting, ..VulkanOptions::default() };
    match VulkanDevice::open(options) {
        Ok(device) => Some(GraphExecutor::new(device)),
        Err(error) => {
            clearway_graph::testkit::skip("vulkan", error);
            None
        }
    }
}

#[test]
fn every_way_has_a_time_and_counters_the_bits_of_barriers() {
    let Some(executor) = vulkan(Counting::Always) else { return };
    for (size, dtype) in
        [([64, 64], DType::F16), ([512, 256], DType::Q8_0), ([256, 256], DType::Q6_K)]
    {
        let chain = Chain::new(&executor, size, dtype, 8).unwrap();
        let cells = chain.times(&executor).unwrap();
        for (cell, (name, _)) in cells.iter().zip(COLUMNS) {
            let Figure { best, median, worst } =
                *cell.as_ref().unwrap_or_else(|reason| panic!("{size:?} {dtype} {name}: {reason}"));
            assert!(0.0 < best && best <= median && median <= worst, "{name}");
        }
    }
}

#[test]
fn without_dependences_the_kernels_are_the_same() {
    let options =
        VulkanOptions { disk_cache: false, counting: Counting::Always, ..VulkanOptions::default() };
    let Ok(device) = VulkanDevice::open(options) else { return };
    let device = std::sync::Arc::new(device);
    let executor = GraphExecutor::on(device.clone());
    for (size, dtype) in
        [([64, 64], DType::F16), ([512, 256], DType::Q8_0), ([256, 256], DType::Q4_K)]
    {
        let chain = Chain::new(&executor, size, dtype, 8).unwrap();
        let (dependent, _) = chain.dependent(&executor, true).unwrap();
        let (groups, kernels) = (dependent.stats().compile.groups, device.pipeline_count());
        assert_eq!(groups, 8, "{size:?} {dtype}");
        assert!(dependent.waiting_groups() >= 4, "{size:?} {dtype}");
        let free = chain.independent(&executor, true).unwrap();
        assert_eq!(device.pipeline_count(), kernels, "{size:?} {dtype}");
        let groups = if size[0] == size[1] { 1 } else { 2 };
        assert_eq!(free.stats().compile.groups, groups, "{size:?} {dtype}");
        assert_eq!(free.stats().compile.dispatches, dependent.stats().compile.dispatches);
    }
}

#[test]
fn a_device_without_counters_says_why() {
    let Some(executor) = vulkan(Counting::Never) else { return };
    let chain = Chain::new(&executor, [64, 64], DType::F16, 8).unwrap();
    let [barrier, same, counter, none, alone] = chain.times(&executor).unwrap();
    assert!(barrier.is_ok() && none.is_ok() && alone.is_ok());
    assert_eq!(counter.unwrap_err(), "counters are turned off");
    assert_eq!(same.unwrap_err(), "counters are turned off");
}

#[test]
fn a_wait_in_vain_is_no_time() {
    let Some(executor) = vulkan(Counting::Stalling) else { return };
    let chain = Chain::new(&executor, [64, 64], DType::F16, 8).unwrap();
    let [barrier, same, counter, ..] = chain.times(&executor).unwrap();
    assert_eq!(counter.unwrap_err(), "a wait was in vain");
    assert!(barrier.is_ok() && same.is_ok());
}

#[test]
fn phases_follow_from_size_type_and_bandwidth() {
    let of = |size, dtype, gb_s| phases(size, dtype, gb_s);
    assert_eq!(of([576, 576], DType::F16, 4_000.0), Some(128));
    assert_eq!(of([14_336, 4_096], DType::F16, 4_000.0), Some(8));
    assert_eq!(of([576, 576], DType::Q4_K, 4_000.0), None, "no whole blocks");
    assert_eq!(of([14_336, 4_096], DType::F16, 5.0), None, "too slow");
    assert_eq!(of([576, 576], DType::F16, 0.0), None);
}
