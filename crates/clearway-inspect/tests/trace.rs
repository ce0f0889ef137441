//! The trace against the rules of the trace event format: every begin has its end, times grow, flows
//! connect slices, instants have a scope.
#![allow(clippy::unwrap_used, clippy::panic)] // a test stops at the first surprise

mod common;

use std::collections::HashMap;

use clearway::cpu::CpuDevice;
use clearway::{
    Counted, DispatchWait, GraphExecutor, Profile, ProfileClock, ProfileMode, ProfileSpan,
    WaitProfile,
};
use clearway_graph::fuse::TestCatalog;
use clearway_graph::testkit::{Run, Shape, random_graph};
use clearway_inspect::{InspectOptions, Measurement, Report, WaitMeasurement, inspect};
use common::{graph, json, report};
use serde_json::Value;

type Track = (u64, u64);

/// A slice: its track, its name, begin and end.
struct Slice {
    track: Track,
    name: String,
    begin: f64,
    end: f64,
}

/// Checks a trace as a whole and gives its slices.
fn check(trace: &Value) -> Vec<Slice> {
    let events = trace["traceEvents"].as_array().unwrap();
    let mut now = 0.0;
    let mut open: HashMap<Track, Vec<(String, f64)>> = HashMap::new();
    let mut slices = Vec::new();
    let mut flows: HashMap<u64, Vec<(&str, Track, f64)>> = HashMap::new();
    for event in events {
        let phase = event["ph"].as_str().unwrap();
        let track = (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
        let at = event["ts"].as_f64().unwrap();
        let name = event["name"].as_str().unwrap().to_owned();
        assert!(at >= now, "time goes back at {event}");
        now = at;
        match phase {
            "M" => assert!(event["args"].is_object()),
            "B" => open.entry(track).or_default().push((name, at)),
            "E" => {
                let (begun, begin) = open.get_mut(&track).and_then(Vec::pop).unwrap();
                assert_eq!(begun, name, "an end closes the slice that was begun last");
                slices.push(Slice { track, name, begin, end: at });
            }
            "i" => assert!(["g", "p", "t"].contains(&event["s"].as_str().unwrap())),
            "s" | "f" => {
                assert_eq!(phase == "f", event["bp"] == "e");
                flows.entry(event["id"].as_u64().unwrap()).or_default().push((phase, track, at));
            }
            other => panic!("unknown phase {other}"),
        }
    }
    assert!(open.values().all(Vec::is_empty), "a slice is not closed");
    for ends in flows.values() {
        let [("s", from, start), ("f", to, end)] = ends[..] else {
            panic!("a flow has two ends: {ends:?}")
        };
        assert!(start <= end);
        for (track, at) in [(from, start), (to, end)] {
            let inside = |s: &&Slice| s.track == track && s.begin <= at && at <= s.end;
            assert!(slices.iter().any(|slice| inside(&slice)), "a flow ends outside of slices");
        }
    }
    slices
}

fn times_of(report: &Report) -> Measurement {
    let spans = |count: usize, step: u64| {
        // One part takes no time at all: clocks are coarse.
        let end = |at: u64| if at == 1 { at * step } else { (at + 1) * step };
        let span = |at: u64| ProfileSpan { start_ns: at * step, end_ns: end(at) };
        (0..count as u64).map(span).collect::<Vec<_>>()
    };
    let profile = |mode, spans| Profile {
        mode,
        clock: ProfileClock::Gpu,
        spans,
        submit_ns: 1_500,
        wait_ns: 90_000,
        barrier_ns: Some(100),
    };
    Measurement {
        device: "test".into(),
        groups: profile(ProfileMode::Groups, spans(report.group_list.len(), 1_000)),
        serialised: profile(ProfileMode::Serialised, spans(report.dispatch_list.len(), 700)),
        runs: 1,
        copy_bytes_per_ns: Some(10.0),
    }
}

fn instants(trace: &Value) -> usize {
    trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "i").count()
}

