//! Numbers for Prometheus: atomics on one side, text on the other. A scrape takes no lock and never asks the engine's thread.
//!
//! Names that begin with `clearway_` are the truth. The names of vLLM that routers read stand beside them.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use clearway_llm::batch::service::{BOUNDS_US, Times};

use crate::backend::Stats;

/// Upper limits for times to the first token, of queues and of whole requests, in seconds.
const LONG: [f64; 20] = [
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0,
];
/// Upper limits for times between tokens, in seconds.
const SHORT: [f64; 20] = [
    0.0005, 0.00075, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.025, 0.05, 0.075, 0.1,
    0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0,
];

/// Times, counted by how long they are.
#[derive(Debug)]
pub struct Histogram {
    limits: &'static [f64; 20],
    counts: [AtomicU64; 21],
    micros: AtomicU64,
}

impl Histogram {
    fn new(limits: &'static [f64; 20]) -> Self {
        Self { limits, counts: Default::default(), micros: AtomicU64::new(0) }
    }

    /// Counts so many that took so long each.
    pub fn observe(&self, time: Duration, count: u64) {
        let seconds = time.as_secs_f64();
        let place = self.limits.iter().position(|&limit| seconds <= limit).unwrap_or(20);
        self.counts[place].fetch_add(count, Relaxed);
        self.micros.fetch_add(time.as_micros() as u64 * count, Relaxed);
    }

    fn write(&self, out: &mut String, name: &str, help: &str, labels: &str) {
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} histogram");
        let mut sum = 0;
        for (place, count) in self.counts.iter().enumerate() {
            sum += count.load(Relaxed);
            let limit = self.limits.get(place).map_or_else(|| "+Inf".to_owned(), f64::to_string);
            let _ = writeln!(out, "{name}_bucket{{{labels},le=\"{limit}\"}} {sum}");
        }
        let seconds = self.micros.load(Relaxed) as f64 / 1e6;
        let _ = writeln!(out, "{name}_sum{{{labels}}} {seconds}\n{name}_count{{{labels}}} {sum}");
    }
}

/// Times that the engine measures: name, sentence, times.
pub type Measured = (&'static str, &'static str, Times);

/// Statuses that are counted apart.
const STATUSES: [u16; 16] =
    [200, 204, 400, 401, 403, 404, 405, 408, 413, 429, 431, 499, 500, 501, 503, 504];
/// Ends that are counted apart.
const ENDS: [&str; 4] = ["stop", "length", "cancelled", "error"];

/// Everything that is counted.
#[derive(Debug)]
pub struct Metrics {
    statuses: [AtomicU64; STATUSES.len() + 1],
    ends: [AtomicU64; ENDS.len()],
    /// HTTP requests under way.
    pub in_flight: AtomicU64,
    /// Panics that were caught.
    pub panics: AtomicU64,
    /// Time to the first token.
    pub first_token: Histogram,
    /// Time between two tokens. Those that came together share it.
    pub between_tokens: Histogram,
    /// Time of the whole text.
    pub whole: Histogram,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            statuses: Default::default(),
            ends: Default::default(),
            in_flight: AtomicU64::new(0),
            panics: AtomicU64::new(0),
            first_token: Histogram::new(&LONG),
            between_tokens: Histogram::new(&SHORT),
            whole: Histogram::new(&LONG),
        }
    }
}

impl Metrics {
    /// Counts an answer.
    pub fn answered(&self, status: u16) {
        let place = STATUSES.iter().position(|&known| known == status).unwrap_or(STATUSES.len());
        self.statuses[place].fetch_add(1, Relaxed);
    }

    /// Counts the end of a text.
    pub fn ended(&self, end: &str) {
        if let Some(place) = ENDS.iter().position(|&known| known == end) {
            self.ends[place].fetch_add(1, Relaxed);
        }
    }

