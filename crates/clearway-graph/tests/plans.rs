//! Plans by example: their forms, joins in place, shadows, scratch, several slabs.
#![allow(clippy::unwrap_used)] // a test stops at the first surprise

use clearway_graph::pipeline::{CompileError, CompileOptions, Compiled, compile};
use clearway_graph::place::{
    MemoryPlan, PlaceOptions, SlabRule, Slot, lifetimes, plan, plan_with, stale_shadow,
};
use clearway_graph::testkit::{decoder_like, random_dag, record_op};
use clearway_graph::verify::{Placement, verify};
use clearway_graph::{
    BindingContract, BindingRole, CapturedOpKind as Kind, ComputeGraph, DType, GraphError,
    KernelContract, Layout, NodeId, RecordingEncoder, TensorView,
};
use insta::assert_snapshot;

const SLAB: usize = usize::MAX >> 1;
const ALIGN: u64 = 64;

fn scheduled(recorded: &ComputeGraph) -> ComputeGraph {
    let mut list = recorded.clone();
    list.reorder();
    list.place_barriers();
    list
}

fn slab_ids(plan: &MemoryPlan) -> Vec<usize> {
    (0..plan.slab_bytes().len()).map(|slab| SLAB - slab).collect()
}

/// Addresses filled in, and the list proven.
fn prove(recorded: &ComputeGraph, list: &ComputeGraph, plan: &MemoryPlan) -> Result<(), String> {
    let mut placed = list.clone();
    let slab_buf_ids = &slab_ids(plan);
    placed.assign_addresses(plan, slab_buf_ids).map_err(|error| error.to_string())?;
    placed.place_barriers();
    let placement = Placement { plan, slab_buf_ids };
    verify(recorded, &placed, Some(placement)).map(|_| ()).map_err(|fault| fault.to_string())
}

fn row(elems: usize) -> Layout {
    Layout::new(DType::F32, &[1, elems]).unwrap()
}

/// Records an op that makes one value.
fn op(graph: &mut ComputeGraph, kind: Kind, inputs: &[TensorView], layout: Layout) -> TensorView {
    let result = graph.declare_value(layout);
    record_op(graph, kind, &[inputs, &[result]].concat());
    result
}

fn id(view: &TensorView) -> NodeId {
    view.value().unwrap()
}

#[test]
fn text_of_a_plan() {
    let list = scheduled(&decoder_like(24));
    assert_snapshot!(plan(&list, 256).unwrap().to_text());
}

#[test]
fn json_of_a_plan() {
    let (_, list, _) = with_shadow();
    let json = plan(&list, 256).unwrap().to_json();
    assert_snapshot!(serde_json::to_string_pretty(&json).unwrap());
}

#[test]
fn text_of_a_plan_with_several_slabs() {
    let list = scheduled(&decoder_like(24));
    let options = PlaceOptions { rule: SlabRule::WritesApart, ..PlaceOptions::default() };
    assert_snapshot!(plan_with(&list, &options).unwrap().to_text());
}

/// Two rows that are made, joined and read.
fn joined(a: usize, b: usize) -> (ComputeGraph, [TensorView; 3]) {
    let mut graph = ComputeGraph::new();
    let [x, y] = [(); 2].map(|()| op(&mut graph, Kind::Fill, &[], row(64)));
    let weight = |elems, buf_id| {
        let layout = Layout::new(DType::F32, &[elems, 64]).unwrap();
        TensorView { buf_id, buf_len: layout.span_bytes(), offset: 0, layout }
    };
    let left = op(&mut graph, Kind::MATMUL, &[x, weight(a, 0)], row(a));
    let right = op(&mut graph, Kind::MATMUL, &[y, weight(b, 1)], row(b));
    let both = op(&mut graph, Kind::Concat, &[left, right], row(a + b));
    let last = op(&mut graph, Kind::SILU, &[both], row(a + b));
    graph.mark_output(id(&last)).unwrap();
    (graph, [left, right, both])
}

#[test]
fn the_parts_of_a_joined_row_lie_inside_it_and_nothing_is_copied() {
    let (recorded, [left, right, both]) = joined(32, 48);
    let list = scheduled(&recorded);
    let plan = plan(&list, ALIGN).unwrap();
    let at = |view: &TensorView| plan.slot(id(view)).unwrap().offset;
    assert_eq!((at(&left), at(&right)), (at(&both), at(&both) + 32 * 4));
    prove(&recorded, &list, &plan).unwrap();
    let mut placed = list.clone();
    placed.assign_addresses(&plan, &[SLAB]).unwrap();
    assert_eq!(placed.dispatches().filter(|d| d.is_moot()).count(), 1);
    let mut encoder = RecordingEncoder::default();
    let barriers = placed.encode_sequential(&mut encoder).unwrap();
    assert_eq!(encoder.commands.len() as u32, placed.dispatch_count() - 1 + barriers);
    // A part a little beside its place is neither a copy nor nothing.
    let mut slots = plan.slots().to_vec();
    slots[id(&right).index()].as_mut().unwrap().offset += 4;
    let wrong = MemoryPlan::new(slots, vec![plan.total_bytes() + 64]);
    assert!(prove(&recorded, &list, &wrong).unwrap_err().contains("operand"));
}

