//! Transfers of a Vulkan device from many threads at once: handles of a buffer are shared, so none may see half
//! of what another wrote, nor half of what a program computed.
#![allow(clippy::unwrap_used, clippy::panic)] // shared functions are not tests in clippy's eyes

use std::sync::atomic::{AtomicBool, Ordering};

use clearway_gpu::vulkan::{VulkanDevice, VulkanOptions};
use clearway_gpu::{
    Buffer, CustomKernel, Device, KernelRegistry, Program, Result, Upload, WgslKernel,
};
use clearway_graph::{
    BindingContract, BindingRole, CapturedOpKind as Kind, ComputeGraph, DType, KernelContract,
};

mod vulkan;

/// Words of the buffers: enough that copying them takes long beside the rest of a transfer.
const WORDS: usize = 32 << 10;
const READS: usize = 200;

fn open() -> Option<VulkanDevice> {
    let options = VulkanOptions { disk_cache: false, ..VulkanOptions::default() };
    vulkan::open(options)
}

/// Reads from two threads while two others write; every write and every read is one word over and over.
#[track_caller]
fn assert_whole(buffer: &Buffer, read: impl Fn(&Buffer) -> Result<Vec<u32>> + Sync) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for first in [1_u32, 1001] {
            let stop = &stop;
            scope.spawn(move || {
                for word in (first..first + 1000).cycle() {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    buffer.write_slice(0, &[word; WORDS]).unwrap();
                }
            });
        }
        let reader = || {
            let torn = |_: &usize| {
                let words = read(buffer).unwrap();
                words.iter().any(|word| *word != words[0])
            };
            (0..READS / 2).filter(torn).count()
        };
        let other = scope.spawn(reader);
        let torn = reader() + other.join().unwrap();
        stop.store(true, Ordering::Relaxed);
        assert_eq!(torn, 0, "of {READS} reads");
    });
}

#[test]
fn a_read_sees_a_write_whole_or_not_at_all() {
    let Some(device) = open() else { return };
    let buffer = device.upload(&[0_u32; WORDS]).unwrap();
    assert_whole(&buffer, |buffer| buffer.read_vec(0, WORDS));
    // Buffers outlive the handle of their device.
    drop(device);
    assert_whole(&buffer, |buffer| buffer.read_vec(0, WORDS));
}

#[test]
fn a_look_into_a_host_visible_buffer_sees_a_write_whole_or_not_at_all() {
    let Some(device) = open() else { return };
    let buffer = device.alloc_host_visible(WORDS as u64 * 4).unwrap();
    assert_whole(&buffer, |buffer| buffer.peek_vec(0, WORDS));
    let buffer = device.alloc(WORDS as u64 * 4).unwrap();
    assert_whole(&buffer, |buffer| buffer.peek_vec(0, WORDS));
}

/// A program that adds 1 to every word of a buffer.
fn increments(device: &VulkanDevice, buffer: &Buffer) -> Box<dyn Program> {
    let contract =
        KernelContract::new("increments", [BindingContract::new("words", BindingRole::ReadWrite)]);
    let body =
        "@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    put_o0(id.x, get_o0(id.x) + 1u);
}";
    let kernel = WgslKernel::new(body, |_, _| [WORDS as u32 / 64, 1, 1]);
    let mut kernels = KernelRegistry::new();
    kernels.register(CustomKernel::new(contract.clone()).with_wgsl_kernel(kernel)).unwrap();
    let mut graph = ComputeGraph::new();
    let view = buffer.tensor(DType::U32, &[WORDS]).unwrap();
    graph.dispatch(Kind::Custom, &contract, &[view], &[], "").unwrap();
    let mut encoder = device.encoder(&kernels);
    graph.encode_with_barriers(&mut *encoder).unwrap();
    encoder.into_program().unwrap()
}

#[test]
fn transfers_come_before_or_after_runs_of_a_program_and_never_between() {
    let Some(device) = open() else { return };
    let buffer = device.upload(&[0_u32; WORDS]).unwrap();
    let mut program = increments(&device, &buffer);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Handed over without waiting, so that runs are under way all the time.
            while !stop.load(Ordering::Relaxed) {
                let runs = program.start(3).unwrap();
                program.finish(runs).unwrap();
            }
        });
        let mut torn = [0, 0];
        for round in 0..READS {
            let words: Vec<u32> = buffer.read_vec(0, WORDS).unwrap();
            torn[0] += usize::from(words.iter().any(|word| *word != words[0]));
            if round % 3 == 0 {
                buffer.write_slice(0, &[round as u32; WORDS]).unwrap();
            }
        }
        stop.store(true, Ordering::Relaxed);
        let words: Vec<u32> = buffer.read_vec(0, WORDS).unwrap();
        torn[1] += usize::from(words.iter().any(|word| *word != words[0]));
        assert_eq!(torn, [0, 0], "of {READS} reads, and at the end");
    });
}
