//! Kernels as WGSL text, one source for every backend that compiles it.
//!
//! [`lower`] turns an op call into [`Kernel`]s: complete source text, workgroups, and the words of
//! the uniform block. Nothing here names a graphics API. Shapes, strides and shifts are data in the
//! uniform block, so that a model needs tens of pipelines; only kernels on the decode path have them
//! written into their text.
//!
//! A source is the preamble made by [`Source`] (bindings, accessors) and the text of a `.wgsl` file.
//! For an operand `x` of the op table the preamble gives:
//!
//! | name | what |
//! |---|---|
//! | `b_x` | the bound array; read-only for inputs |
//! | `get_x(i)`, `put_x(i, v)` | element `i` of the view as f32 (u32 for indices); `i` counts storage elements from the view's first |
//! | `byte_x(i)`, `word_x(i)` | for block formats: byte `i` of the view, and that with the three behind it |
//! | `put_chunk_x(i, v)` | for caches of 8 bits, which are read by `get_x`: the 32 elements from `i` on |
//! | `row_x(r)` | where row `r` starts; rows count over all outer dimensions |
//! | `at_x(c)` | where the element with four coordinates `c` is |
//! | `P.x.shape`, `P.x.stride` | four extents and element strides, outermost first |
//! | `arg(k)`, `argf(k)` | constant `k` of the op, as an integer or a float |
//!
//! | module | ops |
//! |---|---|
//! | `choose` | the fastest kernel for a job |
//! | `lower` | the general kernel of each op |
//! | `source` | preamble and text |
//! | `parts` | weights that are larger than one binding |
//! | `listing` | the kernels of a list as text, for people |
//! | `planes`, `chunks` | block weights in planes, and how kernels read them |
//! | `matvec` | products of few rows |
//! | `coop` | products of many rows on cooperative matrices |
//! | `thin` | products of a few rows on cooperative matrices |
//! | `planar` | other ops on weights in planes |
//! | `elementwise` | maps, sums, copies, fills, joins, sum of experts |
//! | `rows` | norms, softmax, rotary embedding, cache writes |
//! | `select` | gather, arg max, top k, router |
//! | `blocks` | block formats as files have them: decoding by byte |
//! | `product` | products with weights |
//! | `attention` | attention over a cache, any case |
//! | `decode_attention` | the same of single tokens, split over the cache |
//! | `prompt_attention` | the same of many tokens, on cooperative matrices |
//! | `template` | loops over matrices, written out |
//! | `portable` | kernels for devices without subgroups |

mod attention;
mod blocks;
mod choose;
mod chunks;
mod coop;
mod decode_attention;
mod elementwise;
mod epilogue;
pub mod listing;
mod lower;
mod matvec;
pub(crate) mod parts;
mod planar;
pub mod planes;
#[cfg(any(feature = "wgpu", test))]
pub(crate) mod portable;
mod product;
mod prompt_attention;
mod rows;
mod select;
mod source;
mod template;
#[cfg(all(test, feature = "vulkan"))]
mod tests;
mod thin;

pub use choose::{choices, has_fused, lower};
#[cfg(feature = "vulkan")]
pub(crate) use source::{COUNTED_ENTRY, MEASURED_ENTRY};
pub use source::{Source, View};

/// Storage bindings of a kernel at most: the eight operands of the largest product, and weights bound again in another
/// view or the scratch of a user's kernel.
pub(crate) const MAX_BINDINGS: usize = 10;

use clearway_graph::{BindingRole, CapturedOpKind, Dispatch, Layout, TensorView};

use crate::ops;

/// Floats as the bits of f16, for kernels on cooperative matrices.
const HALVES: &str = include_str!("kernels/halves.wgsl");

/// What the kernels may count on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Invocations of a subgroup; always the same on this device.
    pub subgroup: u32,
    /// Invocations of a workgroup at most.
    pub max_invocations: u32,
    /// Bytes of workgroup memory at most.
    pub shared_bytes: u32,
    /// Workgroups in each dimension at most.
    pub max_groups: u32,
    /// Bytes one binding may cover.
    pub max_binding: u64,
    /// Products of four packed 8-bit integers are one instruction.
    pub packed_dot: bool,
    /// 16x16 cooperative matrices of f16 with f32 sums, each spread over 32 invocations.
    pub cooperative: bool,
    /// Kernels may have values of type f16. Without it, f16 in memory is read and written as bits.
    pub halves: bool,
    /// Workgroups of a dispatch may leave results for one another, counted by tickets: WGSL itself does not
    /// promise that they see them.
    pub tickets: bool,
    /// Barriers between groups of the list may become counters that workgroups wait for.
    pub counters: bool,
    /// Processors of the device, as far as known: how many workgroups keep it busy.
    pub processors: u32,
}

