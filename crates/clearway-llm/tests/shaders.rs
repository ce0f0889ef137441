//! Every shader of the product, without a device: all ops of the op suite and all steps of the built-in
//! shapes, in every way that a device could choose, on devices of several kinds.
//!
//! No validator asks whether shared memory is accessed as such, so that is checked here. Everything else is
//! the business of `spirv-val`: `cargo xtask shaders` has the shaders written and validates them.
#![allow(clippy::unwrap_used, clippy::panic)] // a test stops at the first surprise

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use clearway::cpu::CpuDevice;
use clearway::fuse::RULES;
use clearway::pipeline::{Compiled, compile};
use clearway::vulkan::shaders;
use clearway::{
    Buffer, CapturedOpKind as Kind, CompileError, CompileOptions, ComputeGraph, DType, Device,
    DeviceInfo, Encoder, GpuError, KernelRegistry, Layout, MemoryPlan, TensorView,
};
use clearway_gpu::ops::{self, suite};
use clearway_gpu::wgsl::{self, Job, Operand, Packing, Target, planes};
use clearway_graph::{BindingRole, FusedRequest, Product};
use clearway_llm::model::{self, CacheLayout, DecodeRows, Logits, ModelShape, RecordOptions};

#[path = "shaders/operands.rs"]
mod operands;

/// What a text with cooperative matrices has in it.
const MATRICES: &str = "coopMultiplyAdd";

/// A device that shaders are made for.
struct Machine {
    name: &'static str,
    target: Target,
    /// Alignment of bindings.
    align: u64,
}

/// Devices that differ in all that kernels depend on.
fn machines() -> [Machine; 6] {
    let machine =
        |name, subgroup, invocations, kib: u32, binding, cooperative, processors, align| {
            let target = Target {
                subgroup,
                max_invocations: invocations,
                shared_bytes: kib << 10,
                max_groups: 65_535,
                max_binding: binding,
                packed_dot: true,
                cooperative,
                halves: true,
                tickets: true,
                counters: false,
                processors,
            };
            Machine { name, target, align }
        };
    let mut counted = machine("counted", 32, 1024, 48, u64::from(u32::MAX), true, 132, 16);
    counted.target.counters = true;
    [
        counted,
        machine("large", 32, 1024, 48, u64::from(u32::MAX), true, 132, 16),
        machine("small", 32, 1024, 48, 1 << 30, true, 8, 64),
        machine("wide", 64, 1024, 64, u64::from(u32::MAX), false, 60, 16),
        machine("software", 8, 1024, 32, 1 << 27, false, 2, 64),
        machine("narrow", 16, 512, 16, 1 << 30, false, 24, 256),
    ]
}

/// Devices that wgpu reaches: no cooperative matrices, and none of what WGSL does not promise.
#[cfg(feature = "wgpu")]
fn portable_machines() -> [Machine; 3] {
    let machine = |name, subgroup, invocations, kib: u32, halves| {
        let target = Target {
            subgroup,
            max_invocations: invocations,
            shared_bytes: kib << 10,
            max_groups: 65_535,
            max_binding: 1 << 27,
            packed_dot: true,
            cooperative: false,
            halves,
            tickets: false,
            counters: false,
            processors: 16,
        };
        Machine { name, target, align: 256 }
    };
    [
        machine("portable", 32, 1024, 32, true),
        machine("portable_bits", 32, 1024, 32, false),
        machine("portable_least", 1, 256, 16, false),
    ]
}

impl Machine {
    /// Whether block weights lie in planes: kernels that read them need subgroups.
    fn packs(&self) -> bool {
        self.target.subgroup >= 8
    }
}

/// Distinct texts, each with a name for people.
#[derive(Default)]
struct Texts(BTreeMap<String, String>);

impl Texts {
    /// Adds a job in all ways; tells whether there is a kernel for it.
    fn add(&mut self, machine: &Machine, mut job: Job<'_>) -> bool {
        for choice in 0..wgsl::choices(&job) {
            job.choice = choice;
            let Ok(kernel) = wgsl::lower(&job) else { return false };
            let name = ops::spec(job.kind).unwrap().name;
            let named = || format!("{name}-{}", machine.name);
            self.0.entry(kernel.source).or_insert_with(named);
        }
        true
    }

