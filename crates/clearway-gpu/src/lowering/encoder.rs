//! From dispatches to bindings, kernels and barriers.

use std::sync::Arc;

use clearway_graph::verify::verify;
use clearway_graph::{
    BarrierReason, BindingRole, CapturedNode, CapturedOpKind, CommandEncoder, ComputeGraph,
    Dispatch, OpSpec, TensorView,
};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::lowered::{Bound, Lowered};
use super::{Backend, Bytes, MAX_BINDINGS, Piece, RangeOf, Submitted, guard, tune};
use crate::device::{Encoder, Program};
use crate::error::{GpuError, Result};
use crate::ops;
use crate::quant;
use crate::registry::{KernelRegistry, declared_bytes};
use crate::wgsl::{self, Facts, Job, Kernel, Operand, Packing, Scratch, Target, Trust, parts};

/// Lowers dispatches as they come. Nothing is submitted before the whole list is proven.
pub(crate) struct ListEncoder<B: Backend> {
    backend: Arc<B>,
    kernels: KernelRegistry,
    /// The list as given, for the proof.
    list: ComputeGraph,
    lowered: Lowered<RangeOf<B>>,
    memory: FxHashMap<usize, Arc<B::Memory>>,
    /// Committed, perhaps not done.
    running: Vec<B::Program>,
    proven: bool,
    /// Barriers may become counters.
    counters: bool,
}

impl<B: Backend> ListEncoder<B> {
    pub(crate) fn new(backend: Arc<B>, kernels: KernelRegistry) -> Self {
        Self {
            backend,
            kernels,
            list: ComputeGraph::new(),
            lowered: Lowered::default(),
            memory: FxHashMap::default(),
            running: Vec::new(),
            proven: true,
            counters: false,
        }
    }

    /// An encoder that submits whatever it is given.
    #[cfg(feature = "testkit")]
    pub(crate) fn unproven(backend: Arc<B>, kernels: KernelRegistry) -> Self {
        Self { proven: false, ..Self::new(backend, kernels) }
    }

    fn lower(&mut self, dispatch: &Dispatch) -> Result<()> {
        // Kernels rely on what an op call has checked; a list built by hand has not been.
        let spec = ops::spec(dispatch.kind);
        if spec.is_some() {
            ops::check(dispatch.kind, &dispatch.bindings, &dispatch.params)?;
        }
        self.check_extents(dispatch)?;
        if dispatch.bindings.len() > MAX_BINDINGS {
            return Err(GpuError::Arity {
                op: "custom kernel",
                what: "operands",
                found: dispatch.bindings.len(),
                expected: MAX_BINDINGS,
            });
        }
        let parts = self.parts(dispatch)?;
        if parts == 0 {
            return self.lower_part(dispatch, None, true);
        }
        (0..parts).try_for_each(|part| self.lower_part(dispatch, Some(part), part + 1 == parts))
    }

    /// A binding covers the whole view, so a contract must declare all of it.
    fn check_extents(&self, dispatch: &Dispatch) -> Result<()> {
        let contract = self.kernels.checked_contract(dispatch)?;
        for (operand, binding) in contract.bindings.iter().flatten().enumerate() {
            let view = &dispatch.bindings[operand];
            let declared = declared_bytes(dispatch, operand, binding.role)?;
            if declared != (view.offset..view.offset + view.layout.span_bytes()) {
                return Err(GpuError::PartialExtent {
                    kernel: dispatch.kernel.to_string(),
                    operand,
                    device: self.backend.name().to_owned(),
                });
            }
        }
        Ok(())
    }

    /// In how many parts the weights of a dispatch lie; 0 if in one piece.
    fn parts(&mut self, dispatch: &Dispatch) -> Result<usize> {
        let mut parts = 0;
        for view in &dispatch.bindings {
            let memory = self.memory(view.buf_id)?;
            if memory.is_packed() && !memory.holds(view) {
                return Err(GpuError::PackedWeights { buf_id: view.buf_id });
            }
            parts = parts.max(memory.parts().len());
        }
        Ok(parts)
    }

