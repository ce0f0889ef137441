//! Which kernels exist: the built-in ops and the user's own.

use std::ops::Range;
use std::sync::Arc;

use clearway_graph::{
    Access, Accesses, BindingRole, BufferRange, CapturedOpKind, Dispatch, FusedRequest, GraphError,
    KernelCatalog, KernelContract, MemRangeRole, TensorView,
};
use rustc_hash::FxHashMap;

use crate::cpu::CpuKernel;
use crate::device::Device;
use crate::error::{GpuError, Result};
use crate::ops;
use crate::wgsl::{Job, Kernel, Scratch, Source, Trust, View};

/// A user's kernel: its contract, and an implementation for each backend it is to run on.
#[derive(Clone)]
pub struct CustomKernel {
    /// What it promises about the memory it touches. Its name is the kernel's name.
    pub contract: KernelContract,
    /// Whether it has an effect outside memory and therefore keeps its place.
    pub pinned: bool,
    /// Implementation for the CPU.
    pub cpu: Option<CpuKernel>,
    /// Implementation for GPUs.
    pub wgsl: Option<WgslKernel>,
}

/// Workgroups for these operands and constants.
pub type GroupsFn = Arc<dyn Fn(&[TensorView], &[u32]) -> [u32; 3] + Send + Sync>;

/// A user's kernel for GPUs: WGSL with the entry point `main`. Operands are called `o0`, `o1`, ... and
/// are reached through the functions that [`wgsl`](crate::wgsl) describes.
///
/// It is checked: an index outside an operand reads zero or some element and writes nothing or some element
/// of that operand, workgroup memory starts as zeros, and neither a loop nor a division is undefined.
/// [`unchecked`](Self::unchecked) leaves that out. Either way its workgroups must fit the device, its text may
/// declare no binding of its own, and it may neither read what the contract says it only writes nor
/// leave that unwritten.
#[derive(Clone)]
pub struct WgslKernel {
    /// The text behind the bindings.
    pub body: Arc<str>,
    /// Workgroups in each dimension.
    pub groups: GroupsFn,
    /// Operands that it sees four 32-bit words at a time, by index.
    pub quads: Vec<usize>,
    /// Memory for what its workgroups leave for one another.
    pub scratch: Option<Scratch>,
    /// Private: only an unsafe call may change it.
    trust: Trust,
}

impl WgslKernel {
    /// A kernel that sees all operands by elements and whose workgroups know nothing of one another.
    pub fn new(
        body: &str,
        groups: impl Fn(&[TensorView], &[u32]) -> [u32; 3] + Send + Sync + 'static,
    ) -> Self {
        Self {
            body: Arc::from(body),
            groups: Arc::new(groups),
            quads: Vec::new(),
            scratch: None,
            trust: Trust::Checked,
        }
    }

    /// Compiles the text as it is, without the checks that cost time.
    ///
    /// # Safety
    /// Whatever it is dispatched with, the kernel must keep every index inside its operand or array, end every
    /// loop, divide by no zero, and read no workgroup memory that it has not written. A GPU that is let
    /// outside may read and write any memory of the process.
    #[must_use]
    pub unsafe fn unchecked(mut self) -> Self {
        self.trust = Trust::Unchecked;
        self
    }

    /// Whether the text is checked.
    #[cfg(any(feature = "vulkan", feature = "wgpu"))]
    pub(crate) fn trust(&self) -> Trust {
        self.trust
    }

    /// The kernel for a job. Whoever runs it has checked what it binds.
    pub(crate) fn kernel(&self, job: &Job<'_>, groups: [u32; 3]) -> Kernel {
        let mut source = Source::new(job).body(&self.body).trust(self.trust);
        for &index in self.quads.iter().filter(|&&index| index < job.operands.len()) {
            source = source.view(index, View::Quads);
        }
        if let Some(Scratch { bytes, tickets }) = self.scratch {
            // No binding may be empty.
            source = source.scratch(bytes.max(4), tickets.max(1));
        }
        source.build(groups)
    }

