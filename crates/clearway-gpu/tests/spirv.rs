//! The pass that makes SPIR-V fit the Vulkan memory model, over words that were put together by hand and
//! over what naga writes. Numbers are those of the SPIR-V specification, written down once more.
#![allow(clippy::unwrap_used)] // a test stops at the first surprise

use std::collections::BTreeMap;

use clearway_gpu::vulkan::shaders::{COMPILER, compile, repair};

const MAGIC: u32 = 0x0723_0203;
const HEADER: usize = 5;
const BOUND: usize = 3;
const VERSION_1_3: u32 = 0x0001_0300;
const EXTENSION: &str = "SPV_KHR_vulkan_memory_model";

const OP_EXTENSION: u32 = 10;
const OP_MEMORY_MODEL: u32 = 14;
const OP_CAPABILITY: u32 = 17;
const OP_TYPE_INT: u32 = 21;
const OP_TYPE_FLOAT: u32 = 22;
const OP_TYPE_POINTER: u32 = 32;
const OP_CONSTANT: u32 = 43;
const OP_FUNCTION: u32 = 54;
const OP_FUNCTION_PARAMETER: u32 = 55;
const OP_FUNCTION_END: u32 = 56;
const OP_VARIABLE: u32 = 59;
const OP_LOAD: u32 = 61;
const OP_STORE: u32 = 62;
const OP_COPY_MEMORY: u32 = 63;
const OP_ACCESS_CHAIN: u32 = 65;
const OP_IN_BOUNDS_ACCESS_CHAIN: u32 = 66;
const OP_DECORATE: u32 = 71;
const OP_MEMBER_DECORATE: u32 = 72;
const OP_IMAGE_SAMPLE: u32 = 87;
const OP_IMAGE_READ: u32 = 98;
const OP_CONTROL_BARRIER: u32 = 224;
const OP_MEMORY_BARRIER: u32 = 225;
const OP_ATOMIC_LOAD: u32 = 227;
const OP_ATOMIC_STORE: u32 = 228;
const OP_ATOMIC_COMPARE_EXCHANGE: u32 = 230;
const OP_ATOMIC_ADD: u32 = 234;
const OP_TYPE_COOPERATIVE_MATRIX: u32 = 4456;
const OP_COOPERATIVE_LOAD: u32 = 4457;
const OP_COOPERATIVE_STORE: u32 = 4458;

const GLSL450: u32 = 1;
const MODEL_VULKAN: u32 = 3;
const SHADER: u32 = 1;
const CAPABILITY_MODEL: u32 = 5345;
const CAPABILITY_DEVICE_SCOPE: u32 = 5346;
const DECORATION_VOLATILE: u32 = 21;
const DECORATION_COHERENT: u32 = 23;
const CLASS_WORKGROUP: u32 = 4;
const CLASS_FUNCTION: u32 = 7;
const CLASS_STORAGE_BUFFER: u32 = 12;
const SCOPE_DEVICE: u32 = 1;

/// Ids of [`module`].
const UINT: u32 = 1;
const TO_SHARED: u32 = 2;
const TO_BUFFER: u32 = 3;
const TO_LOCAL: u32 = 4;
const DEVICE: u32 = 5;
const WORKGROUP: u32 = 6;
const BARRIER: u32 = 7;
const RELAXED: u32 = 8;
const SHARED: u32 = 9;
const BUFFER: u32 = 10;
const LOCAL: u32 = 11;
const FIRST_FREE: u32 = 50;

type Code<'a> = (u32, &'a [u32]);

