//! The summary for a terminal.

use std::fmt::Write;

use clearway_graph::pipeline::CompileStats;

use crate::report::{Report, Summary};
use crate::tracked::{OWN, TrackedRow};

impl Report {
    /// The figures, one to a line.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = self.write_text(&mut out);
        out
    }

    fn write_text(&self, out: &mut String) -> std::fmt::Result {
        let Summary { recorded, dispatches, groups, barriers, longest_chain, .. } = self.summary;
        let Summary { false_barriers, fusions, quantised, moved, .. } = self.summary;
        let s = &self.summary;
        writeln!(out, "{}", one_line(&self.name))?;
        writeln!(out, "  recorded        {recorded:>10} dispatches")?;
        writeln!(out, "  fused           {fusions:>10} pairs, {dispatches} dispatches left")?;
        writeln!(out, "  quantised       {quantised:>10} values between products")?;
        writeln!(out, "  scheduled       {groups:>10} groups, longest chain {longest_chain}")?;
        writeln!(out, "  moved           {moved:>10} dispatches stand earlier than recorded")?;
        writeln!(
            out,
            "  barriers        {barriers:>10}, of them {false_barriers} because memory is shared"
        )?;
        if let Some(phases) = s.phases_per_layer {
            writeln!(out, "  phases          {phases:>10.2} groups a layer")?;
        }
        writeln!(
            out,
            "  arena           {:>10}, at least {} are live at once",
            bytes_text(s.arena_bytes),
            bytes_text(s.arena_lower_bound)
        )?;
        writeln!(
            out,
            "  refused         {:>10} fusions, {} dispatches held where they are",
            self.refused_fusions.len(),
            self.refused_moves.len()
        )?;
        writeln!(
            out,
            "  estimate        {:>10} on a device of {:.0} GB/s and {} a barrier",
            ns_text(s.estimated_ns),
            self.cost.bytes_per_ns,
            ns_text(self.cost.barrier_ns)
        )?;
        for view in &self.views {
            let v = &view.summary;
            writeln!(
                out,
                "  {:<16}{:>10} groups, {} dispatches, arena {}, estimate {}",
                view.key.replace('_', " "),
                v.groups,
                v.dispatches,
                bytes_text(v.arena_bytes),
                ns_text(v.estimated_ns)
            )?;
        }
        self.write_tracked(out)?;
        self.write_times(out)?;
        self.write_waits(out)?;
        writeln!(out, "  proven: groups, value flow, replay; {:.1} ms in all", self.seconds * 1e3)
    }

    /// Vulkan's figures, then those of wgpu.
    fn write_tracked(&self, out: &mut String) -> std::fmt::Result {
        for row in &self.tracked {
            let TrackedRow { key, groups, slabs, arena_bytes, counts } = row;
            let (barriers, arena) = (counts.barriers, bytes_text(*arena_bytes));
            if *key == OWN {
                writeln!(
                    out,
                    "  barriers of our own, and those wgpu inserts, which follows whole buffers:"
                )?;
                writeln!(
                    out,
                    "  {:<16}{barriers:>10} barriers for {groups} groups, {slabs} buffers, arena {arena}",
                    "Vulkan"
                )?;
                continue;
            }
            let way = format!("wgpu, {}", key.replace('_', " "));
            let (inside, both) = (counts.inside_groups, counts.both_ways);
            writeln!(
                out,
                "  {way:<18}{barriers:>8} barriers for {groups} groups, {inside} of them inside groups, {both} dispatches \
                 bound both ways, {slabs} buffers, arena {arena}"
            )?;
        }
        Ok(())
    }

    fn write_times(&self, out: &mut String) -> std::fmt::Result {
        let Some(times) = &self.measured else { return Ok(()) };
        writeln!(
            out,
            "  measured        {:>10} on {}, median of {} runs; {} clock",
            ns_text(times.total_ns as f64),
            times.device,
            times.runs,
            times.clock
        )?;
        if let Some(barrier) = times.barrier_ns {
            let all = barrier as f64 * f64::from(self.summary.barriers);
            let share = 100.0 * all / times.total_ns.max(1) as f64;
            let barrier = ns_text(barrier as f64);
            writeln!(out, "  a barrier       {barrier:>10}, all of them {share:.1} % of a run")?;
        }
        writeln!(
            out,
            "  serialised      {:>10} with a barrier after every dispatch",
            ns_text(times.serialised_ns as f64)
        )?;
        writeln!(
            out,
            "  most time lost, beyond what the bytes need at {:.1} GB/s:",
            times.bytes_per_ns
        )?;
        for lost in &times.top_lost {
            let Some(group) = self.group_list.get(lost.group as usize) else { continue };
            let rows = self.dispatch_list.iter().skip(group.first as usize);
            let names: Vec<String> = rows
                .take(group.dispatches as usize)
                .map(|row| if row.label.is_empty() { row.op.clone() } else { one_line(&row.label) })
                .collect();
            let share = 100.0 * group.bandwidth_share.unwrap_or(0.0);
            writeln!(
                out,
                "    group {:>5}  {:>10} of {:>10}, {share:>5.1} % of bandwidth  {}",
                lost.group,
                ns_text(lost.lost_ns as f64),
                ns_text(lost.measured_ns as f64),
                names.join(" ")
            )?;
        }
        Ok(())
    }
}

