//! Host, device and a slow reference on random and degenerate rows.

use std::collections::BTreeMap;
use std::sync::Arc;

use clearway::cpu::CpuDevice;
use clearway::vulkan::VulkanOptions;
use clearway::{Bindings, Buffer, CompileOptions, Device, Executable, Recorder};
use clearway_graph::testkit::{Rng, Run};

use super::*;
use crate::engine::{Penalties, Sampler, TokenMask};

/// Cuts and draws that lie this close together may differ by rounding.
const NEAR: f64 = 1e-5;
const VOCABULARIES: [usize; 9] = [1, 2, 5, 40, 41, 200, 1000, 1500, 4000];

/// A compiled choice from a row of logits.
struct Chooser {
    graph: Executable,
    logits: Buffer,
    row: Buffer,
    position: Buffer,
    id: TensorView,
}

impl Chooser {
    fn new(executor: &GraphExecutor, choice: Choice, vocab: usize) -> Self {
        register(executor).unwrap();
        let device = executor.device();
        let mut ops = Recorder::new();
        let logits = ops.external("logits", DType::F32, &[1, vocab]).unwrap();
        let table = ops.external("row", DType::U32, &[1, DRAW_WORDS]).unwrap();
        let positions = ops.external("position", DType::U32, &[1]).unwrap();
        let rows = ops.external("rows", DType::U32, &[1]).unwrap();
        let by = DrawnBy { table, rows, positions };
        let id = record(ops.graph_mut(), choice, logits, by).unwrap();
        ops.mark_output(id).unwrap();
        let (graph, externals) = ops.into_parts();
        let buffer = |view: TensorView| device.alloc(view.layout.span_bytes()).unwrap();
        let buffers: Vec<Buffer> = externals.iter().map(|e| buffer(e.view)).collect();
        let mut bound = Bindings::new();
        for (external, buffer) in externals.iter().zip(&buffers) {
            bound.bind(external.view, buffer);
        }
        let graph = executor.compile(&graph, &bound, &CompileOptions::default()).unwrap();
        let [logits, row, position, rows] = buffers.try_into().unwrap();
        rows.write_slice(0, &[0_u32]).unwrap();
        Self { graph, logits, row, position, id }
    }

    fn choose(&mut self, logits: &[f32], sampling: &Sampling, position: usize) -> Option<u32> {
        self.logits.write_slice(0, logits).unwrap();
        self.row.write_slice(0, &sampling.draw().to_words()).unwrap();
        self.position.write_slice(0, &[(position as u32).wrapping_sub(1)]).unwrap();
        self.graph.run().unwrap();
        let id = self.graph.read::<u32>(self.id).unwrap()[0];
        (id != NO_INDEX).then_some(id)
    }
}

/// A row to choose from.
struct Case {
    logits: Vec<f32>,
    text: Vec<u32>,
    sampling: Sampling,
}