    /// Lowers a dispatch, or one part of it; `last` ends it.
    fn lower_part(&mut self, dispatch: &Dispatch, part: Option<usize>, last: bool) -> Result<()> {
        let backend = self.backend.clone();
        let bound = self.bind(dispatch, part)?;
        let (operands, ranges): (Vec<Operand>, SmallVec<_>) = bound.into_iter().unzip();
        reject_overlap(dispatch, &operands)?;
        let target = &Target { counters: self.counters, ..backend.target().clone() };
        let params = &dispatch.params;
        let mut job = Job { kind: dispatch.kind, operands, params, target, choice: 0 };
        let indices = |has: fn(&Operand) -> bool| {
            let operands = job.operands.iter().enumerate();
            operands.filter(|(_, operand)| has(operand)).map(|(index, _)| index).collect()
        };
        // Of a table few rows are read: that is nothing to read ahead.
        let matrices = dispatch.kind.spec().filter(|_| dispatch.kind != CapturedOpKind::Gather);
        let weights = matrices.into_iter().flat_map(OpSpec::matrices).collect();
        let written = indices(|operand| operand.role != BindingRole::Read);
        let mut bound = Bound { ranges, weights, written };
        let kernel = match (dispatch.kind.spec(), part) {
            (None, _) => self.custom(dispatch, &job, &bound)?,
            (Some(_), Some(_)) => wgsl::lower(&job)?,
            (Some(_), None) => tune::lower(&backend, &mut job, &bound)?,
        };
        let again: SmallVec<[_; 2]> =
            kernel.again.iter().map(|&o| bound.ranges[o].clone()).collect();
        bound.ranges.extend(again);
        self.lowered.push(dispatch, kernel, bound, last);
        Ok(())
    }

    /// A user's kernel, checked against the device and its contract.
    fn custom(
        &self,
        dispatch: &Dispatch,
        job: &Job<'_>,
        bound: &Bound<RangeOf<B>>,
    ) -> Result<Kernel> {
        let kernel = self.kernels.custom(&dispatch.kernel)?;
        let text = kernel.wgsl.as_ref().ok_or_else(|| GpuError::KernelNotForDevice {
            kernel: dispatch.kernel.to_string(),
            device: self.backend.name().to_owned(),
        })?;
        let groups = (text.groups)(&dispatch.bindings, &dispatch.params);
        self.backend.check_groups(&dispatch.kernel, groups)?;
        let bad = |message| GpuError::KernelCompile {
            kernel: dispatch.kernel.to_string(),
            device: self.backend.name().to_owned(),
            message,
        };
        for &index in &text.quads {
            if !job.operands.get(index).is_some_and(Operand::is_aligned) {
                return Err(bad(format!("operand {index} is not there or not aligned for words")));
            }
            // Bounds checks keep an index below the length, which must not be zero.
            if bound.ranges[index].bytes() < 16 {
                return Err(bad(format!("operand {index} is shorter than four words")));
            }
        }
        for (index, view) in dispatch.bindings.iter().enumerate() {
            if self.memory.get(&view.buf_id).is_some_and(|memory| memory.is_packed()) {
                return Err(GpuError::PackedWeights { buf_id: view.buf_id });
            }
            // Bounds checks of the bare array are those of its binding, which then holds more than the view.
            let exact = view.layout.span_bytes() == bound.ranges[index].bytes();
            let name = format!("b_{}", job.operands[index].name);
            if text.trust() == Trust::Checked && !exact && guard::mentions(&text.body, &name) {
                return Err(bad(format!(
                    "operand {index} does not begin and end where its binding does: \
                     reach it through its functions and not as `{name}`"
                )));
            }
        }
        if let Some(Scratch { bytes, tickets }) = text.scratch {
            let count = job.operands.len() + SCRATCH_BINDINGS;
            if count > MAX_BINDINGS {
                let (op, what, expected) = ("custom kernel with scratch", "bindings", MAX_BINDINGS);
                return Err(GpuError::Arity { op, what, found: count, expected });
            }
            if bytes > job.target.max_binding {
                return Err(self.too_large(dispatch, "scratch", bytes));
            }
            let ticket_bytes = u64::from(tickets) * 4;
            if ticket_bytes > job.target.max_binding {
                return Err(self.too_large(dispatch, "tickets", ticket_bytes));
            }
        }
        let built = text.kernel(job, groups);
        self.backend.vetted().check(&*self.backend, &dispatch.kernel, &built, &job.operands)?;
        Ok(built)
    }