    /// Binds an operand as `array<vec4<u32>>` instead of by elements: `b_o0[i]` is the four words at byte
    /// `16 * i` of operand 0, whatever its type. It must start at a multiple of the device's alignment,
    /// as tensors do that start their buffer.
    #[must_use]
    pub fn quads(mut self, operand: usize) -> Self {
        self.quads.push(operand);
        self
    }

    /// Memory for what workgroups of a dispatch leave for one another: floats `b_scratch`, which hold
    /// anything at the start and are coherent, and counters `b_tickets`, which are atomic, zero before the
    /// first workgroup starts, and must be zero after the last one ends. What an invocation wrote to the
    /// floats before `storageBarrier()` and a ticket, those see that read the ticket before one.
    #[must_use]
    pub fn scratch(mut self, bytes: u64, tickets: u32) -> Self {
        self.scratch = Some(Scratch { bytes, tickets });
        self
    }
}

impl CustomKernel {
    /// A kernel with this contract and no implementation yet.
    pub fn new(contract: KernelContract) -> Self {
        Self { contract, pinned: false, cpu: None, wgsl: None }
    }

    /// Adds an implementation for the CPU.
    #[must_use]
    pub fn with_cpu(mut self, kernel: CpuKernel) -> Self {
        self.cpu = Some(kernel);
        self
    }

    /// Adds an implementation for GPUs: WGSL, and its workgroups for given operands.
    #[must_use]
    pub fn with_wgsl(
        self,
        body: &str,
        groups: impl Fn(&[TensorView], &[u32]) -> [u32; 3] + Send + Sync + 'static,
    ) -> Self {
        self.with_wgsl_kernel(WgslKernel::new(body, groups))
    }

    /// Adds an implementation for GPUs that asks for more than elements of its operands.
    #[must_use]
    pub fn with_wgsl_kernel(mut self, kernel: WgslKernel) -> Self {
        self.wgsl = Some(kernel);
        self
    }

    /// Says that it has an effect outside memory.
    #[must_use]
    pub fn pinned(mut self) -> Self {
        self.pinned = true;
        self
    }

    /// The kind its dispatches have.
    pub fn kind(&self) -> CapturedOpKind {
        if self.pinned { CapturedOpKind::Pinned } else { CapturedOpKind::Custom }
    }
}

/// Kernels by name. Built-in ops are always there; fused ones where the device has them.
#[derive(Clone, Default)]
pub struct KernelRegistry {
    custom: FxHashMap<Arc<str>, Arc<CustomKernel>>,
}

impl KernelRegistry {
    /// A registry with the built-in ops only.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a user's kernel under the name in its contract.
    ///
    /// # Errors
    /// [`GpuError::DuplicateKernel`] if the name is taken, by a user's kernel or an op.
    pub fn register(&mut self, kernel: CustomKernel) -> Result<()> {
        let name: Arc<str> = Arc::from(&*kernel.contract.kernel);
        let taken = self.custom.contains_key(&name) || ops::OPS.iter().any(|op| op.name == &*name);
        if taken {
            return Err(GpuError::DuplicateKernel { kernel: name.to_string() });
        }
        self.custom.insert(name, Arc::new(kernel));
        Ok(())
    }

    /// A user's kernel by name.
    ///
    /// # Errors
    /// [`GpuError::UnknownKernel`] if there is none.
    pub fn custom(&self, name: &str) -> Result<&Arc<CustomKernel>> {
        self.custom.get(name).ok_or_else(|| GpuError::UnknownKernel { kernel: name.to_owned() })
    }

    /// The contract of the kernel a dispatch names; `None` for an op that takes no such number of
    /// operands.
    ///
    /// # Errors
    /// [`GpuError::UnknownKernel`] for a user's kernel that is not registered.
    pub fn contract_of(&self, dispatch: &Dispatch) -> Result<Option<&KernelContract>> {
        Ok(match dispatch.kind {
            CapturedOpKind::Custom | CapturedOpKind::Pinned => {
                Some(&self.custom(&dispatch.kernel)?.contract)
            }
            kind => ops::contract(kind, dispatch.bindings.len()),
        })
    }

