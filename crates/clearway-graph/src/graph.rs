//! The recorded list in execution order, with the values it computes.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;
use smallvec::SmallVec;

use crate::contract::{KernelCatalog, KernelContract};
use crate::dtype::DType;
use crate::error::{GraphError, Result};
use crate::fuse::FuseReport;
use crate::ids::{DispatchId, NodeId};
use crate::layout::{Layout, TensorView};
use crate::node::{BarrierReason, CapturedNode, Dispatch};
use crate::op::CapturedOpKind;
use crate::place::{Address, MemoryPlan};
use crate::quantise::QuantiseReport;
use crate::range::{BufferRange, MemRangeRole, View};
use crate::schedule::{ScheduleReport, Strategy};

/// Unused value numbers a hand-built list may have beyond one per binding.
const MAX_VALUE_GAPS: usize = 1 << 16;

/// An arena value: memory that exists for as long as the plan needs it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Value {
    /// Bytes it needs.
    pub bytes: u64,
    /// Uploaded by the host before the first dispatch; kept for every replay.
    pub input: bool,
    /// Kept from the step before: every step finds what the last one left.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub kept: bool,
    /// Read by the host after the last dispatch.
    pub output: bool,
    /// The value whose f16 shadow it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shadow_of: Option<NodeId>,
}

impl Value {
    /// Whether it holds something before the first dispatch, and from one replay to the next.
    pub const fn lasts(&self) -> bool {
        self.input || self.kept
    }
}

/// A recorded forward pass: dispatches and barriers in execution order. May be built by hand.
///
/// The stages are methods that change the list and leave their report with it.
#[derive(Clone, Debug, Default)]
pub struct ComputeGraph {
    nodes: Vec<CapturedNode>,
    values: Vec<Value>,
    ids: FxHashSet<DispatchId>,
    /// The shadow of each value that has one.
    shadows: FxHashMap<NodeId, NodeId>,
    next_id: u32,
    replayed: bool,
    pub(crate) fuse_report: Option<FuseReport>,
    pub(crate) quantise_report: Option<QuantiseReport>,
    pub(crate) schedule_report: Option<ScheduleReport>,
}

impl ComputeGraph {
    /// An empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// A list built by hand. Values are declared by the views that bind them.
    ///
    /// # Errors
    /// Inverted ranges, repeated ids, and references to values or dispatches that do not exist.
    pub fn from_nodes(nodes: Vec<CapturedNode>) -> Result<Self> {
        let mut graph = Self::new();
        let dispatches = || nodes.iter().filter_map(CapturedNode::dispatch);
        // Numbers may have gaps, but a wrong one must not allocate a table up to it.
        let values = MAX_VALUE_GAPS + dispatches().map(|d| d.bindings.len()).sum::<usize>();
        for dispatch in dispatches() {
            for view in &dispatch.bindings {
                let Some(value) = view.value() else { continue };
                if value.index() >= values {
                    return Err(GraphError::UnknownValue { dispatch: dispatch.id, value, values });
                }
                let missing = (value.index() + 1).saturating_sub(graph.values.len());
                graph.values.extend(std::iter::repeat_n(Value::default(), missing));
                let bytes = &mut graph.values[value.index()].bytes;
                *bytes = (*bytes).max(view.buf_len);
            }
        }
        // Barriers may name dispatches that follow them, so dispatches are known first.
        for dispatch in dispatches() {
            graph.check_dispatch(dispatch)?;
            graph.note_id(dispatch.id);
        }
        for (position, node) in nodes.iter().enumerate() {
            if let CapturedNode::Barrier(reason) = node {
                graph.check_reason(position, reason)?;
            }
        }
        graph.nodes = nodes;
        Ok(graph)
    }

    /// Adds a node at the end.
    ///
    /// # Errors
    /// As [`from_nodes`](Self::from_nodes). The list is unchanged then.
    pub fn record(&mut self, node: CapturedNode) -> Result<()> {
        self.check(&node)?;
        if let CapturedNode::Dispatch(dispatch) = &node {
            self.note_id(dispatch.id);
        }
        self.nodes.push(node);
        Ok(())
    }

