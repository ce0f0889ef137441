//! The fusion rules, as data.
//!
//! A rule names two ops, the operand through which the second reads what the first computes, and
//! where the fused kernel's tensors come from. Everything else, above all every precondition, is
//! the same for all rules and lives in the matcher.
//!
//! The order of the table is the order in which rules are tried over the whole list. These places in
//! it are decisions:
//!
//! - `matmul_add` stands before the rules that start with an add. A residual add between a matrix
//!   product and a norm fits either; both ways leave two dispatches, but in the product it is an
//!   epilogue on values in registers: the pair moves four activations through memory (residual and
//!   sum, sum and norm) instead of five.
//! - `rms_norm_mul` stands before `add_rms_norm_mul` and that before `add_rms_norm`, so a chain of
//!   all three ends as one dispatch. `add_rms_norm_then_mul` reaches the same end from the other
//!   side, for a device that lacks the kernel in the middle.
//! - The rules that put a norm into the products of it stand behind all others but those that start
//!   with such a product. What else a product can take in, a bias, a residual or the other half of a
//!   gated pair, must be in it by then: no rule ends with a product that holds a norm. And a sum that
//!   found no product is taken in by the norm first (`add_rms_norm_mul`): that leaves as many
//!   dispatches one after the other as the norm in the products would, and the norm is computed once.
//! - Of these the gated ones stand first only to be read first: a norm goes into all of its readers
//!   at once or into none, whichever rule finds it.
//! - The rules that end with the rotary embedding or the cache write of what a product gives stand last: a
//!   product must have its norm by then. A rotary embedding and its cache write are one by then
//!   (`rope_kv_write`), so that both go into the product.

use serde::Serialize;

use crate::layout::Layout;
use crate::node::CapturedOpKind as Kind;

/// Two ops that one kernel can do, and how its tensors follow from theirs.
///
/// Every op a rule names binds its result last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Rule {
    /// Name, as reports show it.
    pub name: &'static str,
    /// The op whose result goes away.
    pub producer: Kind,
    /// The op that reads it.
    pub consumer: Kind,
    /// Bindings of the consumer through which it may do so, in the order they are tried.
    pub operands: &'static [usize],
    /// Shape of what goes away, compared with the consumer's result.
    pub fit: Fit,
    /// The op that takes their place.
    pub fused: Kind,
    /// Its bindings, in the order of its contract.
    pub bindings: &'static [Bind],
    /// Operands that must be one and the same view.
    pub same: Option<Same>,
    /// Whether the producer, where its result has several readers, may be carried out once in each
    /// of them: cheap, with one result. All readers must be consumers of such rules and able to take
    /// in a copy, or none does. Such a rule has one operand.
    pub repeats: bool,
    /// Whether the consumer reads the rows the producer wrote in parts, as a rotary embedding reads
    /// the heads of a product: each row of what is written is one matrix, heads by head size, of what
    /// is read, and their bytes are the same. Otherwise both have one shape.
    pub reshaped: bool,
}

/// Two operands that are the same tensor, which the fused kernel reads once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Same {
    /// The consumer's binding, which the fused dispatch has, too.
    pub consumer: usize,
    /// The producer's binding, whose read goes away.
    pub producer: usize,
}

/// Where one binding of a fused dispatch comes from, and what shape it must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Bind {
    /// The member's binding.
    pub source: Source,
    /// Its shape, compared with the consumer's result or with what goes away.
    pub fit: Fit,
}

/// A binding of one of the two ops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Of the producer, by index.
    Producer(usize),
    /// Of the consumer, by index.
    Consumer(usize),
    /// Of the consumer's two operands, the one that is not the producer's result.
    Other,
    /// The producer's result, where something else still needs it; otherwise there is no such
    /// binding. A rule without this source takes no part where the result is needed elsewhere.
    Kept,
    /// A result the producer itself kept from an earlier fusion, if it did.
    AlreadyKept,
    /// The consumer's result.
    Result,
}

