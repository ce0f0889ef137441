//! The WGSL of a list: which text each dispatch has, what it binds, and names that cannot leave a comment.
#![allow(clippy::unwrap_used)] // a test stops at the first surprise

mod common;

use std::collections::BTreeMap;

use clearway::listing::{TargetDevice, WgslTarget};
use clearway::pipeline::{Compiled, compile};
use clearway::{
    BindingContract, BindingRole, CompileError, CompileOptions, ComputeGraph, CustomKernel, DType,
    Device, KernelContract, KernelRegistry, MemoryPlan, Ops, Recorder, TensorView,
};
use clearway_inspect::{FIRST_SLAB, Kernels, kernels};
use common::{graph, json, report};

fn compiled(graph: &ComputeGraph, registry: &mut KernelRegistry, target: &WgslTarget) -> Compiled {
    let device = TargetDevice::new(target.clone());
    let device: &(dyn Device + 'static) = &device;
    let slabs = |plan: &MemoryPlan| {
        Ok::<_, CompileError>((FIRST_SLAB..).take(plan.slab_bytes().len()).collect())
    };
    compile(graph, registry, device, &CompileOptions::default(), slabs).unwrap()
}

fn listed(graph: &ComputeGraph, target: &WgslTarget) -> Kernels {
    let buffers = BTreeMap::from([(0, "weight".to_owned())]);
    let compiled = compiled(graph, &mut KernelRegistry::new(), target);
    kernels(compiled.graph(), &KernelRegistry::new(), target, &buffers)
}

#[test]
fn dispatches_that_do_the_same_share_a_text() {
    let target = WgslTarget::default();
    let kernels = listed(&graph(), &target);
    assert!(kernels.dispatches.iter().all(|row| row.reason.is_none() && row.uses.len() == 1));
    let half = kernels.dispatches.len() / 2;
    for (first, second) in kernels.dispatches.iter().zip(&kernels.dispatches[half..]) {
        let texts = [first, second].map(|row| row.uses[0].kernel);
        assert_eq!(texts[0], texts[1], "{first:?} {second:?}");
        assert_eq!(first.uses[0].groups, second.uses[0].groups);
    }
    let products = kernels.dispatches.iter().filter(|row| row.title.contains("matmul"));
    for row in products {
        let bindings = row.uses[0].bindings.join("\n");
        assert!(bindings.contains("f32[64x64], weight bytes 0..16384"), "{bindings}");
        assert!(bindings.contains("slab 0 bytes"), "{bindings}");
    }
    let files = kernels.files();
    assert_eq!(files.len(), kernels.texts.len() + 1);
    assert_eq!(files[0].0, clearway_inspect::INDEX);
    for (text, (name, file)) in kernels.texts.iter().zip(&files[1..]) {
        assert_eq!(&text.file, name);
        assert!(file.starts_with("// #") && file.ends_with(&text.source), "{file}");
    }
}

#[test]
fn weights_larger_than_a_binding_come_in_parts() {
    let mut pass = Recorder::default();
    let weight = pass.external("weight", DType::F16, &[1000, 64]).unwrap();
    let x = pass.external("x", DType::F32, &[1, 64]).unwrap();
    let y = pass.matmul(x, weight).unwrap();
    pass.mark_output(y).unwrap();
    let mut target = WgslTarget::default();
    let graph = pass.into_parts().0;
    assert_eq!(listed(&graph, &target).dispatches[0].uses.len(), 1);
    // 400 rows of 128 bytes.
    target.target.max_binding = 51_200;
    let kernels = listed(&graph, &target);
    let uses = &kernels.dispatches[0].uses;
    let notes: Vec<_> = uses.iter().map(|used| used.note.clone().unwrap()).collect();
    assert!(notes.iter().zip(1..).all(|(note, n)| note.starts_with(&format!("part {n} of 3"))));
    for (used, rows) in uses.iter().zip([400, 400, 200]) {
        let bindings = used.bindings.join("\n");
        assert!(bindings.contains(&format!("f16[{rows}x64]")), "{bindings}");
        assert!(bindings.contains(&format!("f32[1x{rows}]")), "{bindings}");
    }
}

#[test]
fn a_users_kernel_is_listed_with_its_text_or_with_a_reason() {
    const BODY: &str =
        "@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) at: vec3<u32>) {
    put_o1(at.x, 2.0 * get_o0(at.x));
}";
    let contract = |name: &'static str| {
        let binding = BindingContract::new;
        KernelContract::new(
            name,
            vec![binding("x", BindingRole::Read), binding("y", BindingRole::Write)],
        )
    };
    let mut registry = KernelRegistry::new();
    let with = CustomKernel::new(contract("double")).with_wgsl(BODY, |_, _| [3, 2, 1]);
    registry.register(with).unwrap();
    registry.register(CustomKernel::new(contract("bare"))).unwrap();
    let mut pass = Recorder::default();
    let x = pass.external("x", DType::F32, &[1, 64]).unwrap();
    let layout = x.layout;
    let mut call = |name: &str, from: TensorView| {
        let kernel = registry.custom(name).unwrap();
        let to = pass.graph_mut().declare_value(layout);
        let (kind, contract) = (kernel.kind(), &kernel.contract);
        pass.graph_mut().dispatch(kind, contract, &[from, to], &[], name).unwrap();
        to
    };
    let a = call("double", x);
    let b = call("bare", a);
    pass.mark_output(b).unwrap();
    let target = WgslTarget::default();
    let graph = pass.into_parts().0;
    let compiled = compiled(&graph, &mut registry, &target);
    let kernels = kernels(compiled.graph(), &registry, &target, &BTreeMap::new());
    assert_eq!(kernels.dispatches[0].uses[0].groups, [3, 2, 1]);
    assert!(kernels.texts[0].source.ends_with(BODY));
    let reason = kernels.dispatches[1].reason.as_ref().unwrap();
    assert!(reason.contains("bare"), "{reason}");
    let index = &kernels.files()[0].1;
    assert!(index.contains(&format!("no kernel: {reason}")), "{index}");
}

