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
//! - `rms_norm_mul_add` stands before `add_rms_norm_mul`. A sum between two norms fits either, and both ways leave
//!   two dispatches. With the sum in the first one, the second norm can still go into the products of it.
//! - The rule that puts a norm into the product in front of it (`matmul_add_norm`) stands before those that
//!   put it into the products behind: the norm is computed once, and what it gives is quantised once.
//!   Gated pairs are one by then, so that few dispatches read it.
//! - The rules that put a norm into the products of it stand behind all others but those that start
//!   with such a product. What else a product can take in, a bias, a residual or the other half of a
//!   gated pair, must be in it by then: no rule ends with a product that holds a norm. And a sum that
//!   found no product is taken in by the norm first (`add_rms_norm_mul`): that leaves as many
//!   dispatches one after the other as the norm in the products would, and the norm is computed once.
//! - Of these the gated ones stand first only to be read first: a norm goes into all of its readers
//!   at once or into none, whichever rule finds it.
//! - The rules that end with what is done to the heads of a product stand last: a product must have its norm
//!   by then. A rotary embedding and its cache write are one by then (`rope_kv_write`), so that both go into
//!   the product. Of these, the norm of heads is in front of both.

use std::sync::LazyLock;

use serde::Serialize;
use smallvec::SmallVec;

use crate::layout::Layout;
use crate::op::{Activation, CapturedOpKind as Kind, Epilogue, Gate, Input, OpSpec, Product, Slot};

/// Bindings of a fused dispatch.
pub type Binds = Vec<Bind>;

/// Two ops that one kernel can do, and how its tensors follow from theirs.
///
/// Every op a rule names binds its result last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rule {
    /// Name, as reports show it.
    pub name: &'static str,
    /// The op whose result goes away.
    pub producer: Kind,
    /// The op that reads it.
    pub consumer: Kind,
    /// Bindings of the consumer through which it may do so, in the order they are tried.
    pub operands: Vec<usize>,
    /// Shape of what goes away, compared with the consumer's result.
    pub fit: Fit,
    /// The op that takes their place.
    pub fused: Kind,
    /// Its bindings, in the order of its contract.
    pub bindings: Binds,
    /// Operands that must be one and the same view each.
    pub same: Vec<Same>,
    /// Whether the producer, where its result has several readers, may be carried out once in each
    /// of them: cheap, with one result. All readers must be consumers of such rules and able to take
    /// in a copy, or none does. Such a rule has one operand.
    pub repeats: bool,
    /// Whether the consumer reads the rows the producer wrote in parts, as a rotary embedding reads
    /// the heads of a product: each row of what is written is one matrix, heads by head size, of what
    /// is read, and their bytes are the same. Otherwise both have one shape.
    pub reshaped: bool,
    /// Whether the result exists only quantised: all who read it must be products that may find their
    /// activations so, and do from then on. Such rules have a switch of their own.
    pub quantises: bool,
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

/// Every rule, in the order in which they are tried, with what the fuser looks up.
pub static RULES: LazyLock<RuleTable> = LazyLock::new(RuleTable::new);

/// The rules, and which of them name an op.
#[derive(Debug)]
pub struct RuleTable {
    rules: Vec<Rule>,
    /// By [`Kind::index`]: numbers of the rules whose consumer it is.
    by_consumer: Vec<SmallVec<[u32; 4]>>,
    /// By [`Kind::index`]: numbers of the rules whose producer it is.
    by_producer: Vec<SmallVec<[u32; 4]>>,
    /// By [`Kind::index`]: numbers of the rules that make it.
    by_fused: Vec<SmallVec<[u32; 4]>>,
}

impl std::ops::Deref for RuleTable {
    type Target = [Rule];

    fn deref(&self) -> &[Rule] {
        &self.rules
    }
}

impl RuleTable {
    fn new() -> Self {
        let rules = all_rules();
        let none = vec![SmallVec::new(); Kind::COUNT];
        let [mut by_consumer, mut by_producer, mut by_fused] = [none.clone(), none.clone(), none];
        for (number, rule) in (0..).zip(&rules) {
            by_consumer[rule.consumer.index()].push(number);
            by_producer[rule.producer.index()].push(number);
            by_fused[rule.fused.index()].push(number);
        }
        Self { rules, by_consumer, by_producer, by_fused }
    }

