//! Every precondition, spoilt one at a time for every rule and operand.

use std::collections::BTreeSet;

use super::setup::{BYTES, COLS, ROWS, Setup, Step, layout, rules};
use crate::fuse::{Fit, RULES, Refusal, RefusedPair, Rule, Source, TestCatalog};
use crate::op::{CapturedOpKind as Kind, Gate, MapInputs};
use crate::{
    BindingContract, BindingRole, ComputeGraph, DType, DispatchId, FusedRequest, Hazard,
    HazardKind, KernelCatalog, KernelContract, Layout, Result, TensorView, View,
};

/// A way to spoil a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Spoil {
    SecondReader,
    ReadTwice,
    Output,
    Input,
    OtherWriter,
    PartialWrite,
    BoundUnannotated,
    RealBuffer,
    DType,
    Offset,
    Shape,
    Rows,
    Heads,
    Split,
    StrideRead,
    StrideWritten,
    BroadcastIntermediate,
    FirstAddend,
    OperandShape,
    Overlap,
    OverlapByOneByte,
    Crossing,
    UnannotatedBetween,
    PinnedBetween,
    NoKernel,
    Bindings,
}

const ALL: [Spoil; 26] = [
    Spoil::SecondReader,
    Spoil::ReadTwice,
    Spoil::Output,
    Spoil::Input,
    Spoil::OtherWriter,
    Spoil::PartialWrite,
    Spoil::BoundUnannotated,
    Spoil::RealBuffer,
    Spoil::DType,
    Spoil::Offset,
    Spoil::Shape,
    Spoil::Rows,
    Spoil::Heads,
    Spoil::Split,
    Spoil::StrideRead,
    Spoil::StrideWritten,
    Spoil::BroadcastIntermediate,
    Spoil::FirstAddend,
    Spoil::OperandShape,
    Spoil::Overlap,
    Spoil::OverlapByOneByte,
    Spoil::Crossing,
    Spoil::UnannotatedBetween,
    Spoil::PinnedBetween,
    Spoil::NoKernel,
    Spoil::Bindings,
];

/// What a spoilt pair gives.
enum Expected {
    Refused(Refusal),
    /// The rule gives the intermediate out as well.
    Kept,
    /// The rule has no such precondition.
    Inapplicable,
}
use Expected::{Inapplicable, Kept, Refused};

/// What does not stand in the way of a rule, with the reason.
fn not_refused(rule: &Rule) -> Vec<Spoil> {
    let heads = matches!(rule.consumer, Kind::Rope | Kind::KvWrite | Kind::RopeKvWrite);
    let cache = heads && rule.consumer != Kind::Rope;
    let gate = rule.consumer.product().is_some_and(|p| matches!(p.gate(), Gate::Operand(_)));
    let behind_norm = rule.producer == Kind::RmsNormMul && rule.consumer != Kind::ADD;
    let alone = rule.consumer.map().is_some_and(|map| map.inputs() == MapInputs::One);
    let of_sum = matches!(rule.producer, Kind::ADD | Kind::AddRmsNorm);
    let all = [
        // The sum stays.
        (rule.keeps(), Spoil::SecondReader),
        (rule.keeps(), Spoil::Output),
        // The consumer has one operand, so it cannot read the intermediate twice.
        (alone || rule.consumer == Kind::RmsNorm, Spoil::ReadTwice),
        // The intermediate is no operand that could be repeated over rows.
        (cache || behind_norm, Spoil::BroadcastIntermediate),
        // Rows are read in parts, and what the parts must be is between the op and its cache.
        (cache && rule.reshaped, Spoil::Split),
        // No sum takes part.
        (!of_sum, Spoil::FirstAddend),
        // Shapes of positions and cache do not follow from each other, and both weights of a gated
        // product have the shape that follows from the tensor both products read. A function has no other operand.
        (heads || gate || alone, Spoil::OperandShape),
    ];
    all.into_iter().filter_map(|(holds, how)| holds.then_some(how)).collect()
}

