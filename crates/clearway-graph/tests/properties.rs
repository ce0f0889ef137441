//! Properties of the stages over random lists, held against slow oracles.
//!
//! `CLEARWAY_SEED` repeats a run, `CLEARWAY_CASES` sets its size. A failing list is made smaller
//! before it is shown.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests stand outside of them

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use clearway_graph::fuse::TestCatalog;
use clearway_graph::pipeline::{CompileError, CompileOptions, compile, schedule};
use clearway_graph::place::{SlabRule, Slot};
use clearway_graph::schedule::Strategy;
use clearway_graph::testkit::{
    Oracle, Rng, Run, Shape, TrackerOracle, branches, conflicting_pairs, members_once, minimise,
    out_of_order, plan_by_groups, random_graph, undefined_read, walk_barriers, with_nodes,
};
use clearway_graph::verify::{Placement, Problem, VerifyStats, verify};
use clearway_graph::{
    Access, BufferRange, CapturedNode, ComputeGraph, ConflictTracker, DUAL_FIRST_MIN, Dispatch,
    DispatchId, GraphError, MemRangeRole, MemoryPlan, RecordedCommand, RecordingEncoder,
};
use proptest::collection::vec;
use proptest::prelude::{Strategy as _, any, prop_assert};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

const LOOK_AHEAD: Strategy = Strategy::LookAhead { window: 64 };

/// A buffer no random list uses.
const SLAB: usize = 1000;

type Check = Result<(), String>;

/// Runs `check` over random lists; the generator given to it belongs to the list.
fn for_each(name: &str, shape: &Shape, check: impl Fn(&ComputeGraph, &mut Rng) -> Check) {
    let start = Instant::now();
    let run = Run::from_env(name, 1);
    for seed in run.seeds() {
        let graph = random_graph(seed, shape);
        if let Err(story) = check(&graph, &mut Rng::new(seed)) {
            let fails = |g: &ComputeGraph| check(g, &mut Rng::new(seed)).is_err();
            let smallest = minimise(&graph, fails);
            let why = check(&smallest, &mut Rng::new(seed)).unwrap_err();
            let text = smallest.to_text();
            panic!("list of seed {seed}: {story}\nsmallest: {why}\n{text}");
        }
    }
    println!("{name}: {:.1} s", start.elapsed().as_secs_f64());
}

fn hold(condition: bool, story: impl FnOnce() -> String) -> Check {
    if condition { Ok(()) } else { Err(story()) }
}

fn fused(graph: &ComputeGraph) -> ComputeGraph {
    let mut graph = graph.clone();
    graph.fuse_with(&mut TestCatalog::new(), &(), true).unwrap();
    graph.quantise(&mut TestCatalog::new(), &()).unwrap();
    graph
}

fn reordered(graph: &ComputeGraph, strategy: Strategy) -> ComputeGraph {
    let mut graph = graph.clone();
    graph.reorder_with(strategy);
    graph
}

fn with_barriers(graph: &ComputeGraph) -> ComputeGraph {
    let mut graph = graph.clone();
    graph.place_barriers();
    graph
}

