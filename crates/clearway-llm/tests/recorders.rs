//! Every recorder's graph, run on the CPU at a tiny shape, against logits that numpy computed
//! (tests/data/models/make_logits.py): a prefill, then decode steps by replay over the same cache.

use clearway::cpu::CpuDevice;
use clearway::{Buffer, CompileOptions, DType, Executable, GraphExecutor, Upload};
use clearway_llm::model::{
    self, Arch, Experts, Logits, ModelGraph, ModelShape, POSITIONS, ROPE_FACTORS, RecordOptions,
    TOKENS, Window,
};
use rustc_hash::FxHashMap;

const PREFILL: usize = 7;
const CACHE_ROWS: usize = 12;

/// The shapes of make_logits.py.
fn shapes() -> Vec<(&'static str, ModelShape)> {
    let base = |arch, heads, kv_heads, head_dim| {
        ModelShape::new("tiny", arch, 3, 32, 48, heads, kv_heads, head_dim, 96)
    };
    let gemma = |arch| ModelShape { tied: true, ..base(arch, 4, 2, 8) };
    let experts = |count, used, ff, shared_ff, renormalise| {
        Some(Experts { count, used, ff, shared_ff, renormalise })
    };
    vec![
        ("llama", base(Arch::Llama, 4, 2, 8)),
        (
            "llama_tied",
            ModelShape { tied: true, rope_base: 500_000.0, ..base(Arch::Llama, 3, 1, 8) },
        ),
        (
            "qwen2",
            ModelShape { rope_base: 1_000_000.0, norm_eps: 1e-6, ..base(Arch::Qwen2, 4, 2, 8) },
        ),
        ("qwen3", ModelShape { tied: true, ..base(Arch::Qwen3, 4, 2, 16) }),
        (
            "qwen3moe",
            ModelShape { experts: experts(6, 3, 16, None, true), ..base(Arch::Qwen3Moe, 4, 2, 8) },
        ),
        (
            "gemma2",
            ModelShape {
                attention_scale: 0.25,
                attention_softcap: 2.0,
                logit_softcap: 1.5,
                window: Some(Window { rows: 3, period: 2, rope_base: None }),
                ..gemma(Arch::Gemma2)
            },
        ),
        (
            "gemma3",
            ModelShape {
                window: Some(Window { rows: 4, period: 3, rope_base: Some(100.0) }),
                rope_base: 5000.0,
                rope_scale: 0.125,
                ..gemma(Arch::Gemma3)
            },
        ),
        (
            "moe_shared",
            ModelShape {
                experts: experts(8, 2, 24, Some(40), false),
                ..base(Arch::MoeShared, 4, 2, 8)
            },
        ),
    ]
}

