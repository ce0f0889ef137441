//! Products on matrices of a whole workgroup (VK_NV_cooperative_matrix2), written as SPIR-V: y = x * w^T, with an addend
//! where there is one.
//!
//! A workgroup has one tile of y. Tensor layouts say how both sides lie in memory; the driver finds out itself how tiles go
//! through workgroup memory. Weights in blocks are loaded with a function that gives one of them ([`decode`]). All control
//! flow is that of the whole workgroup.
//!
//! | module | what |
//! |---|---|
//! | `decode` | one weight of a block |
//! | `device` | what a device says of such matrices, and how they are enabled |
//! | `interpreter` | runs the words without a device, for tests |

mod decode;
pub(super) mod device;
#[cfg(test)]
mod interpreter;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod trial;

use super::spirv::writer::*;
use crate::wgsl::Wide;
use decode::Decode;

/// The words of a product.
pub(super) fn words(product: &Wide) -> Vec<u32> {
    let mut writer = Writer::new(product);
    writer.main();
    writer.finish()
}

/// Bindings of activations and weights; others are told.
const X: u32 = 0;
const W: u32 = 1;

/// A matrix type and the local variable whose old value a load of it names.
#[derive(Clone, Copy)]
struct Side {
    ty: u32,
    old: u32,
}

/// A tensor in memory: the pointer to its first element, its layout, and the type of that.
#[derive(Clone, Copy)]
struct Tensor {
    pointer: u32,
    layout: u32,
    ty: u32,
}

/// The module of a product under way.
struct Writer<'a> {
    product: &'a Wide,
    m: Module,
    u32t: u32,
    f32t: u32,
    /// Variables that the entry point uses.
    interface: Vec<u32>,
    /// Storage buffers by their bindings.
    buffers: Vec<(u32, u32)>,
    decode: Option<Decode>,
    main: u32,
}

impl<'a> Writer<'a> {
    fn new(product: &'a Wide) -> Self {
        let mut m = Module::default();
        let u32t = m.ty(TYPE_INT, &[32, 0]);
        let f32t = m.ty(TYPE_FLOAT, &[32]);
        let (interface, buffers) = (Vec::new(), Vec::new());
        Self { product, m, u32t, f32t, interface, buffers, decode: None, main: 0 }
    }