    /// The text of a scrape. Without stats the model is not loaded.
    pub fn text(
        &self,
        model: &str,
        state: &str,
        stats: Option<Stats>,
        times: &[Measured],
    ) -> String {
        let mut out = String::with_capacity(8 << 10);
        let model = model.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let labels = format!("model_name=\"{model}\"");
        let mut one = |kind: &str, name: &str, help: &str, value: f64| {
            let _ = writeln!(
                out,
                "# HELP {name} {help}\n# TYPE {name} {kind}\n{name}{{{labels}}} {value}"
            );
        };
        one(
            "gauge",
            "clearway_ready",
            "1 if requests are taken.",
            f64::from(u8::from(state == "ready")),
        );
        let Stats {
            running,
            waiting,
            slots,
            queue,
            block_tokens,
            blocks,
            blocks_used,
            prompt_tokens,
            cached_tokens,
            generated_tokens,
            mixed_works,
            apart_works,
            lists_ahead,
            lists_late,
            lists_failed,
            list_waits,
            lists_missing,
            lists_time,
            reopened,
            adapters,
        } = stats.unwrap_or_default();
        let usage = if blocks == 0 { 0.0 } else { blocks_used as f64 / blocks as f64 };
        one(
            "gauge",
            "clearway_requests_running",
            "Texts that are read or written.",
            running as f64,
        );
        one("gauge", "clearway_requests_waiting", "Texts that wait.", waiting as f64);
        one("gauge", "clearway_slots", "Texts that can run at once.", slots as f64);
        one("gauge", "clearway_queue_limit", "Texts that may wait.", queue as f64);
        one("gauge", "clearway_cache_blocks", "Blocks of the KV cache.", blocks as f64);
        one(
            "gauge",
            "clearway_cache_blocks_used",
            "Blocks of the KV cache in use.",
            blocks_used as f64,
        );
        one(
            "counter",
            "clearway_prompt_tokens_total",
            "Tokens of prompts, cached ones included.",
            prompt_tokens as f64,
        );
        one(
            "counter",
            "clearway_prompt_tokens_cached_total",
            "Tokens of prompts that were not read again.",
            cached_tokens as f64,
        );
        one(
            "counter",
            "clearway_generated_tokens_total",
            "Tokens written.",
            generated_tokens as f64,
        );
        for (name, help, count) in [
            (
                "clearway_mixed_works_total",
                "Steps that read prompts and write texts at once.",
                mixed_works,
            ),
            (
                "clearway_apart_works_total",
                "Steps that did so one after the other, as the program for both was not compiled yet.",
                apart_works,
            ),
            (
                "clearway_lists_ahead_total",
                "Programs of the device that were compiled before they were needed.",
                lists_ahead,
            ),
            (
                "clearway_lists_late_total",
                "Programs of the device that were compiled after they had been needed.",
                lists_late,
            ),
            (
                "clearway_lists_failed_total",
                "Programs of the device that could not be compiled.",
                lists_failed,
            ),
            (
                "clearway_list_waits_total",
                "Programs of the device that texts waited for.",
                list_waits,
            ),
        ] {
            one("counter", name, help, count as f64);
        }
        one(
            "gauge",
            "clearway_lists_missing",
            "Programs of the device that were needed and are not compiled yet.",
            lists_missing as f64,
        );
        one(
            "counter",
            "clearway_lists_seconds_total",
            "Time to compile programs of the device that no text waited for, of all threads together.",
            lists_time.as_secs_f64(),
        );
        one(
            "counter",
            "clearway_device_reopened_total",
            "Times that a lost device was opened again.",
            reopened as f64,
        );
        one(
            "gauge",
            "clearway_http_requests_in_flight",
            "HTTP requests under way.",
            self.in_flight.load(Relaxed) as f64,
        );
        one(
            "counter",
            "clearway_panics_total",
            "Panics that were caught.",
            self.panics.load(Relaxed) as f64,
        );
        one("gauge", "vllm:num_requests_running", "As clearway_requests_running.", running as f64);
        one("gauge", "vllm:num_requests_waiting", "As clearway_requests_waiting.", waiting as f64);
        one("gauge", "vllm:kv_cache_usage_perc", "Share of the KV cache in use, 0 to 1.", usage);
        let name = "vllm:cache_config_info";
        let _ = writeln!(
            out,
            "# HELP {name} Size of the KV cache.\n# TYPE {name} gauge\n\
             {name}{{{labels},block_size=\"{block_tokens}\",num_gpu_blocks=\"{blocks}\"}} 1"
        );
        let name = "vllm:lora_requests_info";
        let _ = writeln!(
            out,
            "# HELP {name} Adapters that are loaded; which of them run is not counted.\n# TYPE {name} gauge\n\
             {name}{{{labels},max_lora=\"{adapters}\",running_lora_adapters=\"\",waiting_lora_adapters=\"\"}} {}",
            crate::clock::unix()
        );
        let name = "clearway_http_requests_total";
        let _ = writeln!(out, "# HELP {name} Answers by status.\n# TYPE {name} counter");
        for (place, count) in self.statuses.iter().enumerate() {
            let status = STATUSES.get(place).map_or_else(|| "other".to_owned(), u16::to_string);
            let _ = writeln!(out, "{name}{{{labels},status=\"{status}\"}} {}", count.load(Relaxed));
        }
        let name = "clearway_texts_total";
        let _ = writeln!(out, "# HELP {name} Texts by how they ended.\n# TYPE {name} counter");
        for (end, count) in ENDS.iter().zip(&self.ends) {
            let _ = writeln!(out, "{name}{{{labels},end=\"{end}\"}} {}", count.load(Relaxed));
        }
        for (histogram, name, help) in [
            (
                &self.first_token,
                "clearway_time_to_first_token_seconds",
                "From the request to its first token.",
            ),
            (
                &self.between_tokens,
                "clearway_time_between_tokens_seconds",
                "From one token to the next.",
            ),
            (&self.whole, "clearway_request_seconds", "From the request to its last token."),
        ] {
            histogram.write(&mut out, name, help, &labels);
        }
        for (name, help, times) in times {
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} histogram");
            let limits = BOUNDS_US.iter().map(|&us| (us as f64 / 1e6).to_string());
            let mut sum = 0;
            for (limit, count) in limits.chain(["+Inf".to_owned()]).zip(times.counts) {
                sum += count;
                let _ = writeln!(out, "{name}_bucket{{{labels},le=\"{limit}\"}} {sum}");
            }
            let seconds = times.sum.as_secs_f64();
            let _ =
                writeln!(out, "{name}_sum{{{labels}}} {seconds}\n{name}_count{{{labels}}} {sum}");
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scrape_has_the_names_that_routers_read_and_takes_microseconds() {
        let metrics = Metrics::default();
        metrics.answered(200);
        metrics.answered(418);
        metrics.ended("stop");
        metrics.first_token.observe(Duration::from_millis(3), 1);
        let stats = Stats {
            running: 2,
            waiting: 3,
            blocks: 8,
            blocks_used: 2,
            block_tokens: 16,
            adapters: 5,
            mixed_works: 41,
            apart_works: 42,
            lists_ahead: 43,
            lists_late: 44,
            lists_failed: 45,
            list_waits: 46,
            lists_missing: 47,
            lists_time: Duration::from_millis(48_500),
            ..Stats::default()
        };
        let text = metrics.text("a\"b", "ready", Some(stats), &[]);
        for line in [
            "vllm:num_requests_running{model_name=\"a\\\"b\"} 2",
            "vllm:num_requests_waiting{model_name=\"a\\\"b\"} 3",
            "vllm:kv_cache_usage_perc{model_name=\"a\\\"b\"} 0.25",
            "vllm:cache_config_info{model_name=\"a\\\"b\",block_size=\"16\",num_gpu_blocks=\"8\"} 1",
            "vllm:lora_requests_info{model_name=\"a\\\"b\",max_lora=\"5\",",
            "clearway_http_requests_total{model_name=\"a\\\"b\",status=\"other\"} 1",
            "# TYPE clearway_mixed_works_total counter",
            "clearway_mixed_works_total{model_name=\"a\\\"b\"} 41",
            "clearway_apart_works_total{model_name=\"a\\\"b\"} 42",
            "clearway_lists_ahead_total{model_name=\"a\\\"b\"} 43",
            "clearway_lists_late_total{model_name=\"a\\\"b\"} 44",
            "clearway_lists_failed_total{model_name=\"a\\\"b\"} 45",
            "clearway_list_waits_total{model_name=\"a\\\"b\"} 46",
            "clearway_lists_missing{model_name=\"a\\\"b\"} 47",
            "clearway_lists_seconds_total{model_name=\"a\\\"b\"} 48.5",
            "clearway_texts_total{model_name=\"a\\\"b\",end=\"stop\"} 1",
            "clearway_time_to_first_token_seconds_bucket{model_name=\"a\\\"b\",le=\"0.0025\"} 0",
            "clearway_time_to_first_token_seconds_bucket{model_name=\"a\\\"b\",le=\"0.005\"} 1",
            "clearway_time_to_first_token_seconds_count{model_name=\"a\\\"b\"} 1",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }
}