    /// Appends a dispatch and, in front of it, the barrier it needs.
    ///
    /// # Errors
    /// As [`record`](Self::record). The list is unchanged then.
    pub fn record_behind(
        &mut self,
        barrier: Option<BarrierReason>,
        dispatch: Arc<Dispatch>,
    ) -> Result<()> {
        let at = self.nodes.len();
        self.record(CapturedNode::Dispatch(dispatch))?;
        if let Some(reason) = barrier {
            // The reason names the dispatch, which is known by now.
            if let Err(error) = self.check_reason(at, &reason) {
                if let Some(CapturedNode::Dispatch(dispatch)) = self.nodes.pop() {
                    self.ids.remove(&dispatch.id);
                }
                return Err(error);
            }
            self.nodes.insert(at, CapturedNode::Barrier(reason));
        }
        Ok(())
    }

    /// Whether [`record`](Self::record) would take a node.
    ///
    /// # Errors
    /// As [`from_nodes`](Self::from_nodes).
    pub fn check(&self, node: &CapturedNode) -> Result<()> {
        match node {
            CapturedNode::Dispatch(dispatch) => self.check_dispatch(dispatch),
            CapturedNode::Barrier(reason) => self.check_reason(self.nodes.len(), reason),
        }
    }

    /// Annotates and records one dispatch of a kernel with this contract.
    ///
    /// # Errors
    /// As [`KernelContract::annotate`] and [`record`](Self::record). The list is unchanged then.
    pub fn dispatch(
        &mut self,
        kind: CapturedOpKind,
        contract: &KernelContract,
        views: &[TensorView],
        params: &[u32],
        label: &str,
    ) -> Result<DispatchId> {
        let dispatch = self.annotated(kind, contract, views, params, label)?;
        let id = dispatch.id;
        self.record(CapturedNode::Dispatch(dispatch))?;
        Ok(id)
    }

    /// Annotates a dispatch with the next free id without recording it.
    ///
    /// # Errors
    /// As [`KernelContract::annotate`].
    pub fn annotated(
        &self,
        kind: CapturedOpKind,
        contract: &KernelContract,
        views: &[TensorView],
        params: &[u32],
        label: &str,
    ) -> Result<Arc<Dispatch>> {
        let id = DispatchId(self.next_id);
        Ok(Arc::new(Dispatch::annotated(id, kind, contract, views, params, label)?))
    }

    /// Declares an arena value of this layout and returns a view of the whole of it.
    pub fn declare_value(&mut self, layout: Layout) -> TensorView {
        let id = NodeId(self.values.len() as u32);
        self.values.push(Value { bytes: layout.span_bytes(), ..Value::default() });
        TensorView::of_value(id, layout)
    }

    /// The f16 shadow of a whole f32 value, declared with the first call, and whether it is fresh: a
    /// dispatch has written it since the value was written last. The caller records that dispatch
    /// otherwise.
    ///
    /// # Errors
    /// [`GraphError::NoShadow`] if the view is not a whole f32 value.
    pub fn shadow(&mut self, view: &TensorView) -> Result<(TensorView, bool)> {
        let layout = &view.layout;
        let none = || GraphError::NoShadow {
            buf_id: view.buf_id,
            offset: view.offset,
            layout: layout.to_string(),
        };
        let value = view.value().ok_or_else(none)?;
        let known = self.values.get(value.index()).ok_or_else(none)?;
        let whole = view.offset == 0 && layout.is_dense() && layout.span_bytes() == known.bytes;
        if !whole || layout.dtype() != DType::F32 || known.shadow_of.is_some() {
            return Err(none());
        }
        let dims: SmallVec<[usize; 4]> = layout.dims().iter().map(|&d| d as usize).collect();
        let half = Layout::new(DType::F16, &dims)?;
        if let Some(&shadow) = self.shadows.get(&value) {
            let wrote = |d: &Dispatch, id: NodeId| d.writes().any(|r| r.buf_id == id.buf_id());
            let last = self.dispatches().rev().find(|d| wrote(d, shadow) || wrote(d, value));
            let fresh = last.is_some_and(|d| wrote(d, shadow) && !wrote(d, value));
            return Ok((TensorView::of_value(shadow, half), fresh));
        }
        let shadow = self.declare_value(half);
        if let Some(id) = shadow.value() {
            self.values[id.index()].shadow_of = Some(value);
            self.shadows.insert(value, id);
        }
        Ok((shadow, false))
    }

