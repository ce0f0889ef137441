//! Vector instructions, chosen once when the process starts.
//!
//! | module | what it does |
//! |---|---|
//! | `packed` | weights in row blocks, and back |
//! | `lanes` | what a machine must offer for sixteen rows at a time |
//! | `scalar`, `avx2`, `avx512`, `neon` | the machines |
//! | `formats` | the block formats in those terms |
//! | `float` | rows of plain floats |
//! | `plain` | products of packed plain weights with inputs that stay floats |
//! | `product` | products of packed weights with inputs rounded to 8 bits |
//! | `many` | the same with many inputs |
//!
//! Every instruction set gives the same bits, so a result does not depend on the machine. Kernels that
//! are plain loops are compiled once for each set by [`vectorise`]; nothing in them is contracted or
//! reordered.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub(super) mod float;
mod formats;
mod lanes;
mod many;
#[cfg(target_arch = "aarch64")]
mod neon;
pub(super) mod packed;
mod plain;
mod product;
mod scalar;
#[cfg(test)]
mod tests;

pub(super) use lanes::{Lanes, ROUND};
pub(super) use product::{RUN, Run, run_floats};

use std::sync::LazyLock;

use clearway_graph::DType;

use formats::{Format, Iq4Nl, Iq4Xs, Mxfp4, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
use packed::ROWS;
use product::Rounding;
use scalar::Scalar;

/// A set of instructions. Those of other processors do not exist in a build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Isa {
    /// What every machine has.
    Scalar,
    /// AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// The same with products of bytes.
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
    /// NEON.
    #[cfg(target_arch = "aarch64")]
    Neon,
}

/// The best set this machine has.
pub(super) static ISA: LazyLock<Isa> =
    LazyLock::new(|| available().last().copied().unwrap_or(Isa::Scalar));

/// All sets this machine has, the best last.
pub(super) fn available() -> Vec<Isa> {
    let mut all = vec![Isa::Scalar];
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected as has;
        if has!("avx2") && has!("fma") && has!("f16c") {
            all.push(Isa::Avx2);
            if has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl") {
                all.push(Isa::Avx512);
                if has!("avx512vnni") {
                    all.push(Isa::Avx512Vnni);
                }
            }
        }
    }
    #[cfg(target_arch = "aarch64")]
    if std::arch::is_aarch64_feature_detected!("neon") {
        all.push(Isa::Neon);
    }
    all
}

impl Isa {
    /// Name for people.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "no vector instructions",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => "AVX2",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => "AVX-512",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni => "AVX-512 VNNI",
            #[cfg(target_arch = "aarch64")]
            Self::Neon => "NEON",
        }
    }

    /// [`Lanes::TILE`].
    const fn tile(self) -> usize {
        match self {
            Self::Scalar => Scalar::TILE,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => avx2::Avx2::TILE,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 | Self::Avx512Vnni => avx512::Avx512::<true>::TILE,
            #[cfg(target_arch = "aarch64")]
            Self::Neon => neon::Neon::TILE,
        }
    }
}

/// The products of one block format.
#[derive(Clone, Copy)]
pub(super) struct Products {
    isa: Isa,
    rounding: Rounding,
    product: ProductFn,
}

type ProductFn = fn(Isa, &[u8], usize, &[Run], &mut [[f32; ROWS]]);

impl Products {
    /// The products of a type on this machine; `None` if it is not a block format.
    pub(super) fn of(dtype: DType) -> Option<Self> {
        Self::with(*ISA, dtype)
    }

    /// Rounds the inputs of one of `tokens` tokens to 8 bits, into its places among the runs of all
    /// of them. Tokens come in order.
    pub(super) fn round(&self, x: &[f32], token: usize, tokens: usize, runs: &mut [Run]) {
        let (first, width) = product::tile_of(self.isa.tile(), token, tokens);
        let runs = &mut runs[first * (x.len() / RUN)..];
        let (rounding, lane) = (self.rounding, token - first);
        vectorise_as(self.isa, Round { rounding, x, lane, width, runs });
    }

    /// Multiplies `count` groups of sixteen packed rows, one behind the other, with rounded inputs. `out` has an element
    /// for each group and input, those of a group together.
    pub(super) fn multiply(
        &self,
        groups: &[u8],
        count: usize,
        runs: &[Run],
        out: &mut [[f32; ROWS]],
    ) {
        (self.product)(self.isa, groups, count, runs, out);
    }
}

/// Multiplies `count` groups of sixteen packed rows of a plain type, one behind the other, with inputs as they are. `out` has an
/// element for each group and input, those of a group together.
pub(super) fn plain_products(
    dtype: DType,
    groups: &[u8],
    count: usize,
    inputs: &[&[f32]],
    out: &mut [[f32; ROWS]],
) {
    plain::products(*ISA, dtype, groups, count, inputs, out);
}

