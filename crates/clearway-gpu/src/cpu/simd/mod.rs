//! Vector instructions, chosen once when the process starts.
//!
//! | module | what it does |
//! |---|---|
//! | `packed` | weights in row blocks, and back |
//! | `lanes` | what a machine must offer for sixteen rows at a time |
//! | `scalar`, `avx2`, `avx512`, `neon` | the machines |
//! | `formats` | the block formats in those terms |
//! | `product` | products of packed weights with inputs rounded to 8 bits |
//!
//! Every instruction set gives the same bits, so a result does not depend on the machine. Kernels that
//! are plain loops are compiled once for each set by [`vectorise`]; nothing in them is contracted or
//! reordered.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod formats;
mod lanes;
#[cfg(target_arch = "aarch64")]
mod neon;
pub(super) mod packed;
mod product;
mod scalar;
#[cfg(test)]
mod tests;

pub(super) use product::{RUN, Run, run_floats};

use std::sync::LazyLock;

use clearway_graph::DType;

use formats::{Format, Iq4Nl, Iq4Xs, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
use packed::ROWS;
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
}

/// The products of one block format.
#[derive(Clone, Copy)]
pub(super) struct Products {
    isa: Isa,
    offset: i32,
    product: fn(&[u8], &[Run], &mut [[f32; ROWS]]),
}

impl Products {
    /// The products of a type on this machine; `None` if it is not a block format.
    pub(super) fn of(dtype: DType) -> Option<Self> {
        Self::with(*ISA, dtype)
    }

    /// Rounds the inputs of one of `tokens` tokens to 8 bits, into its places among the runs of all
    /// of them.
    pub(super) fn round(&self, x: &[f32], token: usize, tokens: usize, runs: &mut [Run]) {
        let (first, width) = product::tile_of(self.tile(), token, tokens);
        let runs = &mut runs[first * (x.len() / RUN) + token - first..];
        vectorise_as(self.isa, Round { offset: self.offset, x, step: width, runs });
    }

    /// Multiplies sixteen packed rows with rounded inputs, as many as `out` has elements.
    pub(super) fn multiply(&self, group: &[u8], runs: &[Run], out: &mut [[f32; ROWS]]) {
        (self.product)(group, runs, out);
    }
}

/// Work that may be compiled for any set of instructions. `run` must be `#[inline(always)]`, and so
/// must what it calls.
pub(super) trait Vectorised {
    /// What it gives.
    type Output;
    /// Does the work.
    fn run(self) -> Self::Output;
}

/// Does work with the best instructions there are.
#[inline]
pub(super) fn vectorise<W: Vectorised>(work: W) -> W::Output {
    vectorise_as(*ISA, work)
}

struct Round<'a> {
    offset: i32,
    x: &'a [f32],
    step: usize,
    runs: &'a mut [Run],
}

impl Vectorised for Round<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        product::round(self.offset, self.x, self.step, self.runs);
    }
}

/// Expands to the function of each format on one machine.
macro_rules! by_format {
    ($dtype:expr, $function:ident $(::<$flag:literal>)?) => {
        match $dtype {
            DType::Q4_0 => $function::<Q4_0 $(, $flag)?>,
            DType::Q4_1 => $function::<Q4_1 $(, $flag)?>,
            DType::Q5_0 => $function::<Q5_0 $(, $flag)?>,
            DType::Q5_1 => $function::<Q5_1 $(, $flag)?>,
            DType::Q8_0 => $function::<Q8_0 $(, $flag)?>,
            DType::Q2_K => $function::<Q2K $(, $flag)?>,
            DType::Q3_K => $function::<Q3K $(, $flag)?>,
            DType::Q4_K => $function::<Q4K $(, $flag)?>,
            DType::Q5_K => $function::<Q5K $(, $flag)?>,
            DType::Q6_K => $function::<Q6K $(, $flag)?>,
            DType::IQ4_NL => $function::<Iq4Nl $(, $flag)?>,
            DType::IQ4_XS => $function::<Iq4Xs $(, $flag)?>,
            DType::F32 | DType::F16 | DType::BF16 | DType::U32 => return None,
        }
    };
}

