//! A matrix product with what is fused to it, described by its parts.
//!
//! | part | values | what it does |
//! |---|---|---|
//! | input | plain, normed | divides each row by its root mean square and multiplies it by a weight first |
//! | weights | one matrix, experts | multiplies by one matrix, or by those of the experts that were chosen for each row |
//! | gate | none, ungated, operand, weights | sends the product through a function, and multiplies it by an operand or by a second product of the same rows |
//! | epilogue | add | adds a residual of the result's shape, or a bias of one row |
//! | | head norm | divides each head by its root mean square and multiplies it by a weight |
//! | | rope | rotates the heads of each row |
//! | | cache | writes the heads into a KV cache instead of a result |
//! | | norm | multiplies by the weight of the norm behind and leaves each chunk's mean square with it |
//!
//! [`Product::new`] says which parts go together. Names, operands and constants follow from the parts, and so
//! do the fusion rules, checks, references, kernels and test cases of the layers above.
//!
//! Quantisation for the next product is no part of its own: the element type of the result says it
//! ([`DType::A8`](crate::DType::A8)).

mod plain;

use std::sync::LazyLock;

pub use plain::{PlainInput, PlainOp, PlainShape};

use super::{
    CapturedOpKind, OpSpec, Operand, ParamSpec, float, int, matrix, read, update, write,
    write_if_read,
};

/// A matrix product and what is fused to it. Only combinations that kernels exist for can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Product {
    input: Input,
    /// Whether weights are those of the experts that were chosen for each row.
    experts: bool,
    gate: Gate,
    /// By bits ([`Epilogue::bits`]): a kind is part of faults, which are handed through many results and have to stay
    /// small.
    epilogue: u8,
}

/// Constants of a rotation: dimensions, mode, base, scale and magnitude.
const ROPE_PARAMS: usize = 5;

/// What happens to a product's rows before they are multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Input {
    /// Nothing.
    Plain,
    /// Each row is divided by its root mean square and multiplied by a weight.
    Normed,
}

/// What the product is the gate of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Gate {
    /// Of nothing: it is the result.
    None,
    /// Of nothing, but it goes through the function.
    Ungated(Activation),
    /// Of an operand: the activated product is multiplied by it.
    Operand(Activation),
    /// Of a second product of the same rows with other weights.
    Weights(Activation),
}

/// The function a gate goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// GELU, tanh form.
    Gelu,
    /// The square of what is above zero. Products use it ungated.
    ReluSquared,
}

/// What is done with each element of a product before it is stored, in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Epilogue {
    /// A residual or bias is added.
    pub add: bool,
    /// Each head is divided by its root mean square and multiplied by a weight.
    pub head_norm: bool,
    /// Heads are rotated.
    pub rope: bool,
    /// Heads are written into a KV cache, which takes the place of the result.
    pub cache: bool,
    /// The norm of the row follows. A kernel has no more than some elements of a row at a time, so that this
    /// exists only for a result that is quantised and carries what its rows are still to be divided by.
    pub norm: bool,
}

/// What an operand of a product is for. Operands are bound in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Slot {
    /// The rows that are multiplied.
    Input,
    /// Weight of the norm in front.
    NormWeight,
    /// The weight matrix; of a gated product that of the gate.
    Weight,
    /// The second weight matrix of a gated product.
    UpWeight,
    /// The experts that were chosen for each row.
    Ids,
    /// What a gate is multiplied by.
    Up,
    /// What is added.
    Addend,
    /// Weight of the norm of each head.
    HeadNormWeight,
    /// Rotary positions.
    Positions,
    /// Rotary frequency factors.
    Factors,
    /// Cache rows that are written.
    CacheRows,
    /// Weight of the norm behind.
    NextNormWeight,
    /// The sum before the norm behind, where somebody needs it.
    Sum,
    /// The result.
    Result,
    /// The cache that takes the place of the result.
    Cache,
}

