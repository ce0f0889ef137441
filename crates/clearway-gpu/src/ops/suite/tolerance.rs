//! What counts as right: one table for all ops, element types and backends.
//!
//! An element may be off by `limit * scale` for the arithmetic. Where results are f16 or bf16 it may
//! also be off by one unit in the last place for storage (not half of one: Vulkan lets a conversion
//! round either way) and, in a fused op, by as much for each value that the plain ops would store on
//! the way: a backend may keep or round it. A result that is rounded to 8 bits for the next product may be
//! off by half a step of its 32 numbers. The scale says what errors of an op are proportional to,
//! whatever order a backend sums in:
//!
//! - a product of matrices or an activation function: the op over the magnitudes of its operands, so
//!   the sum of the absolute products. The result itself can be as small as chance has it, so no
//!   multiple of it would bound the error of a correct kernel;
//! - a product of block weights where the device rounds inputs to 8 bits: the deviation of the sum of
//!   those roundings, each even between minus and plus half a step of its run of 32 inputs. No element
//!   may be off by more than [`ROUNDING_DEVIATIONS`] of them, nor by more than all roundings at their
//!   worst;
//! - a product that holds a norm or a gate: the same magnitudes. A norm in front multiplies what goes
//!   into the product by a factor that is off by 8 units at most, which adds its limit to that of the
//!   product. A gate has a slope of at most 1.13, and of a magnitude it gives at least half, so that an
//!   error of its product counts 2.26 times; what it is multiplied by counts once. What plain ops
//!   would store on the way counts by the same factors, and against the magnitudes, since a row of
//!   results may be small where rows on the way are not;
//! - such a product whose heads are turned: for each pair the length of its two magnitudes, which no
//!   element of it can be beyond however far it is turned. The limit of the rotation, which grows with
//!   the angle as below, comes on top;
//! - such a product whose heads are normed: what its elements may be off by, through the norm, and what the root of their
//!   head may be off by for that;
//! - a norm: the largest element of the result's row;
//! - softmax and attention: that, times one more than the largest score, since the exponential turns
//!   the rounding of a score into a relative error;
//! - a rotation: the same with the largest angle, since a relative error of a frequency turns the pair
//!   by as much of the angle;
//! - a norm of a product with a residual: what the sums may be off by, through the norm, and what their
//!   root may be off by for that;
//! - an op that is one rounding: the element.
//!
//! This bounds every element, where a mean over a tensor would hide one that is wrong. Limits are a
//! few times what f32 arithmetic needs for the sizes in the suite: a wrong formula, a dropped tail or
//! an approximation of 16 bits is far beyond them.

use clearway_graph::{CapturedOpKind as Kind, DType, Epilogue, Map, MapInputs, Product, Slot};

/// What the error of an op is measured by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Nothing is computed: the same bits, unless the result has another type.
    Moved,
    /// The element.
    Element,
    /// The largest magnitude in the result's row.
    Row,
    /// The op over the magnitudes of its operands.
    Magnitude,
    /// The same, and the rounding of inputs to 8 bits on top.
    Rounded,
    /// As [`Magnitude`](Self::Magnitude), also for what is stored on the way.
    Chain,
    /// The same, and the rounding of inputs to 8 bits on top.
    RoundedChain,
    /// [`Row`](Self::Row), times one more than the largest score in the case.
    Score,
    /// [`Row`](Self::Row), times one more than the largest angle in the case.
    Angle,
}

/// Kind of weights an op reads, where it reads any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weights {
    /// None.
    None,
    /// F32, F16 or BF16.
    Float,
    /// A block format.
    Block,
    /// A block format on a device that rounds inputs to 8 bits.
    Rounded,
}

/// How far a result may be from the reference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// What errors of the arithmetic are measured by.
    pub scale: Scale,
    /// Largest error of the arithmetic, as a part of the scale.
    pub limit: f64,
    /// Largest error of values stored on the way, as a part of the result's row, or of the scale
    /// where that is a chain.
    pub on_the_way: f64,
}

