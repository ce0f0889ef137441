//! An outside race checker over real submissions: Khronos synchronization validation must report
//! nothing, and must report a barrier that was removed. `cargo xtask syncval` makes the system it
//! needs and runs this there.
#![allow(clippy::unwrap_used)] // a test stops at the first surprise

use std::sync::Arc;
use std::time::Instant;

use clearway::schedule::Strategy;
use clearway::testkit::{PassShape, RandomPass};
use clearway::vulkan::{VulkanDevice, VulkanOptions};
use clearway::{
    BarrierReason, Bindings, Buffer, CapturedNode, CompileOptions, ComputeGraph, DType, Device,
    Encoder, Executable, GraphExecutor, HazardKind, KernelRegistry, Upload,
};
use clearway_graph::testkit::Run;
use clearway_llm::model::{
    self, Arch, Experts, ModelShape, POSITIONS, ROPE_FACTORS, RecordOptions, TOKENS, builtin_shape,
};
use rustc_hash::FxHashMap;

/// A device under the checker, and what was submitted to it.
struct Checked {
    device: Arc<VulkanDevice>,
    executor: GraphExecutor,
    graphs: u32,
    dispatches: u32,
    barriers: u32,
}

impl Checked {
    fn open() -> Self {
        // Reads ahead stand beside everything else, so the checker must see them.
        let options = VulkanOptions {
            validate: true,
            disk_cache: false,
            read_ahead: Some(64 << 10),
            ..VulkanOptions::default()
        };
        let device = Arc::new(VulkanDevice::open(options).unwrap());
        let executor = GraphExecutor::on(device.clone());
        Self { device, executor, graphs: 0, dispatches: 0, barriers: 0 }
    }

    /// Submits a graph alone, then twice in a row with nothing of the host in between.
    #[track_caller]
    fn submit(&mut self, graph: &mut Executable, what: &str) {
        graph.run().unwrap();
        graph.run_many(2).unwrap();
        self.assert_silent(what);
        self.graphs += 1;
        self.dispatches += graph.stats().compile.dispatches;
        self.barriers += graph.stats().compile.barriers;
    }

    /// Submits many runs before the first of them are waited for, as generated text does.
    #[track_caller]
    fn submit_ahead(&self, graph: &mut Executable, what: &str) {
        let runs = [9, 8].map(|times| graph.start(times).unwrap());
        runs.into_iter().for_each(|runs| graph.finish(runs).unwrap());
        self.assert_silent(what);
    }

    #[track_caller]
    fn assert_silent(&self, what: &str) {
        let messages = self.device.take_messages();
        let count = messages.len();
        assert!(messages.is_empty(), "{what}: {count} messages\n{}", messages.join("\n"));
    }

    fn encoder(&self) -> Box<dyn Encoder> {
        self.device.encoder(&KernelRegistry::new())
    }
}

/// A model without weights of note: where bytes lie is all the checker looks at.
struct Model {
    shape: ModelShape,
    dtype: DType,
    cache_rows: usize,
    buffers: FxHashMap<String, Buffer>,
}

impl Model {
    fn new(shape: ModelShape, dtype: DType, cache_rows: usize) -> Self {
        Self { shape, dtype, cache_rows, buffers: FxHashMap::default() }
    }

    /// A compiled step of some tokens that start at a position; buffers are made on first use.
    fn compile(
        &mut self,
        executor: &GraphExecutor,
        tokens: usize,
        first: u32,
        options: &CompileOptions,
    ) -> Executable {
        let dtype = self.dtype;
        let weight_dtype = move |_: &str| dtype;
        let options_of_step = RecordOptions {
            weight_dtype: &weight_dtype,
            ..RecordOptions::new(tokens, self.cache_rows)
        };
        let recorded = model::record(&self.shape, &options_of_step).unwrap();
        let device = executor.device();
        let mut bound = Bindings::new();
        for external in recorded.externals() {
            let layout = external.view.layout;
            let name = external.name.as_str();
            let make = || match name {
                TOKENS => device.upload(&vec![1_u32; tokens]).unwrap(),
                POSITIONS => device.upload(&(first..).take(tokens).collect::<Vec<u32>>()).unwrap(),
                ROPE_FACTORS => device.upload(&vec![1.0_f32; layout.elems()]).unwrap(),
                _ if name.starts_with("cache.") => device.alloc(layout.span_bytes()).unwrap(),
                _ => {
                    let zeros = vec![0; layout.span_bytes() as usize];
                    device.upload_weights(&layout, &zeros).unwrap()
                }
            };
            let key = match name {
                TOKENS | POSITIONS => format!("{name}.{tokens}"),
                _ => name.to_owned(),
            };
            let buffer = self.buffers.entry(key).or_insert_with(make);
            bound.bind(external.view, buffer);
        }
        executor.compile(recorded.graph(), &bound, options).unwrap()
    }
}

fn tiny() -> ModelShape {
    ModelShape::new("tiny", Arch::Llama, 2, 64, 96, 4, 2, 16, 128)
}

fn tiny_experts() -> ModelShape {
    let experts = Experts::new(4, 2, 32);
    let shape = ModelShape::new("tiny with experts", Arch::Qwen3Moe, 2, 64, 96, 4, 2, 16, 128);
    ModelShape { experts: Some(experts), ..shape }
}

