//! Sixteen rows in two registers of 256 bits.

use std::arch::x86_64::*;

use super::lanes::Lanes;

/// AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(super) struct Avx2(());

impl Avx2 {
    /// # Safety
    /// The machine has the instructions the type names.
    #[inline(always)]
    pub(super) unsafe fn assume() -> Self {
        Self(())
    }
}

/// One instruction. Who has a value of the type has the instructions.
macro_rules! op {
    ($name:ident $(::<$imm:tt>)? ($($arg:expr),*)) => {{
        // SAFETY: the machine has the instruction: `self` exists, and `assume`, which makes it, is called by
        // `with_avx2` only, whose callers answer for that.
        unsafe { $name $(::<$imm>)? ($($arg),*) }
    }};
}

/// An instruction for each of the two registers.
macro_rules! both {
    ($name:ident($($arg:expr),*)) => {
        [op!($name($($arg[0]),*)), op!($name($($arg[1]),*))]
    };
}

/// An instruction that reads memory: the whole of an array, from any address.
macro_rules! load {
    ($name:ident($memory:expr)) => {{
        // SAFETY: each use in this file passes an array of as many bytes as the instruction reads, which
        // asks for no alignment. The machine has the instruction: `self` exists, and `assume`, which
        // makes it, is called by `with_avx2` only, whose callers answer for that.
        unsafe { $name($memory.as_ptr().cast()) }
    }};
}

/// Sums of products of bytes: of pairs of them in 16 bits each, and of fours.
#[derive(Clone, Copy)]
pub(super) struct Dot {
    pairs: [__m256i; 2],
    fours: [__m256i; 2],
}

impl Lanes for Avx2 {
    type Bytes = [__m256i; 2];
    type Ints = [__m256i; 2];
    type Floats = [__m256; 2];
    type Dot = Dot;

    const SIGNED: bool = true;
    const TILE: usize = 4;

    #[inline(always)]
    fn bytes(self, memory: &[u8; 64]) -> [__m256i; 2] {
        let halves: &[[u8; 32]; 2] = bytemuck::cast_ref(memory);
        [load!(_mm256_loadu_si256(halves[0])), load!(_mm256_loadu_si256(halves[1]))]
    }