impl Case {
    fn new(seed: u64) -> Self {
        let rng = &mut Rng::new(seed);
        let vocab = pick(rng, &VOCABULARIES);
        let kind = rng.below(8);
        let scale = pick(rng, &[0.1, 1.0, 4.0, 30.0]);
        let normal = |rng: &mut Rng| (0..6).map(|_| unit(rng) - 0.5).sum::<f32>();
        let logits: Vec<f32> = (0..vocab)
            .map(|_| match kind {
                0 => (normal(rng) * scale).round(),
                1 => 1.25,
                2 if rng.below(4) > 0 => f32::NEG_INFINITY,
                3 => pick(rng, &[3e38, 1e30, 0.0, -0.0, -1e30, -3e38]),
                4 => 1e6 + (normal(rng) * 8.0).round() / 8.0,
                _ => normal(rng) * scale,
            })
            .collect();
        let logits = match kind {
            // One candidate.
            5 => {
                let only = rng.below(vocab as u64) as usize;
                let keep = |(i, &l): (usize, &f32)| if i == only { l } else { f32::NEG_INFINITY };
                logits.iter().enumerate().map(keep).collect()
            }
            _ => logits,
        };
        let any = |rng: &mut Rng| rng.below(vocab as u64) as u32;
        let text = (0..rng.below(80)).map(|_| any(rng)).collect();
        let penalties = match rng.below(4) {
            0 => Penalties {
                window: rng.below(100) as usize,
                repeat: pick(rng, &[1.0, 0.0, 1.3]),
                frequency: pick(rng, &[0.0, 0.5, -0.25]),
                presence: pick(rng, &[0.0, 0.75]),
            },
            _ => Penalties::default(),
        };
        let biases = match rng.below(4) {
            0 => (0..rng.below(5)).map(|_| (any(rng), normal(rng) * 5.0)).collect(),
            1 => vec![(any(rng), f32::NEG_INFINITY)],
            _ => Vec::new(),
        };
        let mask = (rng.below(4) == 0).then(|| {
            let count = pick(rng, &[0, 1, 20, 500]);
            Arc::new(TokenMask::new((0..count).map(|_| any(rng))))
        });
        let some = |rng: &mut Rng| unit(rng);
        let sampling = Sampling {
            seed: rng.next(),
            temperature: pick(rng, &[0.0, 1e-3, 0.3, 0.8, 1.0, 1.7, 50.0]),
            top_k: pick(rng, &[1, 2, 17, 39, 40, 41, 100, 160]),
            top_p: if rng.below(3) == 0 { pick(rng, &[0.0, 0.5, 1.0]) } else { some(rng) },
            min_p: if rng.below(3) == 0 { pick(rng, &[0.0, 1.0]) } else { some(rng) * 0.2 },
            penalties,
            biases,
            mask,
            ..Sampling::default()
        };
        Self { logits, text, sampling }
    }

    /// The logits after biases, mask and penalties, token by token as the order of operations says it.
    fn adjusted(&self) -> Vec<f32> {
        let Sampling { penalties, biases, mask, .. } = &self.sampling;
        let recent = &self.text[self.text.len().saturating_sub(penalties.window)..];
        let adjust = |(id, &logit): (usize, &f32)| {
            let id = id as u32;
            let mut logit =
                biases.iter().filter(|(token, _)| *token == id).fold(logit, |l, (_, b)| l + b);
            if mask.as_ref().is_some_and(|mask| !mask.allows(id)) {
                logit = f32::NEG_INFINITY;
            }
            let count = recent.iter().filter(|&&token| token == id).count();
            if count > 0 {
                if penalties.repeat > 0.0 && logit > 0.0 {
                    logit /= penalties.repeat;
                } else if penalties.repeat > 0.0 {
                    logit *= penalties.repeat;
                }
                logit -= count as f32 * penalties.frequency + penalties.presence;
            }
            logit
        };
        self.logits.iter().enumerate().map(adjust).collect()
    }

    /// The token by the order of operations in f64, and whether a cut or the draw is near.
    fn expected(&self) -> (Option<u32>, bool) {
        let Sampling { temperature, top_k, top_p, min_p, .. } = self.sampling;
        let adjusted = self.adjusted();
        let mut ranked: Vec<u32> = (0..adjusted.len() as u32).collect();
        ranked.retain(|&id| adjusted[id as usize] > f32::NEG_INFINITY);
        // Stable: of equals the lower id stays first.
        ranked.sort_by(|&a, &b| adjusted[b as usize].partial_cmp(&adjusted[a as usize]).unwrap());
        let Some(&first) = ranked.first() else { return (None, false) };
        if temperature == 0.0 {
            return (Some(first), false);
        }
        ranked.truncate(top_k);
        let best = f64::from(adjusted[first as usize]);
        let below: Vec<f64> =
            ranked.iter().map(|&id| f64::from(adjusted[id as usize]) - best).collect();
        let weights: Vec<f64> = below.iter().map(|below| below.exp()).collect();
        let total: f64 = weights.iter().sum();
        let (mut near, mut kept, mut count) = (false, 0.0, 0);
        for &weight in &weights {
            if count > 0 {
                near |= top_p < 1.0 && is_near(kept / total, f64::from(top_p));
                near |= min_p > 0.0 && is_near(weight, f64::from(min_p));
                if (top_p < 1.0 && kept >= f64::from(top_p) * total) || weight < f64::from(min_p) {
                    break;
                }
            }
            kept += weight;
            count += 1;
        }
        let heated: Vec<f64> =
            below[..count].iter().map(|below| (below / f64::from(temperature)).exp()).collect();
        let sum: f64 = heated.iter().sum();
        let share = f64::from(self.sampling.draw().share(self.text.len() as u32));
        let (mut running, mut chosen) = (0.0, None);
        for (&id, weight) in ranked.iter().zip(heated) {
            running += weight / sum;
            near |= is_near(running, share);
            if running > share && chosen.is_none() {
                chosen = Some(id);
            }
        }
        (chosen.or(Some(ranked[count - 1])), near)
    }
}

