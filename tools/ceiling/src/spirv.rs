//! A writer of SPIR-V modules: words in the order of the specification, equal types and constants only once.

use std::collections::HashMap;

/// A module under way. Instructions of functions go to the end of its body; names are result ids.
#[derive(Default)]
pub struct Module {
    last: u32,
    decorations: Vec<u32>,
    types: Vec<u32>,
    body: Vec<u32>,
    known: HashMap<(u32, Vec<u32>), u32>,
}

impl Module {
    /// A fresh result id.
    pub fn id(&mut self) -> u32 {
        self.last += 1;
        self.last
    }

    /// A type; equal ones are shared.
    pub fn ty(&mut self, op: u32, args: &[u32]) -> u32 {
        let key = (op, args.to_vec());
        if let Some(&id) = self.known.get(&key) {
            return id;
        }
        let id = self.ty_new(op, args);
        self.known.insert(key, id);
        id
    }

    /// A type of its own, which may be decorated.
    pub fn ty_new(&mut self, op: u32, args: &[u32]) -> u32 {
        let id = self.id();
        put(&mut self.types, op, &[&[id], args]);
        id
    }

    /// A declaration among the types that has its result id already.
    pub fn declare(&mut self, op: u32, args: &[u32]) {
        put(&mut self.types, op, &[args]);
    }

    /// A constant; equal ones are shared.
    pub fn constant(&mut self, op: u32, ty: u32, args: &[u32]) -> u32 {
        let key = (op, [&[ty], args].concat());
        if let Some(&id) = self.known.get(&key) {
            return id;
        }
        let id = self.id();
        put(&mut self.types, op, &[&[ty, id], args]);
        self.known.insert(key, id);
        id
    }

    /// A constant u32.
    pub fn u32(&mut self, value: u32) -> u32 {
        let ty = self.ty(TYPE_INT, &[32, 0]);
        self.constant(CONSTANT, ty, &[value])
    }

    /// A variable outside of functions.
    pub fn global(&mut self, pointer: u32, class: u32) -> u32 {
        let id = self.id();
        put(&mut self.types, VARIABLE, &[&[pointer, id, class]]);
        id
    }

    /// Decorates an id.
    pub fn decorate(&mut self, args: &[u32]) {
        put(&mut self.decorations, 71, &[args]);
    }

    /// Decorates a member of a struct.
    pub fn decorate_member(&mut self, args: &[u32]) {
        put(&mut self.decorations, 72, &[args]);
    }

    /// An instruction with a result.
    pub fn value(&mut self, op: u32, ty: u32, args: &[u32]) -> u32 {
        let id = self.id();
        put(&mut self.body, op, &[&[ty, id], args]);
        id
    }

    /// An instruction without one.
    pub fn effect(&mut self, op: u32, args: &[u32]) {
        put(&mut self.body, op, &[args]);
    }

    /// The words of the module with one entry point: `main`, of `threads` invocations, which uses `interface`.
    pub fn finish(
        &self,
        capabilities: &[u32],
        extensions: &[&str],
        addressing: u32,
        (main, threads): (u32, u32),
        interface: &[u32],
    ) -> Vec<u32> {
        // SPIR-V 1.6.
        let mut words = vec![0x0723_0203, 0x0001_0600, 0, self.last + 1, 0];
        for &capability in capabilities {
            put(&mut words, 17, &[&[capability]]);
        }
        for extension in extensions {
            put(&mut words, 10, &[&text(extension)]);
        }
        // The memory model is Vulkan's (3).
        put(&mut words, 14, &[&[addressing, 3]]);
        // GLCompute (5), and its LocalSize (17).
        put(&mut words, 15, &[&[5, main], &text("main"), interface]);
        put(&mut words, 16, &[&[main, 17, threads, 1, 1]]);
        words.extend(&self.decorations);
        words.extend(&self.types);
        words.extend(&self.body);
        words
    }
}

fn put(words: &mut Vec<u32>, op: u32, args: &[&[u32]]) {
    let length = args.iter().map(|part| part.len() as u32).sum::<u32>() + 1;
    words.push(length << 16 | op);
    args.iter().for_each(|part| words.extend_from_slice(part));
}

/// A literal string: bytes, a zero, zeros up to a whole word.
fn text(string: &str) -> Vec<u32> {
    let mut bytes = string.as_bytes().to_vec();
    bytes.resize(bytes.len() / 4 * 4 + 4, 0);
    bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

macro_rules! opcodes {
    ($($name:ident $code:literal)*) => { $(pub const $name: u32 = $code;)* };
}

opcodes! {
    TYPE_VOID 19 TYPE_BOOL 20 TYPE_INT 21 TYPE_FLOAT 22 TYPE_VECTOR 23 TYPE_ARRAY 28 TYPE_RUNTIME_ARRAY 29
    TYPE_STRUCT 30 TYPE_POINTER 32 TYPE_FUNCTION 33 TYPE_FORWARD_POINTER 39
    CONSTANT_FALSE 42 CONSTANT 43 CONSTANT_COMPOSITE 44
    FUNCTION 54 FUNCTION_PARAMETER 55 FUNCTION_END 56
    VARIABLE 59 LOAD 61 STORE 62 ACCESS_CHAIN 65 COMPOSITE_EXTRACT 81
    CONVERT_U_TO_F 112 U_CONVERT 113 F_CONVERT 115 BITCAST 124
    I_ADD 128 F_SUB 131 I_MUL 132 F_MUL 133 U_LESS_THAN 176
    SHIFT_RIGHT_LOGICAL 194 BITWISE_OR 197 BITWISE_AND 199
    LOOP_MERGE 246 LABEL 248 BRANCH 249 BRANCH_CONDITIONAL 250 RETURN 253 RETURN_VALUE 254
}

// SPV_KHR_cooperative_matrix, SPV_NV_cooperative_matrix2 and SPV_NV_tensor_addressing.
opcodes! {
    TYPE_COOPERATIVE_MATRIX 4456 COOPERATIVE_MATRIX_MUL_ADD 4459
    COOPERATIVE_MATRIX_LOAD_TENSOR 5367 COOPERATIVE_MATRIX_STORE_TENSOR 5368
    TYPE_TENSOR_LAYOUT 5370 TYPE_TENSOR_VIEW 5371 CREATE_TENSOR_LAYOUT 5372 TENSOR_LAYOUT_SET_DIMENSION 5373
    TENSOR_LAYOUT_SLICE 5375 CREATE_TENSOR_VIEW 5377 TENSOR_LAYOUT_SET_BLOCK_SIZE 5384
}

// Storage classes.
opcodes! { INPUT 1 FUNCTION_CLASS 7 PUSH_CONSTANT 9 STORAGE_BUFFER 12 PHYSICAL_STORAGE_BUFFER 5349 }