    /// Types, variables and `main`.
    fn main(&mut self) {
        let Wide { tile, outer, inner, weights_left, addend, y, .. } = *self.product;
        let [tile_m, tile_n, step] = tile;
        let f16 = self.m.ty(TYPE_FLOAT, &[16]);
        let void = self.m.ty(TYPE_VOID, &[]);
        let boolean = self.m.ty(TYPE_BOOL, &[]);
        let uvec3 = self.m.ty(TYPE_VECTOR, &[self.u32t, 3]);
        let uvec4 = self.m.ty(TYPE_VECTOR, &[self.u32t, 4]);
        let procedure = self.m.ty(TYPE_FUNCTION, &[void]);
        let [c0, c1, c2] = [0, 1, 2].map(|c| self.m.u32(c));
        let group = self.built_in(uvec3, BUILT_IN_WORKGROUP_ID);
        let groups = self.built_in(uvec3, BUILT_IN_NUM_WORKGROUPS);
        self.buffer(uvec4, 16, X, true);
        self.buffer(uvec4, 16, W, true);
        if let Some((binding, _)) = addend.filter(|&(binding, _)| binding != y.0) {
            self.buffer(self.f32t, 4, binding, true);
        }
        self.buffer(self.f32t, 4, y.0, false);
        if self.product.decodes() {
            let [halves, words] = self.product.again();
            let halves = self.buffer(f16, 2, halves, true);
            let words = self.buffer(self.u32t, 4, words, true);
            self.decode = Some(Decode::declare(&mut self.m, self.product, halves, words));
        }

        // The sides of products, and sums.
        let (rows, columns) = if weights_left { (tile_n, tile_m) } else { (tile_m, tile_n) };
        let (c_rows, c_columns, c_step) = (self.m.u32(rows), self.m.u32(columns), self.m.u32(step));
        let scope = self.m.u32(SCOPE_WORKGROUP);
        let mut matrix = |component: u32, rows: u32, columns: u32, side: u32| {
            let side = self.m.u32(side);
            self.m.ty(TYPE_COOPERATIVE_MATRIX, &[component, scope, rows, columns, side])
        };
        let left = matrix(f16, c_rows, c_step, USE_LEFT);
        let right = matrix(f16, c_step, c_columns, USE_RIGHT);
        let sums = matrix(self.f32t, c_rows, c_columns, USE_SUMS);
        let zero = self.m.constant(CONSTANT, self.f32t, &[0]);
        let zeros = self.m.constant(CONSTANT_COMPOSITE, sums, &[zero]);
        // Nothing lies outside of a tensor: layouts do not clamp.
        let flat = self.m.ty(TYPE_TENSOR_LAYOUT, &[c2, c0]);
        let no = self.m.constant(CONSTANT_FALSE, boolean, &[]);
        // What turns rows into columns.
        let transposed = self.m.ty(TYPE_TENSOR_VIEW, &[c2, no, c1, c0]);
        let [to_left, to_right, to_sums, to_u32] =
            [left, right, sums, self.u32t].map(|ty| self.m.ty(TYPE_POINTER, &[CLASS_FUNCTION, ty]));
        let x_kind = Activations::of(self.product, &mut self.m, flat, transposed, no);

        self.main = self.m.id();
        self.m.effect(FUNCTION, &[void, self.main, 0, procedure]);
        self.m.label();
        let at_sums = self.m.value(VARIABLE, to_sums, &[CLASS_FUNCTION]);
        let at_k = self.m.value(VARIABLE, to_u32, &[CLASS_FUNCTION]);
        let left = Side { ty: left, old: self.m.value(VARIABLE, to_left, &[CLASS_FUNCTION]) };
        let right = Side { ty: right, old: self.m.value(VARIABLE, to_right, &[CLASS_FUNCTION]) };
        let (c_m, c_n) = (self.m.u32(tile_m), self.m.u32(tile_n));
        let group = self.m.value(LOAD, uvec3, &[group]);
        let first = |this: &mut Self, at: u32, size: u32| {
            let group = this.m.value(COMPOSITE_EXTRACT, this.u32t, &[group, at]);
            this.m.value(I_MUL, this.u32t, &[group, size])
        };
        let (first_m, first_n) = (first(self, 0, c_m), first(self, 1, c_n));
        // Workgroups have whole tiles, so their number gives the rows.
        let groups = self.m.value(LOAD, uvec3, &[groups]);
        let groups_m = self.m.value(COMPOSITE_EXTRACT, self.u32t, &[groups, 0]);
        let size_m = self.m.value(I_MUL, self.u32t, &[groups_m, c_m]);
        let (size_n, size_k) = (self.m.u32(outer), self.m.u32(inner));

        let x = self.pointer(X, uvec4);
        let x = Tensor { pointer: x, layout: x_kind.layout(&mut self.m, size_m), ty: x_kind.ty };
        let w = self.weights(flat, uvec4, [size_n, size_k]);
        let y_at = self.result(flat, y, size_m);
        let c_at = addend.map(|addend| self.result(flat, addend, size_m));
        let view = self.m.value(CREATE_TENSOR_VIEW, transposed, &[]);
        let x_view = match x_kind.view {
            ty if ty == transposed => view,
            ty => self.m.value(CREATE_TENSOR_VIEW, ty, &[]),
        };
        self.m.effect(STORE, &[at_sums, zeros]);
        self.m.effect(STORE, &[at_k, c0]);

        let [head, test, body, next, done] = [(); 5].map(|()| self.m.id());
        self.m.effect(BRANCH, &[head]);
        self.m.effect(LABEL, &[head]);
        self.m.effect(LOOP_MERGE, &[done, next, 0]);
        self.m.effect(BRANCH, &[test]);
        self.m.effect(LABEL, &[test]);
        let k = self.m.value(LOAD, self.u32t, &[at_k]);
        let more = self.m.value(U_LESS_THAN, boolean, &[k, size_k]);
        self.m.effect(BRANCH_CONDITIONAL, &[more, body, done]);
        self.m.effect(LABEL, &[body]);
        let x_slice = x_kind.slice(&mut self.m, first_m, k);
        let w_slice = [first_n, c_n, k, c_step];
        let decode = self.decode.as_ref().map(|decode| decode.function);
        let product = if weights_left {
            let w = self.load(w, left, &w_slice, None, decode);
            [w, self.load(x, right, &x_slice, Some(x_view), None)]
        } else {
            let x = self.load(x, left, &x_slice, None, None);
            [x, self.load(w, right, &w_slice, Some(view), decode)]
        };
        let r = self.m.value(LOAD, sums, &[at_sums]);
        let r = self.m.value(COOPERATIVE_MATRIX_MUL_ADD, sums, &[product[0], product[1], r]);
        self.m.effect(STORE, &[at_sums, r]);
        self.m.effect(BRANCH, &[next]);
        self.m.effect(LABEL, &[next]);
        let k = self.m.value(LOAD, self.u32t, &[at_k]);
        let k = self.m.value(I_ADD, self.u32t, &[k, c_step]);
        self.m.effect(STORE, &[at_k, k]);
        self.m.effect(BRANCH, &[head]);
        self.m.effect(LABEL, &[done]);

        let view = weights_left.then_some(view);
        let slice = [first_m, c_m, first_n, c_n];
        let mut r = self.m.value(LOAD, sums, &[at_sums]);
        if let Some(c) = c_at {
            // Behind the loop: sums that start with a large addend lose bits of every product. Where it lies in the memory
            // of y, a workgroup stores the elements that it has read, and no other reads them.
            let c = self.load(c, Side { ty: sums, old: at_sums }, &slice, view, None);
            r = self.m.value(F_ADD, sums, &[r, c]);
        }
        let slice = self.m.value(TENSOR_LAYOUT_SLICE, flat, &[&[y_at.layout][..], &slice].concat());
        let tail = view.map_or(vec![0, 0], |view| vec![0, TENSOR_VIEW, view]);
        let args = [&[y_at.pointer, r, slice][..], &tail].concat();
        self.m.effect(COOPERATIVE_MATRIX_STORE_TENSOR, &args);
        self.m.effect(RETURN, &[]);
        self.m.effect(FUNCTION_END, &[]);
    }

