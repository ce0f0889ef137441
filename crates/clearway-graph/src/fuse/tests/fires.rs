//! Every rule fires, and the fused dispatch is what it should be.

use crate::testkit::kind;
use std::collections::BTreeSet;

use super::setup::{COLS, Setup, Step, layout, rules};
use crate::fuse::{FuseReport, Place, RULES, Rule};
use crate::op::{CapturedOpKind as Kind, Gate};
use crate::{ComputeGraph, Dispatch, DispatchId, Origin, TensorView};

/// The kind of the fused dispatch and its bindings, written down from the op list.
fn expected(rule: &Rule, setup: &Setup, kept: bool) -> (Kind, Vec<TensorView>) {
    let (p, c, y) = (&setup.producer.views, &setup.consumer.views, setup.result());
    let sum = kept.then_some(setup.value);
    let products = (rule.producer.product(), rule.consumer.product());
    let (kind, inputs, outputs) = match (rule.name, products) {
        ("rms_norm_mul", _) => (Kind::RmsNormMul, vec![p[0], setup.other()], vec![y]),
        ("expert_sum_add", _) => (Kind::ExpertSumAdd, vec![p[0], p[1], setup.other()], vec![y]),
        ("rms_norm_mul_add", _) => (Kind::RmsNormMulAdd, vec![p[0], p[1], setup.other()], vec![y]),
        ("silu_mul", _) => (Kind::SILU_MUL, vec![p[0], setup.other()], vec![y]),
        ("gelu_mul", _) => (Kind::GELU_MUL, vec![p[0], setup.other()], vec![y]),
        ("rope_kv_write", _) => (Kind::RopeKvWrite, vec![p[0], p[1], p[2], c[1]], vec![y]),
        ("add_rms_norm", _) => {
            (Kind::AddRmsNorm, vec![p[0], p[1]], sum.into_iter().chain([y]).collect())
        }
        ("add_rms_norm_mul", _) => {
            (Kind::AddRmsNormMul, vec![p[0], p[1], c[1]], sum.into_iter().chain([y]).collect())
        }
        ("add_rms_norm_then_mul", _) => {
            (Kind::AddRmsNormMul, vec![p[0], p[1], setup.other()], vec![y])
        }
        // A product takes in what follows: all of the product but its result, then all of the op but what
        // joins them.
        (name, (Some(_), None)) => {
            let mut rest = c[..c.len() - 1].to_vec();
            rest.remove(setup.operand);
            (kind(name), [&p[..p.len() - 1], &rest].concat(), vec![y])
        }
        // A gate takes in the second product: rows, weights of the gate, weights of the other, experts.
        (name, (_, Some(product))) if matches!(product.gate(), Gate::Operand(_)) => {
            let inputs = [&[p[0], c[1], p[1]], &c[2..c.len() - 2]].concat();
            (kind(name), inputs, vec![y])
        }
        // A product takes in the norm in front: its input and weight, then all of the product but its rows.
        (name, (None, Some(_))) => (kind(name), [&p[..2], &c[1..c.len() - 1]].concat(), vec![y]),
        // An op takes in what is behind it, as a product does.
        (name, (None, None)) if rule.producer == Kind::MatMulExperts => {
            (kind(name), [&p[..3], &c[1..2]].concat(), vec![y])
        }
        (name, _) => panic!("a rule without a test: {name}"),
    };
    (kind, [inputs, outputs].concat())
}

fn fuse(setup: &Setup) -> (ComputeGraph, FuseReport) {
    let mut graph = setup.record();
    graph.fuse(&mut setup.catalog.clone(), &()).unwrap();
    let report = graph.fuse_report().unwrap().clone();
    (graph, report)
}