/// How a shape relates to that of the consumer's result, or of what goes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fit {
    /// Not at all.
    Any,
    /// The same, apart from leading extents of one.
    Full,
    /// The same, or one row of it, which is repeated.
    Row,
    /// One row as wide as what goes away.
    Weight,
}

impl Rule {
    /// Whether the fused kernel can also give out what goes away.
    pub fn keeps(&self) -> bool {
        self.bindings.iter().any(|bind| bind.source == Source::Kept)
    }
}

impl Fit {
    /// The layout to compare with, of the consumer's result and what goes away.
    pub fn against(self, result: Layout, value: Layout) -> Layout {
        match self {
            Self::Any | Self::Full | Self::Row => result,
            Self::Weight => value,
        }
    }

    /// Whether a tensor of this layout fits the one it is compared with.
    pub fn holds(self, operand: &Layout, other: &Layout) -> bool {
        let full = operand.shape4() == other.shape4();
        let row = operand.rows() == 1 && operand.cols() == other.cols();
        match self {
            Self::Any => true,
            Self::Full => full,
            Self::Row => full || row,
            Self::Weight => row,
        }
    }
}

const MUL_OR_ADD: &[usize] = &[0, 1];
const FIRST: &[usize] = &[0];
/// What a gate is multiplied by, in a product that holds the gate.
const UP: &[usize] = &[2];