impl Slot {
    /// How the slot is bound.
    const fn operand(self) -> Operand {
        match self {
            Self::Input => read("x"),
            Self::NormWeight => read("g"),
            Self::Weight => matrix("w"),
            Self::UpWeight => matrix("u"),
            Self::Ids => read("ids"),
            Self::Up => read("up"),
            Self::Addend => read("c"),
            Self::HeadNormWeight => read("h"),
            Self::Positions => read("positions"),
            Self::Factors => read("factors"),
            Self::CacheRows => read("kv_positions"),
            Self::NextNormWeight => read("next"),
            Self::Sum => write_if_read("sum"),
            Self::Result => write("y"),
            Self::Cache => update("cache"),
        }
    }

    const ALL: [Self; 15] = [
        Self::Input,
        Self::NormWeight,
        Self::Weight,
        Self::UpWeight,
        Self::Ids,
        Self::Up,
        Self::Addend,
        Self::HeadNormWeight,
        Self::Positions,
        Self::Factors,
        Self::CacheRows,
        Self::NextNormWeight,
        Self::Sum,
        Self::Result,
        Self::Cache,
    ];
}

impl Activation {
    /// Every activation.
    pub const ALL: [Self; 3] = [Self::Silu, Self::Gelu, Self::ReluSquared];

    /// Lower-case name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Silu => "silu",
            Self::Gelu => "gelu",
            Self::ReluSquared => "relu_squared",
        }
    }

    /// The op that is the function alone.
    pub const fn op(self) -> CapturedOpKind {
        match self {
            Self::Silu => CapturedOpKind::SILU,
            Self::Gelu => CapturedOpKind::GELU,
            Self::ReluSquared => CapturedOpKind::RELU_SQUARED,
        }
    }

    /// The op that multiplies a gate activated by this function by an operand, if there is one. Without it no
    /// product is gated by the function.
    pub const fn mul(self) -> Option<CapturedOpKind> {
        match self {
            Self::Silu => Some(CapturedOpKind::SILU_MUL),
            Self::Gelu => Some(CapturedOpKind::GELU_MUL),
            Self::ReluSquared => None,
        }
    }
}

impl Gate {
    /// The function the gate goes through, if there is a gate.
    pub const fn activation(self) -> Option<Activation> {
        match self {
            Self::None => None,
            Self::Ungated(activation) | Self::Operand(activation) | Self::Weights(activation) => {
                Some(activation)
            }
        }
    }
}

impl Epilogue {
    /// Whether the result is stored as it is.
    pub const NONE: Self =
        Self { add: false, head_norm: false, rope: false, cache: false, norm: false };

    /// Whether rows are stored as heads.
    pub const fn heads(self) -> bool {
        self.head_norm || self.rope || self.cache
    }

    /// Combinations of parts, allowed or not.
    const COMBINATIONS: u8 = 1 << 5;

    /// A bit for each part.
    const fn bits(self) -> u8 {
        let Self { add, head_norm, rope, cache, norm } = self;
        add as u8
            | (head_norm as u8) << 1
            | (rope as u8) << 2
            | (cache as u8) << 3
            | (norm as u8) << 4
    }

    /// The parts that have a bit.
    const fn of_bits(bits: u8) -> Self {
        Self {
            add: bits & 1 != 0,
            head_norm: bits & 2 != 0,
            rope: bits & 4 != 0,
            cache: bits & 8 != 0,
            norm: bits & 16 != 0,
        }
    }

    /// Whether nothing is done with elements before they are stored.
    const fn is_none(self) -> bool {
        !(self.add || self.heads() || self.norm)
    }
}

impl Product {
    /// The plain product.
    pub const PLAIN: Self =
        Self { input: Input::Plain, experts: false, gate: Gate::None, epilogue: 0 };

    /// The product with the weights of chosen experts and nothing else, which is an op of its own
    /// ([`CapturedOpKind::MatMulExperts`]) and in no table of products: others are made from it.
    pub const EXPERTS: Self = Self { experts: true, ..Self::PLAIN };

    /// The product that adds a residual and carries out the norm behind it.
    pub const WITH_NORM: Self = Self {
        epilogue: Epilogue { add: true, norm: true, ..Epilogue::NONE }.bits(),
        ..Self::PLAIN
    };

    /// How many products there are.
    pub const COUNT: usize = 39;