/// A module with a variable of each kind in front of `body`.
fn module(model: u32, decorations: &[Code<'_>], body: &[Code<'_>]) -> Vec<u32> {
    let mut words = vec![MAGIC, VERSION_1_3, 0, FIRST_FREE, 0];
    let mut add = |codes: &[Code<'_>]| {
        codes.iter().for_each(|(opcode, operands)| push(&mut words, *opcode, operands));
    };
    add(&[(OP_CAPABILITY, &[SHADER]), (OP_CAPABILITY, &[CAPABILITY_MODEL])]);
    add(&[(OP_EXTENSION, &text(EXTENSION)), (OP_MEMORY_MODEL, &[0, model])]);
    add(decorations);
    add(&[
        (OP_TYPE_INT, &[UINT, 32, 0]),
        (OP_TYPE_POINTER, &[TO_SHARED, CLASS_WORKGROUP, UINT]),
        (OP_TYPE_POINTER, &[TO_BUFFER, CLASS_STORAGE_BUFFER, UINT]),
        (OP_TYPE_POINTER, &[TO_LOCAL, CLASS_FUNCTION, UINT]),
        (OP_CONSTANT, &[UINT, DEVICE, SCOPE_DEVICE]),
        (OP_CONSTANT, &[UINT, WORKGROUP, 2]),
        (OP_CONSTANT, &[UINT, BARRIER, 0x108]),
        (OP_CONSTANT, &[UINT, RELAXED, 0]),
        (OP_VARIABLE, &[TO_SHARED, SHARED, CLASS_WORKGROUP]),
        (OP_VARIABLE, &[TO_BUFFER, BUFFER, CLASS_STORAGE_BUFFER]),
        (OP_FUNCTION, &[12, 13, 0, 14]),
        (OP_VARIABLE, &[TO_LOCAL, LOCAL, CLASS_FUNCTION]),
    ]);
    add(body);
    add(&[(OP_FUNCTION_END, &[])]);
    words
}

fn vulkan(body: &[Code<'_>]) -> Vec<u32> {
    module(MODEL_VULKAN, &[], body)
}

fn codes(words: &[u32]) -> Vec<(u32, Vec<u32>)> {
    let mut all = Vec::new();
    let mut at = HEADER;
    while at < words.len() {
        let len = (words[at] >> 16) as usize;
        all.push((words[at] & 0xffff, words[at + 1..at + len].to_vec()));
        at += len;
    }
    all
}

/// Adds an instruction.
fn push(out: &mut Vec<u32>, opcode: u32, operands: &[u32]) {
    out.push(((operands.len() as u32 + 1) << 16) | opcode);
    out.extend(operands);
}

/// A string as operands.
fn text(text: &str) -> Vec<u32> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize((bytes.len() + 1).next_multiple_of(4), 0);
    bytes.chunks(4).map(|quad| u32::from_le_bytes(quad.try_into().unwrap())).collect()
}

/// The repaired body of a function, behind its variable.
fn repaired_body(words: Vec<u32>) -> Vec<(u32, Vec<u32>)> {
    let all = codes(&repair(words).unwrap());
    let start = all.iter().position(|(opcode, _)| *opcode == OP_FUNCTION).unwrap();
    all[start + 2..all.len() - 1].to_vec()
}

fn capabilities(words: &[u32]) -> Vec<u32> {
    let all = codes(words).into_iter().filter(|(opcode, _)| *opcode == OP_CAPABILITY);
    all.map(|(_, operands)| operands[0]).collect()
}

const ACCESSES: [Code<'static>; 5] = [
    (OP_LOAD, &[UINT, 20, SHARED]),
    (OP_STORE, &[BUFFER, 20]),
    (OP_LOAD, &[UINT, 21, LOCAL]),
    (OP_COOPERATIVE_LOAD, &[30, 22, SHARED, 31, 32]),
    (OP_COOPERATIVE_STORE, &[BUFFER, 22, 31, 32]),
];

#[test]
fn other_memory_models_come_back_bit_for_bit() {
    let words = module(GLSL450, &[(OP_DECORATE, &[BUFFER, DECORATION_COHERENT])], &ACCESSES);
    assert_eq!(repair(words.clone()).unwrap(), words);
}

#[test]
fn accesses_to_shared_memory_are_not_private() {
    let expected = [
        (OP_LOAD, vec![UINT, 20, SHARED, 0x20]),
        (OP_STORE, vec![BUFFER, 20, 0x20]),
        (OP_LOAD, vec![UINT, 21, LOCAL]),
        (OP_COOPERATIVE_LOAD, vec![30, 22, SHARED, 31, 32, 0x20]),
        (OP_COOPERATIVE_STORE, vec![BUFFER, 22, 31, 32, 0x20]),
    ];
    assert_eq!(repaired_body(vulkan(&ACCESSES)), expected);
}

