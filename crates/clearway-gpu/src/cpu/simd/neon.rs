//! Sixteen rows in four registers of 128 bits.

use std::arch::aarch64::*;

use half::f16;

use super::lanes::Lanes;

/// NEON.
#[derive(Clone, Copy)]
pub(super) struct Neon(());

impl Neon {
    /// # Safety
    /// The machine has NEON.
    #[inline(always)]
    pub(super) unsafe fn assume() -> Self {
        Self(())
    }
}

/// One instruction. Who has a value of the type has the instructions.
macro_rules! op {
    ($name:ident($($arg:expr),*)) => {{
        // SAFETY: the machine has the instruction: `self` exists, and `assume`, which makes it, is called by
        // `with_neon` only, whose callers answer for that.
        unsafe { $name($($arg),*) }
    }};
}

/// An instruction for each of the four registers.
macro_rules! all {
    ($name:ident($($arg:expr),*)) => {[
        op!($name($($arg[0]),*)),
        op!($name($($arg[1]),*)),
        op!($name($($arg[2]),*)),
        op!($name($($arg[3]),*)),
    ]};
}

/// An instruction that reads memory: the whole of an array, from any address.
macro_rules! load {
    ($name:ident($memory:expr)) => {{
        // SAFETY: each use in this file passes an array of as many bytes as the instruction reads, which
        // asks for no alignment. The machine has the instruction: `self` exists, and `assume`, which
        // makes it, is called by `with_neon` only, whose callers answer for that.
        unsafe { $name($memory.as_ptr().cast()) }
    }};
}

impl Neon {
    /// Sums of four products of signed bytes each.
    #[inline(always)]
    fn fours(self, w: int8x16_t, x: int8x16_t) -> int32x4_t {
        let (w_low, x_low) = (op!(vget_low_s8(w)), op!(vget_low_s8(x)));
        let low = op!(vmull_s8(w_low, x_low));
        let high = op!(vmull_high_s8(w, x));
        let (low, high) = (op!(vpaddlq_s16(low)), op!(vpaddlq_s16(high)));
        op!(vpaddq_s32(low, high))
    }
}

impl Lanes for Neon {
    type Bytes = [uint8x16_t; 4];
    type Ints = [int32x4_t; 4];
    type Floats = [float32x4_t; 4];
    type Dot = [int32x4_t; 4];

    // Products are of signed bytes.
    const SIGNED: bool = true;
    const TILE: usize = 4;

    #[inline(always)]
    fn bytes(self, memory: &[u8; 64]) -> Self::Bytes {
        let quarters: &[[u8; 16]; 4] = bytemuck::cast_ref(memory);
        [
            load!(vld1q_u8(quarters[0])),
            load!(vld1q_u8(quarters[1])),
            load!(vld1q_u8(quarters[2])),
            load!(vld1q_u8(quarters[3])),
        ]
    }

    #[inline(always)]
    fn store_bytes(self, a: Self::Bytes) -> [u8; 64] {
        let mut out = [[0_u8; 16]; 4];
        for (out, a) in out.iter_mut().zip(a) {
            // SAFETY: the array has the 16 bytes that are written, and no alignment is asked for; the
            // machine has the instruction, since `self` exists (see `assume`).
            unsafe { vst1q_u8(out.as_mut_ptr(), a) };
        }
        bytemuck::cast(out)
    }

    #[inline(always)]
    fn byte(self, value: u8) -> Self::Bytes {
        [op!(vdupq_n_u8(value)); 4]
    }

