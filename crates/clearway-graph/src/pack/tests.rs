//! The stages against plain versions of themselves.

use proptest::prelude::*;

use super::greedy::{self, Fit, Order};
use super::part::{self, Block, Part};
use super::search::{Outcome, Search, Stop};
use super::state::Model;
use super::strategy::{Ranks, luby};
use super::{heuristic, skyline};

fn blocks() -> impl Strategy<Value = Vec<Block>> {
    let block = (0u64..60, 1u64..25, 1u64..20);
    prop::collection::vec(block, 1..90).prop_map(|rows| {
        let block =
            |(index, (lower, life, size))| Block { index, lower, upper: lower + life, size };
        (0..).zip(rows).map(block).collect()
    })
}

fn meet(a: &Block, b: &Block) -> bool {
    a.lower < b.upper && b.lower < a.upper
}

/// The lowest offset of at least `from` at which `size` bytes are free of the taken ranges.
fn lowest_free(taken: &[(u64, u64)], from: u64, size: u64) -> u64 {
    let mut starts: Vec<u64> = taken.iter().map(|&(_, end)| end).chain([0]).collect();
    starts.sort_unstable();
    let free = |offset: u64| taken.iter().all(|&(a, b)| offset + size <= a || b <= offset);
    starts.into_iter().find(|&offset| offset >= from && free(offset)).unwrap()
}

fn conflicts(part: &Part, block: usize) -> impl Iterator<Item = usize> {
    let range = part.range(block);
    (0..part.len()).filter(move |&other| {
        let with = part.range(other);
        other != block && range.start < with.end && with.start < range.end
    })
}

/// Blocks whose live bytes hardly change from one instant to the next, so that there is little
/// room to waste: `moves` says what ends at each step and how its bytes are cut for new blocks.
fn brimful() -> impl Strategy<Value = Vec<Block>> {
    let moves = prop::collection::vec((any::<u64>(), 1u64..12, any::<bool>()), 4..12);
    (8u64..30, moves).prop_map(|(load, moves)| {
        let mut blocks: Vec<Block> = Vec::new();
        let mut free = load;
        for (time, (pick, size, end)) in (0..).zip(moves) {
            let live: Vec<usize> = (0..blocks.len()).filter(|&b| blocks[b].upper > time).collect();
            if end && !live.is_empty() {
                let ended = live[pick as usize % live.len()];
                blocks[ended].upper = time.max(blocks[ended].lower + 1);
                free = load - blocks.iter().filter(|b| b.upper > time).map(|b| b.size).sum::<u64>();
            }
            for size in [size, 7, 3, 1] {
                if size <= free && blocks.len() < 10 {
                    free -= size;
                    let index = blocks.len() as u32;
                    blocks.push(Block { index, lower: time, upper: u64::MAX, size });
                }
            }
        }
        blocks.iter_mut().for_each(|block| block.upper = block.upper.min(block.lower + 7));
        blocks
    })
}

/// Whether a packing within `limit` exists: blocks by offset, then by number, each on top of what
/// it meets. That repeats every packing whose blocks all rest on something.
fn fits(part: &Part, offsets: &mut [Option<u64>], last: (u64, usize), limit: u64) -> bool {
    for block in 0..part.len() {
        let tops = conflicts(part, block).filter_map(|b| Some(offsets[b]? + part.size[b]));
        let offset = tops.max().unwrap_or(0);
        let next = (offset, block);
        if offsets[block].is_none() && next >= last && offset + part.size[block] <= limit {
            offsets[block] = Some(offset);
            if fits(part, offsets, next, limit) {
                return true;
            }
            offsets[block] = None;
        }
    }
    offsets.iter().all(Option::is_some)
}