    fn suite(&mut self, machine: &Machine, wanted: impl Fn(Kind) -> bool) {
        for case in suite::cases(suite::DEFAULT_SEED).into_iter().filter(|c| wanted(c.kind)) {
            let view = |spec: &suite::OperandSpec| TensorView {
                buf_id: spec.buffer,
                buf_len: 1 << 40,
                offset: spec.offset,
                layout: spec.layout().unwrap(),
            };
            let views: Vec<TensorView> = case.operands.iter().map(view).collect();
            let fused = RULES.iter().any(|rule| rule.fused == case.kind)
                || views.iter().any(|view| view.layout.dtype().is_form());
            let mut made = 0;
            // Weights as files have them, and as devices like them best.
            for packed in [false, true].into_iter().take(1 + usize::from(machine.packs())) {
                let mut views = views.clone();
                for (name, view) in names(case.kind, views.len()).zip(&mut views) {
                    if packed && is_weight(name) {
                        (view.offset, view.buf_id) = (0, view.buf_id + (1 << 20));
                    }
                }
                let packed = |view: &TensorView| packed && planes::supports(&view.layout);
                let operands = operands_of(case.kind, &views, machine.align, &packed);
                let (kind, params, target) = (case.kind, &case.params[..], &machine.target);
                let job = Job { kind, operands, params, target, choice: 0 };
                made += u32::from(self.add(machine, job.clone()));
                in_place(job).into_iter().for_each(|job| {
                    self.add(machine, job);
                });
            }
            assert!(made > 0 || fused, "no kernel for {case}");
        }
    }

    /// All kernels of steps of a model with weights of one type.
    fn model(&mut self, machine: &Machine, shape: &ModelShape, dtype: DType, tokens: usize) {
        let Some((externals, compiled)) = step(machine, shape, dtype, tokens) else { return };
        let dispatches = compiled.graph().nodes().iter().filter_map(|node| node.dispatch());
        for dispatch in dispatches {
            let (kind, params, target) = (dispatch.kind, &dispatch.params[..], &machine.target);
            let packed = |view: &TensorView| {
                machine.packs() && view.buf_id < externals && planes::supports(&view.layout)
            };
            for views in parts(machine, kind, &dispatch.bindings) {
                let operands = operands_of(kind, &views, machine.align, &packed);
                let job = Job { kind, operands, params, target, choice: 0 };
                let name = &shape.name;
                assert!(self.add(machine, job), "{name}, {dtype}, {tokens} tokens: {kind:?}");
            }
        }
    }
}

fn names(kind: Kind, count: usize) -> impl Iterator<Item = &'static str> {
    (0..count).map(move |index| ops::operand_name(kind, count, index).unwrap())
}

fn is_weight(name: &str) -> bool {
    matches!(name, "w" | "u" | "table")
}

/// Operands as the Vulkan backend gives them to kernels.
fn operands_of(
    kind: Kind,
    views: &[TensorView],
    align: u64,
    packed: &dyn Fn(&TensorView) -> bool,
) -> Vec<Operand> {
    let contract = ops::contract(kind, views.len()).unwrap();
    let roles: Vec<BindingRole> =
        contract.bindings.as_ref().unwrap().iter().map(|binding| binding.role).collect();
    let named = names(kind, views.len()).enumerate();
    named
        .map(|(index, name)| {
            let (view, role) = (&views[index], roles[index]);
            let in_planes = is_weight(name) && packed(view);
            let same = views[..index].iter().position(|other| other == view);
            let written =
                |first: &usize| role != BindingRole::Read || roles[*first] != BindingRole::Read;
            Operand {
                name,
                layout: view.layout,
                role,
                shift: (view.offset % align) as u32,
                packing: if in_planes { Packing::Planes } else { Packing::Plain },
                rows: None,
                same_as: same.filter(written),
            }
        })
        .collect()
}