#[test]
fn pointers_into_variables_are_followed() {
    let body = repaired_body(vulkan(&[
        (OP_ACCESS_CHAIN, &[TO_SHARED, 20, SHARED, RELAXED]),
        (OP_IN_BOUNDS_ACCESS_CHAIN, &[TO_LOCAL, 21, LOCAL, RELAXED]),
        (OP_FUNCTION_PARAMETER, &[TO_BUFFER, 22]),
        (OP_STORE, &[20, DEVICE]),
        (OP_STORE, &[21, DEVICE]),
        (OP_STORE, &[22, DEVICE]),
    ]));
    let stores: Vec<_> = body[3..].iter().map(|(_, operands)| operands[2..].to_vec()).collect();
    assert_eq!(stores, [vec![0x20], vec![], vec![0x20]]);
}

#[test]
fn operands_that_are_there_stay_in_the_order_of_their_bits() {
    let body = [
        (OP_LOAD, &[UINT, 20, SHARED, 0x6, 4][..]),
        (OP_STORE, &[BUFFER, 20, 0xa, 16, WORKGROUP]),
        (OP_LOAD, &[UINT, 21, LOCAL, 0x2, 4]),
        (OP_COOPERATIVE_LOAD, &[30, 22, BUFFER, 31, 32, 0x10022, 8, 40]),
    ];
    let coherent = module(MODEL_VULKAN, &[(OP_DECORATE, &[BUFFER, DECORATION_COHERENT])], &body);
    let expected = [
        (OP_LOAD, vec![UINT, 20, SHARED, 0x26, 4]),
        // A scope that is there already stays.
        (OP_STORE, vec![BUFFER, 20, 0x2a, 16, WORKGROUP]),
        (OP_LOAD, vec![UINT, 21, LOCAL, 0x2, 4]),
        (OP_COOPERATIVE_LOAD, vec![30, 22, BUFFER, 31, 32, 0x10032, 8, DEVICE, 40]),
    ];
    assert_eq!(repaired_body(coherent), expected);
}

