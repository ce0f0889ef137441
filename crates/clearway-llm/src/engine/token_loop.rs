//! Generation that stays on the device: the token a step chose is the next step's input.
//!
//! One graph holds a whole step: embedding, layers, head, the choice of a token, and a small kernel
//! that hands the token and the next position to the step after it. The host hands over several steps
//! at a time, the next ones before the last ones are done, and reads their tokens from a ring.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use clearway::cpu::{CpuKernel, Grid};
use clearway::{
    BindingContract, BindingRole, Buffer, CapturedOpKind, CustomKernel, DType, KernelContract,
    Layout, NO_INDEX, TensorView,
};

use super::sample::SamplerOptions;
use super::{Engine, EngineError, Result, Step};
use crate::model::{Logits, POSITIONS, TOKENS};

/// Steps that are handed over together at most.
const TOGETHER: usize = 32;
/// So many times before the first of them are waited for: the device never waits for the host.
const AHEAD: usize = 2;
/// Tokens the ring holds: steps that may be under way before the host reads.
const RING: usize = AHEAD * TOGETHER;
/// How long steps that are handed over together may take: text must still flow.
const PATIENCE: Duration = Duration::from_millis(60);
/// Best tokens among which the device draws at most; they are looked at one by one.
const MOST_DRAWN: usize = 160;

const ADVANCE: &str = "clearway.advance";
const DRAW: &str = "clearway.draw";

/// How the device chooses tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Choice {
    /// The most likely.
    Greedy,
    /// Drawn from the most likely.
    Drawn { temperature: f32, top_k: usize, top_p: f32, min_p: f32 },
}

impl Choice {
    /// The choice that does what these options say; `None` where only the host can.
    pub(super) fn of(options: &SamplerOptions) -> Option<Self> {
        let SamplerOptions { temperature, top_k, top_p, min_p, repeat_penalty, .. } = *options;
        if repeat_penalty != 1.0 {
            return None;
        }
        if temperature <= 0.0 {
            return Some(Self::Greedy);
        }
        let bounded = (1..=MOST_DRAWN).contains(&top_k);
        bounded.then_some(Self::Drawn { temperature, top_k, top_p, min_p })
    }
}

/// A compiled step that feeds itself.
pub(super) struct TokenLoop {
    step: Step,
    ring: Buffer,
    /// State of the random numbers, for draws.
    random: Buffer,
    pub(super) choice: Choice,
    /// Steps that are handed over together next, by how long the last ones took.
    together: usize,
}

impl TokenLoop {
    pub(super) fn step(&self) -> &Step {
        &self.step
    }
}

impl Engine {
    /// Whether generation should stay on the device.
    pub fn feeds_back(&self) -> bool {
        self.options.replay && self.executor.device().host_is_far()
    }

