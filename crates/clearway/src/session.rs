//! One forward pass: op calls, then a finish.

use std::time::Instant;

use clearway_gpu::{Buffer, Encoder, GpuError, KernelRegistry, Ops, ops};
use clearway_graph::pipeline::CompileOptions;
use clearway_graph::{
    BarrierReason, BarrierWalk, CapturedOpKind, ComputeGraph, DType, Dispatch, KernelContract,
    Layout, NodeId, TensorView,
};
use rustc_hash::FxHashMap;

use crate::error::{Error, Result};
use crate::executable::{Executable, PassStats};
use crate::executor::GraphExecutor;
use crate::transfer::{self, Element};

/// One forward pass. Op calls (the trait [`Ops`]) are the same in both kinds of session.
///
/// An error in an op call leaves the session as it was before the call. Dropping a session runs
/// nothing and frees all it took.
pub struct GraphSession<'e> {
    executor: &'e GraphExecutor,
    kernels: KernelRegistry,
    graph: ComputeGraph,
    /// Buffers the pass uses, so that they outlive it.
    buffers: FxHashMap<usize, Buffer>,
    mode: Mode,
    label: String,
}

enum Mode {
    /// Ops are captured; device work happens at finish.
    Recorded,
    /// Ops are encoded as they are called.
    Direct { encoder: Box<dyn Encoder>, walk: BarrierWalk },
}

impl<'e> GraphSession<'e> {
    pub(crate) fn recorded(executor: &'e GraphExecutor) -> Self {
        Self::open(executor, Mode::Recorded)
    }

    pub(crate) fn direct(executor: &'e GraphExecutor) -> Self {
        let encoder = executor.device().encoder(&executor.kernels());
        Self::open(executor, Mode::Direct { encoder, walk: BarrierWalk::default() })
    }

    fn open(executor: &'e GraphExecutor, mode: Mode) -> Self {
        Self {
            executor,
            kernels: executor.kernels(),
            graph: ComputeGraph::new(),
            buffers: FxHashMap::default(),
            mode,
            label: String::new(),
        }
    }

    /// Names the ops that follow, for people.
    pub fn set_label(&mut self, label: &str) {
        label.clone_into(&mut self.label);
    }

    /// Declares a tensor the host uploads before each run of a compiled graph.
    ///
    /// # Errors
    /// [`Error::NeedsRecorded`] in a direct session, where a buffer is uploaded instead.
    pub fn input(&mut self, layout: Layout) -> Result<TensorView> {
        self.lasting("input", layout, ComputeGraph::mark_input)
    }

    /// Declares a tensor that is kept from one run of a compiled graph to the next: each finds in it what
    /// the one before left. The first finds zeros, or what the host has
    /// [written](crate::Executable::write).
    ///
    /// Every other value must be written before it is read, or the pass does not compile.
    ///
    /// # Errors
    /// [`Error::NeedsRecorded`] in a direct session, where a buffer keeps its contents.
    pub fn kept(&mut self, layout: Layout) -> Result<TensorView> {
        self.lasting("kept", layout, ComputeGraph::mark_kept)
    }

    fn lasting(
        &mut self,
        what: &'static str,
        layout: Layout,
        mark: impl FnOnce(&mut ComputeGraph, NodeId) -> clearway_graph::Result<()>,
    ) -> Result<TensorView> {
        if matches!(self.mode, Mode::Direct { .. }) {
            return Err(Error::NeedsRecorded(what));
        }
        let view = self.graph.declare_value(layout);
        if let Some(value) = view.value() {
            mark(&mut self.graph, value)?;
        }
        Ok(view)
    }

    /// Says that a result is read after the pass; its memory is kept until then.
    ///
    /// # Errors
    /// [`Error::ForeignTensor`] if the tensor is not a result of this pass.
    pub fn output(&mut self, view: TensorView) -> Result<()> {
        match (view.value(), &self.mode) {
            (Some(value), Mode::Recorded) => Ok(self.graph.mark_output(value)?),
            (None, Mode::Direct { .. }) if self.buffers.contains_key(&view.buf_id) => Ok(()),
            _ => Err(Error::ForeignTensor { buf_id: view.buf_id }),
        }
    }

    /// A result as f16, for the ops that read it so. In a recorded session that is its shadow in the
    /// arena, which is written anew only if the result was written since.
    ///
    /// # Errors
    /// [`clearway_graph::GraphError::NoShadow`] unless `x` is a whole f32 result of this pass.
    pub fn half(&mut self, x: TensorView) -> Result<TensorView> {
        if matches!(self.mode, Mode::Direct { .. }) {
            return Ok(self.copy(x, DType::F16)?);
        }
        let (shadow, fresh) = self.graph.shadow(&x)?;
        if !fresh {
            self.copy_into(x, shadow)?;
        }
        Ok(shadow)
    }

    /// Calls a user's kernel with all its operands, in the order of its contract.
    ///
    /// # Errors
    /// [`GpuError::UnknownKernel`], and what the contract finds wrong with the operands.
    pub fn call_kernel(&mut self, name: &str, views: &[TensorView], params: &[u32]) -> Result<()> {
        let kernel = self.kernels.custom(name)?.clone();
        Ok(self.add(kernel.kind(), &kernel.contract, views, params)?)
    }

    /// The list so far.
    pub fn graph(&self) -> &ComputeGraph {
        &self.graph
    }

    /// Runs the pass in the recorded order and waits: the only sync point.
    ///
    /// # Errors
    /// What the device reports; the session is gone then, and nothing of it is left.
    pub fn finish(self) -> Result<PassResult> {
        let in_order = CompileOptions { fuse: false, reorder: None, ..CompileOptions::default() };
        self.finish_with(&in_order)
    }

