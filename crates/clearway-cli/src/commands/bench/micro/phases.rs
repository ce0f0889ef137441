//! What a dependent phase costs: a chain of one-row products with residuals as a recorded list, with a barrier
//! after each, and as one kernel whose workgroups stay and meet after each. Both read the same weights and
//! must give the same row before any time counts.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clearway::vulkan::{Meeting, ResidentChain};
use clearway::{
    BindingContract, BindingRole, Buffer, CompileOptions, CustomKernel, DType, Executable,
    GraphExecutor, KernelContract, Layout, Ops, TensorView, Upload, quant,
};

use super::{Figure, Line, REPLAYS, numbers, push, warm_up};

/// Rows and columns: the width of SmolLM2-135M and of Llama-1B.
const SIZES: [usize; 2] = [576, 2048];
/// Phases at most and at least, and bytes of their weights at most: several times what caches hold.
const PHASES: [usize; 2] = [256, 4];
const WEIGHTS: u64 = 512 << 20;
/// What the chain may take to read its weights, and what one round of replays may take.
const READ_NS: f64 = 8e6;
const ROUND_S: f64 = 0.05;
/// Rounds of replays.
const ROUNDS: usize = 6;
/// By how much rows may differ, as a part of the largest number. Sums in another order and shortened numbers
/// differ by a tenth of this; a single number from the phase before by dozens of times as much.
const TOLERANCE: f32 = 3e-5;

/// Why there is no time on a device that cannot hold all workgroups at once.
const NOT_RESIDENT: &str = "did not finish: not all workgroups were resident";

/// How the lanes of the device share a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    groups: usize,
    width: usize,
    team: usize,
}

/// Those that are tried, small ones first. All fit on 128 processors whatever their registers are; a device where
/// they are not resident together is found out by the kernel itself.
const SHAPES: [Shape; 4] = [
    Shape { groups: 64, width: 512, team: 32 },
    Shape { groups: 128, width: 256, team: 32 },
    Shape { groups: 128, width: 512, team: 32 },
    Shape { groups: 128, width: 1024, team: 64 },
];

/// How the workgroups of one kernel may meet.
const MEETINGS: [Meeting; 3] = [Meeting::Counter, Meeting::Ahead, Meeting::Tagged];

/// What a line says of a meeting, and the key of its JSON form.
const fn labels(meeting: Meeting) -> (&'static str, &'static str) {
    match meeting {
        Meeting::Counter => ("", "kernel"),
        Meeting::Ahead => (", ahead", "kernel_ahead"),
        Meeting::Tagged => (", tagged", "kernel_tagged"),
    }
}

/// Adds lines for a phase of each size; none on the CPU, whose workers have their own barrier.
pub(super) fn measure(
    executor: &GraphExecutor,
    bandwidth: f64,
    lines: &mut Vec<Line>,
) -> Result<()> {
    if executor.device().info().name == "cpu" {
        return Ok(());
    }
    for n in SIZES {
        let chain = Chain::new(executor, n, phases(n, bandwidth))?;
        let what = format!("{n}x{n} f16 phase");
        let (mut list, y) = chain.list(executor)?;
        let time = chain.time(executor, &mut list)?;
        let expected = list.read::<f32>(y)?;
        push(lines, &format!("{what}, barriers of the list"), &key(n, "list"), Ok(time), "us");
        for meeting in MEETINGS {
            let (shape, time) = chain.best(executor, meeting, &expected)?;
            let shape = shape.map_or(String::new(), |s| format!(" ({}x{})", s.groups, s.width));
            let (label, name) = labels(meeting);
            let what = format!("{what}, one kernel{label}{shape}");
            push(lines, &what, &key(n, name), time, "us");
        }
    }
    Ok(())
}

fn key(n: usize, way: &str) -> String {
    format!("phase_{n}_{way}_us")
}

