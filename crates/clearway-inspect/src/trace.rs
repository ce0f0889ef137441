//! The trace: Chrome's trace event format, as JSON, which the Perfetto UI opens.
//!
//! One process for each kind of time, so that they are never mixed: the schedule with a track for each
//! lane, the dispatches of the serialised mode, those that run beside each other because counters stand for
//! barriers, and the host. There a dispatch has a track that no other has at that time; its wait lies inside it. Dispatches are begin and end events, barriers
//! instants, dependences flow arrows. Events are in order of time; those of one moment are in the order in
//! which they make sense, the begin of a slice before the arrow that ends in it.

use serde_json::{Value, json};

use crate::error::Result;
use crate::report::{BarrierRow, DispatchRow, Report};
use crate::waits::WaitRow;

const HOST: u32 = 1;
const SCHEDULE: u32 = 2;
const SERIALISED: u32 = 3;
const COUNTED: u32 = 4;
/// Track of the barriers within the schedule; lanes follow it.
const BARRIERS: u32 = 0;
const FIRST_LANE: u32 = 1;

impl Report {
    /// The trace as JSON text. Without times it shows the estimate, and says so.
    ///
    /// # Errors
    /// [`InspectError::Json`](crate::InspectError::Json).
    pub fn to_trace(&self) -> Result<String> {
        let mut trace = Trace::default();
        self.describe(&mut trace);
        self.schedule(&mut trace);
        self.serialised(&mut trace);
        self.beside(&mut trace);
        self.host(&mut trace);
        // Stable: events of one moment stay in the order they were written.
        trace.events.sort_by_key(|(ns, _)| *ns);
        let events: Vec<Value> = trace.events.into_iter().map(|(_, event)| event).collect();
        Ok(serde_json::to_string(&json!({
            "traceEvents": events,
            "displayTimeUnit": "ns",
            "otherData": {
                "producer": "clearway inspect",
                "name": self.name,
                "times": self.times_from(),
            },
        }))?)
    }

    fn times_from(&self) -> String {
        match &self.measured {
            Some(times) => format!("measured on {}, {} clock", times.device, times.clock),
            None => "estimate, nothing was measured".to_owned(),
        }
    }

    fn describe(&self, trace: &mut Trace) {
        let what = if self.measured.is_some() { "measured per group" } else { "estimate" };
        trace.name(SCHEDULE, None, &format!("schedule ({what})"));
        trace.name(SCHEDULE, Some(BARRIERS), "barriers");
        let lanes = self.dispatch_list.iter().map(|row| row.lane + 1).max().unwrap_or(0);
        for lane in 0..lanes {
            trace.name(SCHEDULE, Some(FIRST_LANE + lane), &format!("lane {lane}"));
        }
        if self.measured.is_some() {
            trace.name(
                SERIALISED,
                None,
                "serialised (measured per dispatch, a barrier after each)",
            );
            trace.name(SERIALISED, Some(0), "dispatches");
            trace.name(HOST, None, "host");
            trace.name(HOST, Some(0), "submit and wait");
        }
    }