/// How the bytes of a weight tensor lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Packing {
    /// As the layout says; block formats as files have them.
    Plain,
    /// Block formats in planes, see `planes`.
    Planes,
}

/// One operand of a job.
#[derive(Clone, Debug)]
pub struct Operand {
    /// Name in the op table.
    pub name: &'static str,
    /// Element type, shape, strides.
    pub layout: Layout,
    /// Read, written, or both.
    pub role: BindingRole,
    /// Where the view starts behind the binding's first byte, in bytes.
    pub shift: u32,
    /// How block weights lie.
    pub packing: Packing,
    /// Of rows that are part of a tensor: the first of them, and how many the tensor has.
    pub rows: Option<[u32; 2]>,
    /// The operand whose binding this one shares, because both are exactly the same bytes.
    pub same_as: Option<usize>,
}

/// What only memory knows of an operand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    /// Where the view starts behind the binding's first byte, in bytes.
    pub(crate) shift: u32,
    /// How block weights lie.
    pub(crate) packing: Packing,
    /// Of rows that are part of a tensor: the first of them, and how many the tensor has.
    pub(crate) rows: Option<[u32; 2]>,
}

/// Names of operands of user kernels.
pub(crate) const OPERAND_NAMES: [&str; 10] =
    ["o0", "o1", "o2", "o3", "o4", "o5", "o6", "o7", "o8", "o9"];

/// Name of an operand in kernels.
pub(crate) fn operand_name(dispatch: &Dispatch, index: usize) -> &'static str {
    let name = ops::operand_name(dispatch.kind, dispatch.bindings.len(), index);
    name.or_else(|| OPERAND_NAMES.get(index).copied()).unwrap_or("operand")
}

/// The operands of a dispatch, or of a part of it that binds `views`, as kernels see them.
pub(crate) fn operands(
    dispatch: &Dispatch,
    roles: &[BindingRole],
    views: &[TensorView],
    facts: &[Facts],
) -> Vec<Operand> {
    // A kernel of unknown access may write all of its operands.
    let role = |index: usize| roles.get(index).copied().unwrap_or(BindingRole::ReadWrite);
    let operand = |(index, (view, facts)): (usize, (&TensorView, &Facts))| {
        let same_as = views[..index]
            .iter()
            .position(|other| other == view)
            .filter(|&first| role(index) != BindingRole::Read || role(first) != BindingRole::Read);
        let Facts { shift, packing, rows } = *facts;
        let (name, layout) = (operand_name(dispatch, index), view.layout);
        Operand { name, layout, role: role(index), shift, packing, rows, same_as }
    };
    views.iter().zip(facts).enumerate().map(operand).collect()
}

/// An op call to be lowered.
#[derive(Clone, Debug)]
pub struct Job<'a> {
    /// The op.
    pub kind: CapturedOpKind,
    /// Its operands, in the order of the table.
    pub operands: Vec<Operand>,
    /// Its constants.
    pub params: &'a [u32],
    /// The device.
    pub target: &'a Target,
    /// Which variant, below [`choices`]; 0 is the one that is expected to be the fastest.
    pub choice: u8,
}

/// A kernel to be compiled and dispatched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Complete WGSL text with the entry point `main`.
    pub source: String,
    /// Workgroups in each dimension.
    pub groups: [u32; 3],
    /// The uniform block.
    pub words: Vec<u32>,
    /// Operands that are bound once more behind all others.
    pub again: Vec<usize>,
    /// Memory that is bound behind those, in two bindings.
    pub scratch: Option<Scratch>,
    /// Whose text it is, and so what the compiler adds to it.
    pub trust: Trust,
    /// Where it waits for the group before it and is counted: the operands it may read before that. The last four words of
    /// the uniform block say what to wait for; counters and fault word are bound last.
    pub counted: Option<Vec<usize>>,
}

/// Name of the counters in a text that has them.
pub(crate) const COUNTERS: &str = "b_counters";
/// What stands for the device's clock in the text of a kernel that is measured.
#[cfg(feature = "vulkan")]
pub(crate) const CLOCK: &str = "NOTE_CLOCK";

/// Words at the end of the uniform block of a kernel that is counted (`lowering/waits.rs`).
pub(crate) const SYNC_WORDS: usize = 4;

/// Whose text a kernel is, and so what the compiler adds to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Trust {
    /// One of ours. Tests hold it to its operands, so nothing is added.
    #[default]
    Own,
    /// A user's. Indices stay inside their operands, loops are bounded, workgroup memory starts as zeros and
    /// no division traps, whatever the text says.
    Checked,
    /// A user's who promised all of that; see [`WgslKernel::unchecked`](crate::WgslKernel::unchecked).
    Unchecked,
}

/// Memory of a dispatch that only it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scratch {
    /// Bytes that hold anything before and after.
    pub bytes: u64,
    /// Counters that are zero before and after.
    pub tickets: u32,
}
