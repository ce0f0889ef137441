//! Runs the words of a product without a device, by the rules of SPV_NV_tensor_addressing and SPV_NV_cooperative_matrix2.
//!
//! All control flow is that of the whole workgroup, so one thread stands for it and a matrix is an array. What the rules
//! leave undefined is an error here: elements outside of a tensor, pointers that are not aligned, stores to what may only
//! be read, instructions that products have no use for.

use std::rc::Rc;

use half::f16;
use rustc_hash::FxHashMap;

use super::super::spirv::writer::*;

/// Runs all workgroups. `buffers` are what is bound, by the numbers of the bindings.
pub(super) fn run(words: &[u32], buffers: &mut [Vec<u8>], groups: [u32; 3]) {
    let mut machine = Machine::new(words, buffers);
    for z in 0..groups[2] {
        for y in 0..groups[1] {
            for x in 0..groups[0] {
                machine.group = [vec![x, y, z], groups.to_vec()];
                machine.locals.clear();
                let main = machine.main;
                machine.call(main, &[]);
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Type {
    /// Of no size, or used for declarations only.
    Other,
    Int,
    Float(u32),
    Vector,
    Array(u32, u32),
    Runtime(u32),
    Struct(Vec<u32>),
    Pointer(u32),
    Matrix {
        rows: u32,
        columns: u32,
    },
    Layout(usize),
    View(Vec<usize>),
}

#[derive(Clone, Debug)]
enum Value {
    Undefined,
    /// An integer, a float by its bits, or a truth value.
    Bits(u32),
    Many(Vec<u32>),
    /// Bytes of a binding, and the type of what is there.
    Memory {
        binding: usize,
        at: usize,
        pointee: u32,
    },
    /// A variable of the function, or what stands for the place of a workgroup.
    Local(u32),
    Matrix(Rc<Vec<f32>>),
    Layout(Rc<Layout>),
    View,
}

/// The state of a tensor layout.
#[derive(Clone, Debug)]
struct Layout {
    block: Vec<u32>,
    size: Vec<u32>,
    stride: Vec<u32>,
    offset: Vec<u32>,
    span: Vec<u32>,
}

struct Machine<'a> {
    list: Vec<&'a [u32]>,
    types: FxHashMap<u32, Type>,
    /// The type of each value.
    type_of: FxHashMap<u32, u32>,
    values: Vec<Value>,
    /// Where functions and labels begin.
    places: FxHashMap<u32, usize>,
    strides: FxHashMap<u32, u32>,
    read_only: Vec<usize>,
    built_in: FxHashMap<u32, u32>,
    locals: FxHashMap<u32, Value>,
    main: u32,
    /// Place and number of workgroups.
    group: [Vec<u32>; 2],
    buffers: &'a mut [Vec<u8>],
}

impl<'a> Machine<'a> {
    fn new(words: &'a [u32], buffers: &'a mut [Vec<u8>]) -> Self {
        let (mut list, mut at) = (Vec::new(), 5);
        while at < words.len() {
            let len = (words[at] >> 16) as usize;
            list.push(&words[at..at + len]);
            at += len;
        }
        let mut machine = Self {
            list,
            types: FxHashMap::default(),
            type_of: FxHashMap::default(),
            values: vec![Value::Undefined; words[3] as usize],
            places: FxHashMap::default(),
            strides: FxHashMap::default(),
            read_only: Vec::new(),
            built_in: FxHashMap::default(),
            locals: FxHashMap::default(),
            main: 0,
            group: [Vec::new(), Vec::new()],
            buffers,
        };
        machine.declarations();
        machine
    }

    /// Types, constants, global variables, and where functions and labels are.
    fn declarations(&mut self) {
        let (mut bindings, mut fixed) = (FxHashMap::default(), Vec::new());
        let mut inside = false;
        for (at, i) in self.list.clone().into_iter().enumerate() {
            let op = i[0] & 0xffff;
            match op {
                ENTRY_POINT => self.main = i[2],
                DECORATE => match i[2] {
                    DECORATION_BINDING => drop(bindings.insert(i[1], i[3] as usize)),
                    DECORATION_ARRAY_STRIDE => drop(self.strides.insert(i[1], i[3])),
                    DECORATION_BUILT_IN => drop(self.built_in.insert(i[1], i[3])),
                    _ => {}
                },
                MEMBER_DECORATE if i[3] == DECORATION_NON_WRITABLE => fixed.push(i[1]),
                MEMBER_DECORATE => assert_eq!((i[2], i[3], i[4]), (0, DECORATION_OFFSET, 0)),
                TYPE_INT => drop(self.types.insert(i[1], Type::Int)),
                TYPE_FLOAT => drop(self.types.insert(i[1], Type::Float(i[2]))),
                TYPE_VECTOR => drop(self.types.insert(i[1], Type::Vector)),
                TYPE_ARRAY => drop(self.types.insert(i[1], Type::Array(i[2], self.bits(i[3])))),
                TYPE_RUNTIME_ARRAY => drop(self.types.insert(i[1], Type::Runtime(i[2]))),
                TYPE_STRUCT => drop(self.types.insert(i[1], Type::Struct(i[2..].to_vec()))),
                TYPE_POINTER => drop(self.types.insert(i[1], Type::Pointer(i[3]))),
                TYPE_COOPERATIVE_MATRIX => {
                    assert_eq!(self.bits(i[3]), SCOPE_WORKGROUP);
                    let (rows, columns) = (self.bits(i[4]), self.bits(i[5]));
                    self.types.insert(i[1], Type::Matrix { rows, columns });
                }
                TYPE_TENSOR_LAYOUT => {
                    assert_eq!(self.bits(i[3]), 0, "layouts do not clamp");
                    self.types.insert(i[1], Type::Layout(self.bits(i[2]) as usize));
                }
                TYPE_TENSOR_VIEW => {
                    let order = i[4..].iter().map(|&id| self.bits(id) as usize).collect();
                    self.types.insert(i[1], Type::View(order));
                }
                TYPE_VOID | TYPE_BOOL | TYPE_FUNCTION => drop(self.types.insert(i[1], Type::Other)),
                CONSTANT | CONSTANT_FALSE => {
                    self.put(i, Value::Bits(i.get(3).copied().unwrap_or(0)));
                }
                CONSTANT_COMPOSITE => {
                    let Type::Matrix { rows, columns } = self.types[&i[1]] else { panic!("{i:?}") };
                    let value = f32::from_bits(self.bits(i[3]));
                    let all = Rc::new(vec![value; (rows * columns) as usize]);
                    self.put(i, Value::Matrix(all));
                }
                VARIABLE if !inside => {
                    let Type::Pointer(pointee) = self.types[&i[1]] else { panic!("{i:?}") };
                    let value = match bindings.get(&i[2]) {
                        Some(&binding) => {
                            if fixed.contains(&pointee) {
                                self.read_only.push(binding);
                            }
                            Value::Memory { binding, at: 0, pointee }
                        }
                        None => Value::Local(i[2]),
                    };
                    self.put(i, value);
                }
                FUNCTION => {
                    inside = true;
                    self.places.insert(i[2], at);
                }
                LABEL => drop(self.places.insert(i[1], at)),
                _ => {}
            }
        }
    }

    fn put(&mut self, i: &[u32], value: Value) {
        self.type_of.insert(i[2], i[1]);
        self.values[i[2] as usize] = value;
    }

    fn bits(&self, id: u32) -> u32 {
        match &self.values[id as usize] {
            Value::Bits(bits) => *bits,
            other => panic!("%{id} is no number but {other:?}"),
        }
    }

    /// A float of f16 or f32.
    fn float(&self, id: u32) -> f32 {
        let bits = self.bits(id);
        match self.types[&self.type_of[&id]] {
            Type::Float(16) => f16::from_bits(bits as u16).to_f32(),
            Type::Float(32) => f32::from_bits(bits),
            ref other => panic!("%{id} is of {other:?}"),
        }
    }

    fn float_bits(&self, ty: u32, value: f32) -> u32 {
        match self.types[&ty] {
            Type::Float(16) => u32::from(f16::from_f32(value).to_bits()),
            Type::Float(32) => value.to_bits(),
            ref other => panic!("no float: {other:?}"),
        }
    }

    fn matrix(&self, id: u32) -> Rc<Vec<f32>> {
        match &self.values[id as usize] {
            Value::Matrix(all) => all.clone(),
            other => panic!("%{id} is no matrix but {other:?}"),
        }
    }

    fn layout(&self, id: u32) -> Layout {
        match &self.values[id as usize] {
            Value::Layout(layout) => Layout::clone(layout),
            other => panic!("%{id} is no layout but {other:?}"),
        }
    }

    fn memory(&self, id: u32) -> (usize, usize, u32) {
        match self.values[id as usize] {
            Value::Memory { binding, at, pointee } => (binding, at, pointee),
            ref other => panic!("%{id} points to no memory: {other:?}"),
        }
    }

    /// Runs a function and gives its result.
    fn call(&mut self, function: u32, args: &[Value]) -> Value {
        let (mut at, mut args) = (self.places[&function] + 1, args.iter());
        loop {
            let i = self.list[at];
            let op = i[0] & 0xffff;
            at += 1;
            let jump = match op {
                FUNCTION_PARAMETER => {
                    let value = args.next().unwrap().clone();
                    self.put(i, value);
                    None
                }
                LABEL | LOOP_MERGE => None,
                BRANCH => Some(i[1]),
                BRANCH_CONDITIONAL => Some(if self.bits(i[1]) != 0 { i[2] } else { i[3] }),
                RETURN => return Value::Undefined,
                RETURN_VALUE => return self.values[i[1] as usize].clone(),
                STORE => {
                    let Value::Local(variable) = self.values[i[1] as usize] else {
                        panic!("{i:?}")
                    };
                    let value = self.values[i[2] as usize].clone();
                    self.locals.insert(variable, value);
                    None
                }
                COOPERATIVE_MATRIX_STORE_TENSOR => {
                    self.store_tensor(i);
                    None
                }
                _ => {
                    let value = self.value(op, i);
                    self.put(i, value);
                    None
                }
            };
            at = jump.map_or(at, |label| self.places[&label]);
        }
    }

    /// What an instruction gives.
    fn value(&mut self, op: u32, i: &[u32]) -> Value {
        let (ty, args) = (i[1], &i[3..]);
        let integers =
            |f: fn(u32, u32) -> u32| Value::Bits(f(self.bits(args[0]), self.bits(args[1])));
        let floats = |f: fn(f32, f32) -> f32| {
            Value::Bits(self.float_bits(ty, f(self.float(args[0]), self.float(args[1]))))
        };
        match op {
            VARIABLE => Value::Local(i[2]),
            LOAD => self.load(ty, args),
            ACCESS_CHAIN => self.access(args),
            COMPOSITE_EXTRACT => match &self.values[args[0] as usize] {
                Value::Many(all) => Value::Bits(all[args[1] as usize]),
                other => panic!("{other:?}"),
            },
            BITCAST => match self.types[&ty] {
                // A word as two f16.
                Type::Vector => {
                    let bits = self.bits(args[0]);
                    Value::Many(vec![bits & 0xffff, bits >> 16])
                }
                _ => self.values[args[0] as usize].clone(),
            },
            F_CONVERT => Value::Bits(self.float_bits(ty, self.float(args[0]))),
            F_ADD if matches!(self.types[&ty], Type::Matrix { .. }) => {
                let (a, b) = (self.matrix(args[0]), self.matrix(args[1]));
                Value::Matrix(Rc::new(a.iter().zip(&*b).map(|(a, b)| a + b).collect()))
            }
            F_ADD => floats(|a, b| a + b),
            F_SUB => floats(|a, b| a - b),
            F_MUL => floats(|a, b| a * b),
            I_ADD => integers(|a, b| a.checked_add(b).unwrap()),
            I_MUL => integers(|a, b| a.checked_mul(b).unwrap()),
            U_LESS_THAN => integers(|a, b| (a < b).into()),
            // Shifts by the width or more are undefined.
            SHIFT_RIGHT_LOGICAL => integers(|a, b| a.checked_shr(b).unwrap()),
            SHIFT_LEFT_LOGICAL => integers(|a, b| a.checked_shl(b).unwrap()),
            BITWISE_AND => integers(|a, b| a & b),
            BITWISE_OR => integers(|a, b| a | b),
            BITWISE_XOR => integers(|a, b| a ^ b),
            COOPERATIVE_MATRIX_MUL_ADD => self.multiply_add(ty, args),
            COOPERATIVE_MATRIX_LOAD_TENSOR => self.load_tensor(ty, args),
            CREATE_TENSOR_VIEW => Value::View,
            CREATE_TENSOR_LAYOUT => {
                let Type::Layout(count) = self.types[&ty] else { panic!("{i:?}") };
                let zeros = || vec![0; count];
                let (block, size, stride) = (vec![1; count], zeros(), zeros());
                Value::Layout(Rc::new(Layout {
                    block,
                    size,
                    stride,
                    offset: zeros(),
                    span: zeros(),
                }))
            }
            TENSOR_LAYOUT_SET_BLOCK_SIZE
            | TENSOR_LAYOUT_SET_DIMENSION
            | TENSOR_LAYOUT_SET_STRIDE
            | TENSOR_LAYOUT_SLICE => {
                let numbers: Vec<u32> = args[1..].iter().map(|&id| self.bits(id)).collect();
                Value::Layout(Rc::new(self.layout(args[0]).with(op, numbers)))
            }
            _ => panic!("instruction {op} is not known"),
        }
    }

    fn load(&self, ty: u32, args: &[u32]) -> Value {
        if let Value::Local(variable) = self.values[args[0] as usize] {
            return match self.built_in.get(&variable) {
                Some(&BUILT_IN_WORKGROUP_ID) => Value::Many(self.group[0].clone()),
                Some(_) => Value::Many(self.group[1].clone()),
                None => self.locals.get(&variable).cloned().unwrap_or(Value::Undefined),
            };
        }
        let (binding, at, pointee) = self.memory(args[0]);
        assert_eq!(pointee, ty);
        let bytes = &self.buffers[binding];
        Value::Bits(match self.types[&ty] {
            Type::Float(16) => {
                assert_eq!(at % 2, 0);
                u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap()).into()
            }
            Type::Int | Type::Float(32) => {
                assert_eq!(at % 4, 0);
                u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
            }
            ref other => panic!("a load of {other:?}"),
        })
    }

    fn access(&self, args: &[u32]) -> Value {
        let (binding, mut at, mut pointee) = self.memory(args[0]);
        for &index in &args[1..] {
            let index = self.bits(index);
            match self.types[&pointee] {
                // All structures have one member.
                Type::Struct(ref members) => {
                    assert_eq!((members.len(), index), (1, 0));
                    pointee = members[0];
                }
                Type::Array(element, count) => {
                    assert!(index < count);
                    at += (index * self.strides[&pointee]) as usize;
                    pointee = element;
                }
                Type::Runtime(element) => {
                    at += index as usize * self.strides[&pointee] as usize;
                    pointee = element;
                }
                ref other => panic!("an index into {other:?}"),
            }
        }
        Value::Memory { binding, at, pointee }
    }

    fn multiply_add(&self, ty: u32, args: &[u32]) -> Value {
        let shape = |id: u32| match self.types[&id] {
            Type::Matrix { rows, columns } => (rows as usize, columns as usize),
            ref other => panic!("{other:?}"),
        };
        let [(rows, inner), right] = [args[0], args[1]].map(|id| shape(self.type_of[&id]));
        let columns = right.1;
        assert_eq!((right.0, shape(ty)), (inner, (rows, columns)));
        let (a, b) = (self.matrix(args[0]), self.matrix(args[1]));
        let mut sums = Vec::clone(&self.matrix(args[2]));
        for (row, sums) in sums.chunks_exact_mut(columns).enumerate() {
            for k in 0..inner {
                let left = a[row * inner + k];
                for (sum, right) in sums.iter_mut().zip(&b[k * columns..][..columns]) {
                    *sum += left * right;
                }
            }
        }
        Value::Matrix(Rc::new(sums))
    }

    fn load_tensor(&mut self, ty: u32, args: &[u32]) -> Value {
        let Type::Matrix { rows, columns } = self.types[&ty] else { panic!("{args:?}") };
        assert_eq!(args[3], 0, "memory operands");
        let (binding, at, _) = self.memory(args[0]);
        assert_eq!(at % 16, 0, "a pointer that is not aligned");
        let (layout, view, decode) =
            (self.layout(args[2]), args[4] & TENSOR_VIEW, args[4] & TENSOR_DECODE);
        let order = (view != 0).then(|| self.order(args[5]));
        let function = (decode != 0).then(|| args[5 + view as usize]);
        let block = function.map(|function| self.block_of(function));
        assert!(function.is_some() || layout.block.iter().all(|&size| size == 1));
        let bytes = if self.is_float(ty) { 4 } else { 2 };
        let mut all = Vec::with_capacity((rows * columns) as usize);
        for index in 0..rows * columns {
            let (blocks, inside) = layout.place(index, order.as_deref());
            let element = layout.linear(&blocks);
            all.push(match (function, block) {
                (Some(function), Some((pointee, size))) => {
                    let at = at + element * size as usize;
                    let pointer = Value::Memory { binding, at, pointee };
                    match self.call(function, &[pointer, Value::Many(blocks), Value::Many(inside)])
                    {
                        Value::Bits(bits) => f16::from_bits(bits as u16).to_f32(),
                        other => panic!("{other:?}"),
                    }
                }
                _ => {
                    let memory = &self.buffers[binding][at + element * bytes..][..bytes];
                    match bytes {
                        2 => f16::from_le_bytes(memory.try_into().unwrap()).to_f32(),
                        _ => f32::from_le_bytes(memory.try_into().unwrap()),
                    }
                }
            });
        }
        Value::Matrix(Rc::new(all))
    }

    fn store_tensor(&mut self, i: &[u32]) {
        let (binding, at, _) = self.memory(i[1]);
        assert_eq!((at % 16, i[4]), (0, 0));
        assert!(!self.read_only.contains(&binding), "binding {binding} may only be read");
        let (layout, all) = (self.layout(i[3]), self.matrix(i[2]));
        assert!(layout.block.iter().all(|&size| size == 1));
        let order = (i[5] == TENSOR_VIEW).then(|| self.order(i[6]));
        for (index, value) in all.iter().enumerate() {
            let (place, _) = layout.place(index as u32, order.as_deref());
            let at = at + 4 * layout.linear(&place);
            self.buffers[binding][at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
    }

    /// Whether the matrices of a type are f32. Of those that are loaded, sums alone are.
    fn is_float(&self, ty: u32) -> bool {
        let declared = |i: &&&[u32]| i[0] & 0xffff == TYPE_COOPERATIVE_MATRIX && i[1] == ty;
        let component = self.list.iter().find(declared).map(|i| i[2]).unwrap();
        matches!(self.types[&component], Type::Float(32))
    }

    fn order(&self, view: u32) -> Vec<usize> {
        match &self.types[&self.type_of[&view]] {
            Type::View(order) => order.clone(),
            other => panic!("no view: {other:?}"),
        }
    }

    /// Type and bytes of the blocks that a function decodes.
    fn block_of(&self, function: u32) -> (u32, u32) {
        let parameter = self.list[self.places[&function] + 1];
        let Type::Pointer(block) = self.types[&parameter[1]] else { panic!("{parameter:?}") };
        let Type::Struct(ref members) = self.types[&block] else { panic!("{parameter:?}") };
        let Type::Array(_, count) = self.types[&members[0]] else { panic!("{parameter:?}") };
        (block, count * self.strides[&members[0]])
    }
}

impl Layout {
    /// The layout after an instruction.
    fn with(mut self, op: u32, numbers: Vec<u32>) -> Self {
        let last = self.size.len() - 1;
        match op {
            TENSOR_LAYOUT_SET_BLOCK_SIZE => self.block = numbers,
            TENSOR_LAYOUT_SET_DIMENSION => {
                self.stride[last] = 1;
                for dim in (0..last).rev() {
                    let blocks = numbers[dim + 1].div_ceil(self.block[dim + 1]);
                    self.stride[dim] = self.stride[dim + 1] * blocks;
                }
                self.offset.fill(0);
                (self.span, self.size) = (numbers.clone(), numbers);
            }
            TENSOR_LAYOUT_SET_STRIDE => {
                for dim in 0..last {
                    let blocks = self.size[dim + 1].div_ceil(self.block[dim + 1]);
                    assert!(numbers[dim] >= numbers[dim + 1] * blocks, "rows overlap");
                }
                self.stride = numbers;
            }
            _ => {
                for (dim, pair) in numbers.chunks_exact(2).enumerate() {
                    self.offset[dim] += pair[0];
                    self.span[dim] = pair[1];
                }
            }
        }
        self
    }

    /// Block and place in the block of an element of a matrix, which is counted row by row.
    fn place(&self, mut index: u32, order: Option<&[usize]>) -> (Vec<u32>, Vec<u32>) {
        let count = self.size.len();
        if let Some(order) = order {
            // A view without dimensions of its own: those of the span, in another order.
            let mut place = vec![0; count];
            for &dim in order.iter().rev() {
                place[dim] = index % self.span[dim];
                index /= self.span[dim];
            }
            index =
                place.iter().zip(&self.span).fold(0, |index, (place, span)| index * span + place);
        }
        let (mut blocks, mut inside) = (vec![0; count], vec![0; count]);
        for dim in (0..count).rev() {
            let at = index % self.span[dim] + self.offset[dim];
            index /= self.span[dim];
            assert!(at < self.size[dim], "element {at} of {} in dimension {dim}", self.size[dim]);
            (blocks[dim], inside[dim]) = (at / self.block[dim], at % self.block[dim]);
        }
        assert_eq!(index, 0, "the span is smaller than the matrix");
        (blocks, inside)
    }

    fn linear(&self, blocks: &[u32]) -> usize {
        blocks.iter().zip(&self.stride).map(|(&at, &stride)| at as usize * stride as usize).sum()
    }
}
