//! Which variant of a product is the fastest: measured once on each device and kept on disk.
//!
//! Kernels of few rows have a few variants ([`wgsl::choices`]), and which one wins depends on
//! the shape and on the device. Every shape is timed once, the weights coming from memory and not from a
//! cache. Nothing that was computed is touched: what a kernel writes goes to memory of the tuner's own.

use std::sync::{Arc, Mutex, PoisonError};

use clearway_graph::Slot;
use rustc_hash::FxHashMap;

use super::cache::DiskCache;
use super::lowered::{Bound, Lowered};
use super::{ALIGN, Backend, Bytes, Piece, RangeOf, Tuning, prefetch};
use crate::device::{KernelStatistics, Program};
use crate::error::Result;
use crate::profile::ProfileMode;
use crate::wgsl::listing::text_key;
use crate::wgsl::{self, Job, Kernel};

/// Weights below this take about as long as a launch: nothing is to be found out there.
const LEAST_BYTES: u64 = 4 << 20;
/// More than caches hold.
const FLUSH_BYTES: u64 = 128 << 20;
/// How often each variant is timed; the shortest time counts.
const ROUNDS: usize = 6;
/// Another variant must be this much faster than the expected one, so that noise decides nothing.
const GAIN: f64 = 1.06;

/// Stands for a variant that could not be found: no kernel has that many.
const UNKNOWN: u8 = u8::MAX;

/// What was found out, by kernel.
pub(crate) struct Tuner {
    mode: Tuning,
    disk: DiskCache,
    /// Names the device and its driver.
    device: String,
    known: Mutex<FxHashMap<u64, u8>>,
    /// One product at a time: two would disturb each other.
    timing: Mutex<Vec<KernelStatistics>>,
}

/// What decides whether kernels can be timed.
pub(crate) struct Timing {
    /// Whether the device is a software driver.
    pub(crate) software: bool,
    /// Whether it has a clock.
    pub(crate) clock: bool,
}

impl Tuner {
    /// `device` names the device and its driver.
    pub(crate) fn new(mode: Tuning, facts: Timing, disk: DiskCache, device: &str) -> Self {
        let mode = match mode {
            Tuning::Hardware if facts.software => Tuning::Never,
            Tuning::Hardware | Tuning::Always if !facts.clock => Tuning::Never,
            mode => mode,
        };
        let device = device.to_owned();
        let known = disk.load("tuning", &device).and_then(|data| parse(&data)).unwrap_or_default();
        Self { mode, disk, device, known: Mutex::new(known), timing: Mutex::default() }
    }

    /// Products that were timed, now or in an earlier run.
    pub(crate) fn count(&self) -> usize {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// What was timed in this run.
    pub(crate) fn times(&self) -> Vec<KernelStatistics> {
        self.timing.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The variants that are used, by the text of the expected kernel.
    pub(crate) fn variants(&self) -> FxHashMap<u64, u8> {
        match self.mode {
            Tuning::Hardware | Tuning::Always => {
                let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
                known
                    .iter()
                    .filter(|&(_, &variant)| variant != UNKNOWN)
                    .map(|(&key, &variant)| (key, variant))
                    .collect()
            }
            Tuning::Never | Tuning::Variant(_) => FxHashMap::default(),
        }
    }

    /// The variant that is known for a kernel.
    fn known(&self, key: u64) -> Option<u8> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).get(&key).copied()
    }

    /// Remembers the variant for a kernel. Where none could be found, that is true only of this run.
    fn learn(&self, key: u64, choice: Option<u8>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(key, choice.unwrap_or(UNKNOWN));
        if choice.is_some() {
            self.disk.store("tuning", &self.device, &form(&known));
        }
    }
}

/// The kernel of a job, done in the fastest variant.
pub(crate) fn lower<B: Backend>(
    backend: &Arc<B>,
    job: &mut Job<'_>,
    bound: &Bound<RangeOf<B>>,
) -> Result<Kernel> {
    let choices = wgsl::choices(job);
    if let Tuning::Variant(variant) = backend.tuner().mode {
        job.choice = variant.min(choices - 1);
        return wgsl::lower(job);
    }
    let expected = wgsl::lower(job)?;
    let weights: u64 = bound.weights.iter().map(|&index| bound.ranges[index].bytes()).sum();
    if backend.tuner().mode == Tuning::Never || choices < 2 || weights < LEAST_BYTES {
        return Ok(expected);
    }
    let key = text_key(&expected.source);
    let choice = backend.tuner().known(key).unwrap_or_else(|| {
        let mut times = backend.tuner().timing.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have done it meanwhile.
        backend.tuner().known(key).unwrap_or_else(|| {
            // A device that is full does without.
            let found = fastest(backend, job, &expected, bound, choices, &mut times).ok();
            backend.tuner().learn(key, found);
            found.unwrap_or(0)
        })
    });
    if choice == 0 || choice >= choices {
        return Ok(expected);
    }
    job.choice = choice;
    wgsl::lower(job)
}

