//! Rows of plain floats: sums of products, and f16 and bf16 as f32.

use half::{bf16, f16};

use super::lanes::Lanes;
use super::{Vectorised, vectorise};

/// Sum of products. Element `i` goes to partial sum `i % 32`; those are folded in halves. The order
/// depends on the length alone.
#[inline(always)]
pub(in crate::cpu) fn dot<L: Lanes>(l: L, a: &[f32], b: &[f32]) -> f32 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<32>(), b.as_chunks::<32>());
    let (mut low, mut high) = (l.float(0.0), l.float(0.0));
    for (a, b) in a.iter().zip(b) {
        low = l.add(low, l.mul(half(l, a, 0), half(l, b, 0)));
        high = l.add(high, l.mul(half(l, a, 16), half(l, b, 16)));
    }
    if a_rest.is_empty() || b_rest.is_empty() {
        return fold(l.store(l.add(low, high)));
    }
    let mut sums = [l.store(low), l.store(high)];
    let rest = a_rest.iter().zip(b_rest);
    for (sum, (&a, &b)) in sums.as_flattened_mut().iter_mut().zip(rest) {
        *sum += a * b;
    }
    fold(std::array::from_fn(|i| sums[0][i] + sums[1][i]))
}

#[inline(always)]
fn half<L: Lanes>(l: L, row: &[f32; 32], at: usize) -> L::Floats {
    match row[at..].first_chunk() {
        Some(half) => l.floats(half),
        None => l.float(0.0),
    }
}

#[inline(always)]
fn fold(sums: [f32; 16]) -> f32 {
    let eight: [f32; 8] = std::array::from_fn(|i| sums[i] + sums[i + 8]);
    let four: [f32; 4] = std::array::from_fn(|i| eight[i] + eight[i + 4]);
    (four[0] + four[2]) + (four[1] + four[3])
}

/// Sums of products of one row with others.
pub(in crate::cpu) fn dots(row: &[f32], others: &[&[f32]], out: impl FnMut(usize, f32)) {
    struct Dots<'a, F> {
        row: &'a [f32],
        others: &'a [&'a [f32]],
        out: F,
    }
    impl<F: FnMut(usize, f32)> Vectorised for Dots<'_, F> {
        type Output = ();

        #[inline(always)]
        fn run<L: Lanes>(mut self, l: L) {
            for (index, other) in self.others.iter().enumerate() {
                (self.out)(index, dot(l, other, self.row));
            }
        }
    }
    vectorise(Dots { row, others, out });
}

/// Widens f16 numbers.
pub(in crate::cpu) fn widen_f16(row: &[f16], out: &mut [f32]) {
    struct Widen<'a>(&'a [f16], &'a mut [f32]);
    impl Vectorised for Widen<'_> {
        type Output = ();

        #[inline(always)]
        fn run<L: Lanes>(self, l: L) {
            let (blocks, rest) = self.0.as_chunks::<16>();
            let (out, out_rest) = self.1.as_chunks_mut::<16>();
            for (block, out) in blocks.iter().zip(out) {
                *out = l.store(l.floats_f16(bytemuck::cast_ref(block)));
            }
            for (x, out) in rest.iter().zip(out_rest) {
                *out = x.to_f32();
            }
        }
    }
    vectorise(Widen(row, out));
}

/// Widens bf16 numbers.
pub(in crate::cpu) fn widen_bf16(row: &[bf16], out: &mut [f32]) {
    struct Widen<'a>(&'a [bf16], &'a mut [f32]);
    impl Vectorised for Widen<'_> {
        type Output = ();

        #[inline(always)]
        fn run<L: Lanes>(self, l: L) {
            let (blocks, rest) = self.0.as_chunks::<16>();
            let (out, out_rest) = self.1.as_chunks_mut::<16>();
            for (block, out) in blocks.iter().zip(out) {
                // The upper half of the f32 with the same value.
                *out = l.store(l.cast(l.int_shl(l.ints_u16(bytemuck::cast_ref(block)), 16)));
            }
            for (x, out) in rest.iter().zip(out_rest) {
                *out = x.to_f32();
            }
        }
    }
    vectorise(Widen(row, out));
}
