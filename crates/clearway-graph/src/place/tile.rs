//! Repeating layers placed once.
//!
//! The layers of a model make the same values over and over. Where the births of values repeat with
//! some period, one period is placed together with what lies around the repetition, and every
//! further one gets the same offsets. A value of the period conflicts with another if any two of
//! their copies are live at once, so the result is a valid arrangement of all values by construction.
//! It is used where it is as low as any can be, or lower than what placing everything at once gives.

use std::cmp::Reverse;
use std::hash::Hasher;

use rustc_hash::FxHasher;

use crate::pack::{Fit, Item, gap};

/// Offsets of all items.
pub(super) struct Tiled {
    pub offsets: Vec<u64>,
    /// They are as low as the items that are live at once allow.
    pub is_lowest: bool,
}

/// Groups of the longest period looked for.
const MAX_PERIOD: usize = 256;

/// Periods a repetition needs to be worth it.
const MIN_REPEATS: usize = 3;

/// Bands placed at most: each is compared with all others.
const MAX_BANDS: usize = 1024;

/// Places items that repeat; `None` if too few do.
pub(super) fn tile(items: &[Item], align: u64) -> Option<Tiled> {
    let births = Births::of(items)?;
    let rhythm = births.rhythm()?;
    let bands = births.bands(items, rhythm)?;
    let bound = load_bound(items, births.groups(), align);
    let mut best: Option<(u64, Vec<u64>)> = None;
    for (order, fit) in [
        (Order::Size, Fit::Best),
        (Order::Size, Fit::First),
        (Order::Area, Fit::First),
        (Order::Life, Fit::First),
        (Order::Start, Fit::Best),
    ] {
        let (height, offsets) = place(&bands, rhythm, order, fit, align);
        if best.as_ref().is_none_or(|(least, _)| height < *least) {
            best = Some((height, offsets));
        }
        if height <= bound {
            break;
        }
    }
    let (height, band_offsets) = best?;
    let mut offsets = vec![0; items.len()];
    for (band, offset) in bands.iter().zip(band_offsets) {
        for &item in &band.items {
            offsets[item as usize] = offset;
        }
    }
    Some(Tiled { offsets, is_lowest: height <= bound })
}

/// Where births repeat: from group `start`, `repeats` times `period` groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rhythm {
    start: usize,
    period: usize,
    repeats: usize,
}

/// An item, or the copies of one in all periods; the life is that of the first.
struct Band {
    items: Vec<u32>,
    lower: u64,
    upper: u64,
    size: u64,
    repeats: bool,
}

/// The items born in each group, in an order that is the same wherever their lives and sizes are.
struct Births {
    /// Items by group.
    sorted: Vec<u32>,
    /// Where those of each group start, and one past the last.
    starts: Vec<u32>,
    /// What is born in each group, as a number.
    sign: Vec<u64>,
}

impl Births {
    /// `None` if there are hardly any groups, or so many that most must be empty.
    fn of(items: &[Item]) -> Option<Self> {
        let groups = items.iter().map(|item| item.upper).max().unwrap_or(0) as usize;
        if groups < MIN_REPEATS || groups > 64 + 64 * items.len() {
            return None;
        }
        let mut sorted: Vec<u32> = (0..items.len() as u32).collect();
        let key = |&index: &u32| {
            let item = &items[index as usize];
            (item.lower, item.upper, item.size, index)
        };
        sorted.sort_unstable_by_key(key);
        let mut starts = vec![0u32; groups + 1];
        for item in items {
            starts[item.lower as usize + 1] += 1;
        }
        for group in 0..groups {
            starts[group + 1] += starts[group];
        }
        let mut births = Self { sorted, starts, sign: Vec::new() };
        births.sign = (0..groups).map(|group| births.sign(items, group)).collect();
        Some(births)
    }

    fn groups(&self) -> usize {
        self.starts.len() - 1
    }

    fn born(&self, group: usize) -> &[u32] {
        &self.sorted[self.starts[group] as usize..self.starts[group + 1] as usize]
    }

    fn sign(&self, items: &[Item], group: usize) -> u64 {
        let mut hasher = FxHasher::default();
        for &index in self.born(group) {
            let item = &items[index as usize];
            hasher.write_u64(item.upper - item.lower);
            hasher.write_u64(item.size);
        }
        hasher.finish()
    }

