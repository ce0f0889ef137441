//! The report and its JSON: the figures of the stages, and lists that agree with them.
#![allow(clippy::unwrap_used)] // a test stops at the first surprise

mod common;

use clearway::cpu::CpuDevice;
use clearway::pipeline::compile;
use clearway::place::CostModel;
use clearway::{
    CompileError, CompileOptions, DType, GraphExecutor, KernelRegistry, Layout, MemoryPlan, Ops,
    Recorder,
};
use clearway_inspect::{InspectError, InspectOptions, Report, VERSION, measure, stats_lines};
use common::{graph, json, report, report_with};

#[test]
fn the_json_has_the_documented_keys_and_its_lists_agree_with_its_figures() {
    let report = json(&report(&graph()).to_json().unwrap());
    assert_eq!(report["format"], "clearway-inspect");
    assert_eq!(report["version"], VERSION);
    let count = |key: &str| report[key].as_u64().unwrap();
    let rows = |key: &str| report[key].as_array().unwrap().len() as u64;
    assert_eq!((count("recorded"), count("dispatches"), count("fusions")), (10, 8, 2));
    assert_eq!((count("groups"), count("longest_chain"), count("false_barriers")), (6, 6, 0));
    for (list, figure) in [
        ("recorded_list", "recorded"),
        ("dispatch_list", "dispatches"),
        ("group_list", "groups"),
        ("barrier_list", "barriers"),
        ("fusion_list", "fusions"),
    ] {
        assert_eq!(rows(list), count(figure), "{list}");
    }
    assert_eq!(report["phases_per_layer"], 3.0);
    let arena = count("arena_bytes");
    assert!(arena >= count("arena_lower_bound") && arena > 0);
    let groups = report["group_list"].as_array().unwrap();
    assert!(groups.iter().all(|group| group["live_bytes"].as_u64().unwrap() <= arena));
    let times = groups.iter().map(|group| group["estimated_ns"].as_f64().unwrap());
    assert_eq!(times.sum::<f64>(), report["estimated_ns"].as_f64().unwrap());
    for key in ["moved", "value_list", "refused_fusions", "refused_moves", "views", "front"] {
        assert!(!report[key].is_null(), "{key}");
    }
    assert!(report["measured_ns"].is_null() && report["measured"].is_null());
}

#[test]
fn every_hazard_names_a_writer_and_lies_between_its_dispatches() {
    let report = report(&graph());
    for barrier in report.barrier_list.iter().filter(|row| row.reason == "hazard") {
        let [earlier, later] =
            [barrier.earlier, barrier.later].map(|place| place.unwrap() as usize);
        let (before, after) = (&report.dispatch_list[earlier], &report.dispatch_list[later]);
        assert!(before.group < barrier.after_group && after.group >= barrier.after_group);
        assert!(barrier.p0 < barrier.p1 && barrier.buf.is_some());
    }
    for row in &report.dispatch_list {
        for &pred in &row.after {
            assert!(report.dispatch_list[pred as usize].group < row.group, "{row:?}");
        }
        let others = report.dispatch_list.iter().filter(|other| other.group == row.group);
        assert_eq!(
            others.filter(|other| other.lane == row.lane).count(),
            1,
            "lanes are not shared"
        );
    }
}

#[test]
fn values_know_their_lives_and_who_comes_next() {
    let report = report(&graph());
    let mut reused = 0;
    for value in &report.value_list {
        for user in value.writers.iter().chain(&value.readers) {
            let group = report.dispatch_list[*user as usize].group;
            assert!((value.first..=value.last).contains(&group), "{value:?}");
        }
        for next in &value.reused_by {
            let next = report.value_list.iter().find(|row| row.id == *next).unwrap();
            assert!(next.first >= value.last, "lives meet at most in place: {value:?} {next:?}");
            assert!(
                next.offset < value.offset + value.bytes && value.offset < next.offset + next.bytes
            );
            reused += 1;
        }
    }
    assert!(reused > 0, "two layers use the same bytes");
}

#[test]
fn each_view_turns_one_switch() {
    let report = report(&graph());
    let keys: Vec<_> = report.views.iter().map(|view| view.key).collect();
    assert_eq!(keys, ["in_order", "without_reuse", "without_fusion"]);
    for view in &report.views {
        let rows = if view.list == "dispatch_list" {
            report.dispatch_list.len()
        } else {
            report.recorded_list.len()
        };
        let mut order = view.order.clone();
        order.sort_unstable();
        assert_eq!(order, (0..rows as u32).collect::<Vec<_>>(), "{}", view.key);
        assert_eq!(view.group_ns.len(), view.summary.groups as usize);
        assert_eq!(view.barrier_list.len(), view.summary.barriers as usize);
        assert!(view.barrier_list.iter().all(|b| b.hazard.is_none() || b.earlier.is_some()));
    }
    assert!(report.views[1].summary.arena_bytes > report.summary.arena_bytes);
    assert_eq!(report.views[2].summary.fusions, 0);
    let compile = CompileOptions { reorder: None, fuse: false, ..CompileOptions::default() };
    let bare = report_with(&graph(), &InspectOptions { compile, ..InspectOptions::default() });
    let keys: Vec<_> = bare.views.iter().map(|view| view.key).collect();
    assert_eq!(keys, ["reordered", "without_reuse"], "what is off already is no other view");
}