#[test]
fn coherent_variables_become_coherent_accesses() {
    let decorations: [Code<'_>; 2] =
        [(OP_DECORATE, &[BUFFER, DECORATION_COHERENT]), (OP_DECORATE, &[SHARED, 33, 7])];
    let chain: Code<'_> = (OP_ACCESS_CHAIN, &[TO_BUFFER, 23, BUFFER, RELAXED]);
    let body = [&[chain, (OP_LOAD, &[UINT, 24, 23])][..], &ACCESSES].concat();
    let words = repair(module(MODEL_VULKAN, &decorations, &body)).unwrap();
    let left = codes(&words);
    let left: Vec<_> = left.iter().filter(|(opcode, _)| *opcode == OP_DECORATE).collect();
    assert_eq!(left, [&(OP_DECORATE, vec![SHARED, 33, 7])], "other decorations stay");
    assert_eq!(capabilities(&words), [SHADER, CAPABILITY_MODEL, CAPABILITY_DEVICE_SCOPE]);
    let body = repaired_body(module(MODEL_VULKAN, &decorations, &body));
    assert_eq!(body[1], (OP_LOAD, vec![UINT, 24, 23, 0x30, DEVICE]), "a load makes visible");
    assert_eq!(body[2], (OP_LOAD, vec![UINT, 20, SHARED, 0x20]), "not decorated");
    assert_eq!(body[3], (OP_STORE, vec![BUFFER, 20, 0x28, DEVICE]), "a store makes available");
    assert_eq!(body[6], (OP_COOPERATIVE_STORE, vec![BUFFER, 22, 31, 32, 0x28, DEVICE]));
    // A member may belong to any variable.
    let member: [Code<'_>; 1] = [(OP_MEMBER_DECORATE, &[40, 0, DECORATION_COHERENT])];
    let body = repaired_body(module(MODEL_VULKAN, &member, &ACCESSES));
    assert_eq!(body[0], (OP_LOAD, vec![UINT, 20, SHARED, 0x30, DEVICE]));
    let volatile: [Code<'_>; 1] = [(OP_DECORATE, &[SHARED, DECORATION_VOLATILE])];
    let body = repaired_body(module(MODEL_VULKAN, &volatile, &ACCESSES));
    assert_eq!(body[0], (OP_LOAD, vec![UINT, 20, SHARED, 0x21]));
}

#[test]
fn barriers_hand_over_and_what_shares_their_constants_stays() {
    let words = vulkan(&[
        (OP_CONTROL_BARRIER, &[WORKGROUP, WORKGROUP, BARRIER]),
        (OP_MEMORY_BARRIER, &[WORKGROUP, BARRIER]),
        // The same constant as a number.
        (OP_STORE, &[LOCAL, BARRIER]),
        // Orders no kind of memory.
        (OP_CONTROL_BARRIER, &[WORKGROUP, WORKGROUP, RELAXED]),
    ]);
    let expected = [
        (OP_CONTROL_BARRIER, vec![WORKGROUP, WORKGROUP, FIRST_FREE]),
        (OP_MEMORY_BARRIER, vec![WORKGROUP, FIRST_FREE]),
        (OP_STORE, vec![LOCAL, BARRIER]),
        (OP_CONTROL_BARRIER, vec![WORKGROUP, WORKGROUP, RELAXED]),
    ];
    assert_eq!(repaired_body(words.clone()), expected);
    let words = repair(words).unwrap();
    assert_eq!(words[BOUND], FIRST_FREE + 1);
    assert_eq!(capabilities(&words), [SHADER, CAPABILITY_MODEL]);
    let all = codes(&words);
    let new = (OP_CONSTANT, vec![UINT, FIRST_FREE, 0x6108]);
    let function = all.iter().position(|(opcode, _)| *opcode == OP_FUNCTION).unwrap();
    assert_eq!(all[function - 1], new, "declared once, in front of the functions");
    assert!(all.contains(&(OP_CONSTANT, vec![UINT, BARRIER, 0x108])));
}

#[test]
fn a_module_with_scope_device_declares_that_it_uses_it() {
    let words = repair(vulkan(&[(OP_CONTROL_BARRIER, &[WORKGROUP, DEVICE, BARRIER])])).unwrap();
    assert_eq!(capabilities(&words), [SHADER, CAPABILITY_MODEL, CAPABILITY_DEVICE_SCOPE]);
    let words = repair(words).unwrap();
    assert_eq!(capabilities(&words).len(), 3, "declared once");
}

#[test]
fn a_second_repair_changes_nothing() {
    let coherent: [Code<'_>; 1] = [(OP_DECORATE, &[BUFFER, DECORATION_COHERENT])];
    let barrier: Code<'_> = (OP_CONTROL_BARRIER, &[WORKGROUP, DEVICE, BARRIER]);
    let words = module(MODEL_VULKAN, &coherent, &[&ACCESSES[..], &[barrier]].concat());
    let once = repair(words).unwrap();
    assert_eq!(repair(once.clone()).unwrap(), once);
}

#[test]
fn atomics_that_order_hand_over_and_relaxed_ones_stay() {
    // Acquire, release and both, of buffers.
    let constants: [Code<'_>; 3] = [
        (OP_CONSTANT, &[UINT, 40, 0x42]),
        (OP_CONSTANT, &[UINT, 41, 0x44]),
        (OP_CONSTANT, &[UINT, 42, 0x48]),
    ];
    let mut words = module(MODEL_VULKAN, &[], &[]);
    let all = codes(&words);
    let function = all.iter().position(|(opcode, _)| *opcode == OP_FUNCTION).unwrap();
    words.truncate(HEADER);
    let body: [Code<'_>; 4] = [
        (OP_ATOMIC_ADD, &[UINT, 20, BUFFER, DEVICE, RELAXED, DEVICE]),
        (OP_ATOMIC_LOAD, &[UINT, 21, BUFFER, WORKGROUP, 40]),
        (OP_ATOMIC_STORE, &[BUFFER, WORKGROUP, 41, DEVICE]),
        (OP_ATOMIC_COMPARE_EXCHANGE, &[UINT, 22, BUFFER, WORKGROUP, 42, 40, DEVICE, DEVICE]),
    ];
    let (head, tail) = all.split_at(function);
    let (start, end) = tail.split_at(2);
    let mut add = |list: &[(u32, Vec<u32>)]| {
        list.iter().for_each(|(opcode, operands)| push(&mut words, *opcode, operands));
    };
    let owned =
        |list: &[Code<'_>]| -> Vec<_> { list.iter().map(|c| (c.0, c.1.to_vec())).collect() };
    [head, &owned(&constants), start, &owned(&body), end].into_iter().for_each(&mut add);
    let out = codes(&repair(words.clone()).unwrap());
    let value = |id: u32| {
        let constant = |(opcode, w): &&(u32, Vec<u32>)| *opcode == OP_CONSTANT && w[1] == id;
        out.iter().find(constant).unwrap().1[2]
    };
    let body = repaired_body(words);
    assert_eq!(body[0].1, [UINT, 20, BUFFER, DEVICE, RELAXED, DEVICE]);
    assert_eq!(value(body[1].1[4]), 0x4042, "acquire makes visible");
    assert_eq!(value(body[2].1[2]), 0x2044, "release makes available");
    assert_eq!([value(body[3].1[4]), value(body[3].1[5])], [0x6048, 0x4042]);
    assert_eq!(value(40), 0x42, "the constant itself stays");
}

#[test]
fn copies_between_shared_and_own_memory_are_split() {
    let words = vulkan(&[(OP_COPY_MEMORY, &[LOCAL, BUFFER, 0x2, 4])]);
    let expected = [
        (OP_LOAD, vec![UINT, FIRST_FREE, BUFFER, 0x22, 4]),
        (OP_STORE, vec![LOCAL, FIRST_FREE, 0x2, 4]),
    ];
    assert_eq!(repaired_body(words), expected);
    let two = vulkan(&[(OP_COPY_MEMORY, &[SHARED, LOCAL, 0x0, 0x2, 8])]);
    let expected = [
        (OP_LOAD, vec![UINT, FIRST_FREE, LOCAL, 0x2, 8]),
        (OP_STORE, vec![SHARED, FIRST_FREE, 0x20]),
    ];
    assert_eq!(repaired_body(two), expected);
}

#[test]
fn what_is_missing_in_the_module_is_declared() {
    let mut words = vec![MAGIC, VERSION_1_3, 0, 9, 0];
    push(&mut words, OP_CAPABILITY, &[SHADER]);
    push(&mut words, OP_MEMORY_MODEL, &[0, MODEL_VULKAN]);
    let all = codes(&repair(words).unwrap());
    let expected = [
        (OP_CAPABILITY, vec![SHADER]),
        (OP_CAPABILITY, vec![CAPABILITY_MODEL]),
        (OP_EXTENSION, text(EXTENSION)),
        (OP_MEMORY_MODEL, vec![0, MODEL_VULKAN]),
    ];
    assert_eq!(all, expected);
}

#[test]
fn malformed_words_are_errors() {
    let start = |more: &[u32]| [&[MAGIC, VERSION_1_3, 0, 1, 0], more].concat();
    for (words, why) in [
        (Vec::new(), "do not begin like"),
        (vec![0; 9], "do not begin like"),
        (start(&[]), "no memory model"),
        (start(&[0]), "at word 5"),
        (start(&[9 << 16]), "at word 5"),
        (vulkan(&[(OP_LOAD, &[UINT, 20, DEVICE])]), "%5 is used as a pointer"),
        (vulkan(&[(OP_COOPERATIVE_LOAD, &[30, 22, SHARED, 31])]), "opcode 4457 has too few"),
        (vulkan(&[(OP_LOAD, &[UINT, 20, SHARED, 0x2])]), "opcode 61 has too few"),
        (vulkan(&[(OP_LOAD, &[UINT, 20, SHARED, 0, 9])]), "opcode 61 has too few or too many"),
        (vulkan(&[(OP_LOAD, &[UINT, 20, SHARED, 0x40])]), "opcode 61 has too few or too many"),
        (vulkan(&[(OP_MEMORY_BARRIER, &[WORKGROUP, SHARED])]), "%9 is used as a memory scope"),
        (
            vulkan(&[(OP_CONTROL_BARRIER, &[WORKGROUP, 49, BARRIER])]),
            "%49 is used as a memory scope",
        ),
        (vulkan(&[(OP_IMAGE_READ, &[UINT, 20, 21, 22])]), "opcode 98 is not supported"),
    ] {
        let error = repair(words).unwrap_err();
        assert!(error.contains(why), "{error}: expected {why}");
    }
    // What neither accesses nor orders memory passes.
    assert!(repair(vulkan(&[(OP_IMAGE_SAMPLE, &[UINT, 20, 21, 22])])).is_ok());
}

/// A product of two matrices over workgroup memory, with a barrier.
const KERNEL: &str = "enable f16; enable wgpu_cooperative_matrix;
@group(0) @binding(0) var<storage, read> x: array<f16>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
var<workgroup> staged: array<f16, 512>;
@compute @workgroup_size(32)
fn main(@builtin(local_invocation_index) lid: u32) {
    for (var i = lid; i < 512u; i += 32u) { staged[i] = x[i]; }
    workgroupBarrier();
    let a = coopLoadT<coop_mat16x16<f16, A>>(&staged[0], 16u);
    let b = coopLoad<coop_mat16x16<f16, B>>(&staged[256], 16u);
    let c = coopMultiplyAdd(a, b, coop_mat16x16<f32, C>());
    coopStoreT(c, &y[0], 16u);
}
";

#[test]
fn words_of_naga_are_repaired_on_their_way_to_the_driver() {
    let words = compile(KERNEL, false).unwrap();
    let all = codes(&words);
    let operands = |wanted: u32, at: usize| {
        let found = all.iter().filter(|(opcode, _)| *opcode == wanted);
        found.map(|(_, words)| words.get(at).copied()).collect::<Vec<_>>()
    };
    assert_eq!(operands(OP_COOPERATIVE_LOAD, 5), [Some(0x20); 2]);
    assert_eq!(operands(OP_COOPERATIVE_STORE, 4), [Some(0x20)]);
    let loads = operands(OP_LOAD, 3);
    let stores = operands(OP_STORE, 2);
    assert_eq!(loads.iter().filter(|mask| **mask == Some(0x20)).count(), 1, "{loads:?}");
    assert_eq!(stores.iter().filter(|mask| **mask == Some(0x20)).count(), 1, "{stores:?}");
    let barrier = operands(OP_CONTROL_BARRIER, 2);
    let semantics =
        all.iter().find(|(opcode, words)| *opcode == OP_CONSTANT && Some(words[1]) == barrier[0]);
    assert_eq!(semantics.unwrap().1[2], 0x6108);
}

/// No input makes the pass panic: every start of a module, and modules with words exchanged.
#[test]
fn damaged_words_never_panic() {
    let words = compile(KERNEL, true).unwrap();
    for len in 0..words.len() {
        let _ = repair(words[..len].to_vec());
    }
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    };
    for _ in 0..20_000 {
        let mut damaged = words.clone();
        for _ in 0..=next() % 4 {
            let at = next() as usize % damaged.len();
            damaged[at] = match next() % 4 {
                0 => next(),
                1 => u32::MAX,
                2 => words[next() as usize % words.len()],
                _ => damaged[at] ^ (1 << (next() % 32)),
            };
        }
        let _ = repair(damaged);
    }
}

/// A kernel that waits for a counter.
const COUNTED: &str =
    "@group(0) @binding(0) var<storage, read_write> b_counters: array<atomic<u32>>;
@group(0) @binding(1) @coherent var<storage, read_write> y: array<f32>;
@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) lid: u32) {
    y[lid] *= 2.0;
    workgroupBarrier();
    if (lid == 0u) {
        subgroupBarrier();
        atomicAdd(&b_counters[0], 1u);
    }
}";

#[test]
fn a_subgroup_barrier_beside_counters_is_a_fence_and_other_barriers_order_storage() {
    let words = compile(COUNTED, false).unwrap();
    let (mut at, mut constants, mut barriers) = (5, BTreeMap::new(), Vec::new());
    while at < words.len() {
        match words[at] & 0xffff {
            OP_CONSTANT => {
                constants.insert(words[at + 2], words[at + 3]);
            }
            // Scope of memory and semantics.
            OP_CONTROL_BARRIER => {
                barriers.push((false, constants[&words[at + 2]], constants[&words[at + 3]]));
            }
            OP_MEMORY_BARRIER => {
                barriers.push((true, constants[&words[at + 1]], constants[&words[at + 2]]));
            }
            _ => {}
        }
        at += (words[at] >> 16) as usize;
    }
    // Workgroup memory and storage, acquired and released by the workgroup; then storage by the device.
    assert_eq!(barriers, [(false, 2, 0x148), (true, 1, 0x48)]);
    // The same text without counters keeps its barriers.
    let plain = compile(&COUNTED.replace("b_counters", "numbers"), false).unwrap();
    assert_ne!(plain, words);
}

/// Words on disk are found by text and number of the compiler. Where this fails, other words are made from
/// the same text than before: raise `COMPILER`, so that nobody is served the old ones.
#[test]
fn other_words_have_another_number() {
    let hash = |hash: u64, word: u32| (hash ^ u64::from(word)).wrapping_mul(0x0100_0000_01b3);
    let plain = "@group(0) @binding(0) var<storage, read_write> y: array<f32>;
var<workgroup> sums: array<f32, 64>;
@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) lid: u32) {
    sums[lid] = y[lid];
    workgroupBarrier();
    y[lid] = sums[63u - lid];
}";
    let words = [KERNEL, plain, COUNTED].map(|text| compile(text, false).unwrap());
    let found = words.concat().into_iter().fold(0xcbf2_9ce4_8422_2325, hash);
    assert_eq!((COMPILER, found), (5, 0x4e7a_e35a_72d0_0fb7));
}