/// Every rule, in the order in which they are tried.
pub static RULES: [Rule; 22] = [
    Rule {
        name: "matmul_add",
        producer: Kind::MatMul,
        consumer: Kind::Add,
        operands: MUL_OR_ADD,
        fit: Fit::Full,
        fused: Kind::MatMulAdd,
        bindings: &[producer(0), producer(1), other(Fit::Row), RESULT],
        ..PLAIN
    },
    Rule {
        name: "rms_norm_mul",
        producer: Kind::RmsNorm,
        consumer: Kind::Mul,
        operands: MUL_OR_ADD,
        fit: Fit::Full,
        fused: Kind::RmsNormMul,
        bindings: &[producer(0), other(Fit::Row), RESULT],
        ..PLAIN
    },
    Rule {
        name: "silu_mul",
        producer: Kind::Silu,
        consumer: Kind::Mul,
        operands: MUL_OR_ADD,
        fit: Fit::Full,
        fused: Kind::SiluMul,
        bindings: &[producer(0), other(Fit::Full), RESULT],
        ..PLAIN
    },
    Rule {
        name: "gelu_mul",
        producer: Kind::Gelu,
        consumer: Kind::Mul,
        operands: MUL_OR_ADD,
        fit: Fit::Full,
        fused: Kind::GeluMul,
        bindings: &[producer(0), other(Fit::Full), RESULT],
        ..PLAIN
    },
    Rule {
        name: "rope_kv_write",
        producer: Kind::Rope,
        consumer: Kind::KvWrite,
        operands: FIRST,
        fit: Fit::Any,
        fused: Kind::RopeKvWrite,
        bindings: &[producer(0), producer(1), producer(2), consumer(1), RESULT],
        ..PLAIN
    },
    Rule {
        name: "add_rms_norm_mul",
        producer: Kind::Add,
        consumer: Kind::RmsNormMul,
        operands: FIRST,
        fit: Fit::Full,
        fused: Kind::AddRmsNormMul,
        bindings: &[ADDEND, ADDEND_OR_ROW, consumer(1), KEPT, RESULT],
        ..PLAIN
    },
    Rule {
        name: "add_rms_norm",
        producer: Kind::Add,
        consumer: Kind::RmsNorm,
        operands: FIRST,
        fit: Fit::Full,
        fused: Kind::AddRmsNorm,
        bindings: &[ADDEND, ADDEND_OR_ROW, KEPT, RESULT],
        ..PLAIN
    },
    Rule {
        name: "add_rms_norm_then_mul",
        producer: Kind::AddRmsNorm,
        consumer: Kind::Mul,
        operands: MUL_OR_ADD,
        fit: Fit::Full,
        fused: Kind::AddRmsNormMul,
        bindings: &[ADDEND, ADDEND_OR_ROW, other(Fit::Row), ALREADY_KEPT, RESULT],
        ..PLAIN
    },
    Rule {
        name: "matmul_silu_mul",
        producer: Kind::MatMul,
        consumer: Kind::SiluMul,
        operands: FIRST,
        fit: Fit::Full,
        fused: Kind::MatMulSiluMul,
        bindings: &[producer(0), producer(1), FULL_UP, RESULT],
        ..PLAIN
    },
    Rule {
        name: "matmul_gelu_mul",
        producer: Kind::MatMul,
        consumer: Kind::GeluMul,
        operands: FIRST,
        fit: Fit::Full,
        fused: Kind::MatMulGeluMul,
        bindings: &[producer(0), producer(1), FULL_UP, RESULT],
        ..PLAIN
    },
    Rule {
        name: "matmul_silu_gated",
        producer: Kind::MatMul,
        consumer: Kind::MatMulSiluMul,
        operands: UP,
        fit: Fit::Full,
        fused: Kind::MatMulSiluGated,
        bindings: &[consumer(0), consumer(1), producer(1), RESULT],
        same: Some(Same { consumer: 0, producer: 0 }),
        ..PLAIN
    },
    Rule {
        name: "matmul_gelu_gated",
        producer: Kind::MatMul,
        consumer: Kind::MatMulGeluMul,
        operands: UP,
        fit: Fit::Full,
        fused: Kind::MatMulGeluGated,
        bindings: &[consumer(0), consumer(1), producer(1), RESULT],
        same: Some(Same { consumer: 0, producer: 0 }),
        ..PLAIN
    },
    Rule {
        name: "norm_matmul_silu_gated",
        producer: Kind::RmsNormMul,
        consumer: Kind::MatMulSiluGated,
        operands: FIRST,
        fit: Fit::Any,
        fused: Kind::NormMatMulSiluGated,
        bindings: &[producer(0), NORM_WEIGHT, consumer(1), consumer(2), RESULT],
        repeats: true,
        ..PLAIN
    },
    Rule {
        name: "norm_matmul_gelu_gated",
        producer: Kind::RmsNormMul,
        consumer: Kind::MatMulGeluGated,
        operands: FIRST,
        fit: Fit::Any,
        fused: Kind::NormMatMulGeluGated,
        bindings: &[producer(0), NORM_WEIGHT, consumer(1), consumer(2), RESULT],
        repeats: true,
        ..PLAIN
    },
    Rule {
        name: "norm_matmul_add",
        producer: Kind::RmsNormMul,
        consumer: Kind::MatMulAdd,
        operands: FIRST,
        fit: Fit::Any,
        fused: Kind::NormMatMulAdd,
        bindings: &[producer(0), NORM_WEIGHT, consumer(1), BIAS, RESULT],
        repeats: true,
        ..PLAIN
    },
    Rule {
        name: "norm_matmul",
        producer: Kind::RmsNormMul,
        consumer: Kind::MatMul,
        operands: FIRST,
        fit: Fit::Any,
        fused: Kind::NormMatMul,
        bindings: &[producer(0), NORM_WEIGHT, consumer(1), RESULT],
        repeats: true,
        ..PLAIN
    },
    Rule {
        name: "norm_matmul_rope",
        producer: Kind::NormMatMul,
        consumer: Kind::Rope,
        operands: FIRST,
        fit: Fit::Full,
        fused: Kind::NormMatMulRope,
        bindings: &[producer(0), producer(1), producer(2), consumer(1), consumer(2), RESULT],
        reshaped: true,
        ..PLAIN
    },
    Rule {
        name: "norm_matmul_rope_kv",
        producer: Kind::NormMatMul,
        consumer: Kind::RopeKvWrite,
        operands: FIRST,
        fit: Fit::Any,
        fused: Kind::NormMatMulRopeKv,
        bindings: &[
            producer(0),
            producer(1),
            producer(2),
            consumer(1),
            consumer(2),
            consumer(3),
            RESULT,
        ],
        reshaped: true,
        ..PLAIN
    },
    Rule {
        name: "norm_matmul_kv",
        producer: Kind::NormMatMul,
        consumer: Kind::KvWrite,
        operands: FIRST,
        fit: Fit::Any,
        fused: Kind::NormMatMulKv,
        bindings: &[producer(0), producer(1), producer(2), consumer(1), RESULT],
        reshaped: true,
        ..PLAIN
    },
    Rule {
        name: "matmul_rope",
        producer: Kind::MatMul,
        consumer: Kind::Rope,
        operands: FIRST,
        fit: Fit::Full,
        fused: Kind::MatMulRope,
        bindings: &[producer(0), producer(1), consumer(1), consumer(2), RESULT],
        reshaped: true,
        ..PLAIN
    },
    Rule {
        name: "matmul_rope_kv",
        producer: Kind::MatMul,
        consumer: Kind::RopeKvWrite,
        operands: FIRST,
        fit: Fit::Any,
        fused: Kind::MatMulRopeKv,
        bindings: &[producer(0), producer(1), consumer(1), consumer(2), consumer(3), RESULT],
        reshaped: true,
        ..PLAIN
    },
    Rule {
        name: "matmul_kv",
        producer: Kind::MatMul,
        consumer: Kind::KvWrite,
        operands: FIRST,
        fit: Fit::Any,
        fused: Kind::MatMulKv,
        bindings: &[producer(0), producer(1), consumer(1), RESULT],
        reshaped: true,
        ..PLAIN
    },
];

