//! What a kernel promises about the memory it touches, and the annotate stage made from it.
//!
//! Ranges never come from a caller: they follow from the contract, the bound views and the
//! constants. Access that depends on data known only on the device is declared at its largest.
//!
//! A range has no gaps, but the layout of a view may have. A read may be declared larger than it is.
//! A write may not: whoever wrote the bytes in between would seem to be overwritten. So a write through
//! a layout with gaps is declared as read and written ([`Access::keeps`]), and every stage keeps it
//! behind those who wrote the bytes that it leaves as they are.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::error::{GraphError, Result};
use crate::ids::DispatchId;
use crate::layout::TensorView;
use crate::node::{Access, Accesses, InPlace, Origin};
use crate::op::CapturedOpKind;
use crate::range::{BufferRange, MemRangeRole, View};

/// How a kernel uses one binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BindingRole {
    /// Only read.
    Read,
    /// Every element of the extent is written, none is read. Bytes between elements are left as they
    /// are.
    Write,
    /// Read and written, or written in part: bytes outside the written part keep their value.
    ReadWrite,
}

/// An extent computed from all bound views and the constants; relative to the view's first byte.
pub type ExtentFn = Arc<dyn Fn(&[TensorView], &[u32]) -> Range<u64> + Send + Sync>;

/// Which bytes of a bound view a kernel touches.
#[derive(Clone)]
pub enum Extent {
    /// All of them, from the first to the last element of the layout.
    View,
    /// A part, as a function of the bound views and the constants.
    Computed(ExtentFn),
}

impl std::fmt::Debug for Extent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::View => "View",
            Self::Computed(_) => "Computed",
        })
    }
}

/// One binding of a contract.
#[derive(Clone, Debug)]
pub struct BindingContract {
    /// Name, for errors and reports.
    pub name: Cow<'static, str>,
    /// Read, written, or both.
    pub role: BindingRole,
    /// The bytes touched.
    pub extent: Extent,
    /// Operands this output may lie exactly over: the kernel reads each element of them before it
    /// writes that element, and no other.
    pub over: Cow<'static, [u16]>,
}

impl BindingContract {
    /// A binding of which the whole view is touched.
    pub fn new(name: impl Into<Cow<'static, str>>, role: BindingRole) -> Self {
        Self { name: name.into(), role, extent: Extent::View, over: Cow::Borrowed(&[]) }
    }

    /// Says that this output may lie exactly over any one of these operands.
    #[must_use]
    pub fn over(mut self, operands: impl Into<Cow<'static, [u16]>>) -> Self {
        self.over = operands.into();
        self
    }
}

/// The declared memory behaviour of a kernel.
#[derive(Clone, Debug)]
pub struct KernelContract {
    /// Kernel name.
    pub kernel: Cow<'static, str>,
    /// Bindings in order; `None` if nothing is known about the kernel.
    pub bindings: Option<Vec<BindingContract>>,
}

impl KernelContract {
    /// A contract with all bindings declared.
    pub fn new(
        kernel: impl Into<Cow<'static, str>>,
        bindings: impl Into<Vec<BindingContract>>,
    ) -> Self {
        Self { kernel: kernel.into(), bindings: Some(bindings.into()) }
    }

    /// A kernel about which nothing is known: its dispatches conflict with everything.
    pub fn unknown(kernel: impl Into<Cow<'static, str>>) -> Self {
        Self { kernel: kernel.into(), bindings: None }
    }

