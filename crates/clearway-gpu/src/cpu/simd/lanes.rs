//! Vectors of one number for each of sixteen rows, whatever registers a machine has for them.
//!
//! A value of a type with [`Lanes`] is the proof that the machine has the instructions: it can be had
//! only from the function that asks. So the kernels written over it are safe code, and unsafe blocks
//! hold single instructions. Every implementation gives the same bits: integer sums are exact, and
//! each float operation is one rounding.

/// Instructions for sixteen rows at a time.
pub(in crate::cpu) trait Lanes: Copy {
    /// Four bytes for each row.
    type Bytes: Copy;
    /// An `i32` for each row.
    type Ints: Copy;
    /// An `f32` for each row.
    type Floats: Copy;

    /// Tokens multiplied together at most: their sums stay in registers.
    const TILE: usize;

    /// Loads four bytes for each row.
    fn bytes(self, memory: &[u8; 64]) -> Self::Bytes;
    /// The same byte everywhere.
    fn byte(self, value: u8) -> Self::Bytes;
    /// Bits in both.
    fn and(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// Bits in either.
    fn or(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// Bits in one of the two.
    fn xor(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// Shifts right by fewer than eight bits. Bits that come from a neighbour byte are the caller's to
    /// mask.
    fn shr(self, a: Self::Bytes, bits: u32) -> Self::Bytes;
    /// Shifts left, likewise.
    fn shl(self, a: Self::Bytes, bits: u32) -> Self::Bytes;
    /// The entry of a table for each byte, all below 16.
    fn lookup(self, table: &[u8; 16], index: Self::Bytes) -> Self::Bytes;

    /// `start` plus the sum of the products of unsigned weights, at most `top` each, with signed
    /// inputs: the four bytes of `w[i]` with those of `x[i]`. No input is -128. Where `top` is above
    /// 127, `start` must be -128 times the sum of the inputs.
    fn dot<const N: usize>(
        self,
        top: usize,
        start: i32,
        w: &[Self::Bytes; N],
        x: &[[i8; 4]; N],
    ) -> Self::Ints;

    /// Sixteen unsigned bytes.
    fn ints_u8(self, memory: &[u8; 16]) -> Self::Ints;
    /// Sixteen signed bytes.
    fn ints_i8(self, memory: &[u8; 16]) -> Self::Ints;
    /// Sixteen unsigned 16-bit numbers.
    fn ints_u16(self, memory: &[u8; 32]) -> Self::Ints;
    /// The same number everywhere.
    fn int(self, value: i32) -> Self::Ints;
    /// Bits in both.
    fn int_and(self, a: Self::Ints, b: Self::Ints) -> Self::Ints;
    /// Shifts right, zeros coming in.
    fn int_shr(self, a: Self::Ints, bits: u32) -> Self::Ints;
    /// Shifts left.
    fn int_shl(self, a: Self::Ints, bits: u32) -> Self::Ints;
    /// Sum.
    fn int_add(self, a: Self::Ints, b: Self::Ints) -> Self::Ints;

    /// The floats that have these bits.
    fn cast(self, a: Self::Ints) -> Self::Floats;
    /// Nearest floats.
    fn to_floats(self, a: Self::Ints) -> Self::Floats;
    /// Sixteen numbers.
    fn floats(self, memory: &[f32; 16]) -> Self::Floats;
    /// Sixteen f16 numbers.
    fn floats_f16(self, memory: &[u8; 32]) -> Self::Floats;
    /// The same number everywhere.
    fn float(self, value: f32) -> Self::Floats;
    /// Sum.
    fn add(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// Product.
    fn mul(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a * b + c` with one rounding.
    fn mul_add(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// The numbers, row by row.
    fn store(self, a: Self::Floats) -> [f32; 16];
    /// Number `i` of vector `j` becomes number `j` of vector `i`.
    #[inline(always)]
    fn transpose(self, square: [Self::Floats; 16]) -> [Self::Floats; 16] {
        let mut numbers = [[0.0; 16]; 16];
        for (j, vector) in square.iter().enumerate() {
            for (i, number) in self.store(*vector).into_iter().enumerate() {
                numbers[i][j] = number;
            }
        }
        let mut out = square;
        for (vector, numbers) in out.iter_mut().zip(&numbers) {
            *vector = self.floats(numbers);
        }
        out
    }
}
