//! A crate of somebody else, without any unsafe code. `tests/safe_code` tries what must be refused when it
//! runs; what must not compile is tried here.
//!
//! The accesses of a dispatch cannot be emptied:
//!
//! ```compile_fail,E0616
//! fn emptied(dispatch: clearway::Dispatch) -> impl Sized {
//!     dispatch.accesses
//! }
//! ```
//!
//! Its other fields are read and not written, since its accesses follow from them:
//!
//! ```
//! fn constants(dispatch: &clearway::Dispatch) -> &[u32] {
//!     &dispatch.params
//! }
//! ```
//!
//! ```compile_fail,E0596
//! fn doubled(mut dispatch: clearway::Dispatch) -> clearway::Dispatch {
//!     dispatch.params[0] *= 2;
//!     dispatch
//! }
//! ```
//!
//! ```compile_fail,E0596
//! fn elsewhere(mut dispatch: clearway::Dispatch) -> clearway::Dispatch {
//!     dispatch.bindings[0].offset = 0;
//!     dispatch
//! }
//! ```
//!
//! ```compile_fail,E0596
//! fn over_an_input(mut dispatch: clearway::Dispatch) -> clearway::Dispatch {
//!     dispatch.in_place.clear();
//!     dispatch
//! }
//! ```
//!
//! No dispatch is made from fields:
//!
//! ```compile_fail,E0451
//! fn made(fields: clearway::DispatchFields) -> clearway::Dispatch {
//!     clearway::Dispatch { fields }
//! }
//! ```
//!
//! What a kernel is lent it cannot keep:
//!
//! ```compile_fail
//! use clearway::cpu::{CpuKernel, Grid};
//! let kept = std::sync::Arc::new(std::sync::Mutex::new(None::<&'static [f32]>));
//! let keeps = CpuKernel::new(
//!     |_, _| Grid::rows(1, 1),
//!     move |piece| *kept.lock().unwrap() = Some(piece.src::<f32>(0)),
//! );
//! ```
//!
//! Two exclusive slices at a time are not to be had:
//!
//! ```compile_fail,E0499
//! use clearway::cpu::{CpuKernel, Grid};
//! let twice = CpuKernel::new(
//!     |_, _| Grid::rows(1, 1),
//!     |piece| {
//!         let first = piece.dst_row::<f32>(0, 0);
//!         let second = piece.dst_row::<f32>(0, 0);
//!         first[0] = second[0];
//!     },
//! );
//! ```
#![forbid(unsafe_code)]