/// The search alone, without the heuristics that would hide a packing it misses: its verdict on
/// every height around the optimum, with the same memory of refusals from one to the next.
fn verdicts_are_right(blocks: &[Block]) -> Result<(), TestCaseError> {
    for part in part::split(blocks) {
        let fits = |limit: u64| fits(&part, &mut vec![None; part.len()], (0, 0), limit);
        let optimum = (part.bound..).find(|&limit| fits(limit)).unwrap();
        let (ranks, model) = (Ranks::new(&part), Model::new(&part));
        let mut search = Search::new(&part, &model);
        for run in [0, 1, 5, 6, 12, 23] {
            for target in [optimum - 1, optimum + 5, optimum, optimum + 1, optimum + 2] {
                let fewest = u64::MAX.into();
                let stop = Stop { fewest: &fewest, deadline: None };
                let (outcome, _) = search.run(target, &ranks.strategy(run), u64::MAX, &stop);
                let expected = if target < optimum { Outcome::Infeasible } else { Outcome::Packed };
                prop_assert_eq!(outcome, expected, "run {} at {} of {}", run, target, optimum);
                if outcome == Outcome::Packed {
                    prop_assert!(part.height_of(search.offsets()) <= target);
                }
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn the_search_is_right_on_brimful_problems(blocks in brimful()) {
        verdicts_are_right(&blocks)?;
    }

    #[test]
    fn the_search_is_right_on_loose_problems(
        rows in prop::collection::vec((0u64..8, 1u64..6, 1u64..9), 1..9),
    ) {
        let block = |(index, (lower, life, size))| Block { index, lower, upper: lower + life, size };
        verdicts_are_right(&(0..).zip(rows).map(block).collect::<Vec<_>>())?;
    }
}

proptest! {
    #[test]
    fn sections_keep_conflicts_and_loads(blocks in blocks()) {
        let parts = part::split(&blocks);
        prop_assert_eq!(parts.iter().map(Part::len).sum::<usize>(), blocks.len());
        let mut pairs = 0;
        for part in &parts {
            let block = |at: usize| &blocks[part.index[at] as usize];
            for a in 0..part.len() {
                prop_assert!(!part.range(a).is_empty());
                let meeting = (0..part.len()).filter(|&b| a != b && meet(block(a), block(b)));
                prop_assert!(meeting.eq(conflicts(part, a)));
            }
            pairs += part.pairs;
        }
        let meeting = |a: usize| blocks[..a].iter().filter(|b| meet(b, &blocks[a])).count() as u64;
        prop_assert_eq!(pairs, (0..blocks.len()).map(meeting).sum::<u64>());
        let live = |time: u64| blocks.iter().filter(move |b| b.lower <= time && time < b.upper);
        let load = (0..90).map(|time| live(time).map(|b| b.size).sum::<u64>()).max();
        prop_assert_eq!(parts.iter().map(|part| part.bound).max(), load);
    }

    #[test]
    fn parts_are_cut_wherever_nothing_is_live_across(blocks in blocks()) {
        let parts = part::split(&blocks);
        let across = |time: u64| blocks.iter().any(|b| b.lower < time && time < b.upper);
        let starts = |time: u64| blocks.iter().any(|b| b.lower >= time);
        let ends = |time: u64| blocks.iter().any(|b| b.upper <= time);
        // A gap counts once, at its first instant.
        let cut = |time: &u64| {
            let at_end = blocks.iter().any(|b| b.upper == *time);
            at_end && !across(*time) && starts(*time) && ends(*time)
        };
        prop_assert_eq!(parts.len(), 1 + (1..90).filter(cut).count());
    }

    #[test]
    fn greedy_first_fit_takes_the_lowest_gap(blocks in blocks()) {
        for part in part::split(&blocks) {
            for order in [Order::Size, Order::Duration, Order::Area, Order::Breadth] {
                let sequence = greedy::sequence(&part, order);
                let offsets = greedy::place(&part, &sequence, Fit::First, u64::MAX).unwrap();
                for (at, &block) in sequence.iter().enumerate() {
                    let block = block as usize;
                    let taken: Vec<(u64, u64)> = conflicts(&part, block)
                        .filter(|&other| sequence[..at].contains(&(other as u32)))
                        .map(|other| (offsets[other], offsets[other] + part.size[other]))
                        .collect();
                    prop_assert_eq!(offsets[block], lowest_free(&taken, 0, part.size[block]));
                }
                // The limit is exclusive: a packing of just this height is no improvement.
                let height = part.height_of(&offsets);
                prop_assert_eq!(greedy::place(&part, &sequence, Fit::First, height), None);
                let again = greedy::place(&part, &sequence, Fit::First, height + 1);
                prop_assert_eq!(again, Some(offsets));
            }
        }
    }

    #[test]
    fn skyline_places_the_block_that_sits_lowest(blocks in blocks()) {
        for part in part::split(&blocks) {
            let sequence = greedy::sequence(&part, Order::Area);
            let mut tops = vec![0u64; part.sections()];
            let mut left = sequence.clone();
            let mut expected = vec![0; part.len()];
            while !left.is_empty() {
                let low = |block: u32| *tops[part.range(block as usize)].iter().max().unwrap();
                let at = (0..left.len()).min_by_key(|&at| (low(left[at]), at)).unwrap();
                let block = left.remove(at) as usize;
                expected[block] = *tops[part.range(block)].iter().max().unwrap();
                let top = expected[block] + part.size[block];
                tops[part.range(block)].fill(top);
            }
            let (offsets, work) = skyline::dive(&part, &sequence, u64::MAX, u64::MAX);
            prop_assert_eq!(offsets, Some(expected));
            prop_assert_eq!(skyline::dive(&part, &sequence, u64::MAX, work - 1).0, None);
        }
    }

    #[test]
    fn heuristics_never_overlap(blocks in blocks(), searchable: bool) {
        for mut part in part::split(&blocks) {
            let goal = part.bound;
            heuristic::run(&mut part, goal, searchable);
            for a in 0..part.len() {
                for b in conflicts(&part, a) {
                    let (x, y) = (part.best.offsets[a], part.best.offsets[b]);
                    prop_assert!(x + part.size[a] <= y || y + part.size[b] <= x);
                }
            }
        }
    }

    #[test]
    fn every_strategy_ranks_every_block_once(blocks in blocks(), run in 0u64..40) {
        for part in part::split(&blocks) {
            let mut rank = Ranks::new(&part).strategy(run).rank;
            rank.sort_unstable();
            prop_assert!(rank.into_iter().eq(0..part.len() as u32));
        }
    }
}

#[test]
fn restart_lengths_follow_luby() {
    let sequence: Vec<u64> = (1..=15).map(luby).collect();
    assert_eq!(sequence, [1, 1, 2, 1, 1, 2, 4, 1, 1, 2, 1, 1, 2, 4, 8]);
}

/// Long enough ranges to use whole chunks of the skyline, and chunks that are levelled again.
#[test]
fn skyline_over_many_chunks() {
    let mut blocks: Vec<Block> = (0..700)
        .map(|k| Block { index: k, lower: u64::from(k), upper: u64::from(k) + 2, size: 3 })
        .collect();
    for (lower, upper) in [(0, 701), (10, 400), (65, 600), (128, 192), (130, 131)] {
        let index = blocks.len() as u32;
        blocks.push(Block { index, lower, upper, size: 10 });
    }
    let parts = part::split(&blocks);
    let [part] = &parts[..] else { panic!("one part") };
    for order in [Order::Duration, Order::Size] {
        let sequence = greedy::sequence(part, order);
        let (offsets, _) = skyline::dive(part, &sequence, u64::MAX, u64::MAX);
        let offsets = offsets.unwrap();
        for a in 0..part.len() {
            for b in conflicts(part, a) {
                let (x, y) = (offsets[a], offsets[b]);
                assert!(x + part.size[a] <= y || y + part.size[b] <= x, "{a} and {b}");
            }
        }
    }
}
