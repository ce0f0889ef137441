//! Slots as words: what the kernel that ends a step reads and writes, and the host's copy of it.

use clearway::cpu::{CpuKernel, Grid};
use clearway::{BindingRole, ComputeGraph, CustomKernel, GraphExecutor, KernelContract, NO_INDEX};
use clearway::{CapturedOpKind, TensorView};

use crate::batch::runner::SlotState;
use crate::engine::choose::{Choice, contract};
use crate::engine::sampling::DRAW_WORDS;
use crate::engine::{EngineError, Sampler};

/// Words of a slot. The drawing kernel reads the first of them.
pub(super) const WORDS: usize = 28;
const TOKEN: usize = DRAW_WORDS;
const POSITION: usize = TOKEN + 1;
const END: usize = TOKEN + 2;
const STATE: usize = TOKEN + 3;
const STOPS: usize = TOKEN + 4;
const STOP: usize = TOKEN + 5;
/// Stop tokens that a slot holds; the host looks for others.
const MOST_STOPS: usize = WORDS - STOP;

/// The slot decodes.
pub(super) const RUNNING: u32 = 0;
/// It chose a stop token.
pub(super) const STOPPED: u32 = 1;
/// It has reached its end.
pub(super) const ENDED: u32 = 2;
/// It found no token to choose.
pub(super) const FAILED: u32 = 3;
/// Nothing is in it, or the host chooses its tokens.
pub(super) const HELD: u32 = 4;

/// Tokens of a slot that the host may not have read yet, at most.
pub(super) const RING: usize = 128;

const ADVANCE: &str = "clearway.advance_rows";

/// A slot as the host knows it.
pub(super) struct Slot {
    pub(super) token: u32,
    pub(super) position: usize,
    pub(super) end: usize,
    pub(super) state: u32,
    pub(super) stop_tokens: Vec<u32>,
    /// Chooses tokens where the device cannot.
    pub(super) sampler: Option<Sampler>,
    /// The text, where the host chooses.
    pub(super) history: Vec<u32>,
    draw: [u32; DRAW_WORDS],
    pub(super) choice: Option<Choice>,
    /// The adapter of its text.
    pub(super) adapter: Option<u32>,
}

impl Slot {
    pub(super) fn empty() -> Self {
        Self {
            token: 0,
            position: 0,
            end: 0,
            state: HELD,
            stop_tokens: Vec::new(),
            sampler: None,
            history: Vec::new(),
            draw: [0; DRAW_WORDS],
            choice: None,
            adapter: None,
        }
    }

    pub(super) fn open(state: &SlotState) -> Self {
        let choice = Choice::of(&state.sampling);
        let mut slot = Self {
            token: state.token,
            position: state.position,
            end: state.end,
            state: RUNNING,
            stop_tokens: state.stop_tokens.clone(),
            sampler: choice.is_none().then(|| Sampler::new(state.sampling.clone())),
            history: if choice.is_none() { state.history.clone() } else { Vec::new() },
            draw: state.sampling.draw().to_words(),
            choice,
            adapter: state.sampling.adapter,
        };
        slot.settle();
        slot
    }

    /// Whether the host chooses its tokens.
    pub(super) fn is_hosts(&self) -> bool {
        self.sampler.is_some()
    }

    /// The end moved: a slot that had reached it goes on.
    pub(super) fn set_end(&mut self, end: usize) {
        self.end = end;
        if self.state == ENDED {
            self.state = RUNNING;
        }
        self.settle();
    }

    /// A token was chosen.
    pub(super) fn take(&mut self, token: u32) {
        self.token = token;
        self.position += 1;
        if self.is_hosts() {
            self.history.push(token);
        }
        if self.stop_tokens.contains(&token) {
            self.state = STOPPED;
        }
        self.settle();
    }

    fn settle(&mut self) {
        if self.state == RUNNING && self.position >= self.end {
            self.state = ENDED;
        }
    }

    /// The words that the device keeps.
    pub(super) fn words(&self) -> [u32; WORDS] {
        let mut words = [0; WORDS];
        words[..DRAW_WORDS].copy_from_slice(&self.draw);
        words[TOKEN] = self.token;
        words[POSITION] = self.position as u32;
        words[END] = u32::try_from(self.end).unwrap_or(u32::MAX);
        words[STATE] = if self.is_hosts() { HELD } else { self.state };
        let stops = self.stop_tokens.len().min(MOST_STOPS);
        words[STOPS] = stops as u32;
        words[STOP..STOP + stops].copy_from_slice(&self.stop_tokens[..stops]);
        words
    }
}

/// Operands of the kernel that ends a step, in order.
pub(super) struct Advance {
    pub(super) ids: TensorView,
    pub(super) rows: TensorView,
    pub(super) slots: TensorView,
    pub(super) blocks: TensorView,
    pub(super) tokens: TensorView,
    pub(super) positions: TensorView,
    pub(super) sequences: TensorView,
    pub(super) cache_rows: TensorView,
    pub(super) ring: TensorView,
}

impl Advance {
    pub(super) fn record(&self, graph: &mut ComputeGraph, block: usize) -> Result<(), EngineError> {
        let views = [
            self.ids,
            self.rows,
            self.slots,
            self.blocks,
            self.tokens,
            self.positions,
            self.sequences,
            self.cache_rows,
            self.ring,
        ];
        let params = [block as u32];
        let contract = advance_contract();
        graph.dispatch(CapturedOpKind::Custom, &contract, &views, &params, "advance")?;
        Ok(())
    }
}