/// As many phases as go through more weights than caches hold, fewer where that takes long.
fn phases(n: usize, bytes_per_ns: f64) -> usize {
    let bytes = (bytes_per_ns * READ_NS).min(WEIGHTS as f64);
    (bytes as usize / (2 * n * n)).clamp(PHASES[1], PHASES[0])
}

/// The weights and the row that a chain starts with.
struct Chain {
    n: usize,
    phases: usize,
    weights: Buffer,
    x: Buffer,
}

impl Chain {
    fn new(executor: &GraphExecutor, n: usize, phases: usize) -> Result<Self> {
        // Rows that grow a little in each phase, and in which every phase counts.
        let scale = 0.25 * (3.0 / n as f32).sqrt();
        let (floats, step) = (numbers(n * n + phases * STEP, 1), 2 * STEP);
        let floats: Vec<f32> = floats.into_iter().map(|value| value * scale).collect();
        let mut bytes = vec![0; 2 * floats.len()];
        quant::encode(DType::F16, &floats, &mut bytes)?;
        let matrix = 2 * n * n;
        let weights = executor.device().alloc((phases * matrix) as u64)?;
        for phase in 0..phases {
            weights.write((phase * matrix) as u64, &bytes[phase * step..][..matrix])?;
        }
        Ok(Self { n, phases, weights, x: executor.device().upload(&numbers(n, 2))? })
    }

    fn row(&self) -> Result<TensorView> {
        Ok(self.x.tensor(DType::F32, &[1, self.n])?)
    }

    /// The chain as ops, and its result.
    fn list(&self, executor: &GraphExecutor) -> Result<(Executable, TensorView)> {
        let layout = Layout::new(DType::F16, &[self.n, self.n])?;
        let mut pass = executor.begin_recorded()?;
        let mut x = self.row()?;
        for phase in 0..self.phases {
            let w = self.weights.view(phase as u64 * layout.span_bytes(), layout)?;
            let y = pass.matmul(x, w)?;
            x = pass.add(x, y)?;
        }
        pass.output(x)?;
        Ok((pass.compile(&CompileOptions::default())?, x))
    }

    /// The fastest of all shapes, or why none has a time.
    fn best(
        &self,
        executor: &GraphExecutor,
        meeting: Meeting,
        expected: &[f32],
    ) -> Result<(Option<Shape>, std::result::Result<Figure, String>)> {
        let mut best = (None, Err::<Figure, _>("no shape fits".to_owned()));
        for shape in SHAPES {
            let kernel = match OneKernel::new(executor, self, shape, meeting) {
                Ok(Some(kernel)) => Ok(kernel),
                Ok(None) => continue,
                // Such as a device that binds less than all weights at once.
                Err(error) => Err(format!("{error:#}")),
            };
            let time = match kernel {
                Ok(mut kernel) => self.checked_time(executor, &mut kernel, expected)?,
                Err(reason) => Err(reason),
            };
            match (&time, &best.1) {
                (Ok(time), Ok(least)) if time.best >= least.best => {}
                (Ok(_), _) => best = (Some(shape), time),
                // Larger ones are no more resident than this one, and have no effect on smaller ones.
                (Err(reason), Ok(_)) if reason == NOT_RESIDENT => break,
                // What is wrong in one shape makes the others doubtful.
                (Err(_), _) => return Ok((None, time)),
            }
        }
        Ok(best)
    }

    /// The time of a kernel whose first and last run give the row that is expected.
    fn checked_time(
        &self,
        executor: &GraphExecutor,
        kernel: &mut OneKernel,
        expected: &[f32],
    ) -> Result<std::result::Result<Figure, String>> {
        kernel.list.run()?;
        if let Err(reason) = kernel.outcome(expected)? {
            return Ok(Err(reason));
        }
        let time = self.time(executor, &mut kernel.list)?;
        Ok(kernel.outcome(expected)?.map(|()| time))
    }

