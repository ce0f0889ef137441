//! The kernels: C = A * B^T, A the activations and B the weights, by matrices of a whole workgroup.
//!
//! One workgroup has one tile of C. Tensor layouts tell the driver how A and B lie; it finds out itself how they go
//! through workgroup memory. Weights in blocks are loaded with a function that gives one element of a block.

use crate::spirv::*;

/// What sums are kept in, and what C is written as.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Out {
    /// Both f32.
    F32,
    /// Sums in f32, C in f16.
    F16,
    /// Both f16.
    SumsF16,
}

/// How weights lie.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Weights {
    F16,
    /// 18 bytes for 32 weights, as Q4_0: an f16 scale and 16 bytes. Weight j is the low half of byte j, weight j + 16
    /// the high one.
    Blocks,
    /// 16 bytes for 32 weights, eight to a word in order, with scales in a buffer of their own. The f16 is made by
    /// setting bits instead of a conversion.
    Apart,
}

/// One way to write the kernel.
#[derive(Clone, Copy)]
pub struct Variant {
    /// Rows and columns of the tile of C, and columns of A in a step.
    pub tile: [u32; 3],
    /// Invocations of the workgroup.
    pub threads: u32,
    pub out: Out,
    pub weights: Weights,
    /// The left side is the weights; C is stored through a transposing view.
    pub swap: bool,
    /// K in the text of the kernel instead of a push constant.
    pub columns: Option<u32>,
    /// Loads that clamp and any number of rows: what shapes need that are not whole tiles.
    pub clamp: bool,
}

impl Variant {
    pub const fn new(tile: [u32; 3], threads: u32) -> Self {
        let (out, weights) = (Out::F32, Weights::F16);
        Self { tile, threads, out, weights, swap: false, columns: None, clamp: false }
    }

    /// Rows and columns of the matrices that are multiplied.
    pub fn sides(&self) -> (u32, u32) {
        let [rows, columns, _] = self.tile;
        if self.swap { (columns, rows) } else { (rows, columns) }
    }

    /// Whether shapes of M, N and K are whole tiles.
    pub fn fits(&self, shape: [u32; 3]) -> bool {
        self.columns.is_none_or(|k| k == shape[2])
            && shape.iter().zip(self.tile).all(|(size, tile)| size % tile == 0)
    }

    pub fn name(&self) -> String {
        let [m, n, k] = self.tile;
        let mut name = format!("{m}x{n}x{k}_t{}", self.threads);
        name += match self.out {
            Out::F32 => "",
            Out::F16 => "_c16",
            Out::SumsF16 => "_acc16",
        };
        name += match self.weights {
            Weights::F16 => "",
            Weights::Blocks => "_q4blk",
            Weights::Apart => "_q4bit",
        };
        if self.swap {
            name += "_swap";
        }
        if let Some(k) = self.columns {
            name += &format!("_k{k}");
        }
        if self.clamp {
            name += "_clamp";
        }
        name
    }

