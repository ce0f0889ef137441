//! `clearway bench --micro`: what a device costs, part by part.

mod chains;
#[cfg(feature = "vulkan")]
mod phases;

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use clearway::cpu::{CpuKernel, Grid};
use clearway::{
    BindingContract, BindingRole, Buffer, CompileOptions, CustomKernel, DType, Device, Executable,
    GraphExecutor, KernelContract, Layout, Ops, ProfileMode,
};
use serde_json::{Value, json};

use super::measure::WARM_UP;
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

/// Timed runs of each list.
const RUNS: usize = 9;

/// What some runs of the same thing gave. Clocks that are not up yet, or a card that somebody else uses, show in the worst; a slow
/// kernel in all three.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Figure {
    best: f64,
    median: f64,
    worst: f64,
}

impl Figure {
    /// Of times: the shortest is the best.
    fn of_times(times: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut times: Vec<f64> = times.into_iter().collect();
        times.sort_by(f64::total_cmp);
        let (best, worst) = (*times.first()?, *times.last()?);
        Some(Self { best, median: times[times.len() / 2], worst })
    }

    /// The same in another unit.
    fn map(self, to: impl Fn(f64) -> f64) -> Self {
        Self { best: to(self.best), median: to(self.median), worst: to(self.worst) }
    }

    fn json(self) -> Value {
        json!({ "best": self.best, "median": self.median, "worst": self.worst })
    }
}

/// One line of the table.
struct Line {
    what: String,
    key: String,
    /// The figure, or why there is none.
    value: std::result::Result<Figure, String>,
    unit: &'static str,
}

/// Measures a device and prints a table or one JSON object.
pub fn run(device: Arc<dyn Device>, json: bool) -> Result<()> {
    let executor = GraphExecutor::on(device.clone());
    let mut lines = Vec::new();
    dispatches(&executor, &mut lines)?;
    replay(&executor, &mut lines)?;
    let bandwidth = read_bandwidths(&executor)?;
    push(&mut lines, "reading device memory", "read_gb_s", Ok(bandwidth), "GB/s");
    let bandwidth = bandwidth.best;
    products(&executor, &ProductSizes::by(bandwidth), &mut lines)?;
    #[cfg(feature = "vulkan")]
    phases::measure(&executor, bandwidth, &mut lines)?;
    let chains = chains::Table::measure(&executor, bandwidth)?;
    if json {
        let value = |line: &Line| match &line.value {
            Ok(value) => (line.key.clone(), json!(value.best)),
            Err(reason) => (line.key.clone(), json!(reason)),
        };
        let values: serde_json::Map<String, Value> = lines.iter().map(value).collect();
        let spread = lines
            .iter()
            .filter_map(|line| Some((line.key.clone(), line.value.as_ref().ok()?.json())));
        let spread: serde_json::Map<String, Value> = spread.collect();
        return out::json(&json!({
            "device": device.info().name, "micro": values, "spread": spread, "phases": chains.json(),
        }));
    }
    say!("{}: {}", device.info().name, device.info().description)?;
    say!("  {:<58} {:>10} {:>10} {:>10}", "", "best", "median", "worst")?;
    for Line { what, value, unit, .. } in lines {
        match value {
            Ok(Figure { best, median, worst }) => {
                say!("  {what:<58} {best:>10.2} {median:>10.2} {worst:>10.2} {unit}")?;
            }
            Err(reason) => say!("  {what:<58} {reason}")?,
        }
    }
    chains.print()
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
        let total = timed(executor, &mut list)?;
        let (what, key) = if elide {
            ("dispatch without a barrier", "dispatch_us")
        } else {
            ("dispatch with a barrier after it", "barriered_dispatch_us")
        };
        push(lines, what, key, Ok(total.map(|ns| ns / 1e3 / DISPATCHES as f64)), "us");
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
    let device = &**executor.device();
    warm_up(device, &mut list)?;
    let mut submits = Vec::with_capacity(20);
    for _ in 0..20 {
        submits.push(list.profile(ProfileMode::Groups)?.submit_ns as f64 / 1e3);
    }
    let figure = |times: Vec<f64>| Figure::of_times(times).ok_or_else(|| "not timed".to_owned());
    push(lines, "handing a recorded list over, host", "submit_us", figure(submits), "us");
    type Replays = fn(&mut Executable) -> clearway::Result<()>;
    let ways: [(&str, &str, Replays); 2] = [
        ("replay of 9 phases, waited for each time", "replay_us", |list| {
            (0..REPLAYS).try_for_each(|_| list.run())
        }),
        ("replay of 9 phases, many to a submission", "replay_together_us", |list| {
            list.run_many(REPLAYS)
        }),
    ];
    for (what, key, replays) in ways {
        warm_up(device, &mut list)?;
        let mut each = Vec::with_capacity(RUNS);
        for _ in 0..RUNS {
            let started = Instant::now();
            replays(&mut list)?;
            each.push(started.elapsed().as_secs_f64() * 1e6 / REPLAYS as f64);
        }
        push(lines, what, key, figure(each), "us");
    }
    Ok(())
}