/// Makes the kernel known. One that is known already stays.
pub(super) fn register(
    executor: &GraphExecutor,
    slots: usize,
    block: usize,
) -> Result<(), EngineError> {
    match executor.register(advance_kernel(slots, block)) {
        Ok(()) | Err(clearway::Error::Gpu(clearway::GpuError::DuplicateKernel { .. })) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn advance_contract() -> KernelContract {
    use BindingRole::{Read, ReadWrite};
    let operands = [
        ("ids", Read),
        ("rows", Read),
        ("slots", ReadWrite),
        ("blocks", Read),
        ("tokens", ReadWrite),
        ("positions", ReadWrite),
        ("sequences", ReadWrite),
        ("cache_rows", ReadWrite),
        ("ring", ReadWrite),
    ];
    contract(ADVANCE, &operands)
}

fn advance_kernel(slots: usize, block: usize) -> CustomKernel {
    let cpu = CpuKernel::new(
        |_, _| Grid::rows(1, 1),
        move |piece| {
            let entries = piece.layout(3).cols();
            for row in 0..piece.layout(1).cols() {
                let slot = piece.src::<u32>(1)[row] as usize;
                if slot >= slots {
                    continue;
                }
                let id = piece.src::<u32>(0)[row];
                let words = &mut piece.dst_row::<u32>(2, 0)[slot * WORDS..][..WORDS];
                if words[STATE] != RUNNING {
                    continue;
                }
                let before = words[POSITION];
                if id == NO_INDEX {
                    words[STATE] = FAILED;
                } else {
                    words[TOKEN] = id;
                    words[POSITION] = before + 1;
                    if words[POSITION] >= words[END] {
                        words[STATE] = ENDED;
                    }
                    let stops = (words[STOPS] as usize).min(MOST_STOPS);
                    if words[STOP..STOP + stops].contains(&id) {
                        words[STATE] = STOPPED;
                    }
                }
                let (position, state) = (words[POSITION], words[STATE]);
                let ring = piece.dst_row::<u32>(8, 0);
                ring[slot * RING + before as usize % RING] = id;
                ring[slots * RING + 2 * slot] = position;
                ring[slots * RING + 2 * slot + 1] = state;
                if state == RUNNING {
                    let entry = (position as usize / block).min(entries - 1);
                    let place = piece.src::<u32>(3)[slot * entries + entry];
                    let place = place.wrapping_mul(block as u32);
                    piece.dst_row::<u32>(4, 0)[row] = id;
                    piece.dst_row::<u32>(5, 0)[row] = position;
                    piece.dst_row::<u32>(7, 0)[row] = place.wrapping_add(position % block as u32);
                } else {
                    piece.dst_row::<u32>(6, 0)[row] = NO_INDEX;
                    piece.dst_row::<u32>(7, 0)[row] = NO_INDEX;
                }
            }
        },
    );
    let constants = [
        ("NO_INDEX", NO_INDEX as usize),
        ("SLOTS", slots),
        ("WORDS", WORDS),
        ("TOKEN", TOKEN),
        ("POSITION", POSITION),
        ("END", END),
        ("STATE", STATE),
        ("STOPS", STOPS),
        ("STOP", STOP),
        ("RUNNING", RUNNING as usize),
        ("STOPPED", STOPPED as usize),
        ("ENDED", ENDED as usize),
        ("FAILED", FAILED as usize),
        ("BLOCK", block),
        ("RING", RING),
    ];
    let mut wgsl: String =
        constants.iter().map(|(name, value)| format!("const {name} = {value}u;\n")).collect();
    wgsl.push_str(include_str!("kernels/advance.wgsl"));
    let groups =
        |views: &[TensorView], _: &[u32]| [views[1].layout.cols().div_ceil(64) as u32, 1, 1];
    CustomKernel::new(advance_contract()).with_cpu(cpu).with_wgsl(&wgsl, groups)
}

#[cfg(all(test, feature = "wgpu"))]
#[allow(clippy::unwrap_used)]
mod tests {
    use clearway::listing::{WgslTarget, kernels};
    use clearway::{DType, KernelRegistry, Layout};

    use super::*;

    #[test]
    fn the_kernel_that_ends_a_step_has_a_form_for_metal_and_dx12() {
        let (slots, rows, block) = (3, 2, 16);
        let mut registry = KernelRegistry::new();
        registry.register(advance_kernel(slots, block)).unwrap();
        let mut graph = ComputeGraph::new();
        let mut value =
            |shape: &[usize]| graph.declare_value(Layout::new(DType::U32, shape).unwrap());
        let [ids, of_rows, tokens, positions, sequences, cache_rows] =
            [(); 6].map(|()| value(&[rows]));
        let advance = Advance {
            ids,
            rows: of_rows,
            slots: value(&[slots * WORDS]),
            blocks: value(&[slots, 4]),
            tokens,
            positions,
            sequences,
            cache_rows,
            ring: value(&[slots * (RING + 2)]),
        };
        advance.record(&mut graph, block).unwrap();
        let dispatch = graph.dispatches().next().unwrap();
        let listed = kernels(dispatch, &registry, &WgslTarget::default()).unwrap();
        assert_eq!(listed.len(), 1);
        clearway::wgpu::shaders::write(&listed[0].kernel.source).unwrap();
    }
}