#[test]
fn parts_that_others_read_or_that_miss_the_alignment_keep_bytes_of_their_own() {
    let apart = |recorded: &ComputeGraph, views: [TensorView; 3], align: u64| {
        let list = scheduled(recorded);
        let plan = plan(&list, align).unwrap();
        prove(recorded, &list, &plan).unwrap();
        let [left, _, both] = views.map(|view| plan.slot(id(&view)).unwrap());
        left.offset + left.bytes <= both.offset || both.offset + both.bytes <= left.offset
    };
    let (recorded, views) = joined(33, 48);
    assert!(apart(&recorded, views, ALIGN), "33 floats end between two cache lines");
    assert!(!apart(&recorded, views, 4));
    let (mut recorded, views) = joined(32, 48);
    let read = op(&mut recorded, Kind::SILU, &[views[0]], row(32));
    recorded.mark_output(id(&read)).unwrap();
    assert!(apart(&recorded, views, ALIGN), "another reader");
    let (mut recorded, views) = joined(32, 48);
    recorded.mark_output(id(&views[0])).unwrap();
    assert!(apart(&recorded, views, ALIGN), "the host reads it");
}

/// A value that is read as f32 and, through its shadow, as f16.
fn with_shadow() -> (ComputeGraph, ComputeGraph, [TensorView; 2]) {
    let mut graph = ComputeGraph::new();
    let x = op(&mut graph, Kind::Fill, &[], row(100));
    let y = op(&mut graph, Kind::SILU, &[x], row(64));
    let (shadow, fresh) = graph.shadow(&y).unwrap();
    assert!(!fresh);
    record_op(&mut graph, Kind::Copy, &[y, shadow]);
    assert!(graph.shadow(&y).unwrap().1, "written since the value was");
    let half = Layout::new(DType::F16, &[1, 64]).unwrap();
    let z = op(&mut graph, Kind::SILU, &[shadow], half);
    let z = op(&mut graph, Kind::SILU, &[z], half);
    graph.mark_output(id(&z)).unwrap();
    let list = scheduled(&graph);
    (graph, list, [y, shadow])
}

#[test]
fn a_shadow_lies_at_half_the_offset_in_a_buffer_of_half_the_size() {
    let (recorded, list, [y, shadow]) = with_shadow();
    for plan in [plan(&list, 256).unwrap(), MemoryPlan::without_reuse(&list, 256)] {
        let (slot, half) = (plan.slot(id(&y)).unwrap(), plan.slot(id(&shadow)).unwrap());
        assert_eq!(half, Slot { slab: 1, offset: slot.offset / 2, bytes: slot.bytes / 2 });
        assert_eq!(plan.slab_bytes()[1], plan.slab_bytes()[0] / 2);
        assert_eq!(plan.shadows(), [(id(&y), id(&shadow))]);
        prove(&recorded, &list, &plan).unwrap();
    }
    assert_eq!(stale_shadow(&recorded), None);
}

#[test]
fn a_value_lives_as_long_as_its_shadow() {
    let (_, list, [y, shadow]) = with_shadow();
    let plan = plan(&list, 256).unwrap();
    let lives = lifetimes(&list);
    let life = |view: &TensorView| *lives.iter().find(|life| life.value == id(view)).unwrap();
    assert!(life(&shadow).last > life(&y).last, "the f16 reader comes after the last f32 reader");
    let slot = plan.slot(id(&y)).unwrap();
    for other in lives.iter().filter(|other| ![id(&y), id(&shadow)].contains(&other.value)) {
        let place = plan.slot(other.value).unwrap();
        let bytes =
            place.offset < slot.offset + slot.bytes && slot.offset < place.offset + place.bytes;
        let groups = other.first <= life(&shadow).last && life(&y).first <= other.last;
        let input = other.last == life(&y).first; // the operand it may run over
        assert!(!bytes || !groups || input, "{other:?}");
    }
}

#[test]
fn a_stale_shadow_is_an_error_before_anything_runs() {
    let unwritten = {
        let mut graph = ComputeGraph::new();
        let x = op(&mut graph, Kind::Fill, &[], row(64));
        let (shadow, _) = graph.shadow(&x).unwrap();
        let half = Layout::new(DType::F16, &[1, 64]).unwrap();
        op(&mut graph, Kind::SILU, &[shadow], half);
        graph
    };
    let changed = {
        let (mut graph, _, [y, shadow]) = with_shadow();
        record_op(&mut graph, Kind::Fill, &[y]);
        assert!(!graph.shadow(&y).unwrap().1);
        let half = Layout::new(DType::F16, &[1, 64]).unwrap();
        op(&mut graph, Kind::SILU, &[shadow], half);
        graph
    };
    for graph in [unwritten, changed] {
        let (dispatch, value) = stale_shadow(&graph).unwrap();
        let error = compiled(&graph, &CompileOptions::default()).unwrap_err();
        let CompileError::Graph(error) = error else { panic!("{error}") };
        assert_eq!(error, GraphError::StaleShadow { dispatch, value });
    }
}

