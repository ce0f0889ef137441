//! Weight types of synthetic models: one type for all matrices, or a mix by llama.cpp's recipes.

use std::str::FromStr;

use clearway_graph::DType;

use super::super::error::GgufError;

/// Weight types of a synthetic model.
///
/// The name of one type gives every matrix that type. Names that end in `_s`, `_m` or `_l` are mixes:
/// llama.cpp's recipes without an importance matrix, which keep sensitive tensors finer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types, missing_docs)] // the names every GGUF user knows
pub enum SynthQuant {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ4_NL,
    IQ4_XS,
    MXFP4,
    Q2_K_S,
    Q3_K_S,
    Q3_K_M,
    Q3_K_L,
    Q4_K_S,
    Q4_K_M,
    Q5_K_S,
    Q5_K_M,
}

/// What a matrix does, as far as recipes care.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// The output layer, or the embedding that stands for it.
    Output,
    /// The value projection.
    Values,
    /// The projection behind attention.
    Attended,
    /// The feed-forward part's way back, of experts too.
    Down,
    /// Everything else.
    Other,
}

/// Where a matrix stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub role: Role,
    /// Number of its layer; 0 outside of layers.
    pub layer: usize,
    /// Layers of the model.
    pub layers: usize,
    /// Query heads for each key head.
    pub group: usize,
    /// Elements of a row.
    pub row: usize,
}

impl SynthQuant {
    /// Every format, plain types first.
    pub const ALL: [Self; 24] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2_K,
        Self::Q3_K,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
        Self::IQ4_NL,
        Self::IQ4_XS,
        Self::MXFP4,
        Self::Q2_K_S,
        Self::Q3_K_S,
        Self::Q3_K_M,
        Self::Q3_K_L,
        Self::Q4_K_S,
        Self::Q4_K_M,
        Self::Q5_K_S,
        Self::Q5_K_M,
    ];

    /// Lower-case name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::Q4_0 => "q4_0",
            Self::Q4_1 => "q4_1",
            Self::Q5_0 => "q5_0",
            Self::Q5_1 => "q5_1",
            Self::Q8_0 => "q8_0",
            Self::Q2_K => "q2_k",
            Self::Q3_K => "q3_k",
            Self::Q4_K => "q4_k",
            Self::Q5_K => "q5_k",
            Self::Q6_K => "q6_k",
            Self::IQ4_NL => "iq4_nl",
            Self::IQ4_XS => "iq4_xs",
            Self::MXFP4 => "mxfp4",
            Self::Q2_K_S => "q2_k_s",
            Self::Q3_K_S => "q3_k_s",
            Self::Q3_K_M => "q3_k_m",
            Self::Q3_K_L => "q3_k_l",
            Self::Q4_K_S => "q4_k_s",
            Self::Q4_K_M => "q4_k_m",
            Self::Q5_K_S => "q5_k_s",
            Self::Q5_K_M => "q5_k_m",
        }
    }

    /// The type of most matrices.
    pub const fn base(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::F16 => DType::F16,
            Self::BF16 => DType::BF16,
            Self::Q4_0 => DType::Q4_0,
            Self::Q4_1 => DType::Q4_1,
            Self::Q5_0 => DType::Q5_0,
            Self::Q5_1 => DType::Q5_1,
            Self::Q8_0 => DType::Q8_0,
            Self::Q2_K | Self::Q2_K_S => DType::Q2_K,
            Self::Q3_K | Self::Q3_K_S | Self::Q3_K_M | Self::Q3_K_L => DType::Q3_K,
            Self::Q4_K | Self::Q4_K_S | Self::Q4_K_M => DType::Q4_K,
            Self::Q5_K | Self::Q5_K_S | Self::Q5_K_M => DType::Q5_K,
            Self::Q6_K => DType::Q6_K,
            Self::IQ4_NL => DType::IQ4_NL,
            Self::IQ4_XS => DType::IQ4_XS,
            Self::MXFP4 => DType::MXFP4,
        }
    }

    /// Whether the format is a recipe of several types.
    pub const fn is_mix(self) -> bool {
        matches!(
            self,
            Self::Q2_K_S
                | Self::Q3_K_S
                | Self::Q3_K_M
                | Self::Q3_K_L
                | Self::Q4_K_S
                | Self::Q4_K_M
                | Self::Q5_K_S
                | Self::Q5_K_M
        )
    }

    /// Type of a matrix.
    pub(super) fn dtype(self, place: &Place) -> DType {
        let dtype = if self.is_mix() { self.mixed(place) } else { self.base() };
        fitting(dtype, place.row)
    }

    /// The rules of `llama_tensor_get_type` in llama.cpp.
    fn mixed(self, place: &Place) -> DType {
        let Place { role, layer, layers, group, .. } = *place;
        let eighth = layers / 8;
        let first_eighth = layer < eighth;
        let more_bits = first_eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2;
        match (role, self) {
            (Role::Output, _) => DType::Q6_K,
            (Role::Values, Self::Q2_K_S) if group >= 4 => DType::Q4_K,
            (Role::Down, Self::Q2_K_S) if first_eighth => DType::Q4_K,
            (Role::Values, Self::Q3_K_M) if layer < 2 => DType::Q5_K,
            (Role::Down, Self::Q3_K_M) if layer < layers / 16 => DType::Q5_K,
            (Role::Values | Role::Down | Role::Attended, Self::Q3_K_M) => DType::Q4_K,
            (Role::Values | Role::Down | Role::Attended, Self::Q3_K_L) => DType::Q5_K,
            (Role::Values, Self::Q4_K_S) if layer < 4 => DType::Q5_K,
            (Role::Down, Self::Q4_K_S) if first_eighth => DType::Q5_K,
            (Role::Values | Role::Down, Self::Q4_K_M | Self::Q5_K_M) if more_bits => DType::Q6_K,
            _ => self.base(),
        }
    }
}

impl FromStr for SynthQuant {
    type Err = GgufError;

    fn from_str(name: &str) -> Result<Self, GgufError> {
        let found = Self::ALL.into_iter().find(|quant| quant.name().eq_ignore_ascii_case(name));
        found.ok_or_else(|| GgufError::UnknownName {
            what: "quantisation",
            name: name.to_owned(),
            known: Self::ALL.map(Self::name).join(", "),
        })
    }
}

/// The type for rows of `row` elements: where they are no whole blocks, the one llama.cpp's quantiser
/// falls back to.
fn fitting(dtype: DType, row: usize) -> DType {
    if row.is_multiple_of(dtype.block_elems()) {
        return dtype;
    }
    let smaller = match dtype {
        DType::Q2_K | DType::Q3_K | DType::IQ4_XS => DType::IQ4_NL,
        DType::Q4_K => DType::Q5_0,
        DType::Q5_K => DType::Q5_1,
        DType::Q6_K => DType::Q8_0,
        _ => DType::F16,
    };
    fitting(smaller, row)
}
