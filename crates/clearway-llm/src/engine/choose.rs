//! The choice of a token on the device: kernels, and the ops that lead to them.
//!
//! A step ends in `ArgMax`, or in `TopK` and the drawing kernel, and then in the kernel that hands the token to the next
//! step. [`sampling`](super::sampling) has the order of operations.

use clearway::cpu::{CpuKernel, Grid};
use clearway::{
    BindingContract, BindingRole, CapturedOpKind, ComputeGraph, CustomKernel, DType, GraphExecutor,
    KernelContract, Layout, NO_INDEX, TensorView,
};

use super::Result;
use super::sampling::{DRAW_WORDS, Draw, MOST_DRAWN, Sampling};

const ADVANCE: &str = "clearway.advance";
const DRAW: &str = "clearway.draw";

/// Numbers of candidates that steps are compiled for. A top-k in between takes the next one, so few of them need a step of
/// their own. The first is the default.
const CANDIDATES: [usize; 2] = [40, MOST_DRAWN];

/// How a compiled step chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Choice {
    /// The likeliest.
    Greedy,
    /// Drawn from so many of the likeliest by a row of sampling data; temperature 0 is greedy.
    Drawn { candidates: usize },
}

impl Choice {
    /// All there are: that of the default sampling, the fastest, the one that serves all.
    pub(crate) const ALL: [Self; 3] = [
        Self::Drawn { candidates: CANDIDATES[0] },
        Self::Greedy,
        Self::Drawn { candidates: CANDIDATES[1] },
    ];

    /// The choice that suits a row best; `None` where only the host can choose.
    pub(crate) fn of(sampling: &Sampling) -> Option<Self> {
        if !sampling.runs_on_device() {
            return None;
        }
        if sampling.is_greedy() {
            return Some(Self::Greedy);
        }
        let candidates = CANDIDATES.into_iter().find(|&some| some >= sampling.top_k)?;
        Some(Self::Drawn { candidates })
    }

    /// One that gives the tokens of both.
    pub(crate) fn and(self, other: Self) -> Self {
        if self.serves(other) { self } else { other }
    }

    /// Whether it gives the tokens of `other`, if at another speed.
    pub(crate) fn serves(self, other: Self) -> bool {
        match (self, other) {
            (Self::Greedy, Self::Greedy) | (Self::Drawn { .. }, Self::Greedy) => true,
            (Self::Greedy, Self::Drawn { .. }) => false,
            (Self::Drawn { candidates }, Self::Drawn { candidates: wanted }) => {
                candidates >= wanted
            }
        }
    }
}