    #[inline(always)]
    fn store_bytes(self, a: [__m256i; 2]) -> [u8; 64] {
        let mut out = [[0_u8; 32]; 2];
        for (out, a) in out.iter_mut().zip(a) {
            // SAFETY: the array has the 32 bytes that are written, and no alignment is asked for; the
            // machine has the instruction, since `self` exists (see `assume`).
            unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), a) };
        }
        bytemuck::cast(out)
    }

    #[inline(always)]
    fn byte(self, value: u8) -> [__m256i; 2] {
        [op!(_mm256_set1_epi8(value as i8)); 2]
    }

    #[inline(always)]
    fn and(self, a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        both!(_mm256_and_si256(a, b))
    }

    #[inline(always)]
    fn or(self, a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        both!(_mm256_or_si256(a, b))
    }

    #[inline(always)]
    fn xor(self, a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        both!(_mm256_xor_si256(a, b))
    }

    #[inline(always)]
    fn shr(self, a: [__m256i; 2], bits: u32) -> [__m256i; 2] {
        let bits = [op!(_mm_cvtsi32_si128(bits as i32)); 2];
        both!(_mm256_srl_epi16(a, bits))
    }

    #[inline(always)]
    fn shl(self, a: [__m256i; 2], bits: u32) -> [__m256i; 2] {
        let bits = [op!(_mm_cvtsi32_si128(bits as i32)); 2];
        both!(_mm256_sll_epi16(a, bits))
    }

    #[inline(always)]
    fn lookup(self, table: &[u8; 16], index: [__m256i; 2]) -> [__m256i; 2] {
        let table = load!(_mm_loadu_si128(table));
        let table = [op!(_mm256_broadcastsi128_si256(table)); 2];
        both!(_mm256_shuffle_epi8(table, index))
    }

    #[inline(always)]
    fn dot(self, _: i32) -> Dot {
        Dot { pairs: self.int(0), fours: self.int(0) }
    }

    #[inline(always)]
    fn dot_add(self, top: usize, index: usize, dot: Dot, w: [__m256i; 2], x: [i8; 4]) -> Dot {
        let x = self.int(bytemuck::cast(x));
        if top > 127 {
            // Signed weights, so that no sum of two products is beyond 16 bits.
            let (x, w) = (both!(_mm256_sign_epi8(x, w)), both!(_mm256_abs_epi8(w)));
            let pairs = both!(_mm256_maddubs_epi16(w, x));
            return Dot { pairs: self.int(0), fours: self.int_add(dot.fours, self.fours(pairs)) };
        }
        let (before, products) = (dot.pairs, both!(_mm256_maddubs_epi16(w, x)));
        let pairs = both!(_mm256_add_epi16(before, products));
        // As many pairs as surely fit 16 bits are summed before they are widened.
        let safe = i16::MAX as usize / (2 * 127 * top);
        if (index + 1).is_multiple_of(safe) {
            return Dot { pairs: self.int(0), fours: self.int_add(dot.fours, self.fours(pairs)) };
        }
        Dot { pairs, fours: dot.fours }
    }

    #[inline(always)]
    fn dot_end(self, top: usize, start: i32, dot: Dot) -> [__m256i; 2] {
        let sum = self.int_add(dot.fours, self.int(start));
        if top > 127 { sum } else { self.int_add(sum, self.fours(dot.pairs)) }
    }

    #[inline(always)]
    fn ints_u8(self, memory: &[u8; 16]) -> [__m256i; 2] {
        let bytes = load!(_mm_loadu_si128(memory));
        let bytes = [bytes, op!(_mm_unpackhi_epi64(bytes, bytes))];
        both!(_mm256_cvtepu8_epi32(bytes))
    }

    #[inline(always)]
    fn ints_i8(self, memory: &[u8; 16]) -> [__m256i; 2] {
        let bytes = load!(_mm_loadu_si128(memory));
        let bytes = [bytes, op!(_mm_unpackhi_epi64(bytes, bytes))];
        both!(_mm256_cvtepi8_epi32(bytes))
    }

    #[inline(always)]
    fn ints_u16(self, memory: &[u8; 32]) -> [__m256i; 2] {
        let halves: &[[u8; 16]; 2] = bytemuck::cast_ref(memory);
        let words = [load!(_mm_loadu_si128(halves[0])), load!(_mm_loadu_si128(halves[1]))];
        both!(_mm256_cvtepu16_epi32(words))
    }

    #[inline(always)]
    fn int(self, value: i32) -> [__m256i; 2] {
        [op!(_mm256_set1_epi32(value)); 2]
    }

    #[inline(always)]
    fn int_and(self, a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        both!(_mm256_and_si256(a, b))
    }

    #[inline(always)]
    fn int_shr(self, a: [__m256i; 2], bits: u32) -> [__m256i; 2] {
        let bits = [op!(_mm_cvtsi32_si128(bits as i32)); 2];
        both!(_mm256_srl_epi32(a, bits))
    }

    #[inline(always)]
    fn int_shl(self, a: [__m256i; 2], bits: u32) -> [__m256i; 2] {
        let bits = [op!(_mm_cvtsi32_si128(bits as i32)); 2];
        both!(_mm256_sll_epi32(a, bits))
    }

    #[inline(always)]
    fn int_add(self, a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        both!(_mm256_add_epi32(a, b))
    }

    #[inline(always)]
    fn int_max(self, a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        both!(_mm256_max_epi32(a, b))
    }

    #[inline(always)]
    fn fetch(self, memory: &[u8], behind: usize) {
        // SAFETY: the instruction reads nothing that the program sees, whatever the address; every x86-64 machine has it.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(memory.as_ptr().wrapping_add(behind).cast()) };
    }

    #[inline(always)]
    fn fetch_far(self, memory: &[u8], behind: usize) {
        // SAFETY: the instruction reads nothing that the program sees, whatever the address; every x86-64 machine has it.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(memory.as_ptr().wrapping_add(behind).cast()) };
    }

    #[inline(always)]
    fn cast(self, a: [__m256i; 2]) -> [__m256; 2] {
        both!(_mm256_castsi256_ps(a))
    }

    #[inline(always)]
    fn to_floats(self, a: [__m256i; 2]) -> [__m256; 2] {
        both!(_mm256_cvtepi32_ps(a))
    }

    #[inline(always)]
    fn floats(self, memory: &[f32; 16]) -> [__m256; 2] {
        let halves: &[[f32; 8]; 2] = bytemuck::cast_ref(memory);
        [load!(_mm256_loadu_ps(halves[0])), load!(_mm256_loadu_ps(halves[1]))]
    }

    #[inline(always)]
    fn floats_f16(self, memory: &[u8; 32]) -> [__m256; 2] {
        let halves: &[[u8; 16]; 2] = bytemuck::cast_ref(memory);
        let halves = [load!(_mm_loadu_si128(halves[0])), load!(_mm_loadu_si128(halves[1]))];
        both!(_mm256_cvtph_ps(halves))
    }

    #[inline(always)]
    fn float(self, value: f32) -> [__m256; 2] {
        [op!(_mm256_set1_ps(value)); 2]
    }

    #[inline(always)]
    fn bits(self, a: [__m256; 2]) -> [__m256i; 2] {
        both!(_mm256_castps_si256(a))
    }

    #[inline(always)]
    fn add(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        both!(_mm256_add_ps(a, b))
    }

    #[inline(always)]
    fn max(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        // Where either is NaN, the instruction gives the second.
        let larger = both!(_mm256_max_ps(a, b));
        let mut out = larger;
        for ((out, a), larger) in out.iter_mut().zip(a).zip(larger) {
            let nan = op!(_mm256_cmp_ps::<_CMP_UNORD_Q>(a, a));
            *out = op!(_mm256_blendv_ps(larger, a, nan));
        }
        out
    }

    #[inline(always)]
    fn larger(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        both!(_mm256_max_ps(a, b))
    }

    #[inline(always)]
    fn choose(self, by: [__m256; 2], a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        let mut out = b;
        for (((out, by), a), b) in out.iter_mut().zip(by).zip(a).zip(b) {
            let zero = op!(_mm256_setzero_ps());
            let chosen = op!(_mm256_cmp_ps::<_CMP_GE_OQ>(by, zero));
            *out = op!(_mm256_blendv_ps(b, a, chosen));
        }
        out
    }

    #[inline(always)]
    fn mul(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        both!(_mm256_mul_ps(a, b))
    }

    #[inline(always)]
    fn mul_add(self, a: [__m256; 2], b: [__m256; 2], c: [__m256; 2]) -> [__m256; 2] {
        both!(_mm256_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn store(self, a: [__m256; 2]) -> [f32; 16] {
        let mut out = [[0.0_f32; 8]; 2];
        for (out, a) in out.iter_mut().zip(a) {
            // SAFETY: the array has the 32 bytes that are written, and no alignment is asked for; the
            // machine has the instruction, since `self` exists (see `assume`).
            unsafe { _mm256_storeu_ps(out.as_mut_ptr(), a) };
        }
        bytemuck::cast(out)
    }

    #[inline(always)]
    fn transpose(self, square: [[__m256; 2]; 16]) -> [[__m256; 2]; 16] {
        let mut out = square;
        for (low, high) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let mut part = [square[0][0]; 8];
            for (i, part) in part.iter_mut().enumerate() {
                *part = square[8 * low + i][high];
            }
            for (i, part) in self.transpose_eight(part).into_iter().enumerate() {
                out[8 * high + i][low] = part;
            }
        }
        out
    }
}

