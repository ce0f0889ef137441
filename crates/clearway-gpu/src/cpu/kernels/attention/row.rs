//! One head of a row of the cache, whatever its elements are.

use half::f16;

use crate::cpu::piece::misuse;
use crate::cpu::simd::Lanes;
use crate::cpu::simd::float::{Element, LANES, sixteen};
use crate::quant::cache::{CHUNK, value};

/// Bytes that memory gives at once.
const LINE: usize = 64;

/// One head of a row of the cache.
pub(super) trait Row: Copy {
    /// A row that is not there: zeros.
    const EMPTY: Self;

    /// Elements from `at` on, with zeros behind the row.
    fn sixteen<L: Lanes>(self, l: L, at: usize) -> L::Floats;

    /// The same where the row has all of them. There is no call in it, around which the compiler would have to store
    /// all vectors.
    fn whole<L: Lanes>(self, l: L, at: usize) -> L::Floats;

    /// Asks for the row, which is used later.
    fn fetch<L: Lanes>(self, l: L);
}

/// Asks for all lines of some memory.
#[inline(always)]
fn fetch_all<L: Lanes>(l: L, memory: &[u8]) {
    let mut at = 0;
    while at < memory.len() {
        l.fetch_far(memory, at);
        at += LINE;
    }
}

impl<T: Element> Row for &[T] {
    const EMPTY: Self = &[];

    #[inline(always)]
    fn sixteen<L: Lanes>(self, l: L, at: usize) -> L::Floats {
        sixteen(l, self, at)
    }

    #[inline(always)]
    fn whole<L: Lanes>(self, l: L, at: usize) -> L::Floats {
        let elems = self.get(at..at + LANES).and_then(|elems| elems.first_chunk());
        let Some(elems) = elems else { misuse("a row of the cache is too short") };
        T::floats(l, elems)
    }

    #[inline(always)]
    fn fetch<L: Lanes>(self, l: L) {
        fetch_all(l, bytemuck::cast_slice(self));
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

    #[inline(always)]
    fn whole<L: Lanes>(self, l: L, at: usize) -> L::Floats {
        self.sixteen(l, at)
    }

    #[inline(always)]
    fn fetch<L: Lanes>(self, l: L) {
        fetch_all(l, bytemuck::cast_slice(self.quants));
        fetch_all(l, bytemuck::cast_slice(self.scales));
    }
}
