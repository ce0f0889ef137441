//! Kernels of the user's own on Vulkan are checked: against the device, against their contract, and while they
//! run. Nothing here is unsafe, so nothing here may reach memory that the kernel was not given.
#![allow(clippy::unwrap_used, clippy::panic)] // shared functions are not tests in clippy's eyes

use clearway_gpu::vulkan::{VulkanDevice, VulkanOptions};
use clearway_gpu::{
    CustomKernel, Device, GpuError, KernelRegistry, Program, Result, Upload, WgslKernel,
};
use clearway_graph::{
    BindingContract, BindingRole, CapturedOpKind as Kind, ComputeGraph, DType, KernelContract,
    Layout, TensorView,
};

use BindingRole::{Read, ReadWrite, Write};

mod vulkan;

fn open() -> Option<VulkanDevice> {
    let options = VulkanOptions { disk_cache: false, ..VulkanOptions::default() };
    vulkan::open(options)
}

/// A program of one call.
fn program(
    device: &VulkanDevice,
    kernel: WgslKernel,
    operands: &[(TensorView, BindingRole)],
) -> Result<Box<dyn Program>> {
    program_with(device, kernel, operands, &[])
}

fn program_with(
    device: &VulkanDevice,
    kernel: WgslKernel,
    operands: &[(TensorView, BindingRole)],
    params: &[u32],
) -> Result<Box<dyn Program>> {
    let names = ["a", "b", "c", "d"];
    let bindings: Vec<BindingContract> = operands
        .iter()
        .zip(names)
        .map(|((_, role), name)| BindingContract::new(name, *role))
        .collect();
    let views: Vec<TensorView> = operands.iter().map(|(view, _)| *view).collect();
    let contract = KernelContract::new("mine", bindings);
    let mut kernels = KernelRegistry::new();
    kernels.register(CustomKernel::new(contract.clone()).with_wgsl_kernel(kernel))?;
    let mut graph = ComputeGraph::new();
    graph.dispatch(Kind::Custom, &contract, &views, params, "")?;
    let mut encoder = device.encoder(&kernels);
    graph.encode_with_barriers(&mut *encoder)?;
    encoder.into_program()
}

fn one_group(body: &str) -> WgslKernel {
    WgslKernel::new(body, |_, _| [1, 1, 1])
}

/// A kernel that writes its one operand.
const WRITES: &str = "@compute @workgroup_size(1) fn main() { put_o0(0u, 1.0); }";

#[test]
fn workgroups_that_the_device_does_not_start_are_errors() {
    let Some(device) = open() else { return };
    let buffer = device.alloc(256).unwrap();
    let view = buffer.tensor(DType::F32, &[4]).unwrap();
    let most = u32::MAX;
    for groups in [[0, 1, 1], [1, 0, 1], [1, 1, 0], [1, most, 1], [1, 1, most], [0, 0, 0]] {
        let kernel = WgslKernel::new(WRITES, move |_, _| groups);
        match program(&device, kernel, &[(view, Write)]).err() {
            Some(GpuError::GroupCount { kernel, device: name, found, limit }) => {
                assert_eq!((kernel.as_str(), name), ("mine", device.info().name.clone()));
                assert_eq!(found, groups);
                assert!(limit.iter().all(|&limit| limit >= 65_535), "{limit:?}");
            }
            other => panic!("{groups:?}: {other:?}"),
        }
    }
    assert!(program(&device, one_group(WRITES), &[(view, Write)]).unwrap().run().is_ok());
}

#[test]
fn workgroups_larger_than_the_device_allows_are_errors() {
    let Some(device) = open() else { return };
    let buffer = device.alloc(256).unwrap();
    let view = buffer.tensor(DType::F32, &[4]).unwrap();
    let sized = |size: &str| WRITES.replace("size(1)", &format!("size({size})"));
    let shared = |words: u32| {
        format!(
            "var<workgroup> all: array<u32, {words}>;
             @compute @workgroup_size(1) fn main() {{ all[1] = 1u; put_o0(0u, f32(all[1])); }}"
        )
    };
    for (body, expected) in [
        (sized("16000"), "invocations in x"),
        (sized("1, 16000"), "invocations in y"),
        (sized("1, 1, 16000"), "invocations in z"),
        (sized("1024, 1024"), "invocations"),
        (shared(64 << 20), "bytes of workgroup memory"),
    ] {
        match program(&device, one_group(&body), &[(view, Write)]).err() {
            Some(GpuError::WorkgroupTooLarge { what, found, limit, .. }) => {
                assert_eq!(what, expected, "{body}");
                assert!(found > limit, "{body}: {found} of {limit}");
            }
            other => panic!("{body}: {other:?}"),
        }
    }
    assert!(program(&device, one_group(&shared(16)), &[(view, Write)]).is_ok());
    let unused = shared(64 << 20).replace("all[1] = 1u; ", "").replace("f32(all[1])", "1.0");
    assert!(program(&device, one_group(&unused), &[(view, Write)]).is_ok(), "nothing uses it");
}

