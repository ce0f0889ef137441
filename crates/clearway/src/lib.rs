#![doc = include_str!("front_page.md")]
#![forbid(unsafe_code)]

mod arena;
mod bindings;
mod error;
mod executable;
mod executor;
mod session;
mod transfer;

#[cfg(any(test, feature = "testkit"))]
pub mod testkit;

pub use arena::Arena;
pub use bindings::Bindings;
pub use error::{Error, Result};
pub use executable::{Executable, PassStats};
pub use executor::{GraphExecutor, best_device};
pub use session::{GraphSession, PassResult};
pub use transfer::Element;

pub use clearway_gpu::cpu;
pub use clearway_gpu::ops::NO_INDEX;
#[cfg(feature = "vulkan")]
pub use clearway_gpu::vulkan;
#[cfg(feature = "wgpu")]
pub use clearway_gpu::wgpu;
pub use clearway_gpu::wgsl::listing;
pub use clearway_gpu::{
    Attention, AttentionParams, BlockTable, Buffer, CacheFolderError, Counted, CustomKernel,
    Device, DeviceInfo, DeviceMemory, DispatchWait, Encoder, External, GpuError, HostTimes,
    HostWork, KernelRegistry, KernelStatistics, Ops, Profile, ProfileClock, ProfileMode,
    ProfileSpan, Program, Recorder, RopeMode, RopeParams, RouterGroups, RouterMode, RouterParams,
    Ticket, Upload, WaitProfile, WgslKernel, cache_folder, make_cache_folder, quant, record,
};
pub use clearway_graph::pipeline::{CompileError, CompileOptions, CompileStats};
pub use clearway_graph::{
    BarrierReason, BindingContract, BindingRole, BufferRange, CapturedNode, CapturedOpKind,
    CommandEncoder, ComputeGraph, ConflictTracker, DType, Dispatch, DispatchFields, DispatchId,
    Extent, FusedRequest, GraphError, Hazard, HazardKind, KernelCatalog, KernelContract, Layout,
    Map, MemRangeRole, MemoryPlan, NodeId, OpSpec, Product, TensorView, TrackedBarriers, View,
    fuse, pack, pipeline, place, schedule, tracked_barriers, verify,
};
