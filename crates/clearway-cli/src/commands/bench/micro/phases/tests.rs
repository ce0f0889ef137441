//! Chains on the host, as lists and in kernels of one workgroup and of more than fit.
#![allow(clippy::print_stdout)] // of the test itself, not of the command

use clearway::vulkan::{VulkanDevice, VulkanOptions};

use super::*;

/// An executor on Vulkan, or a line that says why there is none.
fn vulkan() -> Option<GraphExecutor> {
    let options = VulkanOptions { disk_cache: false, ..VulkanOptions::default() };
    match VulkanDevice::open(options) {
        Ok(device) => Some(GraphExecutor::new(device)),
        Err(error) => {
            clearway_graph::testkit::skip("vulkan", error);
            None
        }
    }
}

/// The chain on the host, in twice the precision.
fn reference(chain: &Chain) -> Vec<f32> {
    let n = chain.n;
    let bytes = chain.weights.read_vec::<u8>(0, 2 * n * n * chain.phases).unwrap();
    let mut weights = vec![0.0_f32; bytes.len() / 2];
    quant::decode(DType::F16, &bytes, &mut weights).unwrap();
    let mut x: Vec<f64> = numbers(n, 2).into_iter().map(f64::from).collect();
    for matrix in weights.chunks(n * n) {
        let dot = |row: &[f32]| row.iter().zip(&x).map(|(&w, x)| f64::from(w) * x).sum::<f64>();
        x = matrix.chunks(n).zip(&x).map(|(row, &x)| x + dot(row)).collect();
    }
    x.into_iter().map(|x| x as f32).collect()
}

#[test]
fn two_workgroups_give_the_row_of_the_host_or_say_why_not() {
    let Some(executor) = vulkan() else { return };
    let chain = Chain::new(&executor, 128, 40).unwrap();
    let expected = reference(&chain);
    for meeting in MEETINGS {
        let shape = Shape { groups: 2, width: 256, team: 8 };
        let mut kernel = OneKernel::new(&executor, &chain, shape, meeting).unwrap().unwrap();
        let runs = (0..20).map(|_| {
            kernel.list.run().unwrap();
            kernel.outcome(&expected).unwrap()
        });
        let reasons: Vec<String> = runs.filter_map(std::result::Result::err).collect();
        println!("{meeting:?}: {} of 20 runs together", 20 - reasons.len());
        assert!(reasons.iter().all(|reason| reason == NOT_RESIDENT), "{reasons:?}");
    }
}

#[test]
fn a_list_and_one_workgroup_give_the_row_of_the_host_again_and_again() {
    let Some(executor) = vulkan() else { return };
    // Rows and loads that fit their teams, and some that do not.
    for (n, width, team) in [(64, 128, 8), (72, 128, 8), (72, 512, 64), (128, 256, 32)] {
        let chain = Chain::new(&executor, n, 5).unwrap();
        let expected = reference(&chain);
        let (mut list, y) = chain.list(&executor).unwrap();
        list.run().unwrap();
        let dispatches = list.stats().compile.dispatches as usize;
        assert_eq!(dispatches, chain.phases, "{n}: a residual is apart");
        assert!(difference(&expected, &list.read::<f32>(y).unwrap()) < TOLERANCE, "{n}");
        for meeting in MEETINGS {
            let shape = Shape { groups: 1, width, team };
            let kernel = OneKernel::new(&executor, &chain, shape, meeting).unwrap();
            let mut kernel = kernel.unwrap();
            kernel.list.run().unwrap();
            kernel.outcome(&expected).unwrap().unwrap();
            kernel.list.run_many(3).unwrap();
            kernel.outcome(&expected).unwrap().unwrap();
            let wrong: Vec<f32> = expected.iter().map(|x| x * 1.001).collect();
            assert!(kernel.outcome(&wrong).unwrap().unwrap_err().contains("differs"));
        }
    }
}

#[test]
fn all_shapes_give_the_product_of_a_single_phase() {
    let Some(executor) = vulkan() else { return };
    for n in SIZES {
        // Nobody waits in the last phase, so it does not matter who is resident.
        let chain = Chain::new(&executor, n, 1).unwrap();
        let expected = reference(&chain);
        for shape in SHAPES {
            let kernel = OneKernel::new(&executor, &chain, shape, Meeting::Counter).unwrap();
            let mut kernel = kernel.unwrap();
            kernel.list.run().unwrap();
            assert_eq!(kernel.outcome(&expected).unwrap(), Ok(()), "{n} {shape:?}");
        }
    }
}

#[test]
fn more_workgroups_than_fit_end_with_a_reason() {
    let Some(executor) = vulkan() else { return };
    let chain = Chain::new(&executor, 64, 2).unwrap();
    let expected = reference(&chain);
    // No processor holds more than 32 workgroups, and the largest devices have about 300 processors.
    let shape = Shape { groups: 16_384, width: 32, team: 32 };
    for meeting in [Meeting::Counter, Meeting::Ahead] {
        let mut kernel = OneKernel::new(&executor, &chain, shape, meeting).unwrap().unwrap();
        // The second run starts as clean as the first.
        for _ in 0..2 {
            kernel.list.run().unwrap();
            let reason = kernel.outcome(&expected).unwrap().unwrap_err();
            assert_eq!(reason, NOT_RESIDENT);
        }
    }
}

#[test]
fn every_shape_has_a_kernel_for_every_size() {
    for (n, meeting) in SIZES.into_iter().flat_map(|n| MEETINGS.map(|meeting| (n, meeting))) {
        for Shape { groups, width, team } in SHAPES {
            let chain = ResidentChain { n, phases: 4, groups, width, team, meeting };
            assert!(chain.kernel().is_some(), "{chain:?}");
        }
    }
}

#[test]
fn phases_follow_from_the_bandwidth() {
    assert_eq!((phases(576, 4_000.0), phases(2048, 4_000.0)), (256, 64));
    assert_eq!((phases(576, 2.0), phases(2048, 2.0)), (24, 4));
    assert_eq!(phases(2048, 0.0), 4);
}
