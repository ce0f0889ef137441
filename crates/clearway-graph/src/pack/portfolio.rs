//! Restarts of the search, several at a time, aimed at falling targets.
//!
//! Work goes in rounds. All runs of a round have one target height and one node budget and differ
//! in strategy; the round's result is that of the run that came to one with the fewest nodes, ties
//! to the lowest index. A run that is already beyond the fewest nodes cannot win and stops: how far
//! it got depends on timing, so what it remembers is dropped. Everything else, the next target
//! included, is a function of the results of earlier rounds.

use std::cell::OnceCell;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use super::part::Part;
use super::search::{Outcome, Search, Stop};
use super::state::Model;
use super::strategy::{self, Ranks, Strategy};
use super::{Effort, PackOptions};

/// Parts with more blocks are left to the heuristics: the conflict sets and the saved states grow
/// with the square.
const MAX_BLOCKS: usize = 2048;

/// Parts with more bytes are left to the heuristics: offsets plus sizes must stay clear of 64 bits.
const MAX_BYTES: u64 = 1 << 62;

/// Nodes per block in the shortest run: enough for a dive and a little backtracking.
const NODES_PER_BLOCK: u64 = 2;

/// Nodes times blocks and sections for the dives of [`Effort::Heuristic`]: a few milliseconds.
const HEURISTIC_WORK: u64 = 400_000;

/// What ends the search.
pub(super) struct Limits {
    /// Height at which nothing is left to do.
    goal: u64,
    /// The goal is a capacity: a height above it, however low, is of little use.
    fit: bool,
    threads: usize,
    budget: Budget,
    deadline: Option<Instant>,
}

/// How much may be done over all parts and runs.
#[derive(Clone, Copy, Debug)]
enum Budget {
    /// Placements.
    Nodes(u64),
    /// Placements times the size of the part they are made in, which is about constant in time.
    Work(u64),
}

impl Limits {
    pub fn new(goal: u64, options: &PackOptions) -> Self {
        let (threads, budget) = match options.effort {
            Effort::Heuristic => (1, Budget::Work(HEURISTIC_WORK)),
            Effort::Exact { node_budget } => {
                (options.threads.clamp(1, 64), Budget::Nodes(node_budget))
            }
        };
        let fit = options.capacity.is_some_and(|capacity| capacity >= goal);
        Self { goal, fit, threads, budget, deadline: options.deadline }
    }
}

/// Whether a part is small enough to be searched.
pub(super) fn is_searchable(part: &Part) -> bool {
    part.len() <= MAX_BLOCKS && part.size.iter().sum::<u64>() < MAX_BYTES
}

/// Lowers the highest part, round by round, until the goal, a proof or a limit is reached.
/// Returns the placements tried.
pub(super) fn run(parts: &mut [Part], limits: &Limits) -> u64 {
    let models: Vec<OnceCell<Model>> = parts.iter().map(|_| OnceCell::new()).collect();
    let mut campaigns: Vec<Campaign<'_>> =
        parts.iter().zip(&models).map(|(part, model)| Campaign::new(part, model)).collect();
    let mut budget = limits.budget;
    let mut used = 0;
    // Ties go to the earliest part; only the highest one decides, so only it is worth the work.
    while let Some(campaign) = campaigns.iter_mut().rev().max_by_key(|campaign| campaign.height) {
        let settled = campaign.height <= limits.goal || campaign.height <= campaign.proven;
        if settled || !is_searchable(campaign.part) {
            break;
        }
        let scale = campaign.part.len() as u64 + campaign.part.sections() as u64;
        let left = match budget {
            Budget::Nodes(left) => left,
            Budget::Work(left) => left / scale,
        };
        let Some(round) = campaign.round(limits, left / limits.threads as u64) else {
            break;
        };
        used += round.nodes;
        match &mut budget {
            Budget::Nodes(left) => *left = left.saturating_sub(round.nodes),
            Budget::Work(left) => *left = left.saturating_sub(round.nodes * scale),
        }
        if round.late {
            break;
        }
    }
    let results: Vec<_> =
        campaigns.into_iter().map(|campaign| (campaign.best, campaign.proven)).collect();
    for (part, (best, proven)) in parts.iter_mut().zip(results) {
        part.proven = proven;
        if let Some((offsets, run)) = best {
            part.offer(offsets, || strategy::name(run));
        }
    }
    used
}

/// What a round cost.
struct Round {
    nodes: u64,
    /// The deadline passed.
    late: bool,
}