/// Where kernels are to write: some elements in the middle of a buffer of sevens.
const COUNT: usize = 96;

#[test]
fn writes_outside_an_operand_change_nothing_else() {
    let Some(device) = open() else { return };
    let layout = Layout::new(DType::F32, &[4]).unwrap();
    let wild = "
@compute @workgroup_size(1) fn main() {
    for (var i = 0u; i < 4u; i++) { put_o0(i, 1.0); }
    for (var i = 4u; i < 40u; i++) { put_o0(i, 2.0); }
    for (var i = 1u; i < 40u; i++) { put_o0(0u - i, 3.0); }
    put_o0(0x40000000u, 4.0);
}";
    let bare = "
@compute @workgroup_size(1) fn main() {
    for (var i = 0u; i < 40u; i++) { b_o0[i] = 1.0; }
    for (var i = -40; i < 0; i++) { b_o0[i] = 1.0; }
}";
    // At element 32 the view begins where its binding does, at 33 it does not.
    for (first, body) in [(32, wild), (33, wild), (32, bare)] {
        let buffer = device.upload(&[7.0_f32; COUNT]).unwrap();
        let view = buffer.view(4 * first as u64, layout).unwrap();
        program(&device, one_group(body), &[(view, Write)]).unwrap().run().unwrap();
        let mut expected = [7.0_f32; COUNT];
        expected[first..first + 4].fill(1.0);
        assert_eq!(buffer.read_vec::<f32>(0, COUNT).unwrap(), expected, "from {first}: {body}");
    }
}

#[test]
fn reads_outside_an_operand_give_zero_or_an_element_of_it() {
    let Some(device) = open() else { return };
    let body = "
@compute @workgroup_size(1) fn main() {
    put_o1(0u, get_o0(4u));
    put_o1(1u, get_o0(0xffffffffu));
    put_o1(2u, get_o0(0x40000000u));
    put_o1(3u, get_o0(3u));
}";
    let bare = body.replace("get_o0(", "pick(") + "fn pick(i: u32) -> f32 { return b_o0[i]; }";
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let bits: Vec<u8> = match dtype {
            DType::F32 => [7.0_f32; COUNT].iter().flat_map(|x| x.to_le_bytes()).collect(),
            DType::F16 => 0x4700_u16.to_le_bytes().repeat(COUNT),
            _ => 0x40e0_u16.to_le_bytes().repeat(COUNT),
        };
        let x = device.upload(&bits).unwrap();
        let y = device.alloc(16).unwrap();
        let layout = Layout::new(dtype, &[4]).unwrap();
        for first in [32, 33, 35] {
            let at = first * dtype.block_bytes() as u64;
            let operands =
                [(x.view(at, layout).unwrap(), Read), (y.tensor(DType::F32, &[4]).unwrap(), Write)];
            program(&device, one_group(body), &operands).unwrap().run().unwrap();
            assert_eq!(y.read_vec::<f32>(0, 4).unwrap(), [0.0, 0.0, 0.0, 7.0], "{dtype} {first}");
        }
    }
    let numbers: Vec<f32> = (0..COUNT).map(|i| i as f32).collect();
    let (x, y) = (device.upload(&numbers).unwrap(), device.alloc(16).unwrap());
    let layout = Layout::new(DType::F32, &[4]).unwrap();
    let operands = [(x.view(128, layout).unwrap(), Read), (y.view(0, layout).unwrap(), Write)];
    program(&device, one_group(&bare), &operands).unwrap().run().unwrap();
    let found = y.read_vec::<f32>(0, 4).unwrap();
    assert!(found.iter().all(|x| (32.0..36.0).contains(x)), "{found:?}");
}

