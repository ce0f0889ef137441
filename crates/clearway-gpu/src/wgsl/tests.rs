//! Every case of the op suite lowers to text that compiles.
#![allow(clippy::unwrap_used, clippy::panic)] // shared functions are not tests in clippy's eyes

use std::collections::BTreeMap;

use clearway_graph::{BindingRole, CapturedOpKind as Kind, DType, Layout};
use naga::valid::{Capabilities, ValidationFlags, Validator};

use super::{Job, Kernel, Operand, Packing, Target, lower};
use crate::error::GpuError;
use crate::ops::suite::{DEFAULT_SEED, OpCase, cases};

const TARGET: Target = Target {
    subgroup: 32,
    max_invocations: 1024,
    shared_bytes: 32768,
    max_groups: 65535,
    max_binding: 1 << 27,
    packed_dot: true,
    cooperative: true,
    halves: true,
    tickets: true,
    counters: false,
    processors: 8,
};

fn operand_names(kind: Kind, count: usize) -> Vec<&'static str> {
    let operands = crate::ops::spec(kind).unwrap().operands;
    let all = operands.len() == count;
    operands.iter().filter(|operand| all || !operand.optional).map(|operand| operand.name).collect()
}

/// Whether something in a case is rounded between products: then weights lie in planes.
fn is_rounded(case: &OpCase) -> bool {
    case.operands.iter().any(|operand| operand.dtype == DType::A8)
}

fn is_cache_or_rounded(dtype: DType) -> bool {
    matches!(dtype, DType::A8 | DType::C8)
}

/// Whether all block weights of a case can lie in planes.
fn in_planes(case: &OpCase) -> bool {
    let layouts = case.operands.iter().map(|operand| operand.layout().unwrap());
    let mut blocks =
        layouts.filter(|l| l.dtype().is_quantised() && !is_cache_or_rounded(l.dtype()));
    blocks.all(|layout| super::planes::supports(&layout))
}

/// The kernel of a case; `None` for a fused product that has one only for other weights or rows.
fn lower_case(case: &OpCase, in_place: Option<(usize, usize)>) -> Option<Kernel> {
    lower_case_as(case, in_place, 0)
}

fn lower_case_as(case: &OpCase, in_place: Option<(usize, usize)>, choice: u8) -> Option<Kernel> {
    lower_case_on(&TARGET, case, in_place, choice)
}

fn lower_case_on(
    target: &Target,
    case: &OpCase,
    in_place: Option<(usize, usize)>,
    choice: u8,
) -> Option<Kernel> {
    let names = operand_names(case.kind, case.operands.len());
    let operands = case.operands.iter().zip(case.roles()).zip(names);
    let mut operands: Vec<Operand> = operands
        .map(|((spec, role), name)| Operand {
            name,
            layout: spec.layout().unwrap(),
            role,
            shift: (spec.offset % 256) as u32,
            packing: match is_rounded(case) && matches!(name, "w" | "u") {
                true => Packing::Planes,
                false => Packing::Plain,
            },
            rows: None,
            same_as: None,
        })
        .collect();
    if let Some((output, input)) = in_place {
        operands[output].same_as = Some(input);
        operands[output].shift = operands[input].shift;
    }
    if is_rounded(case) {
        operands.iter_mut().for_each(|operand| operand.shift = 0);
    }
    let job = Job { kind: case.kind, operands, params: &case.params, target, choice };
    match lower(&job) {
        Ok(kernel) => Some(kernel),
        Err(GpuError::UnknownKernel { .. }) if fused_product(case.kind) => None,
        // Some products have no whole chunks of a cache.
        Err(GpuError::KernelFailed { .. }) if writes_chunks(case) => None,
        Err(error) => panic!("{case}: {error}"),
    }
}

/// Whether a cache of 8 bits is written.
fn writes_chunks(case: &OpCase) -> bool {
    case.operands.last().is_some_and(|cache| cache.dtype == DType::C8)
}

