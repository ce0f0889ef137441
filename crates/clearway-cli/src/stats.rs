//! Timings at the end of an answer, on stderr.

use std::fmt;
use std::time::Duration;

use clearway::Device;
use clearway_llm::Usage;
use clearway_llm::engine::Engine;
use clearway_llm::speculate::DraftCounts;
use console::Style;

use crate::device::describe;
use crate::memory;
use crate::out::{self, note};

/// Load, prefill and decode, drafts, peak memory and device.
pub fn print(load: Duration, usage: &Usage, device: &dyn Device) {
    // Dim on a terminal, plain elsewhere.
    let dim = Style::new().dim();
    let line = |name: &str, text: String| {
        out::note_styled(&dim, &format!("{name:<8}{text}"));
    };
    line("load", format!("{:>9.0} ms", load.as_secs_f64() * 1e3));
    for (name, pace) in [("prefill", usage.prompt), ("decode", usage.decode)] {
        let plural = if pace.tokens == 1 { "" } else { "s" };
        line(name, format!("{:>9.1} tok/s  ({} token{plural})", pace.rate(), pace.tokens));
    }
    if let Some(drafts) = &usage.drafts {
        line("drafts", format!("{}", Drafts(drafts)));
    }
    if let Some(peak) = memory::peak() {
        line("peak", format!("{:>9.1} MiB", peak as f64 / f64::from(1 << 20)));
    }
    line("device", format!("  {}", describe(device)));
}

/// What drafts were worth, in words.
struct Drafts<'a>(&'a DraftCounts);

impl fmt::Display for Drafts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = self.0;
        let DraftCounts { drafts, drafted, .. } = counts;
        let (kept, per_step) = (100.0 * counts.kept_share(), counts.tokens_per_step());
        write!(
            f,
            "{drafts:>9}        ({drafted} tokens, {kept:.0} % kept, {per_step:.2} tokens per step)"
        )
    }
}

/// Says that steps were done again, where that happened: generation is slower from then on.
pub fn print_stall(engine: &Engine) {
    if engine.has_stalled() {
        note!(
            "the device did not start workgroups in order: steps were done again, and barriers stand between all groups \
             since then; --no-counters does without from the start"
        );
    }
}

/// What the decode step is made of, once it is compiled.
pub fn print_step(engine: &Engine) {
    let Some(stats) = engine.decode_stats() else { return };
    for line in clearway_inspect::stats_lines(&stats.compile) {
        note!("{line}");
    }
}
