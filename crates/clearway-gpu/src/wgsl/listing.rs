//! The kernels of a list as text, without memory: what a device would compile, bind and dispatch.
//!
//! [`kernels`] lowers a dispatch for a [`WgslTarget`] as a backend that compiles WGSL does. Tensors outside the
//! arena have no memory yet: block weights are taken to lie in planes, as uploaded weights do.
//! [`TargetDevice`] makes lists for a target where there is no such device.

use clearway_graph::place::SlabRule;
use clearway_graph::{
    BarrierReason, BindingRole, CapturedOpKind, CommandEncoder, Dispatch, FusedRequest, OpSpec,
    TensorView,
};
use rustc_hash::FxHashMap;

pub use super::Packing;
use super::{Facts, Job, Kernel, Target, has_fused, operands, parts, planes};
use crate::device::{Buffer, Device, DeviceInfo, Encoder, Program};
use crate::error::{GpuError, Result};
use crate::registry::KernelRegistry;

/// What the kernels of a list depend on besides the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WgslTarget {
    /// Name, for people.
    pub name: String,
    /// What the kernels may count on.
    pub target: Target,
    /// Alignment of bindings, in bytes.
    pub align: u64,
    /// Whether block weights lie in planes.
    pub planes: bool,
    /// Variants that were measured to be the fastest, by the [`text_key`] of the expected one.
    pub tuned: FxHashMap<u64, u8>,
}

impl Default for WgslTarget {
    /// A card of the middle class: subgroups of 32, packed dot products, no cooperative matrices.
    fn default() -> Self {
        let target = Target {
            subgroup: 32,
            max_invocations: 1024,
            shared_bytes: 48 << 10,
            max_groups: 65_535,
            max_binding: u64::from(u32::MAX),
            packed_dot: true,
            cooperative: false,
            halves: true,
            tickets: true,
            counters: false,
            processors: 64,
        };
        let name = "default target: subgroups of 32, 48 KiB shared, packed dot products".into();
        Self { name, target, align: 64, planes: true, tuned: FxHashMap::default() }
    }
}

/// One kernel of a dispatch.
#[derive(Clone, Debug)]
pub struct ListedKernel {
    /// Text, workgroups and uniform block.
    pub kernel: Kernel,
    /// What is bound, by the numbers of the bindings.
    pub bindings: Vec<ListedBinding>,
    /// Of weights in parts: the number of this one, and how many there are.
    pub part: Option<[usize; 2]>,
    /// Which variant it is, and how many there are.
    pub variant: [u8; 2],
}

/// A binding of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct ListedBinding {
    /// Its number. An operand that lies exactly over another has the number of that one.
    pub slot: usize,
    /// Its name in the text.
    pub name: String,
    /// What the kernel does with it.
    pub role: BindingRole,
    /// What is bound.
    pub bound: ListedBound,
}

/// What is bound.
#[derive(Clone, Debug, PartialEq)]
pub enum ListedBound {
    /// A tensor.
    Tensor {
        /// Its bytes.
        view: TensorView,
        /// How block weights lie.
        packing: Packing,
        /// Where the view starts behind the binding's first byte.
        shift: u32,
    },
    /// Memory of the dispatch that holds anything before and after.
    Scratch {
        /// Its bytes.
        bytes: u64,
    },
    /// Counters that are zero before and after.
    Tickets {
        /// How many.
        count: u32,
    },
    /// Shapes, strides and constants.
    Uniform {
        /// Its words.
        words: usize,
    },
}

