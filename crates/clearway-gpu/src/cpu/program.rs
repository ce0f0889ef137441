//! The lowered list.

use std::any::Any;
use std::borrow::Cow;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use clearway_graph::verify::verify;
use clearway_graph::{
    BarrierReason, BindingRole, CapturedNode, CommandEncoder, ComputeGraph, Dispatch, Params,
    TensorView,
};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::barrier::SpinBarrier;
use super::group::Group;
use super::joint::Joint;
use super::memory::HostMemory;
use super::piece::{CpuKernel, Grid, Operand, Piece};
use super::simd::packed::PackedView;
use super::{Order, Shared, kernels, profile};
use crate::counters::{Orders, Stalled};
use crate::device::{Encoder, Program};
use crate::error::{GpuError, Result};
use crate::ops;
use crate::profile::{Profile, ProfileMode};
use crate::quant;
use crate::random::Rng;
use crate::registry::{KernelRegistry, declared_bytes};

/// Pieces of a dispatch at most.
const MAX_PIECES: usize = u32::MAX as usize;

/// Lowers dispatches as they come. Nothing runs before the whole list is proven.
pub(super) struct CpuEncoder {
    shared: Arc<Shared>,
    kernels: KernelRegistry,
    /// The list as given, for the proof.
    list: ComputeGraph,
    steps: Vec<Step>,
    /// One past the last step of each group that a barrier closed.
    group_ends: Vec<usize>,
    memory: FxHashMap<usize, Arc<HostMemory>>,
}

/// A dispatch ready to run.
#[derive(Clone)]
struct Step {
    kernel: CpuKernel,
    name: Cow<'static, str>,
    operands: SmallVec<[Operand; 6]>,
    params: Params,
    grid: Grid,
    /// Index of its first piece in its group.
    first_piece: usize,
    /// Where the floats of its parts start, if it is joint.
    first_joint: usize,
}

impl CpuEncoder {
    pub(super) fn new(shared: Arc<Shared>, kernels: KernelRegistry) -> Self {
        Self {
            shared,
            kernels,
            list: ComputeGraph::new(),
            steps: Vec::new(),
            group_ends: Vec::new(),
            memory: FxHashMap::default(),
        }
    }

    fn lower(&mut self, dispatch: &Dispatch) -> Result<Step> {
        // Kernels rely on what an op call has checked; a list built by hand has not been.
        if ops::spec(dispatch.kind).is_some() {
            ops::check(dispatch.kind, &dispatch.bindings, &dispatch.params)?;
        }
        // Whether the kernel is the one of the kind comes first.
        let roles = self.roles(dispatch)?;
        let kernel = self.kernel(dispatch)?;
        let operands = dispatch
            .bindings
            .iter()
            .zip(roles)
            .enumerate()
            .map(|(index, (view, role))| {
                let declared = declared_bytes(dispatch, index, role)?;
                self.operand(view, role, declared)
            })
            .collect::<Result<SmallVec<[Operand; 6]>>>()?;
        reject_overlap(dispatch, &operands)?;
        let operands = with_aliases(dispatch, operands);
        let grid = kernel.grid(&dispatch.bindings, &dispatch.params);
        let name = dispatch.kernel.clone();
        let fail = |message| GpuError::KernelFailed { kernel: name.to_string(), message };
        let mut written = operands.iter().filter(|o| o.role != BindingRole::Read);
        if let Some(bad) = written.find(|o| !grid.fits(&o.layout)) {
            let message = format!("its grid does not cut an output of {} into parts", bad.layout);
            return Err(fail(message));
        }
        if grid.pieces() > MAX_PIECES {
            return Err(fail(format!("its grid has {} pieces", grid.pieces())));
        }
        let params = dispatch.params.clone();
        Ok(Step { kernel, name, operands, params, grid, first_piece: 0, first_joint: 0 })
    }

    fn kernel(&self, dispatch: &Dispatch) -> Result<CpuKernel> {
        let name = &*dispatch.kernel;
        // By kind, as its contract: a user's kernel is never run by the contract of one of ours.
        if ops::spec(dispatch.kind).is_some() {
            return kernels::builtin(dispatch.kind, self.shared.float_activations)
                .cloned()
                .ok_or_else(|| GpuError::UnknownKernel { kernel: name.to_owned() });
        }
        let custom = self.kernels.custom(name)?;
        custom.cpu.clone().ok_or_else(|| GpuError::KernelNotForDevice {
            kernel: name.to_owned(),
            device: self.shared.info.name.clone(),
        })
    }