    /// Compiles what [`generate`](Self::generate) runs for these options, so that the first tokens need
    /// not wait for it. Does nothing where only the host can choose tokens as they say.
    ///
    /// # Errors
    /// What the device reports.
    pub fn prepare(&mut self, options: &SamplerOptions) -> Result<()> {
        match Choice::of(options) {
            Some(choice) if self.looped.as_ref().is_none_or(|looped| looped.choice != choice) => {
                // Two would need twice the memory.
                self.looped = None;
                self.looped = Some(self.compile_loop(choice)?);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Reads `token` into the cache and generates `count` tokens after it, all on the device. `seen` gets
    /// each of them as soon as the host has it and says whether to go on. What the device generates
    /// beyond a stop is forgotten; work that comes later waits for it: about a tenth of a second, or
    /// two steps that are slower.
    ///
    /// # Errors
    /// [`EngineError::ContextFull`] where the context ends first, with what was generated lost;
    /// [`EngineError::TokenOutOfRange`]; [`EngineError::NotFinite`]; what the device reports.
    pub fn generate(
        &mut self,
        token: u32,
        count: usize,
        options: &SamplerOptions,
        seen: &mut dyn FnMut(u32) -> bool,
    ) -> Result<()> {
        if Choice::of(options).is_none() {
            return Err(EngineError::NotOnDevice);
        }
        let vocab = self.shape.vocab;
        if token as usize >= vocab {
            return Err(EngineError::TokenOutOfRange { token, vocab });
        }
        let wanted = self.position + count;
        if wanted > self.context {
            return Err(EngineError::ContextFull { wanted, context: self.context });
        }
        self.prepare(options)?;
        let Some(mut looped) = self.looped.take() else { return Err(EngineError::NotOnDevice) };
        let outcome = self
            .begin_loop(&looped, token, options.seed)
            .and_then(|()| self.run_loop(&mut looped, token, count, seen));
        self.looped = Some(looped);
        outcome
    }

    /// Writes what the first step reads.
    fn begin_loop(&self, looped: &TokenLoop, token: u32, seed: u64) -> Result<()> {
        looped.step.tokens.write_slice(0, &[token])?;
        looped.step.positions.write_slice(0, &[self.position as u32])?;
        let fresh = (self.position as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed;
        looped.random.write_slice(0, &[fresh as u32 | 1, (fresh >> 32) as u32])?;
        Ok(())
    }

    fn run_loop(
        &mut self,
        looped: &mut TokenLoop,
        mut input: u32,
        count: usize,
        go_on: &mut dyn FnMut(u32) -> bool,
    ) -> Result<()> {
        let mut under_way = VecDeque::with_capacity(AHEAD);
        let mut left = count;
        // The first tokens come sooner: they show that something happens.
        let mut next = looped.together.div_ceil(4);
        let mut last = Instant::now();
        loop {
            while left > 0 && under_way.len() < AHEAD {
                let steps = left.min(next);
                under_way.push_back((looped.step.graph.start(steps)?, steps));
                left -= steps;
                next = looped.together;
            }
            let Some((runs, steps)) = under_way.pop_front() else { return Ok(()) };
            looped.step.graph.finish(runs)?;
            looped.together = fitting(last.elapsed() / steps as u32);
            last = Instant::now();
            let ring: Vec<u32> = looped.ring.peek_vec(0, RING)?;
            for _ in 0..steps {
                let token = ring[self.position % RING];
                if token == NO_INDEX {
                    // The steps behind it read no token, and nobody wants what they write.
                    for (runs, _) in under_way {
                        looped.step.graph.finish(runs)?;
                    }
                    return Err(self.not_finite(&[input]));
                }
                self.position += 1;
                input = token;
                if !go_on(token) {
                    return Ok(());
                }
            }
        }
    }

    fn compile_loop(&mut self, choice: Choice) -> Result<TokenLoop> {
        self.register_kernels()?;
        let mut recorded = self.record(1, Logits::Last)?;
        let device = self.executor.device().clone();
        let (tokens, positions) = (device.alloc(4)?, device.alloc(4)?);
        let (ring, random) = (device.alloc_mailbox(4 * RING as u64)?, device.alloc(8)?);
        let mut bound = self.bind(&recorded, &tokens, &positions)?;
        let find = |name: &str| recorded.externals.iter().position(|e| e.name == name);
        let (Some(token_id), Some(position_id)) = (find(TOKENS), find(POSITIONS)) else {
            return Err(EngineError::NotOnDevice);
        };
        let token_view = recorded.externals[token_id].view;
        let position_view = recorded.externals[position_id].view;
        let next_external = recorded.externals.len();
        let external = |index: usize, buffer: &Buffer, elems: usize| -> Result<TensorView> {
            let layout = Layout::new(DType::U32, &[elems])?;
            let buf_id = next_external + index;
            Ok(TensorView { buf_id, buf_len: buffer.len(), offset: 0, layout })
        };
        let ring_view = external(0, &ring, RING)?;
        let random_view = external(1, &random, 2)?;
        bound.insert(ring_view.buf_id, (ring.clone(), 0));
        bound.insert(random_view.buf_id, (random.clone(), 0));

        let graph = &mut recorded.graph;
        let id = graph.declare_value(Layout::new(DType::U32, &[1])?);
        let logits = recorded.logits;
        match choice {
            Choice::Greedy => {
                clearway::record(graph, CapturedOpKind::ArgMax, &[logits, id], &[], "choose")?;
            }
            Choice::Drawn { temperature, top_k, top_p, min_p } => {
                let kept = top_k.min(self.shape.vocab);
                let best = graph.declare_value(Layout::new(DType::F32, &[1, kept])?);
                let ids = graph.declare_value(Layout::new(DType::U32, &[1, kept])?);
                clearway::record(graph, CapturedOpKind::TopK, &[logits, best, ids], &[], "choose")?;
                let views = [best, ids, random_view, id];
                let params = [temperature.to_bits(), top_p.to_bits(), min_p.to_bits()];
                graph.dispatch(
                    CapturedOpKind::Custom,
                    &draw_contract(),
                    &views,
                    &params,
                    "draw",
                )?;
            }
        }
        let views = [id, token_view, position_view, ring_view];
        graph.dispatch(CapturedOpKind::Custom, &advance_contract(), &views, &[], "advance")?;
        let graph = self.executor.compile(&recorded.graph, &bound, &self.options.compile)?;
        let step = Step { graph, recorded, tokens, positions };
        Ok(TokenLoop { step, ring, random, choice, together: 1 })
    }

    fn register_kernels(&self) -> Result<()> {
        for kernel in [advance_kernel(), draw_kernel()] {
            match self.executor.register(kernel) {
                Ok(()) | Err(clearway::Error::Gpu(clearway::GpuError::DuplicateKernel { .. })) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// How many steps that take so long are handed over together: devices like multiples of 8.
fn fitting(step: Duration) -> usize {
    let steps = (PATIENCE.as_secs_f64() / step.as_secs_f64().max(1e-9)) as usize;
    let steps = steps.clamp(1, TOGETHER);
    if steps < 8 { steps } else { steps / 8 * 8 }
}

fn advance_contract() -> KernelContract {
    KernelContract::new(
        ADVANCE,
        [
            BindingContract::new("id", BindingRole::Read),
            BindingContract::new("tokens", BindingRole::ReadWrite),
            BindingContract::new("positions", BindingRole::ReadWrite),
            BindingContract::new("ring", BindingRole::ReadWrite),
        ],
    )
}

/// The chosen token becomes the next input and goes into the ring; the position moves on.
fn advance_kernel() -> CustomKernel {
    let cpu = CpuKernel::new(
        |_, _| Grid::rows(1, 1),
        |piece| {
            let id = piece.src::<u32>(0)[0];
            let position = piece.dst_row::<u32>(2, 0)[0];
            piece.dst_row::<u32>(2, 0)[0] = position.wrapping_add(1);
            piece.dst_row::<u32>(1, 0)[0] = id;
            piece.dst_row::<u32>(3, 0)[position as usize % RING] = id;
        },
    );
    let wgsl = "
@compute @workgroup_size(1)
fn main() {
    let id = get_o0(0u);
    let position = get_o2(0u);
    put_o2(0u, position + 1u);
    put_o1(0u, id);
    put_o3(position % P.o3.shape.w, id);
}
";
    CustomKernel::new(advance_contract()).with_cpu(cpu).with_wgsl(wgsl, |_, _| [1, 1, 1])
}

fn draw_contract() -> KernelContract {
    KernelContract::new(
        DRAW,
        [
            BindingContract::new("best", BindingRole::Read),
            BindingContract::new("ids", BindingRole::Read),
            BindingContract::new("random", BindingRole::ReadWrite),
            BindingContract::new("id", BindingRole::Write),
        ],
    )
}

/// Draws one of the best tokens, which come in falling order: softmax at the temperature, cut where
/// the rest is below `min_p` of the best or the kept share reaches `top_p`. [`NO_INDEX`] where the best is not finite.
fn draw_kernel() -> CustomKernel {
    let cpu = CpuKernel::new(
        |_, _| Grid::rows(1, 1),
        |piece| {
            let (temperature, top_p, min_p) = (piece.float(0), piece.float(1), piece.float(2));
            let (best, ids) = (piece.src::<f32>(0), piece.src::<u32>(1));
            if !best[0].is_finite() {
                piece.dst_row::<u32>(3, 0)[0] = NO_INDEX;
                return;
            }
            let weight = |logit: f32| ((logit - best[0]) / temperature).exp();
            let mut total = 0.0;
            for &logit in best {
                total += weight(logit);
            }
            let (mut kept, mut count) = (0.0, 0);
            for &logit in best {
                if count > 0 && (kept >= top_p * total || weight(logit) < min_p) {
                    break;
                }
                kept += weight(logit);
                count += 1;
            }
            let state = piece.dst_row::<u32>(2, 0);
            let share = next_share(state);
            let (mut sum, mut chosen) = (0.0, count - 1);
            for (index, &logit) in best[..count].iter().enumerate() {
                sum += weight(logit);
                if sum > share * kept {
                    chosen = index;
                    break;
                }
            }
            piece.dst_row::<u32>(3, 0)[0] = ids[chosen];
        },
    );
    let wgsl = "
fn weight(i: u32) -> f32 { return exp((get_o0(i) - get_o0(0u)) / argf(0u)); }
@compute @workgroup_size(1)
fn main() {
    let count = P.o0.shape.w;
    if ((bitcast<u32>(get_o0(0u)) & 0x7f800000u) == 0x7f800000u) {
        put_o3(0u, 0xffffffffu);
        return;
    }
    var total = 0.0;
    for (var i = 0u; i < count; i++) { total += weight(i); }
    var kept = 0.0;
    var used = 0u;
    for (var i = 0u; i < count; i++) {
        if (i > 0u && (kept >= argf(1u) * total || weight(i) < argf(2u))) { break; }
        kept += weight(i);
        used += 1u;
    }
    // One step of a 32-bit permuted congruential generator for 24 bits of a share.
    let state = get_o2(0u) * 747796405u + (get_o2(1u) | 1u);
    put_o2(0u, state);
    let word = ((state >> ((state >> 28u) + 4u)) ^ state) * 277803737u;
    let share = f32(((word >> 22u) ^ word) >> 8u) / 16777216.0;
    var sum = 0.0;
    var chosen = used - 1u;
    for (var i = 0u; i < used; i++) {
        sum += weight(i);
        if (sum > share * kept) { chosen = i; break; }
    }
    put_o3(0u, get_o1(chosen));
}
";
    CustomKernel::new(draw_contract()).with_cpu(cpu).with_wgsl(wgsl, |_, _| [1, 1, 1])
}

/// The next number in 0..1 of a permuted congruential generator, the same as the WGSL above.
fn next_share(state: &mut [u32]) -> f32 {
    let next = state[0].wrapping_mul(747_796_405).wrapping_add(state[1] | 1);
    state[0] = next;
    let word = ((next >> ((next >> 28) + 4)) ^ next).wrapping_mul(277_803_737);
    (((word >> 22) ^ word) >> 8) as f32 / 16_777_216.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_fill_the_unit_interval_evenly() {
        let mut state = [12345, 678];
        let mut counts = [0_u32; 10];
        for _ in 0..100_000 {
            let share = next_share(&mut state);
            assert!((0.0..1.0).contains(&share));
            counts[(share * 10.0) as usize] += 1;
        }
        assert!(counts.iter().all(|&count| (9_600..10_400).contains(&count)), "{counts:?}");
    }

    #[test]
    fn steps_are_handed_over_as_long_as_text_still_flows() {
        let of = |micros: u64| fitting(Duration::from_micros(micros));
        let steps = [0, 700, 2_200, 7_000, 10_000, 100_000].map(of);
        assert_eq!(steps, [TOGETHER, TOGETHER, 24, 8, 6, 1]);
    }

    #[test]
    fn the_host_is_asked_where_the_device_cannot_choose() {
        let options = SamplerOptions { temperature: 0.0, ..SamplerOptions::default() };
        assert_eq!(Choice::of(&options), Some(Choice::Greedy));
        let penalised = SamplerOptions { repeat_penalty: 1.1, ..options };
        assert_eq!(Choice::of(&penalised), None);
        let unbounded = SamplerOptions { temperature: 0.8, top_k: 0, ..options };
        assert_eq!(Choice::of(&unbounded), None);
    }
}