impl Avx2 {
    /// Sums of two neighbours.
    #[inline(always)]
    fn fours(self, pairs: [__m256i; 2]) -> [__m256i; 2] {
        let ones = [op!(_mm256_set1_epi16(1)); 2];
        both!(_mm256_madd_epi16(pairs, ones))
    }

    /// Eight vectors of eight.
    #[inline(always)]
    fn transpose_eight(self, v: [__m256; 8]) -> [__m256; 8] {
        // Pairs of neighbours, then fours, then halves.
        let mut pairs = v;
        for i in 0..4 {
            pairs[2 * i] = op!(_mm256_unpacklo_ps(v[2 * i], v[2 * i + 1]));
            pairs[2 * i + 1] = op!(_mm256_unpackhi_ps(v[2 * i], v[2 * i + 1]));
        }
        let mut fours = v;
        for half in [0, 4] {
            for i in 0..2 {
                let (a, b) = (pairs[half + i], pairs[half + 2 + i]);
                fours[half + 2 * i] = op!(_mm256_shuffle_ps::<0b01_00_01_00>(a, b));
                fours[half + 2 * i + 1] = op!(_mm256_shuffle_ps::<0b11_10_11_10>(a, b));
            }
        }
        let mut out = v;
        for i in 0..4 {
            out[i] = op!(_mm256_permute2f128_ps::<0x20>(fours[i], fours[i + 4]));
            out[i + 4] = op!(_mm256_permute2f128_ps::<0x31>(fours[i], fours[i + 4]));
        }
        out
    }
}
