//! Runs many cases and counts.

use std::fmt;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::run::{Outcome, run_case};
use super::{DEFAULT_SEED, OpCase, cases};
use crate::device::Device;
use crate::ops::OPS;

/// A case that did not pass.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The case.
    pub case: OpCase,
    /// What is wrong.
    pub reason: String,
}

/// How the cases of one op went.
#[derive(Clone, Debug)]
pub struct OpCount {
    /// The op.
    pub name: &'static str,
    /// Cases that passed.
    pub passed: usize,
    /// Cases that did not.
    pub failed: usize,
    /// Cases that the device has no kernel for: an op that is fused only where it has one.
    pub skipped: usize,
    /// Largest error in results of 32 bits, as a part of what is allowed.
    pub share: f64,
    /// Largest error in results of 16 bits, as a part of what is allowed.
    pub share_16: f64,
}

/// How a run went. Its text form is a line for each op, then the failures.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Cases that passed.
    pub passed: usize,
    /// Cases that did not, in the order of the list.
    pub failed: Vec<Failure>,
    /// Cases that the device has no kernel for.
    pub skipped: usize,
    /// The same by op, in the order of the op list.
    pub ops: Vec<OpCount>,
}

/// Runs the whole list of the default seed.
pub fn run_all(device: &dyn Device) -> Summary {
    run_cases(device, &cases(DEFAULT_SEED))
}

/// Runs some cases, on every core.
pub fn run_cases(device: &dyn Device, cases: &[OpCase]) -> Summary {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(cases.len()));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(case) = cases.get(index) else { break };
                    let result = run_case(device, case).map(|o| Some(o).filter(|o| o.runs > 0));
                    results.lock().unwrap_or_else(PoisonError::into_inner).push((index, result));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_unstable_by_key(|(index, _)| *index);
    summarise(cases, results)
}

/// `None` for a case that was skipped.
fn summarise(cases: &[OpCase], results: Vec<(usize, Result<Option<Outcome>, String>)>) -> Summary {
    let none = OpCount { name: "", passed: 0, failed: 0, skipped: 0, share: 0.0, share_16: 0.0 };
    let ops = OPS.iter().map(|op| OpCount { name: op.name, ..none.clone() });
    let mut summary = Summary { passed: 0, failed: Vec::new(), skipped: 0, ops: ops.collect() };
    for (index, result) in results {
        let case = &cases[index];
        let op = OPS.iter().position(|op| op.kind == case.kind);
        let count = op.and_then(|op| summary.ops.get_mut(op));
        match result {
            Ok(None) => {
                summary.skipped += 1;
                if let Some(count) = count {
                    count.skipped += 1;
                }
            }
            Ok(Some(outcome)) => {
                summary.passed += 1;
                if let Some(count) = count {
                    count.passed += 1;
                    count.share = count.share.max(outcome.share);
                    count.share_16 = count.share_16.max(outcome.share_16);
                }
            }
            Err(reason) => {
                summary.failed.push(Failure { case: case.clone(), reason });
                if let Some(count) = count {
                    count.failed += 1;
                }
            }
        }
    }
    summary
}

/// Failures shown in full.
const SHOWN: usize = 20;

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (passed, failed, skipped) = (self.passed, self.failed.len(), self.skipped);
        writeln!(f, "largest error of what is allowed, in results of 32 and of 16 bits")?;
        write!(f, "{:<22} {:>6} {:>6} {:>7}", "op", "passed", "failed", "skipped")?;
        writeln!(f, " {:>7} {:>7}", "32", "16")?;
        for OpCount { name, passed, failed, skipped, share, share_16 } in &self.ops {
            let (share, share_16) = (share * 100.0, share_16 * 100.0);
            write!(f, "{name:<22} {passed:>6} {failed:>6} {skipped:>7}")?;
            writeln!(f, " {share:>6.1}% {share_16:>6.1}%")?;
        }
        writeln!(f, "{:<22} {passed:>6} {failed:>6} {skipped:>7}", "all")?;
        for failure in self.failed.iter().take(SHOWN) {
            writeln!(f, "failed: {}\n  {}", failure.case, failure.reason)?;
        }
        if failed > SHOWN {
            writeln!(f, "and {} more", failed - SHOWN)?;
        }
        Ok(())
    }
}