    /// The product with these parts; `None` if they do not go together:
    ///
    /// - a product with an activation has no epilogue, and one that is the gate of an operand no norm in front;
    /// - only an activation that gates nothing stands alone;
    /// - the norm behind needs a sum in front of it, and stands alone otherwise;
    /// - nothing is added in front of a norm of heads;
    /// - a product of experts is gated, and has no epilogue.
    pub const fn new(input: Input, gate: Gate, epilogue: Epilogue) -> Option<Self> {
        Self { input, gate, epilogue: epilogue.bits(), ..Self::PLAIN }.if_allowed()
    }

    /// The product itself, if its parts go together.
    const fn if_allowed(self) -> Option<Self> {
        let Self { input, experts, gate, .. } = self;
        let epilogue = self.epilogue();
        let Epilogue { add, head_norm, norm, .. } = epilogue;
        let plain = matches!(input, Input::Plain);
        let allowed = match gate {
            Gate::None => !(add && head_norm) && (!norm || (add && plain && !epilogue.heads())),
            Gate::Ungated(activation) => activation.mul().is_none() && epilogue.is_none(),
            Gate::Operand(activation) => activation.mul().is_some() && plain && epilogue.is_none(),
            Gate::Weights(activation) => activation.mul().is_some() && epilogue.is_none(),
        };
        let gated = matches!(gate, Gate::Operand(_) | Gate::Weights(_));
        if allowed && (!experts || gated) { Some(self) } else { None }
    }

    /// What happens to the rows before they are multiplied.
    pub const fn input(self) -> Input {
        self.input
    }

    /// What it is the gate of.
    pub const fn gate(self) -> Gate {
        self.gate
    }

    /// What is done with each element before it is stored.
    pub const fn epilogue(self) -> Epilogue {
        Epilogue::of_bits(self.epilogue)
    }

    /// Whether weights are those of the experts that were chosen for each row.
    pub const fn is_of_experts(self) -> bool {
        self.experts
    }

    /// Whether rows are normed before they are multiplied.
    pub const fn is_normed(self) -> bool {
        matches!(self.input, Input::Normed)
    }

    /// The same product behind a norm.
    pub const fn behind_norm(self) -> Option<Self> {
        match self.input {
            Input::Plain => Self { input: Input::Normed, ..self }.if_allowed(),
            Input::Normed => None,
        }
    }

    /// The same product with another gate.
    pub const fn with_gate(self, gate: Gate) -> Option<Self> {
        Self { gate, ..self }.if_allowed()
    }

    /// The same product with another epilogue.
    pub const fn with_epilogue(self, epilogue: Epilogue) -> Option<Self> {
        Self { epilogue: epilogue.bits(), ..self }.if_allowed()
    }

    /// Whether a kernel may find the rows quantised.
    pub const fn may_read_quantised(self) -> bool {
        matches!(self.input, Input::Plain) && !self.experts
    }

    /// Whether a kernel may quantise the result for the product that reads it.
    pub const fn may_quantise(self) -> bool {
        let gated = matches!(self.gate, Gate::Ungated(_) | Gate::Weights(_));
        (gated && !self.experts) || self.epilogue().norm
    }