fn spoil(how: Spoil, rule: &Rule, setup: &mut Setup) -> Expected {
    let value = setup.value.value().unwrap();
    let (written, read_as, result) = (setup.value.layout, setup.read().layout, setup.result());
    match how {
        Spoil::SecondReader => {
            let copy = setup.buffer(written);
            setup.after.push(Step::new(Kind::Copy, &[setup.value, copy]));
            if rule.keeps() {
                return Kept;
            }
            Refused(Refusal::SecondReader { reader: setup.after_id() })
        }
        Spoil::ReadTwice => {
            let other = usize::from(setup.operand == 0);
            if other >= setup.consumer.views.len() - 1 {
                return Inapplicable;
            }
            setup.consumer.views[other] = setup.value;
            if rule.keeps() {
                // The sum is kept for the second read, which then is one of an output.
                return Refused(Refusal::OutputOverlapsInput {
                    output: 3,
                    input: 2,
                    buf_id: setup.value.buf_id,
                    p0: 0,
                    p1: BYTES,
                });
            }
            Refused(Refusal::SecondReader { reader: setup.consumer_id() })
        }
        Spoil::Output => {
            setup.graph.mark_output(value).unwrap();
            if rule.keeps() { Kept } else { Refused(Refusal::IsOutput) }
        }
        Spoil::Input => {
            setup.graph.mark_input(value).unwrap();
            Refused(Refusal::IsInput)
        }
        Spoil::OtherWriter => {
            setup.after.push(Step::new(Kind::Fill, &[setup.value]));
            Refused(Refusal::OtherWriter { writer: setup.after_id() })
        }
        Spoil::PartialWrite => {
            enlarge(setup);
            Refused(Refusal::PartialWrite { p0: 0, p1: BYTES, bytes: 2 * BYTES })
        }
        Spoil::BoundUnannotated => {
            let mut unknown = Step::new(Kind::Custom, &[setup.value]);
            unknown.unknown = true;
            setup.after.push(unknown);
            Refused(Refusal::BoundUnannotated { dispatch: setup.after_id() })
        }
        Spoil::RealBuffer => {
            let real = setup.buffer(written);
            *setup.producer.views.last_mut().unwrap() = real;
            setup.consumer.views[setup.operand] = real.reinterpret(0, read_as).unwrap();
            setup.value = real;
            Refused(Refusal::NotAValue)
        }
        Spoil::DType => {
            let shape: Vec<_> = written.dims().iter().map(|&extent| extent as usize).collect();
            let read = Layout::new(DType::U32, &shape).unwrap();
            reread(setup, 0, read);
            Refused(Refusal::DType { written, read })
        }
        Spoil::Offset => {
            enlarge(setup);
            reread(setup, BYTES, written);
            Refused(Refusal::Offset { written: 0, read: BYTES })
        }
        Spoil::Shape => {
            let read = layout(&[ROWS * 2, COLS / 2]);
            reread(setup, 0, read);
            Refused(Refusal::Shape { written, read })
        }
        Spoil::Rows => {
            // As many elements in matrices, but half a row in each.
            let read = layout(&[ROWS * 2, 1, COLS / 2]);
            reread(setup, 0, read);
            Refused(Refusal::Shape { written, read })
        }
        Spoil::Heads => {
            // As many rows, but only a half of each.
            let read = layout(&[ROWS, 2, COLS / 4]);
            reread(setup, 0, read);
            Refused(Refusal::Shape { written, read })
        }
        Spoil::Split => {
            // All of each row, in other parts.
            let read = layout(&[ROWS, COLS / 2, 2]);
            reread(setup, 0, read);
            match rule.reshaped {
                true if rule.fit == Fit::Full => {
                    Refused(Refusal::Operand { operand: read, result: result.layout })
                }
                true => Inapplicable,
                false => Refused(Refusal::Shape { written, read }),
            }
        }
        Spoil::StrideRead => {
            let read = transposed(read_as);
            reread(setup, 0, read);
            Refused(Refusal::Stride { written, read })
        }
        Spoil::StrideWritten => {
            let strided = transposed(written);
            setup.producer.views.last_mut().unwrap().layout = strided;
            Refused(Refusal::Stride { written: strided, read: read_as })
        }
        Spoil::BroadcastIntermediate => {
            if rule.fit != Fit::Full {
                return Inapplicable;
            }
            // One row, which the consumer repeats over the rows of the other operand.
            let row = layout(&[1, COLS]);
            let value = setup.graph.declare_value(row);
            *setup.producer.views.last_mut().unwrap() = value;
            setup.value = value;
            let operand = if rule.reshaped { layout(&[1, 2, COLS / 2]) } else { row };
            reread(setup, 0, operand);
            Refused(Refusal::Operand { operand, result: result.layout })
        }
        Spoil::FirstAddend => {
            if !matches!(rule.producer, Kind::ADD | Kind::AddRmsNorm) {
                return Inapplicable;
            }
            let operand = layout(&[1, COLS]);
            setup.producer.views[0] = setup.buffer(operand);
            Refused(Refusal::Operand { operand, result: result.layout })
        }
        Spoil::OperandShape => {
            let operand = layout(&[2, COLS]);
            let sources = rule.bindings.iter().map(|bind| bind.source);
            let misfit = setup.buffer(operand);
            if sources.clone().any(|source| source == Source::Other) {
                setup.consumer.views[1 - setup.operand] = misfit;
            } else if matches!(rule.producer, Kind::ADD | Kind::RmsNormMul) {
                setup.producer.views[1] = misfit;
            } else if matches!(rule.consumer, Kind::SILU_MUL | Kind::GELU_MUL) {
                setup.consumer.views[1] = misfit;
            } else if rule.consumer == Kind::RmsNormMul {
                // The weight of a norm of heads is as wide as a head.
                setup.consumer.views[1] = misfit;
                return Refused(Refusal::Operand { operand, result: read_as });
            } else {
                return Inapplicable;
            }
            Refused(Refusal::Operand { operand, result: result.layout })
        }
        Spoil::Overlap => {
            // In place: the result lies where the producer reads.
            let bytes = setup.producer.views[0].layout.span_bytes().min(result.byte_len());
            let input = &mut setup.producer.views[0];
            (input.buf_id, input.offset) = (result.buf_id, result.offset);
            input.buf_len = result.buf_len.max(input.offset + input.byte_len());
            setup.align(rule);
            let (p0, p1) = (result.offset, result.offset + bytes);
            let (output, buf_id) = (result_binding(rule), result.buf_id);
            Refused(Refusal::OutputOverlapsInput { output, input: 0, buf_id, p0, p1 })
        }
        Spoil::OverlapByOneByte => {
            // The last element of what the producer reads is the first of the result.
            let input = &mut setup.producer.views[0];
            let len = input.byte_len();
            let last = setup.consumer.views.last_mut().unwrap();
            last.buf_id = input.buf_id;
            last.offset = input.offset + len - 4;
            last.buf_len = last.offset + last.byte_len();
            input.buf_len = last.buf_len;
            let (p0, buf_id) = (last.offset, last.buf_id);
            setup.align(rule);
            let output = result_binding(rule);
            Refused(Refusal::OutputOverlapsInput { output, input: 0, buf_id, p0, p1: p0 + 4 })
        }
        Spoil::Crossing => {
            // Reads what the consumer will overwrite, and overwrites what the producer has read.
            let read = bytes_of(&result);
            let write = bytes_of(&setup.producer.views[0]);
            setup.between.push(Step::new(Kind::Custom, &[read, write]));
            let middle = DispatchId(1);
            let hazard = |earlier, later, on: TensorView| Hazard {
                kind: HazardKind::WriteAfterRead,
                earlier,
                later,
                buf_id: on.buf_id,
                p0: on.offset,
                p1: on.offset + on.byte_len(),
            };
            Refused(Refusal::Crosses {
                producer: hazard(Setup::PRODUCER, middle, setup.producer.views[0]),
                consumer: hazard(middle, setup.consumer_id(), result),
            })
        }
        Spoil::UnannotatedBetween => {
            let mut unknown = Step::new(Kind::Custom, &[]);
            unknown.unknown = true;
            setup.between.push(unknown);
            Refused(Refusal::CrossesUnannotated { dispatch: DispatchId(1) })
        }
        Spoil::PinnedBetween => {
            let elsewhere = setup.buffer(layout(&[COLS]));
            setup.between.push(Step::new(Kind::Pinned, &[elsewhere]));
            Refused(Refusal::CrossesPinned { dispatch: DispatchId(1) })
        }
        Spoil::NoKernel => {
            setup.catalog = TestCatalog::new().without(rule.fused);
            Refused(Refusal::NoKernel { kind: rule.fused })
        }
        Spoil::Bindings => {
            let spare = setup.buffer(layout(&[COLS]));
            let before_result = setup.consumer.views.len() - 1;
            setup.consumer.views.insert(before_result, spare);
            let bound = setup.consumer.views.len();
            Refused(Refusal::Bindings { dispatch: setup.consumer_id(), bound })
        }
    }
}