    #[inline(always)]
    fn and(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes {
        all!(vandq_u8(a, b))
    }

    #[inline(always)]
    fn or(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes {
        all!(vorrq_u8(a, b))
    }

    #[inline(always)]
    fn xor(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes {
        all!(veorq_u8(a, b))
    }

    #[inline(always)]
    fn shr(self, a: Self::Bytes, bits: u32) -> Self::Bytes {
        let bits = [op!(vdupq_n_s8(-(bits as i8))); 4];
        all!(vshlq_u8(a, bits))
    }

    #[inline(always)]
    fn shl(self, a: Self::Bytes, bits: u32) -> Self::Bytes {
        let bits = [op!(vdupq_n_s8(bits as i8)); 4];
        all!(vshlq_u8(a, bits))
    }

    #[inline(always)]
    fn lookup(self, table: &[u8; 16], index: Self::Bytes) -> Self::Bytes {
        let table = [load!(vld1q_u8(table)); 4];
        all!(vqtbl1q_u8(table, index))
    }

    #[inline(always)]
    fn dot(self, start: i32) -> Self::Dot {
        self.int(start)
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
        let x = op!(vdupq_n_s32(bytemuck::cast(x)));
        let x = op!(vreinterpretq_s8_s32(x));
        let w = all!(vreinterpretq_s8_u8(w));
        for part in 0..4 {
            dot[part] = op!(vaddq_s32(dot[part], self.fours(w[part], x)));
        }
        dot
    }

    #[inline(always)]
    fn dot_end(self, _: usize, _: i32, dot: Self::Dot) -> Self::Ints {
        dot
    }

    #[inline(always)]
    fn ints_u8(self, memory: &[u8; 16]) -> Self::Ints {
        let words: [i32; 16] = memory.map(i32::from);
        self.ints(&words)
    }

    #[inline(always)]
    fn ints_i8(self, memory: &[u8; 16]) -> Self::Ints {
        let words: [i32; 16] = memory.map(|byte| i32::from(byte as i8));
        self.ints(&words)
    }

    #[inline(always)]
    fn ints_u16(self, memory: &[u8; 32]) -> Self::Ints {
        let halves: &[[u8; 2]; 16] = bytemuck::cast_ref(memory);
        self.ints(&halves.map(|half| i32::from(u16::from_le_bytes(half))))
    }

    #[inline(always)]
    fn int(self, value: i32) -> Self::Ints {
        [op!(vdupq_n_s32(value)); 4]
    }

    #[inline(always)]
    fn int_and(self, a: Self::Ints, b: Self::Ints) -> Self::Ints {
        all!(vandq_s32(a, b))
    }

    #[inline(always)]
    fn int_shr(self, a: Self::Ints, bits: u32) -> Self::Ints {
        let a = all!(vreinterpretq_u32_s32(a));
        let bits = [op!(vdupq_n_s32(-(bits as i32))); 4];
        let a = all!(vshlq_u32(a, bits));
        all!(vreinterpretq_s32_u32(a))
    }

    #[inline(always)]
    fn int_shl(self, a: Self::Ints, bits: u32) -> Self::Ints {
        let bits = [op!(vdupq_n_s32(bits as i32)); 4];
        all!(vshlq_s32(a, bits))
    }

    #[inline(always)]
    fn int_add(self, a: Self::Ints, b: Self::Ints) -> Self::Ints {
        all!(vaddq_s32(a, b))
    }

    #[inline(always)]
    fn int_max(self, a: Self::Ints, b: Self::Ints) -> Self::Ints {
        all!(vmaxq_s32(a, b))
    }

    #[inline(always)]
    fn cast(self, a: Self::Ints) -> Self::Floats {
        all!(vreinterpretq_f32_s32(a))
    }

    #[inline(always)]
    fn to_floats(self, a: Self::Ints) -> Self::Floats {
        all!(vcvtq_f32_s32(a))
    }

    #[inline(always)]
    fn floats_f16(self, memory: &[u8; 32]) -> Self::Floats {
        let halves: &[[u8; 2]; 16] = bytemuck::cast_ref(memory);
        self.floats(&halves.map(|half| f16::from_le_bytes(half).to_f32()))
    }

    #[inline(always)]
    fn floats(self, memory: &[f32; 16]) -> Self::Floats {
        let quarters: &[[f32; 4]; 4] = bytemuck::cast_ref(memory);
        [
            load!(vld1q_f32(quarters[0])),
            load!(vld1q_f32(quarters[1])),
            load!(vld1q_f32(quarters[2])),
            load!(vld1q_f32(quarters[3])),
        ]
    }

    #[inline(always)]
    fn float(self, value: f32) -> Self::Floats {
        [op!(vdupq_n_f32(value)); 4]
    }

    #[inline(always)]
    fn bits(self, a: Self::Floats) -> Self::Ints {
        all!(vreinterpretq_s32_f32(a))
    }

    #[inline(always)]
    fn add(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        all!(vaddq_f32(a, b))
    }

    #[inline(always)]
    fn max(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        all!(vmaxq_f32(a, b))
    }

    #[inline(always)]
    fn larger(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        let larger = all!(vcgtq_f32(a, b));
        all!(vbslq_f32(larger, a, b))
    }

    #[inline(always)]
    fn choose(self, by: Self::Floats, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        let zero = self.float(0.0);
        let chosen = all!(vcgeq_f32(by, zero));
        all!(vbslq_f32(chosen, a, b))
    }

    #[inline(always)]
    fn mul(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        all!(vmulq_f32(a, b))
    }

    #[inline(always)]
    fn mul_add(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        all!(vfmaq_f32(c, a, b))
    }

    #[inline(always)]
    fn store(self, a: Self::Floats) -> [f32; 16] {
        let mut out = [[0.0_f32; 4]; 4];
        for (out, a) in out.iter_mut().zip(a) {
            // SAFETY: the array has the 16 bytes that are written, and no alignment is asked for; the
            // machine has the instruction, since `self` exists (see `assume`).
            unsafe { vst1q_f32(out.as_mut_ptr(), a) };
        }
        bytemuck::cast(out)
    }
}

impl Neon {
    #[inline(always)]
    fn ints(self, words: &[i32; 16]) -> [int32x4_t; 4] {
        let quarters: &[[i32; 4]; 4] = bytemuck::cast_ref(words);
        [
            load!(vld1q_s32(quarters[0])),
            load!(vld1q_s32(quarters[1])),
            load!(vld1q_s32(quarters[2])),
            load!(vld1q_s32(quarters[3])),
        ]
    }
}