    /// Marks a value as uploaded by the host.
    ///
    /// # Errors
    /// [`GraphError::UnknownValue`] if there is no such value.
    pub fn mark_input(&mut self, value: NodeId) -> Result<()> {
        self.value_mut(value)?.input = true;
        Ok(())
    }

    /// Marks a value as kept from one step to the next: each replay finds what the one before left.
    /// Before the first one it holds whatever its memory holds.
    ///
    /// A value that is neither an input nor kept must be written before it is read.
    ///
    /// # Errors
    /// [`GraphError::UnknownValue`] if there is no such value.
    pub fn mark_kept(&mut self, value: NodeId) -> Result<()> {
        self.value_mut(value)?.kept = true;
        Ok(())
    }

    /// Marks a value as read by the host at the end.
    ///
    /// # Errors
    /// [`GraphError::UnknownValue`] if there is no such value.
    pub fn mark_output(&mut self, value: NodeId) -> Result<()> {
        self.value_mut(value)?.output = true;
        Ok(())
    }

    /// Says whether the list will run again and again, so that its end is ordered before its
    /// beginning.
    pub fn set_replayed(&mut self, replayed: bool) {
        self.replayed = replayed;
    }

    /// Whether the list will run again and again.
    pub const fn is_replayed(&self) -> bool {
        self.replayed
    }

    /// The list in execution order.
    pub fn nodes(&self) -> &[CapturedNode] {
        &self.nodes
    }

    /// Gives the list away.
    pub fn into_nodes(self) -> Vec<CapturedNode> {
        self.nodes
    }

    /// The declared values, indexed by [`NodeId`].
    pub fn values(&self) -> &[Value] {
        &self.values
    }

    /// The dispatches in execution order.
    pub fn dispatches(&self) -> impl DoubleEndedIterator<Item = &Arc<Dispatch>> {
        self.nodes.iter().filter_map(CapturedNode::dispatch)
    }

    /// The dispatches in execution order, as a table.
    pub(crate) fn dispatch_table(&self) -> Vec<&Dispatch> {
        // An iterator that leaves barriers out cannot say how many are left, so that a table made
        // from it alone would be copied again and again as it grows.
        let mut table = Vec::with_capacity(self.nodes.len());
        table.extend(self.dispatches().map(|dispatch| &**dispatch));
        table
    }

    /// How many dispatches the list holds.
    pub fn dispatch_count(&self) -> u32 {
        self.dispatches().count() as u32
    }

    /// How many barriers the list holds.
    pub fn barrier_count(&self) -> u32 {
        self.nodes.len() as u32 - self.dispatch_count()
    }

    /// How many dispatches touch unknown memory: 0 for anything built from contracts.
    pub fn unannotated_dispatch_count(&self) -> u32 {
        self.dispatches().filter(|d| !d.is_annotated()).count() as u32
    }

    /// What the fuse stage did, if it ran.
    pub fn fuse_report(&self) -> Option<&FuseReport> {
        self.fuse_report.as_ref()
    }

    /// What the quantise stage did, if it ran.
    pub fn quantise_report(&self) -> Option<&QuantiseReport> {
        self.quantise_report.as_ref()
    }

    /// What the schedule stage did, if it ran.
    pub fn schedule_report(&self) -> Option<&ScheduleReport> {
        self.schedule_report.as_ref()
    }