    /// The module. Bindings: 0 A (f16), 1 B (f16 or blocks), 2 C, 3 scales. Push constants: M, N, K. Grid: M and N in
    /// tiles.
    pub fn words(&self) -> Vec<u32> {
        let [tile_m, tile_n, step] = self.tile;
        let m = &mut Module::default();
        let quantised = self.weights != Weights::F16;
        let void = m.ty(TYPE_VOID, &[]);
        let boolean = m.ty(TYPE_BOOL, &[]);
        let u32t = m.ty(TYPE_INT, &[32, 0]);
        let f16 = m.ty(TYPE_FLOAT, &[16]);
        let f32t = m.ty(TYPE_FLOAT, &[32]);
        let uvec3 = m.ty(TYPE_VECTOR, &[u32t, 3]);
        let uvec4 = m.ty(TYPE_VECTOR, &[u32t, 4]);
        let procedure = m.ty(TYPE_FUNCTION, &[void]);
        let (c0, c1, c2) = (m.u32(0), m.u32(1), m.u32(2));

        let pointer = m.ty(TYPE_POINTER, &[INPUT, uvec3]);
        let workgroup = m.global(pointer, INPUT);
        m.decorate(&[workgroup, 11, 26]); // BuiltIn WorkgroupId
        let (element, bytes) = if self.out == Out::F32 { (f32t, 4) } else { (f16, 2) };
        let buffer_a = buffer(m, uvec4, 16, 0, true);
        let buffer_b = buffer(m, uvec4, 16, 1, true);
        let buffer_c = buffer(m, element, bytes, 2, false);
        let scales = (self.weights == Weights::Apart).then(|| buffer(m, f16, 2, 3, true));
        let shape = m.ty_new(TYPE_STRUCT, &[u32t, u32t, u32t]);
        m.decorate(&[shape, 2]); // Block
        for i in 0..3 {
            m.decorate_member(&[shape, i, 35, 4 * i]); // Offset
        }
        let pointer = m.ty(TYPE_POINTER, &[PUSH_CONSTANT, shape]);
        let push = m.global(pointer, PUSH_CONSTANT);
        let to_size = m.ty(TYPE_POINTER, &[PUSH_CONSTANT, u32t]);
        let to_uvec4 = m.ty(TYPE_POINTER, &[STORAGE_BUFFER, uvec4]);
        let to_element = m.ty(TYPE_POINTER, &[STORAGE_BUFFER, element]);

        // Matrices: component, scope (2, the workgroup), rows, columns, use (0 left, 1 right, 2 sums).
        let (rows, columns) = self.sides();
        let (rows, columns, c_step) = (m.u32(rows), m.u32(columns), m.u32(step));
        let (c_m, c_n) = (m.u32(tile_m), m.u32(tile_n));
        let sum = if self.out == Out::SumsF16 { f16 } else { f32t };
        let left = m.ty(TYPE_COOPERATIVE_MATRIX, &[f16, c2, rows, c_step, c0]);
        let right = m.ty(TYPE_COOPERATIVE_MATRIX, &[f16, c2, c_step, columns, c1]);
        let sums = m.ty(TYPE_COOPERATIVE_MATRIX, &[sum, c2, rows, columns, c2]);
        let result = m.ty(TYPE_COOPERATIVE_MATRIX, &[element, c2, rows, columns, c2]);
        let zero = m.constant(CONSTANT, sum, &[0]);
        let zeros = m.constant(CONSTANT_COMPOSITE, sums, &[zero]);
        // Two dimensions; clamping (1, to a constant) or undefined outside (0). The view turns rows into columns.
        let layout = m.ty(TYPE_TENSOR_LAYOUT, &[c2, if self.clamp { c1 } else { c0 }]);
        let no = m.constant(CONSTANT_FALSE, boolean, &[]);
        let transposed = m.ty(TYPE_TENSOR_VIEW, &[c2, no, c1, c0]);
        let to_left = m.ty(TYPE_POINTER, &[FUNCTION_CLASS, left]);
        let to_right = m.ty(TYPE_POINTER, &[FUNCTION_CLASS, right]);
        let to_sums = m.ty(TYPE_POINTER, &[FUNCTION_CLASS, sums]);
        let to_u32 = m.ty(TYPE_POINTER, &[FUNCTION_CLASS, u32t]);
        let decode = quantised.then(|| Decode::declare(m, self.weights));

        let main = m.id();
        m.effect(FUNCTION, &[void, main, 0, procedure]);
        label(m);
        let at_sums = m.value(VARIABLE, to_sums, &[FUNCTION_CLASS]);
        let at_k = m.value(VARIABLE, to_u32, &[FUNCTION_CLASS]);
        let at_left = m.value(VARIABLE, to_left, &[FUNCTION_CLASS]);
        let at_right = m.value(VARIABLE, to_right, &[FUNCTION_CLASS]);
        let group = m.value(LOAD, uvec3, &[workgroup]);
        let group_m = m.value(COMPOSITE_EXTRACT, u32t, &[group, 0]);
        let group_n = m.value(COMPOSITE_EXTRACT, u32t, &[group, 1]);
        let first_m = m.value(I_MUL, u32t, &[group_m, c_m]);
        let first_n = m.value(I_MUL, u32t, &[group_n, c_n]);
        // The mask tells the compiler how rows are aligned.
        let mask = m.u32(!63);
        let size = |m: &mut Module, i: u32| {
            let index = m.u32(i);
            let at = m.value(ACCESS_CHAIN, to_size, &[push, index]);
            let size = m.value(LOAD, u32t, &[at]);
            let any = self.clamp && i == 0;
            if any { size } else { m.value(BITWISE_AND, u32t, &[size, mask]) }
        };
        let (size_m, size_n) = (size(m, 0), size(m, 1));
        let size_k = match self.columns {
            Some(k) => m.u32(k),
            None => size(m, 2),
        };
        let layout_a = m.value(CREATE_TENSOR_LAYOUT, layout, &[]);
        let layout_a = m.value(TENSOR_LAYOUT_SET_DIMENSION, layout, &[layout_a, size_m, size_k]);
        let mut layout_b = m.value(CREATE_TENSOR_LAYOUT, layout, &[]);
        if quantised {
            let c32 = m.u32(32);
            layout_b = m.value(TENSOR_LAYOUT_SET_BLOCK_SIZE, layout, &[layout_b, c1, c32]);
        }
        let layout_b = m.value(TENSOR_LAYOUT_SET_DIMENSION, layout, &[layout_b, size_n, size_k]);
        let layout_c = m.value(CREATE_TENSOR_LAYOUT, layout, &[]);
        let layout_c = m.value(TENSOR_LAYOUT_SET_DIMENSION, layout, &[layout_c, size_m, size_n]);
        let view = m.value(CREATE_TENSOR_VIEW, transposed, &[]);
        m.effect(STORE, &[at_sums, zeros]);
        m.effect(STORE, &[at_k, c0]);

        let [head, test, body, next, done] = [(); 5].map(|()| m.id());
        m.effect(BRANCH, &[head]);
        m.effect(LABEL, &[head]);
        m.effect(LOOP_MERGE, &[done, next, 0]);
        m.effect(BRANCH, &[test]);
        m.effect(LABEL, &[test]);
        let k = m.value(LOAD, u32t, &[at_k]);
        let more = m.value(U_LESS_THAN, boolean, &[k, size_k]);
        m.effect(BRANCH_CONDITIONAL, &[more, body, done]);
        m.effect(LABEL, &[body]);
        // Operands of loads: no memory operand (0), then which of view (1) and decode function (2) follow.
        let of_a = (buffer_a, layout_a, first_m);
        let of_b = (buffer_b, layout_b, first_n);
        let decoder = decode.as_ref().map(|d| d.function);
        let (of_left, of_right) = if self.swap { (of_b, of_a) } else { (of_a, of_b) };
        let tail = match decoder {
            Some(function) if self.swap => vec![0, 2, function],
            _ => vec![0, 0],
        };
        let mut load = |(buffer, of, first): (u32, u32, u32), (matrix, at), count, tail: &[u32]| {
            let pointer = m.value(ACCESS_CHAIN, to_uvec4, &[buffer, c0, c0]);
            let slice = m.value(TENSOR_LAYOUT_SLICE, layout, &[of, first, count, k, c_step]);
            let old = m.value(LOAD, matrix, &[at]);
            let args = [&[pointer, old, slice], tail].concat();
            m.value(COOPERATIVE_MATRIX_LOAD_TENSOR, matrix, &args)
        };
        let x = load(of_left, (left, at_left), rows, &tail);
        let tail = match decoder {
            Some(function) if !self.swap => vec![0, 3, view, function],
            _ => vec![0, 1, view],
        };
        let y = load(of_right, (right, at_right), columns, &tail);
        let r = m.value(LOAD, sums, &[at_sums]);
        let r = m.value(COOPERATIVE_MATRIX_MUL_ADD, sums, &[x, y, r]);
        m.effect(STORE, &[at_sums, r]);
        m.effect(BRANCH, &[next]);
        m.effect(LABEL, &[next]);
        let k = m.value(LOAD, u32t, &[at_k]);
        let k = m.value(I_ADD, u32t, &[k, c_step]);
        m.effect(STORE, &[at_k, k]);
        m.effect(BRANCH, &[head]);
        m.effect(LABEL, &[done]);

        let mut r = m.value(LOAD, sums, &[at_sums]);
        if self.out == Out::F16 {
            r = m.value(F_CONVERT, result, &[r]);
        }
        let pointer = m.value(ACCESS_CHAIN, to_element, &[buffer_c, c0, c0]);
        let slice = m.value(TENSOR_LAYOUT_SLICE, layout, &[layout_c, first_m, c_m, first_n, c_n]);
        let tail: &[u32] = if self.swap { &[0, 1, view] } else { &[0, 0] };
        let args = [&[pointer, r, slice], tail].concat();
        m.effect(COOPERATIVE_MATRIX_STORE_TENSOR, &args);
        m.effect(RETURN, &[]);
        m.effect(FUNCTION_END, &[]);
        if let Some(decode) = decode {
            decode.define(m, scales.map(|scales| (scales, push, to_size)));
        }

        // Shader, Float16, StorageBuffer16BitAccess, VulkanMemoryModel, CooperativeMatrixKHR, tensor addressing in
        // layouts and in matrices.
        let mut capabilities = vec![1, 9, 4433, 5345, 6022, 5433, 5439];
        if quantised {
            capabilities.extend([5347, 5434]); // PhysicalStorageBufferAddresses, CooperativeMatrixBlockLoadsNV
        }
        let extensions = [
            "SPV_KHR_cooperative_matrix",
            "SPV_NV_cooperative_matrix2",
            "SPV_NV_tensor_addressing",
        ];
        let mut interface = vec![workgroup, push, buffer_a, buffer_b, buffer_c];
        interface.extend(scales);
        let addressing = if quantised { 5348 } else { 0 }; // PhysicalStorageBuffer64 or Logical
        m.finish(&capabilities, &extensions, addressing, (main, self.threads), &interface)
    }
}