fn check_fused(rule: &Rule, setup: &Setup, kept: bool) -> Dispatch {
    let what = format!("{} by operand {}", rule.name, setup.operand);
    let recorded = setup.record();
    let (graph, report) = fuse(setup);
    assert_eq!((report.fired(), report.fired_by(rule.name)), (1, 1), "{what}: {report}");
    assert_eq!(report.refusals, [], "{what}");
    assert_eq!(graph.dispatch_count() + 1, recorded.dispatch_count(), "{what}");

    let id = setup.consumer_id();
    let fused = (**graph.dispatches().find(|d| d.id == id).unwrap()).clone();
    let (kind, bindings) = expected(rule, setup, kept);
    assert_eq!((fused.kind, &*fused.kernel), (kind, kind.name()), "{what}");
    assert_eq!(fused.bindings.to_vec(), bindings, "{what}");
    assert_eq!(fused.params, setup.params(), "{what}");
    assert_eq!(fused.origins.to_vec(), [Setup::PRODUCER, id], "{what}");
    assert_eq!(&*fused.label, "first+second", "{what}");
    let fusion = &report.fusions[0];
    assert_eq!((fusion.result, &fusion.members), (id, &fused.origins), "{what}");
    assert_eq!(fusion.kept, kept, "{what}");
    assert!(!fusion.repeated && report.repeats == 0, "{what}");
    check_origins(rule, &recorded, &fused, setup, kept);
    fused
}

/// Each access is one of a member's, on the same bytes, and only the intermediate's are missing, and
/// one of two reads of the same tensor.
fn check_origins(
    rule: &Rule,
    recorded: &ComputeGraph,
    fused: &Dispatch,
    setup: &Setup,
    kept: bool,
) {
    let members: Vec<_> = recorded.dispatches().filter(|d| fused.origins.contains(&d.id)).collect();
    let mut missing: BTreeSet<Origin> =
        members.iter().flat_map(|d| d.accesses()).map(|access| access.origin).collect();
    for access in fused.accesses() {
        assert!(missing.remove(&access.origin), "{access:?} twice");
        let member = members.iter().find(|d| d.id == access.origin.dispatch).unwrap();
        let was = &member.accesses()[usize::from(access.origin.access)];
        assert_eq!(access.range, was.range);
        let (view, was_view) = (
            fused.bindings[usize::from(access.binding)],
            member.bindings[usize::from(was.binding)],
        );
        assert_eq!(view, was_view);
    }
    let of_value = |id: DispatchId, binding| {
        let member = members.iter().find(|d| d.id == id).unwrap();
        let access = member.accesses().iter().find(|a| a.binding == binding).unwrap();
        access.origin
    };
    let mut gone = BTreeSet::from([of_value(setup.consumer_id(), setup.operand as u16)]);
    if !kept {
        gone.insert(of_value(Setup::PRODUCER, setup.producer.views.len() as u16 - 1));
    }
    gone.extend(rule.same.iter().map(|same| of_value(Setup::PRODUCER, same.producer as u16)));
    assert_eq!(missing, gone);
}

#[test]
fn every_rule_fires_by_every_operand() {
    for rule in rules() {
        for &operand in &rule.operands {
            check_fused(rule, &Setup::new(rule, operand), false);
        }
    }
}

#[test]
fn a_row_is_repeated_where_the_kernel_can() {
    for rule in rules() {
        let mut setup = Setup::of(rule);
        match rule.name {
            "matmul_add"
            | "rms_norm_mul"
            | "rms_norm_mul_add"
            | "expert_sum_add"
            | "add_rms_norm_then_mul" => {
                setup.consumer.views[1] = setup.buffer(layout(&[1, COLS]));
            }
            "norm_matmul_add" => setup.consumer.views[2] = setup.buffer(layout(&[COLS])),
            "add_rms_norm" | "add_rms_norm_mul" => {
                setup.producer.views[1] = setup.buffer(layout(&[COLS]));
            }
            _ => continue,
        }
        check_fused(rule, &setup, false);
    }
}

