//! Dependent phases of a step of every built-in shape, on a device that has every fused kernel for
//! up to 8 rows of activations. Nothing runs; the lists are proven.
#![allow(clippy::unwrap_used)] // a test stops at the first surprise

use clearway::cpu::CpuDevice;
use clearway::fuse::{RULES, Refusal};
use clearway::pipeline::{Compiled, compile};
use clearway::{
    Buffer, CapturedOpKind as Kind, CompileError, CompileOptions, ComputeGraph, Device, DeviceInfo,
    Encoder, GpuError, KernelRegistry, MemoryPlan,
};
use clearway_graph::FusedRequest;
use clearway_llm::model::{self, Arch, ModelShape, RecordOptions};

/// Most rows of activations the kernels of a device are made for that hold a norm or a gate.
const FEW_ROWS: usize = 8;

/// Products that hold a norm or a gate.
fn holds_more(kind: Kind) -> bool {
    kind.product().is_some_and(|product| !product.is_basic())
}

/// Which fused kernels a device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kernels {
    /// All but products that hold a norm or a gate.
    Plain,
    /// All but products that turn what they give or write it to a cache.
    Apart,
    All,
    /// And products that give and take rounded activations.
    Rounded,
}

/// A device that is only asked what it has.
struct Asked {
    inner: CpuDevice,
    kernels: Kernels,
}

impl Device for Asked {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn alloc(&self, bytes: u64) -> Result<Buffer, GpuError> {
        self.inner.alloc(bytes)
    }

    fn buffer(&self, buf_id: usize) -> Result<Buffer, GpuError> {
        self.inner.buffer(buf_id)
    }

    fn has_fused(&self, request: &FusedRequest<'_>) -> bool {
        let few = request.bindings[0].layout.rows() <= FEW_ROWS;
        let turns = RULES.iter().any(|rule| rule.fused == request.kind && rule.reshaped);
        let rounded = request.bindings.iter().any(|view| view.layout.dtype().is_form());
        match self.kernels {
            Kernels::Plain => !rounded && !holds_more(request.kind),
            Kernels::Apart => !rounded && (!holds_more(request.kind) || (few && !turns)),
            Kernels::All => !rounded && (!holds_more(request.kind) || few),
            Kernels::Rounded if rounded => request.bindings[0].layout.rows() == 1,
            Kernels::Rounded => !holds_more(request.kind) || few,
        }
    }

    fn encoder(&self, kernels: &KernelRegistry) -> Box<dyn Encoder> {
        self.inner.encoder(kernels)
    }
}

fn compiled(shape: &ModelShape, tokens: usize, kernels: Option<Kernels>) -> Compiled {
    let recorded = model::record(shape, &RecordOptions::new(tokens, 4096)).unwrap();
    let slabs = |plan: &MemoryPlan| {
        Ok::<_, CompileError>((1 << 40..).take(plan.slab_bytes().len()).collect())
    };
    let options = CompileOptions { fuse: kernels.is_some(), ..CompileOptions::default() };
    let kernels = kernels.unwrap_or(Kernels::Plain);
    let device = Asked { inner: CpuDevice::with_threads(1), kernels };
    compile(recorded.graph(), &mut KernelRegistry::new(), &device as &dyn Device, &options, slabs)
        .unwrap()
}

/// The shape with this many layers.
fn cut(shape: &ModelShape, layers: usize) -> ModelShape {
    ModelShape { layers, ..shape.clone() }
}

/// Dispatches and groups that a layer adds.
fn per_layer(shape: &ModelShape, tokens: usize, kernels: Option<Kernels>) -> (u32, u32) {
    let stats = [2, 3].map(|layers| *compiled(&cut(shape, layers), tokens, kernels).stats());
    (stats[1].dispatches - stats[0].dispatches, stats[1].groups - stats[0].groups)
}

