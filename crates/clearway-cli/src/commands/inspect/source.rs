//! Where the step comes from: a built-in shape, or a file with its weights.

use anyhow::{Context, Result, bail};
use clearway::pipeline::{CompileOptions, Compiled, compile};
use clearway::{
    Bindings, Buffer, CompileError, ComputeGraph, Device, External, KernelRegistry, Layout,
    MemoryPlan, Upload,
};
use clearway_inspect::{FIRST_SLAB, bytes_text};
use clearway_llm::engine::plain_model;
use clearway_llm::gguf::Gguf;
use clearway_llm::model::{
    self, BLOCKS, CACHE_ROWS, CacheLayout, HEADS, Logits, ModelGraph, ModelShape, POSITIONS,
    ROPE_FACTORS, RecordOptions, SEQUENCES, TOKENS,
};

use super::Args;

/// A shape, and the file it was read from.
pub struct Source {
    shape: ModelShape,
    file: Option<Gguf>,
}

impl Source {
    /// What `--shape` or `-m` names.
    pub fn open(args: &Args) -> Result<Self> {
        if let Some(shape) = &args.shape {
            return Ok(Self { shape: shape.clone(), file: None });
        }
        let file = crate::model::open(&args.model)?;
        let (file, shape) = plain_model(&file)?;
        Ok(Self { shape, file: Some(file) })
    }

    pub fn shape(&self) -> &ModelShape {
        &self.shape
    }

    /// Name, size and step, for people.
    pub fn title(&self, args: &Args) -> String {
        let plural = if args.tokens == 1 { "token" } else { "tokens" };
        let ModelShape { name, layers, .. } = &self.shape;
        let billions = self.shape.parameters() as f64 / 1e9;
        if let Some(sequences) = args.parallel {
            let plural = if sequences == 1 { "sequence" } else { "sequences" };
            return format!(
                "{name}: {layers} layers, {billions:.2} G parameters, a step of {sequences} {plural}, cache in blocks of {BLOCK}"
            );
        }
        let tokens = args.tokens;
        format!("{name}: {layers} layers, {billions:.2} G parameters, a step of {tokens} {plural}")
    }

    /// The step as recorded.
    pub fn record(&self, args: &Args, device: Option<&dyn Device>) -> Result<ModelGraph> {
        let tokens = args.tokens as usize;
        let mut options = RecordOptions::new(tokens, rows(args));
        if let Some(sequences) = args.parallel {
            let (sequences, entries) = (sequences as usize, entries(args));
            options = RecordOptions::new(sequences, sequences * entries * BLOCK);
            options.cache = CacheLayout::Blocks { block: BLOCK, sequences, entries };
            options.logits = Logits::All;
        }
        options.order_experts = device.is_some_and(Device::multiplies_halves);
        let dtype = |name: &str| {
            let tensor = self.file.as_ref().and_then(|file| file.find_tensor(name));
            tensor.map_or(clearway::DType::F32, |tensor| tensor.dtype())
        };
        if self.file.is_some() {
            options.weight_dtype = &dtype;
        }
        model::record(&self.shape, &options).context("recording failed")
    }

    /// Buffers for everything the step names: weights of the file, or zeros. The step stands at the end
    /// of the cache, where attention reads all of it, as the estimate says.
    pub fn bind(&self, step: &ModelGraph, device: &dyn Device, args: &Args) -> Result<Bindings> {
        let wanted: u64 = step.externals().iter().map(|e| e.view.layout.span_bytes()).sum();
        let memory = device.info().memory_bytes;
        if memory > 0 && wanted > memory / 10 * 9 {
            bail!(
                "{} needs {} for weights and cache, `{}` has {}; leave --measure away, or lower -c",
                self.shape.name,
                bytes_text(wanted),
                device.info().name,
                bytes_text(memory)
            );
        }
        let mut bound = Bindings::new();
        for external in step.externals() {
            let buffer = self.buffer(external, device, args)?;
            bound.bind(external.view, &buffer);
        }
        Ok(bound)
    }

    fn buffer(&self, external: &External, device: &dyn Device, args: &Args) -> Result<Buffer> {
        let layout = &external.view.layout;
        let tensor = self.file.as_ref().and_then(|file| file.find_tensor(&external.name));
        Ok(match (&*external.name, tensor) {
            (TOKENS, _) => device.upload(&vec![0_u32; layout.elems()])?,
            (POSITIONS, _) if args.parallel.is_some() => {
                device.upload(&vec![rows(args) as u32 - 1; layout.elems()])?
            }
            // Each sequence has blocks of its own, one after another.
            (SEQUENCES, _) => device.upload(&(0..layout.elems() as u32).collect::<Vec<_>>())?,
            (BLOCKS, _) => device.upload(&(0..layout.elems() as u32).collect::<Vec<_>>())?,
            (CACHE_ROWS, _) => {
                let row =
                    |sequence: usize| (sequence * entries(args) * BLOCK + rows(args) - 1) as u32;
                device.upload(&(0..layout.elems()).map(row).collect::<Vec<_>>())?
            }
            (POSITIONS, _) => {
                let first = rows(args) as u32 - args.tokens;
                device.upload(&(first..).take(layout.elems()).collect::<Vec<_>>())?
            }
            (HEADS, _) => device.upload(&(0..layout.elems() as u32).collect::<Vec<_>>())?,
            (ROPE_FACTORS, _) => {
                let floats = |name: &str| self.file.as_ref().and_then(|file| file.floats(name));
                device.upload(&self.shape.rope_factors(rows(args), floats))?
            }
            (name, Some(tensor)) => {
                let found: Vec<u32> = tensor.dims().iter().rev().map(|&d| d as u32).collect();
                if found != layout.dims() {
                    bail!("tensor `{name}` is {found:?}, but the shape needs {:?}", layout.dims());
                }
                device.upload_weights(layout, tensor.bytes())?
            }
            (name, None) if name.starts_with("cache.") => zeros(layout, device)?,
            (_, None) => device.upload_weights(layout, &vec![0; layout.span_bytes() as usize])?,
        })
    }
}

/// Rows of a block, as the many-sequence engine has them.
const BLOCK: usize = 32;

/// Blocks of a sequence.
fn entries(args: &Args) -> usize {
    rows(args).div_ceil(BLOCK)
}

fn rows(args: &Args) -> usize {
    args.tokens.max(args.ctx_size) as usize
}

/// Memory that was really written: pages of zeros that nobody wrote are all one page, and too fast.
fn zeros(layout: &Layout, device: &dyn Device) -> Result<Buffer> {
    Ok(device.upload(&vec![0_u8; layout.span_bytes() as usize])?)
}

/// All stages, without memory: slabs get identities that no other buffer has.
pub fn compile_only(
    recorded: &ComputeGraph,
    device: &(dyn Device + 'static),
    options: &CompileOptions,
) -> Result<Compiled> {
    let slabs = |plan: &MemoryPlan| {
        Ok::<_, CompileError>((FIRST_SLAB..).take(plan.slab_bytes().len()).collect())
    };
    Ok(compile(recorded, &mut KernelRegistry::new(), device, options, slabs)?)
}