/// Where the fused dispatch binds its result if nothing is kept.
fn result_binding(rule: &Rule) -> u16 {
    let kept = |source| matches!(source, Source::Kept | Source::AlreadyKept);
    rule.bindings.iter().filter(|bind| !kept(bind.source)).count() as u16 - 1
}

/// Makes the value twice as large as what is written.
fn enlarge(setup: &mut Setup) {
    let value = setup.graph.declare_value(layout(&[2 * ROWS, COLS]));
    let half = value.reinterpret(0, setup.value.layout).unwrap();
    *setup.producer.views.last_mut().unwrap() = half;
    setup.value = half;
    reread(setup, 0, setup.read().layout);
}

/// Lets the consumer read the intermediate in another way.
fn reread(setup: &mut Setup, offset: u64, layout: Layout) {
    let view = setup.value.reinterpret(offset, layout).unwrap();
    setup.consumer.views[setup.operand] = view;
}

/// The same shape and bytes with the two innermost dimensions swapped in memory.
fn transposed(dense: Layout) -> Layout {
    let dims: Vec<_> = dense.dims().iter().map(|&extent| extent as usize).collect();
    match dims[..] {
        [rows, _] => dense.with_strides(&[1, rows]).unwrap(),
        [_, heads, size] => dense.with_strides(&[heads * size, 1, heads]).unwrap(),
        _ => unreachable!("tensors here have two or three dimensions"),
    }
}

