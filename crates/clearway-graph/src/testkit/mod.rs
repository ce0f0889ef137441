//! Random and structured graphs, and slow oracles to hold the fast code against. For tests only.
//!
//! Every random thing follows from a seed. Tests take it from `CLEARWAY_SEED` and how many cases
//! they run from `CLEARWAY_CASES`; see [`Run`].
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a broken generator must stop

mod build;
mod dag;
mod kernels;
mod oracle;
mod planner;
mod random;
mod shapes;
mod skip;

pub use build::{Touch, dispatch_of, graph_of, minimise, tampered, with_nodes};
pub use dag::random_dag;
pub use kernels::record_op;
#[cfg(test)]
pub(crate) use oracle::elements;
pub use oracle::{
    Oracle, TrackerOracle, conflicting_pairs, conflicts, flows, members_once, out_of_order,
    undefined_read, walk_barriers,
};
pub use planner::{Lives, plan_by_groups};
pub use random::{Shape, random_graph};
pub use shapes::{branches, decoder_like};
pub use skip::{NEED, say, skip};

/// A small random generator (splitmix64).
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// The generator of this seed.
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next 64 bits.
    pub const fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`; 0 if `end` is 0.
    pub const fn below(&mut self, end: u64) -> u64 {
        if end == 0 { 0 } else { self.next() % end }
    }

    /// A number in `start..=end`.
    pub const fn within(&mut self, start: u64, end: u64) -> u64 {
        start + self.below(end - start + 1)
    }

    /// True `percent` times out of 100.
    pub const fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of the items.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        items.get(self.below(items.len() as u64) as usize)
    }
}

/// How a random test runs: its seed and how many cases.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Seed of the whole run.
    pub seed: u64,
    /// Cases.
    pub cases: u64,
}

impl Run {
    /// Cases of a property test when `CLEARWAY_CASES` is not set: a tenth of the full count.
    pub const DEFAULT_CASES: u64 = 2_000;

    /// The seed of `CLEARWAY_SEED`, or a new one; one case for every `divisor` of
    /// `CLEARWAY_CASES`. Prints the seed.
    pub fn from_env(name: &str, divisor: u64) -> Self {
        Self::from_env_up_to(name, divisor, u64::MAX)
    }

    /// As [`from_env`](Self::from_env), and `most` cases at most.
    pub fn from_env_up_to(name: &str, divisor: u64, most: u64) -> Self {
        let number = |variable| std::env::var(variable).ok().and_then(|text| text.parse().ok());
        let fresh = || {
            use std::hash::{BuildHasher, Hasher};
            std::collections::hash_map::RandomState::new().build_hasher().finish()
        };
        let seed = number("CLEARWAY_SEED").unwrap_or_else(fresh);
        let cases = number("CLEARWAY_CASES").unwrap_or(Self::DEFAULT_CASES) / divisor;
        let run = Self { seed, cases: cases.clamp(1, most) };
        println!("{name}: CLEARWAY_SEED={seed}, {} cases", run.cases);
        run
    }

    /// The seed of each case.
    pub fn seeds(&self) -> impl Iterator<Item = u64> + use<> {
        let mut rng = Rng::new(self.seed);
        (0..self.cases).map(move |_| rng.next())
    }
}

#[cfg(test)]
mod tests;

/// The op of this name.
///
/// # Panics
/// If there is none.
pub fn kind(name: &str) -> crate::CapturedOpKind {
    let found = crate::CapturedOpKind::all().find(|kind| kind.name() == name);
    found.unwrap_or_else(|| panic!("there is no op `{name}`"))
}