impl Report {
    fn write_waits(&self, out: &mut String) -> std::fmt::Result {
        if let Some(reason) = &self.no_waits {
            writeln!(out, "  no waits        {reason}")?;
        }
        let Some(waits) = &self.waits else { return Ok(()) };
        writeln!(
            out,
            "  with counters   {:>10} a run, {} with barriers; {} of {} groups wait by counters",
            ns_text(waits.run_ns),
            ns_text(waits.barrier_run_ns),
            waits.waiting_groups,
            self.summary.groups
        )?;
        writeln!(
            out,
            "  longest waits, by a clock that workgroups read, in steps of {:.0} ns or less; a run with such notes takes {}:",
            waits.clock_step_ns,
            ns_text(waits.total_ns as f64)
        )?;
        if waits.top.is_empty() {
            writeln!(out, "    nobody had to wait")?;
        }
        let name = |at: u32| {
            let Some(row) = self.dispatch_list.get(at as usize) else { return String::new() };
            one_line(if row.label.is_empty() { &row.op } else { &row.label })
        };
        for &at in &waits.top {
            let row = self.dispatch_list.get(at as usize).and_then(|row| row.waits.as_ref());
            let Some(row) = row else { continue };
            writeln!(
                out,
                "    {:>9} at most, {:>9} on average, {} of {} workgroups, {} looks at most  {} for {}",
                ns_text(row.longest_wait_ns as f64),
                ns_text(row.mean_wait_ns as f64),
                row.waited,
                row.workgroups,
                row.most_polls + 1,
                name(at),
                row.waits_for.map_or_else(|| "nobody".to_owned(), name)
            )?;
        }
        Ok(())
    }
}

/// Three lines about a compiled list, for the end of another command.
pub fn stats_lines(stats: &CompileStats) -> [String; 3] {
    let CompileStats { recorded, dispatches, groups, barriers, longest_chain, .. } = stats;
    let CompileStats { fusions, moved, false_barriers, .. } = stats;
    [
        format!("graph    {recorded} ops recorded, {fusions} fusions, {dispatches} dispatches"),
        format!(
            "schedule {groups} groups (longest chain {longest_chain}), {barriers} barriers, {false_barriers} for memory, {moved} moved"
        ),
        format!(
            "arena    {}, at least {} are live at once",
            bytes_text(stats.arena_bytes),
            bytes_text(stats.arena_lower_bound)
        ),
    ]
}

/// Bytes with a unit, such as `10.12 MiB`.
pub fn bytes_text(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.2} {}", UNITS[unit])
}

/// Time with a unit, such as `1.25 ms`.
pub fn ns_text(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{:.2} us", ns / 1e3),
        ns if ns < 1e9 => format!("{:.2} ms", ns / 1e6),
        ns => format!("{:.2} s", ns / 1e9),
    }
}

/// A name from outside on one line: no control character reaches the terminal.
fn one_line(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}
