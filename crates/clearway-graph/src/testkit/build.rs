//! Lists built from byte ranges, and made smaller.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::{
    Access, Accesses, BufferRange, CapturedNode, CapturedOpKind, ComputeGraph, DType, Dispatch,
    DispatchFields, DispatchId, Layout, MemRangeRole, NodeId, Origin, Params, TensorView,
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
}

impl Touch {
    /// A read.
    pub const fn read(buf_id: usize, len: u64, p0: u64, p1: u64) -> Self {
        Self { buf_id, len, p0, p1, read: true, write: false }
    }

    /// A write.
    pub const fn write(buf_id: usize, len: u64, p0: u64, p1: u64) -> Self {
        Self { buf_id, len, p0, p1, read: false, write: true }
    }

    /// An update in place.
    pub const fn update(buf_id: usize, len: u64, p0: u64, p1: u64) -> Self {
        Self { buf_id, len, p0, p1, read: true, write: true }
    }

    /// Whether it is all of a value.
    pub fn is_whole_value(&self) -> bool {
        NodeId::from_buf_id(self.buf_id).is_some() && (self.p0, self.p1) == (0, self.len)
    }

    /// The smallest view of whole elements around the bytes.
    pub fn view(&self) -> TensorView {
        let start = (self.p0 & !1).min(self.len - 2);
        let elems = (self.p1 - start).div_ceil(2).max(1);
        let layout = Layout::new(DType::F16, &[elems as usize]).unwrap();
        TensorView { buf_id: self.buf_id, buf_len: self.len, offset: start, layout }
    }
}

/// A dispatch that touches these bytes, one binding each; `None` if its access is unknown.
pub fn dispatch_of(id: u32, kind: CapturedOpKind, touches: &[Touch], known: bool) -> CapturedNode {
    let id = DispatchId(id);
    let mut list: SmallVec<[Access; 4]> = SmallVec::new();
    for (binding, touch) in (0..).zip(touches) {
        let roles = [(touch.read, MemRangeRole::Src), (touch.write, MemRangeRole::Dst)];
        for role in roles.into_iter().filter(|(on, _)| *on).map(|(_, role)| role) {
            let range = BufferRange { buf_id: touch.buf_id, p0: touch.p0, p1: touch.p1, role };
            let origin = Origin { dispatch: id, access: list.len() as u16 };
            list.push(Access { range, binding, origin });
        }
    }
    CapturedNode::Dispatch(Arc::new(Dispatch::from_fields(DispatchFields {
        id,
        kind,
        kernel: "test".into(),
        params: Params::new(),
        bindings: touches.iter().map(Touch::view).collect(),
        accesses: if known { Accesses::Known(list) } else { Accesses::Unknown },
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
        if value.output {
            changed.mark_output(id).unwrap();
        }
    }
    changed.set_replayed(graph.is_replayed());
    changed.set_nodes(nodes);
    changed
}

/// The smallest list found by leaving dispatches out for which `fails` still holds.
pub fn minimise(graph: &ComputeGraph, fails: impl Fn(&ComputeGraph) -> bool) -> ComputeGraph {
    let mut kept = graph.clone();
    let mut chunk = kept.nodes().len();
    while chunk > 0 {
        let mut at = 0;
        while at < kept.nodes().len() {
            let mut nodes = kept.nodes().to_vec();
            nodes.drain(at..(at + chunk).min(nodes.len()));
            let smaller = with_nodes(&kept, nodes);
            if fails(&smaller) {
                kept = smaller;
            } else {
                at += chunk;
            }
        }
        chunk /= 2;
    }
    kept
}
