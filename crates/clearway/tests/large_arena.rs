//! Arenas and buffers larger than 32 bits can count, on Vulkan and on the CPU, bit for bit.
//!
//! A list of large values fills several slabs to their ends, and views of one buffer lie right before a border,
//! across it and behind it. The tests run with small slabs and a border of 64 KiB every time. With
//! `CLEARWAY_LARGE_ARENA=1` they run with the largest slabs the device has, an arena of 9 GiB and the border at 4 GiB;
//! a number above 1 is the arena's bytes instead. The binary needs nothing but itself:
//! `CLEARWAY_LARGE_ARENA=1 large_arena --nocapture --test-threads 1`.
#![allow(clippy::unwrap_used, clippy::panic)] // shared functions are not tests in clippy's eyes

use std::time::Instant;

use clearway::testkit::open_vulkan;
use clearway::vulkan::VulkanOptions;
use clearway::{
    Buffer, CapturedOpKind as Kind, CompileOptions, DType, Executable, GpuError, GraphExecutor,
    Layout, Ops, TensorView, Upload,
};
use half::f16;

const GIB: u64 = 1 << 30;
/// Elements of a row of every value.
const COLS: usize = 1024;
/// Bytes that are compared at a time.
const WINDOW: u64 = 16 << 20;

fn vulkan() -> Option<GraphExecutor> {
    let options = VulkanOptions { disk_cache: false, ..VulkanOptions::default() };
    open_vulkan(options).unwrap().map(GraphExecutor::new)
}

/// Bytes of the large arena, if it is asked for.
fn wanted(test: &str) -> Option<u64> {
    let asked = std::env::var("CLEARWAY_LARGE_ARENA").ok().and_then(|text| text.parse().ok());
    match asked {
        None | Some(0) => {
            println!("skipped: {test} needs 9 GiB of both memories; set CLEARWAY_LARGE_ARENA=1");
            None
        }
        Some(1) => Some(9 * GIB),
        Some(bytes) => Some(bytes),
    }
}

/// A small integer for each place, so that sums are exact in every order and in 16 bits.
fn number(at: u64) -> f32 {
    let mixed = at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    (mixed % 17) as f32 - 8.0
}

fn numbers(first: u64, count: usize) -> Vec<f32> {
    (first..first + count as u64).map(number).collect()
}

/// Writes numbers to some bytes of a buffer.
fn write_numbers(buffer: &Buffer, offset: u64, bytes: u64) {
    for at in (0..bytes).step_by(WINDOW as usize) {
        let len = WINDOW.min(bytes - at);
        buffer.write_slice(offset + at, &numbers(at / 4, len as usize / 4)).unwrap();
    }
}

/// Compares bytes of two buffers.
#[track_caller]
fn assert_same(found: (&Buffer, u64), expected: (&Buffer, u64), bytes: u64, what: &str) {
    for at in (0..bytes).step_by(WINDOW as usize) {
        let count = WINDOW.min(bytes - at) as usize / 4;
        let words: Vec<u32> = found.0.read_vec(found.1 + at, count).unwrap();
        let right: Vec<u32> = expected.0.read_vec(expected.1 + at, count).unwrap();
        if words != right {
            let index = words.iter().zip(&right).position(|(a, b)| a != b).unwrap();
            let byte = at + 4 * index as u64;
            let [a, b] = [words[index], right[index]].map(f32::from_bits);
            panic!("{what}: byte {byte} of {bytes} is {a} and should be {b}");
        }
    }
}

/// A chain of values, all of them kept, with products of the last rows of the first two.
struct Chain {
    graph: Executable,
    input: TensorView,
    values: Vec<TensorView>,
    /// Small results.
    products: Vec<TensorView>,
    _weights: Buffer,
}