/// Whether rounding may decide between two numbers. Numbers that are equal, such as sums of equal weights, are exact on
/// every side.
fn is_near(a: f64, b: f64) -> bool {
    a != b && (a - b).abs() < NEAR
}

fn pick<T: Copy>(rng: &mut Rng, items: &[T]) -> T {
    *rng.pick(items).unwrap()
}

/// A number in `0..1`.
fn unit(rng: &mut Rng) -> f32 {
    (rng.next() >> 40) as f32 / 16_777_216.0
}

fn agree(name: &str, device: Arc<dyn Device>, divisor: u64) {
    let run = Run::from_env(&format!("sampler on {name}"), divisor);
    let executor = GraphExecutor::on(device);
    let mut choosers: BTreeMap<String, Chooser> = BTreeMap::new();
    let (mut near_rows, mut differing) = (0_u64, 0_u64);
    for seed in run.seeds() {
        let case = Case::new(seed);
        let Case { logits, text, sampling } = &case;
        let (expected, near) = case.expected();
        let host = Sampler::new(sampling.clone()).sample(logits, text);
        // Penalties, biases and mask are the host's; the device gets the logits they leave.
        let adjusted = case.adjusted();
        let row = Sampling {
            penalties: Penalties::default(),
            biases: Vec::new(),
            mask: None,
            ..sampling.clone()
        };
        let own = Choice::of(&row).unwrap();
        let mut same = host == expected;
        for choice in [own, Choice::Drawn { candidates: MOST_DRAWN }] {
            assert!(choice.serves(own));
            let key = format!("{choice:?} {}", logits.len());
            let new = || Chooser::new(&executor, choice, logits.len());
            let found = choosers.entry(key).or_insert_with(new).choose(&adjusted, &row, text.len());
            assert!(
                found == host || near,
                "seed {seed} on {name}, {choice:?}, {} words, {sampling:?}: {found:?}, the host {host:?}, expected \
                 {expected:?}",
                logits.len()
            );
            same &= found == host;
        }
        assert!(host == expected || near, "seed {seed}, {sampling:?}: {host:?}, not {expected:?}");
        near_rows += u64::from(near);
        differing += u64::from(!same);
    }
    println!(
        "{name}: {near_rows} rows with a cut or draw within {NEAR}, of which {differing} differ"
    );
    assert!(differing * 1000 <= run.cases.max(1000), "{differing} of {} differ", run.cases);
    // Chance may bring some into a short run.
    assert!(near_rows * 1000 <= run.cases.max(5000), "{near_rows} of {} are near", run.cases);
}

#[test]
fn the_cpu_draws_what_the_host_draws() {
    agree("cpu", Arc::new(CpuDevice::with_threads(1)), 2);
}

#[test]
fn vulkan_draws_what_the_host_draws() {
    if let Some(device) = clearway::testkit::open_vulkan(VulkanOptions::default()).unwrap() {
        agree("vulkan", Arc::new(device), 2);
    }
}

#[test]
fn the_host_is_asked_where_the_device_cannot_choose() {
    let plain = Sampling::default();
    assert_eq!(Choice::of(&Sampling::greedy()), Some(Choice::Greedy));
    for (top_k, candidates) in [(1, 40), (40, 40), (41, 160), (160, 160)] {
        let sampling = Sampling { top_k, ..plain.clone() };
        assert_eq!(Choice::of(&sampling), Some(Choice::Drawn { candidates }));
    }
    for only_host in [
        Sampling { top_k: 0, ..plain.clone() },
        Sampling { top_k: 161, ..plain.clone() },
        Sampling { penalties: Penalties { repeat: 1.1, ..Penalties::default() }, ..plain.clone() },
        Sampling { biases: vec![(1, 1.0)], ..plain.clone() },
        Sampling { mask: Some(Arc::default()), ..plain.clone() },
        Sampling { log_probs: 1, ..plain.clone() },
    ] {
        assert_eq!(Choice::of(&only_host), None, "{only_host:?}");
    }
    let no_window = Penalties { repeat: 1.1, window: 0, ..Penalties::default() };
    assert!(Choice::of(&Sampling { penalties: no_window, ..plain }).is_some());
}

