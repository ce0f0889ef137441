//! How long a draft may be for its rows to pay.
//!
//! A step of more rows takes longer and gives more tokens where the draft is right. [`Worth`] learns both: how long steps of
//! each number of rows take against a step of one, and for each kind of draft how often its next token is right. From that it
//! takes the number of rows with the most tokens per second, which may be one: then nothing is drafted. It has no clock of its
//! own, and what it decides changes the time of a text and never its tokens.

use std::time::Duration;

/// Rows of steps that check drafts. The engine has a compiled step for each.
pub const ROWS: [usize; 4] = [1, 2, 4, 8];
/// Tokens of a draft at most.
pub const LONGEST: usize = ROWS[ROWS.len() - 1] - 1;
/// Kinds of drafts, the surest last.
pub const KINDS: usize = 4;

/// Share of right tokens that is assumed for each kind before anything is known.
const HOPE: [f64; KINDS] = [0.35, 0.45, 0.6, 0.8];
/// Weight of a new token in that share.
const WEIGHT: f64 = 0.12;
/// What one row more is assumed to cost, as a share of a step of one row, before anything is measured.
const ROW_COST: f64 = 0.2;
/// Weight of a new time.
const TIME_WEIGHT: f64 = 0.2;
/// How fast a time that is not measured any more goes back to what is assumed. One that was wrong must not last.
const FORGET: f64 = 0.002;
/// What a draft must promise over a step without one: estimates are no better.
const GAIN: f64 = 1.03;

/// What is known about steps and drafts.
#[derive(Clone, Debug)]
pub struct Worth {
    /// For each kind, how likely the next token of a draft is right if all before it were.
    right: [f64; KINDS],
    /// Seconds of a step of one row; 0 before the first.
    step: f64,
    /// Steps of each number of rows against one of one row.
    ratios: [f64; ROWS.len()],
    /// Seconds that one token of a draft takes.
    draft: f64,
}

impl Default for Worth {
    fn default() -> Self {
        Self { right: HOPE, step: 0.0, ratios: ROWS.map(assumed), draft: 0.0 }
    }
}

fn assumed(rows: usize) -> f64 {
    1.0 + ROW_COST * (rows - 1) as f64
}

impl Worth {
    /// Tokens of a draft of this kind that pay, `most` at most; 0 where none does.
    pub fn length(&self, kind: usize, most: usize) -> usize {
        let right = self.right[kind.min(KINDS - 1)];
        let draft = if self.step > 0.0 { self.draft / self.step } else { 0.0 };
        let (mut best, mut length) = (GAIN, 0);
        for (rows, ratio) in ROWS.into_iter().zip(self.ratios).skip(1) {
            let drafted = (rows - 1).min(most);
            let tokens: f64 = (0..=drafted as i32).map(|place| right.powi(place)).sum();
            let rate = tokens / (ratio + draft * drafted as f64);
            if rate > best {
                (best, length) = (rate, drafted);
            }
        }
        length
    }

    /// A draft of this kind had its first `kept` tokens right, of so many that were compared.
    pub fn learn(&mut self, kind: usize, kept: usize, compared: usize) {
        let right = &mut self.right[kind.min(KINDS - 1)];
        for place in 0..compared.min(kept + 1) {
            let found = if place < kept { 1.0 } else { 0.0 };
            *right += (found - *right) * WEIGHT;
        }
    }

    /// A step of so many rows took so long.
    pub fn took(&mut self, rows: usize, time: Duration) {
        let time = time.as_secs_f64();
        if rows <= 1 {
            self.step = if self.step > 0.0 { toward(self.step, time) } else { time };
        }
        let here = ROWS.into_iter().position(|some| some >= rows).unwrap_or(ROWS.len() - 1);
        for (place, ratio) in self.ratios.iter_mut().enumerate().skip(1) {
            if place == here && self.step > 0.0 {
                // So many steps of one row would do.
                *ratio = toward(*ratio, time / self.step).clamp(1.0, ROWS[place] as f64);
            } else {
                *ratio += (assumed(ROWS[place]) - *ratio) * FORGET;
            }
        }
    }

    /// One token of a draft took so long.
    pub fn drafted(&mut self, time: Duration) {
        let time = time.as_secs_f64();
        self.draft = if self.draft > 0.0 { toward(self.draft, time) } else { time };
    }
}

/// A mean that one odd time does not spoil.
fn toward(mean: f64, time: f64) -> f64 {
    mean + (time.min(2.0 * mean) - mean) * TIME_WEIGHT
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(10);

    /// Steps of each number of rows, each row at this share of a step, measured often enough.
    fn measured(row_cost: f64) -> Worth {
        let mut worth = Worth::default();
        for _ in 0..40 {
            for rows in ROWS {
                worth.took(rows, STEP.mul_f64(1.0 + row_cost * (rows - 1) as f64));
            }
        }
        worth
    }

    fn taught(mut worth: Worth, kept: usize, compared: usize) -> Worth {
        (0..60).for_each(|_| worth.learn(0, kept, compared));
        worth
    }

    #[test]
    fn drafts_that_are_right_are_long_and_others_are_not_made() {
        assert_eq!(taught(measured(0.2), 7, 7).length(0, LONGEST), 7);
        assert_eq!(taught(measured(0.2), 0, 7).length(0, LONGEST), 0);
        // Every second token right: 1.5 tokens in 1.2 steps, and a third row would give a quarter for a fifth.
        assert_eq!(taught(measured(0.2), 1, 2).length(0, LONGEST), 1);
        assert_eq!(taught(measured(0.1), 7, 7).length(0, 5), 5);
        assert_eq!(taught(measured(0.2), 7, 7).length(0, 0), 0);
    }

    #[test]
    fn the_same_drafts_pay_where_rows_are_cheap_and_not_where_they_cost_a_step() {
        assert_eq!(taught(measured(0.02), 1, 2).length(0, LONGEST), 3);
        assert_eq!(taught(measured(1.0), 7, 7).length(0, LONGEST), 0);
    }

    #[test]
    fn the_time_of_drafting_counts() {
        let mut worth = taught(measured(0.1), 7, 7);
        worth.drafted(STEP.mul_f64(0.1));
        assert_eq!(worth.length(0, LONGEST), 7);
        (0..40).for_each(|_| worth.drafted(STEP));
        assert_eq!(worth.length(0, LONGEST), 0, "as slow as the model itself");
    }

    #[test]
    fn kinds_are_learnt_apart() {
        let worth = taught(measured(0.2), 0, 7);
        assert_eq!(worth.length(0, LONGEST), 0);
        assert!(worth.length(KINDS - 1, LONGEST) > 0);
    }

    #[test]
    fn one_odd_time_changes_little_and_a_wrong_one_is_forgotten() {
        let mut worth = taught(measured(0.2), 7, 7);
        worth.took(8, 100 * STEP);
        assert_eq!(worth.length(0, LONGEST), 7);
        (0..40).for_each(|_| worth.took(8, 20 * STEP));
        assert!(worth.length(0, LONGEST) < 7);
        (0..2000).for_each(|_| worth.took(1, STEP));
        assert_eq!(worth.length(0, LONGEST), 7);
    }
}