/// The bytes of a tensor as a tensor that any op can bind.
fn bytes_of(view: &TensorView) -> TensorView {
    view.reinterpret(0, layout(&[view.byte_len() as usize / 4])).unwrap()
}

#[test]
fn every_rule_refuses_every_spoilt_precondition() {
    let mut not_refused_of_all = BTreeSet::new();
    for rule in rules() {
        for (&operand, how) in rule.operands.iter().flat_map(|o| ALL.map(|how| (o, how))) {
            let what = format!("{how:?} of {} by operand {operand}", rule.name);
            let mut setup = Setup::new(rule, operand);
            let expected = spoil(how, rule, &mut setup);
            let recorded = record(&setup, how);
            let mut graph = recorded.clone();
            let fired = graph.fuse(&mut setup.catalog.clone(), &()).unwrap();
            let report = graph.fuse_report().unwrap();
            match expected {
                Refused(reason) => {
                    assert_eq!(fired, 0, "{what}: {report}");
                    let refused = RefusedPair {
                        rule: rule.name,
                        producer: Setup::PRODUCER,
                        consumer: setup.consumer_id(),
                        buf_id: setup.value.buf_id,
                        reason,
                    };
                    assert_eq!(report.refusals, [refused], "{what}");
                    assert_eq!(graph.nodes(), recorded.nodes(), "{what}");
                }
                Kept => {
                    assert_eq!((fired, report.fusions[0].kept), (1, true), "{what}");
                    not_refused_of_all.insert((rule.name, how));
                }
                Inapplicable => {
                    not_refused_of_all.insert((rule.name, how));
                }
            }
        }
    }
    let expected = rules().flat_map(|r| not_refused(r).into_iter().map(|how| (r.name, how)));
    assert_eq!(not_refused_of_all, expected.collect());
}

