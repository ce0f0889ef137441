//! The op list: every op with its name, its operands, its constants and what it computes, in one table.
//!
//! [`CapturedOpKind`] and everything that follows from a row (names, contracts, operand positions,
//! documentation) come from the table below. A backend adds an implementation for each kind. It matches on
//! the kind without a catch-all arm, so that a new op does not compile until every backend has an answer.
//!
//! Element-wise ops are one kind with a [`Map`] in it, with a table of their own (`op/map.rs`).
//! Matrix products are one kind with a [`Product`] in it: what happens to the rows before they are
//! multiplied, whether the product is gated, and what its epilogue does. Their rows of the table are derived
//! from the parts (`op/product.rs`).

mod map;
mod product;

pub use map::{Map, MapInputs};
pub use product::{
    Activation, Epilogue, Gate, Input, PlainInput, PlainOp, PlainShape, Product, Slot,
};

use serde::{Serialize, Serializer};

use crate::contract::{BindingContract, BindingRole, KernelContract};

/// One op: everything that all backends share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpSpec {
    /// What it computes.
    pub kind: CapturedOpKind,
    /// Name of the op and of its kernels.
    pub name: &'static str,
    /// Operands, inputs before outputs.
    pub operands: &'static [Operand],
    /// Constants.
    pub params: &'static [ParamSpec],
}

/// One operand of an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    /// Name in errors, reports and kernel text.
    pub name: &'static str,
    /// Read, written, or both.
    pub role: BindingRole,
    /// May be left out. An op with several such operands takes all of them or none.
    pub optional: bool,
    /// A weight matrix, which a device may keep in an order of its own.
    pub matrix: bool,
    /// Operands this output may lie exactly over: each of their elements is read only to write the
    /// same element of the output, and before that.
    pub over: &'static [u16],
}

/// How a 32-bit constant is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamKind {
    /// An unsigned integer.
    U32,
    /// A float by its bits.
    F32,
}

/// One constant of an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamSpec {
    /// Name in errors and reports.
    pub name: &'static str,
    /// Integer or float.
    pub kind: ParamKind,
    /// Whether it must be above zero. Other ranges are up to the op's check.
    pub positive: bool,
}

