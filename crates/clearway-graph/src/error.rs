//! What can be wrong with a graph before anything runs. Every variant carries the facts.

use crate::{DType, DispatchId, NodeId};

/// An error of the pure core: malformed input to a stage.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// A byte range whose end lies before its start.
    #[error("buffer {buf_id}: byte range {p0}..{p1} ends before it starts")]
    InvertedRange {
        /// Buffer the range belongs to.
        buf_id: usize,
        /// First byte.
        p0: u64,
        /// One past the last byte.
        p1: u64,
    },
    /// A view that reaches outside the buffer it windows.
    #[error(
        "view of buffer {buf_id} covers bytes {offset}..{offset}+{len}, but the buffer holds only {buf_len} bytes"
    )]
    ViewOutOfBounds {
        /// Buffer the view belongs to.
        buf_id: usize,
        /// First byte of the view.
        offset: u64,
        /// Bytes in the view.
        len: u64,
        /// Bytes in the buffer.
        buf_len: u64,
    },
    /// A contract declares a binding that the dispatch does not have.
    #[error(
        "kernel `{kernel}`: its contract names binding {index} (`{binding}`), but the dispatch has only {bound} bindings"
    )]
    MissingBinding {
        /// Kernel name.
        kernel: String,
        /// Name of the binding in the contract.
        binding: String,
        /// Index of the binding.
        index: usize,
        /// Bindings the dispatch has.
        bound: usize,
    },
    /// A dispatch has bindings its contract does not declare; their access would go unseen.
    #[error("kernel `{kernel}`: {bound} bindings given, but its contract declares only {declared}")]
    UndeclaredBinding {
        /// Kernel name.
        kernel: String,
        /// Bindings the dispatch has.
        bound: usize,
        /// Bindings the contract declares.
        declared: usize,
    },
    /// A contract's extent reaches outside the view bound to it.
    #[error(
        "kernel `{kernel}`, binding `{binding}`: extent {p0}..{p1} lies outside the {len}-byte view"
    )]
    ExtentOutOfView {
        /// Kernel name.
        kernel: String,
        /// Name of the binding in the contract.
        binding: String,
        /// First byte of the extent, relative to the view.
        p0: u64,
        /// One past the last byte of the extent, relative to the view.
        p1: u64,
        /// Bytes in the view.
        len: u64,
    },
    /// An output is bound through a layout that may put two elements into the same bytes.
    #[error(
        "kernel `{kernel}`, binding `{binding}`: elements of {layout} may share bytes, so it cannot be written; write a layout without stride 0 and without overlap"
    )]
    SharedElements {
        /// Kernel name.
        kernel: String,
        /// Name of the binding in the contract.
        binding: String,
        /// Its layout.
        layout: String,
    },
    /// A dispatch reads bytes of a value that nothing has written.
    #[error(
        "dispatch {dispatch} reads bytes {p0}..{p1} of value {value}, which nothing has written; write them first, or declare the value as an input or as kept from the step before"
    )]
    UndefinedRead {
        /// Dispatch that reads them.
        dispatch: DispatchId,
        /// The value.
        value: NodeId,
        /// First byte that nothing has written.
        p0: u64,
        /// One past the last byte of that run.
        p1: u64,
    },
    /// The host reads an output of which nothing has written all bytes.
    #[error(
        "value {value} is an output, but nothing has written its bytes {p0}..{p1}; write all of it, or do not read it at the end"
    )]
    UndefinedOutput {
        /// The value.
        value: NodeId,
        /// First byte that nothing has written.
        p0: u64,
        /// One past the last byte of that run.
        p1: u64,
    },
    /// A list refers to an arena value that was never declared.
    #[error("dispatch {dispatch} refers to value {value}, but the graph has only {values} values")]
    UnknownValue {
        /// Dispatch that holds the reference.
        dispatch: DispatchId,
        /// The value named.
        value: NodeId,
        /// Values the graph has.
        values: usize,
    },
    /// A list refers to a dispatch that is not in it.
    #[error("node {position} of the list refers to dispatch {dispatch}, which is not in the list")]
    UnknownDispatch {
        /// Position of the referring node.
        position: usize,
        /// The dispatch named.
        dispatch: DispatchId,
    },
    /// Two dispatches of one list have the same id.
    #[error("dispatch id {dispatch} appears twice in the list")]
    DuplicateDispatch {
        /// The repeated id.
        dispatch: DispatchId,
    },
    /// A range of an arena value reaches outside the value.
    #[error("dispatch {dispatch}: range {p0}..{p1} lies outside value {value} of {bytes} bytes")]
    RangeOutsideValue {
        /// Dispatch that holds the range.
        dispatch: DispatchId,
        /// The value.
        value: NodeId,
        /// First byte of the range.
        p0: u64,
        /// One past the last byte of the range.
        p1: u64,
        /// Bytes in the value.
        bytes: u64,
    },
    /// A tensor shape that cannot exist.
    #[error("layout {dtype}{shape:?}: {reason}")]
    BadLayout {
        /// Element type.
        dtype: DType,
        /// Shape, outermost first.
        shape: Vec<usize>,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A placement leaves a value without an address.
    #[error("value {value} is used by dispatch {dispatch} but has no place in the memory plan")]
    Unplaced {
        /// The value.
        value: NodeId,
        /// A dispatch that uses it.
        dispatch: DispatchId,
    },
    /// A placement puts a value outside its slab.
    #[error(
        "value {value}: bytes {offset}..{offset}+{bytes} lie outside slab buffer {buf_id} of {slab_bytes} bytes"
    )]
    PlacedOutOfSlab {
        /// The value.
        value: NodeId,
        /// Offset in the slab.
        offset: u64,
        /// Bytes of the value.
        bytes: u64,
        /// Buffer of the slab.
        buf_id: usize,
        /// Bytes of the slab.
        slab_bytes: u64,
    },
    /// No schedule that was found fits the budget.
    #[error(
        "a budget of {budget} bytes cannot be met; the smallest arena found has {smallest} bytes"
    )]
    BudgetTooSmall {
        /// Bytes asked for.
        budget: u64,
        /// Bytes of the smallest arena found.
        smallest: u64,
    },
    /// A value is larger than the largest buffer of the device.
    #[error(
        "value {value} has {bytes} bytes, but the device's largest buffer has {largest}; use fewer tokens"
    )]
    ValueAboveSlab {
        /// The value, or the first of those that lie at one place.
        value: NodeId,
        /// Bytes it needs.
        bytes: u64,
        /// Bytes of the largest slab.
        largest: u64,
    },
    /// A shadow is read before it is written, or after its value has changed.
    #[error(
        "dispatch {dispatch} reads the f16 shadow of value {value}, which is stale there; ask for the shadow after the last write"
    )]
    StaleShadow {
        /// Dispatch that reads it.
        dispatch: DispatchId,
        /// The value whose shadow it is.
        value: NodeId,
    },
    /// Only whole f32 values have an f16 shadow.
    #[error(
        "{layout} at byte {offset} of buffer {buf_id} has no f16 shadow: a whole f32 value has"
    )]
    NoShadow {
        /// Buffer of the view.
        buf_id: usize,
        /// First byte of the view.
        offset: u64,
        /// Its layout.
        layout: String,
    },
    /// The values together need more memory than can be addressed.
    #[error("the values cannot be placed: {reason}")]
    TooLarge {
        /// What the placer found.
        reason: String,
    },
    /// The catalog could not provide a kernel it promised.
    #[error("kernel `{kernel}`: {reason}")]
    Kernel {
        /// Kernel name.
        kernel: String,
        /// What the layer above reported.
        reason: String,
    },
}

/// Shorthand for results of this crate.
pub type Result<T, E = GraphError> = std::result::Result<T, E>;
