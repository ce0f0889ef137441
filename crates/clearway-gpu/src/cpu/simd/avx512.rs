//! Sixteen rows in one register of 512 bits.

use std::arch::x86_64::*;

use super::lanes::Lanes;

/// AVX-512 F, BW, DQ and VL, AVX2, FMA and F16C; with `VNNI`, the byte products too.
#[derive(Clone, Copy)]
pub(super) struct Avx512<const VNNI: bool>(());

impl<const VNNI: bool> Avx512<VNNI> {
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
        // `with_avx512` and `with_avx512_vnni` only, whose callers answer for that.
        unsafe { $name $(::<$imm>)? ($($arg),*) }
    }};
}

/// An instruction that reads memory: the whole of an array, from any address.
macro_rules! load {
    ($name:ident($memory:expr)) => {{
        // SAFETY: each use in this file passes an array of as many bytes as the instruction reads, which
        // asks for no alignment. The machine has the instruction: `self` exists, and `assume`, which
        // makes it, is called by `with_avx512` and `with_avx512_vnni` only, whose callers answer for that.
        unsafe { $name($memory.as_ptr().cast()) }
    }};
}

/// Sums of products of bytes: of pairs of them in 16 bits each, and of fours.
#[derive(Clone, Copy)]
pub(super) struct Dot {
    pairs: __m512i,
    fours: __m512i,
}

impl<const VNNI: bool> Avx512<VNNI> {
    /// Sums of two neighbours.
    #[inline(always)]
    fn fours(self, pairs: __m512i) -> __m512i {
        let ones = op!(_mm512_set1_epi16(1));
        op!(_mm512_madd_epi16(pairs, ones))
    }
}

impl<const VNNI: bool> Lanes for Avx512<VNNI> {
    type Bytes = __m512i;
    type Ints = __m512i;
    type Floats = __m512;
    type Dot = Dot;

    const SIGNED: bool = !VNNI;
    const TILE: usize = 8;

    #[inline(always)]
    fn bytes(self, memory: &[u8; 64]) -> __m512i {
        load!(_mm512_loadu_si512(memory))
    }