    /// The groups one after another, their dispatches side by side.
    fn schedule(&self, trace: &mut Trace) {
        let mut barriers = self.barrier_list.iter().peekable();
        let mut clock = self.measured.as_ref().map_or(0, |times| times.submit_ns);
        let mut flow = 0;
        let mut ends: Vec<u64> = vec![0; self.dispatch_list.len()];
        for (number, group) in self.group_list.iter().enumerate() {
            let (start, end) = match &self.measured {
                Some(times) => {
                    let start = times.submit_ns + times.group_start_ns[number];
                    (start, start + group.measured_ns.unwrap_or(0))
                }
                None => (clock, clock + group.estimated_ns as u64),
            };
            while let Some(row) = barriers.next_if(|row| row.after_group as usize <= number) {
                trace.instant(start, barrier_name(row), self.barrier_args(row));
            }
            let members = group.first as usize..(group.first + group.dispatches) as usize;
            for index in members.clone() {
                let row = &self.dispatch_list[index];
                let tid = FIRST_LANE + row.lane;
                trace.begin(start, SCHEDULE, tid, slice_name(row), slice_args(row));
                for &pred in &row.after {
                    let from = &self.dispatch_list[pred as usize];
                    trace.flow("s", ends[pred as usize], FIRST_LANE + from.lane, flow);
                    trace.flow("f", start, tid, flow);
                    flow += 1;
                }
            }
            for index in members {
                let row = &self.dispatch_list[index];
                // An estimate has a time for each dispatch; a measured group has one for all.
                let own = match self.measured {
                    Some(_) => end,
                    None => (start + row.estimated_ns as u64).min(end),
                };
                // Where an arrow starts: inside its slice, before the end.
                ends[index] = own.saturating_sub(1).max(start);
                trace.ends.push((own, FIRST_LANE + row.lane, slice_name(row)));
            }
            trace.flush_ends();
            clock = end;
        }
        for row in barriers {
            trace.instant(clock, barrier_name(row), self.barrier_args(row));
        }
    }

    fn serialised(&self, trace: &mut Trace) {
        let Some(times) = &self.measured else { return };
        for (row, &start) in self.dispatch_list.iter().zip(&times.serialised_start_ns) {
            trace.begin(start, SERIALISED, 0, slice_name(row), slice_args(row));
            trace.end(start + row.serialised_ns.unwrap_or(0), SERIALISED, 0, &slice_name(row));
        }
    }

    /// Dispatches with counters in place of barriers: as many tracks as run at the same time.
    fn beside(&self, trace: &mut Trace) {
        if self.waits.is_none() {
            return;
        }
        let rows = self.dispatch_list.iter().filter_map(|row| Some((row, row.waits.as_ref()?)));
        let mut rows: Vec<(&DispatchRow, &WaitRow)> = rows.collect();
        rows.sort_by_key(|(_, waits)| (waits.start_ns, waits.end_ns));
        trace.name(COUNTED, None, "with counters (measured per dispatch, by its workgroups)");
        // When the last slice of each track ends.
        let mut busy: Vec<u64> = Vec::new();
        for (row, waits) in rows {
            let free = busy.iter().position(|&end| end <= waits.start_ns);
            let track = free.unwrap_or(busy.len());
            if free.is_none() {
                trace.name(COUNTED, Some(track as u32), &format!("slot {track}"));
                busy.push(0);
            }
            let end = waits.end_ns.max(waits.start_ns);
            busy[track] = end;
            let (track, name) = (track as u32, slice_name(row));
            trace.begin(waits.start_ns, COUNTED, track, name.clone(), wait_args(row, waits));
            let before = waits.waits_for.and_then(|at| self.dispatch_list.get(at as usize));
            if let Some(before) = before.filter(|_| waits.waited > 0) {
                let wait = format!("waits for {}", slice_name(before));
                let released = waits.released_ns.clamp(waits.start_ns, end);
                trace.begin(waits.start_ns, COUNTED, track, wait.clone(), json!({}));
                trace.end(released, COUNTED, track, &wait);
            }
            trace.end(end, COUNTED, track, &name);
        }
    }

    fn host(&self, trace: &mut Trace) {
        let Some(times) = &self.measured else { return };
        for (name, start, end) in [
            ("submit", 0, times.submit_ns),
            ("wait", times.submit_ns, times.submit_ns + times.wait_ns),
        ] {
            trace.begin(start, HOST, 0, name.to_owned(), json!({}));
            trace.end(end, HOST, 0, name);
        }
    }

