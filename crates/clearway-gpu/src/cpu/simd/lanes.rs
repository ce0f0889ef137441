//! Vectors of one number for each of sixteen rows, whatever registers a machine has for them.
//!
//! A value of a type with [`Lanes`] is the proof that the machine has the instructions: it can be had
//! only from the function that asks. So the kernels written over it are safe code, and unsafe blocks
//! hold single instructions. Every implementation gives the same bits: integer sums are exact, and
//! each float operation is one rounding.

/// Adding it to a number rounds that to an integer, which is then in the lowest bits.
pub(in crate::cpu) const ROUND: f32 = 12_582_912.0;

/// Instructions for sixteen rows at a time.
pub(in crate::cpu) trait Lanes: Copy {
    /// Four bytes for each row.
    type Bytes: Copy;
    /// An `i32` for each row.
    type Ints: Copy;
    /// An `f32` for each row.
    type Floats: Copy;

    /// A sum of products under way.
    type Dot: Copy;

    /// Whether weights that take all of a byte are multiplied as signed bytes.
    const SIGNED: bool;
    /// Tokens multiplied together at most: their sums stay in registers.
    const TILE: usize;

    /// Loads four bytes for each row.
    fn bytes(self, memory: &[u8; 64]) -> Self::Bytes;
    /// The bytes, row by row.
    fn store_bytes(self, a: Self::Bytes) -> [u8; 64];
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

    /// Starts a sum of products of weights with signed inputs, none of which is -128. `start` is what the
    /// sum starts with.
    fn dot(self, start: i32) -> Self::Dot;
    /// Adds the products of the four bytes of each row with those of the input: word `index` of the sum,
    /// counted from 0. Weights are unsigned and at most `top`, unless `top` is above 127 and [`SIGNED`]:
    /// they are signed then.
    ///
    /// [`SIGNED`]: Self::SIGNED
    fn dot_add(
        self,
        top: usize,
        index: usize,
        dot: Self::Dot,
        w: Self::Bytes,
        x: [i8; 4],
    ) -> Self::Dot;
    /// The sum. `start` is that of the start.
    fn dot_end(self, top: usize, start: i32, dot: Self::Dot) -> Self::Ints;

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

    /// The larger of two.
    fn int_max(self, a: Self::Ints, b: Self::Ints) -> Self::Ints;
    /// The numbers, row by row.
    #[inline(always)]
    fn store_ints(self, a: Self::Ints) -> [i32; 16] {
        self.store(self.cast(a)).map(|x| x.to_bits() as i32)
    }
    /// The lowest byte of each.
    #[inline(always)]
    fn low_bytes(self, a: Self::Ints) -> [i8; 16] {
        self.store_ints(a).map(|x| x as i8)
    }
    /// Sum over all rows, which fits.
    #[inline(always)]
    fn sum(self, a: Self::Ints) -> i32 {
        self.store_ints(a).into_iter().fold(0, i32::wrapping_add)
    }
    /// The largest of all rows.
    #[inline(always)]
    fn largest_int(self, a: Self::Ints) -> i32 {
        self.store_ints(a).into_iter().fold(i32::MIN, i32::max)
    }

    /// Asks for the line of memory so many bytes behind the start, which need not belong to it. Nothing else.
    #[inline(always)]
    fn fetch(self, memory: &[u8], behind: usize) {
        let _ = (memory, behind);
    }

    /// The same for what is used much later, so that it does not take the place of what is used now.
    #[inline(always)]
    fn fetch_far(self, memory: &[u8], behind: usize) {
        let _ = (memory, behind);
    }

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
    /// The bits of floats.
    fn bits(self, a: Self::Floats) -> Self::Ints;
    /// Sum.
    fn add(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// The larger of two; NaN if either is.
    fn max(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// The larger of two; the second if either is NaN.
    fn larger(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a` where `by` is 0 or more, `b` where it is negative or NaN.
    fn choose(self, by: Self::Floats, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// Product.
    fn mul(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a * b + c` with one rounding.
    fn mul_add(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// `a * 2^power` with one rounding, for magnitudes from 0.5 to 2 and whole powers from -190 to 60.
    #[inline(always)]
    fn scale(self, a: Self::Floats, power: Self::Floats) -> Self::Floats {
        // Adding it leaves the integer in the lowest bits.
        let shifted = self.bits(self.add(power, self.float(ROUND)));
        // In two steps, since the power alone may be below those of normal numbers.
        let exponent = self.int_add(shifted, self.int(64 + 127 - ROUND.to_bits() as i32));
        let large = self.mul(a, self.cast(self.int_shl(exponent, 23)));
        self.mul(large, self.float(f32::from_bits((127 - 64) << 23)))
    }
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
