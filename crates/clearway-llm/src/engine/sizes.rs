//! Numbers of rows that steps are compiled for, and which compiled steps are kept.

use std::hash::Hash;

use rustc_hash::FxHashMap;

/// Numbers up to which each power of two has so many sizes below it.
const PARTS: usize = 16;

/// Rows of the step that reads so many: the next number that steps are compiled for. From 65 rows on, at most one row in nine is
/// computed for nothing, and one in 25 on average. A size that was not met before takes milliseconds to compile, since its kernels
/// are those of its neighbours.
pub(crate) fn fitting(rows: usize) -> usize {
    let unit = match rows {
        0..=2 => 1,
        3..=32 => 4,
        _ => (rows.next_power_of_two() / PARTS).max(8),
    };
    rows.next_multiple_of(unit).max(1)
}

/// Compiled steps. Values of a step take memory that grows with its rows, so those that were not used for longest are given up when
/// all together have more rows than allowed.
pub(crate) struct Kept<K, S> {
    steps: FxHashMap<K, Used<S>>,
    most_rows: usize,
    now: u64,
}

struct Used<S> {
    step: S,
    rows: usize,
    at: u64,
}

impl<K: Copy + Eq + Hash, S> Kept<K, S> {
    /// Keeps steps of so many rows together, and always the last one.
    pub(crate) fn new(most_rows: usize) -> Self {
        Self { steps: FxHashMap::default(), most_rows, now: 0 }
    }

    pub(crate) fn get(&self, key: &K) -> Option<&S> {
        self.steps.get(key).map(|used| &used.step)
    }

    /// A step that is used now.
    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut S> {
        self.now += 1;
        let used = self.steps.get_mut(key)?;
        used.at = self.now;
        Some(&mut used.step)
    }

    /// Which steps there are.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &K> {
        self.steps.keys()
    }

    pub(crate) fn clear(&mut self) {
        self.steps.clear();
    }

    /// Takes a step out, to use it and to put it back.
    pub(crate) fn take(&mut self, key: &K) -> Option<S> {
        self.steps.remove(key).map(|used| used.step)
    }

    /// Keeps a step of so many rows.
    pub(crate) fn put(&mut self, key: K, rows: usize, step: S) -> &mut S {
        self.now += 1;
        let used = Used { step, rows, at: self.now };
        &mut self.steps.entry(key).insert_entry(used).into_mut().step
    }

    /// Gives up what makes room for so many rows more, before they are made.
    pub(crate) fn give_up_for(&mut self, rows: usize) {
        self.give_up_but(rows, |_| false);
    }

    /// As [`give_up_for`](Self::give_up_for), without some that are always kept.
    pub(crate) fn give_up_but(&mut self, rows: usize, stays: impl Fn(&K) -> bool) {
        let mut all: usize = self.steps.values().map(|used| used.rows).sum();
        while all + rows > self.most_rows {
            let others = self.steps.iter().filter(|(key, _)| !stays(key));
            let oldest = others.min_by_key(|(_, used)| used.at).map(|(&key, _)| key);
            let Some(given_up) = oldest.and_then(|key| self.steps.remove(&key)) else { return };
            all -= given_up.rows;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_hold_their_rows_and_few_more() {
        let sizes: Vec<usize> = [1, 2, 3, 5, 9, 32, 33, 63, 100, 129, 130, 257, 700, 1025, 2048]
            .into_iter()
            .map(fitting)
            .collect();
        let expected = [1, 2, 4, 8, 12, 32, 40, 64, 104, 144, 144, 288, 704, 1152, 2048];
        assert_eq!(sizes, expected);
        for rows in 1..5000 {
            let size = fitting(rows);
            assert!(size >= rows && fitting(size) == size, "{rows}");
            assert!(rows <= 64 || 9 * (size - rows) < size, "{rows}: {size}");
            assert!(size >= fitting(rows - 1), "{rows}");
        }
        let all: std::collections::BTreeSet<usize> = (1..=2048).map(fitting).collect();
        assert!(all.len() < 64, "{}", all.len());
    }

    #[test]
    fn the_oldest_steps_are_given_up_for_new_ones() {
        let mut kept = Kept::new(100);
        let mut get = |rows: usize| {
            let step = kept.take(&rows).unwrap_or_else(|| {
                kept.give_up_for(rows);
                rows
            });
            assert_eq!(*kept.put(rows, rows, step), rows);
            [20, 25, 30, 40, 200].map(|key| kept.get(&key).is_some())
        };
        for rows in [40, 30, 20, 40] {
            get(rows);
        }
        // 30 was not used for longest.
        assert_eq!(get(25), [true, true, false, true, false]);
        // One that is larger than all that is allowed is kept alone.
        assert_eq!(get(200), [false, false, false, false, true]);
        assert_eq!(get(20), [true, false, false, false, false]);
        // What stays leaves its place to nobody.
        kept.put(90, 90, 90);
        kept.give_up_but(0, |&key| key == 20);
        assert_eq!([20, 90].map(|key| kept.get(&key).is_some()), [true, false]);
        kept.give_up_but(100, |&key| key == 20);
        assert_eq!(kept.keys().collect::<Vec<_>>(), [&20]);
    }
}