impl Products {
    /// The products of a type with given instructions, which the machine must have.
    fn with(isa: Isa, dtype: DType) -> Option<Self> {
        let offset = by_format!(dtype, offset)();
        let product: fn(&[u8], &[Run], &mut [[f32; ROWS]]) = match isa {
            Isa::Scalar => by_format!(dtype, product_scalar),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => by_format!(dtype, product_avx2),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => by_format!(dtype, product_avx512::<false>),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni => by_format!(dtype, product_avx512::<true>),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => by_format!(dtype, product_neon),
        };
        Some(Self { isa, offset, product })
    }

    fn tile(&self) -> usize {
        use lanes::Lanes;
        match self.isa {
            Isa::Scalar => Scalar::TILE,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::Avx2::TILE,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Vnni => avx512::Avx512::<true>::TILE,
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => neon::Neon::TILE,
        }
    }
}

fn offset<F: Format>() -> i32 {
    F::OFFSET
}

fn product_scalar<F: Format>(group: &[u8], runs: &[Run], out: &mut [[f32; ROWS]]) {
    product::product::<_, F>(Scalar, group, runs, out);
}

#[cfg(target_arch = "x86_64")]
fn product_avx2<F: Format>(group: &[u8], runs: &[Run], out: &mut [[f32; ROWS]]) {
    #[target_feature(enable = "avx2,fma,f16c")]
    fn inner<F: Format>(group: &[u8], runs: &[Run], out: &mut [[f32; ROWS]]) {
        // SAFETY: this function is called only where the machine has what it is compiled for.
        let lanes = unsafe { avx2::Avx2::assume() };
        product::product::<_, F>(lanes, group, runs, out);
    }
    // SAFETY: `Products::with` gives this function out for `Isa::Avx2` alone, which `available` finds
    // only where the machine has these instructions.
    unsafe { inner::<F>(group, runs, out) }
}

#[cfg(target_arch = "x86_64")]
fn product_avx512<F: Format, const VNNI: bool>(
    group: &[u8],
    runs: &[Run],
    out: &mut [[f32; ROWS]],
) {
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    fn plain<F: Format>(group: &[u8], runs: &[Run], out: &mut [[f32; ROWS]]) {
        // SAFETY: this function is called only where the machine has what it is compiled for.
        let lanes = unsafe { avx512::Avx512::<false>::assume() };
        product::product::<_, F>(lanes, group, runs, out);
    }
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    fn vnni<F: Format>(group: &[u8], runs: &[Run], out: &mut [[f32; ROWS]]) {
        // SAFETY: this function is called only where the machine has what it is compiled for.
        let lanes = unsafe { avx512::Avx512::<true>::assume() };
        product::product::<_, F>(lanes, group, runs, out);
    }
    if VNNI {
        // SAFETY: `Products::with` gives this function out for `Isa::Avx512Vnni` alone, which
        // `available` finds only where the machine has these instructions.
        unsafe { vnni::<F>(group, runs, out) }
    } else {
        // SAFETY: as above, for `Isa::Avx512`.
        unsafe { plain::<F>(group, runs, out) }
    }
}

#[cfg(target_arch = "aarch64")]
fn product_neon<F: Format>(group: &[u8], runs: &[Run], out: &mut [[f32; ROWS]]) {
    #[target_feature(enable = "neon")]
    fn inner<F: Format>(group: &[u8], runs: &[Run], out: &mut [[f32; ROWS]]) {
        // SAFETY: this function is called only where the machine has what it is compiled for.
        let lanes = unsafe { neon::Neon::assume() };
        product::product::<_, F>(lanes, group, runs, out);
    }
    // SAFETY: `Products::with` gives this function out for `Isa::Neon` alone, which `available` finds
    // only where the machine has these instructions.
    unsafe { inner::<F>(group, runs, out) }
}

/// Does work with instructions the machine must have.
#[inline]
fn vectorise_as<W: Vectorised>(isa: Isa, work: W) -> W::Output {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn avx2<W: Vectorised>(work: W) -> W::Output {
            work.run()
        }
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
        fn avx512<W: Vectorised>(work: W) -> W::Output {
            work.run()
        }
        match isa {
            Isa::Scalar => {}
            // SAFETY: `available` finds this set only where the machine has these instructions.
            Isa::Avx2 => return unsafe { avx2(work) },
            // SAFETY: as above.
            Isa::Avx512 | Isa::Avx512Vnni => return unsafe { avx512(work) },
        }
    }
    // Where NEON is, the compiler uses it without being told.
    let _ = isa;
    work.run()
}
