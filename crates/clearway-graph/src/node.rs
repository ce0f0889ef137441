//! A recorded dispatch or barrier: the element of the list every stage works on.

use std::borrow::Cow;
use std::ops::Deref;
use std::sync::Arc;

use serde::Serialize;
use smallvec::SmallVec;

use crate::contract::KernelContract;
use crate::error::Result;
use crate::ids::{DispatchId, NodeId, buf_name, serialize_buf};
use crate::layout::TensorView;
use crate::op::CapturedOpKind;
use crate::range::{BufferRange, MemRangeRole};

/// Constants of a dispatch, 32 bits each: what a GPU would take as push constants. Floats are
/// stored by their bits; the op table names and types them.
pub type Params = SmallVec<[u32; 6]>;

/// Where an access of the final list comes from in the recorded list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Origin {
    /// The recorded dispatch.
    pub dispatch: DispatchId,
    /// Index into that dispatch's accesses.
    pub access: u16,
}

/// One annotated access of a dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Access {
    /// The bytes and the role.
    pub range: BufferRange,
    /// Index of the binding it goes through.
    pub binding: u16,
    /// The recorded access it carries out; the verifier follows values through it.
    pub origin: Origin,
    /// A read on behalf of a write with gaps: the bytes between the elements that the same binding
    /// writes keep what they held. The kernel looks at none of them.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub keeps: bool,
}

/// An output binding that may lie exactly over an input binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct InPlace {
    /// The binding that is written.
    pub output: u16,
    /// The binding it may lie over.
    pub input: u16,
}

/// What is known about the memory a dispatch touches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Accesses {
    /// Every access, from the kernel's contract. May hold writes only.
    Known(SmallVec<[Access; 4]>),
    /// Nothing is known: conflicts with everything, and nothing moves across it.
    Unknown,
}

/// A recorded dispatch: [fields](DispatchFields) that anyone may read and that agree with one another.
///
/// The accesses of a dispatch follow from its kernel's contract, its bindings and its constants, and
/// backends rely on that. So a dispatch comes from [`annotated`](Self::annotated) or from a stage,
/// and its fields cannot be changed from outside this crate.
///
/// ```compile_fail
/// # fn doubled(dispatch: &clearway_graph::Dispatch) {
/// let mut dispatch = dispatch.clone();
/// dispatch.params[0] = 2; // error: it would no longer agree with its accesses
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Dispatch {
    fields: DispatchFields,
}

/// The fields of a [`Dispatch`], to be read.
#[derive(Clone, Debug, PartialEq)]
pub struct DispatchFields {
    /// Stable identity.
    pub id: DispatchId,
    /// What it computes.
    pub kind: CapturedOpKind,
    /// The kernel that computes it.
    pub kernel: Cow<'static, str>,
    /// Constants.
    pub params: Params,
    /// The tensors it binds, in the order of the kernel's contract.
    pub bindings: SmallVec<[TensorView; 4]>,
    /// The memory it touches.
    pub(crate) accesses: Accesses,
    /// Outputs that may share bytes with an input, as the kernel's contract says.
    pub in_place: SmallVec<[InPlace; 4]>,
    /// Recorded dispatches it stands for: itself, or the members of a fusion, each behind those
    /// whose results it reads. Several dispatches stand for a member that was repeated.
    pub origins: SmallVec<[DispatchId; 4]>,
    /// Name for people, such as `blk.3.attn_norm`; may be empty.
    pub label: Arc<str>,
}

impl Deref for Dispatch {
    type Target = DispatchFields;

    #[inline]
    fn deref(&self) -> &DispatchFields {
        &self.fields
    }
}

/// Unit tests alter dispatches to see that the verifier notices.
#[cfg(test)]
impl std::ops::DerefMut for Dispatch {
    fn deref_mut(&mut self) -> &mut DispatchFields {
        &mut self.fields
    }
}

impl AsRef<Self> for Dispatch {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl Dispatch {
    /// A dispatch of a kernel with this contract, as it is recorded: the contract says which bytes of
    /// the views it touches.
    ///
    /// # Errors
    /// As [`KernelContract::annotate`].
    pub fn annotated(
        id: DispatchId,
        kind: CapturedOpKind,
        contract: &KernelContract,
        views: &[TensorView],
        params: &[u32],
        label: &str,
    ) -> Result<Self> {
        Ok(Self::from_fields(DispatchFields {
            id,
            kind,
            kernel: contract.kernel.clone(),
            params: Params::from_slice(params),
            bindings: SmallVec::from_slice(views),
            accesses: contract.annotate(id, views, params)?,
            in_place: contract.in_place(),
            origins: SmallVec::from_slice(&[id]),
            // Of no bytes, all share one.
            label: if label.is_empty() { Arc::default() } else { Arc::from(label) },
        }))
    }