    /// Numbers of the rules whose consumer is an op of this kind.
    pub fn with_consumer(&self, kind: Kind) -> &[u32] {
        &self.by_consumer[kind.index()]
    }

    /// Numbers of the rules whose producer is an op of this kind.
    pub fn with_producer(&self, kind: Kind) -> &[u32] {
        &self.by_producer[kind.index()]
    }

    /// The rules that make an op of this kind.
    pub fn making(&self, kind: Kind) -> impl Iterator<Item = &Rule> {
        self.by_fused[kind.index()].iter().map(|&number| &self.rules[number as usize])
    }
}

/// The rules of plain ops as they stand, those of products from what a product can take in.
fn all_rules() -> Vec<Rule> {
    let products = || Product::all().iter().copied();
    let mut rules: Vec<Rule> = products().filter_map(add).collect();
    rules.extend(PLAIN_RULES.map(Rule::from));
    rules.extend(
        Activation::ALL
            .into_iter()
            .flat_map(|a| products().chain([Product::EXPERTS]).filter_map(move |p| gate(p, a))),
    );
    rules.extend(
        Activation::ALL.into_iter().flat_map(|a| products().filter_map(move |p| activated(p, a))),
    );
    rules.extend(products().filter_map(second_weights));
    rules.extend(products().filter_map(norm_behind));
    // Gated ones first, only to be read first.
    let gated = |product: &Product| product.gate() == Gate::None;
    let mut normed: Vec<Product> = products().collect();
    normed.sort_by_key(|product| (gated(product), !product.epilogue().add));
    rules.extend(normed.into_iter().filter_map(norm));
    let with_norm = |normed| products().filter(move |product| product.is_normed() == normed);
    rules.extend(with_norm(true).chain(with_norm(false)).filter_map(head_norm));
    for product in with_norm(true).chain(with_norm(false)) {
        rules.extend(HEADS.iter().filter_map(|part| heads(product, part)));
    }
    rules
}

/// A rule between plain ops.
struct PlainRule {
    producer: Kind,
    consumer: Kind,
    operands: &'static [usize],
    fit: Fit,
    fused: Kind,
    /// Where the fused op has another name than the rule: the rule's.
    name: Option<&'static str>,
    bindings: &'static [Bind],
}

impl From<PlainRule> for Rule {
    fn from(rule: PlainRule) -> Self {
        let PlainRule { producer, consumer, operands, fit, fused, name, bindings } = rule;
        let name = name.unwrap_or_else(|| fused.name());
        Self {
            name,
            operands: operands.into(),
            fit,
            bindings: bindings.into(),
            ..Self::between(producer, consumer, fused)
        }
    }
}

const EITHER: &[usize] = &[0, 1];
const FIRST: &[usize] = &[0];