#[test]
fn a_step_serves_rows_that_need_no_more_than_it_has() {
    let [few, many] = [40, 160].map(|candidates| Choice::Drawn { candidates });
    assert!(many.serves(few) && many.serves(Choice::Greedy) && few.serves(few));
    assert!(!few.serves(many) && !Choice::Greedy.serves(few));
}

#[test]
fn a_step_without_a_token_moves_nothing_and_neither_do_those_behind_it() {
    let vulkan = clearway::testkit::open_vulkan(VulkanOptions::default()).unwrap();
    let vulkan = vulkan.map(|device| Arc::new(device) as Arc<dyn Device>);
    let cpu: Arc<dyn Device> = Arc::new(CpuDevice::with_threads(1));
    for device in [cpu].into_iter().chain(vulkan) {
        let name = device.info().name.clone();
        let executor = GraphExecutor::on(device.clone());
        register(&executor).unwrap();
        let mut ops = Recorder::new();
        let views = [("id", 1), ("token", 1), ("position", 1), ("ring", 4)]
            .map(|(name, elems)| ops.external(name, DType::U32, &[elems]).unwrap());
        record_advance(ops.graph_mut(), views).unwrap();
        let (graph, _) = ops.into_parts();
        let buffers = views.map(|view| device.alloc(view.layout.span_bytes()).unwrap());
        let mut bound = Bindings::new();
        views.iter().zip(&buffers).for_each(|(&view, buffer)| bound.bind(view, buffer));
        let mut graph = executor.compile(&graph, &bound, &CompileOptions::default()).unwrap();
        let [id, token, position, ring] = &buffers;
        token.write_slice(0, &[5_u32]).unwrap();
        position.write_slice(0, &[6_u32]).unwrap();
        ring.write_slice(0, &[1_u32, 2, 3, 4]).unwrap();
        let mut step = |chosen: u32, times: usize| {
            id.write_slice(0, &[chosen]).unwrap();
            graph.run_many(times).unwrap();
            let one = |buffer: &Buffer| buffer.read_vec::<u32>(0, 1).unwrap()[0];
            (one(token), one(position), ring.read_vec::<u32>(0, 4).unwrap())
        };
        assert_eq!(step(NO_INDEX, 3), (5, 6, vec![1, 2, NO_INDEX, 4]), "{name}");
        // The step is done again with what it left.
        assert_eq!(step(9, 1), (9, 7, vec![1, 2, 9, 4]), "{name}");
        assert_eq!(step(8, 2), (8, 9, vec![8, 2, 9, 8]), "{name}");
    }
}

/// The kernels of this module go through naga's writers for Metal and DX12.
#[cfg(feature = "wgpu")]
#[test]
fn kernels_that_choose_have_a_form_for_metal_and_dx12() {
    use clearway::listing::{WgslTarget, kernels};
    let mut registry = clearway::KernelRegistry::new();
    registry.register(advance_kernel()).unwrap();
    registry.register(draw_kernel()).unwrap();
    let mut graph = ComputeGraph::new();
    let mut value =
        |dtype, elems: usize| graph.declare_value(Layout::new(dtype, &[1, elems]).unwrap());
    let logits = value(DType::F32, 256);
    let [table, rows, position, token, ring] =
        [DRAW_WORDS, 1, 1, 1, 64].map(|elems| value(DType::U32, elems));
    let by = DrawnBy { table, rows, positions: position };
    let id = record(&mut graph, Choice::Drawn { candidates: 40 }, logits, by).unwrap();
    record_advance(&mut graph, [id, token, position, ring]).unwrap();
    let target = WgslTarget::default();
    let mut written = 0;
    for dispatch in graph.dispatches() {
        for listed in kernels(dispatch, &registry, &target).unwrap() {
            clearway::wgpu::shaders::write(&listed.kernel.source).unwrap();
            written += 1;
        }
    }
    assert_eq!(written, 3, "top k, draw, advance");
}
