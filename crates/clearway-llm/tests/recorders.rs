//! Every recorder's graph, run on the CPU at a tiny shape, against logits that numpy computed
//! (tests/data/models/make_logits.py): a prefill, then decode steps by replay over the same cache.
#![allow(clippy::unwrap_used)] // a test stops at the first surprise

use clearway::cpu::CpuDevice;
use clearway::{Bindings, Buffer, CompileOptions, DType, Executable, GraphExecutor, Upload};
use clearway_llm::model::{
    self, Logits, ModelGraph, ModelShape, POSITIONS, ROPE_FACTORS, RecordOptions, TOKENS,
};
use rustc_hash::FxHashMap;

mod tiny;
use tiny::{assert_close, golden, shapes, weight};

const PREFILL: usize = 7;
const CACHE_ROWS: usize = 12;

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
        let mut bound = Bindings::new();
        for external in recorded.externals() {
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
            bound.bind(external.view, buffer);
        }
        let graph = self.executor.compile(recorded.graph(), &bound, options).unwrap();
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
    let executor = GraphExecutor::new(CpuDevice::with_threads(2));
    for (name, shape) in shapes() {
        let (tokens, expected) = golden(name);
        for options in [CompileOptions::naive(), CompileOptions::default()] {
            let found = run(&executor, &shape, &tokens, &options);
            assert_close(name, &found, &expected.concat());
        }
    }
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
