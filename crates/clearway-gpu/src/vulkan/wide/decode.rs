//! The function that gives one weight of a block.
//!
//! It gets the address of the block, which lies in the first plane, the block's place in the tensor, and the weight's place
//! in the block. What other planes have is read from the same buffer, bound as f16 and as words. Numbers are those of
//! the portable kernels (`wgsl/kernels/chunks.wgsl`): a weight is rounded to f16 once.
//!
//! Integers become floats by their bits: below 1024, `0x6400 + q` is the f16 1024 + q. The same holds for f32 with
//! `0x4b000000` and 2^23.

use clearway_graph::DType;

use super::super::spirv::writer::*;
use crate::wgsl::Wide;
use crate::wgsl::planes::CHUNK;

/// Elements of a block of bf16.
const EIGHT: u32 = 8;

pub(super) struct Decode {
    pub(super) function: u32,
    /// Elements of a block.
    pub(super) block: u32,
    product: Wide,
    signature: u32,
    to_block: u32,
    place: u32,
    /// Weights as f16 and as words.
    halves: u32,
    words: u32,
}

impl Decode {
    /// Types, in front of `main`.
    pub(super) fn declare(m: &mut Module, product: &Wide, halves: u32, words: u32) -> Self {
        let (u32t, f16) = (m.ty(TYPE_INT, &[32, 0]), m.ty(TYPE_FLOAT, &[16]));
        let (bytes, block) = match product.weights {
            DType::BF16 => (16, EIGHT),
            DType::Q8_0 => (32, CHUNK as u32),
            DType::Q2_K | DType::Q3_K => (8, CHUNK as u32),
            _ => (16, CHUNK as u32),
        };
        let two = m.u32(2);
        let place = m.ty(TYPE_ARRAY, &[u32t, two]);
        let to_block = m.id();
        m.declare(TYPE_FORWARD_POINTER, &[to_block, CLASS_PHYSICAL]);
        let count = m.u32(bytes / 4);
        let array = m.ty_new(TYPE_ARRAY, &[u32t, count]);
        m.decorate(&[array, DECORATION_ARRAY_STRIDE, 4]);
        let structure = m.ty_new(TYPE_STRUCT, &[array]);
        m.decorate(&[structure, DECORATION_BLOCK]);
        m.decorate_member(&[structure, 0, DECORATION_OFFSET, 0]);
        m.declare(TYPE_POINTER, &[to_block, CLASS_PHYSICAL, structure]);
        let signature = m.ty(TYPE_FUNCTION, &[f16, to_block, place, place]);
        let function = m.id();
        Self { function, block, product: *product, signature, to_block, place, halves, words }
    }

    /// The body, behind `main`.
    pub(super) fn define(self, m: &mut Module) {
        let (u32t, f16) = (m.ty(TYPE_INT, &[32, 0]), m.ty(TYPE_FLOAT, &[16]));
        m.effect(FUNCTION, &[f16, self.function, 0, self.signature]);
        let block = m.value(FUNCTION_PARAMETER, self.to_block, &[]);
        m.decorate(&[block, DECORATION_ALIASED]);
        let at_block = m.value(FUNCTION_PARAMETER, self.place, &[]);
        let in_block = m.value(FUNCTION_PARAMETER, self.place, &[]);
        m.label();
        let f32t = m.ty(TYPE_FLOAT, &[32]);
        let i = m.value(COMPOSITE_EXTRACT, u32t, &[in_block, 1]);
        let mut body = Body { m, u32t, f16, f32t, block, i, chunk: 0, decode: &self };
        let weight = match self.product.weights {
            DType::BF16 => body.bf16(),
            dtype => {
                body.chunk = body.chunk_of(at_block);
                body.weight(dtype)
            }
        };
        m.effect(RETURN_VALUE, &[weight]);
        m.effect(FUNCTION_END, &[]);
    }
}

/// The body under way: weight `i` of a block, which is this chunk of the tensor.
struct Body<'a> {
    m: &'a mut Module,
    u32t: u32,
    f16: u32,
    f32t: u32,
    block: u32,
    i: u32,
    chunk: u32,
    decode: &'a Decode,
}