#[test]
fn the_front_trades_bytes_for_barriers() {
    // In the middle, eight wide values die while eight others are made: one after the other they need half.
    let mut pass = Recorder::default();
    let x = pass.external("x", DType::F32, &[1, 4096]).unwrap();
    let start = pass.gelu(x).unwrap();
    for _ in 0..8 {
        let dying = pass.silu(x).unwrap();
        let born = pass.scale(start, 2.0).unwrap();
        for wide in [dying, born] {
            let (values, _) = pass.top_k(wide, 8).unwrap();
            pass.mark_output(values).unwrap();
        }
    }
    let report = report(&pass.into_parts().0);
    assert_eq!(report.front[0].arena_bytes, report.summary.arena_bytes);
    assert!(report.front.len() > 2, "{:?}", report.front);
    for pair in report.front.windows(2) {
        assert!(pair[1].arena_bytes < pair[0].arena_bytes && pair[1].groups > pair[0].groups);
    }
    assert!(report.node_order.is_some() && report.free_list.is_some());
}

#[test]
fn buffers_are_named_where_they_are_mentioned() {
    let mut pass = Recorder::default();
    let cache = pass.external("cache", DType::F32, &[4, 64]).unwrap();
    let x = pass.external("x", DType::F32, &[4, 64]).unwrap();
    let y = pass.silu(x).unwrap();
    pass.copy_into(y, cache).unwrap();
    let z = pass.scale(cache, 2.0).unwrap();
    pass.mark_output(z).unwrap();
    let (graph, externals) = pass.into_parts();
    let buffers = externals.iter().map(|e| (e.view.buf_id, e.name.clone())).collect();
    let report = report_with(&graph, &InspectOptions { buffers, ..InspectOptions::default() });
    assert_eq!(report.buffers.values().collect::<Vec<_>>(), ["cache"]);
}

#[test]
fn an_empty_list_is_reported() {
    let empty = report(&clearway::ComputeGraph::new());
    assert_eq!((empty.summary.dispatches, empty.group_list.len()), (0, 0));
    assert_eq!(empty.summary.phases_per_layer, None);
    assert!(empty.to_text().contains("0 dispatches") && empty.to_html().is_ok());
    json(&empty.to_trace().unwrap());
}