    /// The annotate stage: the accesses of dispatch `id` with these views and constants.
    ///
    /// # Errors
    /// A missing or undeclared binding, a view outside its buffer, an extent outside its view, and an
    /// output whose elements may share bytes.
    pub fn annotate(
        &self,
        id: DispatchId,
        views: &[TensorView],
        params: &[u32],
    ) -> Result<Accesses> {
        for view in views {
            BufferRange::from_buffer(view, MemRangeRole::Src)?;
        }
        let Some(declared) = &self.bindings else {
            return Ok(Accesses::Unknown);
        };
        if views.len() > declared.len() {
            return Err(GraphError::UndeclaredBinding {
                kernel: self.kernel.to_string(),
                bound: views.len(),
                declared: declared.len(),
            });
        }
        let updates = declared.iter().filter(|b| b.role == BindingRole::ReadWrite).count();
        let mut list = SmallVec::with_capacity(declared.len() + updates);
        for (index, binding) in declared.iter().enumerate() {
            let view = views.get(index).ok_or_else(|| GraphError::MissingBinding {
                kernel: self.kernel.to_string(),
                binding: binding.name.to_string(),
                index,
                bound: views.len(),
            })?;
            let (p0, p1) = self.resolve(binding, view, views, params)?;
            let layout = &view.layout;
            if binding.role != BindingRole::Read && !layout.is_dense() && !layout.is_injective() {
                return Err(GraphError::SharedElements {
                    kernel: self.kernel.to_string(),
                    binding: binding.name.to_string(),
                    layout: layout.to_string(),
                });
            }
            let mut push = |role, keeps| {
                let origin = Origin { dispatch: id, access: list.len() as u16 };
                let range = BufferRange { buf_id: view.buf_id, p0, p1, role };
                list.push(Access { range, binding: index as u16, origin, keeps });
            };
            match binding.role {
                BindingRole::Read => push(MemRangeRole::Src, false),
                BindingRole::Write => {
                    if layout.has_gaps() {
                        push(MemRangeRole::Src, true);
                    }
                    push(MemRangeRole::Dst, false);
                }
                BindingRole::ReadWrite => {
                    push(MemRangeRole::Src, false);
                    push(MemRangeRole::Dst, false);
                }
            }
        }
        Ok(Accesses::Known(list))
    }

    /// Which outputs may lie over which inputs.
    pub fn in_place(&self) -> SmallVec<[InPlace; 4]> {
        let declared = self.bindings.iter().flatten().enumerate();
        declared
            .flat_map(|(output, binding)| {
                let over = binding.over.iter();
                over.map(move |&input| InPlace { output: output as u16, input })
            })
            .collect()
    }

    fn resolve(
        &self,
        binding: &BindingContract,
        view: &TensorView,
        views: &[TensorView],
        params: &[u32],
    ) -> Result<(u64, u64)> {
        let len = view.byte_len();
        let extent = match &binding.extent {
            Extent::View => 0..len,
            Extent::Computed(extent) => extent(views, params),
        };
        if extent.end < extent.start || extent.end > len {
            return Err(GraphError::ExtentOutOfView {
                kernel: self.kernel.to_string(),
                binding: binding.name.to_string(),
                p0: extent.start,
                p1: extent.end,
                len,
            });
        }
        Ok((view.offset + extent.start, view.offset + extent.end))
    }
}

/// A kernel some fusion rule asks for.
#[derive(Debug)]
pub struct FusedRequest<'a> {
    /// What it computes.
    pub kind: CapturedOpKind,
    /// The views it would bind.
    pub bindings: &'a [TensorView],
    /// Its constants: those of the members, one after another.
    pub params: &'a [u32],
}

/// Which fused kernels exist, and what they promise. The layer that owns kernels implements it.
pub trait KernelCatalog {
    /// The device fused kernels are compiled for.
    type Device: ?Sized;

    /// The contract of the kernel for `request`, compiled if needed; `None` if the device has none.
    ///
    /// # Errors
    /// [`GraphError::Kernel`] if a kernel that exists fails to compile.
    fn fused_kernel(
        &mut self,
        device: &Self::Device,
        request: &FusedRequest<'_>,
    ) -> Result<Option<KernelContract>>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::ids::NodeId;
    use crate::layout::Layout;

    fn view(elems: usize) -> TensorView {
        TensorView::of_value(NodeId(3), Layout::new(DType::F32, &[elems]).unwrap())
    }

    #[test]
    fn a_write_only_kernel_is_annotated() {
        let fill = KernelContract::new("fill", [BindingContract::new("dst", BindingRole::Write)]);
        let accesses = fill.annotate(DispatchId(0), &[view(4)], &[]).unwrap();
        let Accesses::Known(list) = accesses else {
            panic!("a kernel with writes and no reads is annotated");
        };
        assert_eq!(list.len(), 1);
        assert!(list[0].range.is_write());
    }

    #[test]
    fn an_unknown_contract_gives_unknown_accesses() {
        let kernel = KernelContract::unknown("blob");
        let accesses = kernel.annotate(DispatchId(0), &[view(4)], &[]).unwrap();
        assert_eq!(accesses, Accesses::Unknown);
    }

    #[test]
    fn a_partial_write_also_reads_what_it_keeps() {
        let binding = BindingContract::new("cache", BindingRole::ReadWrite);
        let kernel = KernelContract::new("kv_write", [binding]);
        let accesses = kernel.annotate(DispatchId(0), &[view(4)], &[]).unwrap();
        let Accesses::Known(list) = accesses else { panic!("annotated") };
        let roles: Vec<_> = list.iter().map(|a| a.range.role).collect();
        assert_eq!(roles, [MemRangeRole::Src, MemRangeRole::Dst]);
    }