    /// The repetition that saves the most groups; the shortest period among equals.
    fn rhythm(&self) -> Option<Rhythm> {
        let groups = self.groups();
        let mut best: Option<(usize, Rhythm)> = None;
        for period in 1..=MAX_PERIOD.min(groups / MIN_REPEATS) {
            let mut run = 0;
            for group in 0..=groups - period {
                let same = group < groups - period && self.sign[group] == self.sign[group + period];
                if same {
                    run += 1;
                    continue;
                }
                let repeats = run / period + 1;
                let saved = (repeats - 1) * period;
                if repeats >= MIN_REPEATS && best.is_none_or(|(most, _)| saved > most) {
                    best = Some((saved, Rhythm { start: group - run, period, repeats }));
                }
                run = 0;
            }
        }
        best.map(|(_, rhythm)| rhythm)
    }

    /// One band for each item of the first period, with its copies, and one for every other item.
    /// `None` if a value outlives its period, or if hardly anything repeats.
    fn bands(&self, items: &[Item], rhythm: Rhythm) -> Option<Vec<Band>> {
        let Rhythm { start, period, repeats } = rhythm;
        let mut bands = Vec::new();
        for group in 0..self.groups() {
            let inside = group >= start && group < start + period * repeats;
            if inside && group >= start + period {
                continue; // a copy
            }
            for (nth, &index) in self.born(group).iter().enumerate() {
                let &Item { lower, upper, size, .. } = &items[index as usize];
                let mut copies = vec![index];
                if inside {
                    if upper - lower > period as u64 {
                        return None;
                    }
                    for repeat in 1..repeats {
                        let copy = *self.born(group + repeat * period).get(nth)?;
                        let other = &items[copy as usize];
                        // Equal signs are all but equal births; the rest is checked.
                        if (other.upper - other.lower, other.size) != (upper - lower, size) {
                            return None;
                        }
                        copies.push(copy);
                    }
                }
                bands.push(Band { items: copies, lower, upper, size, repeats: inside });
            }
        }
        let placed: usize = bands.iter().map(|band| band.items.len()).sum();
        let worth_it = bands.len() <= MAX_BANDS && 2 * bands.len() <= items.len();
        (placed == items.len() && worth_it).then_some(bands)
    }
}

/// Most bytes live in a group.
fn load_bound(items: &[Item], groups: usize, align: u64) -> u64 {
    let mut change = vec![0u64; groups + 1];
    for item in items {
        let (from, to) = (item.lower as usize, item.upper as usize);
        let size = item.size.next_multiple_of(align);
        change[from] = change[from].wrapping_add(size);
        change[to] = change[to].wrapping_sub(size);
    }
    let mut live = 0u64;
    let loads = change.into_iter().map(|change| {
        live = live.wrapping_add(change);
        live
    });
    loads.max().unwrap_or(0)
}

/// What a greedy placement takes first.
#[derive(Clone, Copy)]
enum Order {
    Size,
    Area,
    Life,
    Start,
}

/// Height, and the offset of each band.
fn place(bands: &[Band], rhythm: Rhythm, order: Order, fit: Fit, align: u64) -> (u64, Vec<u64>) {
    let mut sequence: Vec<usize> = (0..bands.len()).collect();
    sequence.sort_by_key(|&index| {
        let band = &bands[index];
        let life = band.upper - band.lower;
        let first = match order {
            Order::Size => Reverse(u128::from(band.size)),
            Order::Area => Reverse(u128::from(band.size) * u128::from(life)),
            Order::Life => Reverse(u128::from(life)),
            Order::Start => Reverse(u128::MAX - u128::from(band.lower)),
        };
        (first, Reverse((life, band.size)), index)
    });
    let mut offsets = vec![0; bands.len()];
    let (mut height, mut taken) = (0, Vec::new());
    for (at, &index) in sequence.iter().enumerate() {
        let band = &bands[index];
        let size = band.size.next_multiple_of(align);
        taken.clear();
        for &other in sequence[..at].iter().filter(|&&other| meet(band, &bands[other], rhythm)) {
            let end = offsets[other] + bands[other].size.next_multiple_of(align);
            taken.push((offsets[other], end));
        }
        taken.sort_unstable();
        offsets[index] = if size == 0 { 0 } else { gap(&taken, size, fit) };
        height = height.max(offsets[index] + size);
    }
    (height, offsets)
}