/// Rules between ops that are no products.
const PLAIN_RULES: [PlainRule; 9] = [
    PlainRule {
        producer: Kind::RmsNorm,
        consumer: Kind::MUL,
        operands: EITHER,
        fit: Fit::Full,
        fused: Kind::RmsNormMul,
        name: None,
        bindings: &[producer(0), other(Fit::Row), RESULT],
    },
    PlainRule {
        producer: Kind::RmsNormMul,
        consumer: Kind::ADD,
        operands: EITHER,
        fit: Fit::Full,
        fused: Kind::RmsNormMulAdd,
        name: None,
        bindings: &[
            producer(0),
            Bind { source: Source::Producer(1), fit: Fit::Row },
            other(Fit::Row),
            RESULT,
        ],
    },
    PlainRule {
        producer: Kind::SILU,
        consumer: Kind::MUL,
        operands: EITHER,
        fit: Fit::Full,
        fused: Kind::SILU_MUL,
        name: None,
        bindings: &[producer(0), other(Fit::Full), RESULT],
    },
    PlainRule {
        producer: Kind::GELU,
        consumer: Kind::MUL,
        operands: EITHER,
        fit: Fit::Full,
        fused: Kind::GELU_MUL,
        name: None,
        bindings: &[producer(0), other(Fit::Full), RESULT],
    },
    PlainRule {
        producer: Kind::ExpertSum,
        consumer: Kind::ADD,
        operands: EITHER,
        fit: Fit::Full,
        fused: Kind::ExpertSumAdd,
        name: None,
        bindings: &[producer(0), producer(1), other(Fit::Row), RESULT],
    },
    PlainRule {
        producer: Kind::Rope,
        consumer: Kind::KvWrite,
        operands: FIRST,
        fit: Fit::Any,
        fused: Kind::RopeKvWrite,
        name: None,
        bindings: &[producer(0), producer(1), producer(2), consumer(1), RESULT],
    },
    PlainRule {
        producer: Kind::ADD,
        consumer: Kind::RmsNormMul,
        operands: FIRST,
        fit: Fit::Full,
        fused: Kind::AddRmsNormMul,
        name: None,
        bindings: &[ADDEND, ADDEND_OR_ROW, consumer(1), KEPT, RESULT],
    },
    PlainRule {
        producer: Kind::ADD,
        consumer: Kind::RmsNorm,
        operands: FIRST,
        fit: Fit::Full,
        fused: Kind::AddRmsNorm,
        name: None,
        bindings: &[ADDEND, ADDEND_OR_ROW, KEPT, RESULT],
    },
    PlainRule {
        producer: Kind::AddRmsNorm,
        consumer: Kind::MUL,
        operands: EITHER,
        fit: Fit::Full,
        fused: Kind::AddRmsNormMul,
        name: Some("add_rms_norm_then_mul"),
        bindings: &[ADDEND, ADDEND_OR_ROW, other(Fit::Row), ALREADY_KEPT, RESULT],
    },
];

/// A product takes in the sum with a residual or bias behind it.
fn add(product: Product) -> Option<Rule> {
    let epilogue = product.epilogue();
    let plain = product.input() == Input::Plain && epilogue == Epilogue::NONE;
    let fused = product.with_epilogue(Epilogue { add: true, ..epilogue }).filter(|_| plain)?;
    let bindings = absorb(product, fused, |slot| match slot {
        Slot::Addend => Some(other(Fit::Row)),
        _ => None,
    });
    let rule = Rule::between(Kind::Product(product), Kind::ADD, Kind::Product(fused));
    Some(Rule { operands: EITHER.into(), fit: Fit::Full, bindings, ..rule })
}

/// A product takes in what it is the gate of.
fn gate(product: Product, activation: Activation) -> Option<Rule> {
    let open = product.gate() == Gate::None;
    let fused = product.with_gate(Gate::Operand(activation)).filter(|_| open)?;
    let bindings = absorb(product, fused, |slot| match slot {
        Slot::Up => Some(Bind { source: Source::Consumer(1), fit: Fit::Full }),
        _ => None,
    });
    let rule = Rule::between(kind_of(product), activation.mul()?, Kind::Product(fused));
    Some(Rule { operands: FIRST.into(), fit: Fit::Full, bindings, ..rule })
}

/// A product takes in the function behind it, where that gates nothing.
fn activated(product: Product, activation: Activation) -> Option<Rule> {
    let open = product.gate() == Gate::None;
    let fused = product.with_gate(Gate::Ungated(activation)).filter(|_| open)?;
    let bindings = absorb(product, fused, |_| None);
    let rule = Rule::between(Kind::Product(product), activation.op(), Kind::Product(fused));
    Some(Rule { operands: FIRST.into(), fit: Fit::Full, bindings, ..rule })
}

/// The op that is this product.
fn kind_of(product: Product) -> Kind {
    if product == Product::EXPERTS { Kind::MatMulExperts } else { Kind::Product(product) }
}

/// Where the op that is this product binds the operand in a slot, its optional ones bound.
fn operand_of(product: Product, slot: Slot) -> Option<usize> {
    match (product == Product::EXPERTS, slot) {
        (false, slot) => product.operand(slot, product.slots().len()),
        (true, Slot::Input) => Some(0),
        (true, Slot::Weight) => Some(1),
        (true, Slot::Ids) => Some(2),
        (true, _) => None,
    }
}

