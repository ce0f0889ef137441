//! Lists built from byte ranges, and made smaller.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::{
    Accesses, BindingContract, BindingRole, CapturedNode, CapturedOpKind, ComputeGraph, DType,
    Dispatch, DispatchFields, DispatchId, Extent, KernelContract, Layout, NodeId, Params,
    TensorView, View,
};

/// Bytes `p0..p1` of a buffer of `len` bytes, read, written or both.
#[derive(Clone, Copy, Debug)]
pub struct Touch {
    /// Identity of the buffer.
    pub buf_id: usize,
    /// Bytes in the buffer: at least 2, even.
    pub len: u64,
    /// First byte.
    pub p0: u64,
    /// One past the last byte.
    pub p1: u64,
    /// Read.
    pub read: bool,
    /// Written.
    pub write: bool,
    /// How the tensor lies whose bytes these are; densely, if nothing is said.
    pub layout: Option<Layout>,
}

impl Touch {
    /// A read.
    pub const fn read(buf_id: usize, len: u64, p0: u64, p1: u64) -> Self {
        Self { buf_id, len, p0, p1, read: true, write: false, layout: None }
    }

    /// A write.
    pub const fn write(buf_id: usize, len: u64, p0: u64, p1: u64) -> Self {
        Self { buf_id, len, p0, p1, read: false, write: true, layout: None }
    }

    /// An update in place.
    pub const fn update(buf_id: usize, len: u64, p0: u64, p1: u64) -> Self {
        Self { buf_id, len, p0, p1, read: true, write: true, layout: None }
    }

    /// The same access through a tensor that lies like this from `p0` on.
    #[must_use]
    pub fn of_tensor(self, layout: Layout) -> Self {
        Self { p1: self.p0 + layout.span_bytes(), layout: Some(layout), ..self }
    }

    /// The bytes of elements among `p0..p1`, as runs. Some may overlap.
    pub fn runs(&self) -> Vec<(u64, u64)> {
        let view = self.view();
        let run = |run: std::ops::Range<u64>| {
            ((view.offset + run.start).max(self.p0), (view.offset + run.end).min(self.p1))
        };
        view.layout.runs().map(run).filter(|(p0, p1)| p0 < p1).collect()
    }

    /// Whether it is all of a value, densely.
    pub fn is_whole_value(&self) -> bool {
        self.layout.is_none()
            && NodeId::from_buf_id(self.buf_id).is_some()
            && (self.p0, self.p1) == (0, self.len)
    }

    /// The tensor, or the smallest view of whole elements around the bytes.
    pub fn view(&self) -> TensorView {
        if let Some(layout) = self.layout {
            let Self { buf_id, len, p0, .. } = *self;
            return TensorView { buf_id, buf_len: len, offset: p0, layout };
        }
        let start = (self.p0 & !1).min(self.len - 2);
        let elems = (self.p1 - start).div_ceil(2).max(1);
        let layout = Layout::new(DType::F16, &[elems as usize]).unwrap();
        TensorView { buf_id: self.buf_id, buf_len: self.len, offset: start, layout }
    }
}

/// A dispatch that touches these bytes, one binding each; `None` if its access is unknown.
pub fn dispatch_of(id: u32, kind: CapturedOpKind, touches: &[Touch], known: bool) -> CapturedNode {
    let id = DispatchId(id);
    let views: SmallVec<[TensorView; 4]> = touches.iter().map(Touch::view).collect();
    let binding = |(touch, view): (&Touch, &TensorView)| {
        let role = match (touch.read, touch.write) {
            (true, true) => BindingRole::ReadWrite,
            (false, true) => BindingRole::Write,
            _ => BindingRole::Read,
        };
        let (p0, p1) = (touch.p0 - view.byte_offset(), touch.p1 - view.byte_offset());
        let extent = Extent::Computed(Arc::new(move |_, _| p0..p1));
        BindingContract { extent, ..BindingContract::new("x", role) }
    };
    let bindings: Vec<BindingContract> = touches.iter().zip(&views).map(binding).collect();
    let contract = match known {
        true => KernelContract::new("test", bindings),
        false => KernelContract::unknown("test"),
    };
    CapturedNode::Dispatch(Arc::new(Dispatch::from_fields(DispatchFields {
        id,
        kind,
        kernel: "test".into(),
        params: Params::new(),
        accesses: contract.annotate(id, &views, &[]).unwrap(),
        bindings: views,
        in_place: SmallVec::new(),
        origins: SmallVec::from_slice(&[id]),
        label: Arc::from(""),
    })))
}

/// A copy of a dispatch after `change`, which may leave it at odds with its kernel's contract. For
/// tests of who must notice: the verifier, and the backends.
pub fn tampered(
    dispatch: &Dispatch,
    change: impl FnOnce(&mut DispatchFields, &mut Accesses),
) -> Dispatch {
    let mut dispatch = dispatch.clone();
    let fields = dispatch.fields_mut();
    let mut accesses = std::mem::replace(&mut fields.accesses, Accesses::Unknown);
    change(fields, &mut accesses);
    fields.accesses = accesses;
    dispatch
}

/// A list of dispatches that touch these bytes, with ids from 0.
pub fn graph_of(dispatches: &[&[Touch]]) -> ComputeGraph {
    let kind = CapturedOpKind::Custom;
    let nodes = (0..).zip(dispatches).map(|(id, touches)| dispatch_of(id, kind, touches, true));
    ComputeGraph::from_nodes(nodes.collect()).unwrap()
}

/// The values and marks of `graph` around other nodes, which are not checked: a mutation is meant to
/// be wrong.
pub fn with_nodes(graph: &ComputeGraph, nodes: Vec<CapturedNode>) -> ComputeGraph {
    let mut changed = ComputeGraph::new();
    for (id, value) in (0..).map(NodeId).zip(graph.values()) {
        let elems = value.bytes.div_ceil(2).max(1) as usize;
        changed.declare_value(Layout::new(DType::F16, &[elems]).unwrap());
        if value.input {
            changed.mark_input(id).unwrap();
        }
        if value.kept {
            changed.mark_kept(id).unwrap();
        }
        if value.output {
            changed.mark_output(id).unwrap();
        }
    }
    changed.set_replayed(graph.is_replayed());
    changed.set_nodes(nodes);
    changed
}

/// The smallest list found by leaving dispatches out for which `fails` still holds. What reads bytes
/// goes with those who write them.
pub fn minimise(graph: &ComputeGraph, fails: impl Fn(&ComputeGraph) -> bool) -> ComputeGraph {
    let mut kept = graph.clone();
    let mut chunk = kept.nodes().len();
    while chunk > 0 {
        let mut at = 0;
        while at < kept.nodes().len() {
            let mut nodes = kept.nodes().to_vec();
            nodes.drain(at..(at + chunk).min(nodes.len()));
            let smaller = with_nodes(&kept, nodes);
            if crate::defined::check(&smaller).is_ok() && fails(&smaller) {
                kept = smaller;
            } else {
                at += chunk;
            }
        }
        chunk /= 2;
    }
    kept
}