/// Bandwidth of a kernel that only reads, in bytes per nanosecond. A short measurement says how many
/// bytes the one that counts can read without making anybody wait.
pub fn read_bandwidth(executor: &GraphExecutor) -> Result<f64> {
    Ok(read_bandwidths(executor)?.best)
}

fn read_bandwidths(executor: &GraphExecutor) -> Result<Figure> {
    /// What one run may take.
    const TIME_NS: f64 = 2e7;
    executor.register(read_kernel())?;
    let first = read(executor, READ_UNITS[0])?.best;
    let units = first * TIME_NS / READ_UNIT as f64;
    read(executor, (units as u64).clamp(READ_UNITS[0], READ_UNITS[1]))
}

fn read(executor: &GraphExecutor, units: u64) -> Result<Figure> {
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
    Ok(timed(executor, &mut list)?.map(|ns| bytes as f64 / ns))
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
            let total = timed(executor, &mut list)?.map(|ns| ns / count as f64);
            let way = if elide { "" } else { ", barriers" };
            let what =
                format!("{rows}x{cols} {dtype} times a row{way}: {:.1} us", total.best / 1e3);
            let suffix = if elide { "" } else { "_barriered" };
            let key = format!("product_{dtype}{suffix}_gb_s");
            push(lines, &what, &key, Ok(total.map(|ns| bytes as f64 / ns)), "GB/s");
        }
    }
    Ok(())
}

fn push(
    lines: &mut Vec<Line>,
    what: &str,
    key: &str,
    value: std::result::Result<Figure, String>,
    unit: &'static str,
) {
    lines.push(Line { what: what.to_owned(), key: key.to_owned(), value, unit });
}

/// Some runs on the device's own clock, in nanoseconds, once clocks are up. Before each list: while the host makes the weights of
/// the next one a card has nothing to do, and its clocks go down.
fn timed(executor: &GraphExecutor, list: &mut Executable) -> Result<Figure> {
    warm_up(&**executor.device(), list)?;
    let mut times = Vec::with_capacity(RUNS);
    for _ in 0..RUNS {
        times.push(list.profile(ProfileMode::Groups)?.total_ns().max(1) as f64);
    }
    Figure::of_times(times).context("nothing was timed")
}

/// Runs a list once and, on a device beside the host, until clocks are up.
fn warm_up(device: &dyn Device, list: &mut Executable) -> Result<()> {
    list.run()?;
    let started = Instant::now();
    while started.elapsed() < WARM_UP && device.host_is_far() {
        list.run()?;
    }
    Ok(())
}

/// Numbers between -1 and 1, always the same. Rows whose length is a power of two must not resemble one another,
/// as they would with the usual congruences, so every number is mixed (SplitMix64).
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed >> 40) as f32 / 8_388_608.0 - 1.0
    };
    std::iter::repeat_with(next).take(count).collect()
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
    fn the_best_of_times_is_the_shortest_and_of_bandwidths_the_largest() {
        let figure = Figure::of_times([3.0, 1.0, 9.0, 2.0, 4.0]).unwrap();
        assert_eq!(figure, Figure { best: 1.0, median: 3.0, worst: 9.0 });
        let rate = figure.map(|ns| 18.0 / ns);
        assert_eq!(rate, Figure { best: 18.0, median: 6.0, worst: 2.0 });
        assert_eq!(Figure::of_times([]), None);
    }

    /// Clocks go down while the host makes the weights of the next list, so each list is run for a while first.
    #[test]
    fn a_device_beside_the_host_is_kept_busy_before_it_is_timed() {
        let executor = GraphExecutor::cpu();
        let mut pass = executor.begin_recorded().unwrap();
        let filled = pass.fill(1.0, DType::F32, &[64]).unwrap();
        pass.output(filled).unwrap();
        let mut list = pass.compile(&CompileOptions::default()).unwrap();
        let started = Instant::now();
        warm_up(&**executor.device(), &mut list).unwrap();
        assert!(started.elapsed() < WARM_UP, "the processor needs none");
        #[cfg(feature = "vulkan")]
        if let Ok(device) = clearway::vulkan::VulkanDevice::open(Default::default()) {
            let started = Instant::now();
            warm_up(&device, &mut list).unwrap();
            assert!(started.elapsed() >= WARM_UP);
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