/// The same job with its last result in the place of each input that the op's contract allows.
fn in_place(job: Job<'_>) -> Vec<Job<'_>> {
    let last = job.operands.len() - 1;
    let contract = ops::contract(job.kind, job.operands.len()).unwrap();
    let over = &contract.bindings.as_ref().unwrap()[last].over;
    let alike = (0..last).filter(|&input| {
        let (a, b) = (&job.operands[input], &job.operands[last]);
        over.contains(&(input as u16)) && a.layout == b.layout && a.same_as.is_none()
    });
    let placed = alike.map(|input| {
        let mut job = job.clone();
        job.operands[last].same_as = Some(input);
        job.operands[last].shift = job.operands[input].shift;
        job
    });
    placed.collect()
}

/// What the kernels of a dispatch bind: weights that are too large for one binding come in parts, of which
/// the first and the last are taken.
fn parts(machine: &Machine, kind: Kind, views: &[TensorView]) -> Vec<Vec<TensorView>> {
    let limit = machine.target.max_binding;
    let weights = names(kind, views.len()).zip(views).filter(|(name, _)| is_weight(name));
    let layouts = weights.map(|(_, view)| view.layout);
    let large = layouts.into_iter().find(|layout| layout.rank() == 2 && bytes(layout) > limit);
    let Some(large) = large else { return vec![views.to_vec()] };
    let rows = (limit / (large.span_bytes() / large.rows() as u64)) as usize / 16 * 8;
    let last = (large.rows() - 1) / rows * rows;
    let part = |first: usize| {
        let rows = rows.min(large.rows() - first);
        let cut = names(kind, views.len()).zip(views).map(|(name, view)| match name {
            name if is_weight(name) => {
                let layout = Layout::new(large.dtype(), &[rows, large.cols()]).unwrap();
                TensorView { layout, ..*view }
            }
            "y" | "c" | "up" if kind != Kind::Gather => {
                let mut dims: Vec<usize> =
                    view.layout.dims().iter().map(|&extent| extent as usize).collect();
                let strides = &view.layout.strides4()[4 - dims.len()..];
                let strides: Vec<usize> = strides.iter().map(|&stride| stride as usize).collect();
                *dims.last_mut().unwrap() = rows;
                let offset = view.offset + (first * view.layout.dtype().block_bytes()) as u64;
                let layout = Layout::new(view.layout.dtype(), &dims).unwrap();
                TensorView { layout: layout.with_strides(&strides).unwrap(), offset, ..*view }
            }
            _ => *view,
        });
        cut.collect()
    };
    vec![part(0), part(last)]
}

/// Bytes of a weight tensor on a device.
fn bytes(layout: &Layout) -> u64 {
    match planes::supports(layout) {
        true => planes::offsets(layout.dtype(), (layout.elems() / planes::CHUNK) as u64).1,
        false => layout.span_bytes(),
    }
}

/// A device that is only asked what it has.
struct Asked {
    inner: CpuDevice,
    target: Target,
    packs: bool,
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

    fn quantises_activations(&self) -> bool {
        self.packs
    }

    fn has_fused(&self, request: &FusedRequest<'_>) -> bool {
        let suits = |view: &TensorView| self.packs || !view.layout.dtype().is_quantised();
        wgsl::has_fused(request, &self.target, &suits)
    }

    fn encoder(&self, kernels: &KernelRegistry) -> Box<dyn Encoder> {
        self.inner.encoder(kernels)
    }
}

/// A compiled step and the number of its external tensors; `None` where rows are no whole blocks.
fn step(
    machine: &Machine,
    shape: &ModelShape,
    dtype: DType,
    tokens: usize,
) -> Option<(usize, Compiled)> {
    let weight_dtype = move |_: &str| dtype;
    let options = RecordOptions { weight_dtype: &weight_dtype, ..RecordOptions::new(tokens, 4096) };
    let recorded = match model::record(shape, &options) {
        Ok(recorded) => recorded,
        Err(_) if dtype.block_elems() > 32 => return None,
        Err(error) => panic!("{}, {dtype}: {error}", shape.name),
    };
    Some((recorded.externals().len(), compiled(machine, recorded.graph())))
}

fn compiled(machine: &Machine, graph: &ComputeGraph) -> Compiled {
    let slabs = |plan: &MemoryPlan| {
        Ok::<_, CompileError>((1 << 40..).take(plan.slab_bytes().len()).collect())
    };
    let options = CompileOptions { align: machine.align.max(64), ..CompileOptions::default() };
    let target = machine.target.clone();
    let packs = machine.packs();
    let device = Asked { inner: CpuDevice::with_threads(1), target, packs };
    let device: &dyn Device = &device;
    compile(graph, &mut KernelRegistry::new(), device, &options, slabs).unwrap()
}

/// What a layer adds to a step of prompts beside which so many tokens decode: dispatches, groups, values that are f16.
fn layer_of_step(machine: &Machine, shape: &ModelShape, decode: Option<usize>) -> [u32; 3] {
    let stats = [3, 4].map(|layers| {
        let shape = ModelShape { layers, ..shape.clone() };
        let options = RecordOptions {
            weight_dtype: &|_| DType::Q8_0,
            cache: CacheLayout::Blocks { block: 32, sequences: 16, entries: 64 },
            decode: decode.map(|rows| DecodeRows { rows, sequences: 64 }),
            logits: decode.map_or(Logits::All, Logits::Tail),
            ..RecordOptions::new(192, 4096)
        };
        let recorded = model::record(&shape, &options).unwrap();
        let stats = *compiled(machine, recorded.graph()).stats();
        assert_eq!((stats.groups, stats.false_barriers), (stats.longest_chain, 0));
        [stats.dispatches, stats.groups, stats.halved]
    });
    [0, 1, 2].map(|at| stats[1][at] - stats[0][at])
}

/// Attention is two dispatches in one group, and what they give together is f16 for the product behind it.
#[test]
fn tokens_that_decode_beside_prompts_cost_no_phase() {
    for machine in machines().iter().filter(|machine| machine.target.cooperative) {
        for name in ["llama-1b", "llama-8b", "qwen3-0.6b"] {
            let shape = model::builtin_shape(name).unwrap();
            let [dispatches, groups, halved] = layer_of_step(machine, &shape, None);
            assert!(halved >= 3, "{name} for {}: {halved} values", machine.name);
            let mixed = layer_of_step(machine, &shape, Some(64));
            assert_eq!(mixed, [dispatches + 1, groups, halved], "{name} for {}", machine.name);
        }
    }
}

/// Adds the steps of all built-in shapes. Layers repeat; six of them have every kind there is.
fn models(texts: &mut Texts, machine: &Machine, types: &[DType], steps: &[usize]) {
    for shape in model::builtin_shapes() {
        let layers = shape.layers.min(6);
        let shape = ModelShape { layers, ..shape };
        for &dtype in types {
            steps.iter().for_each(|&tokens| texts.model(machine, &shape, dtype, tokens));
        }
    }
}

/// Prompts of any length are rounded up to one of many sizes, so those between two that are compiled must cost no kernel.
#[test]
fn prompts_of_neighbouring_sizes_have_the_same_kernels() {
    let machines = machines();
    // A card whose tiles change at other sizes than those below.
    for machine in machines.iter().filter(|machine| machine.name == "large") {
        for (name, dtype) in [("llama-8b", DType::Q4_K), ("smollm2-135m", DType::Q4_1)] {
            let shape = ModelShape { layers: 1, ..model::builtin_shape(name).unwrap() };
            for [first, last] in [[72, 80], [104, 112], [352, 384], [416, 480], [640, 704]] {
                let texts = |sizes: &[usize]| {
                    let mut texts = Texts::default();
                    sizes.iter().for_each(|&rows| texts.model(machine, &shape, dtype, rows));
                    texts.0.len()
                };
                let [one, both] = [texts(&[last]), texts(&[first, last])];
                assert_eq!(one, both, "{name}, {first} and {last}");
            }
        }
    }
}

fn weight_types() -> Vec<DType> {
    DType::ALL.into_iter().filter(|&dtype| dtype != DType::U32).collect()
}

/// All texts that have cooperative matrices.
fn texts_with_matrices() -> Vec<String> {
    let mut texts = Texts::default();
    for machine in machines().iter().filter(|machine| machine.target.cooperative) {
        texts.suite(machine, |kind| kind.product().is_some_and(Product::is_basic));
        models(&mut texts, machine, &weight_types(), &[64, 512]);
    }
    texts.0.into_keys().filter(|text| text.contains(MATRICES)).collect()
}

#[test]
fn kernels_on_matrices_access_shared_memory_as_such() {
    let texts = texts_with_matrices();
    // Twelve types of weights, two tiles, with and without an addend.
    assert!(texts.len() >= 48, "{} kernels", texts.len());
    for checks in [false, true] {
        for text in &texts {
            let words = shaders::compile(text, checks).unwrap();
            assert_eq!(operands::faults(&words), Some(Vec::new()), "{text}");
        }
    }
    println!("{} kernels on cooperative matrices, plain and guarded", texts.len());
    // The check itself: whatever is taken away is missed.
    let words = shaders::compile(&texts[0], false).unwrap();
    let weakened = operands::weakened(&words);
    assert!(weakened.len() > 20, "{} places", weakened.len());
    for (what, words) in weakened {
        assert_ne!(operands::faults(&words), Some(Vec::new()), "{what}");
    }
}

#[test]
fn kernels_without_matrices_have_the_other_memory_model() {
    let words = shaders::compile(&shaders::read_ahead(), false).unwrap();
    assert_eq!(operands::faults(&words), None);
}

/// Every op and every step has kernels that Metal and DX12 get, too: those with cooperative matrices or tickets
/// have a twin without. naga validates each and writes it in both languages.
#[cfg(feature = "wgpu")]
#[test]
fn every_kernel_has_a_form_for_metal_and_dx12() {
    let mut texts = Texts::default();
    for machine in &portable_machines() {
        texts.suite(machine, |_| true);
        models(&mut texts, machine, &[DType::F16, DType::Q8_0, DType::Q4_K], &[1, 8, 64]);
    }
    let missing = ops::OPS.iter().filter(|spec| {
        let prefix = format!("{}-", spec.name);
        !texts.0.values().any(|name| name.starts_with(&prefix))
    });
    // Rounded products exist only as parts of others, and only with subgroups.
    assert_eq!(missing.map(|spec| spec.name).collect::<Vec<_>>(), [""; 0], "ops without a kernel");
    let count = texts.0.len();
    let texts = representatives(texts);
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some((text, name)) = texts.get(index) else { return };
            let least = name.ends_with("portable_least");
            let text = clearway::wgpu::shaders::portable(text, !least);
            assert!(!text.contains(MATRICES) && !text.contains("b_tickets"), "{name}");
            clearway::wgpu::shaders::write(&text).unwrap_or_else(|e| panic!("{name}: {e}\n{text}"));
        }
    };
    std::thread::scope(|scope| {
        (0..std::thread::available_parallelism().unwrap().get()).for_each(|_| {
            scope.spawn(work);
        });
    });
    println!("{count} kernels, of which {} were written as MSL and HLSL", texts.len());
}