/// The search on one part.
struct Campaign<'a> {
    part: &'a Part,
    model: &'a OnceCell<Model>,
    /// Built with the first round: most parts never need one.
    tools: Option<(Ranks, Vec<Search<'a>>)>,
    height: u64,
    proven: u64,
    /// A packing of that height and the run that found it, if the search did.
    best: Option<(Vec<u64>, u64)>,
    runs: u64,
    rounds: u64,
    /// Rounds per kind of target, each with its own sequence of budgets.
    rounds_of: [u64; 3],
}

impl<'a> Campaign<'a> {
    fn new(part: &'a Part, model: &'a OnceCell<Model>) -> Self {
        Self {
            part,
            model,
            tools: None,
            height: part.best.height,
            proven: part.proven,
            best: None,
            runs: 0,
            rounds: 0,
            rounds_of: [0; 3],
        }
    }

    /// One run per thread at the same target, of at most `left` nodes; `None` if that is none.
    fn round(&mut self, limits: &Limits, left: u64) -> Option<Round> {
        self.rounds += 1;
        let unit = self.part.size.iter().fold(0, |a, &b| gcd(a, b)).max(1);
        let (target, kind) = self.target(limits, unit);
        self.rounds_of[kind] += 1;
        let nodes = strategy::luby(self.rounds_of[kind]) * NODES_PER_BLOCK * self.part.len() as u64;
        let nodes = nodes.min(left);
        if nodes == 0 {
            return None;
        }
        let (part, model) = (self.part, self.model);
        let (ranks, searches) = self.tools.get_or_insert_with(|| {
            let model = model.get_or_init(|| Model::new(part));
            (Ranks::new(part), (0..limits.threads).map(|_| Search::new(part, model)).collect())
        });
        let first = self.runs;
        self.runs += searches.len() as u64;
        let strategies = (first..self.runs).map(|run| ranks.strategy(run)).collect();
        let results = in_parallel(searches, strategies, target, nodes, limits.deadline);

        let won = results
            .iter()
            .zip(0..)
            .filter(|((outcome, _), _)| matches!(outcome, Outcome::Packed | Outcome::Infeasible))
            .map(|(&(outcome, nodes), run)| (nodes, run, outcome))
            .min_by_key(|&(nodes, run, _)| (nodes, run));
        let fewest = won.map_or(u64::MAX, |(nodes, ..)| nodes);
        let round = Round {
            nodes: results.iter().map(|&(_, nodes)| nodes.min(fewest)).sum(),
            late: won.is_none() && results.iter().any(|&(outcome, _)| outcome == Outcome::Late),
        };
        if let Some((_, run, outcome)) = won {
            if outcome == Outcome::Packed {
                let offsets = searches[run].offsets().to_vec();
                self.height = part.height_of(&offsets);
                self.best = Some((offsets, first + run as u64));
            } else {
                self.proven = self.proven.max(target + unit);
            }
            searches.iter_mut().for_each(Search::forget);
        }
        Some(round)
    }

    /// The height to aim at, and which sequence of budgets it belongs to.
    ///
    /// Half of the rounds aim half way between what is known to be possible and what may be, a
    /// quarter at the goal itself, and the others ever closer to the height reached. If the goal is
    /// a capacity, three quarters aim at it. Offsets can be sums of sizes, so only multiples of
    /// their common divisor are worth aiming at.
    fn target(&self, limits: &Limits, unit: u64) -> (u64, usize) {
        let lowest = limits.goal.max(self.proven).div_ceil(unit) * unit;
        let highest = (self.height - 1) / unit * unit;
        if highest <= lowest {
            return (highest, 1);
        }
        let between = |shift: u32| highest - (((highest - lowest) / unit) >> shift.min(63)) * unit;
        match self.rounds.trailing_zeros() {
            0 if !limits.fit => (between(1), 0),
            0 | 1 => (lowest, 1),
            ease => (between(ease), 2),
        }
    }
}

/// Runs every searcher with its strategy, each on a thread of its own.
fn in_parallel(
    searches: &mut [Search<'_>],
    strategies: Vec<Strategy>,
    target: u64,
    nodes: u64,
    deadline: Option<Instant>,
) -> Vec<(Outcome, u64)> {
    let fewest = AtomicU64::new(u64::MAX);
    let run = |search: &mut Search<'_>, strategy: &Strategy| {
        search.run(target, strategy, nodes, &Stop { fewest: &fewest, deadline })
    };
    std::thread::scope(|scope| {
        let mut jobs = searches.iter_mut().zip(&strategies);
        let own = jobs.next();
        let others: Vec<_> =
            jobs.map(|(search, strategy)| scope.spawn(|| run(search, strategy))).collect();
        let own = own.map(|(search, strategy)| run(search, strategy));
        let others = others.into_iter().map(|thread| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        own.into_iter().chain(others).collect()
    })
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