impl Body<'_> {
    /// Which chunk of all a block is.
    fn chunk_of(&mut self, at_block: u32) -> u32 {
        let row = self.m.value(COMPOSITE_EXTRACT, self.u32t, &[at_block, 0]);
        let column = self.m.value(COMPOSITE_EXTRACT, self.u32t, &[at_block, 1]);
        let first = self.by(I_MUL, row, self.decode.product.inner / CHUNK as u32);
        self.m.value(I_ADD, self.u32t, &[first, column])
    }

    fn weight(&mut self, dtype: DType) -> u32 {
        use DType::*;
        let q = self.quant(dtype);
        match dtype {
            Q4_0 | Q5_0 | Q8_0 => {
                let plane = if dtype == Q5_0 { 2 } else { 1 };
                let zero = match dtype {
                    Q4_0 => 8,
                    Q5_0 => 16,
                    _ => 128,
                };
                let d = self.half(plane, 1, 0, 0);
                // Exact up to the product: the same as in f32.
                let q = self.small_half(q, zero);
                self.m.value(F_MUL, self.f16, &[q, d])
            }
            Q4_1 | Q5_1 => {
                let plane = if dtype == Q5_1 { 2 } else { 1 };
                let [d, least] = [0, 1].map(|which| self.half_as_float(plane, 2, 0, which));
                let q = self.float(q, 0);
                let scaled = self.m.value(F_MUL, self.f32t, &[q, d]);
                let weight = self.m.value(F_ADD, self.f32t, &[scaled, least]);
                self.round(weight)
            }
            Q2_K | Q4_K | Q5_K => {
                let plane = if dtype == Q5_K { 2 } else { 1 };
                let pair = self.pair_of_bytes(plane);
                let (scale, least) = match dtype {
                    // A byte for each half: scale below, minimum above.
                    Q2_K => {
                        let byte = self.byte_of_half(pair);
                        (self.by(BITWISE_AND, byte, 15), self.by(SHIFT_RIGHT_LOGICAL, byte, 4))
                    }
                    _ => (self.by(BITWISE_AND, pair, 255), self.by(SHIFT_RIGHT_LOGICAL, pair, 8)),
                };
                let [d, dmin] = [0, 1].map(|which| self.half_as_float(plane + 1, 2, 3, which));
                let (scale, least) = (self.float(scale, 0), self.float(least, 0));
                let scale = self.m.value(F_MUL, self.f32t, &[d, scale]);
                let least = self.m.value(F_MUL, self.f32t, &[dmin, least]);
                let q = self.float(q, 0);
                let scaled = self.m.value(F_MUL, self.f32t, &[q, scale]);
                let weight = self.m.value(F_SUB, self.f32t, &[scaled, least]);
                self.round(weight)
            }
            // Q3_K and Q6_K: a byte of scale for each half, the first 32 too large, the second with a sign.
            _ => {
                let pair = self.pair_of_bytes(2);
                let byte = self.byte_of_half(pair);
                let scale = match dtype {
                    Q3_K => self.float(byte, 32),
                    _ => {
                        let above = self.by(BITWISE_XOR, byte, 128);
                        self.float(above, 128)
                    }
                };
                let d = self.half_as_float(3, 1, 3, 0);
                let scale = self.m.value(F_MUL, self.f32t, &[d, scale]);
                let q = self.float(q, if dtype == Q3_K { 4 } else { 32 });
                let weight = self.m.value(F_MUL, self.f32t, &[q, scale]);
                self.round(weight)
            }
        }
    }

    /// The weight's integer, without sign; that of Q8_0 128 too large.
    fn quant(&mut self, dtype: DType) -> u32 {
        use DType::*;
        match dtype {
            Q8_0 => {
                let index = self.by(SHIFT_RIGHT_LOGICAL, self.i, 2);
                let word = self.word_of_block(index);
                let shift = self.low_times(3, 8);
                let byte = self.bits(word, shift, 255);
                self.by(BITWISE_XOR, byte, 128)
            }
            Q2_K => self.pair_of_block(),
            Q3_K => {
                let low = self.pair_of_block();
                let high = self.one(1);
                self.above(low, high, 2)
            }
            Q5_0 | Q5_1 | Q5_K => {
                let low = self.nibble();
                let high = self.one(1);
                self.above(low, high, 4)
            }
            Q6_K => {
                let low = self.nibble();
                let half = self.by(SHIFT_RIGHT_LOGICAL, self.i, 4);
                let first = self.by(SHIFT_LEFT_LOGICAL, self.chunk, 1);
                let index = self.m.value(I_ADD, self.u32t, &[first, half]);
                let word = self.word(1, index);
                let shift = self.shift_of_pair();
                let high = self.bits(word, shift, 3);
                self.above(low, high, 4)
            }
            _ => self.nibble(),
        }
    }

    /// Byte `j` of the block has weight `j` below and weight `16 + j` above.
    fn nibble(&mut self) -> u32 {
        let index = self.by(SHIFT_RIGHT_LOGICAL, self.i, 2);
        let index = self.by(BITWISE_AND, index, 3);
        let word = self.word_of_block(index);
        let byte = self.low_times(3, 8);
        let half = self.by(BITWISE_AND, self.i, 16);
        let half = self.by(SHIFT_RIGHT_LOGICAL, half, 2);
        let shift = self.m.value(I_ADD, self.u32t, &[byte, half]);
        self.bits(word, shift, 15)
    }

    /// Two bits of the block: a word for each half.
    fn pair_of_block(&mut self) -> u32 {
        let half = self.by(SHIFT_RIGHT_LOGICAL, self.i, 4);
        let word = self.word_of_block(half);
        let shift = self.shift_of_pair();
        self.bits(word, shift, 3)
    }

    /// Bits `8b + 2w` of a word: weight `4w + b` of a half.
    fn shift_of_pair(&mut self) -> u32 {
        let byte = self.low_times(3, 8);
        let word = self.by(BITWISE_AND, self.i, 12);
        let word = self.by(SHIFT_RIGHT_LOGICAL, word, 1);
        self.m.value(I_ADD, self.u32t, &[byte, word])
    }

    /// Bit `8b + w` of the chunk's word in a plane: weight `4w + b`.
    fn one(&mut self, plane: usize) -> u32 {
        let word = self.word(plane, self.chunk);
        let byte = self.low_times(3, 8);
        let at = self.by(SHIFT_RIGHT_LOGICAL, self.i, 2);
        let shift = self.m.value(I_ADD, self.u32t, &[byte, at]);
        self.bits(word, shift, 1)
    }

    /// The two bytes of the chunk in a plane.
    fn pair_of_bytes(&mut self, plane: usize) -> u32 {
        let index = self.by(SHIFT_RIGHT_LOGICAL, self.chunk, 1);
        let word = self.word(plane, index);
        let odd = self.by(BITWISE_AND, self.chunk, 1);
        let shift = self.by(SHIFT_LEFT_LOGICAL, odd, 4);
        self.bits(word, shift, 0xffff)
    }

    /// The byte of two that belongs to the half of the weight.
    fn byte_of_half(&mut self, pair: u32) -> u32 {
        let half = self.by(BITWISE_AND, self.i, 16);
        let shift = self.by(SHIFT_RIGHT_LOGICAL, half, 1);
        self.bits(pair, shift, 255)
    }

    /// f16 number `which` of `count` in a plane that has so many for each 2^`shift` chunks.
    fn half(&mut self, plane: usize, count: u32, shift: u32, which: u32) -> u32 {
        let mut index = self.chunk;
        if shift > 0 {
            index = self.by(SHIFT_RIGHT_LOGICAL, index, shift);
        }
        if count == 2 {
            index = self.by(SHIFT_LEFT_LOGICAL, index, 1);
        }
        let index = self.by(I_ADD, index, 2 * self.decode.product.planes[plane] + which);
        let to_half = self.m.ty(TYPE_POINTER, &[CLASS_STORAGE_BUFFER, self.f16]);
        let zero = self.m.u32(0);
        let at = self.m.value(ACCESS_CHAIN, to_half, &[self.decode.halves, zero, index]);
        self.m.value(LOAD, self.f16, &[at])
    }

    fn half_as_float(&mut self, plane: usize, count: u32, shift: u32, which: u32) -> u32 {
        let half = self.half(plane, count, shift, which);
        self.m.value(F_CONVERT, self.f32t, &[half])
    }

    /// A word of a plane.
    fn word(&mut self, plane: usize, index: u32) -> u32 {
        let index = self.by(I_ADD, index, self.decode.product.planes[plane]);
        let to_word = self.m.ty(TYPE_POINTER, &[CLASS_STORAGE_BUFFER, self.u32t]);
        let zero = self.m.u32(0);
        let at = self.m.value(ACCESS_CHAIN, to_word, &[self.decode.words, zero, index]);
        self.m.value(LOAD, self.u32t, &[at])
    }

    /// A word of the block.
    fn word_of_block(&mut self, index: u32) -> u32 {
        let to_word = self.m.ty(TYPE_POINTER, &[CLASS_PHYSICAL, self.u32t]);
        let zero = self.m.u32(0);
        let at = self.m.value(ACCESS_CHAIN, to_word, &[self.block, zero, index]);
        self.m.value(LOAD, self.u32t, &[at, MEMORY_ALIGNED, 4])
    }

    /// Two to a word; the upper half of an f32 is a bf16.
    fn bf16(&mut self) -> u32 {
        let index = self.by(SHIFT_RIGHT_LOGICAL, self.i, 1);
        let word = self.word_of_block(index);
        let shift = self.low_times(1, 16);
        let low = self.m.value(SHIFT_RIGHT_LOGICAL, self.u32t, &[word, shift]);
        let bits = self.by(SHIFT_LEFT_LOGICAL, low, 16);
        let float = self.m.value(BITCAST, self.f32t, &[bits]);
        self.round(float)
    }

    /// The low bits of the weight's place, times a power of two.
    fn low_times(&mut self, mask: u32, factor: u32) -> u32 {
        let low = self.by(BITWISE_AND, self.i, mask);
        self.by(SHIFT_LEFT_LOGICAL, low, factor.trailing_zeros())
    }

    fn bits(&mut self, word: u32, shift: u32, mask: u32) -> u32 {
        let moved = self.m.value(SHIFT_RIGHT_LOGICAL, self.u32t, &[word, shift]);
        self.by(BITWISE_AND, moved, mask)
    }

    fn above(&mut self, low: u32, high: u32, bits: u32) -> u32 {
        let high = self.by(SHIFT_LEFT_LOGICAL, high, bits);
        self.m.value(BITWISE_OR, self.u32t, &[low, high])
    }

    /// An instruction with a number as its second operand.
    fn by(&mut self, op: u32, value: u32, number: u32) -> u32 {
        let number = self.m.u32(number);
        self.m.value(op, self.u32t, &[value, number])
    }

    /// An integer below 1024, less `zero`, as f16.
    fn small_half(&mut self, q: u32, zero: u16) -> u32 {
        let bits = self.by(BITWISE_OR, q, 0x6400);
        let pair = self.m.ty(TYPE_VECTOR, &[self.f16, 2]);
        let both = self.m.value(BITCAST, pair, &[bits]);
        let low = self.m.value(COMPOSITE_EXTRACT, self.f16, &[both, 0]);
        let base = self.m.constant(CONSTANT, self.f16, &[0x6400 + u32::from(zero)]);
        self.m.value(F_SUB, self.f16, &[low, base])
    }

    /// An integer below 2^23, less `zero`, as f32.
    fn float(&mut self, q: u32, zero: u32) -> u32 {
        let bits = self.by(BITWISE_OR, q, 0x4b00_0000);
        let float = self.m.value(BITCAST, self.f32t, &[bits]);
        let base = self.m.constant(CONSTANT, self.f32t, &[0x4b00_0000 + zero]);
        self.m.value(F_SUB, self.f32t, &[float, base])
    }

    fn round(&mut self, float: u32) -> u32 {
        self.m.value(F_CONVERT, self.f16, &[float])
    }
}