/// Writes all shaders to `CLEARWAY_SHADERS/all`, and some that are broken to `CLEARWAY_SHADERS/broken`.
#[test]
#[ignore = "writes files for a validator: cargo xtask shaders"]
fn all_shaders_are_written() {
    let folder = std::env::var_os("CLEARWAY_SHADERS").expect("a folder in CLEARWAY_SHADERS");
    let folder = Path::new(&folder);
    let mut texts = Texts::default();
    texts.0.insert(shaders::read_ahead(), "read_ahead".to_owned());
    for machine in &machines() {
        texts.suite(machine, |_| true);
        let (types, steps) = match machine.name {
            "large" => (weight_types(), &[1, 3, 8, 64, 512][..]),
            _ => (vec![DType::F16, DType::Q8_0, DType::Q4_K], &[1, 64][..]),
        };
        models(&mut texts, machine, &types, steps);
    }
    let kinds = ops::OPS.iter().filter(|spec| {
        let prefix = format!("{}-", spec.name);
        !texts.0.values().any(|name| name.starts_with(&prefix))
    });
    assert_eq!(kinds.map(|spec| spec.name).collect::<Vec<_>>(), [""; 0], "ops without a shader");
    let count = texts.0.len();
    let every = std::env::var_os("CLEARWAY_SHADERS_EVERY").is_some();
    let texts = if every { texts.0.into_iter().collect() } else { representatives(texts) };
    let matrices = texts.iter().filter(|(text, _)| text.contains(MATRICES)).count();
    let all = folder.join("all");
    std::fs::create_dir_all(&all).unwrap();
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some((text, name)) = texts.get(index) else { return };
            // Guarded kernels differ in every access, but alike in all of them.
            let ways: &[bool] = if index.is_multiple_of(7) { &[false, true] } else { &[false] };
            for &checks in ways {
                let words = shaders::compile(text, checks).unwrap();
                let guarded = if checks { "-guarded" } else { "" };
                write(&all.join(format!("{name}{guarded}-{index}.spv")), &words);
            }
        }
    };
    std::thread::scope(|scope| {
        (0..std::thread::available_parallelism().unwrap().get()).for_each(|_| {
            scope.spawn(work);
        });
    });
    let broken = folder.join("broken");
    std::fs::create_dir_all(&broken).unwrap();
    let text = texts.iter().find(|(text, _)| text.contains(MATRICES)).unwrap();
    let words = shaders::compile(&text.0, false).unwrap();
    for (name, words) in operands::broken(&words) {
        write(&broken.join(format!("{name}.spv")), &words);
    }
    println!(
        "{count} shaders, of which {} are written, {matrices} on cooperative matrices",
        texts.len()
    );
}

/// All texts on matrices, and two of those that differ in numbers alone: shapes of models are part of the
/// text of decode kernels.
fn representatives(texts: Texts) -> Vec<(String, String)> {
    let (mut kept, others): (Vec<_>, Vec<_>) =
        texts.0.into_iter().partition(|(text, _)| text.contains(MATRICES));
    let mut alike: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    for text in others {
        let mut form = String::with_capacity(text.0.len());
        for letter in text.0.chars() {
            let letter = if letter.is_ascii_digit() { '0' } else { letter };
            if letter != '0' || !form.ends_with('0') {
                form.push(letter);
            }
        }
        alike.entry(form).or_default().push(text);
    }
    for mut texts in alike.into_values() {
        kept.extend(texts.pop());
        kept.extend(texts.into_iter().next());
    }
    kept
}

fn write(path: &Path, words: &[u32]) {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    std::fs::write(path, bytes).unwrap();
}
