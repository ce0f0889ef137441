//! What can go wrong between an op call and its result.

use clearway_gpu::GpuError;
use clearway_graph::pipeline::CompileError;
use clearway_graph::{GraphError, NodeId};

/// An error of the runtime.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An op call, a transfer or the device failed.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// The recorded list could not be compiled.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// A value has no memory in the arena: it was not marked as input or output, or is not a value of
    /// this graph.
    #[error(
        "value {0} has no memory of its own; mark it with `output` or `input` before finishing"
    )]
    NotInArena(NodeId),
    /// A tensor was asked for that this pass does not hold.
    #[error("buffer {buf_id} is not part of this pass")]
    ForeignTensor {
        /// Identity of the buffer.
        buf_id: usize,
    },
    /// The call makes sense only for a recorded session.
    #[error("`{0}` needs a recorded session; open it with begin_recorded")]
    NeedsRecorded(&'static str),
}

impl From<GraphError> for Error {
    fn from(error: GraphError) -> Self {
        Self::Gpu(GpuError::Graph(error))
    }
}

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
