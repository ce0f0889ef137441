//! What the runtime decided and what it cost, to look at.
//!
//! [`inspect`] takes any recorded [`ComputeGraph`](clearway::ComputeGraph) through all stages, with
//! and without each of them, and gives a [`Report`]: plain data that is written as a page
//! ([`Report::to_html`]), as a trace for the Perfetto UI ([`Report::to_trace`]), as JSON
//! ([`Report::to_json`]) and as text ([`Report::to_text`]). A list that is compiled already is
//! reported by [`Report::of`]. [`measure`] adds the times of a device, [`measure_waits`] those of dispatches that wait for
//! counters, [`kernels`] the WGSL of each dispatch.
//! [`svg`] draws the arena of a list over its groups, [`peers`] has what other planners would make of it.
//!
//! ```
//! use clearway::{DType, KernelRegistry, Ops, Recorder, cpu::CpuDevice};
//! use clearway_inspect::{InspectOptions, inspect};
//!
//! let mut pass = Recorder::default();
//! let x = pass.external("x", DType::F32, &[2, 64])?;
//! let (a, b) = (pass.silu(x)?, pass.scale(x, 2.0)?);
//! let y = pass.add(a, b)?;
//! pass.mark_output(y)?;
//! let (graph, _) = pass.into_parts();
//!
//! let device: &dyn clearway::Device = &CpuDevice::with_threads(1);
//! let report = inspect(&graph, &mut KernelRegistry::new(), device, &InspectOptions::default())?;
//! assert_eq!((report.summary.dispatches, report.summary.groups), (3, 2));
//! let page = report.to_html()?; // open it in any browser
//! assert!(page.starts_with("<!doctype html>"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod collect;
mod compare;
mod cost;
mod error;
mod html;
mod kernels;
mod lanes;
mod logical;
mod measure;
mod memory;
pub mod peers;
mod picture;
mod report;
mod text;
mod trace;
mod tracked;
mod waits;

pub use compare::{FIRST_SLAB, InspectOptions, inspect};
pub use error::{InspectError, Result};
pub use kernels::{DispatchKernels, INDEX, KernelText, KernelUse, Kernels, kernels};
pub use measure::{Measurement, measure};
pub use picture::svg;
pub use report::{
    BarrierRow, DispatchRow, Front, FusionRow, GroupRow, LostTime, Measured, MoveRow, Placed,
    RecordedRow, RefusedFusionRow, Report, Summary, VERSION, ValueRow, ViewRow,
};
pub use text::{bytes_text, ns_text, stats_lines};
pub use tracked::{TrackedRow, tracked_price};
pub use waits::{WaitMeasurement, WaitRow, Waits, measure_waits};
