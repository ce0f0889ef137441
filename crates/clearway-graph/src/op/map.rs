//! Element-wise ops: each element of the result follows from one element of each input.
//!
//! A row of the table is documentation, name of the variant, of the constant `CapturedOpKind::...` and of the
//! op, which inputs it has, and its constants. The function itself is in `clearway-gpu`: `ops/map.rs` has it in
//! f64 and as WGSL, `cpu/kernels/elementwise.rs` in f32.

use super::{CapturedOpKind, OpSpec, Operand, float, positive, read, write_over};

/// Which inputs an element-wise op has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapInputs {
    /// `x`, of the result's shape.
    One,
    /// `a`, of the result's shape, and `b`, of the same shape or one row, which is repeated.
    Two,
    /// `gate` and `up`, both of the result's shape.
    Gated,
}

impl MapInputs {
    const fn operands(self) -> &'static [Operand] {
        const ONE: [Operand; 2] = [read("x"), write_over("y", &[0])];
        const TWO: [Operand; 3] = [read("a"), read("b"), write_over("y", &[0, 1])];
        const GATED: [Operand; 3] = [read("gate"), read("up"), write_over("y", &[0, 1])];
        match self {
            Self::One => &ONE,
            Self::Two => &TWO,
            Self::Gated => &GATED,
        }
    }

    /// How many there are.
    pub const fn count(self) -> usize {
        self.operands().len() - 1
    }
}

macro_rules! maps {
    ($($(#[doc = $doc:literal])+ $map:ident $constant:ident $name:literal $inputs:ident $params:tt)+) => {
        /// An element-wise op.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Map {
            $($(#[doc = $doc])+ $map,)+
        }

        impl Map {
            /// Every element-wise op, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$map),+];

            /// The op's row of the op table.
            pub fn spec(self) -> &'static OpSpec {
                match self {
                    $(Self::$map => {
                        static ROW: OpSpec = OpSpec {
                            kind: CapturedOpKind::$constant,
                            name: $name,
                            operands: MapInputs::$inputs.operands(),
                            params: &$params,
                        };
                        &ROW
                    })+
                }
            }

            /// Which inputs it has.
            pub const fn inputs(self) -> MapInputs {
                match self {
                    $(Self::$map => MapInputs::$inputs,)+
                }
            }
        }

        impl CapturedOpKind {
            $($(#[doc = $doc])+ pub const $constant: Self = Self::Map(Map::$map);)+
        }
    };
}

maps! {
    /// Element-wise sum, the second operand repeated over rows where smaller.
    Add ADD "add" Two []
    /// Element-wise product, the second operand repeated over rows where smaller.
    Mul MUL "mul" Two []
    /// Product with a constant.
    Scale SCALE "scale" One [float("s")]
    /// `x * sigmoid(x)`.
    Silu SILU "silu" One []
    /// GELU, tanh form.
    Gelu GELU "gelu" One []
    /// `silu(gate) * up`.
    SiluMul SILU_MUL "silu_mul" Gated []
    /// `gelu(gate) * up`.
    GeluMul GELU_MUL "gelu_mul" Gated []
    /// The square of `x` where it is above zero, and zero elsewhere.
    ReluSquared RELU_SQUARED "relu_squared" One []
    /// `cap * tanh(x / cap)`.
    SoftCap SOFT_CAP "soft_cap" One [positive("cap")]
    /// `g * sigmoid(alpha * g) * (u + 1)`, where `g` is `gate` and at most `limit`, and `u` is `up` within `limit` of zero.
    ClampedGate CLAMPED_GATE "clamped_gate" Gated [positive("limit"), float("alpha")]
}
