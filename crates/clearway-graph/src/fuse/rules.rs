//! The fusion rules, as data.
//!
//! A rule names two ops, the operand through which the second reads what the first computes, and
//! where the fused kernel's tensors come from. Everything else, above all every precondition, is
//! the same for all rules and lives in the matcher.
//!
//! The order of the table is the order in which rules are tried over the whole list. Two places in
//! it are decisions:
//!
//! - `matmul_add` stands before the rules that start with an add. A residual add between a matrix
//!   product and a norm fits either; both ways leave two dispatches, but in the product it is an
//!   epilogue on values in registers: the pair moves four activations through memory (residual and
//!   sum, sum and norm) instead of five.
//! - `rms_norm_mul` stands before `add_rms_norm_mul` and that before `add_rms_norm`, so a chain of
//!   all three ends as one dispatch. `add_rms_norm_then_mul` reaches the same end from the other
//!   side, for a device that lacks the kernel in the middle.

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
}

/// Where one binding of a fused dispatch comes from, and what shape it must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Bind {
    /// The member's binding.
    pub source: Source,
    /// Its shape, compared with the consumer's result.
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

/// How a shape relates to that of the consumer's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fit {
    /// Not at all.
    Any,
    /// The same, apart from leading extents of one.
    Full,
    /// The same, or one row of it, which is repeated.
    Row,
}

impl Rule {
    /// Whether the fused kernel can also give out what goes away.
    pub fn keeps(&self) -> bool {
        self.bindings.iter().any(|bind| bind.source == Source::Kept)
    }
}

impl Fit {
    /// Whether a tensor of this layout fits a result of that one.
    pub fn holds(self, operand: &Layout, result: &Layout) -> bool {
        let full = operand.shape4() == result.shape4();
        match self {
            Self::Any => true,
            Self::Full => full,
            Self::Row => full || (operand.rows() == 1 && operand.cols() == result.cols()),
        }
    }
}

const MUL_OR_ADD: &[usize] = &[0, 1];
const FIRST: &[usize] = &[0];

/// Every rule, in the order in which they are tried.
pub static RULES: [Rule; 8] = [
    Rule {
        name: "matmul_add",
        producer: Kind::MatMul,
        consumer: Kind::Add,
        operands: MUL_OR_ADD,
        fit: Fit::Full,
        fused: Kind::MatMulAdd,
        bindings: &[producer(0), producer(1), other(Fit::Row), RESULT],
    },
    Rule {
        name: "rms_norm_mul",
        producer: Kind::RmsNorm,
        consumer: Kind::Mul,
        operands: MUL_OR_ADD,
        fit: Fit::Full,
        fused: Kind::RmsNormMul,
        bindings: &[producer(0), other(Fit::Row), RESULT],
    },
    Rule {
        name: "silu_mul",
        producer: Kind::Silu,
        consumer: Kind::Mul,
        operands: MUL_OR_ADD,
        fit: Fit::Full,
        fused: Kind::SiluMul,
        bindings: &[producer(0), other(Fit::Full), RESULT],
    },
    Rule {
        name: "gelu_mul",
        producer: Kind::Gelu,
        consumer: Kind::Mul,
        operands: MUL_OR_ADD,
        fit: Fit::Full,
        fused: Kind::GeluMul,
        bindings: &[producer(0), other(Fit::Full), RESULT],
    },
    Rule {
        name: "rope_kv_write",
        producer: Kind::Rope,
        consumer: Kind::KvWrite,
        operands: FIRST,
        fit: Fit::Any,
        fused: Kind::RopeKvWrite,
        bindings: &[producer(0), producer(1), producer(2), consumer(1), RESULT],
    },
    Rule {
        name: "add_rms_norm_mul",
        producer: Kind::Add,
        consumer: Kind::RmsNormMul,
        operands: FIRST,
        fit: Fit::Full,
        fused: Kind::AddRmsNormMul,
        bindings: &[ADDEND, ADDEND_OR_ROW, consumer(1), KEPT, RESULT],
    },
    Rule {
        name: "add_rms_norm",
        producer: Kind::Add,
        consumer: Kind::RmsNorm,
        operands: FIRST,
        fit: Fit::Full,
        fused: Kind::AddRmsNorm,
        bindings: &[ADDEND, ADDEND_OR_ROW, KEPT, RESULT],
    },
    Rule {
        name: "add_rms_norm_then_mul",
        producer: Kind::AddRmsNorm,
        consumer: Kind::Mul,
        operands: MUL_OR_ADD,
        fit: Fit::Full,
        fused: Kind::AddRmsNormMul,
        bindings: &[ADDEND, ADDEND_OR_ROW, other(Fit::Row), ALREADY_KEPT, RESULT],
    },
];

const RESULT: Bind = Bind { source: Source::Result, fit: Fit::Any };
const KEPT: Bind = Bind { source: Source::Kept, fit: Fit::Any };
const ALREADY_KEPT: Bind = Bind { source: Source::AlreadyKept, fit: Fit::Any };
const ADDEND: Bind = Bind { source: Source::Producer(0), fit: Fit::Full };
const ADDEND_OR_ROW: Bind = Bind { source: Source::Producer(1), fit: Fit::Row };

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
pub(super) const fn binding_counts(kind: Kind) -> (usize, usize) {
    match kind {
        Kind::RmsNorm | Kind::Silu | Kind::Gelu => (2, 2),
        Kind::Rope => (4, 4),
        // The sum is bound only where it is kept.
        Kind::AddRmsNorm => (3, 4),
        _ => (3, 3),
    }
}

/// Where an op with an optional kept result binds it.
pub(super) const ALREADY_KEPT_AT: usize = 2;
