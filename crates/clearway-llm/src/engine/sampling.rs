//! One row of sampling data, and the order in which it acts.
//!
//! A token is chosen in these steps, on the host and on a device alike. All arithmetic is in `f32`, sums run over
//! candidates in their order, and each step keeps at least one candidate.
//!
//! 1. **Biases and mask.** Each bias is added to the logit of its token. The logit of a token that the mask or the constraint
//!    does not allow becomes negative infinity.
//! 2. **Penalties.** They apply to tokens among the last [`Penalties::window`] of the text. Let `n` be how often such a
//!    token is there. Its logit `l` becomes `l / repeat` where it is positive and `l * repeat` where it is not, then
//!    `l - n * frequency - presence`.
//! 3. **Top-k.** Candidates are ordered by logit, the largest first; of equal logits the lower id is first. The first
//!    `top_k` stay. NaN and negative infinity are no candidates. From here on `l[0]` is the best logit.
//! 4. **Top-p.** With `w[i] = exp(l[i] - l[0])` and `total` the sum of all `w`, candidates stay until the sum of those that
//!    stay is at least `top_p * total`.
//! 5. **Min-p.** A candidate stays if `l[i] - l[0] >= ln(min_p)`.
//! 6. **Temperature.** With `v[i] = exp((l[i] - l[0]) / temperature)` and `sum` the sum of the `v` that stay, the token is
//!    the first whose running sum exceeds `share * sum`. Temperature 0 takes the first candidate.
//!
//! That is the order of llama.cpp: temperature comes last, so it changes how candidates are drawn and not which ones there
//! are.
//!
//! **Random numbers** have no state. The share, in `0..1`, is a hash of the seed and the position of the token that is
//! drawn, which is the number of tokens before it. A text therefore depends neither on how steps were grouped nor on who
//! drew, and a step that is done again draws the same token.
//!
//! | part of the row | device | host |
//! |---|---|---|
//! | temperature, top-p, min-p, seed | yes | yes |
//! | top-k | 1 to 160 | any |
//! | position | yes, where the cache row is looked up too | the length of the text |
//! | biases, mask, constraint, penalties, log probabilities | no | yes |
//! | stop tokens, budget | in slots of [`batch`](crate::batch) | yes, as tokens arrive; tokens beyond the end are dropped |
//! | stop strings | no | the same |
//! | adapter | in slots of [`batch`](crate::batch) | refused elsewhere |
//!
//! [`Sampling::runs_on_device`] says which side a row needs. What the device reads is data, so one compiled step serves
//! every row.

use std::sync::Arc;

use super::{EngineError, Result, TextConstraint};

/// Best tokens among which a device draws at most.
pub(super) const MOST_DRAWN: usize = 160;

/// How the tokens of one text are chosen: a row of sampling data. The defaults are those llama.cpp users know.
///
/// ```
/// use clearway_llm::engine::Sampling;
///
/// let careful = Sampling { temperature: 0.2, budget: 100, ..Sampling::default() };
/// assert!(careful.runs_on_device());
/// assert!(!Sampling { log_probs: 5, ..careful }.runs_on_device());
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// The same seed gives the same text on the same device.
    pub seed: u64,
    /// 0 takes the likeliest token.
    pub temperature: f32,
    /// Only so many of the likeliest; 0 for all.
    pub top_k: usize,
    /// Only the likeliest that together have this probability; 1 for all.
    pub top_p: f32,
    /// Only those at least this likely, relative to the likeliest; 0 for all.
    pub min_p: f32,
    /// What recent tokens lose.
    pub penalties: Penalties,
    /// What is added to the logits of single tokens.
    pub biases: Vec<(u32, f32)>,
    /// Tokens that may come; `None` for all.
    pub mask: Option<Arc<TokenMask>>,
    /// Which of them may come next, where that changes from token to token; `None` for all. It belongs to one text.
    pub constraint: Option<TextConstraint>,
    /// How many log probabilities are returned with each token; 0 for none.
    pub log_probs: usize,
    /// Tokens that end the text, beside those of the vocabulary.
    pub stop_tokens: Vec<u32>,
    /// Strings that end the text. They are not part of it.
    pub stop_strings: Vec<String>,
    /// Tokens of the text at most.
    pub budget: usize,
    /// Which of the engine's choices of adapters acts on the text ([`Adapters::ByText`](super::Adapters::ByText)), where many
    /// texts are written at once; `None` for none. Elsewhere anything but `None` is refused.
    pub adapter: Option<u32>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            seed: 0,
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            penalties: Penalties::default(),
            biases: Vec::new(),
            mask: None,
            constraint: None,
            log_probs: 0,
            stop_tokens: Vec::new(),
            stop_strings: Vec::new(),
            budget: usize::MAX,
            adapter: None,
        }
    }
}

/// What tokens lose that came recently. The default takes nothing away.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Penalties {
    /// Tokens of the text that count as recent, the prompt included.
    pub window: usize,
    /// Positive logits are divided and others multiplied by this; 1 for none.
    pub repeat: f32,
    /// Taken from the logit for each time the token is there; 0 for none.
    pub frequency: f32,
    /// Taken from the logit once; 0 for none.
    pub presence: f32,
}

impl Default for Penalties {
    fn default() -> Self {
        Self { window: 64, repeat: 1.0, frequency: 0.0, presence: 0.0 }
    }
}

impl Penalties {
    /// Whether they take nothing away.
    pub fn are_none(&self) -> bool {
        let Self { window, repeat, frequency, presence } = *self;
        let repeats = repeat > 0.0 && repeat != 1.0;
        window == 0 || (!repeats && frequency == 0.0 && presence == 0.0)
    }
}

/// Which tokens of a vocabulary may come, a bit for each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenMask {
    words: Vec<u32>,
}