#[test]
fn no_name_leaves_its_comment() {
    let evil = "a\nfn evil() {}\r\u{2028}fn worse() {}\u{85}";
    let mut pass = Recorder::default();
    let x = pass.external("x", DType::F32, &[1, 64]).unwrap();
    pass.set_label(evil);
    let y = pass.silu(x).unwrap();
    pass.mark_output(y).unwrap();
    let files = listed(&pass.into_parts().0, &WgslTarget::default()).files();
    for (name, text) in files {
        assert!(text.contains("evil"), "{name}");
        let ends = ['\n', '\r', '\u{b}', '\u{c}', '\u{85}', '\u{2028}', '\u{2029}'];
        for line in text.split(ends).filter(|line| line.contains("evil") || line.contains("worse"))
        {
            assert!(line.starts_with("// #") || name == clearway_inspect::INDEX, "{name}: {line}");
        }
    }
}

#[test]
fn kernels_join_the_report_of_their_list() {
    let graph = graph();
    let mut with = report(&graph);
    assert_eq!(json(&with.to_json().unwrap())["kernel_target"], serde_json::Value::Null);
    let target = WgslTarget::default();
    let device = TargetDevice::new(target.clone());
    let device: &(dyn Device + 'static) = &device;
    let mut planned = clearway_inspect::inspect(
        &graph,
        &mut KernelRegistry::new(),
        device,
        &clearway_inspect::InspectOptions::default(),
    )
    .unwrap();
    let kernels = listed(&graph, &target);
    planned.attach_kernels(&kernels);
    let data = json(&planned.to_json().unwrap());
    assert_eq!(data["kernel_list"].as_array().unwrap().len(), kernels.texts.len());
    for (row, listed) in data["dispatch_list"].as_array().unwrap().iter().zip(&kernels.dispatches) {
        assert_eq!(row["id"], listed.id);
        assert_eq!(row["kernels"][0]["kernel"], listed.uses[0].kernel);
        assert_eq!(
            row["kernels"][0]["bindings"].as_array().unwrap().len(),
            listed.uses[0].bindings.len()
        );
    }
    // Rows of another list stay without.
    for row in &mut with.dispatch_list {
        row.id += 1_000;
    }
    with.attach_kernels(&kernels);
    assert!(with.dispatch_list.iter().all(|row| row.kernels.is_empty()));
}