    /// Roles of the operands, from the contract of the kernel, with which the dispatch agrees. A kernel of
    /// unknown access may write all of them.
    fn roles(&self, dispatch: &Dispatch) -> Result<SmallVec<[BindingRole; 6]>> {
        let contract = self.kernels.checked_contract(dispatch)?;
        Ok(match &contract.bindings {
            Some(bindings) => bindings.iter().map(|binding| binding.role).collect(),
            None => dispatch.bindings.iter().map(|_| BindingRole::ReadWrite).collect(),
        })
    }

    /// The `declared` bytes of a buffer, seen as a view.
    fn operand(
        &mut self,
        view: &TensorView,
        role: BindingRole,
        declared: Range<u64>,
    ) -> Result<Operand> {
        let memory = match self.memory.get(&view.buf_id) {
            Some(memory) => memory,
            None => {
                let memory = self.shared.memory(view.buf_id)?;
                self.memory.entry(view.buf_id).or_insert(memory)
            }
        };
        let bytes = view.layout.span_bytes();
        let end = view.offset.checked_add(bytes).filter(|&end| end <= memory.len() as u64);
        if end.is_none() {
            return Err(GpuError::TransferOutOfBounds {
                buf_id: view.buf_id,
                offset: view.offset,
                len: bytes,
                buf_len: memory.len() as u64,
            });
        }
        let dtype = view.layout.dtype();
        let align = quant::alignment(dtype);
        if !view.offset.is_multiple_of(align) {
            let (buf_id, offset) = (view.buf_id, view.offset);
            return Err(GpuError::Misaligned { buf_id, offset, dtype, align });
        }
        let layout = view.layout;
        if let Some(tensor) = memory.packed() {
            // A kernel gets the whole tensor, of which no program may write a byte.
            let whole = declared.start == view.offset && Some(declared.end) == end;
            let packed = PackedView::new(tensor, view.offset, &layout).filter(|_| whole);
            if packed.is_none() || role != BindingRole::Read {
                return Err(GpuError::PackedWeights { buf_id: view.buf_id });
            }
            let (start, bytes, skipped) = (memory.start(), memory.len(), 0);
            let (over, aliased) = (None, false);
            return Ok(Operand { start, bytes, skipped, layout, role, packed, over, aliased });
        }
        let inside = view.offset <= declared.start && Some(declared.end) <= end;
        let bytes = declared.end.checked_sub(declared.start).filter(|_| inside);
        let Some(bytes) = bytes.map(|bytes| bytes as usize) else {
            return Err(GpuError::TransferOutOfBounds {
                buf_id: view.buf_id,
                offset: declared.start,
                len: declared.end.saturating_sub(declared.start),
                buf_len: memory.len() as u64,
            });
        };
        // SAFETY: the lines above have seen that `declared` is inside the view, and the view inside the
        // allocation.
        let start = unsafe { memory.start().add(declared.start as usize) };
        let skipped = (declared.start - view.offset) as usize;
        let (packed, over, aliased) = (None, None, false);
        Ok(Operand { start, bytes, skipped, layout, role, packed, over, aliased })
    }

    fn take_program(&mut self) -> Result<CpuProgram> {
        // Taken together, before anything can fail: steps must not stay behind without their list, since
        // the next proof would know nothing of them.
        let list = std::mem::take(&mut self.list);
        let mut ends = std::mem::take(&mut self.group_ends);
        let steps = std::mem::take(&mut self.steps);
        let memory = std::mem::take(&mut self.memory).into_values().collect();
        ends.push(steps.len());
        // Runs are separated by waiting, so wrap-around needs no proof here.
        verify(&list, &list, None).map_err(|fault| GpuError::Unverified(fault.to_string()))?;
        check_pieces(&steps, &ends)?;
        let work = Work::new(steps, &ends, memory, &self.shared);
        self.shared.encodings.fetch_add(1, Ordering::Relaxed);
        Ok(CpuProgram { shared: self.shared.clone(), work: Arc::new(work), serial: None })
    }
}