/// What an error in front of an activation counts: twice the largest slope, since of a magnitude the function
/// gives at least half. Of a square it counts twice.
const GATE: f64 = 2.0 * crate::ops::map::STEEPEST;

/// A row of the table: an op, its weights, what its error is measured by, the limit, and how many
/// values are stored on the way where the op is not fused, by the factors they count with.
type Row = (Kind, Weights, Scale, f64, u32);

/// Distance of 1 and the next f32: one rounding is off by at most half of it.
pub(super) const ULP: f64 = f32::EPSILON as f64;

/// How many times the limit holds for products of activations that came rounded: quants and minimums of block
/// weights are summed apart. Where the quants of a run go from end to end, its minimum is at most its largest
/// weight and a quant times its scale at most twice that. The other half is for runs whose quants do not, and for
/// what the row is divided by.
pub const OF_ROUNDED: f64 = 6.0;

/// Limit of attention on a device that rounds queries, keys and weights to f16: each of them is off by half a
/// unit, which is 1 part of 2048, and a score counts as in [`Scale::Score`].
pub const OF_HALVES: f64 = 4.0 / 2048.0;

/// Limit of products of activations that came as f16: weights in blocks are rounded to f16, too. A scale and a weight are
/// off by half a unit each or, where conversions round the other way, by a whole one.
pub const OF_HALF_WEIGHTS: f64 = 2.0 / 1024.0;

/// How many deviations the sum of roundings may be off: chance alone goes further in one element of
/// 500 million.
pub const ROUNDING_DEVIATIONS: f64 = 6.0;

#[rustfmt::skip] // a table reads by columns
static TABLE: &[Row] = {
    use Scale::{Angle, Element, Magnitude, Moved, Rounded, Row, Score};
    use Weights::{Block, Float, None};
    &[
        (Kind::Gather,         Float, Element,   ULP,        0),
        (Kind::Gather,         Block, Element,   ULP,        0),
        (Kind::Gather,         Weights::Rounded, Element, ULP, 0),
        (Kind::RmsNorm,        None,  Row,       8.0 * ULP,  0),
        (Kind::LayerNorm,      None,  Row,       16.0 * ULP, 0),
        (Kind::MatMulExperts,  Float, Magnitude, 8.0 * ULP,  0),
        (Kind::MatMulExperts,  Block, Magnitude, 8.0 * ULP,  0),
        (Kind::MatMulExperts,  Weights::Rounded, Rounded, 8.0 * ULP, 0),
        (Kind::ExpertOrder,    None,  Moved,     0.0,        0),
        (Kind::RouterTopK,     None,  Row,       16.0 * ULP, 0),
        (Kind::RouterGroups,   None,  Row,       16.0 * ULP, 0),
        (Kind::ExpertSum,      None,  Magnitude, 8.0 * ULP,  0),
        (Kind::Rope,           None,  Angle,     4.0 * ULP,  0),
        (Kind::Softmax,        None,  Score,     4.0 * ULP,  0),
        (Kind::Attention,      None,  Score,     4.0 * ULP,  0),
        (Kind::AttentionSinks, None,  Score,     4.0 * ULP,  0),
        (Kind::KvWrite,        None,  Moved,     0.0,        0),
        (Kind::Copy,           None,  Moved,     0.0,        0),
        (Kind::Concat,         None,  Moved,     0.0,        0),
        (Kind::ArgMax,         None,  Moved,     0.0,        0),
        (Kind::TopK,           None,  Moved,     0.0,        0),
        (Kind::Fill,           None,  Moved,     0.0,        0),
        (Kind::RmsNormMul,     None,  Row,       8.0 * ULP,  1),
        (Kind::ExpertSumAdd,   None,  Magnitude, 8.0 * ULP,  1),
        (Kind::RmsNormMulAdd,  None,  Row,       16.0 * ULP, 2),
        (Kind::AddRmsNorm,     None,  Row,       8.0 * ULP,  1),
        (Kind::AddRmsNormMul,  None,  Row,       8.0 * ULP,  2),
        (Kind::RopeKvWrite,    None,  Angle,     4.0 * ULP,  1),
    ]
};