    /// Every product.
    pub fn all() -> &'static [Self] {
        &TABLE.products
    }

    /// Place in [`all`](Self::all).
    pub fn index(self) -> usize {
        usize::from(TABLE.index[self.code()])
    }

    /// The row of the op table that follows from the parts.
    pub fn spec(self) -> &'static OpSpec {
        &TABLE.specs[self.index()]
    }

    /// What each operand is for, in the order in which they are bound, the optional one included.
    pub fn slots(self) -> &'static [Slot] {
        &TABLE.slots[self.index()]
    }

    /// The operand in this slot, of a call that binds `bound` operands.
    pub fn operand(self, slot: Slot, bound: usize) -> Option<usize> {
        let slots = self.slots();
        let left_out = bound < slots.len();
        if left_out && slot == Slot::Sum {
            return None;
        }
        let mut bound_slots = slots.iter().filter(|&&s| !(left_out && s == Slot::Sum));
        bound_slots.position(|&s| s == slot)
    }

    /// The slot of operand `index`, of a call that binds `bound` operands.
    pub fn slot(self, index: usize, bound: usize) -> Option<Slot> {
        self.slots().iter().copied().find(|&slot| self.operand(slot, bound) == Some(index))
    }

    /// Whether nothing but a residual or bias is fused to it: kernels for any number of rows exist.
    pub fn is_basic(self) -> bool {
        let only_add = Epilogue { add: self.epilogue().add, ..Epilogue::NONE };
        self == Self { epilogue: only_add.bits(), ..Self::PLAIN }
    }

    /// The first constant of the rotation.
    pub const fn rope_params(self) -> usize {
        self.head_norm_param() + self.epilogue().head_norm as usize
    }

    /// The constant of the norm of heads.
    pub const fn head_norm_param(self) -> usize {
        self.is_normed() as usize
    }

    fn has(self, slot: Slot) -> bool {
        let Epilogue { add, head_norm, rope, cache, norm } = self.epilogue();
        match slot {
            Slot::Input | Slot::Weight => true,
            Slot::NormWeight => self.is_normed(),
            Slot::UpWeight => matches!(self.gate, Gate::Weights(_)),
            Slot::Ids => self.experts,
            Slot::Up => matches!(self.gate, Gate::Operand(_)),
            Slot::Addend => add,
            Slot::HeadNormWeight => head_norm,
            Slot::Positions | Slot::Factors => rope,
            Slot::CacheRows | Slot::Cache => cache,
            Slot::NextNormWeight | Slot::Sum => norm,
            Slot::Result => !cache,
        }
    }

    fn name(self) -> String {
        let Epilogue { add, head_norm, rope, cache, norm } = self.epilogue();
        let gate = match self.gate {
            Gate::None => String::new(),
            Gate::Ungated(activation) => format!("_{}", activation.name()),
            Gate::Operand(activation) => format!("_{}_mul", activation.name()),
            Gate::Weights(activation) => format!("_{}_gated", activation.name()),
        };
        let part = |there: bool, name| if there { name } else { "" };
        [
            part(self.is_normed(), "norm_"),
            if self.experts { "matmul_experts" } else { "matmul" },
            &gate,
            part(add, "_add"),
            part(head_norm, "_head_norm"),
            part(rope, "_rope"),
            part(cache, "_kv"),
            part(norm, "_norm"),
        ]
        .concat()
    }

    fn params(self) -> Vec<ParamSpec> {
        let mut params = Vec::new();
        if self.is_normed() || self.epilogue().norm {
            params.push(float("eps"));
        }
        if self.epilogue().head_norm {
            params.push(float("head_eps"));
        }
        if self.epilogue().rope {
            let rotation: [ParamSpec; ROPE_PARAMS] =
                [int("n_dims"), int("mode"), float("base"), float("scale"), float("magnitude")];
            params.extend(rotation);
        }
        params
    }

    /// A number below [`CODES`] for each combination of parts, allowed or not.
    const fn code(self) -> usize {
        let gate = match self.gate {
            Gate::None => 0,
            Gate::Ungated(activation) => 1 + 3 * activation as usize,
            Gate::Operand(activation) => 2 + 3 * activation as usize,
            Gate::Weights(activation) => 3 + 3 * activation as usize,
        };
        let Epilogue { add, head_norm, rope, cache, norm } = self.epilogue();
        let flags = [self.experts, self.is_normed(), add, head_norm, rope, cache, norm];
        let (mut code, mut flag) = (gate, 0);
        while flag < flags.len() {
            code = 2 * code + flags[flag] as usize;
            flag += 1;
        }
        code
    }
}

/// Combinations of parts, allowed or not.
const CODES: usize = (1 + 3 * Activation::ALL.len()) << 7;

/// What follows from the parts of each product.
struct Table {
    products: Vec<Product>,
    specs: Vec<OpSpec>,
    slots: Vec<Vec<Slot>>,
    /// By code.
    index: [u8; CODES],
}

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    let gates = Activation::ALL
        .into_iter()
        .flat_map(|a| [Gate::Ungated(a), Gate::Operand(a), Gate::Weights(a)]);
    let gates: Vec<_> = [Gate::None].into_iter().chain(gates).collect();
    let mut table = Table { products: vec![], specs: vec![], slots: vec![], index: [0; CODES] };
    let inputs = [Input::Plain, Input::Normed];
    let weights = [(false, inputs[0]), (false, inputs[1]), (true, inputs[0]), (true, inputs[1])];
    for (experts, input) in weights {
        for &gate in &gates {
            for epilogue in 0..Epilogue::COMBINATIONS {
                let product = Product { input, experts, gate, epilogue };
                let Some(product) = product.if_allowed() else { continue };
                table.index[product.code()] = table.products.len() as u8;
                let slots: Vec<_> = Slot::ALL.into_iter().filter(|&s| product.has(s)).collect();
                // The table lives as long as the program.
                table.specs.push(OpSpec {
                    kind: CapturedOpKind::Product(product),
                    name: product.name().leak(),
                    operands: slots.iter().map(|slot| slot.operand()).collect::<Vec<_>>().leak(),
                    params: product.params().leak(),
                });
                table.slots.push(slots);
                table.products.push(product);
            }
        }
    }
    table
});