/// Kinds of the groups behind the embedding, as many as the first layer has; those of one group by
/// name.
fn first_layer(graph: &ComputeGraph, groups: usize) -> Vec<Vec<&'static str>> {
    let all = graph.nodes().split(|node| node.dispatch().is_none());
    all.skip(1)
        .take(groups)
        .map(|group| {
            let mut kinds: Vec<_> =
                group.iter().filter_map(|node| node.dispatch()).map(|d| d.kind.name()).collect();
            kinds.sort_unstable();
            kinds
        })
        .collect()
}

#[test]
fn a_layer_of_one_token_is_five_phases() {
    for shape in model::builtin_shapes().iter().filter(|shape| shape.arch == Arch::Llama) {
        let compiled = compiled(shape, 1, Some(Kernels::All));
        let expected = [
            vec!["norm_matmul_kv", "norm_matmul_rope", "norm_matmul_rope_kv"],
            vec!["attention"],
            vec!["matmul_add"],
            vec!["norm_matmul_silu_gated"],
            vec!["matmul_add"],
        ];
        assert_eq!(first_layer(compiled.graph(), 5), expected, "{}", shape.name);
        assert_eq!(per_layer(shape, 1, Some(Kernels::All)), (7, 5), "{}", shape.name);
        // The embedding before the layers, and the norm and the product behind them in one.
        let stats = compiled.stats();
        assert_eq!(stats.groups, 5 * shape.layers as u32 + 2, "{}", shape.name);
        assert_eq!(
            (stats.groups, stats.false_barriers),
            (stats.longest_chain, 0),
            "{}",
            shape.name
        );
        let report = compiled.graph().fuse_report().unwrap();
        assert_eq!(report.refusals, [], "{}", shape.name);
        assert_eq!(report.repeats, 2 * shape.layers as u32, "{}", shape.name);
        assert_eq!(stats.recorded - stats.dispatches, report.fired() - report.repeats);
    }
}

#[test]
fn norms_go_ahead_and_the_phases_stay_five() {
    for shape in model::builtin_shapes().iter().filter(|shape| shape.arch == Arch::Llama) {
        let compiled = compiled(shape, 1, Some(Kernels::Rounded));
        // The first norm of all has no product in front of it.
        let first = ["norm_matmul_kv", "norm_matmul_rope", "norm_matmul_rope_kv"];
        let others = ["matmul_kv", "matmul_rope", "matmul_rope_kv"];
        let layer = |products: [&'static str; 3]| {
            let last = ["attention", "matmul_add_norm", "matmul_silu_gated", "matmul_add_norm"];
            std::iter::once(products.to_vec()).chain(last.map(|kind| vec![kind]))
        };
        let expected: Vec<_> = layer(first).chain(layer(others)).collect();
        assert_eq!(first_layer(compiled.graph(), 10), expected, "{}", shape.name);
        let stats = compiled.stats();
        assert_eq!(per_layer(shape, 1, Some(Kernels::Rounded)), (7, 5), "{}", shape.name);
        assert_eq!(stats.groups, 5 * shape.layers as u32 + 2, "{}", shape.name);
        assert_eq!(
            (stats.groups, stats.false_barriers),
            (stats.longest_chain, 0),
            "{}",
            shape.name
        );
        // Two norms and the gated product of each layer.
        assert_eq!(stats.quantised, 3 * shape.layers as u32, "{}", shape.name);
        let report = compiled.graph().quantise_report().unwrap();
        assert_eq!(report.refusals, [], "{}", shape.name);
    }
}

#[test]
fn nothing_is_rounded_where_the_device_has_no_kernel_for_it() {
    let shape = cut(&model::builtin_shape("llama-1b").unwrap(), 3);
    let compiled = compiled(&shape, 1, Some(Kernels::All));
    assert_eq!(compiled.stats().quantised, 0);
    let report = compiled.graph().quantise_report().unwrap();
    // Two norms and the gated product of each layer.
    let reasons = report.refusals.iter().map(|pair| &pair.reason);
    assert!(reasons.clone().all(|reason| matches!(reason, Refusal::NoKernel { .. })), "{report}");
    assert_eq!(reasons.count(), 3 * shape.layers, "{report}");
}