impl Chain {
    fn new(executor: &GraphExecutor, count: usize, rows: usize, slab_bytes: u64) -> Self {
        const OUTER: usize = 64;
        const TAIL: usize = 16;
        let weights: Vec<f16> =
            (0..OUTER * COLS).map(|i| f16::from_f32((i * 7 % 3) as f32 - 1.0)).collect();
        let weights = executor.device().upload(&weights).unwrap();
        let w = weights.tensor(DType::F16, &[OUTER, COLS]).unwrap();

        let mut pass = executor.begin_recorded().unwrap();
        let plain = Layout::new(DType::F32, &[rows, COLS]).unwrap();
        let input = pass.input(plain).unwrap();
        let mut values = vec![input];
        for step in 1..count {
            let last = *values.last().unwrap();
            let value = match step % 4 {
                1 => pass.scale(last, -1.0),
                // Columns become rows, in the same bytes as a matrix of the first shape.
                2 => {
                    let turned = Layout::new(DType::F32, &[COLS, rows]).unwrap();
                    let turned = turned.with_strides(&[1, COLS]).unwrap();
                    let copy = pass.copy(last.reinterpret(0, turned).unwrap(), DType::F32);
                    copy.map(|copy| copy.reinterpret(0, plain).unwrap())
                }
                3 => pass.add(last, values[step - 2]),
                _ => pass.scale(last, 0.5),
            };
            values.push(value.unwrap());
        }
        let tail = Layout::new(DType::F32, &[TAIL, COLS]).unwrap();
        let at = plain.span_bytes() - tail.span_bytes();
        let products = values[..2].iter().map(|value| {
            let rows = value.reinterpret(at, tail).unwrap();
            pass.matmul(rows, w).unwrap()
        });
        let products: Vec<TensorView> = products.collect();
        for &view in values[1..].iter().chain(&products) {
            pass.output(view).unwrap();
        }
        // Every value as it was recorded: what is compared is memory, not fusion.
        let options =
            CompileOptions { fuse: false, max_slab_bytes: slab_bytes, ..CompileOptions::default() };
        let graph = pass.compile(&options).unwrap();
        Self { graph, input, values, products, _weights: weights }
    }

    /// Where a value lies.
    fn place(&self, view: TensorView) -> (&Buffer, u64) {
        let slot = self.graph.arena().plan().slot(view.value().unwrap()).unwrap();
        (&self.graph.arena().slabs()[slot.slab], slot.offset)
    }
}

/// Runs a chain that fills an arena of some bytes on both devices.
fn fill_arena(vulkan: &GraphExecutor, arena_bytes: u64, slab_bytes: u64) {
    // Four values fill a slab to the last row.
    let rows = (slab_bytes / 4 / (4 * COLS as u64)) as usize;
    let value_bytes = (rows * COLS * 4) as u64;
    let count = arena_bytes.div_ceil(value_bytes) as usize;
    let mut found = Chain::new(vulkan, count, rows, slab_bytes);
    let slabs: Vec<u64> = found.graph.arena().slabs().iter().map(Buffer::len).collect();
    let total: u64 = slabs.iter().sum();
    println!("{count} values of {value_bytes} bytes in slabs of {slabs:?}, {total} bytes in all");
    assert!(total >= arena_bytes && slabs.len() > 1, "{slabs:?} for {arena_bytes}");
    assert!(slab_bytes - slabs[0] < value_bytes, "the first slab is full: {slabs:?}");
    let cpu = GraphExecutor::cpu();
    let mut expected = Chain::new(&cpu, count, rows, u64::MAX);
    for chain in [&mut found, &mut expected] {
        let (slab, offset) = chain.place(chain.input);
        write_numbers(slab, offset, value_bytes);
        let start = Instant::now();
        chain.graph.run().unwrap();
        println!("  run in {:.3} s", start.elapsed().as_secs_f64());
    }
    let start = Instant::now();
    for (index, (&view, &other)) in found.values.iter().zip(&expected.values).enumerate() {
        let what = format!("value {index} of {count}");
        assert_same(found.place(view), expected.place(other), value_bytes, &what);
    }
    for (&view, &other) in found.products.iter().zip(&expected.products) {
        let bytes = view.layout.span_bytes();
        assert_same(found.place(view), expected.place(other), bytes, "a product");
        let (buffer, offset) = found.place(view);
        let sums: Vec<f32> = buffer.read_vec(offset, bytes as usize / 4).unwrap();
        assert!(sums.iter().any(|&sum| sum != 0.0), "products are no zeros");
    }
    println!("  compared in {:.3} s", start.elapsed().as_secs_f64());
}

