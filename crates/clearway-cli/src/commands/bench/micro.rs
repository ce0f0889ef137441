//! `clearway bench --micro`: what a device costs, part by part.

#[cfg(feature = "vulkan")]
mod phases;

use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use clearway::cpu::{CpuKernel, Grid};
use clearway::{
    BindingContract, BindingRole, Buffer, CompileOptions, CustomKernel, DType, Device, Executable,
    GraphExecutor, KernelContract, Layout, Ops, ProfileMode,
};
use serde_json::{Value, json};

use crate::out::{self, say};

/// Dispatches of the lists that measure one dispatch.
const DISPATCHES: usize = 500;
/// Replays of the list that measures one replay.
const REPLAYS: usize = 200;
/// Bytes of weights a product goes through before it meets the same ones again, at most: more than
/// caches hold.
const ROTATION: u64 = 256 << 20;
/// Rows and columns of the products, at most and at least.
const PRODUCT: [usize; 2] = [8192, 4096];
const SMALL_PRODUCT: [usize; 2] = [512, 1024];
const TYPES: [DType; 13] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q5_1,
    DType::Q8_0,
    DType::Q2_K,
    DType::Q3_K,
    DType::Q4_K,
    DType::Q5_K,
    DType::Q6_K,
];

/// One line of the table.
struct Line {
    what: String,
    key: String,
    /// The figure, or why there is none.
    value: std::result::Result<f64, String>,
    unit: &'static str,
}

/// Measures a device and prints a table or one JSON object.
pub fn run(device: Arc<dyn Device>, json: bool) -> Result<()> {
    let executor = GraphExecutor::on(device.clone());
    let mut lines = Vec::new();
    dispatches(&executor, &mut lines)?;
    replay(&executor, &mut lines)?;
    let bandwidth = read_bandwidth(&executor)?;
    push(&mut lines, "reading device memory", "read_gb_s", Ok(bandwidth), "GB/s");
    products(&executor, &ProductSizes::by(bandwidth), &mut lines)?;
    #[cfg(feature = "vulkan")]
    phases::measure(&executor, bandwidth, &mut lines)?;
    if json {
        let value = |line: Line| match line.value {
            Ok(value) => (line.key, json!(value)),
            Err(reason) => (line.key, json!(reason)),
        };
        let values: serde_json::Map<String, Value> = lines.into_iter().map(value).collect();
        return out::json(&json!({ "device": device.info().name, "micro": values }));
    }
    say!("{}: {}", device.info().name, device.info().description)?;
    for Line { what, value, unit, .. } in lines {
        match value {
            Ok(value) => say!("  {what:<52} {value:>10.2} {unit}")?,
            Err(reason) => say!("  {what:<52} {reason}")?,
        }
    }
    Ok(())
}

/// Time of one dispatch of one workgroup, alone and behind a barrier.
fn dispatches(executor: &GraphExecutor, lines: &mut Vec<Line>) -> Result<()> {
    for elide in [true, false] {
        let mut pass = executor.begin_recorded()?;
        for _ in 0..DISPATCHES {
            let filled = pass.fill(1.0, DType::F32, &[64])?;
            pass.output(filled)?;
        }
        let options = CompileOptions { elide, reuse: false, ..CompileOptions::default() };
        let mut list = pass.compile(&options)?;
        let total = best_of(&mut list)?;
        let (what, key) = if elide {
            ("dispatch without a barrier", "dispatch_us")
        } else {
            ("dispatch with a barrier after it", "barriered_dispatch_us")
        };
        push(lines, what, key, Ok(total as f64 / 1e3 / DISPATCHES as f64), "us");
    }
    Ok(())
}

/// What the host pays to hand a list over, and a replayed step in all.
fn replay(executor: &GraphExecutor, lines: &mut Vec<Line>) -> Result<()> {
    let mut pass = executor.begin_recorded()?;
    let mut x = pass.fill(1.0, DType::F32, &[64])?;
    for _ in 0..8 {
        x = pass.scale(x, 0.5)?;
    }
    pass.output(x)?;
    let mut list = pass.compile(&CompileOptions::default())?;
    list.run()?;
    let mut submit = u64::MAX;
    for _ in 0..20 {
        submit = submit.min(list.profile(ProfileMode::Groups)?.submit_ns);
    }
    push(lines, "handing a recorded list over, host", "submit_us", Ok(submit as f64 / 1e3), "us");
    let started = Instant::now();
    for _ in 0..REPLAYS {
        list.run()?;
    }
    let each = started.elapsed().as_secs_f64() * 1e6 / REPLAYS as f64;
    push(lines, "replay of 9 phases, waited for each time", "replay_us", Ok(each), "us");
    let started = Instant::now();
    list.run_many(REPLAYS)?;
    let each = started.elapsed().as_secs_f64() * 1e6 / REPLAYS as f64;
    push(lines, "replay of 9 phases, many to a submission", "replay_together_us", Ok(each), "us");
    Ok(())
}