#[test]
fn a_layer_is_six_phases_where_products_do_not_turn() {
    let shape = cut(&model::builtin_shape("llama-1b").unwrap(), 3);
    let compiled = compiled(&shape, 1, Some(Kernels::Apart));
    let expected = [
        vec!["norm_matmul", "norm_matmul", "norm_matmul"],
        vec!["kv_write", "rope", "rope_kv_write"],
        vec!["attention"],
        vec!["matmul_add"],
        vec!["norm_matmul_silu_gated"],
        vec!["matmul_add"],
    ];
    assert_eq!(first_layer(compiled.graph(), 6), expected);
    assert_eq!(per_layer(&shape, 1, Some(Kernels::Apart)), (10, 6));
    let report = compiled.graph().fuse_report().unwrap();
    let rules = ["norm_matmul_rope", "norm_matmul_rope_kv", "norm_matmul_kv"];
    assert!(report.refusals.iter().all(|pair| rules.contains(&pair.rule)), "{report}");
    assert_eq!(report.refusals.len(), 3 * shape.layers, "{report}");
}

#[test]
fn the_device_decides_by_rows() {
    let shape = cut(&model::builtin_shape("llama-1b").unwrap(), 3);
    let kernels = Some(Kernels::All);
    assert_eq!(per_layer(&shape, FEW_ROWS, kernels), (7, 5));
    assert_eq!(
        per_layer(&shape, FEW_ROWS + 1, kernels),
        per_layer(&shape, 9, Some(Kernels::Plain))
    );
    let report = compiled(&shape, FEW_ROWS + 1, kernels);
    let report = report.graph().fuse_report().unwrap();
    // The head has one row whatever the step has.
    assert_eq!((report.fired_by("norm_matmul"), report.repeats), (1, 0));
    let refused = report.refusals.iter().filter(|pair| pair.rule == "norm_matmul");
    assert_eq!(refused.count(), 3 * 5, "q, k, v, gate and up of each layer\n{report}");
}

#[test]
fn norms_of_heads_cost_no_phase() {
    let shape = cut(&model::builtin_shape("qwen3-0.6b").unwrap(), 3);
    let compiled = compiled(&shape, 1, Some(Kernels::All));
    let expected = [
        vec!["norm_matmul_head_norm_rope", "norm_matmul_head_norm_rope_kv", "norm_matmul_kv"],
        vec!["attention"],
        vec!["matmul_add"],
        vec!["norm_matmul_silu_gated"],
        vec!["matmul_add"],
    ];
    assert_eq!(first_layer(compiled.graph(), 5), expected);
    assert_eq!(compiled.graph().fuse_report().unwrap().refusals, []);
    for rows in [1, FEW_ROWS] {
        assert_eq!(per_layer(&shape, rows, Some(Kernels::All)), (7, 5), "{rows} rows");
    }
    assert_eq!(per_layer(&shape, 1, Some(Kernels::Rounded)), (7, 5));
    // A device whose products do nothing with heads has the norm and the rotation in phases of their own.
    assert_eq!(per_layer(&shape, 1, Some(Kernels::Apart)).1, 7);
}

#[test]
fn norms_behind_parts_are_two_phases() {
    let shape = cut(&model::builtin_shape("gemma3-4b").unwrap(), 3);
    let compiled = compiled(&shape, 1, Some(Kernels::All));
    let expected = [
        vec!["norm_matmul_head_norm_rope", "norm_matmul_head_norm_rope_kv", "norm_matmul_kv"],
        vec!["attention"],
        vec!["matmul"],
        vec!["rms_norm_mul_add"],
        vec!["norm_matmul_gelu_gated"],
        vec!["matmul"],
        vec!["rms_norm_mul_add"],
    ];
    assert_eq!(first_layer(compiled.graph(), 7), expected);
    for rows in [1, FEW_ROWS] {
        assert_eq!(per_layer(&shape, rows, Some(Kernels::All)), (9, 7), "{rows} rows");
    }
    assert_eq!(per_layer(&shape, 1, Some(Kernels::Rounded)).1, 7);
}