/// Products that hold a norm or a gate.
fn fused_product(kind: Kind) -> bool {
    kind.product().is_some_and(|product| !product.is_basic())
}

/// What naga says against a source.
fn complaint(source: &str) -> Option<String> {
    let module = match naga::front::wgsl::parse_str(source) {
        Ok(module) => module,
        Err(error) => return Some(error.emit_to_string(source)),
    };
    let info = match Validator::new(ValidationFlags::all(), Capabilities::all()).validate(&module) {
        Ok(info) => info,
        Err(error) => return Some(error.emit_to_string(source)),
    };
    let options = naga::back::spv::Options { lang_version: (1, 3), ..Default::default() };
    naga::back::spv::write_vec(&module, &info, &options, None).err().map(|e| e.to_string())
}

/// Bytes of workgroup memory of a source.
fn shared_bytes(source: &str) -> u32 {
    let module = naga::front::wgsl::parse_str(source).unwrap();
    let mut layouter = naga::proc::Layouter::default();
    layouter.update(module.to_ctx()).unwrap();
    let variables = module.global_variables.iter();
    let shared = variables.filter(|(_, v)| v.space == naga::AddressSpace::WorkGroup);
    shared.map(|(_, v)| layouter[v.ty].size).sum()
}

#[test]
fn workgroup_memory_stays_within_the_least_of_devices() {
    let mut seen: BTreeMap<String, ()> = BTreeMap::new();
    let mut counted = 0;
    for counters in [false, true] {
        let target = Target { shared_bytes: 16384, cooperative: false, counters, ..TARGET };
        let with_kernel = |case: &OpCase| !is_rounded(case) || in_planes(case);
        for case in cases(DEFAULT_SEED).into_iter().filter(with_kernel) {
            for choice in 0..super::matvec::VARIANTS {
                let Some(kernel) = lower_case_on(&target, &case, None, choice) else { continue };
                if seen.insert(kernel.source.clone(), ()).is_none() {
                    let bytes = shared_bytes(&kernel.source);
                    assert!(bytes <= target.shared_bytes, "{case}: {bytes} bytes\n");
                    counted += usize::from(kernel.counted.is_some());
                }
            }
        }
    }
    assert!(counted >= 50, "{counted} of {} are counted", seen.len());
}

#[test]
fn every_case_lowers_to_valid_text() {
    let mut sources: BTreeMap<String, (Kind, String)> = BTreeMap::new();
    for case in cases(DEFAULT_SEED).into_iter().filter(|case| !is_rounded(case)) {
        let Some(kernel) = lower_case(&case, None) else { continue };
        assert!(kernel.groups.iter().all(|&g| (1..=TARGET.max_groups).contains(&g)), "{case}");
        assert_eq!(kernel.words.len() % 4, 0, "{case}");
        sources.entry(kernel.source).or_insert_with(|| (case.kind, case.to_string()));
    }
    let mut counts: BTreeMap<Kind, usize> = BTreeMap::new();
    let mut wrong: BTreeMap<Kind, String> = BTreeMap::new();
    for (source, (kind, case)) in &sources {
        *counts.entry(*kind).or_default() += 1;
        if let Some(complaint) = complaint(source) {
            wrong.entry(*kind).or_insert_with(|| format!("{case}\n{complaint}"));
        }
    }
    println!("{} sources: {counts:?}", sources.len());
    let wrong: Vec<String> = wrong.into_values().collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // Products of one row and those on matrices have their shape in the text, and nothing else has.
    let general = |source: &&String| !source.contains("wgpu_cooperative_matrix");
    let count = sources.keys().filter(general).count();
    let most = 15 * counts.len();
    assert!(count <= most, "{count} sources: shapes have become part of the text");
}