impl TokenMask {
    /// A mask that allows these tokens and no others.
    pub fn new(tokens: impl IntoIterator<Item = u32>) -> Self {
        let mut mask = Self::default();
        tokens.into_iter().for_each(|token| mask.allow(token));
        mask
    }

    /// A mask of its words: bit `t % 32` of word `t / 32` allows token `t`.
    pub fn from_words(words: Vec<u32>) -> Self {
        Self { words }
    }

    /// Allows one more token.
    pub fn allow(&mut self, token: u32) {
        let word = token as usize / 32;
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (token % 32);
    }

    /// Whether a token may come.
    pub fn allows(&self, token: u32) -> bool {
        self.words.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
    }
}

impl Sampling {
    /// The likeliest token each time.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// Whether the likeliest token is taken.
    pub(super) fn is_greedy(&self) -> bool {
        // A temperature that is no number, or so small that dividing by it overflows, is 0.
        self.temperature.is_nan() || self.temperature < f32::MIN_POSITIVE
    }

    /// Whether a device can choose tokens by this row without the host.
    pub fn runs_on_device(&self) -> bool {
        let plain = self.penalties.are_none()
            && self.biases.is_empty()
            && self.mask.is_none()
            && self.constraint.is_none()
            && self.log_probs == 0;
        plain && (self.is_greedy() || (1..=MOST_DRAWN).contains(&self.top_k))
    }

    /// An error for what an engine without slots cannot do.
    pub(crate) fn check(&self) -> Result<()> {
        match self.adapter {
            Some(adapter) => Err(EngineError::NoAdapter { adapter }),
            None => Ok(()),
        }
    }

    /// The part of the row that the drawing kernel reads.
    pub(crate) fn draw(&self) -> Draw {
        let [low, high] = [self.seed as u32, (self.seed >> 32) as u32];
        Draw {
            seed: [low, high],
            temperature: if self.is_greedy() { 0.0 } else { self.temperature },
            top_k: match self.top_k {
                0 => u32::MAX,
                some => u32::try_from(some).unwrap_or(u32::MAX),
            },
            // A sum reaches no share above all of it, whatever rounding does.
            top_p: if self.top_p < 1.0 { self.top_p } else { 2.0 },
            log_min_p: if self.min_p > 0.0 { self.min_p.min(1.0).ln() } else { f32::MIN },
        }
    }
}

/// Words of a row on the device.
pub(crate) const DRAW_WORDS: usize = 6;

/// The numbers of a row that act on candidates in order, as host and device use them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Draw {
    seed: [u32; 2],
    /// 0 for the first candidate.
    temperature: f32,
    /// `u32::MAX` for all.
    pub(super) top_k: u32,
    /// Above 1 for all.
    pub(super) top_p: f32,
    pub(super) log_min_p: f32,
}

impl Draw {
    pub(crate) fn to_words(self) -> [u32; DRAW_WORDS] {
        let Self { seed, temperature, top_k, top_p, log_min_p } = self;
        let [low, high] = seed;
        [low, high, temperature.to_bits(), top_k, top_p.to_bits(), log_min_p.to_bits()]
    }

    pub(super) fn from_words(words: &[u32; DRAW_WORDS]) -> Self {
        let [low, high, temperature, top_k, top_p, log_min_p] = *words;
        Self {
            seed: [low, high],
            temperature: f32::from_bits(temperature),
            top_k,
            top_p: f32::from_bits(top_p),
            log_min_p: f32::from_bits(log_min_p),
        }
    }

    /// Index of the candidate that is drawn for a position. `logits` are candidates in order. `None` where the best is not
    /// finite. `draw.wgsl` does the same in the same order.
    pub(super) fn choose(
        &self,
        logits: impl Iterator<Item = f32> + Clone,
        position: u32,
    ) -> Option<usize> {
        let logits = logits.take(self.top_k.max(1) as usize);
        let best = logits.clone().next().filter(|best| best.is_finite())?;
        if self.temperature == 0.0 {
            return Some(0);
        }
        let below = logits.map(|logit| logit - best);
        let total = below.clone().map(f32::exp).fold(0.0, |sum, weight| sum + weight);
        let (mut kept, mut count) = (0.0, 0);
        for below in below.clone() {
            if count > 0 && (kept >= self.top_p * total || below < self.log_min_p) {
                break;
            }
            kept += below.exp();
            count += 1;
        }
        let heated = below.take(count).map(|below| (below / self.temperature).exp());
        let goal = self.share(position) * heated.clone().fold(0.0, |sum, weight| sum + weight);
        let mut sum = 0.0;
        let exceeds = |weight: f32| {
            sum += weight;
            sum > goal
        };
        Some(heated.map(exceeds).position(|found| found).unwrap_or(count - 1))
    }

    /// A number in `0..1`: 24 bits of a hash of seed and position (the four-word generator of Jarzynski and Olano, 2020,
    /// which is made of 32-bit integer arithmetic alone).
    pub(super) fn share(&self, position: u32) -> f32 {
        let step = |word: u32| word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let mut v = [self.seed[0], self.seed[1], position, 0].map(step);
        let mix = |v: &mut [u32; 4]| {
            v[0] = v[0].wrapping_add(v[1].wrapping_mul(v[3]));
            v[1] = v[1].wrapping_add(v[2].wrapping_mul(v[0]));
            v[2] = v[2].wrapping_add(v[0].wrapping_mul(v[1]));
            v[3] = v[3].wrapping_add(v[1].wrapping_mul(v[2]));
        };
        mix(&mut v);
        v = v.map(|word| word ^ (word >> 16));
        mix(&mut v);
        (v[0] >> 8) as f32 / 16_777_216.0
    }
}