#[test]
fn a_compiled_list_is_reported_without_compiling_again_and_a_foreign_one_refused() {
    let (recorded, options) = (graph(), CompileOptions::default());
    let device = CpuDevice::with_threads(1);
    let device: &(dyn clearway::Device + 'static) = &device;
    let slabs = |_: &MemoryPlan| Ok::<_, CompileError>(vec![1 << 40]);
    let compiled = compile(&recorded, &mut KernelRegistry::new(), device, &options, slabs).unwrap();
    let cost = CostModel::default();
    let of = Report::of(&recorded, &compiled, &options, &cost).unwrap();
    let full = report(&recorded);
    assert_eq!((&of.dispatch_list, &of.value_list), (&full.dispatch_list, &full.value_list));
    assert!(of.views.is_empty());
    let other = clearway::ComputeGraph::new();
    let foreign = Report::of(&other, &compiled, &options, &cost);
    assert!(matches!(foreign, Err(InspectError::ForeignList { .. })));
}

#[test]
fn times_are_attached_to_the_list_they_are_of() {
    let executor = GraphExecutor::new(CpuDevice::with_threads(2));
    let mut pass = executor.begin_recorded().unwrap();
    let x = pass.input(Layout::new(DType::F32, &[8, 64]).unwrap()).unwrap();
    let (a, b) = (pass.silu(x).unwrap(), pass.scale(x, 2.0).unwrap());
    let y = pass.add(a, b).unwrap();
    pass.output(y).unwrap();
    let recorded = pass.graph().clone();
    let compile =
        CompileOptions { align: executor.device().info().arena_align, ..CompileOptions::default() };
    let mut executable = pass.compile(&compile).unwrap();
    let times = measure(&executor, &mut executable).unwrap();
    let mut report =
        report_with(&recorded, &InspectOptions { compile, ..InspectOptions::default() });
    report.attach(&times).unwrap();
    let measured = report.measured.as_ref().unwrap();
    assert_eq!(report.summary.measured_ns, Some(measured.total_ns));
    assert_eq!(measured.top_lost.len(), report.group_list.len().min(10));
    assert!(measured.top_lost.windows(2).all(|pair| pair[0].lost_ns >= pair[1].lost_ns));
    for group in &report.group_list {
        assert!(group.measured_ns.is_some() && group.bandwidth_share.unwrap() >= 0.0);
        assert!((0.0..=1.0).contains(&group.barrier_share.unwrap()));
    }
    assert!(report.dispatch_list.iter().all(|row| row.serialised_ns.is_some()));
    let text = report.to_text();
    assert!(text.contains("measured") && text.contains("serialised"), "{text}");
    let mut other = common::report(&graph());
    assert!(matches!(other.attach(&times), Err(InspectError::ForeignTimes { .. })));
    assert!(other.measured.is_none());
}

#[test]
fn three_lines_say_what_a_step_is_made_of() {
    let stats = clearway::CompileStats {
        recorded: 10,
        dispatches: 8,
        groups: 6,
        arena_bytes: 2048,
        ..Default::default()
    };
    let lines = stats_lines(&stats);
    assert!(lines[0].contains("10 ops recorded") && lines[0].contains("8 dispatches"));
    assert!(lines[1].contains("6 groups") && lines[2].contains("2.00 KiB"));
}

#[test]
fn the_text_keeps_control_characters_to_itself() {
    let mut report = report(&graph());
    report.name = "evil\u{1b}[2Jname\r\nnext".into();
    let text = report.to_text();
    assert!(text.starts_with("evil\u{fffd}[2Jname\u{fffd}\u{fffd}next\n"), "{text}");
}

#[test]
fn a_join_that_has_nothing_to_do_is_shown_and_takes_no_time() {
    let executor = GraphExecutor::new(CpuDevice::with_threads(1));
    let mut pass = executor.begin_recorded().unwrap();
    let x = pass.input(Layout::new(DType::F32, &[1, 64]).unwrap()).unwrap();
    let (a, b) = (pass.silu(x).unwrap(), pass.scale(x, 2.0).unwrap());
    let row = pass.concat(a, b).unwrap();
    let y = pass.gelu(row).unwrap();
    pass.output(y).unwrap();
    let recorded = pass.graph().clone();
    let align = executor.device().info().arena_align;
    let compile = CompileOptions { align, ..CompileOptions::default() };
    let mut executable = pass.compile(&compile).unwrap();
    assert!(executable.graph().dispatches().any(|dispatch| dispatch.is_moot()));
    let times = measure(&executor, &mut executable).unwrap();
    let options = InspectOptions { compile, ..InspectOptions::default() };
    let mut report = report_with(&recorded, &options);
    report.attach(&times).unwrap();
    let join = report.dispatch_list.iter().find(|row| row.moot).unwrap();
    assert_eq!((join.estimated_ns, join.serialised_ns), (0.0, Some(0)));
    assert_eq!(report.group_list[join.group as usize].measured_ns, Some(0));
}

#[test]
fn bytes_are_those_a_step_can_touch_and_not_all_that_was_declared() {
    let mut pass = Recorder::default();
    let table = pass.external("table", DType::F32, &[1000, 64]).unwrap();
    let ids = pass.external("ids", DType::U32, &[2]).unwrap();
    let x = pass.gather(table, ids, 1.0).unwrap();
    let experts = pass.external("experts", DType::F32, &[16, 32, 64]).unwrap();
    let chosen = pass.external("chosen", DType::U32, &[2, 3]).unwrap();
    let y = pass.matmul_experts(x, experts, chosen).unwrap();
    pass.mark_output(y).unwrap();
    let rows = pass.external("rows", DType::F32, &[2, 1, 64]).unwrap();
    let positions = pass.external("positions", DType::U32, &[2]).unwrap();
    let cache = pass.external("cache", DType::F32, &[4096, 1, 64]).unwrap();
    pass.kv_write(rows, positions, cache).unwrap();
    let report = report(&pass.into_parts().0);
    let moved = |op: &str| {
        let row = report.dispatch_list.iter().find(|row| row.op == op).unwrap();
        (row.read_bytes, row.write_bytes)
    };
    assert_eq!(moved("gather"), (2 * 64 * 4 + 2 * 4, 2 * 64 * 4));
    let six_of_sixteen = 6 * 32 * 64 * 4;
    assert_eq!(moved("matmul_experts"), (2 * 64 * 4 + six_of_sixteen + 6 * 4, 2 * 3 * 32 * 4));
    assert_eq!(moved("kv_write"), (2 * 64 * 4 + 2 * 4, 2 * 64 * 4));
}