/// Writes a list with one of its barriers left out.
fn encode_without(graph: &ComputeGraph, removed: usize, encoder: &mut dyn Encoder) {
    for (index, node) in graph.nodes().iter().enumerate() {
        match node {
            CapturedNode::Dispatch(dispatch) if dispatch.is_moot() => {}
            CapturedNode::Dispatch(dispatch) => encoder.dispatch(dispatch).unwrap(),
            CapturedNode::Barrier(reason) if index != removed => encoder.barrier(reason).unwrap(),
            CapturedNode::Barrier(_) => {}
        }
    }
}

/// The checker must see what it is there for: each barrier of a decode graph is removed in turn.
fn removed_barriers_are_reported() {
    let mut checked = Checked::open();
    let mut model = Model::new(tiny(), DType::F16, 32);
    let mut graph = model.compile(&checked.executor, 1, 5, &CompileOptions::default());
    checked.submit(&mut graph, "the whole list");
    let (mut removed, mut two_writes) = (0, 0);
    for (index, node) in graph.graph().nodes().iter().enumerate() {
        let CapturedNode::Barrier(BarrierReason::Hazard(hazard)) = node else { continue };
        if hazard.kind == HazardKind::WriteAfterWrite {
            // The layer leaves these out between dispatches; our own proof has them.
            two_writes += 1;
            continue;
        }
        let mut proven = checked.encoder();
        encode_without(graph.graph(), index, &mut *proven);
        proven.commit().unwrap_err();
        let mut encoder = checked.device.unproven_encoder(&KernelRegistry::new());
        encode_without(graph.graph(), index, &mut *encoder);
        encoder.commit().unwrap();
        encoder.wait().unwrap();
        let messages = checked.device.take_messages();
        let reported = messages.iter().any(|message| message.contains(" hazard detected"));
        assert!(reported, "{hazard} without its barrier: {messages:?}");
        removed += 1;
    }
    assert!(removed > 0);
    println!(
        "self-test: {removed} barriers removed one at a time, all reported; {two_writes} only between writes"
    );
}

fn models_are_silent(checked: &mut Checked) {
    let smollm2 = builtin_shape("smollm2-135m").unwrap();
    for (shape, dtype, rows, steps) in [
        (tiny(), DType::F16, 32, &[5, 1][..]),
        (tiny_experts(), DType::Q8_0, 32, &[5, 1]),
        (smollm2, DType::Q4_1, 160, &[9, 1]),
    ] {
        let (name, layers) = (shape.name.clone(), shape.layers);
        let mut model = Model::new(shape, dtype, rows);
        for &tokens in steps {
            let start = Instant::now();
            let kind = if tokens == 1 { "decode" } else { "prefill" };
            let what = format!("{name}, {layers} layers, {dtype}, {kind} of {tokens}");
            let first = if tokens == 1 { rows as u32 - 1 } else { 0 };
            let in_order = CompileOptions { elide: true, ..CompileOptions::naive() };
            // A software driver takes its time over long prefills.
            let count = if tokens > 8 { 1 } else { 2 };
            for options in [CompileOptions::default(), in_order].iter().take(count) {
                let mut graph = model.compile(&checked.executor, tokens, first, options);
                checked.submit(&mut graph, &what);
                if tokens == 1 {
                    checked.submit_ahead(&mut graph, &format!("{what}, handed over ahead"));
                }
                let (mut one, mut two) = (checked.encoder(), checked.encoder());
                graph.graph().encode_dual_buffer(&mut *one, &mut *two).unwrap();
                two.commit().unwrap();
                two.wait().unwrap();
                one.wait().unwrap();
                checked.assert_silent(&format!("{what}, in two encoders"));
            }
            println!("{what}: silent ({:.1} s)", start.elapsed().as_secs_f64());
        }
    }
}

fn random_graphs_are_silent(checked: &mut Checked) {
    let start = Instant::now();
    let run = Run::from_env_up_to("random graphs under synchronization validation", 10, 500);
    for (case, seed) in run.seeds().enumerate() {
        let halves = case % 2 == 1;
        let shape = PassShape { halves, aligned: true, ..PassShape::FEW_KERNELS };
        let pass = RandomPass::new(&**checked.executor.device(), seed, shape).unwrap();
        let mut session = checked.executor.begin_recorded().unwrap();
        pass.record(&mut session).unwrap();
        let fuse = case % 4 < 2;
        let reorder = match case % 3 {
            0 => Some(Strategy::Levels),
            1 => Some(Strategy::LookAhead { window: 64 }),
            _ => None,
        };
        let options = CompileOptions { fuse, reorder, ..CompileOptions::default() };
        let mut graph = session.compile(&options).unwrap();
        let what = format!("random graph of seed {seed}");
        checked.submit(&mut graph, &what);
        checked.submit_ahead(&mut graph, &format!("{what}, handed over ahead"));
    }
    println!("{} random graphs: silent ({:.1} s)", run.cases, start.elapsed().as_secs_f64());
}

#[test]
#[ignore = "needs a system with the race checker: cargo xtask syncval"]
fn no_submission_has_a_race() {
    removed_barriers_are_reported();
    let mut checked = Checked::open();
    println!("{}", checked.device.info().description);
    models_are_silent(&mut checked);
    random_graphs_are_silent(&mut checked);
    let Checked { graphs, dispatches, barriers, device, .. } = &checked;
    println!(
        "{graphs} graphs with {dispatches} dispatches and {barriers} barriers, each submitted alone, \
         twice in a row and ahead: no message ({} kernels)",
        device.pipeline_count()
    );
}
