//! What a phase of dependent products costs with barriers, with counters and with neither.
//!
//! A chain of products with residuals, each with weights of its own, as decode steps have them. The same kernels behind
//! barriers, waiting for counters, and alone. With neither barriers nor counters the same kernels do not depend on each
//! other: what that takes is no time of a step but the least that launching and reading can take.

use std::time::Instant;

use anyhow::Result;
use clearway::{
    Buffer, CompileOptions, DType, Error, Executable, GpuError, GraphExecutor, Layout, Ops,
    ProfileMode, TensorView, Upload, quant,
};
use serde_json::{Value, json};

use super::{Figure, REPLAYS, numbers, warm_up};
use crate::out::say;

/// Rows and columns. Where they differ, a product and its way back take turns.
const SIZES: [[usize; 2]; 4] = [[576, 576], [2048, 2048], [4096, 4096], [14_336, 4096]];
const TYPES: [DType; 4] = [DType::F16, DType::Q8_0, DType::Q4_K, DType::Q6_K];
/// Phases at most and at least, and bytes of their weights at most: several times what caches hold.
const PHASES: [usize; 2] = [128, 8];
const WEIGHTS: u64 = 512 << 20;
/// What reading the weights of a chain should take, and what it may take at most.
const READ_NS: [f64; 2] = [8e6, 4e7];
/// What one round of replays may take, and how many there are.
const ROUND_S: f64 = 0.04;
const ROUNDS: usize = 7;
/// Rows of weights that are made; the others repeat them.
const TILE: usize = 64;

/// A figure, or why there is none.
type Cell = std::result::Result<Figure, String>;

/// A chain and its times, in microseconds of a phase.
struct Row {
    product: String,
    dtype: DType,
    cells: [Cell; COLUMNS.len()],
}

/// The columns: what the table says, and the key of the JSON form.
const COLUMNS: [(&str, &str); 5] = [
    ("barrier", "barrier_us"),
    ("same kernels", "barrier_same_kernels_us"),
    ("counter", "counter_us"),
    ("none", "none_us"),
    ("alone", "alone_us"),
];

/// The table.
pub(super) struct Table {
    rows: Vec<Row>,
    /// Why nothing waits for counters, where that is so.
    without: Option<&'static str>,
}

impl Table {
    /// Measures all chains that a device of this bandwidth reads in no time. None on the CPU, which has no launches.
    pub(super) fn measure(executor: &GraphExecutor, bytes_per_ns: f64) -> Result<Self> {
        let device = executor.device();
        let mut rows = Vec::new();
        if device.host_is_far() {
            for (size, dtype) in SIZES.into_iter().flat_map(|size| TYPES.map(|dtype| (size, dtype)))
            {
                rows.push(row(executor, size, dtype, bytes_per_ns)?);
            }
        }
        Ok(Self { rows, without: device.without_counters() })
    }

    pub(super) fn json(&self) -> Value {
        let row = |row: &Row| {
            let mut object = json!({ "product": row.product, "type": row.dtype.to_string() });
            for ((_, key), cell) in COLUMNS.iter().zip(&row.cells) {
                object[*key] = match cell {
                    Ok(figure) => figure.json(),
                    Err(reason) => json!(reason),
                };
            }
            object
        };
        self.rows.iter().map(row).collect()
    }

    pub(super) fn print(&self) -> Result<()> {
        if self.rows.is_empty() {
            return Ok(());
        }
        say!("  a phase of dependent products, us: best (median, worst) of {ROUNDS}")?;
        say!(
            "  barrier: as lists are without counters; same kernels: those with counters, behind barriers;"
        )?;
        say!(
            "  none: without dependences, so the least that launches and bytes can take; alone: between two time stamps, of all phases of a run"
        )?;
        let head: String = COLUMNS.iter().map(|(name, _)| format!(" {name:>25}")).collect();
        say!("  {:<14}{:<6}{head}", "product", "type")?;
        let mut reasons: Vec<&String> = Vec::new();
        for Row { product, dtype, cells } in &self.rows {
            let mut line = format!("  {product:<14}{:<6}", dtype.to_string());
            for cell in cells {
                let text = match cell {
                    Ok(Figure { best, median, worst }) => {
                        format!("{best:.2} ({median:.2}, {worst:.2})")
                    }
                    Err(reason) => {
                        let known = reasons.iter().position(|&other| other == reason);
                        let at = known.unwrap_or(reasons.len());
                        if known.is_none() {
                            reasons.push(reason);
                        }
                        format!("[{}]", at + 1)
                    }
                };
                line.push_str(&format!(" {text:>25}"));
            }
            say!("{line}")?;
        }
        for (at, reason) in reasons.iter().enumerate() {
            say!("  [{}] {reason}", at + 1)?;
        }
        match self.without {
            Some(reason) if !reasons.iter().any(|other| *other == reason) => {
                say!("  no counters: {reason}")
            }
            _ => Ok(()),
        }
    }
}

