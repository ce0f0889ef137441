//! What can go wrong while a report is made.

use clearway::{CompileError, DispatchId, GpuError, GraphError};

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InspectError {
    /// A list was not compiled.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// A stage refused its input.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The device could not be measured.
    #[error(transparent)]
    Device(#[from] GpuError),
    /// The library could not run what was to be measured.
    #[error(transparent)]
    Run(#[from] clearway::Error),
    /// The compiled list was not made from this recorded one.
    #[error(
        "dispatch {dispatch} of the compiled list stands for {origin}, which the recorded list does not have; \
         give the list that was compiled"
    )]
    ForeignList {
        /// Dispatch of the compiled list.
        dispatch: DispatchId,
        /// What it says it stands for.
        origin: DispatchId,
    },
    /// The times are those of another list.
    #[error(
        "{found} times of {what} given, the list has {expected}; measure the list that is reported, \
         compiled with the same options"
    )]
    ForeignTimes {
        /// `groups` or `dispatches`.
        what: &'static str,
        /// Times given.
        found: usize,
        /// Times needed.
        expected: usize,
    },
    /// The report could not be written as JSON.
    #[error("the report could not be written as JSON: {0}")]
    Json(#[from] serde_json::Error),
}

/// Shorthand for results of this crate.
pub type Result<T, E = InspectError> = std::result::Result<T, E>;