/// Every list the stages make of a recorded one, with barriers.
fn optimised(recorded: &ComputeGraph) -> [(&'static str, ComputeGraph); 6] {
    let fused = fused(recorded);
    [
        ("as recorded", with_barriers(recorded)),
        ("levels", with_barriers(&reordered(recorded, Strategy::Levels))),
        ("look-ahead", with_barriers(&reordered(recorded, LOOK_AHEAD))),
        ("fused", with_barriers(&fused)),
        ("fused, levels", with_barriers(&reordered(&fused, Strategy::Levels))),
        ("fused, look-ahead", with_barriers(&reordered(&fused, LOOK_AHEAD))),
    ]
}

fn ranges() -> impl proptest::strategy::Strategy<Value = Vec<BufferRange>> {
    let range =
        (0usize..2, 0u64..64, 0u64..24, any::<bool>()).prop_map(|(buf_id, p0, len, write)| {
            let role = if write { MemRangeRole::Dst } else { MemRangeRole::Src };
            BufferRange { buf_id, p0, p1: p0 + len, role }
        });
    vec(range, 0..5)
}

#[test]
fn the_tracker_equals_its_oracle() {
    let run = Run::from_env("tracker equals its oracle", 1);
    let mut rng = Rng::new(run.seed);
    let seed: Vec<u8> = (0..4).flat_map(|_| rng.next().to_le_bytes()).collect();
    let config = Config { cases: run.cases as u32, failure_persistence: None, ..Config::default() };
    let mut runner =
        TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
    // What to do with a dispatch that may not join: a barrier before it, or add it all the same.
    let list = vec((ranges(), any::<bool>()), 0..30);
    let outcome = runner.run(&list, |list| {
        let mut tracker = ConflictTracker::new();
        let mut oracle = TrackerOracle::default();
        for (id, (ranges, barrier)) in (0..).map(DispatchId).zip(list) {
            let hazards = oracle.hazards(id, &ranges);
            match tracker.check(id, &ranges) {
                Ok(()) => prop_assert!(hazards.is_empty(), "{id} may not join: {hazards:?}"),
                Err(found) => {
                    let real = |h: &&clearway_graph::Hazard| {
                        (h.kind, h.earlier, h.later, h.buf_id)
                            == (found.kind, found.earlier, found.later, found.buf_id)
                            && h.p0 <= found.p0
                            && found.p1 <= h.p1
                    };
                    prop_assert!(found.p0 < found.p1, "{found}: no bytes");
                    prop_assert!(
                        hazards.iter().any(|h| real(&h)),
                        "{found} is none of {hazards:?}"
                    );
                    if barrier {
                        tracker.reset();
                        oracle.reset();
                    }
                }
            }
            tracker.add(id, &ranges);
            oracle.add(id, &ranges);
        }
        Ok(())
    });
    outcome.unwrap_or_else(|failure| panic!("CLEARWAY_SEED={}: {failure}", run.seed));
}

#[test]
fn every_pass_keeps_dispatches_and_the_order_of_conflicting_pairs() {
    let (fusions, moves) = (Cell::new(0), Cell::new(0));
    for_each("passes keep dispatches and order", &Shape::default(), |recorded, _| {
        let pairs = conflicting_pairs(recorded);
        for (name, last) in optimised(recorded) {
            let moved = last.schedule_report().map_or(0, |report| report.moved);
            moves.set(moves.get() + moved);
            fusions.set(fusions.get() + recorded.dispatch_count() - last.dispatch_count());
            hold(members_once(recorded, &last), || format!("{name}: dispatches lost or doubled"))?;
            let wrong = out_of_order(&pairs, &last);
            hold(wrong.is_none(), || format!("{name}: {wrong:?} changed places"))?;
        }
        Ok(())
    });
    let (fusions, moves) = (fusions.get(), moves.get());
    println!("{fusions} fusions, {moves} moves");
    assert!(fusions > 0 && moves > 0, "the passes must have something to do");
}

#[test]
fn barriers_stand_where_the_oracle_puts_them_and_encoders_agree() {
    let shape = Shape { dispatches: (1, 140), values: 85, ..Shape::default() };
    for_each("encoders put barriers where place_barriers does", &shape, |graph, _| {
        let placed = with_barriers(graph);
        let (inner, at_end) = walk_barriers(graph, None);
        hold(positions(&placed) == (inner, at_end), || "not where the oracle puts them".into())?;

        let mut expected = RecordingEncoder::default();
        let count = placed.encode_sequential(&mut expected).unwrap();
        hold(count == placed.barrier_count(), || "encode_sequential miscounts".into())?;

        // Barrier nodes that are already there are ignored.
        let mut everywhere = graph.clone();
        everywhere.place_barriers_everywhere();
        for list in [graph, &placed, &everywhere] {
            let mut direct = RecordingEncoder::default();
            let count = list.encode_with_barriers(&mut direct).unwrap();
            hold(direct.commands == expected.commands, || "encode_with_barriers differs".into())?;
            hold(count == placed.barrier_count(), || "encode_with_barriers miscounts".into())?;
        }
        let (first, second) = dual(graph, false)?;
        let joined = [first, second].concat();
        hold(joined == expected.commands, || "encode_dual_buffer differs".into())?;

        let (first, second) = dual(graph, true)?;
        let split = first.iter().filter(|c| matches!(c, RecordedCommand::Dispatch(_))).count();
        let (inner, at_end) = walk_barriers(graph, Some(split));
        let joined = [first, second].concat();
        hold(command_positions(&joined) == (inner, at_end), || "ordered encoders differ".into())
    });
}

/// What goes into two encoders, without the commit of the first.
fn dual(
    graph: &ComputeGraph,
    orders_commits: bool,
) -> Result<(Vec<RecordedCommand>, Vec<RecordedCommand>), String> {
    let encoder = RecordingEncoder { orders_commits, ..RecordingEncoder::default() };
    let (mut first, mut second) = (encoder.clone(), encoder);
    let counts = graph.encode_dual_buffer(&mut first, &mut second).unwrap();
    hold(first.commands.pop() == Some(RecordedCommand::Commit), || "no commit".into())?;
    hold(!second.commands.contains(&RecordedCommand::Commit), || "two commits".into())?;
    let barriers = |commands: &[RecordedCommand]| {
        commands.iter().filter(|c| matches!(c, RecordedCommand::Barrier(_))).count() as u32
    };
    let dispatches = first.commands.len() - barriers(&first.commands) as usize;
    let all = graph.dispatch_count() as usize;
    let split = DUAL_FIRST_MIN.max(all.div_ceil(10)).min(all);
    hold(dispatches == split, || format!("split at {dispatches} instead of {split}"))?;
    let expected = (barriers(&first.commands), barriers(&second.commands));
    hold(counts == expected, || "encode_dual_buffer miscounts".into())?;
    Ok((first.commands, second.commands))
}

/// Dispatches before each inner barrier, and whether one stands at the end.
fn positions(graph: &ComputeGraph) -> (Vec<usize>, bool) {
    let mut encoder = RecordingEncoder::default();
    graph.encode_sequential(&mut encoder).unwrap();
    command_positions(&encoder.commands)
}

fn command_positions(commands: &[RecordedCommand]) -> (Vec<usize>, bool) {
    let mut dispatches = 0;
    let mut barriers = Vec::new();
    for command in commands {
        match command {
            RecordedCommand::Dispatch(_) => dispatches += 1,
            RecordedCommand::Barrier(_) => barriers.push(dispatches),
            RecordedCommand::Commit => {}
        }
    }
    let at_end = barriers.pop_if(|at| *at == dispatches).is_some();
    (barriers, at_end)
}

#[test]
fn no_barrier_is_needless() {
    for_each("no barrier is needless", &Shape::default(), |recorded, _| {
        for (name, last) in optimised(recorded) {
            for at in 0..last.nodes().len() {
                if last.nodes()[at].dispatch().is_none() {
                    let mut nodes = last.nodes().to_vec();
                    nodes.remove(at);
                    let without = with_nodes(&last, nodes);
                    let story = || format!("{name}: the barrier at node {at} is needless");
                    hold(verify(recorded, &without, None).is_err(), story)?;
                }
            }
        }
        Ok(())
    });
}

#[test]
fn every_optimised_list_passes_verify() {
    for_each("optimised lists pass verify", &Shape::default(), |recorded, rng| {
        let oracles = [Oracle::new(recorded), Oracle::of_elements(recorded)];
        for (name, last) in optimised(recorded) {
            let proof = proven(recorded, &oracles, &last, None);
            let stats = proof.map_err(|why| format!("{name}: {why}"))?;
            if let Some(report) = last.schedule_report() {
                let chain = report.longest_chain;
                hold(stats.longest_chain == chain, || format!("{name}: chains differ"))?;
                let pinned = recorded.dispatches().any(|d| !d.kind.is_reorderable());
                let fewest = report.strategy == Strategy::Levels && !pinned;
                let story = || format!("{name}: {} groups for a chain of {chain}", stats.groups);
                hold(!fewest || stats.groups == chain, story)?;
            }
            let align = 1 << rng.below(5);
            let plans = [
                ("without reuse", MemoryPlan::without_reuse(&last, align)),
                ("by groups", plan_by_groups(&last, align, rng)),
            ];
            for (how, plan) in plans {
                let mut placed = last.clone();
                placed.assign_addresses(&plan, &[SLAB]).unwrap();
                let placement = Placement { plan: &plan, slab_buf_ids: &[SLAB] };
                let proof = proven(recorded, &oracles, &placed, Some(placement));
                proof.map_err(|why| format!("{name}, placed {how}: {why}"))?;
                let mut again = placed.clone();
                let barriers = again.place_barriers();
                let story = || format!("{name}, placed {how}: sharing memory adds a barrier");
                hold(barriers == last.barrier_count(), story)?;
            }
        }
        Ok(())
    });
}

/// The statistics, if the verifier and the oracles all accept the list.
fn proven(
    recorded: &ComputeGraph,
    oracles: &[Oracle<'_>],
    last: &ComputeGraph,
    placement: Option<Placement<'_>>,
) -> Result<VerifyStats, String> {
    let stats = verify(recorded, last, placement).map_err(|fault| fault.to_string())?;
    for oracle in oracles {
        oracle.accepts(last, placement).map_err(|why| format!("accepted, but {why}"))?;
    }
    Ok(stats)
}

/// Whether no dispatch reads one value and writes another in the same slab, unless in place.
fn writes_apart(recorded: &ComputeGraph, list: &ComputeGraph) -> bool {
    let was: HashMap<DispatchId, &Arc<Dispatch>> =
        recorded.dispatches().map(|dispatch| (dispatch.id, dispatch)).collect();
    let recorded_buf = |access: &Access| {
        was[&access.origin.dispatch].accesses()[usize::from(access.origin.access)].range.buf_id
    };
    list.dispatches().all(|dispatch| {
        let (writes, reads): (Vec<&Access>, Vec<&Access>) =
            dispatch.accesses().iter().partition(|access| access.range.is_write());
        writes.iter().filter(|write| (SLAB..SLAB + 1000).contains(&write.range.buf_id)).all(
            |write| {
                reads.iter().all(|read| {
                    let bytes = |access: &Access| (access.range.p0, access.range.p1);
                    read.range.buf_id != write.range.buf_id
                        || recorded_buf(read) == recorded_buf(write)
                        || bytes(read) == bytes(write)
                })
            },
        )
    })
}

#[test]
fn every_switch_of_the_pipeline_compiles_to_a_proven_list() {
    let (in_place, quantised) = (Cell::new(0), Cell::new(0));
    for_each("the pipeline proves what it compiles", &Shape::default(), |recorded, rng| {
        let align = 1 << rng.below(9);
        let largest = recorded.values().iter().map(|value| value.bytes).max().unwrap_or(0);
        let one_slab = rng.chance(50);
        let options = CompileOptions {
            fuse: rng.chance(50),
            quantise: rng.chance(70),
            reorder: [None, Some(Strategy::Levels), Some(LOOK_AHEAD)][rng.below(3) as usize],
            elide: rng.chance(80),
            reuse: rng.chance(80),
            replay: rng.chance(50),
            counters: false,
            align,
            max_slab_bytes: match one_slab {
                true => u64::MAX,
                false => largest.next_multiple_of(align) * (1 + rng.below(3)),
            },
            slab_rule: [
                SlabRule::Any,
                SlabRule::WritesApart,
                SlabRule::GroupsApart { spread_bytes: 0 },
                SlabRule::GroupsApart { spread_bytes: u64::MAX },
            ][rng.below(4) as usize],
            budget: None,
        };
        let mut catalog = TestCatalog::new();
        let slab_ids: Vec<usize> = (0..1000).map(|slab| SLAB + slab).collect();
        let slabs = |_: &MemoryPlan| Ok::<_, CompileError>(slab_ids.clone());
        let compiled = compile(recorded, &mut catalog, &(), &options, slabs)
            .map_err(|error| format!("{options:?}: {error}"))?;
        let stats = compiled.stats();
        hold(stats.false_barriers == 0, || format!("{options:?}: sharing adds barriers"))?;
        let largest = compiled.plan().slab_bytes().iter().all(|&b| b <= options.max_slab_bytes);
        hold(largest, || format!("{options:?}: a slab is too large"))?;
        let apart = options.slab_rule == SlabRule::Any || writes_apart(recorded, compiled.graph());
        hold(apart, || format!("{options:?}: a dispatch reads the slab it writes"))?;
        let over_operand = |d: &&Arc<Dispatch>| {
            let place = |binding: u16| {
                let view = &d.bindings[usize::from(binding)];
                (view.buf_id, view.offset)
            };
            d.in_place.iter().any(|pair| place(pair.output) == place(pair.input))
        };
        in_place.set(in_place.get() + compiled.graph().dispatches().filter(over_operand).count());
        quantised.set(quantised.get() + stats.quantised);
        let mut was = recorded.clone();
        was.set_replayed(options.replay);
        let placement = Placement { plan: compiled.plan(), slab_buf_ids: &slab_ids };
        for oracle in [Oracle::new(&was), Oracle::of_elements(&was)] {
            let sound = oracle.accepts(compiled.graph(), Some(placement));
            sound.map_err(|why| format!("{options:?}: accepted, but {why}"))?;
        }
        Ok(())
    });
    println!("{} dispatches write over an operand", in_place.get());
    assert!(in_place.get() > 0, "some lists must be compiled in place");
    println!("{} values are quantised", quantised.get());
    assert!(quantised.get() > 0, "some lists must have values between products");
}

#[test]
fn verify_accepts_exactly_what_the_oracle_accepts() {
    let shape = Shape { dispatches: (2, 16), ..Shape::default() };
    let (accepted_lists, refused_lists) = (Cell::new(0), Cell::new(0));
    for_each("verify equals its oracle", &shape, |recorded, rng| {
        let mut last = recorded.clone();
        if rng.chance(30) {
            last = fused(&last);
        }
        match rng.below(3) {
            0 => drop(last.place_barriers_everywhere()),
            1 => drop(last.place_barriers()),
            _ => {
                last.reorder();
                last.place_barriers();
            }
        }
        let mut nodes = last.nodes().to_vec();
        for _ in 0..rng.below(3) {
            disturb(&mut nodes, rng);
        }
        let last = with_nodes(&last, nodes);
        let oracles = [Oracle::new(recorded), Oracle::of_elements(recorded)];
        let count = |accepted: bool| {
            let counter = if accepted { &accepted_lists } else { &refused_lists };
            counter.set(counter.get() + 1);
        };
        count(same_verdict(recorded, &oracles, &last, None)?);

        let mut plan = match rng.chance(50) {
            true => MemoryPlan::without_reuse(&last, 2),
            false => plan_by_groups(&last, 2, rng),
        };
        if rng.chance(70) {
            plan = shifted(&plan, rng);
        }
        let mut placed = last;
        placed.assign_addresses(&plan, &[SLAB]).unwrap();
        let placement = Placement { plan: &plan, slab_buf_ids: &[SLAB] };
        count(same_verdict(recorded, &oracles, &placed, Some(placement))?);
        Ok(())
    });
    let (accepted, refused) = (accepted_lists.get(), refused_lists.get());
    println!("accepted {accepted} lists, refused {refused}");
    assert!(accepted > 0 && refused > 0, "both verdicts must occur");
}

/// Moves a node, swaps two, or takes a barrier out.
fn disturb(nodes: &mut Vec<CapturedNode>, rng: &mut Rng) {
    if nodes.is_empty() {
        return;
    }
    let (a, b) = (rng.below(nodes.len() as u64) as usize, rng.below(nodes.len() as u64) as usize);
    match rng.below(3) {
        0 => nodes.swap(a, b),
        1 => {
            let node = nodes.remove(a);
            nodes.insert(b, node);
        }
        _ if nodes[a].dispatch().is_none() => drop(nodes.remove(a)),
        _ => {}
    }
}

/// The plan with one value put where another lies, or near it.
fn shifted(plan: &MemoryPlan, rng: &mut Rng) -> MemoryPlan {
    let mut slots = plan.slots().to_vec();
    let placed: Vec<usize> = (0..slots.len()).filter(|&v| slots[v].is_some()).collect();
    if let (Some(&moved), Some(&onto)) = (rng.pick(&placed), rng.pick(&placed)) {
        let target = slots[onto].unwrap().offset;
        let slot: &mut Slot = slots[moved].as_mut().unwrap();
        slot.offset =
            if rng.chance(50) { target } else { (target + 8).saturating_sub(rng.below(16)) };
    }
    let top = slots.iter().flatten().map(|s| s.offset + s.bytes).max().unwrap_or(0);
    MemoryPlan::new(slots, vec![top])
}

/// The verdict of the verifier and of the first oracle. What they accept must be right element by element
/// as well.
fn same_verdict(
    recorded: &ComputeGraph,
    [declared, elements]: &[Oracle<'_>; 2],
    last: &ComputeGraph,
    placement: Option<Placement<'_>>,
) -> Result<bool, String> {
    let verdict = verify(recorded, last, placement);
    match (&verdict, declared.accepts(last, placement)) {
        (Ok(_), Err(why)) => return Err(format!("accepted, but {why}\n{}", last.to_text())),
        (Err(fault), Ok(())) => {
            return Err(format!("refused without cause: {fault}\n{}", last.to_text()));
        }
        _ => {}
    }
    if verdict.is_ok() {
        let right = elements.accepts(last, placement);
        right.map_err(|why| format!("accepted, but {why}\n{}", last.to_text()))?;
    }
    Ok(verdict.is_ok())
}

#[test]
fn reads_of_what_nobody_wrote_are_refused_and_no_others() {
    let shape = Shape { undefined: 10, ..Shape::default() };
    let (accepted, refused) = (Cell::new(0), Cell::new(0));
    let run = Run::from_env("reads of what nobody wrote", 1);
    for seed in run.seeds() {
        let recorded = random_graph(seed, &shape);
        let expected = undefined_read(&recorded);
        let options = CompileOptions::default();
        let found = match schedule(&recorded, &mut TestCatalog::new(), &(), &options) {
            Ok(_) => None,
            Err(GraphError::UndefinedRead { dispatch, .. }) => Some(Some(dispatch)),
            Err(GraphError::UndefinedOutput { .. }) => Some(None),
            Err(error) => panic!("seed {seed}: {error}"),
        };
        assert_eq!(found, expected, "seed {seed}\n{}", recorded.to_text());
        let mut last = recorded.clone();
        last.place_barriers();
        let found = match verify(&recorded, &last, None) {
            Ok(_) => None,
            Err(fault) if fault.problem == Problem::UndefinedRead => Some(fault.dispatch),
            Err(fault) => panic!("seed {seed}: {fault}"),
        };
        assert_eq!(found, expected, "verifier, seed {seed}\n{}", recorded.to_text());
        let count = if expected.is_none() { &accepted } else { &refused };
        count.set(count.get() + 1);
    }
    println!("{} accepted, {} refused", accepted.get(), refused.get());
    assert!(run.cases < 100 || (accepted.get() > 10 && refused.get() > 10));
}

#[test]
fn levels_reach_the_longest_chain_of_branches_and_look_ahead_does_not() {
    for (width, length, chain, look_ahead) in
        [(2, 100, 102, 138), (4, 100, 102, 237), (8, 40, 42, 120)]
    {
        let recorded = branches(width, length);
        let groups = |strategy| {
            let last = with_barriers(&reordered(&recorded, strategy));
            let stats = verify(&recorded, &last, None).unwrap();
            (stats.groups, stats.longest_chain)
        };
        assert_eq!(groups(Strategy::Levels), (chain, chain), "{width} x {length}");
        assert_eq!(groups(LOOK_AHEAD), (look_ahead, chain), "{width} x {length}");
    }
}