    /// A dispatch of a stage, which answers for it that the fields agree.
    pub(crate) const fn from_fields(fields: DispatchFields) -> Self {
        Self { fields }
    }

    /// The fields, for a stage that changes them together.
    pub(crate) const fn fields_mut(&mut self) -> &mut DispatchFields {
        &mut self.fields
    }

    /// The same dispatch in terms of the recorded list, before values had addresses: each access has
    /// the range of the recorded access that it carries out, and a dispatch of unknown access the
    /// bindings it was recorded with. Hazards and lives of values can be read from the result; what it
    /// binds is not moved along, so backends refuse to run it.
    ///
    /// # Errors
    /// The origin that `recorded` does not know.
    pub fn in_recorded_terms<'a>(
        &self,
        recorded: impl Fn(DispatchId) -> Option<&'a Self>,
    ) -> std::result::Result<Self, DispatchId> {
        let mut logical = self.clone();
        let fields = logical.fields_mut();
        match &mut fields.accesses {
            Accesses::Known(list) => {
                for access in list {
                    let Origin { dispatch, access: index } = access.origin;
                    let source = recorded(dispatch).ok_or(dispatch)?.accesses();
                    access.range = source.get(usize::from(index)).ok_or(dispatch)?.range;
                }
            }
            // Nothing is known but what it binds, and an unknown dispatch is never fused.
            Accesses::Unknown => {
                fields.bindings = recorded(self.id).ok_or(self.id)?.bindings.clone();
            }
        }
        Ok(logical)
    }

    /// The annotated accesses; empty when unknown (test [`is_annotated`](Self::is_annotated)).
    pub fn accesses(&self) -> &[Access] {
        match &self.accesses {
            Accesses::Known(list) => list,
            Accesses::Unknown => &[],
        }
    }

    /// Whether the memory it touches is known. A dispatch that only writes is annotated.
    pub const fn is_annotated(&self) -> bool {
        matches!(self.fields.accesses, Accesses::Known(_))
    }

    /// The ranges of all accesses.
    pub fn ranges(&self) -> impl Iterator<Item = &BufferRange> {
        self.accesses().iter().map(|access| &access.range)
    }

    /// The ranges it reads.
    pub fn reads(&self) -> impl Iterator<Item = &BufferRange> {
        self.ranges().filter(|r| r.role == MemRangeRole::Src)
    }

    /// The ranges it writes.
    pub fn writes(&self) -> impl Iterator<Item = &BufferRange> {
        self.ranges().filter(|r| r.role == MemRangeRole::Dst)
    }

    /// Arena values among its bindings, each once per binding.
    pub fn values(&self) -> impl Iterator<Item = NodeId> {
        self.bindings.iter().filter_map(TensorView::value)
    }

    /// The same dispatch as if it had been recorded just so: it stands for itself. What a backend is
    /// given is a list in its own right.
    pub fn as_recorded(&self) -> Self {
        let mut dispatch = self.clone();
        let fields = dispatch.fields_mut();
        fields.origins = SmallVec::from_slice(&[self.id]);
        if let Accesses::Known(list) = &mut fields.accesses {
            for (index, access) in list.iter_mut().enumerate() {
                access.origin = Origin { dispatch: self.id, access: index as u16 };
            }
        }
        dispatch
    }

    /// The two parts and the result of a dispatch that joins two dense rows into one, so that each
    /// part is one run of the result's bytes.
    pub(crate) fn joined_row(&self) -> Option<[&TensorView; 3]> {
        let [a, b, row] = self.bindings.as_slice() else {
            return None;
        };
        let one_row = |view: &TensorView| view.layout.rows() == 1 && view.layout.is_dense();
        let joins = self.kind == CapturedOpKind::Concat && [a, b, row].into_iter().all(one_row);
        let same = |view: &TensorView| view.layout.dtype() == row.layout.dtype();
        let fits = a.layout.span_bytes() + b.layout.span_bytes() == row.layout.span_bytes();
        (joins && fits && same(a) && same(b)).then_some([a, b, row])
    }

    /// Whether it has nothing to do: it joins two rows that lie where they belong already.
    pub fn is_moot(&self) -> bool {
        self.joined_row().is_some_and(|[a, b, row]| {
            let at = |view: &TensorView, offset| (view.buf_id, view.offset) == (row.buf_id, offset);
            at(a, row.offset) && at(b, row.offset + a.layout.span_bytes())
        })
    }