    fn barrier_args(&self, row: &BarrierRow) -> Value {
        let name = |place: Option<u32>| {
            place.and_then(|place| self.dispatch_list.get(place as usize)).map(slice_name)
        };
        let buf = row.buf.as_ref();
        json!({
            "reason": row.reason,
            "hazard": row.hazard,
            "earlier": name(row.earlier),
            "later": name(row.later),
            "buffer": buf.map(|buf| self.buffers.get(buf).unwrap_or(buf)),
            "bytes": row.p0.zip(row.p1).map(|(p0, p1)| p1 - p0),
        })
    }
}

/// Events with their time in nanoseconds.
#[derive(Default)]
struct Trace {
    events: Vec<(u64, Value)>,
    /// Ends of the open group's slices.
    ends: Vec<(u64, u32, String)>,
}

impl Trace {
    /// Names a process, or a track of it.
    fn name(&mut self, pid: u32, tid: Option<u32>, name: &str) {
        let what = if tid.is_some() { "thread_name" } else { "process_name" };
        let sort = if tid.is_some() { "thread_sort_index" } else { "process_sort_index" };
        let tid = tid.unwrap_or(0);
        let order = if what == "thread_name" { tid } else { pid };
        for (event, args) in
            [(what, json!({ "name": name })), (sort, json!({ "sort_index": order }))]
        {
            let event =
                json!({ "ph": "M", "pid": pid, "tid": tid, "ts": 0, "name": event, "args": args });
            self.events.push((0, event));
        }
    }

    fn begin(&mut self, ns: u64, pid: u32, tid: u32, name: String, args: Value) {
        let event = json!({ "ph": "B", "pid": pid, "tid": tid, "ts": us(ns), "name": name, "cat": "dispatch", "args": args });
        self.events.push((ns, event));
    }

    fn end(&mut self, ns: u64, pid: u32, tid: u32, name: &str) {
        let event = json!({ "ph": "E", "pid": pid, "tid": tid, "ts": us(ns), "name": name, "cat": "dispatch" });
        self.events.push((ns, event));
    }

    fn flush_ends(&mut self) {
        for (ns, tid, name) in std::mem::take(&mut self.ends) {
            self.end(ns, SCHEDULE, tid, &name);
        }
    }

    fn instant(&mut self, ns: u64, name: String, args: Value) {
        let event = json!({ "ph": "i", "s": "p", "pid": SCHEDULE, "tid": BARRIERS, "ts": us(ns), "name": name, "cat": "barrier", "args": args });
        self.events.push((ns, event));
    }

    /// The start or the end of an arrow; the end belongs to the slice around it.
    fn flow(&mut self, phase: &str, ns: u64, tid: u32, id: u32) {
        let mut event = json!({ "ph": phase, "pid": SCHEDULE, "tid": tid, "ts": us(ns), "name": "after", "cat": "dependence", "id": id });
        if phase == "f" {
            event["bp"] = json!("e");
        }
        self.events.push((ns, event));
    }
}

/// Traces count in microseconds.
fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

fn slice_name(row: &DispatchRow) -> String {
    match row.label.is_empty() {
        true => row.op.clone(),
        false => format!("{} {}", row.op, row.label),
    }
}

fn slice_args(row: &DispatchRow) -> Value {
    json!({
        "id": row.id,
        "shape": row.shape,
        "read_bytes": row.read_bytes,
        "write_bytes": row.write_bytes,
        "group": row.group,
        "estimated_ns": row.estimated_ns,
        "serialised_ns": row.serialised_ns,
    })
}

fn wait_args(row: &DispatchRow, waits: &WaitRow) -> Value {
    json!({
        "id": row.id,
        "group": row.group,
        "counted": waits.counted,
        "workgroups": waits.workgroups,
        "waited": waits.waited,
        "mean_wait_ns": waits.mean_wait_ns,
        "longest_wait_ns": waits.longest_wait_ns,
        "polls": waits.polls,
    })
}

fn barrier_name(row: &BarrierRow) -> String {
    match row.hazard {
        Some(hazard) => format!("barrier {hazard}"),
        None => format!("barrier {}", row.reason),
    }
}
