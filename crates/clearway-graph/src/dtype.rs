//! Element types of tensors: plain scalars and the block-quantised formats of GGUF files.
//!
//! Only names and sizes live here, because fusion rules and layouts need them; decoding and
//! encoding of the blocks is the business of the layer above.

use serde::{Serialize, Serializer};

/// How the elements of a tensor are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(non_camel_case_types)] // the names every GGUF user knows
pub enum DType {
    /// 32-bit float.
    F32,
    /// 16-bit IEEE float.
    F16,
    /// 16-bit brain float.
    BF16,
    /// 32-bit unsigned integer (token ids, positions, indices).
    U32,
    /// 32 weights: f16 scale, 4-bit quants around 8.
    Q4_0,
    /// 32 weights: f16 scale and minimum, 4-bit quants.
    Q4_1,
    /// 32 weights: f16 scale, 5-bit quants around 16.
    Q5_0,
    /// 32 weights: f16 scale and minimum, 5-bit quants.
    Q5_1,
    /// 32 weights: f16 scale, signed 8-bit quants.
    Q8_0,
    /// 256 weights: 2-bit quants with 4-bit scales and minimums.
    Q2_K,
    /// 256 weights: 3-bit quants with 6-bit scales.
    Q3_K,
    /// 256 weights: 4-bit quants with 6-bit scales and minimums.
    Q4_K,
    /// 256 weights: 5-bit quants with 6-bit scales and minimums.
    Q5_K,
    /// 256 weights: 6-bit quants with 8-bit scales.
    Q6_K,
    /// 32 weights: f16 scale, 4-bit indices into a non-linear table.
    IQ4_NL,
    /// 256 weights: 6-bit scales, 4-bit indices into a non-linear table.
    IQ4_XS,
    /// 32 weights: a power of two as an 8-bit exponent, 4-bit floats of E2M1.
    MXFP4,
    /// 32 activations on their way from one product to the next, rounded to 8 bits: a type of kernels
    /// alone, in no file. A row takes the bytes of as many floats, and the first three eighths of them
    /// hold something: the quants of the first halves of all chunks, those of the second halves,
    /// then four floats for each chunk: its scale, the scale times the sum of the first half, of the
    /// second half, and a part of what the row is still to be divided by, which is the root of the mean of
    /// these parts. It is one where there is nothing to divide by.
    A8,
    /// 32 activations on their way to products on matrices of f16: a type of kernels alone, in no file. They
    /// are f16 in the first half of the bytes of as many floats, so that a value keeps its size, and an
    /// element its place whatever shape the value is given.
    A16,
    /// 32 elements of a head in a cache of keys or values, rounded to 8 bits as in [`Q8_0`](Self::Q8_0): a type of caches
    /// alone, in no file. The quants of the whole tensor come first, a byte each in the order of elements, then
    /// the f16 scales of all chunks. So both are read in wide pieces, and a tensor is dense or it is none.
    C8,
}

impl DType {
    /// Every type that data comes in, in a fixed order.
    pub const ALL: [Self; 17] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::U32,
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
    ];

    /// Elements in one block; 1 for plain scalars.
    pub const fn block_elems(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 | Self::U32 => 1,
            Self::Q4_0
            | Self::Q4_1
            | Self::Q5_0
            | Self::Q5_1
            | Self::Q8_0
            | Self::IQ4_NL
            | Self::MXFP4
            | Self::A8
            | Self::A16
            | Self::C8 => 32,
            Self::Q2_K | Self::Q3_K | Self::Q4_K | Self::Q5_K | Self::Q6_K | Self::IQ4_XS => 256,
        }
    }

    /// Bytes of one block; of one element for plain scalars.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F32 | Self::U32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q4_0 | Self::IQ4_NL => 18,
            Self::MXFP4 => 17,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 | Self::C8 => 34,
            Self::Q2_K => 84,
            Self::Q3_K => 110,
            Self::Q4_K => 144,
            Self::Q5_K => 176,
            Self::Q6_K => 210,
            Self::IQ4_XS => 136,
            Self::A8 | Self::A16 => 128,
        }
    }

    /// True for block formats, whose rows are whole blocks and are never strided inside.
    pub const fn is_quantised(self) -> bool {
        self.block_elems() > 1
    }

    /// Whether it is a form that stages give to values between kernels: no data comes in it.
    pub const fn is_form(self) -> bool {
        matches!(self, Self::A8 | Self::A16)
    }

    /// Lower-case name, as used in text forms and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::U32 => "u32",
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
            Self::A8 => "a8",
            Self::A16 => "a16",
            Self::C8 => "c8",
        }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for DType {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}
