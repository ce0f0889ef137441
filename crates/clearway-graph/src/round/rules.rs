//! What the round stage may do, as data. The stage and the proof of what it did both read it.
//!
//! A value is rounded for all who touch it: the dispatch that writes it binds it last, and each reader is
//! a product that binds it as its activations. Which writers and which readers go together is in
//! [`ROUNDED`]. A norm that goes into the product in front of it is the chain [`NORM_AHEAD`].

use crate::op::{CapturedOpKind as Kind, Product};

/// Who may write a value rounded, and who may then read it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rounded {
    /// Kinds in the final list that may write it, as their last binding.
    pub(crate) writers: fn(Kind) -> bool,
    /// Kinds that may read it, as their binding [`ACTIVATIONS`].
    pub(crate) readers: fn(Kind) -> bool,
    /// Whether `readers` are kinds of recorded dispatches, which fusion may have put into others since.
    /// Otherwise they are kinds of the final list.
    pub(crate) recorded_readers: bool,
}

/// Where products bind their activations.
pub(crate) const ACTIVATIONS: u16 = 0;

/// What a gated product gives, for the products behind it: rounded after fusion.
pub(crate) static BEHIND_GATE: Rounded = Rounded {
    writers: |kind| kind.product().is_some_and(|p| p.may_quantise() && !p.epilogue().norm),
    readers: |kind| kind.product().is_some_and(Product::may_read_quantised),
    recorded_readers: false,
};

/// A norm that the product in front of it carries out: rounded before fusion.
pub(crate) static BEHIND_NORM: Rounded = Rounded {
    writers: |kind| kind.product().is_some_and(|p| p.epilogue().norm),
    readers: |kind| kind == Kind::MATMUL,
    recorded_readers: true,
};

/// Every way in which a value may be rounded.
pub(crate) static ROUNDED: [&Rounded; 2] = [&BEHIND_GATE, &BEHIND_NORM];

/// Ops that become one, each reading what the one before it wrote. Constants are those of the members, one
/// after another. The result must be rounded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chain {
    /// Name, as reports show it.
    pub(crate) name: &'static str,
    /// The members in order.
    pub(crate) members: [Kind; 4],
    /// Bindings of each member but the first through which it may read the result of the one before, in
    /// the order they are tried.
    pub(crate) operands: [&'static [usize]; 3],
    /// The op that takes their place.
    pub(crate) fused: Kind,
    /// Its bindings, in the order of its contract.
    pub(crate) bindings: &'static [Link],
}

/// Where one binding of the op that stands for a chain comes from. Members count from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// A binding of a member.
    Of(usize, usize),
    /// Of a member's two operands, the one that is not the result of the member before it. It has the
    /// shape of the result.
    Addend(usize),
    /// As [`Addend`](Self::Addend), but one row as wide as the result.
    Weight(usize),
    /// The result of a member, where something outside the chain needs it; otherwise there is no such
    /// binding.
    Kept(usize),
    /// The result of the last member, rounded.
    Result,
}

/// A product, a sum, the norm of the sum, and the norm's weight.
pub(crate) static NORM_AHEAD: Chain = Chain {
    name: "norm_ahead",
    members: [Kind::MATMUL, Kind::Add, Kind::RmsNorm, Kind::Mul],
    operands: [&[0, 1], &[0], &[0, 1]],
    fused: Kind::Product(Product::WITH_NORM),
    bindings: &[
        Link::Of(0, 0),
        Link::Of(0, 1),
        Link::Addend(1),
        Link::Weight(3),
        Link::Kept(1),
        Link::Result,
    ],
};