const RESULT: Bind = Bind { source: Source::Result, fit: Fit::Any };
const KEPT: Bind = Bind { source: Source::Kept, fit: Fit::Any };
const ALREADY_KEPT: Bind = Bind { source: Source::AlreadyKept, fit: Fit::Any };
const ADDEND: Bind = Bind { source: Source::Producer(0), fit: Fit::Full };
const ADDEND_OR_ROW: Bind = Bind { source: Source::Producer(1), fit: Fit::Row };
const FULL_UP: Bind = Bind { source: Source::Consumer(1), fit: Fit::Full };
const NORM_WEIGHT: Bind = Bind { source: Source::Producer(1), fit: Fit::Weight };
const BIAS: Bind = Bind { source: Source::Consumer(2), fit: Fit::Row };

/// What most rules leave alone.
const PLAIN: Rule = Rule {
    name: "",
    producer: Kind::Custom,
    consumer: Kind::Custom,
    operands: &[],
    fit: Fit::Any,
    fused: Kind::Custom,
    bindings: &[],
    same: None,
    repeats: false,
    reshaped: false,
};

const fn producer(index: usize) -> Bind {
    Bind { source: Source::Producer(index), fit: Fit::Any }
}

const fn consumer(index: usize) -> Bind {
    Bind { source: Source::Consumer(index), fit: Fit::Any }
}

const fn other(fit: Fit) -> Bind {
    Bind { source: Source::Other, fit }
}

/// Fewest and most bindings of an op that a rule names.
pub(crate) const fn binding_counts(kind: Kind) -> (usize, usize) {
    match kind {
        Kind::RmsNorm | Kind::Silu | Kind::Gelu => (2, 2),
        Kind::Rope => (4, 4),
        // The sum is bound only where it is kept.
        Kind::AddRmsNorm => (3, 4),
        Kind::MatMulAdd
        | Kind::MatMulSiluMul
        | Kind::MatMulGeluMul
        | Kind::MatMulSiluGated
        | Kind::MatMulGeluGated
        | Kind::NormMatMul => (4, 4),
        Kind::RopeKvWrite => (5, 5),
        _ => (3, 3),
    }
}

/// Where an op with an optional kept result binds it.
pub(crate) const ALREADY_KEPT_AT: usize = 2;