#[cfg(test)]
mod tests {
    use super::*;

    fn product(input: Input, gate: Gate, epilogue: Epilogue) -> Product {
        Product::new(input, gate, epilogue).unwrap()
    }

    fn operands(product: Product) -> Vec<&'static str> {
        product.spec().operands.iter().map(|operand| operand.name).collect()
    }

    #[test]
    fn rows_of_the_table_follow_from_the_parts() {
        assert_eq!(Product::all().len(), Product::COUNT);
        for (index, product) in Product::all().iter().enumerate() {
            assert_eq!(product.index(), index, "{product:?}");
            assert_eq!(product.spec().operands.len(), product.slots().len());
        }
        let heads = Epilogue { rope: true, cache: true, ..Epilogue::NONE };
        let heads = product(Input::Normed, Gate::None, heads);
        assert_eq!(heads.spec().name, "norm_matmul_rope_kv");
        let names = ["x", "g", "w", "positions", "factors", "kv_positions", "cache"];
        assert_eq!(operands(heads), names);
        assert_eq!(heads.spec().params.len(), 1 + ROPE_PARAMS);
        let normed = Epilogue { head_norm: true, rope: true, ..Epilogue::NONE };
        let normed = product(Input::Normed, Gate::None, normed);
        assert_eq!(normed.spec().name, "norm_matmul_head_norm_rope");
        assert_eq!(operands(normed), ["x", "g", "w", "h", "positions", "factors", "y"]);
        assert_eq!((normed.head_norm_param(), normed.rope_params()), (1, 2));
        let ahead = Epilogue { add: true, norm: true, ..Epilogue::NONE };
        let ahead = product(Input::Plain, Gate::None, ahead);
        assert_eq!(operands(ahead), ["x", "w", "c", "next", "sum", "y"]);
        assert_eq!(ahead.operand(Slot::Result, 5), Some(4));
        assert_eq!(ahead.operand(Slot::Sum, 5), None);
        assert_eq!(ahead.operand(Slot::Sum, 6), Some(4));
    }

    #[test]
    fn experts_are_gated() {
        let gated = Product::EXPERTS.with_gate(Gate::Weights(Activation::Silu)).unwrap();
        assert_eq!(operands(gated), ["x", "w", "u", "ids", "y"]);
        let normed = gated.behind_norm().unwrap();
        assert_eq!(normed.spec().name, "norm_matmul_experts_silu_gated");
        assert!(!normed.may_quantise() && !gated.may_read_quantised());
        let add = Epilogue { add: true, ..Epilogue::NONE };
        assert_eq!((gated.with_epilogue(add), Product::EXPERTS.behind_norm()), (None, None));
    }

    #[test]
    fn parts_that_do_not_go_together_make_no_product() {
        let all = Epilogue { add: true, head_norm: true, rope: true, cache: true, norm: true };
        let only = |epilogue| Product::new(Input::Plain, Gate::None, epilogue);
        assert_eq!(only(all), None);
        assert_eq!(only(Epilogue { norm: true, ..Epilogue::NONE }), None);
        assert_eq!(only(Epilogue { add: true, head_norm: true, ..Epilogue::NONE }), None);
        let gate = Gate::Weights(Activation::Silu);
        assert_eq!(Product::new(Input::Plain, gate, Epilogue { add: true, ..all }), None);
        let operand = Gate::Operand(Activation::Silu);
        assert_eq!(Product::new(Input::Normed, operand, Epilogue::NONE), None);
    }
}