#[test]
fn an_estimate_is_a_valid_trace_and_says_what_it_is() {
    let report = report(&graph());
    let trace = json(&report.to_trace().unwrap());
    let slices = check(&trace);
    assert_eq!(slices.len(), report.dispatch_list.len());
    assert_eq!(instants(&trace), report.barrier_list.len());
    assert!(trace["otherData"]["times"].as_str().unwrap().starts_with("estimate"));
    assert!(trace.to_string().contains("schedule (estimate)"));
    let arrows: usize = report.dispatch_list.iter().map(|row| row.after.len()).sum();
    let flows = trace["traceEvents"].as_array().unwrap().iter().filter(|e| e["ph"] == "s").count();
    assert_eq!(flows, arrows);
}

#[test]
fn measured_times_have_tracks_of_their_own_for_each_mode_and_the_host() {
    let mut report = report(&graph());
    let times = times_of(&report);
    report.attach(&times).unwrap();
    let trace = json(&report.to_trace().unwrap());
    let slices = check(&trace);
    let on = |pid: u64| slices.iter().filter(|slice| slice.track.0 == pid).collect::<Vec<_>>();
    assert_eq!(on(2).len(), report.dispatch_list.len());
    assert_eq!(on(3).len(), report.dispatch_list.len());
    let host: Vec<_> = on(1).iter().map(|slice| &*slice.name).collect();
    assert_eq!(host, ["submit", "wait"]);
    let first = on(2).iter().map(|slice| slice.begin).fold(f64::MAX, f64::min);
    assert_eq!(first, 1.5, "work starts when it is handed over");
}

#[test]
fn a_real_run_is_a_valid_trace() {
    use clearway::{CompileOptions, DType, Layout, Ops};
    let executor = GraphExecutor::new(CpuDevice::with_threads(2));
    let mut pass = executor.begin_recorded().unwrap();
    let mut x = pass.input(Layout::new(DType::F32, &[4, 64]).unwrap()).unwrap();
    for _ in 0..20 {
        let (a, b) = (pass.silu(x).unwrap(), pass.gelu(x).unwrap());
        x = pass.add(a, b).unwrap();
    }
    pass.output(x).unwrap();
    let recorded = pass.graph().clone();
    let align = executor.device().info().arena_align;
    let mut executable = pass.compile(&CompileOptions { align, ..Default::default() }).unwrap();
    let mut report = report(&recorded);
    report.attach(&clearway_inspect::measure(&executor, &mut executable).unwrap()).unwrap();
    assert_eq!(check(&json(&report.to_trace().unwrap())).len(), 2 * report.dispatch_list.len() + 2);
}

/// Unknown access, pinned dispatches, overlapping buffers, lists that run once: all of it is reported, and
/// what is reported agrees with itself.
#[test]
fn random_lists_are_reported_and_traced() {
    for seed in Run::from_env("inspected lists", 10).seeds() {
        let graph = random_graph(seed, &Shape::default());
        let options = InspectOptions::default();
        let mut report = inspect(&graph, &mut TestCatalog::new(), &(), &options).unwrap();
        check(&json(&report.to_trace().unwrap()));
        let times = times_of(&report);
        report.attach(&times).unwrap();
        let slices = check(&json(&report.to_trace().unwrap()));
        assert_eq!(slices.len(), 2 * report.dispatch_list.len() + 2, "seed {seed}");
        assert_eq!(report.group_list.len(), report.summary.groups as usize, "seed {seed}");
        assert_eq!(report.barrier_list.len(), report.summary.barriers as usize, "seed {seed}");
        for row in &report.dispatch_list {
            let earlier = |pred: &u32| report.dispatch_list[*pred as usize].group < row.group;
            assert!(row.after.iter().all(earlier), "seed {seed}: {row:?}");
        }
        for group in &report.group_list {
            assert!(group.live_bytes <= report.summary.arena_bytes, "seed {seed}");
        }
        json(&report.to_json().unwrap());
    }
}