    /// Applies the fusion rules; returns how many fired. The report stays with the graph. Barriers
    /// are stripped if any rule fired, since they were placed for another list.
    ///
    /// # Errors
    /// [`GraphError::Kernel`] if a fused kernel fails to compile; the list is unchanged then.
    pub fn fuse<C: KernelCatalog>(&mut self, catalog: &mut C, device: &C::Device) -> Result<u32> {
        self.fuse_with(catalog, device, false)
    }

    /// As [`fuse`](Self::fuse), also by rules whose results exist only
    /// [quantised](crate::fuse::Rule::quantises) if told to. What these refused is in the report of
    /// [`quantise`](Self::quantise), which comes next.
    ///
    /// # Errors
    /// As [`fuse`](Self::fuse).
    pub fn fuse_with<C: KernelCatalog>(
        &mut self,
        catalog: &mut C,
        device: &C::Device,
        quantise: bool,
    ) -> Result<u32> {
        let (report, refusals) = crate::fuse::fuse(self, catalog, device, quantise)?;
        let fired = report.fired();
        self.fuse_report = Some(report);
        if quantise {
            self.quantise_report = Some(QuantiseReport { refusals, ..QuantiseReport::default() });
        }
        Ok(fired)
    }

    /// Rounds values between fused products where the device has the kernels; returns how many values are
    /// rounded by then. The report stays with the graph.
    ///
    /// # Errors
    /// [`GraphError::Kernel`] if a kernel fails to compile; the list is unchanged then.
    pub fn quantise<C: KernelCatalog>(
        &mut self,
        catalog: &mut C,
        device: &C::Device,
    ) -> Result<u32> {
        let report = crate::quantise::quantise(self, catalog, device)?;
        let rounded = report.quantised.len() as u32;
        let all = self.quantise_report.get_or_insert_default();
        all.quantised = report.quantised;
        all.refusals.extend(report.refusals);
        Ok(rounded)
    }

    /// Gives values that only products read the form of f16 where the device has the kernels; returns how many.
    /// They join the report of the quantise stage.
    ///
    /// # Errors
    /// As [`quantise`](Self::quantise).
    pub fn halve<C: KernelCatalog>(&mut self, catalog: &mut C, device: &C::Device) -> Result<u32> {
        let report = crate::quantise::halve::halve(self, catalog, device)?;
        let halved = report.quantised.len() as u32;
        let all = self.quantise_report.get_or_insert_default();
        all.halved = report.quantised;
        all.refusals.extend(report.refusals);
        Ok(halved)
    }

    /// Strips barriers and orders the list for concurrency; returns how many dispatches moved
    /// earlier (not those that merely shifted). The report stays with the graph.
    pub fn reorder(&mut self) -> u32 {
        self.reorder_with(Strategy::Levels)
    }

    /// As [`reorder`](Self::reorder), by the strategy given.
    pub fn reorder_with(&mut self, strategy: Strategy) -> u32 {
        let report = crate::schedule::schedule(self, strategy);
        let moved = report.moved;
        self.schedule_report = Some(report);
        moved
    }

    /// Strips barriers and writes new ones with their reasons where the ranges need them; returns
    /// how many.
    pub fn place_barriers(&mut self) -> u32 {
        crate::barriers::place(self)
    }

    /// Strips barriers and writes one after every dispatch: the slow list others are compared with.
    pub fn place_barriers_everywhere(&mut self) -> u32 {
        crate::barriers::place_everywhere(self)
    }

    /// Fills in the addresses of a plan: every range and view of a value becomes one of the buffer
    /// that holds its slab.
    ///
    /// # Errors
    /// [`GraphError::Unplaced`] and [`GraphError::PlacedOutOfSlab`]; the list is unchanged then.
    pub fn assign_addresses(&mut self, plan: &MemoryPlan, slab_buf_ids: &[usize]) -> Result<()> {
        crate::place::assign(self, plan, slab_buf_ids)
    }