/// Work that is compiled for every set of instructions. `run` must be `#[inline(always)]`, and so must
/// what it calls: a function that stays on its own is compiled for the least of them.
pub(super) trait Vectorised {
    /// What it gives.
    type Output;
    /// Does the work.
    fn run<L: Lanes>(self, l: L) -> Self::Output;
}

/// Does work with the best instructions there are.
#[inline]
pub(super) fn vectorise<W: Vectorised>(work: W) -> W::Output {
    vectorise_as(*ISA, work)
}

struct Round<'a> {
    rounding: Rounding,
    x: &'a [f32],
    lane: usize,
    width: usize,
    runs: &'a mut [Run],
}

impl Vectorised for Round<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        product::round(l, self.rounding, self.x, self.lane, self.width, self.runs);
    }
}

/// Expands to the function of a format.
macro_rules! by_format {
    ($dtype:expr, $function:ident) => {
        match $dtype {
            DType::Q4_0 => $function::<Q4_0>,
            DType::Q4_1 => $function::<Q4_1>,
            DType::Q5_0 => $function::<Q5_0>,
            DType::Q5_1 => $function::<Q5_1>,
            DType::Q8_0 => $function::<Q8_0>,
            DType::Q2_K => $function::<Q2K>,
            DType::Q3_K => $function::<Q3K>,
            DType::Q4_K => $function::<Q4K>,
            DType::Q5_K => $function::<Q5K>,
            DType::Q6_K => $function::<Q6K>,
            DType::IQ4_NL => $function::<Iq4Nl>,
            DType::IQ4_XS => $function::<Iq4Xs>,
            DType::MXFP4 => $function::<Mxfp4>,
            DType::F32
            | DType::F16
            | DType::BF16
            | DType::U32
            | DType::A8
            | DType::A16
            | DType::C8 => return None,
        }
    };
}

impl Products {
    /// The products of a type with given instructions, which the machine must have.
    fn with(isa: Isa, dtype: DType) -> Option<Self> {
        let (rounding, product) = by_format!(dtype, parts)();
        Some(Self { isa, rounding, product })
    }
}

/// What differs from format to format.
fn parts<F: Format>() -> (Rounding, ProductFn) {
    (Rounding { offset: F::OFFSET, halves: F::HALVES }, product::product::<F>)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn with_avx2<W: Vectorised>(work: W) -> W::Output {
    // SAFETY: the type asks for the instructions that this function is compiled with, and calling it is
    // unsafe for that reason: `vectorise_as`, the only caller, answers that the machine has them.
    work.run(unsafe { avx2::Avx2::assume() })
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
fn with_avx512<W: Vectorised>(work: W) -> W::Output {
    // SAFETY: the type asks for the instructions that this function is compiled with, and calling it is
    // unsafe for that reason: `vectorise_as`, the only caller, answers that the machine has them.
    work.run(unsafe { avx512::Avx512::<false>::assume() })
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn with_avx512_vnni<W: Vectorised>(work: W) -> W::Output {
    // SAFETY: the type asks for the instructions that this function is compiled with, and calling it is
    // unsafe for that reason: `vectorise_as`, the only caller, answers that the machine has them.
    work.run(unsafe { avx512::Avx512::<true>::assume() })
}

#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon")]
fn with_neon<W: Vectorised>(work: W) -> W::Output {
    // SAFETY: the type asks for the instructions that this function is compiled with, and calling it is
    // unsafe for that reason: `vectorise_as`, the only caller, answers that the machine has them.
    work.run(unsafe { neon::Neon::assume() })
}

/// Does work with instructions the machine must have.
#[inline]
pub(super) fn vectorise_as<W: Vectorised>(isa: Isa, work: W) -> W::Output {
    match isa {
        Isa::Scalar => work.run(Scalar),
        // SAFETY: the machine has AVX2, FMA and F16C: sets come from `available` only, in `ISA` and in tests,
        // and it has asked the machine for these.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { with_avx2(work) },
        // SAFETY: the machine has AVX-512 F, BW, DQ and VL and all of AVX2's set: sets come from `available`
        // only, in `ISA` and in tests, and it has asked the machine for these.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { with_avx512(work) },
        // SAFETY: the machine has AVX-512 VNNI and all of the set before: sets come from `available` only, in
        // `ISA` and in tests, and it has asked the machine for these.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Vnni => unsafe { with_avx512_vnni(work) },
        // SAFETY: the machine has NEON: sets come from `available` only, in `ISA` and in tests, and it has
        // asked the machine for it.
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => unsafe { with_neon(work) },
    }
}