    #[test]
    fn a_write_with_gaps_also_reads_what_it_keeps() {
        let write = |extent: Extent, strides: &[usize]| {
            let mut binding = BindingContract::new("y", BindingRole::Write);
            binding.extent = extent;
            let layout = Layout::new(DType::F32, &[2, 4]).unwrap().with_strides(strides).unwrap();
            let view = TensorView::of_value(NodeId(0), layout);
            KernelContract::new("op", [binding]).annotate(DispatchId(0), &[view], &[])
        };
        let facts = |accesses: Result<Accesses>| -> Vec<(MemRangeRole, bool, u64, u64)> {
            let Accesses::Known(list) = accesses.unwrap() else { panic!("annotated") };
            list.iter().map(|a| (a.range.role, a.keeps, a.range.p0, a.range.p1)).collect()
        };
        use MemRangeRole::{Dst, Src};
        for dense in [[4, 1], [1, 2]] {
            assert_eq!(facts(write(Extent::View, &dense)), [(Dst, false, 0, 32)], "{dense:?}");
        }
        for gapped in [[8, 1], [1, 3]] {
            let span = if gapped == [8, 1] { 48 } else { 44 };
            let both = [(Src, true, 0, span), (Dst, false, 0, span)];
            assert_eq!(facts(write(Extent::View, &gapped)), both, "{gapped:?}");
        }
        // A part of the span has gaps as well.
        let part = || Extent::Computed(Arc::new(|_, _| 0..40));
        assert_eq!(facts(write(part(), &[8, 1])), [(Src, true, 0, 40), (Dst, false, 0, 40)]);
        assert_eq!(facts(write(Extent::Computed(Arc::new(|_, _| 0..8)), &[4, 1])).len(), 1);
    }

    #[test]
    fn an_output_whose_elements_share_bytes_is_refused() {
        for role in [BindingRole::Read, BindingRole::Write, BindingRole::ReadWrite] {
            let kernel = KernelContract::new("op", [BindingContract::new("y", role)]);
            for strides in [[0, 1], [2, 1], [1, 1]] {
                let layout = Layout::new(DType::F32, &[2, 4]).unwrap();
                let layout = layout.with_strides(&strides).unwrap();
                let view = TensorView::of_value(NodeId(0), layout);
                let outcome = kernel.annotate(DispatchId(0), &[view], &[]);
                let refused = matches!(outcome, Err(GraphError::SharedElements { .. }));
                assert_eq!(refused, role != BindingRole::Read, "{role:?} {strides:?}");
            }
        }
    }

    #[test]
    fn a_contract_that_names_a_missing_binding_is_an_error() {
        let kernel = KernelContract::new(
            "copy",
            [
                BindingContract::new("src", BindingRole::Read),
                BindingContract::new("dst", BindingRole::Write),
            ],
        );
        let error = kernel.annotate(DispatchId(0), &[view(4)], &[]).unwrap_err();
        let expected = GraphError::MissingBinding {
            kernel: "copy".into(),
            binding: "dst".into(),
            index: 1,
            bound: 1,
        };
        assert_eq!(error, expected);
        let three = [view(4), view(4), view(4)];
        assert!(matches!(
            kernel.annotate(DispatchId(0), &three, &[]),
            Err(GraphError::UndeclaredBinding { bound: 3, declared: 2, .. })
        ));
    }

    #[test]
    fn an_extent_outside_its_view_is_an_error() {
        let mut binding = BindingContract::new("src", BindingRole::Read);
        binding.extent = Extent::Computed(Arc::new(|_, params| 0..u64::from(params[0])));
        let kernel = KernelContract::new("head", [binding]);
        assert!(kernel.annotate(DispatchId(0), &[view(4)], &[16]).is_ok());
        assert!(matches!(
            kernel.annotate(DispatchId(0), &[view(4)], &[17]),
            Err(GraphError::ExtentOutOfView { p1: 17, len: 16, .. })
        ));
    }

    #[test]
    fn a_view_outside_its_buffer_is_an_error() {
        let mut outside = view(4);
        outside.offset = 1;
        let kernel = KernelContract::unknown("blob");
        assert!(matches!(
            kernel.annotate(DispatchId(0), &[outside], &[]),
            Err(GraphError::ViewOutOfBounds { offset: 1, .. })
        ));
    }
}