    #[inline(always)]
    fn store_bytes(self, a: __m512i) -> [u8; 64] {
        let mut out = [0; 64];
        // SAFETY: the array has the 64 bytes that are written, and no alignment is asked for; the
        // machine has the instruction, since `self` exists (see `assume`).
        unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), a) };
        out
    }

    #[inline(always)]
    fn byte(self, value: u8) -> __m512i {
        op!(_mm512_set1_epi8(value as i8))
    }

    #[inline(always)]
    fn and(self, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_and_si512(a, b))
    }

    #[inline(always)]
    fn or(self, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_or_si512(a, b))
    }

    #[inline(always)]
    fn xor(self, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_xor_si512(a, b))
    }

    #[inline(always)]
    fn shr(self, a: __m512i, bits: u32) -> __m512i {
        let bits = op!(_mm_cvtsi32_si128(bits as i32));
        op!(_mm512_srl_epi16(a, bits))
    }

    #[inline(always)]
    fn shl(self, a: __m512i, bits: u32) -> __m512i {
        let bits = op!(_mm_cvtsi32_si128(bits as i32));
        op!(_mm512_sll_epi16(a, bits))
    }

    #[inline(always)]
    fn lookup(self, table: &[u8; 16], index: __m512i) -> __m512i {
        let table = load!(_mm_loadu_si128(table));
        let table = op!(_mm512_broadcast_i32x4(table));
        op!(_mm512_shuffle_epi8(table, index))
    }

    #[inline(always)]
    fn dot(self, start: i32) -> Dot {
        Dot { pairs: self.int(0), fours: self.int(if VNNI { start } else { 0 }) }
    }

    #[inline(always)]
    fn dot_add(self, top: usize, index: usize, dot: Dot, w: __m512i, x: [i8; 4]) -> Dot {
        let x = self.int(bytemuck::cast(x));
        if VNNI {
            return Dot { fours: op!(_mm512_dpbusd_epi32(dot.fours, w, x)), ..dot };
        }
        if top > 127 {
            // Signed weights, so that no sum of two products is beyond 16 bits.
            let negative = op!(_mm512_movepi8_mask(w));
            let none = self.int(0);
            let x = op!(_mm512_mask_sub_epi8(x, negative, none, x));
            let magnitude = op!(_mm512_abs_epi8(w));
            let pairs = op!(_mm512_maddubs_epi16(magnitude, x));
            return Dot { fours: self.int_add(dot.fours, self.fours(pairs)), ..dot };
        }
        let products = op!(_mm512_maddubs_epi16(w, x));
        let pairs = op!(_mm512_add_epi16(dot.pairs, products));
        // As many pairs as surely fit 16 bits are summed before they are widened.
        let safe = i16::MAX as usize / (2 * 127 * top);
        if (index + 1).is_multiple_of(safe) {
            return Dot { pairs: self.int(0), fours: self.int_add(dot.fours, self.fours(pairs)) };
        }
        Dot { pairs, fours: dot.fours }
    }

    #[inline(always)]
    fn dot_end(self, top: usize, start: i32, dot: Dot) -> __m512i {
        if VNNI {
            return dot.fours;
        }
        let sum = self.int_add(dot.fours, self.int(start));
        if top > 127 { sum } else { self.int_add(sum, self.fours(dot.pairs)) }
    }

    #[inline(always)]
    fn ints_u8(self, memory: &[u8; 16]) -> __m512i {
        let bytes = load!(_mm_loadu_si128(memory));
        op!(_mm512_cvtepu8_epi32(bytes))
    }

    #[inline(always)]
    fn ints_i8(self, memory: &[u8; 16]) -> __m512i {
        let bytes = load!(_mm_loadu_si128(memory));
        op!(_mm512_cvtepi8_epi32(bytes))
    }

    #[inline(always)]
    fn ints_u16(self, memory: &[u8; 32]) -> __m512i {
        let words = load!(_mm256_loadu_si256(memory));
        op!(_mm512_cvtepu16_epi32(words))
    }

    #[inline(always)]
    fn int(self, value: i32) -> __m512i {
        op!(_mm512_set1_epi32(value))
    }

    #[inline(always)]
    fn int_and(self, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_and_si512(a, b))
    }

    #[inline(always)]
    fn int_shr(self, a: __m512i, bits: u32) -> __m512i {
        let bits = op!(_mm_cvtsi32_si128(bits as i32));
        op!(_mm512_srl_epi32(a, bits))
    }

    #[inline(always)]
    fn int_shl(self, a: __m512i, bits: u32) -> __m512i {
        let bits = op!(_mm_cvtsi32_si128(bits as i32));
        op!(_mm512_sll_epi32(a, bits))
    }

    #[inline(always)]
    fn int_add(self, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_add_epi32(a, b))
    }

    #[inline(always)]
    fn int_max(self, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_max_epi32(a, b))
    }

    #[inline(always)]
    fn low_bytes(self, a: __m512i) -> [i8; 16] {
        let bytes = op!(_mm512_cvtepi32_epi8(a));
        bytemuck::cast(bytes)
    }

    #[inline(always)]
    fn sum(self, a: __m512i) -> i32 {
        op!(_mm512_reduce_add_epi32(a))
    }

    #[inline(always)]
    fn largest_int(self, a: __m512i) -> i32 {
        op!(_mm512_reduce_max_epi32(a))
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
    fn cast(self, a: __m512i) -> __m512 {
        op!(_mm512_castsi512_ps(a))
    }

    #[inline(always)]
    fn to_floats(self, a: __m512i) -> __m512 {
        op!(_mm512_cvtepi32_ps(a))
    }

    #[inline(always)]
    fn floats(self, memory: &[f32; 16]) -> __m512 {
        load!(_mm512_loadu_ps(memory))
    }

    #[inline(always)]
    fn floats_f16(self, memory: &[u8; 32]) -> __m512 {
        let halves = load!(_mm256_loadu_si256(memory));
        op!(_mm512_cvtph_ps(halves))
    }

    #[inline(always)]
    fn float(self, value: f32) -> __m512 {
        op!(_mm512_set1_ps(value))
    }

    #[inline(always)]
    fn bits(self, a: __m512) -> __m512i {
        op!(_mm512_castps_si512(a))
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_add_ps(a, b))
    }

    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        // Where either is NaN, the instruction gives the second.
        let larger = op!(_mm512_max_ps(a, b));
        let nan = op!(_mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, a));
        op!(_mm512_mask_mov_ps(larger, nan, a))
    }

    #[inline(always)]
    fn larger(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_max_ps(a, b))
    }

    #[inline(always)]
    fn choose(self, by: __m512, a: __m512, b: __m512) -> __m512 {
        let zero = op!(_mm512_setzero_ps());
        let chosen = op!(_mm512_cmp_ps_mask::<_CMP_GE_OQ>(by, zero));
        op!(_mm512_mask_mov_ps(b, chosen, a))
    }

    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_mul_ps(a, b))
    }

    #[inline(always)]
    fn mul_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        op!(_mm512_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn scale(self, a: __m512, power: __m512) -> __m512 {
        op!(_mm512_scalef_ps(a, power))
    }

    #[inline(always)]
    fn store(self, a: __m512) -> [f32; 16] {
        let mut out = [0.0; 16];
        // SAFETY: the array has the 64 bytes that are written, and no alignment is asked for; the
        // machine has the instruction, since `self` exists (see `assume`).
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), a) };
        out
    }

    #[inline(always)]
    fn transpose(self, v: [__m512; 16]) -> [__m512; 16] {
        // Inside each quarter of a register: pairs of neighbours, then fours.
        let mut pairs = v;
        for i in 0..8 {
            pairs[2 * i] = op!(_mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]));
            pairs[2 * i + 1] = op!(_mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]));
        }
        let mut fours = v;
        for four in 0..4 {
            for i in 0..2 {
                let (a, b) = (pairs[4 * four + i], pairs[4 * four + 2 + i]);
                fours[4 * four + 2 * i] = op!(_mm512_shuffle_ps::<0b01_00_01_00>(a, b));
                fours[4 * four + 2 * i + 1] = op!(_mm512_shuffle_ps::<0b11_10_11_10>(a, b));
            }
        }
        // Then quarters: even and odd ones of two registers, and of four.
        let mut out = v;
        for i in 0..4 {
            let (a, b, c, d) = (fours[i], fours[4 + i], fours[8 + i], fours[12 + i]);
            let even = [
                op!(_mm512_shuffle_f32x4::<0b10_00_10_00>(a, b)),
                op!(_mm512_shuffle_f32x4::<0b10_00_10_00>(c, d)),
            ];
            let odd = [
                op!(_mm512_shuffle_f32x4::<0b11_01_11_01>(a, b)),
                op!(_mm512_shuffle_f32x4::<0b11_01_11_01>(c, d)),
            ];
            out[i] = op!(_mm512_shuffle_f32x4::<0b10_00_10_00>(even[0], even[1]));
            out[4 + i] = op!(_mm512_shuffle_f32x4::<0b10_00_10_00>(odd[0], odd[1]));
            out[8 + i] = op!(_mm512_shuffle_f32x4::<0b11_01_11_01>(even[0], even[1]));
            out[12 + i] = op!(_mm512_shuffle_f32x4::<0b11_01_11_01>(odd[0], odd[1]));
        }
        out
    }
}
