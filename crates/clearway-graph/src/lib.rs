//! The pure core of Clearway.
//!
//! A forward pass is a list of dispatches that say which bytes they read and write. Everything
//! here follows from those byte ranges, in stages that are functions from one list to the next:
//!
//! ```text
//! record -> annotate -> fuse -> schedule -> place -> verify -> lower -> replay
//! ```
//!
//! | stage | module | what it does |
//! |---|---|---|
//! | record | [`ComputeGraph`] | keeps the list in execution order |
//! | annotate | [`KernelContract`] | turns a kernel's declared bindings into byte ranges |
//! | fuse | [`fuse`] | replaces runs of dispatches by one, by rules held as data |
//! | schedule | [`schedule`] | orders the list into the fewest concurrent groups |
//! | place | [`place`], [`pack`] | gives every value bytes of the arena |
//! | verify | [`verify`] | proves the final list against the recorded one |
//! | lower | [`CommandEncoder`] | writes the verified list to a backend |
//!
//! No module here knows a GPU, and none is unsafe. The layers above implement three traits:
//! [`View`] (a byte window of a buffer), [`KernelCatalog`] (which fused kernels exist) and
//! [`CommandEncoder`] (where commands go).
#![forbid(unsafe_code)]

mod barriers;
mod contract;
mod defined;
mod dtype;
mod encode;
mod error;
mod form;
mod graph;
mod ids;
mod layout;
mod node;
mod op;
mod range;
mod tracked;
mod tracker;

pub mod fuse;
pub mod pack;
pub mod pipeline;
pub mod place;
pub mod quantise;
pub mod schedule;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;
pub mod verify;

pub use barriers::BarrierWalk;
pub use contract::{
    BindingContract, BindingRole, Extent, ExtentFn, FusedRequest, KernelCatalog, KernelContract,
};
pub use dtype::DType;
pub use encode::{CommandEncoder, DUAL_FIRST_MIN, RecordedCommand, RecordingEncoder};
pub use error::{GraphError, Result};
pub use form::JSON_VERSION;
pub use graph::{ComputeGraph, Value};
pub use ids::{DispatchId, NodeId};
pub use layout::{Layout, MAX_DIMS, TensorView};
pub use node::{
    Access, Accesses, BarrierReason, CapturedNode, Dispatch, DispatchFields, Hazard, HazardKind,
    InPlace, Origin, Params,
};
pub use op::{
    Activation, CapturedOpKind, Epilogue, Gate, Input, Map, MapInputs, OpSpec, Operand, ParamKind,
    ParamSpec, PlainInput, PlainOp, PlainShape, Product, Slot,
};
pub use place::MemoryPlan;
pub use range::{BufferRange, MemRangeRole, View};
pub use tracked::{TrackedBarriers, tracked_barriers};
pub use tracker::ConflictTracker;