#[test]
fn only_whole_f32_values_have_a_shadow() {
    let mut graph = ComputeGraph::new();
    let x = op(&mut graph, Kind::Fill, &[], row(64));
    let half = op(&mut graph, Kind::Fill, &[], Layout::new(DType::F16, &[64]).unwrap());
    let part = x.reinterpret(4, row(8)).unwrap();
    let buffer = TensorView { buf_id: 3, ..x };
    let (shadow, _) = graph.shadow(&x).unwrap();
    for view in [half, part, buffer, shadow] {
        assert!(matches!(graph.shadow(&view), Err(GraphError::NoShadow { .. })), "{view:?}");
    }
}

fn compiled(graph: &ComputeGraph, options: &CompileOptions) -> Result<Compiled, CompileError> {
    let mut catalog = clearway_graph::fuse::TestCatalog::new();
    compile(graph, &mut catalog, &(), options, |plan: &MemoryPlan| Ok(slab_ids(plan)))
}

#[test]
fn scratch_is_a_value_that_lives_in_one_group() {
    let mut graph = ComputeGraph::new();
    let reduce = KernelContract::new(
        "two_step_sum",
        [
            BindingContract::new("x", BindingRole::Read),
            BindingContract::new("partial", BindingRole::Write),
            BindingContract::new("y", BindingRole::Write),
        ],
    );
    let x = op(&mut graph, Kind::Fill, &[], row(256));
    let mut scratches = Vec::new();
    let mut sum = x;
    for _ in 0..3 {
        let (scratch, y) = (graph.declare_value(row(64)), graph.declare_value(row(256)));
        graph.dispatch(Kind::Custom, &reduce, &[sum, scratch, y], &[], "").unwrap();
        scratches.push(scratch);
        sum = y;
    }
    graph.mark_output(id(&sum)).unwrap();
    let list = scheduled(&graph);
    let plan = plan(&list, ALIGN).unwrap();
    prove(&graph, &list, &plan).unwrap();
    for life in lifetimes(&list).iter().filter(|l| scratches.iter().any(|s| id(s) == l.value)) {
        assert_eq!(life.first, life.last);
    }
    assert_eq!(plan.total_bytes(), 2 * 1024 + 256, "one scratch at a time");
}

#[test]
fn a_slab_is_split_only_above_the_largest_buffer_and_no_value_is_torn() {
    let recorded = random_dag(5, 4);
    let list = scheduled(&recorded);
    let whole = plan(&list, ALIGN).unwrap();
    assert_eq!(whole.slab_bytes().len(), 1);
    let total = whole.total_bytes();
    let largest = recorded.values().iter().map(|value| value.bytes).max().unwrap();
    for max_slab_bytes in [total, total - 1, total / 2, total / 3, largest] {
        let options = PlaceOptions { max_slab_bytes, ..PlaceOptions::aligned(ALIGN) };
        let split = plan_with(&list, &options).unwrap();
        assert_eq!(split.slab_bytes().len() == 1, max_slab_bytes >= total, "{max_slab_bytes}");
        for slot in split.slots().iter().flatten() {
            assert!(slot.offset + slot.bytes <= split.slab_bytes()[slot.slab]);
        }
        assert!(split.slab_bytes().iter().all(|&bytes| bytes <= max_slab_bytes));
        assert!(split.total_bytes() < 2 * total, "{}", split.total_bytes());
        prove(&recorded, &list, &split).unwrap();
    }
    let options = PlaceOptions { max_slab_bytes: largest - 1, ..PlaceOptions::aligned(ALIGN) };
    let error = plan_with(&list, &options).unwrap_err();
    let wanted = matches!(error, GraphError::ValueAboveSlab { bytes, largest: l, .. }
        if bytes == largest && l == largest - 1);
    assert!(wanted, "{error}");
}

#[test]
fn values_that_must_not_share_a_slab_do_not() {
    let recorded = random_dag(8, 3);
    let list = scheduled(&recorded);
    let used: Vec<NodeId> = lifetimes(&list).iter().map(|life| life.value).collect();
    let apart: Vec<(NodeId, NodeId)> =
        used.iter().zip(used.iter().skip(7)).step_by(3).map(|(a, b)| (*a, *b)).collect();
    let options = PlaceOptions { apart: apart.clone(), ..PlaceOptions::aligned(ALIGN) };
    let plan = plan_with(&list, &options).unwrap();
    let slab = |value: NodeId| plan.slot(value).unwrap().slab;
    assert!(apart.len() > 50 && apart.iter().all(|&(a, b)| slab(a) != slab(b)));
    assert!(plan.slab_bytes().len() < 6, "few slabs are enough");
    prove(&recorded, &list, &plan).unwrap();
}