#[test]
fn products_on_matrices_of_any_number_of_rows_share_a_text() {
    let of = |rows: usize, experts: bool| {
        let layout = |dtype, shape: &[usize]| Layout::new(dtype, shape).unwrap();
        let (x, kind) = (layout(DType::F32, &[rows, 256]), DType::F16);
        let layouts = match experts {
            false => vec![x, layout(kind, &[512, 256]), layout(DType::F32, &[rows, 512])],
            true => vec![
                x,
                layout(kind, &[4, 512, 256]),
                layout(DType::U32, &[rows, 2]),
                layout(DType::U32, &[6 + 2 * rows]),
                layout(DType::F32, &[rows, 2, 512]),
            ],
        };
        let op = if experts { Kind::MatMulExperts } else { Kind::MATMUL };
        let names = operand_names(op, layouts.len());
        let last = layouts.len() - 1;
        let operands = layouts.into_iter().zip(names).enumerate().map(|(index, (layout, name))| {
            let role = if index == last { BindingRole::Write } else { BindingRole::Read };
            let packing = Packing::Plain;
            Operand { name, layout, role, shift: 0, packing, rows: None, same_as: None }
        });
        let operands = operands.collect();
        let job = Job { kind: op, operands, params: &[], target: &TARGET, choice: 0 };
        lower(&job).unwrap()
    };
    for experts in [false, true] {
        let numbers = if experts { [128, 192] } else { [400, 480] };
        let [a, b] = numbers.map(|rows| of(rows, experts));
        assert!(a.source.contains("wgpu_cooperative_matrix"));
        assert_eq!(a.source, b.source);
        assert_ne!(a.words, b.words);
        assert_eq!(complaint(&a.source), None);
    }
}

#[test]
fn products_of_rounded_rows_lower_to_valid_text_in_every_way() {
    let mut sources: BTreeMap<String, String> = BTreeMap::new();
    for case in cases(DEFAULT_SEED).into_iter().filter(|case| is_rounded(case) && in_planes(case)) {
        for choice in 0..super::matvec::VARIANTS {
            let Some(kernel) = lower_case_as(&case, None, choice) else {
                assert!(writes_chunks(&case), "{case} has no kernel");
                continue;
            };
            assert!(kernel.groups.iter().all(|&g| (1..=TARGET.max_groups).contains(&g)), "{case}");
            sources.entry(kernel.source).or_insert_with(|| case.to_string());
        }
    }
    assert!(sources.len() > 300, "{} sources", sources.len());
    for (source, case) in &sources {
        assert_eq!(complaint(source), None, "{case}");
    }
}

#[test]
fn results_may_take_the_place_of_inputs() {
    let mut seen = Vec::new();
    for case in cases(DEFAULT_SEED) {
        let roles = case.roles();
        let last = roles.len() - 1;
        let alike = (0..last).filter(|&i| {
            let (a, b) = (&case.operands[i], &case.operands[last]);
            roles[i] == BindingRole::Read
                && (a.dtype, &a.shape, &a.strides) == (b.dtype, &b.shape, &b.strides)
        });
        for input in alike {
            if case.operands[input].dtype != DType::F32 || seen.contains(&(case.kind, input)) {
                continue;
            }
            seen.push((case.kind, input));
            let Some(kernel) = lower_case(&case, Some((last, input))) else { continue };
            assert_eq!(complaint(&kernel.source), None, "{case}");
            let binding = format!("@binding({last}) var<storage");
            assert!(!kernel.source.contains(&binding), "{case}: bound twice");
        }
    }
    assert!(seen.len() >= 20, "{seen:?}");
}

#[test]
fn large_grids_are_folded() {
    let layout = Layout::new(DType::F32, &[70_000_001]).unwrap();
    let operand = |name, role| Operand {
        name,
        layout,
        role,
        shift: 0,
        packing: Packing::Plain,
        rows: None,
        same_as: None,
    };
    let operands = vec![operand("x", BindingRole::Read), operand("y", BindingRole::Write)];
    let job = Job { kind: Kind::SILU, operands, params: &[], target: &TARGET, choice: 0 };
    let groups = lower(&job).unwrap().groups;
    assert!(groups[1] > 1 && groups.iter().all(|&g| g <= TARGET.max_groups), "{groups:?}");
}