/// Ops between views of one buffer around byte `border`, each of `bytes` bytes.
fn cross_border(executor: &GraphExecutor, border: u64, bytes: u64) -> Result<Buffer, GpuError> {
    let len = border + 4 * bytes;
    let buffer = executor.device().alloc(len)?;
    write_numbers(&buffer, 0, bytes);
    let count = bytes as usize / 4;
    let flat = Layout::new(DType::F32, &[count]).unwrap();
    let at = |offset: u64| buffer.view(offset, flat).unwrap();
    // Before the border, at it, across it, behind it at no multiple of anything, and at the end.
    let (before, behind, across) = (at(border - bytes), at(border), at(border - bytes / 2));
    let (odd, last) = (at(border + bytes + 12), at(len - bytes));
    let every_second = Layout::new(DType::F32, &[count / 2]).unwrap().with_strides(&[2]).unwrap();
    let every_second = buffer.view(border - bytes, every_second).unwrap();
    let half = Layout::new(DType::F32, &[count / 2]).unwrap();
    let into = buffer.view(len - bytes / 2, half).unwrap();

    let mut pass = executor.begin_recorded().unwrap();
    let by = |factor: f32| [factor.to_bits()];
    pass.push(Kind::SCALE, &[at(0), before], &by(2.0)).unwrap();
    pass.push(Kind::ADD, &[before, at(0), behind], &[]).unwrap();
    pass.push(Kind::SCALE, &[across, odd], &by(-1.0)).unwrap();
    pass.push(Kind::ADD, &[odd, behind, last], &[]).unwrap();
    pass.push(Kind::Copy, &[every_second, into], &[]).unwrap();
    let sum = pass.add(across, last).unwrap();
    pass.output(sum).unwrap();
    pass.push(Kind::SCALE, &[sum, across], &by(0.5)).unwrap();
    let options = CompileOptions { fuse: false, ..CompileOptions::default() };
    let mut graph = pass.compile(&options).unwrap();
    let start = Instant::now();
    graph.run().unwrap();
    println!("  run in {:.3} s", start.elapsed().as_secs_f64());
    Ok(buffer)
}

fn assert_border(vulkan: &GraphExecutor, border: u64, bytes: u64) {
    println!("views of {bytes} bytes around byte {border} of one buffer");
    let found = match cross_border(vulkan, border, bytes) {
        Err(error @ GpuError::OutOfMemory { .. }) => {
            return println!("skipped: the device has no such buffer ({error})");
        }
        other => other.unwrap(),
    };
    let expected = cross_border(&GraphExecutor::cpu(), border, bytes).unwrap();
    // What was written, and where it would lie if the upper half of an address were lost.
    assert_same((&found, 0), (&expected, 0), 4 * bytes, "the start");
    let first = border - 2 * bytes;
    assert_same((&found, first), (&expected, first), 6 * bytes, "the border");
    let around: Vec<f32> = found.read_vec(border - bytes, bytes as usize / 2).unwrap();
    assert!(around.iter().filter(|&&x| x != 0.0).count() > around.len() / 2, "mostly no zeros");
}

#[test]
fn values_fill_several_slabs_to_their_ends() {
    let Some(vulkan) = vulkan() else { return };
    fill_arena(&vulkan, 3 << 20, 1 << 20);
}

#[test]
fn views_lie_across_a_border() {
    let Some(vulkan) = vulkan() else { return };
    assert_border(&vulkan, 64 << 10, 8 << 10);
}

#[test]
fn values_fill_slabs_of_the_largest_size() {
    let Some(bytes) = wanted("an arena above 4 GiB") else { return };
    let Some(vulkan) = vulkan() else { return };
    println!("{}", vulkan.device().info().description);
    fill_arena(&vulkan, bytes, vulkan.device().info().max_buffer_bytes.min(bytes / 9 * 8));
}

#[test]
fn views_lie_across_4_gib() {
    let Some(_) = wanted("a buffer above 4 GiB") else { return };
    let Some(vulkan) = vulkan() else { return };
    assert_border(&vulkan, 4 * GIB, 64 << 20);
}
