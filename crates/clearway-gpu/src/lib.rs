//! Devices, buffers, ops and backends of Clearway.
//!
//! Everything above the pure core that knows memory and machines. One op list ([`ops`]) serves all
//! backends; a [`Recorder`] turns op calls into a graph without any device; a [`Device`] lowers a
//! proven list and runs it.

mod cache_folder;
mod counters;
mod device;
mod error;
// One backend alone does not use all that both share.
#[cfg(any(feature = "vulkan", feature = "wgpu"))]
#[cfg_attr(not(all(feature = "vulkan", feature = "wgpu")), allow(dead_code))]
mod lowering;
mod profile;
mod random;
mod record;
mod registry;

pub mod cpu;
pub mod ops;
pub mod quant;
#[cfg(feature = "vulkan")]
pub mod vulkan;
#[cfg(feature = "wgpu")]
pub mod wgpu;
pub mod wgsl;

pub use cache_folder::{CacheFolderError, cache_folder, make_cache_folder};
pub use device::{
    Buffer, Device, DeviceInfo, DeviceMemory, Encoder, HostTimes, HostWork, KernelStatistics,
    Program, Ticket, Upload,
};
pub use error::{GpuError, Result};
pub use profile::{
    Counted, DispatchWait, Profile, ProfileClock, ProfileMode, ProfileSpan, WaitProfile,
};
pub use record::{
    Attention, AttentionParams, BlockTable, External, Ops, Recorder, RopeMode, RopeParams,
    RouterGroups, RouterMode, RouterParams, record,
};
pub use registry::{CustomKernel, GroupsFn, KernelRegistry, WgslKernel};