/// The weight both sides make from a tensor's name.
fn weight(name: &str, elems: usize, cols: usize) -> Vec<f32> {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let unit = |index: usize| {
        let mut z = hash.wrapping_add((index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        (z >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    let scale = 4.0 / (cols as f32).sqrt();
    (0..elems)
        .map(|index| match name {
            _ if name.ends_with("norm.weight") => 1.0 + 0.5 * unit(index),
            _ if name.ends_with("bias") => unit(index),
            _ => unit(index) * scale,
        })
        .collect()
}

/// A model with weights and a cache that several graphs share.
struct Model<'a> {
    executor: &'a GraphExecutor,
    shape: &'a ModelShape,
    buffers: FxHashMap<String, Buffer>,
}

impl<'a> Model<'a> {
    fn new(executor: &'a GraphExecutor, shape: &'a ModelShape) -> Self {
        Self { executor, shape, buffers: FxHashMap::default() }
    }

    /// A compiled step of `tokens` tokens; weights and caches are made on first use.
    fn compile(&mut self, tokens: usize, options: &CompileOptions) -> (Executable, ModelGraph) {
        let record = RecordOptions {
            cache_dtype: DType::F32,
            logits: Logits::All,
            weight_dtype: &|_| DType::F32,
            ..RecordOptions::new(tokens, CACHE_ROWS)
        };
        let recorded = model::record(self.shape, &record).unwrap();
        let mut bound = FxHashMap::default();
        for (id, external) in recorded.externals.iter().enumerate() {
            let layout = external.view.layout;
            let device = self.executor.device();
            let make = || match &*external.name {
                TOKENS | POSITIONS => device.alloc(layout.span_bytes()).unwrap(),
                ROPE_FACTORS => device.upload(&vec![1.0_f32; layout.elems()]).unwrap(),
                name if name.starts_with("cache.") => device.alloc(layout.span_bytes()).unwrap(),
                name => device.upload(&weight(name, layout.elems(), layout.cols())).unwrap(),
            };
            // The step's own tensors differ in size from graph to graph.
            let key = match &*external.name {
                name @ (TOKENS | POSITIONS) => format!("{name}.{tokens}"),
                name => name.to_owned(),
            };
            let buffer = self.buffers.entry(key).or_insert_with(make);
            bound.insert(id, (buffer.clone(), 0));
        }
        let graph = self.executor.compile(&recorded.graph, &bound, options).unwrap();
        (graph, recorded)
    }

    fn step(
        &self,
        graph: &mut Executable,
        recorded: &ModelGraph,
        tokens: &[u32],
        first: u32,
    ) -> Vec<f32> {
        let positions: Vec<u32> = (first..).take(tokens.len()).collect();
        let write = |name: &str, ids: &[u32]| {
            self.buffers[&format!("{name}.{}", tokens.len())].write_slice(0, ids).unwrap();
        };
        write(TOKENS, tokens);
        write(POSITIONS, &positions);
        graph.run().unwrap();
        graph.read_f32(recorded.logits).unwrap()
    }
}

fn run(
    executor: &GraphExecutor,
    shape: &ModelShape,
    tokens: &[u32],
    options: &CompileOptions,
) -> Vec<f32> {
    let mut model = Model::new(executor, shape);
    let (mut prefill, recorded) = model.compile(PREFILL, options);
    let mut logits = model.step(&mut prefill, &recorded, &tokens[..PREFILL], 0);
    let (mut decode, recorded) = model.compile(1, options);
    for (position, token) in tokens.iter().enumerate().skip(PREFILL) {
        logits.extend(model.step(&mut decode, &recorded, &[*token], position as u32));
    }
    logits
}

#[test]
fn logits_agree_with_numpy_for_every_family() {
    let golden: serde_json::Value =
        serde_json::from_str(include_str!("data/models/logits.json")).unwrap();
    let tokens: Vec<u32> = serde_json::from_value(golden["tokens"].clone()).unwrap();
    let executor = GraphExecutor::new(CpuDevice::with_threads(2));
    let mut compared = 0;
    for (name, shape) in shapes() {
        let expected: Vec<Vec<f32>> =
            serde_json::from_value(golden["logits"][name].clone()).unwrap();
        let expected = expected.concat();
        for options in [CompileOptions::naive(), CompileOptions::default()] {
            let found = run(&executor, &shape, &tokens, &options);
            assert_eq!(found.len(), expected.len(), "{name}");
            let scale = expected.iter().map(|v| v.abs()).fold(0.0, f32::max);
            let errors = found.iter().zip(&expected).map(|(a, b)| (a - b).abs());
            let worst = errors.fold(0.0, f32::max);
            // float32 against float32 in another order of summation.
            assert!(worst <= 2e-5 * scale, "{name}: {worst} off at scale {scale}");
            compared += found.len();
        }
    }
    assert_eq!(compared, shapes().len() * 2 * tokens.len() * 96);
}

#[test]
fn optimised_and_naive_runs_of_a_model_give_the_same_bits() {
    let executor = GraphExecutor::new(CpuDevice::with_threads(2));
    let tokens: Vec<u32> = (0..9).map(|i| (i * 37) % 96).collect();
    for (name, shape) in shapes() {
        let naive = run(&executor, &shape, &tokens, &CompileOptions::naive());
        let optimised = run(&executor, &shape, &tokens, &CompileOptions::default());
        assert!(naive == optimised, "{name}: an optimisation changed the logits");
    }
}