/// Whether any copies of two bands are live at once.
fn meet(a: &Band, b: &Band, rhythm: Rhythm) -> bool {
    let period = rhythm.period as u64;
    let overlap = |a: (u64, u64), b: (u64, u64)| a.0 < b.1 && b.0 < a.1;
    let (own, other) = ((a.lower, a.upper), (b.lower, b.upper));
    match (a.repeats, b.repeats) {
        (false, false) => overlap(own, other),
        // Both start in the first period and live for one at most: neighbours are all that can meet.
        (true, true) => {
            let next = |life: (u64, u64)| (life.0 + period, life.1 + period);
            overlap(own, other) || overlap(next(own), other) || overlap(own, next(other))
        }
        (true, false) => meets_a_copy(own, other, rhythm),
        (false, true) => meets_a_copy(other, own, rhythm),
    }
}

/// Whether a copy of `life` meets `other`.
fn meets_a_copy(life: (u64, u64), other: (u64, u64), rhythm: Rhythm) -> bool {
    let period = rhythm.period as u64;
    // The first copy that ends after `other` starts; later ones start later still.
    let copy = match other.0.checked_sub(life.1) {
        None => 0,
        Some(behind) => behind / period + 1,
    };
    copy < rhythm.repeats as u64 && life.0 + copy * period < other.1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::check;

    fn item(id: u32, lower: u64, upper: u64, size: u64) -> Item {
        Item { id, lower, upper, size }
    }

    /// Layers of `period` groups with a stream that crosses from each into the next, and an input
    /// and an output around them.
    fn layers(count: u64, period: u64) -> Vec<Item> {
        let mut items = vec![item(0, 0, count * period + 2, 64)];
        for layer in 0..count {
            let start = 1 + layer * period;
            for (step, size) in (0..period).zip([512, 2048, 1024, 256].into_iter().cycle()) {
                items.push(item(items.len() as u32, start + step, start + step + 2, size));
            }
            items.push(item(items.len() as u32, start + period - 1, start + 2 * period - 2, 768));
        }
        let end = count * period + 1;
        items.push(item(items.len() as u32, end, end + 1, 4096));
        items
    }

    #[test]
    fn repeating_layers_are_placed_once_at_valid_offsets() {
        let items = layers(40, 7);
        let tiled = tile(&items, 256).unwrap();
        assert!(check(&items, &tiled.offsets, None).is_ok());
        let rhythm = Births::of(&items).unwrap().rhythm().unwrap();
        assert_eq!((rhythm.period, rhythm.repeats >= 38), (7, true), "{rhythm:?}");
        let second = |layer: usize| tiled.offsets[1 + layer * 8 + 2];
        assert!((5..30).all(|layer| second(layer) == second(5)), "layers lie alike");
    }

    #[test]
    fn what_does_not_repeat_is_left_alone() {
        let items: Vec<Item> = (0..60)
            .map(|k| item(k, u64::from(k), u64::from(k) + 2, 64 + u64::from(k * k)))
            .collect();
        assert!(tile(&items, 1).is_none());
        // Values that outlive their period would lie over their own copies.
        let long: Vec<Item> =
            (0..60).map(|k| item(k, u64::from(k), u64::from(k) + 2, 64)).collect();
        assert!(tile(&long, 1).is_none_or(|tiled| check(&long, &tiled.offsets, None).is_ok()));
        assert!(tile(&[], 1).is_none());
    }

    #[test]
    fn random_layers_are_valid_whatever_they_look_like() {
        let mut rng = crate::testkit::Rng::new(11);
        let mut tiled_sets = 0;
        for _ in 0..300 {
            let (period, count) = (1 + rng.below(6), 3 + rng.below(9));
            let layer: Vec<(u64, u64, u64)> = (0..1 + rng.below(8))
                .map(|_| (rng.below(period), 1 + rng.below(period), 1 + rng.below(9)))
                .collect();
            let lead = rng.below(4);
            let mut items: Vec<Item> = (0..rng.below(4))
                .map(|_| (rng.below(lead + count * period), 1 + rng.below(20), 1 + rng.below(9)))
                .map(|(lower, life, size)| item(0, lower, lower + life, size))
                .collect();
            for copy in 0..count {
                let lives = layer.iter().map(|&(at, life, size)| {
                    let lower = lead + copy * period + at;
                    item(0, lower, lower + life, size)
                });
                items.extend(lives);
            }
            if let Some(tiled) = tile(&items, 1) {
                tiled_sets += 1;
                let height = check(&items, &tiled.offsets, None);
                assert!(height.is_ok(), "{items:?}: {height:?}");
            }
        }
        assert!(tiled_sets > 100, "{tiled_sets} sets repeat");
    }
}