#[test]
fn a_bare_array_that_holds_more_than_the_operand_is_refused() {
    let Some(device) = open() else { return };
    let buffer = device.alloc(1024).unwrap();
    let bare = "@compute @workgroup_size(1) fn main() { b_o0[0] = 1; }";
    let of = |dtype: DType, count: usize, first: u64| {
        let layout = Layout::new(dtype, &[count]).unwrap();
        buffer.view(first * dtype.block_bytes() as u64, layout).unwrap()
    };
    // Elements before the view, and half a word behind it.
    for view in [of(DType::F32, 4, 33), of(DType::F16, 4, 33), of(DType::F16, 3, 0)] {
        match program(&device, one_group(bare), &[(view, Write)]).err() {
            Some(GpuError::KernelCompile { message, .. }) => {
                assert!(message.contains("operand 0") && message.contains("b_o0"), "{message}");
            }
            other => panic!("{view:?}: {other:?}"),
        }
        let through = bare.replace("b_o0[0] = 1", "put_o0(0u, 1.0)");
        assert!(program(&device, one_group(&through), &[(view, Write)]).is_ok());
    }
    // Fewer than four words: the length of the array would be zero, and nothing below zero.
    let quads = "@compute @workgroup_size(1) fn main() { b_o0[9] = vec4<u32>(1u); }";
    match program(&device, one_group(quads).quads(0), &[(of(DType::F32, 3, 0), Write)]).err() {
        Some(GpuError::KernelCompile { message, .. }) => {
            assert!(message.contains("operand 0"), "{message}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_the_text_does_beyond_its_contract_is_an_error() {
    let Some(device) = open() else { return };
    let (x, y) = (device.alloc(64).unwrap(), device.alloc(64).unwrap());
    let views = [x.tensor(DType::F32, &[4]).unwrap(), y.tensor(DType::F32, &[4]).unwrap()];
    let main = |body: &str| format!("@compute @workgroup_size(1) fn main() {{ {body} }}");
    let own = |access: &str, binding: u32, body: &str| {
        let variable =
            format!("@group(0) @binding({binding}) var<storage, {access}> mine: array<u32>;");
        variable + &main(body)
    };
    let uses_second = "put_o1(0u, 1.0);";
    let cases = [
        (own("read_write", 0, &format!("mine[0] = 1u; {uses_second}")), [Read, Write], "written"),
        (own("read_write", 0, uses_second), [Read, Write], "written"),
        (own("read", 0, &format!("let x = mine[0]; {uses_second}")), [Read, Write], "own"),
        (own("read_write", 1, "mine[0] = 1u;"), [Read, Write], "own"),
        (own("read", 1, "let x = mine[0];"), [Read, ReadWrite], "own"),
        (own("read_write", 7, &format!("mine[0] = 1u; {uses_second}")), [Read, Write], "own"),
        (
            "@group(1) @binding(0) var<storage> b_o0x: array<u32>;".to_owned() + &main(uses_second),
            [Read, Write],
            "own",
        ),
        (main("put_o1(0u, get_o1(1u));"), [Read, Write], "only written"),
        (main("put_o1(0u, b_o1[0]);"), [Read, Write], "only written"),
        (main("let x = get_o0(0u);"), [Read, Write], "never written"),
        (main(uses_second), [Write, Write], "never written"),
    ];
    for (body, roles, expected) in cases {
        let operands = [(views[0], roles[0]), (views[1], roles[1])];
        match program(&device, one_group(&body), &operands).err() {
            Some(GpuError::ContractMismatch { kernel, reason, .. }) => {
                assert_eq!(kernel, "mine");
                assert!(reason.contains(expected), "{body}: {reason}");
            }
            other => panic!("{body}: {other:?}"),
        }
    }
    // A read-only variable that is written does not compile.
    let operands = [(views[0], Read), (views[1], ReadWrite)];
    let error = program(&device, one_group(&main("b_o0[0] = 1.0;")), &operands).err();
    assert!(matches!(error, Some(GpuError::KernelCompile { .. })), "{error:?}");
    let both = main("put_o1(0u, get_o1(0u) + get_o0(0u));");
    assert!(program(&device, one_group(&both), &operands).is_ok());
}

#[test]
fn what_the_device_was_not_opened_with_is_an_error() {
    let Some(device) = open() else { return };
    let buffer = device.alloc(64).unwrap();
    let view = buffer.tensor(DType::F32, &[4]).unwrap();
    let main = |body: &str| format!("@compute @workgroup_size(1) fn main() {{ {body} }}");
    let bodies = [
        main("let x = f64(1.0lf); put_o0(0u, f32(x));"),
        main("let x = 1li; put_o0(0u, f32(x));"),
        "var<immediate> p: u32;".to_owned() + &main("put_o0(0u, f32(p));"),
        "override w = 4u;".to_owned() + &main("put_o0(w, 1.0);"),
        "override w = 4u; @compute @workgroup_size(w) fn main() { put_o0(0u, 1.0); }".to_owned(),
        "@group(0) @binding(5) var t: texture_2d<f32>;".to_owned()
            + &main("put_o0(0u, f32(textureDimensions(t).x));"),
    ];
    for body in bodies {
        match program(&device, one_group(&body), &[(view, Write)]).err() {
            Some(GpuError::KernelCompile { .. } | GpuError::ContractMismatch { .. }) => {}
            other => panic!("{body}: {other:?}"),
        }
    }
}

#[test]
fn workgroup_memory_starts_as_zeros() {
    let Some(device) = open() else { return };
    let buffer = device.alloc(4096).unwrap();
    let view = buffer.tensor(DType::U32, &[1024]).unwrap();
    let declared = "var<workgroup> all: array<u32, 1024>;";
    let fills = declared.to_owned()
        + "
@compute @workgroup_size(64) fn main(@builtin(local_invocation_index) lid: u32) {
    for (var i = lid; i < 1024u; i += 64u) { all[i] = 0xdeadbeefu; }
    workgroupBarrier();
    for (var i = lid; i < 1024u; i += 64u) { put_o0(i, all[1023u - i]); }
}";
    let reads = declared.to_owned()
        + "
@compute @workgroup_size(64) fn main(@builtin(local_invocation_index) lid: u32) {
    for (var i = lid; i < 1024u; i += 64u) { put_o0(i, all[i]); }
}";
    let mut fills =
        program(&device, WgslKernel::new(&fills, |_, _| [64, 1, 1]), &[(view, Write)]).unwrap();
    let mut reads = program(&device, one_group(&reads), &[(view, Write)]).unwrap();
    for _ in 0..4 {
        fills.run().unwrap();
        assert_eq!(buffer.read_vec::<u32>(0, 1024).unwrap(), [0xdead_beef; 1024]);
        reads.run().unwrap();
        assert_eq!(buffer.read_vec::<u32>(0, 1024).unwrap(), [0; 1024]);
    }
}

#[test]
fn packed_weights_are_not_for_kernels_that_do_not_know_how() {
    let Some(device) = open() else { return };
    let layout = Layout::new(DType::Q4_0, &[8, 64]).unwrap();
    let bytes = vec![1_u8; layout.span_bytes() as usize];
    let weights = device.upload_weights(&layout, &bytes).unwrap();
    let y = device.alloc(64).unwrap();
    let body = "@compute @workgroup_size(1) fn main() { put_o1(0u, f32(byte_o0(0u))); }";
    let y = y.tensor(DType::F32, &[4]).unwrap();
    let operands = [(weights.view(0, layout).unwrap(), Read), (y, Write)];
    let error = program(&device, one_group(body), &operands).err();
    assert_eq!(error, Some(GpuError::PackedWeights { buf_id: weights.id() }));
}

#[test]
fn a_view_that_claims_more_than_the_packed_weights_is_refused() {
    // Whole, and in parts.
    for max_binding in [None, Some(8 << 10)] {
        let options = VulkanOptions { disk_cache: false, max_binding, ..VulkanOptions::default() };
        let Some(device) = vulkan::open(options) else { return };
        let layout = Layout::new(DType::Q8_0, &[64, 256]).unwrap();
        let bytes = vec![0_u8; layout.span_bytes() as usize];
        let weights = device.upload_weights(&layout, &bytes).unwrap();
        let product = |claimed: Layout| {
            let buf_len = claimed.span_bytes();
            let w = TensorView { buf_id: weights.id(), buf_len, offset: 0, layout: claimed };
            let (rows, cols) = (claimed.rows(), claimed.cols());
            let (x, y) = (device.alloc(cols as u64 * 4)?, device.alloc(rows as u64 * 4)?);
            let mut graph = ComputeGraph::new();
            let views = [x.tensor(DType::F32, &[1, cols])?, w, y.tensor(DType::F32, &[1, rows])?];
            clearway_gpu::record(&mut graph, Kind::MATMUL, &views, &[], "")?;
            let mut encoder = device.encoder(&KernelRegistry::new());
            graph.encode_with_barriers(&mut *encoder)?;
            encoder.into_program().map(|_| ())
        };
        assert_eq!(product(layout), Ok(()));
        for (dtype, shape) in [
            (DType::Q8_0, [512, 256]),
            (DType::Q8_0, [32, 256]),
            (DType::Q8_0, [32, 512]),
            (DType::F16, [64, 256]),
        ] {
            let claimed = Layout::new(dtype, &shape).unwrap();
            let refused = Err(GpuError::PackedWeights { buf_id: weights.id() });
            assert_eq!(product(claimed), refused, "{claimed}");
        }
    }
}

#[test]
fn tickets_and_constants_have_limits_too() {
    let Some(device) = open() else { return };
    let buffer = device.alloc(64).unwrap();
    let operands = [(buffer.tensor(DType::F32, &[4]).unwrap(), Write)];
    let tickets = one_group(WRITES).scratch(4, u32::MAX);
    let tickets = program(&device, tickets, &operands).err();
    assert!(
        matches!(tickets, Some(GpuError::BindingTooLarge { operand: "tickets", .. })),
        "{tickets:?}"
    );
    let constants = program_with(&device, one_group(WRITES), &operands, &[0; 1 << 20]).err();
    assert!(
        matches!(constants, Some(GpuError::BindingTooLarge { operand: "constants", .. })),
        "{constants:?}"
    );
    assert!(program_with(&device, one_group(WRITES), &operands, &[0; 1000]).is_ok());
}