    /// A load of a tile. What the variable holds is named and not used: nothing is clipped.
    fn load(
        &mut self,
        tensor: Tensor,
        side: Side,
        slice: &[u32],
        view: Option<u32>,
        decode: Option<u32>,
    ) -> u32 {
        let slice =
            self.m.value(TENSOR_LAYOUT_SLICE, tensor.ty, &[&[tensor.layout], slice].concat());
        let old = self.m.value(LOAD, side.ty, &[side.old]);
        let mask = view.map_or(0, |_| TENSOR_VIEW) | decode.map_or(0, |_| TENSOR_DECODE);
        let mut args = vec![tensor.pointer, old, slice, 0, mask];
        args.extend(view);
        args.extend(decode);
        self.m.value(COOPERATIVE_MATRIX_LOAD_TENSOR, side.ty, &args)
    }

    /// The weights: rows of elements or of blocks.
    fn weights(&mut self, flat: u32, element: u32, size: [u32; 2]) -> Tensor {
        let pointer = self.pointer(W, element);
        let mut layout = self.m.value(CREATE_TENSOR_LAYOUT, flat, &[]);
        if let Some(block) = self.decode.as_ref().map(|decode| decode.block) {
            let block = [self.m.u32(1), self.m.u32(block)];
            layout =
                self.m.value(TENSOR_LAYOUT_SET_BLOCK_SIZE, flat, &[&[layout][..], &block].concat());
        }
        let size = [&[layout][..], &size].concat();
        Tensor { pointer, layout: self.m.value(TENSOR_LAYOUT_SET_DIMENSION, flat, &size), ty: flat }
    }

    /// Result or addend: rows of so many elements, of which only those of a product are touched.
    fn result(&mut self, flat: u32, (binding, stride): (u32, u32), rows: u32) -> Tensor {
        let pointer = self.pointer(binding, self.f32t);
        let stride = self.m.u32(stride);
        let layout = self.m.value(CREATE_TENSOR_LAYOUT, flat, &[]);
        let layout = self.m.value(TENSOR_LAYOUT_SET_DIMENSION, flat, &[layout, rows, stride]);
        Tensor { pointer, layout, ty: flat }
    }

    /// The pointer to the first element of a buffer.
    fn pointer(&mut self, binding: u32, element: u32) -> u32 {
        let to_element = self.m.ty(TYPE_POINTER, &[CLASS_STORAGE_BUFFER, element]);
        let zero = self.m.u32(0);
        // All bindings were declared.
        let buffer = self.buffers.iter().find(|(other, _)| *other == binding);
        let buffer = buffer.map_or(0, |&(_, id)| id);
        self.m.value(ACCESS_CHAIN, to_element, &[buffer, zero, zero])
    }

    /// A storage buffer: a block with one array.
    fn buffer(&mut self, element: u32, stride: u32, binding: u32, read_only: bool) -> u32 {
        let m = &mut self.m;
        let array = m.ty_new(TYPE_RUNTIME_ARRAY, &[element]);
        m.decorate(&[array, DECORATION_ARRAY_STRIDE, stride]);
        let block = m.ty_new(TYPE_STRUCT, &[array]);
        m.decorate(&[block, DECORATION_BLOCK]);
        m.decorate_member(&[block, 0, DECORATION_OFFSET, 0]);
        if read_only {
            m.decorate_member(&[block, 0, DECORATION_NON_WRITABLE]);
        }
        let pointer = m.ty(TYPE_POINTER, &[CLASS_STORAGE_BUFFER, block]);
        let variable = m.global(pointer, CLASS_STORAGE_BUFFER);
        m.decorate(&[variable, DECORATION_SET, 0]);
        m.decorate(&[variable, DECORATION_BINDING, binding]);
        self.interface.push(variable);
        self.buffers.push((binding, variable));
        variable
    }