    /// Microseconds of a phase where many replays follow one another. Time stamps between the groups of
    /// a list would cost more than what is to be measured.
    fn time(&self, executor: &GraphExecutor, list: &mut Executable) -> Result<Figure> {
        warm_up(&**executor.device(), list)?;
        let mut seconds = |times: usize| -> Result<f64> {
            let started = Instant::now();
            list.run_many(times)?;
            Ok(started.elapsed().as_secs_f64() / times as f64)
        };
        let once = seconds(1)?;
        let times = ((ROUND_S / once) as usize).clamp(1, REPLAYS);
        let phase = |seconds: f64| seconds * 1e6 / self.phases as f64;
        let rounds: Vec<f64> =
            (0..ROUNDS).map(|_| seconds(times).map(phase)).collect::<Result<_>>()?;
        Figure::of_times(rounds).context("nothing was timed")
    }
}

/// The chain as one kernel.
struct OneKernel {
    list: Executable,
    y: TensorView,
    state: TensorView,
    /// Arrivals of all workgroups at all barriers, as counted.
    arrivals: u32,
}

impl OneKernel {
    /// `None` where a lane would hold more than it can or a workgroup have no row.
    fn new(
        executor: &GraphExecutor,
        chain: &Chain,
        shape: Shape,
        meeting: Meeting,
    ) -> Result<Option<Self>> {
        let Chain { n, phases, .. } = *chain;
        let Shape { groups, width, team } = shape;
        let resident = ResidentChain { n, phases, groups, width, team, meeting };
        let Some(kernel) = resident.kernel() else { return Ok(None) };
        let (_, key) = labels(meeting);
        let name = format!("micro.phases.{n}x{phases}.{groups}x{width}x{team}.{key}");
        let roles = [
            ("weights", BindingRole::Read),
            ("x", BindingRole::Read),
            ("y", BindingRole::Write),
            ("state", BindingRole::Write),
        ];
        let bindings = roles.map(|(name, role)| BindingContract::new(name, role));
        let contract = KernelContract::new(name.clone(), bindings);
        executor.register(CustomKernel::new(contract).with_wgsl_kernel(kernel))?;

        let mut pass = executor.begin_recorded()?;
        let y = pass.declare(Layout::new(DType::F32, &[1, n])?)?;
        let state = pass.declare(Layout::new(DType::U32, &[1])?)?;
        let weights = chain.weights.tensor(DType::F16, &[phases * n, n])?;
        pass.call_kernel(&name, &[weights, chain.row()?, y, state], &[])?;
        pass.output(y)?;
        pass.output(state)?;
        let list = pass.compile(&CompileOptions::default())?;
        let arrivals = if meeting == Meeting::Tagged { 0 } else { groups * (phases - 1) };
        Ok(Some(Self { list, y, state, arrivals: arrivals as u32 }))
    }

    /// How the last run went: what is wrong with it, if anything is.
    fn outcome(&self, expected: &[f32]) -> Result<std::result::Result<(), String>> {
        let state = self.list.read::<u32>(self.state)?;
        ensure!(state.len() == 1, "the state of the kernel is one word");
        if state[0] != self.arrivals {
            return Ok(Err(NOT_RESIDENT.into()));
        }
        Ok(match difference(expected, &self.list.read::<f32>(self.y)?) {
            part if part <= TOLERANCE => Ok(()),
            part => Err(format!("differs from the list by {part:.1e} of the largest number")),
        })
    }
}

/// Elements by which the weights of a phase lie behind those of the one before in the numbers they are
/// taken from.
const STEP: usize = 40;

/// The largest difference as a part of the largest number; infinite where there is something that is no
/// number.
fn difference(expected: &[f32], found: &[f32]) -> f32 {
    if expected.len() != found.len() || expected.iter().chain(found).any(|x| !x.is_finite()) {
        return f32::INFINITY;
    }
    let largest = expected.iter().fold(f32::MIN_POSITIVE, |most, x| most.max(x.abs()));
    expected.iter().zip(found).fold(0.0_f32, |most, (a, b)| most.max((a - b).abs())) / largest
}

#[cfg(test)]
mod tests;