    /// Fuses, reorders, places, proves, runs and waits.
    ///
    /// # Errors
    /// As [`finish`](Self::finish).
    pub fn finish_optimized(self) -> Result<PassResult> {
        self.finish_with(&CompileOptions::default())
    }

    /// Runs the stages asked for, then the pass, and waits. A direct session is encoded already: it
    /// runs as it stands.
    ///
    /// # Errors
    /// As [`finish`](Self::finish).
    pub fn finish_with(mut self, options: &CompileOptions) -> Result<PassResult> {
        let encoder = match &mut self.mode {
            Mode::Direct { encoder, .. } => encoder,
            Mode::Recorded => {
                let once = CompileOptions { replay: false, ..*options };
                let mut executable = self.compile(&once)?;
                executable.run()?;
                let stats = *executable.stats();
                return Ok(PassResult { source: Source::Compiled(Box::new(executable)), stats });
            }
        };
        let started = Instant::now();
        encoder.commit()?;
        encoder.wait()?;
        let barriers = self.graph.barrier_count();
        let mut stats = PassStats { wait_time: started.elapsed(), ..PassStats::default() };
        stats.compile.recorded = self.graph.dispatch_count();
        stats.compile.dispatches = self.graph.dispatch_count();
        stats.compile.barriers = barriers;
        stats.compile.groups = barriers + u32::from(stats.compile.dispatches > 0);
        Ok(PassResult { source: Source::Buffers(self.buffers), stats })
    }

    /// Compiles the pass for running it again and again.
    ///
    /// # Errors
    /// [`Error::NeedsRecorded`] in a direct session; [`Error::Compile`]; what the device reports.
    pub fn compile(self, options: &CompileOptions) -> Result<Executable> {
        match self.mode {
            Mode::Recorded => Executable::build(self.executor, &self.graph, options),
            Mode::Direct { .. } => Err(Error::NeedsRecorded("compile")),
        }
    }

    fn add(
        &mut self,
        kind: CapturedOpKind,
        contract: &KernelContract,
        views: &[TensorView],
        params: &[u32],
    ) -> clearway_gpu::Result<()> {
        let real = views.iter().filter(|view| view.value().is_none());
        let device = self.executor.device();
        let mut found = Vec::new();
        for buf_id in real.map(|view| view.buf_id) {
            if !self.buffers.contains_key(&buf_id) {
                found.push(device.buffer(buf_id)?);
            }
        }
        let dispatch = self.graph.annotated(kind, contract, views, params, &self.label)?;
        let barrier = match &mut self.mode {
            Mode::Direct { encoder, walk } => encode(&mut **encoder, walk, &dispatch)?,
            Mode::Recorded => None,
        };
        self.graph.record_behind(barrier, dispatch)?;
        self.buffers.extend(found.into_iter().map(|buffer| (buffer.id(), buffer)));
        Ok(())
    }
}

/// Encodes one dispatch of a direct session and the barrier it needs, which is returned.
fn encode(
    encoder: &mut dyn Encoder,
    walk: &mut BarrierWalk,
    dispatch: &Dispatch,
) -> clearway_gpu::Result<Option<BarrierReason>> {
    let reason = walk.needed(dispatch);
    if let Some(reason) = &reason {
        encoder.barrier(reason)?;
        // It stands even where the encoder refuses the dispatch: that is one barrier too many, which does no
        // harm.
        walk.reset();
    }
    encoder.dispatch(dispatch)?;
    walk.join(dispatch);
    Ok(reason)
}

impl Ops for GraphSession<'_> {
    fn declare(&mut self, layout: Layout) -> clearway_gpu::Result<TensorView> {
        match self.mode {
            Mode::Recorded => Ok(self.graph.declare_value(layout)),
            Mode::Direct { .. } => {
                let buffer = self.executor.device().alloc(layout.span_bytes())?;
                let view = buffer.view(0, layout)?;
                self.buffers.insert(buffer.id(), buffer);
                Ok(view)
            }
        }
    }

    fn push(
        &mut self,
        kind: CapturedOpKind,
        views: &[TensorView],
        params: &[u32],
    ) -> clearway_gpu::Result<()> {
        ops::check(kind, views, params)?;
        let contract = ops::contract(kind, views.len())
            .ok_or_else(|| GpuError::UnknownKernel { kernel: format!("{kind:?}") })?;
        self.add(kind, contract, views, params)
    }
}

/// A finished pass: its results can be read.
pub struct PassResult {
    source: Source,
    stats: PassStats,
}

enum Source {
    Compiled(Box<Executable>),
    Buffers(FxHashMap<usize, Buffer>),
}

impl PassResult {
    /// Reads a result.
    ///
    /// # Errors
    /// A tensor that was not marked as output, or a wrong type.
    pub fn read<T: Element>(&self, view: TensorView) -> Result<Vec<T>> {
        match &self.source {
            Source::Compiled(executable) => executable.read(view),
            Source::Buffers(buffers) => {
                transfer::check::<T>(&view, view.layout.elems())?;
                let buffer = buffers.get(&view.buf_id);
                let buffer = buffer.ok_or(Error::ForeignTensor { buf_id: view.buf_id })?;
                Ok(buffer.read_vec(view.offset, view.layout.elems())?)
            }
        }
    }

    /// Reads an f32 or f16 result as f32.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_f32(&self, view: TensorView) -> Result<Vec<f32>> {
        transfer::read_f32(&view, |bits| match bits {
            transfer::Float::F32 => self.read::<f32>(view),
            transfer::Float::F16 => {
                Ok(self.read::<half::f16>(view)?.into_iter().map(half::f16::to_f32).collect())
            }
        })
    }

    /// What was done and how long it took.
    pub fn stats(&self) -> &PassStats {
        &self.stats
    }
}