    fn built_in(&mut self, ty: u32, what: u32) -> u32 {
        let pointer = self.m.ty(TYPE_POINTER, &[CLASS_INPUT, ty]);
        let variable = self.m.global(pointer, CLASS_INPUT);
        self.m.decorate(&[variable, DECORATION_BUILT_IN, what]);
        self.interface.push(variable);
        variable
    }

    fn finish(mut self) -> Vec<u32> {
        let mut capabilities = vec![
            CAPABILITY_SHADER,
            CAPABILITY_FLOAT16,
            CAPABILITY_STORAGE_16,
            CAPABILITY_VULKAN_MODEL,
            CAPABILITY_MATRIX,
            CAPABILITY_MATRIX_TENSORS,
            CAPABILITY_TENSORS,
        ];
        let mut addressing = ADDRESSING_LOGICAL;
        if let Some(decode) = self.decode.take() {
            decode.define(&mut self.m);
            capabilities.extend([CAPABILITY_PHYSICAL, CAPABILITY_MATRIX_BLOCKS]);
            addressing = ADDRESSING_PHYSICAL;
        }
        let extensions = [
            "SPV_KHR_cooperative_matrix",
            "SPV_NV_cooperative_matrix2",
            "SPV_NV_tensor_addressing",
        ];
        let head = Head { capabilities: &capabilities, extensions: &extensions, addressing };
        self.m.finish(&head, (self.main, self.product.invocations), &self.interface)
    }
}

/// Elements of a run of f16, and how far apart runs start: activations are f16 in the first half of the bytes of 32 floats.
const RUN: u32 = 32;
const RUN_STRIDE: u32 = 64;

/// How activations lie.
enum Form {
    /// As rows of so many f16, with a step of one run: the second half of each 64 is never touched.
    Rows(u32),
    /// As a tensor of three dimensions: rows of runs. Rows are so many elements apart.
    Runs { row: u32, runs: u32 },
}

/// The layout of activations, and the view that turns their rows into columns.
struct Activations {
    form: Form,
    ty: u32,
    view: u32,
    tile: [u32; 2],
}

impl Activations {
    fn of(product: &Wide, m: &mut Module, flat: u32, transposed: u32, no: u32) -> Self {
        let [tile_m, _, step] = product.tile;
        let stride = product.x_stride;
        let (mut ty, mut view) = (flat, transposed);
        let form = match step {
            RUN => Form::Rows(2 * stride),
            _ => {
                let [c0, c1, c2, c3] = [0, 1, 2, 3].map(|c| m.u32(c));
                ty = m.ty(TYPE_TENSOR_LAYOUT, &[c3, c0]);
                view = m.ty(TYPE_TENSOR_VIEW, &[c3, no, c1, c2, c0]);
                Form::Runs { row: 2 * stride, runs: product.inner / RUN }
            }
        };
        Self { form, ty, view, tile: [tile_m, step] }
    }

    fn layout(&self, m: &mut Module, rows: u32) -> u32 {
        let layout = m.value(CREATE_TENSOR_LAYOUT, self.ty, &[]);
        match self.form {
            Form::Rows(stride) => {
                let stride = m.u32(stride);
                m.value(TENSOR_LAYOUT_SET_DIMENSION, self.ty, &[layout, rows, stride])
            }
            Form::Runs { row, runs } => {
                let [runs, run, row, apart, one] =
                    [runs, RUN, row, RUN_STRIDE, 1].map(|c| m.u32(c));
                let sized = [layout, rows, runs, run];
                let layout = m.value(TENSOR_LAYOUT_SET_DIMENSION, self.ty, &sized);
                m.value(TENSOR_LAYOUT_SET_STRIDE, self.ty, &[layout, row, apart, one])
            }
        }
    }

    /// Offsets and spans of the tile that begins at a row and a column.
    fn slice(&self, m: &mut Module, first: u32, k: u32) -> Vec<u32> {
        let u32t = m.ty(TYPE_INT, &[32, 0]);
        let [rows, step] = self.tile.map(|size| m.u32(size));
        match self.form {
            Form::Rows(_) => {
                let one = m.u32(1);
                let at = m.value(SHIFT_LEFT_LOGICAL, u32t, &[k, one]);
                vec![first, rows, at, step]
            }
            Form::Runs { .. } => {
                let [five, zero, run, runs] = [5, 0, RUN, self.tile[1] / RUN].map(|c| m.u32(c));
                let at = m.value(SHIFT_RIGHT_LOGICAL, u32t, &[k, five]);
                vec![first, rows, at, runs, zero, run]
            }
        }
    }
}
