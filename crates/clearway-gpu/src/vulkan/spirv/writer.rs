//! Writes modules of our own: words in the order of the specification, equal types and constants only once.
//!
//! Names and numbers are those of the SPIR-V specification and of its extensions.

use rustc_hash::FxHashMap;

use super::words::{MAGIC, push, text};

/// A module under way. Instructions of functions go to the end of its body; numbers are result ids.
#[derive(Default)]
pub(in super::super) struct Module {
    last: u32,
    decorations: Vec<u32>,
    types: Vec<u32>,
    body: Vec<u32>,
    known: FxHashMap<(u32, Vec<u32>), u32>,
}

/// What stands in front of a module, besides its entry point.
pub(in super::super) struct Head<'a> {
    pub(in super::super) capabilities: &'a [u32],
    pub(in super::super) extensions: &'a [&'a str],
    /// The addressing model; the memory model is Vulkan's.
    pub(in super::super) addressing: u32,
}

impl Module {
    /// A fresh id.
    pub(in super::super) fn id(&mut self) -> u32 {
        self.last += 1;
        self.last
    }

    /// A type; equal ones are shared.
    pub(in super::super) fn ty(&mut self, op: u32, args: &[u32]) -> u32 {
        let key = (op, args.to_vec());
        if let Some(&id) = self.known.get(&key) {
            return id;
        }
        let id = self.ty_new(op, args);
        self.known.insert(key, id);
        id
    }

    /// A type of its own, which may be decorated.
    pub(in super::super) fn ty_new(&mut self, op: u32, args: &[u32]) -> u32 {
        let id = self.id();
        push(&mut self.types, op, &[&[id], args].concat());
        id
    }

    /// A declaration among the types that has its id already.
    pub(in super::super) fn declare(&mut self, op: u32, args: &[u32]) {
        push(&mut self.types, op, args);
    }

    /// A constant; equal ones are shared.
    pub(in super::super) fn constant(&mut self, op: u32, ty: u32, args: &[u32]) -> u32 {
        let key = (op, [&[ty], args].concat());
        if let Some(&id) = self.known.get(&key) {
            return id;
        }
        let id = self.id();
        push(&mut self.types, op, &[&[ty, id], args].concat());
        self.known.insert(key, id);
        id
    }

    /// A constant u32.
    pub(in super::super) fn u32(&mut self, value: u32) -> u32 {
        let ty = self.ty(TYPE_INT, &[32, 0]);
        self.constant(CONSTANT, ty, &[value])
    }

    /// A variable outside of functions.
    pub(in super::super) fn global(&mut self, pointer: u32, class: u32) -> u32 {
        let id = self.id();
        push(&mut self.types, VARIABLE, &[pointer, id, class]);
        id
    }

    /// Decorates an id.
    pub(in super::super) fn decorate(&mut self, args: &[u32]) {
        push(&mut self.decorations, DECORATE, args);
    }

    /// Decorates a member of a struct.
    pub(in super::super) fn decorate_member(&mut self, args: &[u32]) {
        push(&mut self.decorations, MEMBER_DECORATE, args);
    }

    /// An instruction with a result.
    pub(in super::super) fn value(&mut self, op: u32, ty: u32, args: &[u32]) -> u32 {
        let id = self.id();
        push(&mut self.body, op, &[&[ty, id], args].concat());
        id
    }

    /// An instruction without one.
    pub(in super::super) fn effect(&mut self, op: u32, args: &[u32]) {
        push(&mut self.body, op, args);
    }

    /// A label nobody branches to by name: the first of a function.
    pub(in super::super) fn label(&mut self) {
        let id = self.id();
        self.effect(LABEL, &[id]);
    }

    /// The words, with one entry point of so many invocations, which uses the variables of `interface`.
    pub(in super::super) fn finish(
        &self,
        head: &Head<'_>,
        (main, invocations): (u32, u32),
        interface: &[u32],
    ) -> Vec<u32> {
        let mut words = vec![MAGIC, VERSION_1_6, 0, self.last + 1, 0];
        for &capability in head.capabilities {
            push(&mut words, CAPABILITY, &[capability]);
        }
        for extension in head.extensions {
            push(&mut words, EXTENSION, &text(extension));
        }
        push(&mut words, MEMORY_MODEL, &[head.addressing, MODEL_VULKAN]);
        let entry = [&[EXECUTION_GL_COMPUTE, main][..], &text("main"), interface].concat();
        push(&mut words, ENTRY_POINT, &entry);
        push(&mut words, EXECUTION_MODE, &[main, MODE_LOCAL_SIZE, invocations, 1, 1]);
        words.extend(&self.decorations);
        words.extend(&self.types);
        words.extend(&self.body);
        words
    }
}

