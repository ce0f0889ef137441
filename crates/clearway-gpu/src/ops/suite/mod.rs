//! The op suite: one list of cases for every backend, held against the scalar reference.
//!
//! A case is data: an op, its operands with types, shapes, strides and places in memory, its
//! constants, and what its inputs are filled with from a seed. [`cases`] makes the list,
//! [`run_case`] runs one on any [`Device`], [`run_all`] runs them all. What counts as
//! right is in one table, [`tolerance`].
//!
//! Memory around every operand, the gaps of strided ones included, holds sentinels that are
//! NaN in every float type. After a run every byte that is not an element of a result must be what
//! it was, and an element that was not written, or that took in anything beyond the inputs, is NaN.

mod cases;
mod fill;
mod heads;
mod memory;
mod run;
mod sample;
mod summary;
pub mod tolerance;
mod unfused;

pub use cases::cases;
pub use fill::Fill;
pub use run::{Outcome, run_case, run_case_unfused};
pub use sample::sample;
pub use summary::{Failure, OpCount, Summary, run_all, run_cases};

#[cfg(doc)]
use crate::device::Device;

use std::fmt;

use clearway_graph::{BindingRole, CapturedOpKind, DType, Layout};

use crate::error::Result;

/// Seed of the list that [`run_all`] runs.
pub const DEFAULT_SEED: u64 = 0x00c1_ea12_0a75;

/// One case: an op and everything it is given.
#[derive(Clone, Debug, PartialEq)]
pub struct OpCase {
    /// The op.
    pub kind: CapturedOpKind,
    /// Its operands, inputs before outputs.
    pub operands: Vec<OperandSpec>,
    /// Its constants.
    pub params: Vec<u32>,
    /// Seed of the values of its inputs.
    pub seed: u64,
}

/// One operand of a case: a tensor and where it lies.
#[derive(Clone, Debug, PartialEq)]
pub struct OperandSpec {
    /// Element type.
    pub dtype: DType,
    /// Extents, outermost first.
    pub shape: Vec<usize>,
    /// Strides in elements, outermost first.
    pub strides: Vec<usize>,
    /// Which buffer of the case it lies in.
    pub buffer: usize,
    /// Its first byte there.
    pub offset: u64,
    /// What its elements are before the op runs.
    pub fill: Fill,
}

impl OpCase {
    /// Roles of the operands, from the op's contract; empty if the op takes no such number.
    pub fn roles(&self) -> Vec<BindingRole> {
        let contract = super::contract(self.kind, self.operands.len());
        let bindings = contract.and_then(|contract| contract.bindings.as_ref());
        bindings.into_iter().flatten().map(|binding| binding.role).collect()
    }
}

impl OperandSpec {
    /// The layout a backend sees.
    ///
    /// # Errors
    /// A shape that cannot exist.
    pub fn layout(&self) -> Result<Layout> {
        Ok(Layout::new(self.dtype, &self.shape)?.with_strides(&self.strides)?)
    }

    fn cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    fn rows(&self) -> usize {
        self.shape.iter().rev().skip(1).product()
    }
}

impl fmt::Display for OpCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, params) =
            super::spec(self.kind).map_or(("custom", &[][..]), |spec| (spec.name, spec.params));
        f.write_str(name)?;
        for operand in &self.operands {
            write!(f, " {operand}")?;
        }
        for (param, &word) in params.iter().zip(&self.params) {
            match param.kind {
                super::ParamKind::U32 => write!(f, " {}={word}", param.name)?,
                super::ParamKind::F32 => write!(f, " {}={}", param.name, f32::from_bits(word))?,
            }
        }
        write!(f, " seed={:#x}", self.seed)
    }
}

impl fmt::Display for OperandSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.layout() {
            Ok(layout) => write!(f, "{layout}")?,
            Err(error) => write!(f, "({error})")?,
        }
        write!(f, "@{}+{}", self.buffer, self.offset)
    }
}