/// The recorded list; a consumer with a binding too many has a contract to match.
fn record(setup: &Setup, how: Spoil) -> ComputeGraph {
    if how != Spoil::Bindings {
        return setup.record();
    }
    let mut graph = setup.graph.clone();
    setup.producer.record(&mut graph, "");
    let views = &setup.consumer.views;
    let contract = TestCatalog::contract(Kind::Custom, views.len()).unwrap();
    graph.dispatch(setup.consumer.kind, &contract, views, &setup.consumer.params, "").unwrap();
    graph
}

/// Offers kernels whose contracts are not those of the members.
struct Odd(fn(&FusedRequest<'_>) -> KernelContract);

impl KernelCatalog for Odd {
    type Device = ();

    fn fused_kernel(
        &mut self,
        _: &(),
        request: &FusedRequest<'_>,
    ) -> Result<Option<KernelContract>> {
        Ok(Some((self.0)(request)))
    }
}

#[test]
fn a_kernel_that_does_not_do_what_the_members_did_is_refused() {
    let unknown = Odd(|_| KernelContract::unknown("odd"));
    // Reads its result, too.
    let updates = Odd(|request| {
        let last = request.bindings.len() - 1;
        let role = |i| if i == last { BindingRole::ReadWrite } else { BindingRole::Read };
        let bindings: Vec<_> = (0..=last).map(|i| BindingContract::new("b", role(i))).collect();
        KernelContract::new("odd", bindings)
    });
    // Writes what it should read.
    let writes = Odd(|request| {
        let all = vec![BindingContract::new("b", BindingRole::Write); request.bindings.len()];
        KernelContract::new("odd", all)
    });
    // Does not read what it updates.
    let overwrites = Odd(|request| {
        let last = request.bindings.len() - 1;
        let role = |i| if i == last { BindingRole::Write } else { BindingRole::Read };
        let bindings: Vec<_> = (0..=last).map(|i| BindingContract::new("b", role(i))).collect();
        KernelContract::new("odd", bindings)
    });
    for rule in rules() {
        let setup = Setup::of(rule);
        let update = matches!(rule.consumer, Kind::KvWrite | Kind::RopeKvWrite);
        let all = [(&unknown, false), (&writes, false), (&updates, update), (&overwrites, !update)];
        for (catalog, fits) in all {
            let mut graph = setup.record();
            let fired = graph.fuse(&mut Odd(catalog.0), &()).unwrap();
            let report = graph.fuse_report().unwrap();
            assert_eq!(fired, u32::from(fits), "{}", rule.name);
            let reasons: Vec<_> = report.refusals.iter().map(|pair| &pair.reason).collect();
            let contract = Refusal::Contract { kernel: "odd".into() };
            assert_eq!(reasons, if fits { vec![] } else { vec![&contract] }, "{}", rule.name);
        }
    }
}

#[test]
fn an_access_without_a_binding_is_not_lost() {
    for rule in rules() {
        for member in 0..2 {
            let mut nodes: Vec<_> = Setup::of(rule).record().into_nodes();
            // An access besides those of the bindings, such as to a copy kept in half precision.
            let mut dispatch = (**nodes[member].dispatch().unwrap()).clone();
            let crate::Accesses::Known(list) = &mut dispatch.accesses else { unreachable!() };
            let mut extra = list[0];
            extra.range.buf_id = 99;
            extra.binding = 9;
            extra.origin.access = list.len() as u16;
            list.push(extra);
            let expected =
                Refusal::Uncarried { dispatch: dispatch.id, access: extra.origin.access };
            nodes[member] = crate::CapturedNode::Dispatch(dispatch.into());
            let mut graph = ComputeGraph::from_nodes(nodes).unwrap();
            assert_eq!(graph.fuse(&mut TestCatalog::new(), &()).unwrap(), 0);
            assert_eq!(graph.fuse_report().unwrap().refusals[0].reason, expected);
        }
    }
}

#[test]
fn a_tensor_bound_for_no_known_purpose_is_still_written() {
    for rule in rules() {
        let mut setup = Setup::of(rule);
        let copy = setup.buffer(setup.value.layout);
        setup.after.push(Step::new(Kind::Copy, &[setup.value, copy]));
        let mut nodes = setup.record().into_nodes();
        let mut after = (**nodes[2].dispatch().unwrap()).clone();
        let crate::Accesses::Known(list) = &mut after.accesses else { unreachable!() };
        list.remove(0);
        nodes[2] = crate::CapturedNode::Dispatch(after.into());
        let mut graph = ComputeGraph::from_nodes(nodes).unwrap();
        let fired = graph.fuse(&mut TestCatalog::new(), &()).unwrap();
        let report = graph.fuse_report().unwrap();
        if rule.keeps() {
            assert!(fired == 1 && report.fusions[0].kept, "{}", rule.name);
        } else {
            let reason = Refusal::SecondReader { reader: DispatchId(2) };
            assert_eq!(report.refusals[0].reason, reason, "{}", rule.name);
        }
    }
}

#[test]
fn a_consumer_before_the_producer_reads_something_else() {
    for rule in rules() {
        let setup = Setup::of(rule);
        let mut graph = setup.graph.clone();
        setup.consumer.record(&mut graph, "");
        setup.producer.record(&mut graph, "");
        assert_eq!(graph.fuse(&mut TestCatalog::new(), &()).unwrap(), 0);
        assert_eq!(graph.fuse_report().unwrap().refusals, []);
    }
}

#[test]
fn pairs_in_a_real_buffer_are_named_only_if_the_bytes_are_the_producers() {
    let overwritten = |step: fn(&Setup) -> Step| {
        let mut setup = Setup::new(&RULES[0], 0);
        spoil(Spoil::RealBuffer, &RULES[0], &mut setup);
        setup.between.push(step(&setup));
        let mut graph = setup.record();
        graph.fuse(&mut TestCatalog::new(), &()).unwrap();
        graph.fuse_report().unwrap().refusals.len()
    };
    assert_eq!(overwritten(|setup| Step::new(Kind::Fill, &[setup.value])), 0);
    assert_eq!(overwritten(|setup| Step::new(Kind::Fill, &[setup.producer.views[0]])), 1);
    let unknown = |_: &Setup| Step { unknown: true, ..Step::new(Kind::Custom, &[]) };
    assert_eq!(overwritten(unknown), 0);
}

#[test]
fn a_kernel_that_fails_to_compile_leaves_the_list_alone() {
    for rule in rules() {
        let graph = Setup::of(rule).record();
        let mut fused = graph.clone();
        let error = fused.fuse(&mut TestCatalog::new().failing(rule.fused), &()).unwrap_err();
        assert!(matches!(error, crate::GraphError::Kernel { .. }));
        assert_eq!(fused.nodes(), graph.nodes());
        assert!(fused.fuse_report().is_none());
    }
}

#[test]
fn the_catalog_is_asked_last() {
    for rule in rules() {
        for how in ALL {
            let mut setup = Setup::of(rule);
            let Refused(_) = spoil(how, rule, &mut setup) else { continue };
            let mut catalog = setup.catalog.clone();
            record(&setup, how).fuse(&mut catalog, &()).unwrap();
            let asked = if how == Spoil::NoKernel { vec![rule.fused] } else { vec![] };
            assert_eq!(catalog.requests, asked, "{how:?} of {}", rule.name);
        }
    }
}