/// Makes the kinds and their rows from the table. A row is documentation, kind, name, operands and
/// constants.
macro_rules! ops {
    ($($(#[doc = $doc:literal])+ $kind:ident $name:literal $operands:tt $params:tt)+) => {
        /// What a dispatch computes. Fusion rules match on it and backends look their kernels up by it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum CapturedOpKind {
            $($(#[doc = $doc])+ $kind,)+
            /// Element-wise op.
            Map(Map),
            /// Product with weight matrices, with what is fused to it.
            Product(Product),
            /// A user's kernel.
            Custom,
            /// A user's kernel with an effect outside memory (a time stamp, a host signal): it keeps its
            /// place, and nothing crosses it.
            Pinned,
        }

        impl CapturedOpKind {
            /// Every op that is neither element-wise nor a product nor a user's kernel, in the order of the table.
            pub const PLAIN: &'static [Self] = &[$(Self::$kind),+];

            /// The op's row of the table; `None` for users' kernels.
            pub fn spec(self) -> Option<&'static OpSpec> {
                match self {
                    $(Self::$kind => {
                        static ROW: OpSpec = OpSpec {
                            kind: CapturedOpKind::$kind,
                            name: $name,
                            operands: &$operands,
                            params: &$params,
                        };
                        Some(&ROW)
                    })+
                    Self::Map(map) => Some(map.spec()),
                    Self::Product(product) => Some(product.spec()),
                    Self::Custom | Self::Pinned => None,
                }
            }

            /// A number below [`COUNT`](Self::COUNT) for each kind, for tables.
            pub fn index(self) -> usize {
                let (plain, maps) = (Self::PLAIN.len(), Map::ALL.len());
                match self {
                    $(Self::$kind => Plain::$kind as usize,)+
                    Self::Map(map) => plain + map as usize,
                    Self::Custom => plain + maps,
                    Self::Pinned => plain + maps + 1,
                    Self::Product(product) => plain + maps + 2 + product.index(),
                }
            }
        }

        /// Numbers of the plain kinds.
        enum Plain {
            $($kind,)+
        }
    };
}

ops! {
    /// Rows of a table picked by index (token embedding), times a constant.
    Gather "gather" [matrix("table"), read("ids"), write("y")] [float("scale")]
    /// Rows divided by their root mean square.
    RmsNorm "rms_norm" [read("x"), write("y")] [float("eps")]
    /// Rows shifted to mean 0 and scaled to variance 1, with weight and bias.
    LayerNorm "layer_norm" [read("x"), read("w"), read("b"), write("y")] [float("eps")]
    /// Product with the weight matrices of the experts chosen per row. Where the order of the rows by expert is given,
    /// rows of one expert may be multiplied together.
    MatMulExperts "matmul_experts" [read("x"), matrix("w"), read("ids"), read_if_given("order"), write("y")] []
    /// Pairs of a row and an expert chosen for it, by expert: where those of each expert start, of ids beyond the last, and
    /// where they end; then their numbers.
    ExpertOrder "expert_order" [read("ids"), write("order")] [int("experts")]
    /// The best experts of each row and their weights.
    RouterTopK "router_top_k" [read("logits"), write("ids"), write("weights")] [int("mode"), int("renorm"), float("scale")]
    /// The best experts of each row among those of its best groups, and their weights. Softmaxes choose by logits and a group
    /// counts by its best; sigmoids may have a bias that counts where experts are chosen and not in their weights, and a group
    /// counts by the sum of its `best`.
    RouterGroups "router_groups" [read("logits"), read_if_given("bias"), write("ids"), write("weights")] [int("mode"), int("renorm"), float("scale"), int("groups"), int("groups_used"), int("best")]
    /// Sum of expert results by weight.
    ExpertSum "expert_sum" [read("x"), read("weights"), write("y")] []
    /// Rotary position embedding.
    Rope "rope" [read("x"), read("positions"), read("factors"), write("y")] [int("n_dims"), int("mode"), float("base"), float("scale"), float("magnitude")]
    /// Softmax of rows with scale and mask.
    Softmax "softmax" [read("x"), read("mask"), write("y")] [float("scale")]
    /// Causal grouped-query attention over a KV cache: the rows of one sequence in order, or blocks of rows that a table
    /// finds for each of many sequences. Heads of values may have another size than those of keys.
    Attention "attention" [read("q"), read("k"), read("v"), read("positions"), read_in_blocks("sequences"), read_in_blocks("blocks"), write("y")] [float("scale"), int("window"), float("softcap"), int("block")]
    /// The same with sinks: each head has one more score, which takes its share of the softmax and has no value.
    AttentionSinks "attention_sinks" [read("q"), read("k"), read("v"), read("positions"), read_in_blocks("sequences"), read_in_blocks("blocks"), read("sinks"), write("y")] [float("scale"), int("window"), float("softcap"), int("block")]
    /// Rows written into a KV cache at positions known only on the device.
    KvWrite "kv_write" [read("x"), read("positions"), update("cache")] []
    /// Copy, cast, transpose: any layout to any layout.
    Copy "copy" [read("x"), write("y")] []
    /// Two tensors joined along the innermost dimension.
    Concat "concat" [read("a"), read("b"), write("y")] []
    /// Index of the largest element of each row.
    ArgMax "arg_max" [read("x"), write("ids")] []
    /// Largest elements of each row with their indices.
    TopK "top_k" [read("x"), write("values"), write("ids")] []
    /// Every element set to a constant.
    Fill "fill" [write("y")] [float("value")]
    /// Fused: rms_norm, then product with the weight.
    RmsNormMul "rms_norm_mul" [read("x"), read("w"), write("y")] [float("eps")]
    /// Fused: sum of expert results by weight, then sum with a residual.
    ExpertSumAdd "expert_sum_add" [read("x"), read("weights"), read("c"), write("y")] []
    /// Fused: rms_norm, then product with the weight, then sum with a residual.
    RmsNormMulAdd "rms_norm_mul_add" [read("x"), read("w"), read("c"), write("y")] [float("eps")]
    /// Fused: sum, then rms_norm of it; the sum is kept where it is needed.
    AddRmsNorm "add_rms_norm" [read("a"), read("b"), write_if_read("sum"), write("y")] [float("eps")]
    /// Fused: sum, then rms_norm of it, then product with the weight; the sum is kept where it is needed.
    AddRmsNormMul "add_rms_norm_mul" [read("a"), read("b"), read("w"), write_if_read("sum"), write("y")] [float("eps")]
    /// Fused: rotary embedding written straight into the KV cache.
    RopeKvWrite "rope_kv_write" [read("x"), read("positions"), read("factors"), read("kv_positions"), update("cache")] [int("n_dims"), int("mode"), float("base"), float("scale"), float("magnitude")]
}

const fn read(name: &'static str) -> Operand {
    Operand { name, role: BindingRole::Read, optional: false, matrix: false, over: &[] }
}

const fn read_if_given(name: &'static str) -> Operand {
    Operand { optional: true, ..read(name) }
}

const fn matrix(name: &'static str) -> Operand {
    Operand { matrix: true, ..read(name) }
}

const fn write(name: &'static str) -> Operand {
    write_over(name, &[])
}

const fn write_over(name: &'static str, over: &'static [u16]) -> Operand {
    Operand { name, role: BindingRole::Write, optional: false, matrix: false, over }
}

const fn write_if_read(name: &'static str) -> Operand {
    Operand { optional: true, ..write(name) }
}

const fn read_in_blocks(name: &'static str) -> Operand {
    Operand { optional: true, ..read(name) }
}

const fn update(name: &'static str) -> Operand {
    Operand { role: BindingRole::ReadWrite, ..read(name) }
}

const fn float(name: &'static str) -> ParamSpec {
    ParamSpec { name, kind: ParamKind::F32, positive: false }
}

const fn positive(name: &'static str) -> ParamSpec {
    ParamSpec { positive: true, ..float(name) }
}

const fn int(name: &'static str) -> ParamSpec {
    ParamSpec { kind: ParamKind::U32, ..float(name) }
}

impl CapturedOpKind {
    /// Plain product with a weight matrix (matrix-vector for one row).
    pub const MATMUL: Self = Self::Product(Product::PLAIN);

    /// How many kinds there are.
    pub const COUNT: usize = Self::PLAIN.len() + Map::ALL.len() + 2 + Product::COUNT;

    /// Every op of the table: plain ones, element-wise ones, then products.
    pub fn all() -> impl Iterator<Item = Self> {
        let maps = Map::ALL.iter().map(|&map| Self::Map(map));
        let products = Product::all().iter().map(|&product| Self::Product(product));
        Self::PLAIN.iter().copied().chain(maps).chain(products)
    }

    /// The kind of this number; a user's kernel if there is none.
    pub(crate) fn of_index(index: u8) -> Self {
        let mut kinds = Self::all().chain([Self::Pinned]);
        kinds.find(|kind| kind.index() == usize::from(index)).unwrap_or(Self::Custom)
    }

    /// The product, if this is one.
    pub const fn product(self) -> Option<Product> {
        if let Self::Product(product) = self { Some(product) } else { None }
    }

    /// The element-wise op, if this is one.
    pub const fn map(self) -> Option<Map> {
        if let Self::Map(map) = self { Some(map) } else { None }
    }

    /// Whether a node of this kind may be moved. One that may not also stops others from crossing.
    pub const fn is_reorderable(self) -> bool {
        !matches!(self, Self::Pinned)
    }

    /// Lower-case name, as used in text forms and for kernels.
    pub fn name(self) -> &'static str {
        match (self, self.spec()) {
            (_, Some(spec)) => spec.name,
            (Self::Pinned, None) => "pinned",
            (_, None) => "custom",
        }
    }
}

impl OpSpec {
    /// How many operands may be bound: fewest and most.
    pub fn arity(&self) -> (usize, usize) {
        let optional = self.operands.iter().filter(|operand| operand.optional).count();
        (self.operands.len() - optional, self.operands.len())
    }

    /// The operands of a call that binds `bound` of them: without the optional ones if those are left
    /// out. `None` if the op takes no such number.
    pub fn bound(&self, bound: usize) -> Option<impl Iterator<Item = &'static Operand>> {
        let (fewest, most) = self.arity();
        let with_optional = bound == most;
        (with_optional || bound == fewest)
            .then(|| self.operands.iter().filter(move |o| with_optional || !o.optional))
    }

    /// Operand `index` of a call that binds `bound` of them.
    pub fn operand(&self, bound: usize, index: usize) -> Option<&'static Operand> {
        self.bound(bound)?.nth(index)
    }

    /// Positions of the weight matrices, which come before any optional operand.
    pub fn matrices(&self) -> impl Iterator<Item = usize> {
        self.operands.iter().enumerate().filter(|(_, o)| o.matrix).map(|(index, _)| index)
    }

    /// The contract of a call that binds `bound` operands; `None` if the op takes no such number.
    pub fn contract(&self, bound: usize) -> Option<KernelContract> {
        let bindings =
            self.bound(bound)?.map(|o| BindingContract::new(o.name, o.role).over(o.over));
        Some(KernelContract::new(self.name, bindings.collect::<Vec<_>>()))
    }
}

impl std::fmt::Display for CapturedOpKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for CapturedOpKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_name_and_a_number_of_its_own() {
        let kinds: Vec<_> =
            CapturedOpKind::all().chain([CapturedOpKind::Custom, CapturedOpKind::Pinned]).collect();
        assert_eq!(kinds.len(), CapturedOpKind::COUNT);
        let names: std::collections::BTreeSet<_> = kinds.iter().map(|kind| kind.name()).collect();
        let mut numbers: Vec<_> = kinds.iter().map(|kind| kind.index()).collect();
        numbers.sort_unstable();
        assert_eq!(names.len(), kinds.len());
        assert_eq!(numbers, (0..kinds.len()).collect::<Vec<_>>());
    }

    #[test]
    fn operands_behind_an_optional_one_move_up_without_it() {
        let spec = CapturedOpKind::AddRmsNormMul.spec().unwrap();
        assert_eq!(spec.arity(), (4, 5));
        let name = |bound, index| spec.operand(bound, index).map(|operand| operand.name);
        assert_eq!((name(5, 3), name(4, 3)), (Some("sum"), Some("y")));
        assert_eq!((name(4, 4), name(3, 0)), (None, None));
    }
}