/// A product that is the gate of an operand takes in the product of the same rows which that is.
fn second_weights(product: Product) -> Option<Rule> {
    let Gate::Operand(activation) = product.gate() else { return None };
    let fused = product.with_gate(Gate::Weights(activation))?;
    let operand = |slot| product.operand(slot, product.slots().len());
    let other = if product.is_of_experts() { Product::EXPERTS } else { Product::PLAIN };
    let weight = operand_of(other, Slot::Weight)?;
    let bindings = fused.slots().iter().filter_map(|&slot| match slot {
        Slot::UpWeight => Some(producer(weight)),
        Slot::Result => Some(RESULT),
        slot => operand(slot).map(consumer),
    });
    // The activations are read once for both.
    let both = |slot| Some(Same { consumer: operand(slot)?, producer: operand_of(other, slot)? });
    let same = [Slot::Input, Slot::Ids].into_iter().filter_map(both).collect();
    let rule = Rule::between(kind_of(other), Kind::Product(product), Kind::Product(fused));
    let operands = [operand(Slot::Up)?][..].into();
    Some(Rule { operands, fit: Fit::Full, bindings: bindings.collect(), same, ..rule })
}

/// A product that adds a residual takes in the norm of the sum. It has no more than some elements of a row
/// at a time, so that it leaves what the row is to be divided by with the quantised chunks.
fn norm_behind(product: Product) -> Option<Rule> {
    let epilogue = product.epilogue();
    let with = Epilogue { norm: true, ..epilogue };
    let fused = product.with_epilogue(with).filter(|_| !epilogue.norm)?;
    let addend = product.operand(Slot::Addend, product.slots().len())?;
    let bindings = absorb(product, fused, |slot| match slot {
        Slot::Addend => Some(Bind { source: Source::Producer(addend), fit: Fit::Full }),
        Slot::NextNormWeight => Some(Bind { source: Source::Consumer(1), fit: Fit::Weight }),
        Slot::Sum => Some(KEPT),
        _ => None,
    });
    let rule = Rule::between(Kind::Product(product), Kind::RmsNormMul, Kind::Product(fused));
    Some(Rule { operands: FIRST.into(), fit: Fit::Full, bindings, quantises: true, ..rule })
}

/// A product takes in the norm in front of it, or a copy of that.
fn norm(product: Product) -> Option<Rule> {
    let fused = product.behind_norm()?;
    let operand = |slot| product.operand(slot, product.slots().len());
    // Heads come last: a product has its norm by then.
    if product.epilogue().heads() || matches!(product.gate(), Gate::Operand(_)) {
        return None;
    }
    let bindings = fused.slots().iter().filter_map(|&slot| match slot {
        Slot::Input => Some(producer(0)),
        Slot::NormWeight => Some(Bind { source: Source::Producer(1), fit: Fit::Weight }),
        Slot::Addend => Some(Bind { source: Source::Consumer(operand(slot)?), fit: Fit::Row }),
        Slot::Result => Some(RESULT),
        slot => operand(slot).map(consumer),
    });
    let rule = Rule::between(Kind::RmsNormMul, Kind::Product(product), Kind::Product(fused));
    Some(Rule { operands: FIRST.into(), bindings: bindings.collect(), repeats: true, ..rule })
}

/// A product takes in the norm of each of its heads.
fn head_norm(product: Product) -> Option<Rule> {
    let epilogue = product.epilogue();
    let with = Epilogue { head_norm: true, ..epilogue };
    let fused = product.with_epilogue(with).filter(|_| !epilogue.heads())?;
    let bindings = absorb(product, fused, |slot| match slot {
        Slot::HeadNormWeight => Some(Bind { source: Source::Consumer(1), fit: Fit::Weight }),
        _ => None,
    });
    let rule = Rule::between(Kind::Product(product), Kind::RmsNormMul, Kind::Product(fused));
    Some(Rule { operands: FIRST.into(), fit: Fit::Full, bindings, reshaped: true, ..rule })
}

/// An op on the heads of a product, as an epilogue.
struct HeadsPart {
    op: Kind,
    rope: bool,
    cache: bool,
    /// Bindings of the op for the slots of the product it becomes part of.
    bindings: &'static [(Slot, usize)],
}

