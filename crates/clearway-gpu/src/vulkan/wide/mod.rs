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
    writer.write();
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

/// Types of what `main` works with.
struct Types {
    f16: u32,
    boolean: u32,
    uvec3: u32,
    uvec4: u32,
    /// Matrices: both sides of products, and sums.
    left: u32,
    right: u32,
    sums: u32,
    /// Layouts of two dimensions, and the view that turns rows into columns.
    flat: u32,
    transposed: u32,
    /// A constant that is false.
    no: u32,
}

/// What `main` has at its beginning.
struct Main {
    sums: Side,
    left: Side,
    right: Side,
    /// The variable with the column of a step, and where columns end.
    k: u32,
    inner: u32,
    /// The first row of activations and the first of weights.
    first: [u32; 2],
    x: Tensor,
    w: Tensor,
    y: Tensor,
    addend: Option<Tensor>,
    view: u32,
    x_view: u32,
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

    /// Types, buffers and `main`.
    fn write(&mut self) {
        let types = self.types();
        self.declare_buffers(&types);
        let x = Activations::of(self.product, &mut self.m, &types);
        let main = self.begin(&types, &x);
        self.multiply(&types, &x, &main);
        self.store(&types, &main);
    }

    fn types(&mut self) -> Types {
        let Wide { tile: [tile_m, tile_n, step], weights_left, .. } = *self.product;
        let m = &mut self.m;
        let f16 = m.ty(TYPE_FLOAT, &[16]);
        let boolean = m.ty(TYPE_BOOL, &[]);
        let uvec3 = m.ty(TYPE_VECTOR, &[self.u32t, 3]);
        let uvec4 = m.ty(TYPE_VECTOR, &[self.u32t, 4]);
        let [c0, c1, c2] = [0, 1, 2].map(|c| m.u32(c));
        let (rows, columns) = if weights_left { (tile_n, tile_m) } else { (tile_m, tile_n) };
        let scope = m.u32(SCOPE_WORKGROUP);
        let mut matrix = |component: u32, rows: u32, columns: u32, side: u32| {
            let shape = [rows, columns, side].map(|number| m.u32(number));
            m.ty(TYPE_COOPERATIVE_MATRIX, &[&[component, scope][..], &shape].concat())
        };
        let left = matrix(f16, rows, step, USE_LEFT);
        let right = matrix(f16, step, columns, USE_RIGHT);
        let sums = matrix(self.f32t, rows, columns, USE_SUMS);
        // Nothing lies outside of a tensor: layouts do not clamp.
        let flat = m.ty(TYPE_TENSOR_LAYOUT, &[c2, c0]);
        let no = m.constant(CONSTANT_FALSE, boolean, &[]);
        let transposed = m.ty(TYPE_TENSOR_VIEW, &[c2, no, c1, c0]);
        Types { f16, boolean, uvec3, uvec4, left, right, sums, flat, transposed, no }
    }

    fn declare_buffers(&mut self, types: &Types) {
        let Wide { addend, y, .. } = *self.product;
        self.buffer(types.uvec4, 16, X, true);
        self.buffer(types.uvec4, 16, W, true);
        if let Some((binding, _)) = addend.filter(|&(binding, _)| binding != y.0) {
            self.buffer(self.f32t, 4, binding, true);
        }
        self.buffer(self.f32t, 4, y.0, false);
        if self.product.decodes() {
            let [halves, words] = self.product.again();
            let halves = self.buffer(types.f16, 2, halves, true);
            let words = self.buffer(self.u32t, 4, words, true);
            self.decode = Some(Decode::declare(&mut self.m, self.product, halves, words));
        }
    }

    /// The beginning of `main`: variables, and where everything lies.
    fn begin(&mut self, types: &Types, x: &Activations) -> Main {
        let Wide { tile, outer, inner, addend, y, .. } = *self.product;
        let group = self.built_in(types.uvec3, BUILT_IN_WORKGROUP_ID);
        let groups = self.built_in(types.uvec3, BUILT_IN_NUM_WORKGROUPS);
        let void = self.m.ty(TYPE_VOID, &[]);
        let procedure = self.m.ty(TYPE_FUNCTION, &[void]);
        let zero = self.m.constant(CONSTANT, self.f32t, &[0]);
        let zeros = self.m.constant(CONSTANT_COMPOSITE, types.sums, &[zero]);
        let (c0, [c_m, c_n, _]) = (self.m.u32(0), tile.map(|size| self.m.u32(size)));
        let locals = [types.sums, types.left, types.right, self.u32t];
        let locals = locals.map(|ty| self.m.ty(TYPE_POINTER, &[CLASS_FUNCTION, ty]));

        self.main = self.m.id();
        self.m.effect(FUNCTION, &[void, self.main, 0, procedure]);
        self.m.label();
        let [sums, left, right, k] =
            locals.map(|pointer| self.m.value(VARIABLE, pointer, &[CLASS_FUNCTION]));
        let number = |this: &mut Self, group: u32, at: u32, size: u32| {
            let group = this.m.value(COMPOSITE_EXTRACT, this.u32t, &[group, at]);
            this.m.value(I_MUL, this.u32t, &[group, size])
        };
        let group = self.m.value(LOAD, types.uvec3, &[group]);
        let first = [number(self, group, 0, c_m), number(self, group, 1, c_n)];
        // Workgroups have whole tiles, so their number gives the rows.
        let groups = self.m.value(LOAD, types.uvec3, &[groups]);
        let rows = number(self, groups, 0, c_m);
        let size = [outer, inner].map(|size| self.m.u32(size));
        let pointer = self.pointer(X, types.uvec4);
        let layout = x.layout(&mut self.m, rows);
        let x_at = Tensor { pointer, layout, ty: x.ty };
        let w = self.weights(types, size);
        let y = self.result(types.flat, y, rows);
        let addend = addend.map(|addend| self.result(types.flat, addend, rows));
        let view = self.m.value(CREATE_TENSOR_VIEW, types.transposed, &[]);
        let x_view = match x.view == types.transposed {
            true => view,
            false => self.m.value(CREATE_TENSOR_VIEW, x.view, &[]),
        };
        self.m.effect(STORE, &[sums, zeros]);
        self.m.effect(STORE, &[k, c0]);
        let side = |ty: u32, old: u32| Side { ty, old };
        Main {
            sums: side(types.sums, sums),
            left: side(types.left, left),
            right: side(types.right, right),
            k,
            inner: size[1],
            first,
            x: x_at,
            w,
            y,
            addend,
            view,
            x_view,
        }
    }