    /// The input that an output binding lies exactly over, if this dispatch was placed so: the same
    /// bytes seen the same way, as the kernel's contract allows. A backend reads and writes them
    /// through one binding.
    pub fn placed_over(&self, output: usize) -> Option<usize> {
        let written = self.bindings.get(output)?;
        let pairs = self.in_place.iter().filter(|pair| usize::from(pair.output) == output);
        let mut inputs = pairs.map(|pair| usize::from(pair.input));
        inputs.find(|&input| input != output && self.bindings.get(input) == Some(written))
    }

    /// Whether passes may move it or move others across it.
    pub const fn is_movable(&self) -> bool {
        self.is_annotated() && self.fields.kind.is_reorderable()
    }
}

/// The order two accesses must keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HazardKind {
    /// The later dispatch reads what the earlier one writes.
    ReadAfterWrite,
    /// The later dispatch writes what the earlier one reads.
    WriteAfterRead,
    /// Both write.
    WriteAfterWrite,
}

impl HazardKind {
    /// The kind for an earlier and a later role; `None` for two reads.
    pub const fn of(earlier: MemRangeRole, later: MemRangeRole) -> Option<Self> {
        match (earlier, later) {
            (MemRangeRole::Dst, MemRangeRole::Src) => Some(Self::ReadAfterWrite),
            (MemRangeRole::Src, MemRangeRole::Dst) => Some(Self::WriteAfterRead),
            (MemRangeRole::Dst, MemRangeRole::Dst) => Some(Self::WriteAfterWrite),
            (MemRangeRole::Src, MemRangeRole::Src) => None,
        }
    }

    /// Three-letter name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ReadAfterWrite => "RAW",
            Self::WriteAfterRead => "WAR",
            Self::WriteAfterWrite => "WAW",
        }
    }
}

/// Two accesses whose order matters, and the bytes they share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Hazard {
    /// Read after write, write after read, write after write.
    pub kind: HazardKind,
    /// The dispatch that must come first.
    pub earlier: DispatchId,
    /// The dispatch that must come after.
    pub later: DispatchId,
    /// Buffer of the shared bytes.
    #[serde(rename = "buf", serialize_with = "serialize_buf")]
    pub buf_id: usize,
    /// First shared byte.
    pub p0: u64,
    /// One past the last shared byte.
    pub p1: u64,
}

impl std::fmt::Display for Hazard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { kind, earlier, later, p0, p1, .. } = self;
        let (kind, buf) = (kind.name(), buf_name(self.buf_id));
        write!(f, "{kind} {earlier} -> {later} on {buf} {p0}..{p1}")
    }
}

/// Why a barrier stands where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BarrierReason {
    /// The next dispatch conflicts with the group before it.
    Hazard(Hazard),
    /// The memory of this dispatch is unknown, so a barrier stands on both sides of it.
    Unannotated(DispatchId),
    /// The end of the list conflicts with its own beginning when it is replayed.
    Replay(Hazard),
    /// Lets what follows lie over what died before: the price of a byte budget.
    Memory,
    /// Asked for by the caller: after every dispatch, or between hand-built parts.
    Requested,
}

impl std::fmt::Display for BarrierReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Hazard(hazard) => write!(f, "{hazard}"),
            Self::Unannotated(id) => write!(f, "{id} touches unknown memory"),
            Self::Replay(hazard) => write!(f, "replay: {hazard}"),
            Self::Memory => f.write_str("memory: what follows lies over what died before"),
            Self::Requested => f.write_str("requested"),
        }
    }
}

/// One element of a list in execution order.
#[derive(Clone, Debug, PartialEq)]
pub enum CapturedNode {
    /// A dispatch. Shared, since lists before and after a stage hold mostly the same dispatches.
    Dispatch(Arc<Dispatch>),
    /// A barrier: everything before it finishes before anything after it starts.
    Barrier(BarrierReason),
}

impl CapturedNode {
    /// The dispatch, unless this is a barrier.
    pub fn dispatch(&self) -> Option<&Arc<Dispatch>> {
        match self {
            Self::Dispatch(dispatch) => Some(dispatch),
            Self::Barrier(_) => None,
        }
    }

    /// Why the barrier stands, unless this is a dispatch.
    pub fn barrier(&self) -> Option<BarrierReason> {
        match self {
            Self::Dispatch(_) => None,
            Self::Barrier(reason) => Some(*reason),
        }
    }
}