    /// Says where buffers that the list only names really lie, such as the weights of a model that
    /// was recorded without any: ranges and views of a buffer in `addresses` move there.
    ///
    /// # Errors
    /// [`GraphError::ViewOutOfBounds`] if a view does not fit where it is put; the list is unchanged
    /// then.
    pub fn bind_buffers(&mut self, addresses: &FxHashMap<usize, Address>) -> Result<()> {
        for view in self.dispatches().flat_map(|d| &d.bindings) {
            if let Some(to) = addresses.get(&view.buf_id) {
                let (offset, len) = (view.offset.saturating_add(to.offset), view.byte_len());
                if offset.saturating_add(len) > to.buf_len {
                    let (buf_id, buf_len) = (to.buf_id, to.buf_len);
                    return Err(GraphError::ViewOutOfBounds { buf_id, offset, len, buf_len });
                }
            }
        }
        crate::place::relocate(self, |buf_id, _| Ok(addresses.get(&buf_id).copied()))
    }

    /// Moves the dispatches out, in execution order; the list is empty until it is set again.
    /// Passes that only reorder thus never touch the counts of the shared dispatches, which for a
    /// long list lie far out in memory.
    pub(crate) fn take_dispatches(&mut self) -> Vec<Arc<Dispatch>> {
        let dispatch = |node| match node {
            CapturedNode::Dispatch(dispatch) => Some(dispatch),
            CapturedNode::Barrier(_) => None,
        };
        std::mem::take(&mut self.nodes).into_iter().filter_map(dispatch).collect()
    }

    pub(crate) fn set_nodes(&mut self, nodes: Vec<CapturedNode>) {
        self.nodes = nodes;
    }

    /// Puts another dispatch with the same id and ranges where one stands.
    pub(crate) fn replace(&mut self, node: usize, dispatch: Dispatch) {
        self.nodes[node] = CapturedNode::Dispatch(Arc::new(dispatch));
    }

    fn value_mut(&mut self, value: NodeId) -> Result<&mut Value> {
        let values = self.values.len();
        self.values.get_mut(value.index()).ok_or(GraphError::UnknownValue {
            dispatch: DispatchId(self.next_id),
            value,
            values,
        })
    }

    fn check_dispatch(&self, dispatch: &Dispatch) -> Result<()> {
        for view in &dispatch.bindings {
            let range = BufferRange::from_buffer(view, MemRangeRole::Src)?;
            self.check_value(dispatch.id, &range)?;
        }
        for range in dispatch.ranges() {
            range.check()?;
            self.check_value(dispatch.id, range)?;
        }
        if self.ids.contains(&dispatch.id) {
            return Err(GraphError::DuplicateDispatch { dispatch: dispatch.id });
        }
        Ok(())
    }

    fn note_id(&mut self, id: DispatchId) {
        self.ids.insert(id);
        self.next_id = self.next_id.max(id.0.saturating_add(1));
    }

    fn check_value(&self, dispatch: DispatchId, range: &BufferRange) -> Result<()> {
        let Some(value) = NodeId::from_buf_id(range.buf_id) else {
            return Ok(());
        };
        match self.values.get(value.index()) {
            None => Err(GraphError::UnknownValue { dispatch, value, values: self.values.len() }),
            Some(known) if range.p1 > known.bytes => Err(GraphError::RangeOutsideValue {
                dispatch,
                value,
                p0: range.p0,
                p1: range.p1,
                bytes: known.bytes,
            }),
            Some(_) => Ok(()),
        }
    }

    fn check_reason(&self, position: usize, reason: &BarrierReason) -> Result<()> {
        let named: SmallVec<[DispatchId; 2]> = match reason {
            BarrierReason::Hazard(h) | BarrierReason::Replay(h) => {
                SmallVec::from_slice(&[h.earlier, h.later])
            }
            BarrierReason::Unannotated(id) => SmallVec::from_slice(&[*id]),
            BarrierReason::Memory | BarrierReason::Requested => SmallVec::new(),
        };
        match named.into_iter().find(|id| !self.ids.contains(id)) {
            Some(dispatch) => Err(GraphError::UnknownDispatch { position, dispatch }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