/// A storage buffer: a block with one array.
fn buffer(m: &mut Module, element: u32, stride: u32, binding: u32, read_only: bool) -> u32 {
    let array = m.ty_new(TYPE_RUNTIME_ARRAY, &[element]);
    m.decorate(&[array, 6, stride]); // ArrayStride
    let block = m.ty_new(TYPE_STRUCT, &[array]);
    m.decorate(&[block, 2]); // Block
    m.decorate_member(&[block, 0, 35, 0]); // Offset
    if read_only {
        m.decorate_member(&[block, 0, 24]); // NonWritable
    }
    let pointer = m.ty(TYPE_POINTER, &[STORAGE_BUFFER, block]);
    let variable = m.global(pointer, STORAGE_BUFFER);
    m.decorate(&[variable, 34, 0]); // DescriptorSet
    m.decorate(&[variable, 33, binding]); // Binding
    variable
}

fn label(m: &mut Module) {
    let id = m.id();
    m.effect(LABEL, &[id]);
}

/// The function that gives one weight: a pointer to its block, the block's place, the place in the block.
struct Decode {
    weights: Weights,
    function: u32,
    signature: u32,
    to_block: u32,
    place: u32,
}

impl Decode {
    /// Types, in front of `main`.
    fn declare(m: &mut Module, weights: Weights) -> Self {
        let (c2, u32t, f16) = (m.u32(2), m.ty(TYPE_INT, &[32, 0]), m.ty(TYPE_FLOAT, &[16]));
        let place = m.ty(TYPE_ARRAY, &[u32t, c2]);
        let to_block = m.id();
        m.declare(TYPE_FORWARD_POINTER, &[to_block, PHYSICAL_STORAGE_BUFFER]);
        let block = if weights == Weights::Blocks {
            let u16t = m.ty(TYPE_INT, &[16, 0]);
            let c8 = m.u32(8);
            let array = m.ty_new(TYPE_ARRAY, &[u16t, c8]);
            m.decorate(&[array, 6, 2]); // ArrayStride
            let block = m.ty_new(TYPE_STRUCT, &[f16, array]);
            m.decorate_member(&[block, 0, 35, 0]); // Offset
            m.decorate_member(&[block, 1, 35, 2]);
            block
        } else {
            let c4 = m.u32(4);
            let array = m.ty_new(TYPE_ARRAY, &[u32t, c4]);
            m.decorate(&[array, 6, 4]);
            let block = m.ty_new(TYPE_STRUCT, &[array]);
            m.decorate_member(&[block, 0, 35, 0]);
            block
        };
        m.decorate(&[block, 2]); // Block
        m.declare(TYPE_POINTER, &[to_block, PHYSICAL_STORAGE_BUFFER, block]);
        let signature = m.ty(TYPE_FUNCTION, &[f16, to_block, place, place]);
        Self { weights, function: m.id(), signature, to_block, place }
    }

