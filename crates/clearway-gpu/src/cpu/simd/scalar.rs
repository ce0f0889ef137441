//! Sixteen rows without any special instruction.

use half::f16;

use super::lanes::Lanes;

/// Arrays and loops.
#[derive(Clone, Copy)]
pub(super) struct Scalar;

impl Lanes for Scalar {
    type Bytes = [u8; 64];
    type Ints = [i32; 16];
    type Floats = [f32; 16];
    type Dot = [i32; 16];

    const SIGNED: bool = false;
    const TILE: usize = 1;

    #[inline(always)]
    fn bytes(self, memory: &[u8; 64]) -> Self::Bytes {
        *memory
    }

    #[inline(always)]
    fn store_bytes(self, a: Self::Bytes) -> [u8; 64] {
        a
    }

    #[inline(always)]
    fn byte(self, value: u8) -> Self::Bytes {
        [value; 64]
    }

    #[inline(always)]
    fn and(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes {
        std::array::from_fn(|i| a[i] & b[i])
    }

    #[inline(always)]
    fn or(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes {
        std::array::from_fn(|i| a[i] | b[i])
    }

    #[inline(always)]
    fn xor(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes {
        std::array::from_fn(|i| a[i] ^ b[i])
    }

    #[inline(always)]
    fn shr(self, a: Self::Bytes, bits: u32) -> Self::Bytes {
        a.map(|a| a >> bits)
    }

    #[inline(always)]
    fn shl(self, a: Self::Bytes, bits: u32) -> Self::Bytes {
        a.map(|a| a << bits)
    }

    #[inline(always)]
    fn lookup(self, table: &[u8; 16], index: Self::Bytes) -> Self::Bytes {
        index.map(|index| table[usize::from(index & 15)])
    }

    #[inline(always)]
    fn dot(self, start: i32) -> Self::Dot {
        [start; 16]
    }

    #[inline(always)]
    fn dot_add(
        self,
        _: usize,
        _: usize,
        mut dot: Self::Dot,
        w: Self::Bytes,
        x: [i8; 4],
    ) -> Self::Dot {
        for (sum, w) in dot.iter_mut().zip(w.as_chunks::<4>().0) {
            for (&w, x) in w.iter().zip(x) {
                *sum += i32::from(w) * i32::from(x);
            }
        }
        dot
    }

    #[inline(always)]
    fn dot_end(self, _: usize, _: i32, dot: Self::Dot) -> Self::Ints {
        dot
    }

    #[inline(always)]
    fn ints_u8(self, memory: &[u8; 16]) -> Self::Ints {
        memory.map(i32::from)
    }

    #[inline(always)]
    fn ints_i8(self, memory: &[u8; 16]) -> Self::Ints {
        memory.map(|byte| i32::from(byte as i8))
    }

    #[inline(always)]
    fn ints_u16(self, memory: &[u8; 32]) -> Self::Ints {
        let (words, _) = memory.as_chunks::<2>();
        std::array::from_fn(|i| i32::from(u16::from_le_bytes(words[i])))
    }

    #[inline(always)]
    fn int(self, value: i32) -> Self::Ints {
        [value; 16]
    }

    #[inline(always)]
    fn int_and(self, a: Self::Ints, b: Self::Ints) -> Self::Ints {
        std::array::from_fn(|i| a[i] & b[i])
    }

    #[inline(always)]
    fn int_shr(self, a: Self::Ints, bits: u32) -> Self::Ints {
        a.map(|a| (a as u32 >> bits) as i32)
    }

    #[inline(always)]
    fn int_shl(self, a: Self::Ints, bits: u32) -> Self::Ints {
        a.map(|a| a << bits)
    }

    #[inline(always)]
    fn int_add(self, a: Self::Ints, b: Self::Ints) -> Self::Ints {
        std::array::from_fn(|i| a[i].wrapping_add(b[i]))
    }

    #[inline(always)]
    fn int_max(self, a: Self::Ints, b: Self::Ints) -> Self::Ints {
        std::array::from_fn(|i| a[i].max(b[i]))
    }

    #[inline(always)]
    fn cast(self, a: Self::Ints) -> Self::Floats {
        a.map(|a| f32::from_bits(a as u32))
    }

    #[inline(always)]
    fn to_floats(self, a: Self::Ints) -> Self::Floats {
        a.map(|a| a as f32)
    }

    #[inline(always)]
    fn floats(self, memory: &[f32; 16]) -> Self::Floats {
        *memory
    }

    #[inline(always)]
    fn floats_f16(self, memory: &[u8; 32]) -> Self::Floats {
        let (words, _) = memory.as_chunks::<2>();
        std::array::from_fn(|i| f16::from_le_bytes(words[i]).to_f32())
    }

    #[inline(always)]
    fn float(self, value: f32) -> Self::Floats {
        [value; 16]
    }

    #[inline(always)]
    fn bits(self, a: Self::Floats) -> Self::Ints {
        a.map(|a| a.to_bits() as i32)
    }

    #[inline(always)]
    fn add(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        std::array::from_fn(|i| a[i] + b[i])
    }

    #[inline(always)]
    fn max(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        std::array::from_fn(|i| if a[i] > b[i] || a[i].is_nan() { a[i] } else { b[i] })
    }

    #[inline(always)]
    fn larger(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        std::array::from_fn(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    fn choose(self, by: Self::Floats, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        std::array::from_fn(|i| if by[i] >= 0.0 { a[i] } else { b[i] })
    }

    #[inline(always)]
    fn mul(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        std::array::from_fn(|i| a[i] * b[i])
    }

    #[inline(always)]
    fn mul_add(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }

    #[inline(always)]
    fn store(self, a: Self::Floats) -> [f32; 16] {
        a
    }
}
