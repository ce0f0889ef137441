//! One head of a row of the cache, whatever its elements are.

use half::f16;

use crate::cpu::simd::Lanes;
use crate::cpu::simd::float::{Element, LANES, sixteen};
use crate::quant::cache::{CHUNK, value};

/// One head of a row of the cache.
pub(super) trait Row: Copy {
    /// A row that is not there: zeros.
    const EMPTY: Self;

    /// Elements from `at` on, with zeros behind the row.
    fn sixteen<L: Lanes>(self, l: L, at: usize) -> L::Floats;
}

impl<T: Element> Row for &[T] {
    const EMPTY: Self = &[];

    #[inline(always)]
    fn sixteen<L: Lanes>(self, l: L, at: usize) -> L::Floats {
        sixteen(l, self, at)
    }
}

/// A row of chunks that were rounded to 8 bits.
#[derive(Clone, Copy)]
pub(super) struct Chunks<'a> {
    pub(super) quants: &'a [i8],
    pub(super) scales: &'a [f16],
}

impl Row for Chunks<'_> {
    const EMPTY: Self = Self { quants: &[], scales: &[] };

    #[inline(always)]
    fn sixteen<L: Lanes>(self, l: L, at: usize) -> L::Floats {
        let quants = self.quants.get(at..).and_then(|rest| rest.first_chunk::<LANES>());
        match (quants, self.scales.get(at / CHUNK)) {
            (Some(quants), Some(scale)) => {
                let quants = l.to_floats(l.ints_i8(bytemuck::cast_ref(quants)));
                l.mul(quants, l.float(value(*scale)))
            }
            _ => l.float(0.0),
        }
    }
}