/// Bandwidth of a kernel that only reads, in bytes per nanosecond. A short measurement says how many
/// bytes the one that counts can read without making anybody wait.
pub fn read_bandwidth(executor: &GraphExecutor) -> Result<f64> {
    /// What one run may take.
    const TIME_NS: f64 = 2e7;
    executor.register(read_kernel())?;
    let first = read(executor, READ_UNITS[0])?;
    let units = first * TIME_NS / READ_UNIT as f64;
    read(executor, (units as u64).clamp(READ_UNITS[0], READ_UNITS[1]))
}

fn read(executor: &GraphExecutor, units: u64) -> Result<f64> {
    let bytes = units * READ_UNIT;
    let buffer = executor.device().alloc(bytes)?;
    // Pages that were never written may all be one page of zeros, which never leaves the caches.
    let chunk = vec![0_u8; READ_UNIT as usize];
    (0..units).try_for_each(|unit| buffer.write(unit * READ_UNIT, &chunk))?;
    let mut pass = executor.begin_recorded()?;
    let x = buffer.tensor(DType::U32, &[bytes as usize / 4])?;
    let y = pass.declare(Layout::new(DType::U32, &[READ_GROUPS, READ_WIDTH])?)?;
    pass.call_kernel("micro.read", &[x, y], &[])?;
    pass.output(y)?;
    let mut list = pass.compile(&CompileOptions::default())?;
    Ok(bytes as f64 / best_of(&mut list)? as f64)
}

/// How large products are.
#[derive(Debug, PartialEq)]
struct ProductSizes {
    rows: usize,
    cols: usize,
    /// Bytes of weights to go through.
    rotation: u64,
}

impl ProductSizes {
    /// As large as a device of this bandwidth reads in no time: a slow one computes slowly too.
    fn by(bytes_per_ns: f64) -> Self {
        /// What two products, and all weights of a list, may take to read.
        const TIMES_NS: [f64; 2] = [1e6, 8e6];
        let [two, all] = TIMES_NS.map(|ns| (bytes_per_ns * ns) as u64);
        let rotation = all.min(ROTATION);
        let [mut rows, mut cols] = PRODUCT;
        while 2 * 4 * (rows * cols) as u64 > two && rows > SMALL_PRODUCT[0] {
            (rows, cols) = (rows / 2, (cols / 2).max(SMALL_PRODUCT[1]));
        }
        Self { rows, cols, rotation }
    }
}

/// A row times a matrix, for every type of weights, without and with a barrier after each.
fn products(executor: &GraphExecutor, sizes: &ProductSizes, lines: &mut Vec<Line>) -> Result<()> {
    let device = executor.device().clone();
    let ProductSizes { rows, cols, rotation } = *sizes;
    for dtype in TYPES {
        let layout = Layout::new(dtype, &[rows, cols])?;
        let bytes = layout.span_bytes();
        let count = rotation.div_ceil(bytes).max(2) as usize;
        let zeros = vec![0_u8; bytes as usize];
        let weights: Vec<Buffer> = (0..count)
            .map(|_| device.upload_weights(&layout, &zeros))
            .collect::<std::result::Result<_, _>>()?;
        for elide in [true, false] {
            let mut pass = executor.begin_recorded()?;
            let x = pass.fill(1.0, DType::F32, &[1, cols])?;
            for buffer in &weights {
                let y = pass.matmul(x, buffer.view(0, layout)?)?;
                pass.output(y)?;
            }
            let options = CompileOptions { elide, reuse: false, ..CompileOptions::default() };
            let mut list = pass.compile(&options)?;
            let total = best_of(&mut list)? as f64 / count as f64;
            let way = if elide { "" } else { ", barriers" };
            let what = format!("{rows}x{cols} {dtype} times a row{way}: {:.1} us", total / 1e3);
            let suffix = if elide { "" } else { "_barriered" };
            let key = format!("product_{dtype}{suffix}_gb_s");
            push(lines, &what, &key, Ok(bytes as f64 / total), "GB/s");
        }
    }
    Ok(())
}