    /// The body, behind `main`. `apart` is the buffer of scales and the push constants with the type of pointers to
    /// them.
    fn define(self, m: &mut Module, apart: Option<(u32, u32, u32)>) {
        let (u32t, f16) = (m.ty(TYPE_INT, &[32, 0]), m.ty(TYPE_FLOAT, &[16]));
        m.effect(FUNCTION, &[f16, self.function, 0, self.signature]);
        let block = m.value(FUNCTION_PARAMETER, self.to_block, &[]);
        m.decorate(&[block, 20]); // Aliased
        let at_block = m.value(FUNCTION_PARAMETER, self.place, &[]);
        let in_block = m.value(FUNCTION_PARAMETER, self.place, &[]);
        label(m);
        let i = m.value(COMPOSITE_EXTRACT, u32t, &[in_block, 1]);
        let to_f16 = m.ty(TYPE_POINTER, &[PHYSICAL_STORAGE_BUFFER, f16]);
        let [c0, c1, c2] = [0, 1, 2].map(|c| m.u32(c));
        let [c3, c4, c7, c14, c15, c16, c8] = [3, 4, 7, 14, 15, 16, 8].map(|c| m.u32(c));
        // Loads through addresses are aligned (2) to so many bytes.
        let (nibble, scale) = if let Some((scales, push, to_size)) = apart {
            let to_u32 = m.ty(TYPE_POINTER, &[PHYSICAL_STORAGE_BUFFER, u32t]);
            let to_scale = m.ty(TYPE_POINTER, &[STORAGE_BUFFER, f16]);
            let j = m.value(SHIFT_RIGHT_LOGICAL, u32t, &[i, c3]);
            let at = m.value(ACCESS_CHAIN, to_u32, &[block, c0, j]);
            let word = m.value(LOAD, u32t, &[at, 2, 4]);
            let shift = m.value(BITWISE_AND, u32t, &[i, c7]);
            let shift = m.value(I_MUL, u32t, &[shift, c4]);
            let word = m.value(SHIFT_RIGHT_LOGICAL, u32t, &[word, shift]);
            let nibble = m.value(BITWISE_AND, u32t, &[word, c15]);
            let row = m.value(COMPOSITE_EXTRACT, u32t, &[at_block, 0]);
            let column = m.value(COMPOSITE_EXTRACT, u32t, &[at_block, 1]);
            let at = m.value(ACCESS_CHAIN, to_size, &[push, c2]);
            let k = m.value(LOAD, u32t, &[at]);
            let c5 = m.u32(5);
            let blocks = m.value(SHIFT_RIGHT_LOGICAL, u32t, &[k, c5]);
            let index = m.value(I_MUL, u32t, &[row, blocks]);
            let index = m.value(I_ADD, u32t, &[index, column]);
            let at = m.value(ACCESS_CHAIN, to_scale, &[scales, c0, index]);
            (nibble, m.value(LOAD, f16, &[at]))
        } else {
            let u16t = m.ty(TYPE_INT, &[16, 0]);
            let to_u16 = m.ty(TYPE_POINTER, &[PHYSICAL_STORAGE_BUFFER, u16t]);
            let at = m.value(ACCESS_CHAIN, to_f16, &[block, c0]);
            let scale = m.value(LOAD, f16, &[at, 2, 2]);
            // Byte i & 15 of 16: short (i & 14) / 2, its byte i & 1; half i / 16.
            let j = m.value(BITWISE_AND, u32t, &[i, c14]);
            let j = m.value(SHIFT_RIGHT_LOGICAL, u32t, &[j, c1]);
            let at = m.value(ACCESS_CHAIN, to_u16, &[block, c1, j]);
            let short = m.value(LOAD, u16t, &[at, 2, 2]);
            let short = m.value(U_CONVERT, u32t, &[short]);
            let byte = m.value(BITWISE_AND, u32t, &[i, c1]);
            let byte = m.value(I_MUL, u32t, &[byte, c8]);
            let half = m.value(BITWISE_AND, u32t, &[i, c16]);
            let half = m.value(SHIFT_RIGHT_LOGICAL, u32t, &[half, c2]);
            let shift = m.value(I_ADD, u32t, &[byte, half]);
            let short = m.value(SHIFT_RIGHT_LOGICAL, u32t, &[short, shift]);
            (m.value(BITWISE_AND, u32t, &[short, c15]), scale)
        };
        let weight = if self.weights == Weights::Apart {
            // 0x6400 is 1024 in f16, and its last bit is worth 1.
            let base = m.u32(0x6400);
            let bits = m.value(BITWISE_OR, u32t, &[nibble, base]);
            let pair = m.ty(TYPE_VECTOR, &[f16, 2]);
            let both = m.value(BITCAST, pair, &[bits]);
            let low = m.value(COMPOSITE_EXTRACT, f16, &[both, 0]);
            let middle = m.constant(CONSTANT, f16, &[0x6408]);
            m.value(F_SUB, f16, &[low, middle])
        } else {
            let weight = m.value(CONVERT_U_TO_F, f16, &[nibble]);
            let eight = m.constant(CONSTANT, f16, &[0x4800]);
            m.value(F_SUB, f16, &[weight, eight])
        };
        let weight = m.value(F_MUL, f16, &[weight, scale]);
        m.effect(RETURN_VALUE, &[weight]);
        m.effect(FUNCTION_END, &[]);
    }
}
