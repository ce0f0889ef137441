//! A plain mutation loop: seeds are changed at random, what is accepted is changed further.
//!
//! It knows nothing of coverage, which needs a nightly toolchain. In return it runs wherever the tests run, and one
//! number repeats all of it: case `n` of a seed is always the same input.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use crate::Target;

/// Longest input.
const MAX_BYTES: usize = 1 << 16;
/// Accepted inputs that are kept beside the seeds.
const MAX_KEPT: usize = 256;
/// Numbers at which parsers change their minds.
const NUMBERS: [u64; 14] =
    [0, 1, 2, 7, 8, 9, 31, 127, 255, 65_535, 1 << 20, i64::MAX as u64, u32::MAX as u64, u64::MAX];

/// An input that broke a target.
#[derive(Debug)]
pub struct Found {
    /// Number of the case.
    pub case: u64,
    /// The input.
    pub input: Vec<u8>,
    /// What the target said.
    pub message: String,
}

/// Tries inputs for some time; returns how many, or the first that broke the target.
///
/// # Errors
/// The first input on which the target panicked.
pub fn run(target: &Target, seed: u64, time: Duration) -> Result<u64, Found> {
    let end = Instant::now() + time;
    let seeds = (target.seeds)();
    let mut mutator = Mutator { random: Random::new(seed), target, kept: Vec::new() };
    let mut case = 0;
    for seed in &seeds {
        attempt(target, seed, case)?;
        case += 1;
    }
    while Instant::now() < end {
        let input = mutator.next(&seeds);
        if attempt(target, &input, case)? {
            mutator.keep(input);
        }
        case += 1;
    }
    Ok(case)
}

fn attempt(target: &Target, input: &[u8], case: u64) -> Result<bool, Found> {
    catch_unwind(AssertUnwindSafe(|| (target.run)(input))).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let message = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        Found { case, input: input.to_vec(), message: message.to_owned() }
    })
}

struct Mutator<'a> {
    random: Random,
    target: &'a Target,
    kept: Vec<Vec<u8>>,
}

impl Mutator<'_> {
    /// A changed copy of something that is known.
    fn next(&mut self, seeds: &[Vec<u8>]) -> Vec<u8> {
        let mut data = self.pick(seeds).to_vec();
        for _ in 0..1 + self.random.below(5) {
            self.change(&mut data, seeds);
        }
        data.truncate(MAX_BYTES);
        data
    }

    /// Remembers an accepted input, in the place of an older one when there are many.
    fn keep(&mut self, input: Vec<u8>) {
        match self.kept.len() {
            ..MAX_KEPT => self.kept.push(input),
            _ => {
                let old = self.random.below(MAX_KEPT);
                self.kept[old] = input;
            }
        }
    }

    fn pick<'b>(&'b mut self, seeds: &'b [Vec<u8>]) -> &'b [u8] {
        let kept = self.random.below(2) == 1 && !self.kept.is_empty();
        let from: &[Vec<u8>] = if kept { &self.kept } else { seeds };
        match from.len() {
            0 => &[],
            len => &from[self.random.below(len)],
        }
    }

    fn change(&mut self, data: &mut Vec<u8>, seeds: &[Vec<u8>]) {
        let at = self.random.below(data.len() + 1);
        let rest = data.len() - at;
        let len = self.random.below(rest.min(64) + 1);
        match self.random.below(10) {
            0 if rest > 0 => data[at] ^= 1 << self.random.below(8),
            1 if rest > 0 => data[at] = self.random.next() as u8,
            // A number in place of another, of each width.
            2 | 3 => {
                let number = NUMBERS[self.random.below(NUMBERS.len())].to_le_bytes();
                let width = (1 << self.random.below(4)).min(rest);
                data[at..at + width].copy_from_slice(&number[..width]);
            }
            // A number a little larger or smaller.
            4 if rest >= 8 => {
                let mut word = [0; 8];
                word.copy_from_slice(&data[at..at + 8]);
                let step = self.random.below(17) as u64;
                let word = u64::from_le_bytes(word).wrapping_add(step).wrapping_sub(8);
                data[at..at + 8].copy_from_slice(&word.to_le_bytes());
            }
            5 => drop(data.drain(at..at + len)),
            6 => {
                let copy = data[at..at + len].to_vec();
                drop(data.splice(at..at, copy));
            }
            7 | 8 if !self.target.words.is_empty() => {
                let word = self.target.words[self.random.below(self.target.words.len())];
                let over = if self.random.below(2) == 0 { 0 } else { word.len().min(rest) };
                drop(data.splice(at..at + over, word.iter().copied()));
            }
            // The end of another.
            9 => {
                let other = self.pick(seeds).to_vec();
                let from = self.random.below(other.len() + 1);
                data.truncate(at);
                data.extend(&other[from..]);
            }
            _ => {
                let byte = self.random.next() as u8;
                data.insert(at, byte);
            }
        }
        data.truncate(MAX_BYTES);
    }
}

/// Xorshift with a multiplication, as in the tests.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 8
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}