const HEADS: [HeadsPart; 3] = [
    HeadsPart {
        op: Kind::Rope,
        rope: true,
        cache: false,
        bindings: &[(Slot::Positions, 1), (Slot::Factors, 2)],
    },
    HeadsPart {
        op: Kind::RopeKvWrite,
        rope: true,
        cache: true,
        bindings: &[(Slot::Positions, 1), (Slot::Factors, 2), (Slot::CacheRows, 3)],
    },
    HeadsPart { op: Kind::KvWrite, rope: false, cache: true, bindings: &[(Slot::CacheRows, 1)] },
];

/// A product takes in what is done with its heads.
fn heads(product: Product, part: &HeadsPart) -> Option<Rule> {
    let epilogue = product.epilogue();
    let with = Epilogue { rope: part.rope, cache: part.cache, ..epilogue };
    let open = !epilogue.rope && !epilogue.cache;
    let fused = product.with_epilogue(with).filter(|_| open)?;
    let bindings = absorb(product, fused, |slot| match slot {
        Slot::Cache => Some(RESULT),
        slot => part.bindings.iter().find(|(of, _)| *of == slot).map(|&(_, at)| consumer(at)),
    });
    let rule = Rule::between(Kind::Product(product), part.op, Kind::Product(fused));
    // A rotation gives what it takes; a cache is as long as it is.
    let fit = if part.cache { Fit::Any } else { Fit::Full };
    // A product with a norm of heads gives heads.
    let reshaped = !epilogue.head_norm;
    Some(Rule { operands: FIRST.into(), fit, bindings, reshaped, ..rule })
}

/// Bindings of a product that took in what follows it: `part` says where those of the new part come from,
/// the others are the producer's.
fn absorb(product: Product, fused: Product, part: impl Fn(Slot) -> Option<Bind>) -> Binds {
    let operand = |slot| operand_of(product, slot);
    let bind = |&slot: &Slot| match slot {
        Slot::Result => Some(RESULT),
        slot => part(slot).or_else(|| operand(slot).map(producer)),
    };
    fused.slots().iter().filter_map(bind).collect()
}

const RESULT: Bind = Bind { source: Source::Result, fit: Fit::Any };
const KEPT: Bind = Bind { source: Source::Kept, fit: Fit::Any };
const ALREADY_KEPT: Bind = Bind { source: Source::AlreadyKept, fit: Fit::Any };
const ADDEND: Bind = Bind { source: Source::Producer(0), fit: Fit::Full };
const ADDEND_OR_ROW: Bind = Bind { source: Source::Producer(1), fit: Fit::Row };

impl Rule {
    /// A rule named after the fused op, with nothing else said.
    fn between(producer: Kind, consumer: Kind, fused: Kind) -> Self {
        Self {
            name: fused.name(),
            producer,
            consumer,
            operands: Vec::new(),
            fit: Fit::Any,
            fused,
            bindings: Binds::new(),
            same: Vec::new(),
            repeats: false,
            reshaped: false,
            quantises: false,
        }
    }
}

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
pub(crate) fn binding_counts(kind: Kind) -> (usize, usize) {
    kind.spec().map_or((0, usize::MAX), OpSpec::arity)
}

/// Where an op with an optional kept result binds it.
pub(crate) const ALREADY_KEPT_AT: usize = 2;

/// Operands of an op through which rules may follow: below this number.
pub(super) const FOLLOWED: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_follow_operands_the_list_keeps_at_hand() {
        let mut operands = RULES.iter().flat_map(|rule| &rule.operands);
        assert!(operands.all(|&operand| operand < FOLLOWED));
        let kept = Kind::AddRmsNorm.spec().unwrap().operands.iter().position(|o| o.optional);
        assert_eq!(kept, Some(ALREADY_KEPT_AT));
    }

    #[test]
    fn every_fused_op_has_a_rule_and_every_rule_gives_all_operands() {
        for rule in RULES.iter() {
            let (fewest, most) = binding_counts(rule.fused);
            assert!((fewest..=most).contains(&rule.bindings.len()), "{}", rule.name);
        }
        for &product in Product::all() {
            let fused = Kind::Product(product);
            let reached = RULES.iter().any(|rule| rule.fused == fused);
            assert!(reached || product == Product::PLAIN, "{fused}");
        }
    }
}