/// Makes the kernels known. Those that are known already stay.
pub(crate) fn register(executor: &GraphExecutor) -> Result<()> {
    for kernel in [advance_kernel(), draw_kernel()] {
        match executor.register(kernel) {
            Ok(()) | Err(clearway::Error::Gpu(clearway::GpuError::DuplicateKernel { .. })) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// What tokens are drawn by.
#[derive(Clone, Copy)]
pub(crate) struct DrawnBy {
    /// Rows of sampling data, `u32[S,W]`: the first [`DRAW_WORDS`] words of each are what the drawing kernel reads.
    pub(crate) table: TensorView,
    /// The row of the table for each row of logits, `u32[T]`. One that the table does not have stands for the last.
    pub(crate) rows: TensorView,
    /// Position of the token before, for each row of logits, `u32[T]`.
    pub(crate) positions: TensorView,
}

/// Records the choice of a token from each row of logits; returns their ids.
pub(crate) fn record(
    graph: &mut ComputeGraph,
    choice: Choice,
    logits: TensorView,
    by: DrawnBy,
) -> Result<TensorView> {
    let id = graph.declare_value(Layout::new(DType::U32, &[logits.layout.rows()])?);
    record_into(graph, choice, logits, by, id)?;
    Ok(id)
}

/// As [`record`]; the ids go to `id`.
pub(super) fn record_into(
    graph: &mut ComputeGraph,
    choice: Choice,
    logits: TensorView,
    by: DrawnBy,
    id: TensorView,
) -> Result<()> {
    let tokens = logits.layout.rows();
    match choice {
        Choice::Greedy => {
            clearway::record(graph, CapturedOpKind::ArgMax, &[logits, id], &[], "choose")?;
        }
        Choice::Drawn { candidates } => {
            let kept = candidates.min(logits.layout.cols());
            let best = graph.declare_value(Layout::new(DType::F32, &[tokens, kept])?);
            let ids = graph.declare_value(Layout::new(DType::U32, &[tokens, kept])?);
            clearway::record(graph, CapturedOpKind::TopK, &[logits, best, ids], &[], "choose")?;
            let views = [best, ids, by.table, by.rows, by.positions, id];
            graph.dispatch(CapturedOpKind::Custom, &draw_contract(), &views, &[], "draw")?;
        }
    }
    Ok(())
}

/// Records the end of a step, which hands its token to the next one.
pub(super) fn record_advance(
    graph: &mut ComputeGraph,
    [id, token, position, ring]: [TensorView; 4],
) -> Result<()> {
    let views = [id, token, position, ring];
    graph.dispatch(CapturedOpKind::Custom, &advance_contract(), &views, &[], "advance")?;
    Ok(())
}

pub(crate) fn contract(
    name: &'static str,
    operands: &[(&'static str, BindingRole)],
) -> KernelContract {
    let operands = operands.iter().map(|&(name, role)| BindingContract::new(name, role));
    KernelContract::new(name, operands.collect::<Vec<_>>())
}

fn advance_contract() -> KernelContract {
    use BindingRole::{Read, ReadWrite};
    let operands =
        [("id", Read), ("tokens", ReadWrite), ("positions", ReadWrite), ("ring", ReadWrite)];
    contract(ADVANCE, &operands)
}

/// The chosen token becomes the next input and goes into the ring; the position moves on. Without a token nothing moves.
fn advance_kernel() -> CustomKernel {
    let cpu = CpuKernel::new(
        |_, _| Grid::rows(1, 1),
        |piece| {
            let id = piece.src::<u32>(0)[0];
            let position = piece.dst_row::<u32>(2, 0)[0];
            let ring = piece.dst_row::<u32>(3, 0);
            ring[position as usize % ring.len()] = id;
            if id != NO_INDEX {
                piece.dst_row::<u32>(2, 0)[0] = position.wrapping_add(1);
                piece.dst_row::<u32>(1, 0)[0] = id;
            }
        },
    );
    let wgsl = format!("const NO_INDEX = {NO_INDEX}u;\n{}", include_str!("kernels/advance.wgsl"));
    CustomKernel::new(advance_contract()).with_cpu(cpu).with_wgsl(&wgsl, |_, _| [1, 1, 1])
}

fn draw_contract() -> KernelContract {
    use BindingRole::{Read, Write};
    let operands = [
        ("best", Read),
        ("ids", Read),
        ("table", Read),
        ("rows", Read),
        ("positions", Read),
        ("id", Write),
    ];
    contract(DRAW, &operands)
}

/// Draws one of the best tokens of each row; [`NO_INDEX`] where the best is not finite.
fn draw_kernel() -> CustomKernel {
    let cpu = CpuKernel::new(
        |_, _| Grid::rows(1, 1),
        |piece| {
            let (kept, width) = (piece.layout(0).cols(), piece.layout(2).cols());
            let last = piece.layout(2).rows() - 1;
            for token in 0..piece.layout(5).cols() {
                let row = (piece.src::<u32>(3)[token] as usize).min(last);
                let mut words = [0; DRAW_WORDS];
                words.copy_from_slice(&piece.src::<u32>(2)[row * width..][..DRAW_WORDS]);
                let logits = piece.src::<f32>(0)[token * kept..][..kept].iter().copied();
                let position = piece.src::<u32>(4)[token].wrapping_add(1);
                let chosen = Draw::from_words(&words).choose(logits, position);
                let id = chosen.map_or(NO_INDEX, |at| piece.src::<u32>(1)[token * kept + at]);
                piece.dst_row::<u32>(5, 0)[token] = id;
            }
        },
    );
    let wgsl = format!(
        "const NO_INDEX = {NO_INDEX}u;\nconst MOST = {MOST_DRAWN}u;\n{}",
        include_str!("kernels/draw.wgsl")
    );
    let groups = |views: &[TensorView], _: &[u32]| [views[5].layout.cols() as u32, 1, 1];
    CustomKernel::new(draw_contract()).with_cpu(cpu).with_wgsl(&wgsl, groups)
}

#[cfg(test)]
mod tests;