/// Pieces of a group are numbered in 32 bits.
fn check_pieces(steps: &[Step], ends: &[usize]) -> Result<()> {
    let mut start = 0;
    for &end in ends {
        let group = &steps[start..end];
        // No overflow: each has at most `MAX_PIECES`.
        let pieces: u64 = group.iter().map(|step| step.grid.pieces() as u64).sum();
        if let Some(step) = group.last().filter(|_| pieces > MAX_PIECES as u64) {
            return Err(GpuError::KernelFailed {
                kernel: step.name.to_string(),
                message: format!("the group it is in has {pieces} pieces"),
            });
        }
        start = end;
    }
    Ok(())
}

/// Shared and exclusive slices of the same bytes must never exist side by side. An operand that an
/// output lies exactly over is handed out as that output alone.
fn reject_overlap(dispatch: &Dispatch, operands: &[Operand]) -> Result<()> {
    let bytes = |o: &Operand| (o.start.addr(), o.start.addr() + o.bytes);
    let only_read = |operand: usize| operands[operand].role == BindingRole::Read;
    for (written, a) in operands.iter().enumerate() {
        if a.role == BindingRole::Read {
            continue;
        }
        let ((a0, a1), others) = (bytes(a), operands.iter().map(bytes).enumerate());
        for (other, (b0, b1)) in others {
            let in_place = dispatch.placed_over(written) == Some(other) && only_read(other);
            if other != written && a0 < b1 && b0 < a1 && !in_place {
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

/// Notes which outputs lie over which operands.
fn with_aliases(
    dispatch: &Dispatch,
    mut operands: SmallVec<[Operand; 6]>,
) -> SmallVec<[Operand; 6]> {
    for output in 0..operands.len() {
        let written = operands[output].role != BindingRole::Read;
        if let Some(input) = dispatch.placed_over(output).filter(|_| written) {
            operands[output].over = Some(input);
            operands[input].aliased = true;
        }
    }
    operands
}

impl CommandEncoder for CpuEncoder {
    type Error = GpuError;

    fn dispatch(&mut self, dispatch: &Dispatch) -> Result<()> {
        let step = self.lower(dispatch)?;
        self.list.record(CapturedNode::Dispatch(Arc::new(dispatch.as_recorded())))?;
        self.steps.push(step);
        Ok(())
    }

    fn barrier(&mut self, _reason: &BarrierReason) -> Result<()> {
        // The reason may name dispatches of another encoder, which this list does not have.
        self.list.record(CapturedNode::Barrier(BarrierReason::Requested))?;
        self.group_ends.push(self.steps.len());
        Ok(())
    }

    fn commit(&mut self) -> Result<()> {
        self.take_program()?.run()
    }

    fn orders_commits(&self) -> bool {
        true // a commit runs to its end
    }
}

impl Encoder for CpuEncoder {
    fn wait(&mut self) -> Result<()> {
        Ok(())
    }

    fn into_program(mut self: Box<Self>) -> Result<Box<dyn Program>> {
        Ok(Box::new(self.take_program()?))
    }
}

/// A proven and lowered list.
struct CpuProgram {
    shared: Arc<Shared>,
    work: Arc<Work>,
    /// The same list with a barrier after every dispatch, once it was asked for.
    serial: Option<Arc<Work>>,
}

impl Program for CpuProgram {
    fn run(&mut self) -> Result<()> {
        self.shared.pool.run(&self.work)?;
        self.work.outcome()
    }

    fn profile(&mut self, mode: ProfileMode) -> Result<Profile> {
        let work = match mode {
            ProfileMode::Groups => &self.work,
            ProfileMode::Serialised => {
                self.serial.get_or_insert_with(|| Arc::new(self.work.serialised(&self.shared)))
            }
        };
        let pool = &self.shared.pool;
        let profile =
            profile::of_run(mode, work.groups.len(), |passed| pool.run_observed(work, passed))?;
        work.outcome()?;
        let barriers = Arc::new(Work::barriers(profile::CALIBRATION, &self.shared));
        let idle = profile::of_run(mode, profile::CALIBRATION, |passed| {
            pool.run_observed(&barriers, passed)
        })?;
        Ok(Profile { barrier_ns: profile::median_ns(&idle.spans), ..profile })
    }
}

/// What the workers run. Nothing in it is allocated while it runs.
pub(super) struct Work {
    steps: Vec<Step>,
    groups: Vec<Group>,
    /// Floats for each worker.
    scratch: Vec<Mutex<Vec<f32>>>,
    /// What the parts of joint steps found. Groups take turns with it.
    joint: Joint,
    /// Parts of each step that are done, if it is joint.
    joined: Vec<AtomicUsize>,
    failure: Mutex<Option<GpuError>>,
    adversary: Option<Adversary>,
    /// The counter form, where the device runs lists in that.
    orders: Option<Mutex<Orders>>,
    /// Keeps the operands' bytes alive.
    memory: Vec<Arc<HostMemory>>,
}

/// A legal order of the pieces of each group, drawn anew for each run.
struct Adversary {
    rng: Mutex<Rng>,
    orders: RwLock<Vec<Vec<u32>>>,
}

impl Work {
    fn new(
        mut steps: Vec<Step>,
        ends: &[usize],
        memory: Vec<Arc<HostMemory>>,
        shared: &Shared,
    ) -> Self {
        let mut groups = Vec::with_capacity(ends.len());
        let (mut start, mut joint) = (0, 0);
        for &end in ends {
            let (mut pieces, mut floats) = (0, 0);
            for step in &mut steps[start..end] {
                (step.first_piece, step.first_joint) = (pieces, floats);
                pieces += step.grid.pieces();
                floats += step.grid.pieces() * step.grid.joint_floats();
            }
            joint = joint.max(floats);
            if start < end {
                groups.push(Group::new(start..end, pieces, shared.pool.threads()));
            }
            start = end;
        }
        let floats = steps.iter().map(|step| step.grid.scratch()).max().unwrap_or(0);
        let scratch = (0..shared.pool.threads()).map(|_| Mutex::new(vec![0.0; floats])).collect();
        let within_groups = |seed| Adversary {
            rng: Mutex::new(Rng(seed)),
            orders: RwLock::new(groups.iter().map(|g| (0..g.pieces as u32).collect()).collect()),
        };
        let with_counters = |seed| {
            let pieces = |group: &Group| -> Vec<usize> {
                steps[group.steps.clone()].iter().map(|step| step.grid.pieces()).collect()
            };
            Mutex::new(Orders::new(&groups.iter().map(pieces).collect::<Vec<_>>(), seed))
        };
        let (adversary, orders) = match shared.adversary {
            None => (None, None),
            Some(Order::WithinGroups { seed }) => (Some(within_groups(seed)), None),
            Some(Order::Counters { seed }) => (None, Some(with_counters(seed))),
        };
        let (joint, failure) = (Joint::new(joint), Mutex::new(None));
        let joined = steps.iter().map(|_| AtomicUsize::new(0)).collect();
        Self { steps, groups, scratch, joint, joined, failure, adversary, orders, memory }
    }

    /// The same steps with a barrier after each.
    fn serialised(&self, shared: &Shared) -> Self {
        let ends: Vec<usize> = (1..=self.steps.len()).collect();
        Self::new(self.steps.clone(), &ends, self.memory.clone(), shared)
    }

    /// Nothing but barriers: shows what one costs.
    fn barriers(count: usize, shared: &Shared) -> Self {
        let empty = || Group::new(0..0, 0, shared.pool.threads());
        let mut work = Self::new(Vec::new(), &[], Vec::new(), shared);
        work.groups.extend((0..count).map(|_| empty()));
        work
    }

    /// Called before the workers start, by the one thread that runs programs.
    pub(super) fn prepare(&self) {
        for group in &self.groups {
            group.restart();
        }
        if let Some(adversary) = &self.adversary {
            adversary.shuffle();
        }
    }

    /// One worker's part: every group, with a barrier after each. All workers meet after the last.
    /// `passed` is told each group whose barrier this worker has passed.
    pub(super) fn execute(
        &self,
        worker: usize,
        barrier: &SpinBarrier,
        mut passed: impl FnMut(usize),
    ) {
        // A worker that left early would let the caller touch buffers that others still work on.
        let stays = AbortOnUnwind;
        let mut scratch = self.scratch[worker].lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(orders) = &self.orders {
            if worker == 0 {
                let mut orders = orders.lock().unwrap_or_else(PoisonError::into_inner);
                self.run_ordered(&mut orders, &mut scratch);
            }
            barrier.wait();
            (0..self.groups.len()).for_each(passed);
            std::mem::forget(stays);
            return;
        }
        for (index, group) in self.groups.iter().enumerate() {
            while let Some(claimed) = group.claim(worker) {
                let piece = match &self.adversary {
                    Some(adversary) => adversary.piece(index, claimed),
                    None => claimed,
                };
                self.run_piece(group, piece, &mut scratch);
            }
            barrier.wait();
            passed(index);
        }
        if self.groups.is_empty() {
            barrier.wait();
        }
        std::mem::forget(stays);
    }

    /// Runs everything in an order that the counters allow.
    fn run_ordered(&self, orders: &mut Orders, scratch: &mut [f32]) {
        let stalled = orders.run(|(group, step, piece)| {
            let group = &self.groups[group];
            let piece = self.steps[group.steps.start + step].first_piece + piece;
            self.run_piece(group, piece, scratch);
        });
        if let Err(Stalled) = stalled {
            let error = GpuError::Stalled { device: "cpu".to_owned() };
            self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
    }

    fn run_piece(&self, group: &Group, piece: usize, scratch: &mut [f32]) {
        let steps = &self.steps[group.steps.clone()];
        let index = steps.partition_point(|step| step.first_piece <= piece) - 1;
        let (step, piece) = (&steps[index], piece - steps[index].first_piece);
        self.run_part(step, piece, scratch);
        if step.grid.is_joint() {
            // Whoever counts the last part sees what all of them wrote.
            let joined = &self.joined[group.steps.start + index];
            if joined.fetch_add(1, Ordering::AcqRel) + 1 == step.grid.pieces() {
                joined.store(0, Ordering::Relaxed);
                self.run_part(step, step.grid.pieces(), scratch);
            }
        }
    }

    /// Runs a piece of a step, or the one that joins its pieces.
    fn run_part(&self, step: &Step, piece: usize, scratch: &mut [f32]) {
        let (first, floats) = (step.first_joint, step.grid.joint_floats());
        let joint = match piece == step.grid.pieces() {
            true => first..first + piece * floats,
            false => first + piece * floats..first + (piece + 1) * floats,
        };
        // SAFETY: nobody else has these floats: `Group::claim` gives each part to one worker, `run_piece`
        // joins them only when all are done, `Work::new` gives each step of a group other floats, and
        // `execute` keeps groups apart by the barrier, or one worker runs all parts.
        let joint = unsafe { self.joint.floats(joint) };
        // SAFETY: `CpuEncoder::lower` has seen that the grid fits the outputs and that operands overlap only
        // in place; `memory` keeps their bytes alive. `Group::claim` gives each piece to one worker, and
        // `run_piece` joins pieces once, after all of them. The
        // bytes of operands are those of the dispatch's accesses, and `CpuEncoder::take_program` has proven
        // for those that nothing in this group writes what this piece reads or touches what it owns.
        // `execute` keeps groups apart by the barrier, or one worker runs all pieces one after another, and
        // `Pool::run_observed` keeps transfers apart by the run lock.
        let mut piece =
            unsafe { Piece::new(&step.operands, &step.params, &step.grid, piece, scratch, joint) };
        let outcome = catch_unwind(AssertUnwindSafe(|| step.kernel.run(&mut piece)));
        if let Err(payload) = outcome {
            let error = GpuError::KernelFailed {
                kernel: step.name.to_string(),
                message: panic_message(&*payload),
            };
            // What a kernel panics with may panic again when it is dropped; that one is left alone.
            if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
                std::mem::forget(again);
            }
            self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
    }

    fn outcome(&self) -> Result<()> {
        match self.failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

/// Ends the process if it is dropped: only a panic on the way to the end of a program does that.
struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        std::process::abort();
    }
}

impl Adversary {
    fn shuffle(&self) {
        let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
        let mut orders = self.orders.write().unwrap_or_else(PoisonError::into_inner);
        orders.iter_mut().for_each(|order| rng.shuffle(order));
    }

    fn piece(&self, group: usize, claimed: usize) -> usize {
        let orders = self.orders.read().unwrap_or_else(PoisonError::into_inner);
        orders[group][claimed] as usize
    }
}

fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default()
}