/// All times of one chain.
fn row(executor: &GraphExecutor, size: [usize; 2], dtype: DType, bytes_per_ns: f64) -> Result<Row> {
    let product = format!("{}x{}", size[0], size[1]);
    let none = |reason: String| Row {
        product: product.clone(),
        dtype,
        cells: std::array::from_fn(|_| Err(reason.clone())),
    };
    let Some(phases) = phases(size, dtype, bytes_per_ns) else {
        let whole = Layout::new(dtype, &[size[0], size[1]]).is_ok();
        return Ok(none(match whole {
            true => "too large for a device as slow as this".into(),
            false => "rows are no whole blocks of this type".into(),
        }));
    };
    let chain = match Chain::new(executor, size, dtype, phases) {
        Ok(chain) => chain,
        Err(error) => return Ok(none(format!("{error:#}"))),
    };
    Ok(Row { cells: chain.times(executor)?, product, dtype })
}

/// As many phases as go through more weights than caches hold, fewer where that takes long; `None` where even a few take too
/// long or the type has no such rows.
fn phases([rows, cols]: [usize; 2], dtype: DType, bytes_per_ns: f64) -> Option<usize> {
    let bytes = Layout::new(dtype, &[rows, cols]).ok()?.span_bytes() as f64;
    Layout::new(dtype, &[cols, rows]).ok()?;
    let fit = (bytes_per_ns * READ_NS[0]).min(WEIGHTS as f64) / bytes;
    let phases = (fit as usize).clamp(PHASES[1], PHASES[0]) / 2 * 2;
    (bytes * phases as f64 <= bytes_per_ns.max(f64::MIN_POSITIVE) * READ_NS[1]).then_some(phases)
}

/// Weights, and the row that a chain starts with.
struct Chain {
    size: [usize; 2],
    weights: Vec<(Layout, Buffer)>,
    x: Buffer,
}

impl Chain {
    fn new(
        executor: &GraphExecutor,
        size: [usize; 2],
        dtype: DType,
        phases: usize,
    ) -> Result<Self> {
        let device = executor.device();
        let mut weights = Vec::with_capacity(phases);
        let both = [size, [size[1], size[0]]].map(|size| matrix(dtype, size));
        let [there, back] = both.map(|made| made.map_err(|error| error.to_string()));
        for phase in 0..phases {
            let made = if phase % 2 == 0 { &there } else { &back };
            let (layout, bytes) = made.as_ref().map_err(|error| anyhow::anyhow!("{error}"))?;
            weights.push((*layout, device.upload_weights(layout, bytes)?));
        }
        Ok(Self { size, weights, x: device.upload(&numbers(size[1], 2))? })
    }

    /// Each phase reads what the one before it gave.
    fn dependent(
        &self,
        executor: &GraphExecutor,
        counters: bool,
    ) -> Result<(Executable, TensorView)> {
        let mut pass = executor.begin_recorded()?;
        let mut x = self.x.tensor(DType::F32, &[1, self.size[1]])?;
        let residual = self.size[0] == self.size[1];
        for pair in self.weights.chunks(2) {
            x = step(&mut pass, x, pair, residual)?;
        }
        pass.output(x)?;
        Ok((pass.compile(&CompileOptions { counters, ..CompileOptions::default() })?, x))
    }

    /// The same products, all of the same row; where a product and its way back take turns, only the two follow one another.
    fn independent(&self, executor: &GraphExecutor, counters: bool) -> Result<Executable> {
        let mut pass = executor.begin_recorded()?;
        let x = self.x.tensor(DType::F32, &[1, self.size[1]])?;
        let residual = self.size[0] == self.size[1];
        for part in self.weights.chunks(if residual { 1 } else { 2 }) {
            let y = step(&mut pass, x, part, residual)?;
            pass.output(y)?;
        }
        let options = CompileOptions { counters, reuse: false, ..CompileOptions::default() };
        Ok(pass.compile(&options)?)
    }

