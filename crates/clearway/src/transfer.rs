//! Typed transfers between host and tensors.

use bytemuck::Pod;
use clearway_gpu::GpuError;
use clearway_graph::{DType, TensorView};

use crate::error::Result;

/// A host type that is the element type of some tensor.
pub trait Element: Pod {
    /// The tensor's element type.
    const DTYPE: DType;
}

impl Element for f32 {
    const DTYPE: DType = DType::F32;
}

impl Element for u32 {
    const DTYPE: DType = DType::U32;
}

impl Element for half::f16 {
    const DTYPE: DType = DType::F16;
}

impl Element for half::bf16 {
    const DTYPE: DType = DType::BF16;
}

/// Rejects a transfer of the wrong type or number of elements.
pub(crate) fn check<T: Element>(view: &TensorView, elems: usize) -> Result<()> {
    if view.layout.dtype() != T::DTYPE || view.layout.elems() != elems || !view.layout.is_dense() {
        let error = GpuError::TransferMismatch {
            what: "transfer",
            found: format!("{elems} elements of {}", T::DTYPE),
            expected: format!("a dense {}", view.layout),
        };
        return Err(error.into());
    }
    Ok(())
}

/// The float types that are read as f32.
pub(crate) enum Float {
    F32,
    F16,
}

/// Chooses how to read a tensor as f32.
pub(crate) fn read_f32(
    view: &TensorView,
    read: impl FnOnce(Float) -> Result<Vec<f32>>,
) -> Result<Vec<f32>> {
    match view.layout.dtype() {
        DType::F32 => read(Float::F32),
        DType::F16 => read(Float::F16),
        found => {
            let error = GpuError::TransferMismatch {
                what: "readback as f32",
                found: found.to_string(),
                expected: "f32 or f16".into(),
            };
            Err(error.into())
        }
    }
}