/// The kernels of a dispatch: one, or one for each part of weights that are larger than a binding. None where
/// the dispatch has nothing to do.
///
/// # Errors
/// As a backend's: a dispatch whose operands no kernel takes, or a user's kernel without WGSL.
pub fn kernels(
    dispatch: &Dispatch,
    registry: &KernelRegistry,
    target: &WgslTarget,
) -> Result<Vec<ListedKernel>> {
    if dispatch.is_moot() {
        return Ok(Vec::new());
    }
    let matrices = || dispatch.kind.spec().into_iter().flat_map(OpSpec::matrices);
    let weights = matrices().filter_map(|index| dispatch.bindings.get(index)).find_map(|view| {
        let planes = in_planes(view, target);
        let rows = parts::rows_of_part(&view.layout, planes, target.target.max_binding)?;
        Some((view.layout.rows(), rows))
    });
    let Some((all, rows)) = weights else {
        return Ok(vec![lower(dispatch, &dispatch.bindings, None, registry, target)?]);
    };
    let count = all.div_ceil(rows);
    let part = |number: usize| {
        let first = number * rows;
        let here = rows.min(all - first);
        let views = parts::cut(dispatch, first as u32, here as u32)?;
        let part = Some((first as u32, [number, count]));
        lower(dispatch, &views, part, registry, target)
    };
    (0..count).map(part).collect()
}