/// Times all variants.
fn fastest<B: Backend>(
    backend: &Arc<B>,
    job: &mut Job<'_>,
    expected: &Kernel,
    bound: &Bound<RangeOf<B>>,
    choices: u8,
    times: &mut Vec<KernelStatistics>,
) -> Result<u8> {
    let mut variants = vec![(0, expected.clone())];
    for choice in 1..choices {
        job.choice = choice;
        let kernel = wgsl::lower(job)?;
        if variants.iter().all(|(_, other)| other.source != kernel.source) {
            variants.push((choice, kernel));
        }
    }
    job.choice = 0;
    if variants.len() < 2 {
        return Ok(0);
    }
    let flush = backend.alloc_piece(FLUSH_BYTES)?;
    let written: u64 = bound.written.iter().map(|&i| align(bound.ranges[i].bytes())).sum();
    let sink = backend.alloc_piece(written + align(1))?;
    let mut lowered = Lowered::default();
    for _ in 0..ROUNDS {
        for (_, kernel) in &variants {
            let ranges = [flush.whole(), range(&sink, written, align(1))].into_iter().collect();
            let reads = Bound { ranges, ..Bound::default() };
            lowered.push_alone(prefetch::reader(0, FLUSH_BYTES), reads);
            lowered.push_alone(kernel.clone(), apart(kernel, bound, &sink));
        }
    }
    let mut program = backend.program(lowered, vec![Arc::new(flush), Arc::new(sink)])?;
    program.run()?;
    let spans = program.profile(ProfileMode::Groups)?.spans;
    let time = |variant: usize| {
        let rounds = spans.iter().skip(2 * variant + 1).step_by(2 * variants.len());
        rounds.map(|span| span.end_ns - span.start_ns).min().unwrap_or(u64::MAX)
    };
    times.extend(variants.iter().enumerate().map(|(index, (choice, kernel))| KernelStatistics {
        kernel: name(job, *choice),
        source: kernel.source.clone(),
        values: vec![("Microseconds".to_owned(), time(index) as f64 / 1e3)],
    }));
    let best = (0..variants.len()).min_by_key(|&variant| time(variant)).unwrap_or(0);
    let gain = time(0) as f64 / time(best).max(1) as f64;
    Ok(if gain >= GAIN { variants[best].0 } else { 0 })
}

/// Says which variant of which product.
fn name(job: &Job<'_>, choice: u8) -> String {
    let rows = job.operands[0].layout.rows();
    let weights = job.slot(Slot::Weight).map(|index| &job.operands[index].layout);
    let weights =
        weights.map_or(String::new(), |w| format!(", {} x {} {:?}", w.rows(), w.cols(), w.dtype()));
    format!("timed, variant {choice} of {:?}, {rows} rows{weights}", job.kind)
}

/// The same memory, but for what is written.
fn apart<M: Piece>(kernel: &Kernel, bound: &Bound<M::Range>, sink: &M) -> Bound<M::Range> {
    let mut ranges = bound.ranges.clone();
    let mut at = 0;
    for &index in &bound.written {
        let bytes = ranges[index].bytes();
        ranges[index] = range(sink, at, bytes);
        at += align(bytes);
    }
    let again: Vec<_> = kernel.again.iter().map(|&operand| ranges[operand].clone()).collect();
    ranges.extend(again);
    Bound { ranges, ..Bound::default() }
}

fn range<M: Piece>(memory: &M, at: u64, bytes: u64) -> M::Range {
    memory.range(memory.base() + at, bytes)
}

fn align(bytes: u64) -> u64 {
    bytes.next_multiple_of(ALIGN)
}

/// Nine bytes for each kernel.
fn form(known: &FxHashMap<u64, u8>) -> Vec<u8> {
    let mut all: Vec<_> = known.iter().collect();
    all.retain(|(_, choice)| **choice != UNKNOWN);
    all.sort_unstable();
    all.into_iter()
        .flat_map(|(key, choice)| key.to_le_bytes().into_iter().chain([*choice]))
        .collect()
}

fn parse(data: &[u8]) -> Option<FxHashMap<u64, u8>> {
    let entry = |bytes: &[u8]| {
        let (key, choice) = bytes.split_first_chunk::<8>()?;
        Some((u64::from_le_bytes(*key), *choice.first()?))
    };
    data.chunks(9).map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_comes_back_and_half_an_entry_is_nothing() {
        let mut known: FxHashMap<u64, u8> = [(7, 1), (u64::MAX, 3), (0, 0)].into_iter().collect();
        let data = form(&known);
        assert_eq!(parse(&data), Some(known.clone()));
        known.insert(8, UNKNOWN);
        assert_eq!(form(&known), data, "what was not found is not kept");
        assert_eq!(parse(&data[..data.len() - 1]), None);
    }
}