const VERSION_1_6: u32 = 0x0001_0600;

macro_rules! numbers {
    ($($name:ident $number:literal)*) => {
        $(pub(in super::super) const $name: u32 = $number;)*
    };
}

// Instructions.
numbers! {
    EXTENSION 10 MEMORY_MODEL 14 ENTRY_POINT 15 EXECUTION_MODE 16 CAPABILITY 17
    TYPE_VOID 19 TYPE_BOOL 20 TYPE_INT 21 TYPE_FLOAT 22 TYPE_VECTOR 23 TYPE_ARRAY 28 TYPE_RUNTIME_ARRAY 29
    TYPE_STRUCT 30 TYPE_POINTER 32 TYPE_FUNCTION 33 TYPE_FORWARD_POINTER 39
    CONSTANT_FALSE 42 CONSTANT 43 CONSTANT_COMPOSITE 44
    FUNCTION 54 FUNCTION_PARAMETER 55 FUNCTION_END 56
    VARIABLE 59 LOAD 61 STORE 62 ACCESS_CHAIN 65 DECORATE 71 MEMBER_DECORATE 72 COMPOSITE_EXTRACT 81
    F_CONVERT 115 BITCAST 124
    I_ADD 128 F_ADD 129 F_SUB 131 I_MUL 132 F_MUL 133 U_LESS_THAN 176
    SHIFT_RIGHT_LOGICAL 194 SHIFT_LEFT_LOGICAL 196 BITWISE_OR 197 BITWISE_XOR 198 BITWISE_AND 199
    LOOP_MERGE 246 LABEL 248 BRANCH 249 BRANCH_CONDITIONAL 250 RETURN 253 RETURN_VALUE 254
}

// SPV_KHR_cooperative_matrix, SPV_NV_cooperative_matrix2 and SPV_NV_tensor_addressing.
numbers! {
    TYPE_COOPERATIVE_MATRIX 4456 COOPERATIVE_MATRIX_MUL_ADD 4459
    COOPERATIVE_MATRIX_LOAD_TENSOR 5367 COOPERATIVE_MATRIX_STORE_TENSOR 5368
    TYPE_TENSOR_LAYOUT 5370 TYPE_TENSOR_VIEW 5371 CREATE_TENSOR_LAYOUT 5372 TENSOR_LAYOUT_SET_DIMENSION 5373
    TENSOR_LAYOUT_SET_STRIDE 5374 TENSOR_LAYOUT_SLICE 5375 CREATE_TENSOR_VIEW 5377
    TENSOR_LAYOUT_SET_BLOCK_SIZE 5384
}

// Operands.
numbers! {
    EXECUTION_GL_COMPUTE 5 MODE_LOCAL_SIZE 17 MODEL_VULKAN 3
    ADDRESSING_LOGICAL 0 ADDRESSING_PHYSICAL 5348
    CLASS_INPUT 1 CLASS_FUNCTION 7 CLASS_STORAGE_BUFFER 12 CLASS_PHYSICAL 5349
    CAPABILITY_SHADER 1 CAPABILITY_FLOAT16 9 CAPABILITY_STORAGE_16 4433 CAPABILITY_VULKAN_MODEL 5345
    CAPABILITY_PHYSICAL 5347 CAPABILITY_MATRIX 6022 CAPABILITY_MATRIX_TENSORS 5433
    CAPABILITY_MATRIX_BLOCKS 5434 CAPABILITY_TENSORS 5439
    DECORATION_BLOCK 2 DECORATION_ARRAY_STRIDE 6 DECORATION_BUILT_IN 11 DECORATION_ALIASED 20
    DECORATION_NON_WRITABLE 24 DECORATION_BINDING 33 DECORATION_SET 34 DECORATION_OFFSET 35
    BUILT_IN_NUM_WORKGROUPS 24 BUILT_IN_WORKGROUP_ID 26
    SCOPE_WORKGROUP 2 USE_LEFT 0 USE_RIGHT 1 USE_SUMS 2
    MEMORY_ALIGNED 2 TENSOR_VIEW 1 TENSOR_DECODE 2
}
