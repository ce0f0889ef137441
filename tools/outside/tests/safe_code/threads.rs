//! Many threads at one buffer: every value that is read was written in one piece.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clearway::cpu::{CpuDevice, CpuKernel, Grid};
use clearway::{
    BindingContract, BindingRole, Buffer, CapturedOpKind as Kind, ComputeGraph, DType, Device,
    GpuError, KernelContract, KernelRegistry, Upload,
};

use crate::{lowered, registry, run_on, whole};

/// Words of the buffer that is hammered: long enough for a copy to be interrupted.
const WORDS: usize = 1 << 14;

/// How long threads hammer at most, and how many reads are enough.
const PATIENCE: Duration = Duration::from_millis(600);
const READS: usize = 2_000;

/// Writes the buffer over and over on two threads while this one reads; all words must agree. Writes
/// nothing if there is somebody else who does.
pub fn hammer(buffer: &Buffer, writers: u32) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 0..writers {
            let done = &done;
            scope.spawn(move || {
                let mut value = writer;
                while !done.load(Ordering::Relaxed) {
                    buffer.write_slice(0, &vec![value; WORDS]).unwrap();
                    value = value.wrapping_add(2);
                }
            });
        }
        let torn = torn_reads(buffer);
        done.store(true, Ordering::Relaxed);
        assert_eq!(torn, 0, "torn reads");
    });
}

/// Reads the buffer for a while and counts those reads that saw two values.
fn torn_reads(buffer: &Buffer) -> usize {
    let start = Instant::now();
    let mut torn = 0;
    for _ in 0..READS {
        if start.elapsed() > PATIENCE {
            break;
        }
        let words = buffer.read_vec::<u32>(0, WORDS).unwrap();
        torn += usize::from(words.iter().any(|word| *word != words[0]));
    }
    torn
}

#[test]
fn reads_are_whole_while_others_write() {
    let device = CpuDevice::with_threads(2);
    hammer(&device.upload(&vec![0_u32; WORDS]).unwrap(), 2);
}

#[test]
fn reads_are_whole_when_the_device_is_gone() {
    let device = CpuDevice::with_threads(2);
    let buffer = device.upload(&vec![0_u32; WORDS]).unwrap();
    drop(device);
    hammer(&buffer, 2);
}

/// A device whose programs fill the buffer while it is read.
pub fn reads_are_whole_while_programs_run_on(device: &dyn Device) {
    let buffer = device.upload(&vec![0_u32; WORDS]).unwrap();
    let view = buffer.tensor(DType::F32, &[WORDS]).unwrap();
    let fill = KernelContract::new("fill", [BindingContract::new("y", BindingRole::Write)]);
    let program = |value: f32| {
        let mut graph = ComputeGraph::new();
        graph.dispatch(Kind::Fill, &fill, &[view], &[value.to_bits()], "").unwrap();
        lowered(device, &KernelRegistry::new(), &graph).unwrap()
    };
    let mut programs = [program(1.0), program(2.0)];
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                for program in &mut programs {
                    program.run().unwrap();
                }
            }
        });
        let torn = torn_reads(&buffer);
        done.store(true, Ordering::Relaxed);
        assert_eq!(torn, 0, "torn reads");
    });
}

#[test]
fn reads_are_whole_while_programs_run() {
    reads_are_whole_while_programs_run_on(&CpuDevice::with_threads(2));
}

/// A kernel that captured a buffer of its own device would wait for itself.
#[test]
fn a_kernel_cannot_use_the_device_that_runs_it() {
    let device = Arc::new(CpuDevice::with_threads(2));
    let (mine, other) = (device.upload(&[1.0_f32; 8]).unwrap(), device.upload(&[0.0_f32]).unwrap());
    let view = other.tensor(DType::F32, &[1]).unwrap();
    let fill = KernelContract::new("fill", [BindingContract::new("y", BindingRole::Write)]);
    let mut graph = ComputeGraph::new();
    graph.dispatch(Kind::Fill, &fill, &[view], &[0], "").unwrap();
    let inner = lowered(&*device, &KernelRegistry::new(), &graph).unwrap();
    let inner = std::sync::Mutex::new(inner);
    // On the caller's thread and on a worker's: as many pieces as it takes.
    let kernel = {
        let mine = mine.clone();
        CpuKernel::new(
            |_, _| Grid::rows(8, 1),
            move |piece| {
                let busy = |outcome| matches!(outcome, Err(GpuError::DeviceBusy { .. }));
                assert!(busy(mine.write(0, &[0; 4])));
                assert!(busy(mine.read_vec::<f32>(0, 8).map(|_| ())));
                assert!(busy(inner.lock().unwrap().run()));
                std::thread::sleep(Duration::from_millis(1));
                for row in piece.rows() {
                    piece.dst_row::<f32>(0, row)[0] = 2.0;
                }
            },
        )
    };
    let (kernels, contract) = registry("self", [whole(BindingRole::Write)], kernel);
    let view = mine.tensor(DType::F32, &[8, 1]).unwrap();
    run_on(&device, &kernels, &contract, &[view]).unwrap();
    assert_eq!(mine.read_vec::<f32>(0, 8).unwrap(), [2.0; 8]);
}