    /// The contract of the kernel that a dispatch would run. Backends call this before they lower it,
    /// since what they hand a kernel must be what was proven, and a dispatch may have been recorded
    /// with a contract of any kind. The verifier proves what a dispatch computes by its kind and knows no
    /// kernels: here the kernel is held to the kind.
    ///
    /// # Errors
    /// [`GpuError::WrongContract`] if the kernel, its accesses or its in-place operands are not what
    /// this contract gives for the operands and constants; [`GpuError::UnknownKernel`].
    pub fn checked_contract(&self, dispatch: &Dispatch) -> Result<&KernelContract> {
        let kernel = || dispatch.kernel.to_string();
        let contract = self.contract_of(dispatch)?;
        let contract = contract.ok_or_else(|| GpuError::UnknownKernel { kernel: kernel() })?;
        let differs = |what| GpuError::WrongContract {
            kernel: contract.kernel.to_string(),
            dispatch: dispatch.id,
            what,
        };
        if contract.kernel != dispatch.kernel {
            return Err(differs("kernel and kind"));
        }
        if self.custom.get(&*dispatch.kernel).is_some_and(|own| own.kind() != dispatch.kind) {
            return Err(differs("kernel and kind"));
        }
        let given = contract.annotate(dispatch.id, &dispatch.bindings, &dispatch.params)?;
        let same = match &given {
            Accesses::Unknown => !dispatch.is_annotated(),
            Accesses::Known(list) => {
                let facts = |access: &Access| (access.binding, access.range);
                dispatch.is_annotated()
                    && list.iter().map(facts).eq(dispatch.accesses().iter().map(facts))
            }
        };
        if !same {
            return Err(differs("accesses"));
        }
        if contract.in_place() != dispatch.in_place {
            return Err(differs("in-place operands"));
        }
        Ok(contract)
    }
}

/// The bytes of its buffer that a dispatch declares for a binding: those the proof knows about. The
/// dispatch agrees with its kernel's contract, so a role that is not covered, or a binding in several
/// ranges, would be an error of the annotate stage.
pub(crate) fn declared_bytes(
    dispatch: &Dispatch,
    index: usize,
    role: BindingRole,
) -> Result<Range<u64>> {
    let view = &dispatch.bindings[index];
    if !dispatch.is_annotated() {
        // Alone in its group: it may touch all it binds.
        return Ok(view.offset..view.offset.saturating_add(view.layout.span_bytes()));
    }
    let own = || dispatch.accesses().iter().filter(|access| usize::from(access.binding) == index);
    let needed = match role {
        BindingRole::Read => MemRangeRole::Src,
        BindingRole::Write | BindingRole::ReadWrite => MemRangeRole::Dst,
    };
    let covering = own().map(|access| access.range).find(|range| range.role == needed);
    let one = covering.filter(|range| {
        let place = |range: &BufferRange| (range.buf_id, range.p0, range.p1);
        range.buf_id == view.buf_id && own().all(|other| place(&other.range) == place(range))
    });
    one.map(|range| range.p0..range.p1).ok_or_else(|| GpuError::WrongContract {
        kernel: dispatch.kernel.to_string(),
        dispatch: dispatch.id,
        what: "bindings",
    })
}

impl KernelCatalog for KernelRegistry {
    type Device = dyn Device;

    fn fused_kernel(
        &mut self,
        device: &Self::Device,
        request: &FusedRequest<'_>,
    ) -> Result<Option<KernelContract>, GraphError> {
        if !device.has_fused(request) {
            return Ok(None);
        }
        // The op's own check says whether these shapes and types fit together.
        if ops::check(request.kind, request.bindings, request.params).is_err() {
            return Ok(None);
        }
        Ok(ops::contract(request.kind, request.bindings.len()).cloned())
    }
}

impl std::fmt::Debug for KernelRegistry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.custom.keys()).finish()
    }
}
