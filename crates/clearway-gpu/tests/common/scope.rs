//! Which cases of the op suite a test runs.
//!
//! `CLEARWAY_CASES` is a number in soak: then every configuration runs the whole list. Anything else is a part of a
//! case's text, for whoever works on a kernel: then only cases with that text run. Without it a test runs a
//! sample that has every class of cases, with the seed of the run.

use clearway_gpu::ops::suite::{self, DEFAULT_SEED, OpCase};

/// How much of the list runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All of it.
    Whole,
    /// A sample of it.
    Sample,
    /// Cases with a text in their description.
    Some(String),
}

impl Scope {
    pub fn from_env() -> Self {
        match std::env::var("CLEARWAY_CASES") {
            Ok(number) if number.parse::<u64>().is_ok() => Self::Whole,
            Ok(text) => Self::Some(text),
            Err(_) => Self::Sample,
        }
    }

    /// The cases of the run's seed: one of every `step`th class where a sample is asked for.
    pub fn cases(&self, step: usize) -> Vec<OpCase> {
        let seed = std::env::var("CLEARWAY_SEED").ok().and_then(|text| text.parse().ok());
        let seed = seed.unwrap_or(DEFAULT_SEED);
        let all = suite::cases(seed);
        match self {
            Self::Whole => all,
            Self::Sample => suite::sample(&all, seed, step),
            Self::Some(text) => {
                all.into_iter().filter(|case| case.to_string().contains(text)).collect()
            }
        }
    }
}