#[test]
fn a_layer_of_experts_is_eight_phases() {
    let shape = cut(&model::builtin_shape("qwen3-30b-a3b").unwrap(), 3);
    let compiled = compiled(&shape, 1, Some(Kernels::All));
    let expected = [
        vec!["norm_matmul_head_norm_rope", "norm_matmul_head_norm_rope_kv", "norm_matmul_kv"],
        vec!["attention"],
        vec!["matmul_add"],
        vec!["norm_matmul"],
        vec!["router_top_k"],
        vec!["norm_matmul_experts_silu_gated"],
        vec!["matmul_experts"],
        vec!["expert_sum_add"],
    ];
    assert_eq!(first_layer(compiled.graph(), 8), expected);
    let stats = compiled.stats();
    assert_eq!((stats.groups, stats.false_barriers), (stats.longest_chain, 0));
    for rows in [1, FEW_ROWS] {
        assert_eq!(per_layer(&shape, rows, Some(Kernels::All)), (10, 8), "{rows} rows");
    }
    assert_eq!(per_layer(&shape, 1, Some(Kernels::Rounded)).1, 8);
}

#[test]
fn scales_and_tensors_of_several_matrices_cost_no_phase() {
    // Scores, embedding and residual stream are scaled, and files have queries, keys and values in one tensor.
    let base = |arch| ModelShape::new("small", arch, 3, 2048, 8192, 32, 8, 64, 1000);
    let scales = ModelShape {
        embedding_scale: 12.0,
        residual_scale: 0.22,
        attention_scale: 0.0156,
        ..base(Arch::Granite)
    };
    let turned = ModelShape { rope_dims: 48, rope_magnitude: 1.19, ..base(Arch::Phi3) };
    for shape in [scales, turned] {
        assert_eq!(per_layer(&shape, 1, Some(Kernels::All)), (7, 5), "{:?}", shape.arch);
        assert_eq!(per_layer(&shape, 1, Some(Kernels::Rounded)), (7, 5), "{:?}", shape.arch);
    }
}

#[test]
fn latent_attention_is_six_phases() {
    let shape = cut(&model::builtin_shape("deepseek-v2-lite").unwrap(), 3);
    let compiled = compiled(&shape, 1, Some(Kernels::All));
    // The first layer has no experts.
    let expected = [
        vec!["norm_matmul", "norm_matmul"],
        vec!["matmul_experts", "rms_norm_mul", "rope", "rope_kv_write"],
        vec!["concat", "kv_write"],
        vec!["attention"],
        vec!["matmul_experts"],
        vec!["matmul_add"],
        vec!["norm_matmul_silu_gated"],
        vec!["matmul_add"],
    ];
    assert_eq!(first_layer(compiled.graph(), 8), expected);
    let stats = compiled.stats();
    assert_eq!((stats.groups, stats.false_barriers), (stats.longest_chain, 0));
    // Experts take seven more than a plain feed-forward part.
    assert_eq!(per_layer(&shape, 1, Some(Kernels::All)), (19, 13));
}

#[test]
fn no_shape_gets_more_phases() {
    println!("per layer, dispatches / groups   unfused  plain kernels  all kernels; whole step");
    for shape in model::builtin_shapes() {
        let kinds = [None, Some(Kernels::Plain), Some(Kernels::All)];
        let [none, plain, all] = kinds.map(|kernels| per_layer(&shape, 1, kernels));
        let whole = kinds.map(|kernels| {
            let stats = *compiled(&shape, 1, kernels).stats();
            (stats.dispatches, stats.groups)
        });
        println!("{:<16} {none:?} {plain:?} {all:?}; {whole:?}", shape.name);
        assert!(all.1 <= plain.1 && plain.1 <= none.1, "{}", shape.name);
        assert!(all.0 <= plain.0 && plain.0 < none.0, "{}", shape.name);
    }
}