#[test]
fn leading_extents_of_one_do_not_count() {
    for rule in rules() {
        let mut setup = Setup::of(rule);
        let shape = [&[1], setup.read().layout.dims()].concat();
        let shape: Vec<_> = shape.iter().map(|&extent| extent as usize).collect();
        setup.consumer.views[setup.operand] = setup.value.reinterpret(0, layout(&shape)).unwrap();
        check_fused(rule, &setup, false);
    }
}

#[test]
fn a_sum_that_is_read_elsewhere_stays_bound() {
    for rule in rules().filter(|rule| rule.keeps()) {
        let mut read_later = Setup::of(rule);
        let copy = read_later.buffer(read_later.value.layout);
        read_later.after.push(Step::new(Kind::Copy, &[read_later.value, copy]));
        check_fused(rule, &read_later, true);

        let mut output = Setup::of(rule);
        output.graph.mark_output(output.value.value().unwrap()).unwrap();
        check_fused(rule, &output, true);
    }
}

#[test]
fn a_sum_kept_before_stays_bound() {
    let rule = rules().find(|rule| rule.producer == Kind::AddRmsNorm).unwrap();
    let mut setup = Setup::new(rule, 1);
    let sum = setup.graph.declare_value(setup.value.layout);
    setup.producer.views.insert(2, sum);
    let (graph, report) = fuse(&setup);
    assert_eq!(report.fired_by(rule.name), 1);
    let fused = graph.dispatches().next().unwrap();
    let p = &setup.producer.views;
    let bindings = [p[0], p[1], setup.other(), sum, setup.result()];
    assert_eq!(fused.bindings.to_vec(), bindings);
}

#[test]
fn members_need_not_stand_side_by_side() {
    for rule in rules() {
        let mut setup = Setup::of(rule);
        for _ in 0..3 {
            let views = [setup.buffer(layout(&[COLS])), setup.buffer(layout(&[COLS]))];
            setup.between.push(Step::new(Kind::Copy, &views));
        }
        check_fused(rule, &setup, false);
        let (graph, report) = fuse(&setup);
        assert_eq!(graph.dispatches().last().unwrap().id, setup.consumer_id());
        assert_eq!(report.fusions[0].place, Place::Consumer);
    }
}

#[test]
fn the_producers_place_is_taken_where_the_consumers_is_too_late() {
    for rule in rules() {
        let mut setup = Setup::of(rule);
        // Overwrites what the producer reads and the consumer does not.
        let inputs = setup.producer.views.len() - 1;
        let mut own = setup.producer.views[..inputs].iter().rev();
        let own = *own.find(|view| !setup.consumer.views.contains(view)).unwrap();
        setup.between.push(Step::new(Kind::Fill, &[own]));
        check_fused(rule, &setup, false);
        let (graph, report) = fuse(&setup);
        assert_eq!(graph.dispatches().next().unwrap().id, setup.consumer_id());
        assert_eq!(report.fusions[0].place, Place::Producer);
    }
}

#[test]
fn the_consumers_place_is_taken_where_the_producers_is_too_early() {
    for rule in rules() {
        let mut setup = Setup::of(rule);
        // Reads what the consumer overwrites.
        let copy = setup.buffer(setup.result().layout);
        setup.between.push(Step::new(Kind::Copy, &[setup.result(), copy]));
        check_fused(rule, &setup, false);
        let (_, report) = fuse(&setup);
        assert_eq!(report.fusions[0].place, Place::Consumer);
    }
}

#[test]
fn labels_are_joined_once() {
    let rule = &RULES[0];
    let setup = Setup::of(rule);
    for (first, second, joined) in
        [("a", "b", "a+b"), ("a", "a", "a"), ("", "b", "b"), ("a", "", "a"), ("", "", "")]
    {
        let mut graph = setup.graph.clone();
        setup.producer.record(&mut graph, first);
        setup.consumer.record(&mut graph, second);
        graph.fuse(&mut setup.catalog.clone(), &()).unwrap();
        assert_eq!(&*graph.dispatches().next().unwrap().label, joined);
    }
}