    /// The loop over columns.
    fn multiply(&mut self, types: &Types, x: &Activations, main: &Main) {
        let Wide { tile, weights_left, .. } = *self.product;
        let [_, c_n, c_step] = tile.map(|size| self.m.u32(size));
        let [first_m, first_n] = main.first;
        let [head, test, body, next, done] = [(); 5].map(|()| self.m.id());
        self.m.effect(BRANCH, &[head]);
        self.m.effect(LABEL, &[head]);
        self.m.effect(LOOP_MERGE, &[done, next, 0]);
        self.m.effect(BRANCH, &[test]);
        self.m.effect(LABEL, &[test]);
        let k = self.m.value(LOAD, self.u32t, &[main.k]);
        let more = self.m.value(U_LESS_THAN, types.boolean, &[k, main.inner]);
        self.m.effect(BRANCH_CONDITIONAL, &[more, body, done]);
        self.m.effect(LABEL, &[body]);
        let x_slice = x.slice(&mut self.m, first_m, k);
        let w_slice = [first_n, c_n, k, c_step];
        let decode = self.decode.as_ref().map(|decode| decode.function);
        let [left, right] = if weights_left {
            let w = self.load(main.w, main.left, &w_slice, None, decode);
            [w, self.load(main.x, main.right, &x_slice, Some(main.x_view), None)]
        } else {
            let x = self.load(main.x, main.left, &x_slice, None, None);
            [x, self.load(main.w, main.right, &w_slice, Some(main.view), decode)]
        };
        let r = self.m.value(LOAD, types.sums, &[main.sums.old]);
        let r = self.m.value(COOPERATIVE_MATRIX_MUL_ADD, types.sums, &[left, right, r]);
        self.m.effect(STORE, &[main.sums.old, r]);
        self.m.effect(BRANCH, &[next]);
        self.m.effect(LABEL, &[next]);
        let k = self.m.value(LOAD, self.u32t, &[main.k]);
        let k = self.m.value(I_ADD, self.u32t, &[k, c_step]);
        self.m.effect(STORE, &[main.k, k]);
        self.m.effect(BRANCH, &[head]);
        self.m.effect(LABEL, &[done]);
    }

    /// The end of `main`: the addend, and the way to memory.
    fn store(&mut self, types: &Types, main: &Main) {
        let Wide { tile, weights_left, .. } = *self.product;
        let [c_m, c_n, _] = tile.map(|size| self.m.u32(size));
        let [first_m, first_n] = main.first;
        let view = weights_left.then_some(main.view);
        let slice = [first_m, c_m, first_n, c_n];
        let mut r = self.m.value(LOAD, types.sums, &[main.sums.old]);
        if let Some(c) = main.addend {
            // Behind the loop: sums that start with a large addend lose bits of every product. Where it lies in the memory
            // of y, a workgroup stores the elements that it has read, and no other reads them.
            let c = self.load(c, main.sums, &slice, view, None);
            r = self.m.value(F_ADD, types.sums, &[r, c]);
        }
        let slice = [&[main.y.layout][..], &slice].concat();
        let slice = self.m.value(TENSOR_LAYOUT_SLICE, types.flat, &slice);
        let tail = view.map_or(vec![0, 0], |view| vec![0, TENSOR_VIEW, view]);
        let args = [&[main.y.pointer, r, slice][..], &tail].concat();
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
    fn weights(&mut self, types: &Types, size: [u32; 2]) -> Tensor {
        let (pointer, flat) = (self.pointer(W, types.uvec4), types.flat);
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
    fn of(product: &Wide, m: &mut Module, types: &Types) -> Self {
        let [tile_m, _, step] = product.tile;
        let stride = product.x_stride;
        let (mut ty, mut view) = (types.flat, types.transposed);
        let form = match step {
            RUN => Form::Rows(2 * stride),
            _ => {
                let [c0, c1, c2, c3] = [0, 1, 2, 3].map(|c| m.u32(c));
                ty = m.ty(TYPE_TENSOR_LAYOUT, &[c3, c0]);
                view = m.ty(TYPE_TENSOR_VIEW, &[c3, types.no, c1, c2, c0]);
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