    fn times(&self, executor: &GraphExecutor) -> Result<[Cell; COLUMNS.len()]> {
        let (mut plain, _) = self.dependent(executor, false)?;
        let barrier = self.time(executor, &mut plain);
        let without = executor.device().without_counters();
        let (mut counted, y) = self.dependent(executor, without.is_none())?;
        let (counter, same) = match without {
            Some(reason) => (Err(reason.to_owned()), Err(reason.to_owned())),
            None if counted.waiting_groups() == 0 => {
                let reason = "kernels of this product do not wait for counters";
                (Err(reason.to_owned()), Err(reason.to_owned()))
            }
            None => {
                let counter = self.time(executor, &mut counted);
                let expected = counted.read::<f32>(y)?;
                counted.use_barriers()?;
                let same = self.time(executor, &mut counted);
                let found = counted.read::<f32>(y)?;
                let equal =
                    expected.iter().map(|x| x.to_bits()).eq(found.iter().map(|x| x.to_bits()));
                match (counter, equal) {
                    (Ok(_), false) => (Err("counters give another row than barriers".into()), same),
                    (counter, _) => (counter, same),
                }
            }
        };
        let spans = counted.profile(ProfileMode::Serialised)?.spans;
        let alone = Figure::of_times(spans.iter().map(|span| span.duration_ns() as f64 / 1e3));
        let alone = alone.ok_or_else(|| "nothing was timed".to_owned());
        let mut free = self.independent(executor, without.is_none())?;
        Ok([barrier, same, counter, self.time(executor, &mut free), alone])
    }

    /// Microseconds of a phase where many replays follow one another, once clocks are up.
    fn time(&self, executor: &GraphExecutor, list: &mut Executable) -> Cell {
        match self.rounds(executor, list) {
            Ok(rounds) => Figure::of_times(rounds).ok_or_else(|| "nothing was timed".to_owned()),
            Err(error) => match error.downcast_ref::<Error>() {
                Some(Error::Gpu(GpuError::Stalled { .. })) => Err("a wait was in vain".into()),
                _ => Err(format!("{error:#}")),
            },
        }
    }

    fn rounds(&self, executor: &GraphExecutor, list: &mut Executable) -> Result<Vec<f64>> {
        warm_up(&**executor.device(), list)?;
        let mut seconds = |times: usize| -> Result<f64> {
            let started = Instant::now();
            list.run_many(times)?;
            Ok(started.elapsed().as_secs_f64() / times as f64)
        };
        let times = ((ROUND_S / seconds(1)?.max(1e-9)) as usize).clamp(1, REPLAYS);
        let phase = |seconds: f64| seconds * 1e6 / self.weights.len() as f64;
        (0..ROUNDS).map(|_| seconds(times).map(phase)).collect()
    }
}

/// One phase with its residual, or a product and its way back with one.
fn step(
    pass: &mut clearway::GraphSession<'_>,
    x: TensorView,
    weights: &[(Layout, Buffer)],
    square: bool,
) -> Result<TensorView> {
    let mut row = x;
    let mut from = x;
    for (layout, buffer) in weights {
        let y = pass.matmul(row, buffer.view(0, *layout)?)?;
        row = if square { pass.add(from, y)? } else { y };
        from = if square { row } else { from };
    }
    Ok(if square { row } else { pass.add(from, row)? })
}

/// Weights that let a row grow only a little, of which some rows are made and the others repeat them.
fn matrix(dtype: DType, [rows, cols]: [usize; 2]) -> Result<(Layout, Vec<u8>)> {
    let layout = Layout::new(dtype, &[rows, cols])?;
    let scale = 0.25 * (3.0 / cols as f32).sqrt();
    let floats: Vec<f32> = numbers(TILE * cols, 3).into_iter().map(|x| x * scale).collect();
    let mut tile = vec![0; quant::row_bytes(dtype, cols)? * TILE];
    quant::encode(dtype, &floats, &mut tile)?;
    let bytes = tile.iter().copied().cycle().take(layout.span_bytes() as usize).collect();
    Ok((layout, bytes))
}

#[cfg(test)]
mod tests;