/// Sides that lie in memory as bits of another type.
const BITS: &str = "enable f16;
enable wgpu_cooperative_matrix;
@group(0) @binding(0) var<storage, read_write> y: array<f32>;
var<workgroup> words: array<vec4<u32>, 64>;
var<workgroup> floats: array<vec4<f32>, 64>;
@compute @workgroup_size(32)
fn main(@builtin(local_invocation_index) lid: u32) {
    words[lid] = vec4<u32>(lid);
    floats[lid] = vec4<f32>(f32(lid));
    subgroupBarrier();
    var c = coop_mat16x16<f32, C>();
    let a = coopLoadT<coop_mat16x16<f16, A>>(&words[0], 2u);
    let b = coopLoad<coop_mat16x16<f16, B>>(&floats[0], 2u);
    c = coopMultiplyAdd(a, b, c);
    coopStoreT(c, &y[0], 16u);
}";

#[test]
fn sides_are_halves_whatever_their_memory_holds() {
    let list = codes(&compile(BITS, false).unwrap());
    let of = |opcode: u32| list.iter().filter(move |i| i.0 == opcode).map(|i| i.1.as_slice());
    let half = of(OP_TYPE_FLOAT).find(|i| i[1] == 16).unwrap()[0];
    let value = |id: u32| of(OP_CONSTANT).find(|i| i[1] == id).unwrap()[2];
    let mut matrices: Vec<_> =
        of(OP_TYPE_COOPERATIVE_MATRIX).map(|i| (value(i[5]), i[1] == half)).collect();
    matrices.sort_unstable();
    // One type for each use, and only the sum is of another component.
    assert_eq!(matrices, [(0, true), (1, true), (2, false)]);
}

#[test]
fn a_subgroup_barrier_orders_workgroup_memory() {
    let list = codes(&compile(BITS, false).unwrap());
    let of = |opcode: u32| list.iter().filter(move |i| i.0 == opcode).map(|i| i.1.as_slice());
    let value = |id: u32| of(OP_CONSTANT).find(|i| i[1] == id).unwrap()[2];
    let barriers: Vec<_> = of(OP_CONTROL_BARRIER).map(|i| (value(i[0]), value(i[2]))).collect();
    // Scope subgroup; acquire and release, workgroup memory, made available and visible.
    assert_eq!(barriers, [(3, 0x8 | 0x100 | 0x2000 | 0x4000)]);
}