impl Weights {
    /// The class of a weight type on a device that rounds activations to 8 bits or does not.
    pub const fn of(dtype: DType, quantises_activations: bool) -> Self {
        match (dtype.is_quantised(), quantises_activations) {
            (false, _) => Self::Float,
            (true, false) => Self::Block,
            (true, true) => Self::Rounded,
        }
    }
}

/// The tolerance of an op with these activations and weights; `None` if the table has no such row.
pub fn tolerance(kind: Kind, activations: DType, weights: Weights) -> Option<Tolerance> {
    let (scale, limit, stored) = if let Some(product) = kind.product() {
        of_product(product, weights)?
    } else if let Some(map) = kind.map() {
        of_map(map)
    } else {
        let row = TABLE.iter().find(|row| row.0 == kind && row.1 == weights)?;
        (row.2, row.3, row.4)
    };
    Some(Tolerance { scale, limit, on_the_way: f64::from(stored) * storage_error(activations) })
}

/// The same for an element-wise op.
fn of_map(map: Map) -> (Scale, f64, u32) {
    let stored = u32::from(map.inputs() == MapInputs::Gated);
    match crate::ops::map::row(map).exact {
        true => (Scale::Element, ULP, stored),
        false => (Scale::Magnitude, 8.0 * ULP, stored),
    }
}

/// What a product is measured by, its limit, and how many values plain ops would store on the way.
fn of_product(product: Product, weights: Weights) -> Option<(Scale, f64, u32)> {
    let chain = !product.is_basic();
    let scale = match (weights, chain) {
        (Weights::None, _) => return None,
        (Weights::Float | Weights::Block, false) => Scale::Magnitude,
        (Weights::Float | Weights::Block, true) => Scale::Chain,
        (Weights::Rounded, false) => Scale::Rounded,
        (Weights::Rounded, true) => Scale::RoundedChain,
    };
    // A sum counts 8 units. A norm in front adds 8, and two values on the way.
    let (sum, before) = if product.is_normed() { (16.0, 2.0) } else { (8.0, 0.0) };
    let Epilogue { add, head_norm, rope, cache, norm: _ } = product.epilogue();
    let parts =
        [add, head_norm, head_norm, rope, cache].into_iter().filter(|&part| part).count() as f64;
    // Errors in front of an activation count by its slope; the function itself adds 8 units.
    let (limit, stored) = match product.gate().activation() {
        None => (sum, before),
        Some(_) => (GATE * sum + 8.0, GATE * (before + 1.0)),
    };
    // What a gate is multiplied by counts once, and so does the value between the two.
    let (up, up_stored) = if product.slots().contains(&Slot::UpWeight) {
        (sum, 1.0 + before + 1.0)
    } else if product.slots().contains(&Slot::Up) {
        (0.0, 1.0)
    } else {
        (0.0, 0.0)
    };
    let stored = stored + up_stored + parts;
    // A norm of heads adds 8.
    let heads = if head_norm { 8.0 } else { 0.0 };
    Some((scale, (limit + up + heads).ceil() * ULP, stored.ceil() as u32))
}

/// Relative error of rounding to a storage type, in either direction. Zero for types that hold what
/// f32 arithmetic gives: their rounding is part of the limits.
pub const fn storage_error(dtype: DType) -> f64 {
    match dtype {
        DType::F16 | DType::A16 => 9.765_625e-4,
        DType::BF16 => 7.812_5e-3,
        _ => 0.0,
    }
}

/// Distance of the smallest magnitudes of a type, below which no relative error can hold.
pub(super) const fn smallest_step(dtype: DType) -> f64 {
    match dtype {
        DType::F16 | DType::A16 => 5.960_464_477_539_063e-8,
        // GPUs may flush what lies below the least normal number.
        _ => 1.175_494_350_822_287_5e-38,
    }
}