/// Names a kernel by its text: FNV-1a with 64 bits.
pub fn text_key(source: &str) -> u64 {
    source.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Whether weights are taken to lie in planes: whole tensors that are no part of an arena.
fn in_planes(view: &TensorView, target: &WgslTarget) -> bool {
    let whole = view.offset == 0 && view.buf_len == view.layout.span_bytes();
    target.planes && whole && planes::supports(&view.layout)
}

fn lower(
    dispatch: &Dispatch,
    views: &[TensorView],
    part: Option<(u32, [usize; 2])>,
    registry: &KernelRegistry,
    target: &WgslTarget,
) -> Result<ListedKernel> {
    let contract = registry.checked_contract(dispatch)?;
    let roles: Vec<BindingRole> =
        contract.bindings.iter().flatten().map(|binding| binding.role).collect();
    let bound = dispatch.bindings.len();
    let facts = views.iter().enumerate().map(|(index, view)| {
        let operand = dispatch.kind.spec().and_then(|spec| spec.operand(bound, index));
        let weights = operand.is_some_and(|operand| operand.matrix);
        let planes = weights && in_planes(view, target);
        let whole = dispatch.bindings[index].layout;
        Facts {
            shift: if planes { 0 } else { (view.offset % target.align) as u32 },
            packing: if planes { Packing::Planes } else { Packing::Plain },
            rows: part.filter(|_| weights).map(|(first, _)| [first, whole.shape4()[2]]),
        }
    });
    let facts: Vec<Facts> = facts.collect();
    let operands = operands(dispatch, &roles, views, &facts);
    let params = &dispatch.params;
    let mut job = Job { kind: dispatch.kind, operands, params, target: &target.target, choice: 0 };
    let (kernel, variants) = match dispatch.kind {
        CapturedOpKind::Custom | CapturedOpKind::Pinned => {
            let custom = registry.custom(&dispatch.kernel)?;
            let text = custom.wgsl.as_ref().ok_or_else(|| GpuError::KernelNotForDevice {
                kernel: dispatch.kernel.to_string(),
                device: target.name.clone(),
            })?;
            let groups = (text.groups)(&dispatch.bindings, &dispatch.params);
            (text.kernel(&job, groups), 1)
        }
        _ => {
            let variants = super::choices(&job);
            let expected = super::lower(&job)?;
            let tuned = target.tuned.get(&text_key(&expected.source)).copied();
            match tuned.filter(|&choice| 0 < choice && choice < variants && part.is_none()) {
                Some(choice) => {
                    job.choice = choice;
                    (super::lower(&job)?, variants)
                }
                None => (expected, variants),
            }
        }
    };
    let bindings = bindings(&job, views, &kernel);
    let variant = [job.choice, variants];
    Ok(ListedKernel { kernel, bindings, part: part.map(|(_, part)| part), variant })
}

/// The bindings of a kernel in the order that its text numbers them.
fn bindings(job: &Job<'_>, views: &[TensorView], kernel: &Kernel) -> Vec<ListedBinding> {
    let operands = &job.operands;
    let tensor = |index: usize| {
        let (packing, shift) = (operands[index].packing, operands[index].shift);
        ListedBound::Tensor { view: views[index], packing, shift }
    };
    let mut all: Vec<ListedBinding> = Vec::new();
    for (index, operand) in operands.iter().enumerate() {
        let slot = operand.same_as.unwrap_or(index);
        let name = format!("b_{}", operands[slot].name);
        all.push(ListedBinding { slot, name, role: operand.role, bound: tensor(index) });
    }
    let mut next = operands.len();
    let mut add = |name: String, role, bound| {
        all.push(ListedBinding { slot: next, name, role, bound });
        next += 1;
    };
    for &index in &kernel.again {
        add(format!("s_{}", operands[index].name), BindingRole::Read, tensor(index));
    }
    if let Some(scratch) = kernel.scratch {
        let (bytes, count) = (scratch.bytes, scratch.tickets);
        add("b_scratch".into(), BindingRole::ReadWrite, ListedBound::Scratch { bytes });
        add("b_tickets".into(), BindingRole::ReadWrite, ListedBound::Tickets { count });
    }
    // A text that has its constants in it has no block, or one by another name.
    let uniform = ["P", "U"]
        .into_iter()
        .find(|name| kernel.source.contains(&format!("var<uniform> {name}: Params;")));
    if let Some(name) = uniform {
        let words = kernel.words.len();
        add(name.into(), BindingRole::Read, ListedBound::Uniform { words });
    }
    all
}

/// A device that is only described: lists are planned for it, and nothing runs on it.
pub struct TargetDevice {
    info: DeviceInfo,
    target: WgslTarget,
}

impl TargetDevice {
    /// The device of a target.
    pub fn new(target: WgslTarget) -> Self {
        let info = DeviceInfo {
            name: "target".into(),
            description: target.name.clone(),
            arena_align: target.align,
            max_buffer_bytes: u64::MAX,
            slab_rule: SlabRule::Any,
            memory_bytes: 0,
        };
        Self { info, target }
    }
}

impl Device for TargetDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn alloc(&self, _bytes: u64) -> Result<Buffer> {
        Err(nothing_runs())
    }

    fn buffer(&self, buf_id: usize) -> Result<Buffer> {
        Err(GpuError::ForeignBuffer { buf_id, device: self.info.name.clone() })
    }

    fn quantises_activations(&self) -> bool {
        self.target.planes
    }

    fn host_is_far(&self) -> bool {
        true
    }

    fn has_fused(&self, request: &FusedRequest<'_>) -> bool {
        let suits = |view: &TensorView| self.target.planes || !view.layout.dtype().is_quantised();
        has_fused(request, &self.target.target, &suits)
    }

    fn encoder(&self, _kernels: &KernelRegistry) -> Box<dyn Encoder> {
        Box::new(NoEncoder)
    }

    fn wgsl_target(&self) -> Option<WgslTarget> {
        Some(self.target.clone())
    }
}

/// Refuses everything.
struct NoEncoder;

impl CommandEncoder for NoEncoder {
    type Error = GpuError;

    fn dispatch(&mut self, _dispatch: &Dispatch) -> Result<()> {
        Err(nothing_runs())
    }

    fn barrier(&mut self, _reason: &BarrierReason) -> Result<()> {
        Err(nothing_runs())
    }

    fn commit(&mut self) -> Result<()> {
        Err(nothing_runs())
    }
}

impl Encoder for NoEncoder {
    fn wait(&mut self) -> Result<()> {
        Err(nothing_runs())
    }

    fn into_program(self: Box<Self>) -> Result<Box<dyn Program>> {
        Err(nothing_runs())
    }
}

fn nothing_runs() -> GpuError {
    GpuError::NoDevice { reason: "a target is only described, nothing runs on it".into() }
}