    fn too_large(&self, dispatch: &Dispatch, operand: &'static str, bytes: u64) -> GpuError {
        GpuError::BindingTooLarge {
            kernel: dispatch.kernel.to_string(),
            operand,
            device: self.backend.name().to_owned(),
            bytes,
            limit: self.backend.target().max_binding,
        }
    }

    /// The operands as kernels see them and the ranges to bind.
    fn bind(
        &mut self,
        dispatch: &Dispatch,
        part: Option<usize>,
    ) -> Result<Vec<(Operand, RangeOf<B>)>> {
        let roles: SmallVec<[BindingRole; 6]> = {
            let contract = self.kernels.contract_of(dispatch)?;
            let declared = contract.and_then(|contract| contract.bindings.as_ref());
            declared.into_iter().flatten().map(|binding| binding.role).collect()
        };
        let (mut facts, mut infos) = (Vec::new(), Vec::new());
        let mut views = dispatch.bindings.to_vec();
        for view in &dispatch.bindings {
            let memory = self.memory(view.buf_id)?;
            if let Some(rows) = part.and_then(|part| memory.parts().get(part)) {
                views = parts::cut(dispatch, rows.first, rows.rows)?;
            }
        }
        for (index, view) in views.iter().enumerate() {
            let name = wgsl::operand_name(dispatch, index);
            let whole = self.memory(view.buf_id)?;
            let rows = part.and_then(|part| whole.parts().get(part));
            let memory = rows.map_or(&whole, |rows| &rows.memory);
            let (info, shift) = self.range(memory, view, dispatch, name)?;
            let rows = rows.map(|rows| [rows.first, dispatch.bindings[index].layout.shape4()[2]]);
            facts.push(Facts { shift, packing: memory.packing(), rows });
            infos.push(info);
        }
        Ok(wgsl::operands(dispatch, &roles, &views, &facts).into_iter().zip(infos).collect())
    }

    /// The range to bind for a view, and how far behind its start the view starts.
    fn range(
        &self,
        memory: &B::Memory,
        view: &TensorView,
        dispatch: &Dispatch,
        operand: &'static str,
    ) -> Result<(RangeOf<B>, u32)> {
        let bytes = view.layout.span_bytes();
        let too_large = |bytes| self.too_large(dispatch, operand, bytes);
        if memory.packing() == Packing::Planes {
            // Of parts, this is the view of their rows.
            if !memory.holds(view) {
                return Err(GpuError::PackedWeights { buf_id: view.buf_id });
            }
            if memory.bound_len() > self.backend.target().max_binding {
                return Err(too_large(memory.bound_len()));
            }
            return Ok((memory.whole(), 0));
        }
        let end = view.offset.checked_add(bytes).filter(|&end| end <= memory.len());
        if end.is_none() {
            let (buf_id, offset) = (view.buf_id, view.offset);
            return Err(GpuError::TransferOutOfBounds {
                buf_id,
                offset,
                len: bytes,
                buf_len: memory.len(),
            });
        }
        let dtype = view.layout.dtype();
        let align = quant::alignment(dtype);
        if !view.offset.is_multiple_of(align) {
            let (buf_id, offset) = (view.buf_id, view.offset);
            return Err(GpuError::Misaligned { buf_id, offset, dtype, align });
        }
        let device_align = self.backend.align();
        let start = memory.base() + view.offset;
        let shift = start % device_align;
        // Whole words: halves of 32-bit accesses must not fall off the end.
        let range = (shift + bytes).next_multiple_of(4);
        if range > self.backend.target().max_binding {
            return Err(too_large(range));
        }
        Ok((memory.range(start - shift, range), shift as u32))
    }