/// Dispatches that start before those they wait for have ended, as they do with counters.
fn waits_of(report: &Report) -> WaitMeasurement {
    let dispatch = |at: usize| {
        let start = at as u64 * 1_000;
        // Every third one has a kernel without counters.
        let counted = Counted {
            workgroups: 8,
            last_start_ns: start + 100,
            waits_for: at.checked_sub(1),
            waited: if at == 0 { 0 } else { 5 },
            released_ns: start + 500,
            wait_ns: 5 * (300 + at as u64),
            longest_wait_ns: 400 + at as u64,
            polls: 30,
            most_polls: 9,
        };
        DispatchWait {
            span: ProfileSpan { start_ns: start, end_ns: start + 1_500 },
            counted: (at % 3 < 2).then_some(counted),
        }
    };
    let count = report.dispatch_list.iter().filter(|row| !row.moot).count();
    let dispatches = (0..count).map(dispatch).collect();
    let profile = WaitProfile { dispatches, total_ns: 90_000, clock_step_ns: 32.0 };
    WaitMeasurement { profile, waiting_groups: 4, run_ns: 80_000.0, barrier_run_ns: 120_000.0 }
}

#[test]
fn dispatches_that_overlap_lie_on_tracks_of_their_own_with_their_waits_inside() {
    let mut report = report(&graph());
    report.attach(&times_of(&report)).unwrap();
    let before = check(&json(&report.to_trace().unwrap())).len();
    report.attach_waits(&waits_of(&report)).unwrap();
    let trace = json(&report.to_trace().unwrap());
    let slices = check(&trace);
    let on: Vec<&Slice> = slices.iter().filter(|slice| slice.track.0 == 4).collect();
    assert_eq!(before + on.len(), slices.len(), "the other tracks are as they were");
    let (waits, runs): (Vec<&Slice>, Vec<&Slice>) =
        on.into_iter().partition(|slice| slice.name.starts_with("waits for "));
    assert_eq!(runs.len(), report.dispatch_list.len());
    let rows = || report.dispatch_list.iter().filter_map(|row| row.waits.as_ref());
    assert_eq!(waits.len(), rows().filter(|row| row.waited > 0).count());
    // What overlaps does so on different tracks, and something does.
    let mut overlaps = 0;
    for (at, a) in runs.iter().enumerate() {
        for b in &runs[at + 1..] {
            if a.begin < b.end && b.begin < a.end {
                assert_ne!(a.track, b.track, "{} and {}", a.name, b.name);
                overlaps += 1;
            }
        }
    }
    assert!(overlaps >= runs.len() - 1, "{overlaps}");
    for wait in waits {
        assert!((wait.end - wait.begin - 0.5).abs() < 1e-9, "from its start to its release");
        let outer = runs.iter().find(|run| run.track == wait.track && run.begin == wait.begin);
        assert!(outer.unwrap().end >= wait.end);
    }
}

#[test]
fn waits_are_in_the_text_and_in_the_json() {
    let mut report = report(&graph());
    report.attach(&times_of(&report)).unwrap();
    assert!(!report.to_text().contains("counters"));
    report.no_waits = Some("software drivers have no counters".into());
    assert!(report.to_text().contains("no waits        software drivers have no counters"));
    assert_eq!(json(&report.to_json().unwrap())["no_waits"], "software drivers have no counters");
    report.attach_waits(&waits_of(&report)).unwrap();
    let (text, data) = (report.to_text(), json(&report.to_json().unwrap()));
    assert!(text.contains("80.00 us a run, 120.00 us with barriers; 4 of"), "{text}");
    assert!(!text.contains("no waits"));
    let top = data["waits"]["top"].as_array().unwrap();
    let longest = |at: &Value| {
        data["dispatch_list"][at.as_u64().unwrap() as usize]["waits"]["longest_wait_ns"].as_u64()
    };
    assert!(top.len() > 1 && top.windows(2).all(|pair| longest(&pair[0]) >= longest(&pair[1])));
    let row = &data["dispatch_list"][1]["waits"];
    assert_eq!((row["waits_for"].as_u64(), row["mean_wait_ns"].as_u64()), (Some(0), Some(301)));
    let line = text.lines().find(|line| line.contains("401 ns at most")).unwrap();
    assert!(line.contains("5 of 8 workgroups, 10 looks at most"), "{line}");
    assert!(report.to_html().unwrap().contains("waits-table"));
    let mut other = waits_of(&report);
    other.profile.dispatches.pop();
    assert!(report.attach_waits(&other).is_err(), "another list");
}