fn push(
    lines: &mut Vec<Line>,
    what: &str,
    key: &str,
    value: std::result::Result<f64, String>,
    unit: &'static str,
) {
    lines.push(Line { what: what.to_owned(), key: key.to_owned(), value, unit });
}

/// The shortest of some runs on the device's own clock, in nanoseconds.
fn best_of(list: &mut Executable) -> Result<u64> {
    list.run()?;
    let mut best = u64::MAX;
    for _ in 0..5 {
        let profile = list.profile(ProfileMode::Groups)?;
        best = best.min(profile.total_ns());
    }
    Ok(best.max(1))
}

/// Workgroups of the reading kernel, and invocations of each.
const READ_GROUPS: usize = 2112;
const READ_WIDTH: usize = 256;
/// Bytes all of them read in one turn: four words each.
const READ_UNIT: u64 = (READ_GROUPS * READ_WIDTH * 16) as u64;
/// Turns at least and at most: 17 and 268 MB, the latter more than caches hold.
const READ_UNITS: [u64; 2] = [2, 31];

/// Every invocation reads its share and keeps one word of it all.
fn read_kernel() -> CustomKernel {
    let contract = KernelContract::new(
        "micro.read",
        [
            BindingContract::new("x", BindingRole::Read),
            BindingContract::new("y", BindingRole::Write),
        ],
    );
    let cpu = CpuKernel::new(
        |_, _| Grid::rows(READ_GROUPS, 8),
        |piece| {
            for row in piece.rows() {
                let words = piece.src::<u32>(0);
                let share = words.len() / READ_GROUPS;
                let part = &words[row * share..][..share];
                let sum = part.iter().fold(0_u32, |sum, &word| sum ^ word);
                piece.dst_row::<u32>(1, row).fill(sum);
            }
        },
    );
    let wgsl = format!(
        "
const STEP = {}u;
@compute @workgroup_size({READ_WIDTH})
fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
    let count = P.o0.shape.w;
    var sum = vec4<u32>();
    for (var i = id.x; i < count; i += 4u * STEP) {{
        sum ^= vec4<u32>(get_o0(i), get_o0(i + STEP), get_o0(i + 2u * STEP), get_o0(i + 3u * STEP));
    }}
    put_o1(id.x, sum.x ^ sum.y ^ sum.z ^ sum.w);
}}
",
        READ_GROUPS * READ_WIDTH
    );
    CustomKernel::new(contract).with_cpu(cpu).with_wgsl(&wgsl, |_, _| [READ_GROUPS as u32, 1, 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_from_the_bandwidth() {
        let of = |gb_s: f64| ProductSizes::by(gb_s);
        let [rows, cols] = PRODUCT;
        assert_eq!(of(4_000.0), ProductSizes { rows, cols, rotation: ROTATION });
        assert_eq!(of(10.0), ProductSizes { rows: 1024, cols: 1024, rotation: 80_000_000 });
        assert_eq!((of(60.0).rows, of(60.0).cols), (2048, 1024));
        for slow in [0.0, 1e-3, 2.0] {
            assert_eq!([of(slow).rows, of(slow).cols], SMALL_PRODUCT, "{slow}");
        }
    }

    #[test]
    fn every_word_is_read() {
        let executor = GraphExecutor::cpu();
        executor.register(read_kernel()).unwrap();
        let count = READ_UNIT as usize / 4;
        for at in [0, 1, count / 2, count - 1] {
            let mut words = vec![0_u32; count];
            words[at] = 7;
            let buffer = executor.device().alloc(READ_UNIT).unwrap();
            buffer.write_slice(0, &words).unwrap();
            let mut pass = executor.begin_recorded().unwrap();
            let x = buffer.tensor(DType::U32, &[count]).unwrap();
            let y = pass.declare(Layout::new(DType::U32, &[READ_GROUPS, READ_WIDTH]).unwrap());
            let y = y.unwrap();
            pass.call_kernel("micro.read", &[x, y], &[]).unwrap();
            pass.output(y).unwrap();
            let result = pass.finish().unwrap();
            assert!(result.read::<u32>(y).unwrap().contains(&7), "word {at}");
        }
    }
}