    fn memory(&mut self, buf_id: usize) -> Result<Arc<B::Memory>> {
        if let Some(memory) = self.memory.get(&buf_id) {
            return Ok(memory.clone());
        }
        let memory = self.backend.memory(buf_id)?;
        self.memory.insert(buf_id, memory.clone());
        Ok(memory)
    }

    fn take_program(&mut self) -> Result<B::Program> {
        // Taken together, before anything can fail: steps must not stay behind without their list, since
        // the next proof would know nothing of them.
        let list = std::mem::take(&mut self.list);
        let lowered = std::mem::take(&mut self.lowered);
        let memory = self.memory.drain().map(|(_, memory)| memory).collect();
        // Every submission starts with a barrier, so wrap-around needs no proof here.
        if self.proven {
            verify(&list, &list, None).map_err(|fault| GpuError::Unverified(fault.to_string()))?;
        }
        self.backend.program(lowered, memory)
    }
}

/// Bindings that scratch takes: floats and tickets.
const SCRATCH_BINDINGS: usize = 2;

// Every operand of a user's kernel has a name.
const _: () = assert!(wgsl::OPERAND_NAMES.len() == MAX_BINDINGS);

/// Bytes written through one binding must not be touched through another, unless both are exactly
/// the same bytes: then they are one binding.
fn reject_overlap(dispatch: &Dispatch, operands: &[Operand]) -> Result<()> {
    let bytes =
        |view: &TensorView| (view.buf_id, view.offset, view.offset + view.layout.span_bytes());
    for (written, operand) in operands.iter().enumerate() {
        if operand.role == BindingRole::Read {
            continue;
        }
        let (buffer, a0, a1) = bytes(&dispatch.bindings[written]);
        for (other, view) in dispatch.bindings.iter().enumerate() {
            let (other_buffer, b0, b1) = bytes(view);
            let overlaps = buffer == other_buffer && a0 < b1 && b0 < a1;
            let in_place = dispatch.in_place.iter().any(|p| {
                (usize::from(p.output), usize::from(p.input)) == (written, other)
                    && dispatch.bindings[written] == *view
            });
            if other != written && overlaps && !in_place {
                return Err(GpuError::OperandOverlap {
                    kernel: dispatch.kernel.to_string(),
                    dispatch: dispatch.id,
                    written,
                    other,
                });
            }
        }
    }
    Ok(())
}

impl<B: Backend> CommandEncoder for ListEncoder<B> {
    type Error = GpuError;

    fn dispatch(&mut self, dispatch: &Dispatch) -> Result<()> {
        let node = CapturedNode::Dispatch(Arc::new(dispatch.as_recorded()));
        // What was lowered must be in the list that is proven: asked before, and taken back on failure.
        self.list.check(&node)?;
        let before = self.lowered.mark();
        if let Err(error) = self.lower(dispatch) {
            self.lowered.take_back(before);
            return Err(error);
        }
        Ok(self.list.record(node)?)
    }

    fn barrier(&mut self, _reason: &BarrierReason) -> Result<()> {
        // The reason may name dispatches of another encoder, which this list does not have.
        self.list.record(CapturedNode::Barrier(BarrierReason::Requested))?;
        self.lowered.barrier();
        Ok(())
    }

    fn commit(&mut self) -> Result<()> {
        let mut program = self.take_program()?;
        program.submit()?;
        self.running.push(program);
        Ok(())
    }

    fn orders_commits(&self) -> bool {
        true // every submission starts with a barrier against what came before
    }
}

impl<B: Backend> Encoder for ListEncoder<B> {
    fn use_counters(&mut self) {
        self.counters = self.backend.counters();
    }

    fn wait(&mut self) -> Result<()> {
        self.running.drain(..).try_for_each(|mut program| program.wait())
    }

    fn into_program(mut self: Box<Self>) -> Result<Box<dyn Program>> {
        Ok(Box::new(self.take_program()?))
    }
}
