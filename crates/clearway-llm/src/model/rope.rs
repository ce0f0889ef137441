//! Rotary frequencies that are stretched for contexts beyond the one a model was first trained for.
//!
//! The op divides the frequency of each pair by a factor ([`ROPE_FACTORS`](super::ROPE_FACTORS)). Every way to stretch
//! comes down to such factors and a magnitude, so the graph is the same for all of them.

use std::f64::consts::TAU;

use super::ModelShape;

/// Name of a file's tensor with the factors of LongRoPE for contexts up to the original one.
pub const SHORT_FACTORS: &str = "rope_factors_short.weight";
/// Name of a file's tensor with the factors of LongRoPE for longer contexts.
pub const LONG_FACTORS: &str = "rope_factors_long.weight";

/// How rotary frequencies are stretched.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stretch {
    /// They are not, but for the factors that the file may have.
    None,
    /// YaRN: slow pairs are stretched, fast ones are not, those between by a ramp.
    Yarn(Yarn),
    /// LongRoPE: the file has two lists of factors, for contexts up to the original one and for longer ones.
    Long {
        /// Context up to which the first list is used.
        original_context: usize,
    },
}

/// Constants of YaRN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yarn {
    /// By how much slow pairs are stretched.
    pub factor: f32,
    /// Context the model was first trained for.
    pub original_context: usize,
    /// Pairs that turn at least so often within the original context are not stretched.
    pub beta_fast: f32,
    /// Pairs that turn at most so often within the original context are stretched in full.
    pub beta_slow: f32,
    /// By how much scores of latent attention grow with the logarithm of the factor.
    pub log_multiplier: f32,
}

impl Yarn {
    /// The usual constants.
    pub fn new(factor: f32, original_context: usize) -> Self {
        Self { factor, original_context, beta_fast: 32.0, beta_slow: 1.0, log_multiplier: 0.0 }
    }

    /// What queries and keys are multiplied by, so that attention over a longer text stays as sharp.
    pub fn magnitude(&self) -> f32 {
        if self.factor > 1.0 { 1.0 + 0.1 * self.factor.ln() } else { 1.0 }
    }

    /// The factor on scores of latent attention with heads of this size. Its queries and keys are not longer; scores are multiplied
    /// instead.
    pub fn latent_scale(&self, head: usize) -> f32 {
        let magnitude = 1.0 + self.log_multiplier * self.factor.max(1.0).ln();
        magnitude * magnitude / (head as f32).sqrt()
    }

    /// What the frequency of each of so many pairs is divided by.
    fn factors(&self, pairs: usize, base: f32) -> Vec<f64> {
        let dims = (2 * pairs) as f64;
        // The pair that turns so often within the original context.
        let pair_of = |turns: f32| {
            let context = self.original_context as f64;
            dims * (context / (f64::from(turns) * TAU)).ln() / (2.0 * f64::from(base).ln())
        };
        let first = pair_of(self.beta_fast).floor().max(0.0);
        let last = pair_of(self.beta_slow).ceil().min(dims - 1.0);
        let stretched = 1.0 / f64::from(self.factor);
        (0..pairs)
            .map(|pair| {
                let ramp = ((pair as f64 - first) / (last - first).max(0.001)).clamp(0.0, 1.0);
                1.0 / (stretched * ramp + (1.0 - ramp))
            })
            .collect()
    }
}

impl ModelShape {
    /// What rotary frequencies are divided by in a context of this size. `tensor` gives the values of a tensor of the file.
    pub fn rope_factors(
        &self,
        context: usize,
        tensor: impl Fn(&str) -> Option<Vec<f32>>,
    ) -> Vec<f32> {
        let pairs = self.rope_pairs();
        let name = match self.stretch {
            Stretch::Long { original_context } if context > original_context => LONG_FACTORS,
            Stretch::Long { .. } => SHORT_FACTORS,
            Stretch::None | Stretch::Yarn(_) => super::ROPE_FACTORS,
        };
        let mut factors = tensor(name).unwrap_or_default();
        factors.resize(pairs, 1.0);
        if let Stretch::Yarn(yarn) = self.stretch {
            let stretched = yarn.factors(pairs, self.rope_base);
            factors.iter_mut().zip(stretched).for_each(|(f, s)| *f = (f64::from(*f) * s) as f32);
        }
        factors
    }

    /// Pairs of a head that turn; one that does nothing where a model has no rotary embedding.
    pub(super) fn rope_pairs(&self) -> usize {
        (self.rope_dims / 2).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Arch;

    fn shape(stretch: Stretch) -> ModelShape {
        let base = ModelShape::new("tiny", Arch::Llama, 1, 32, 48, 4, 2, 64, 96);
        ModelShape { stretch, ..base }
    }

    #[test]
    fn yarn_leaves_fast_pairs_and_stretches_slow_ones() {
        // Within 4096 positions pair 0 turns 652 times, and pair 31 less than once.
        let yarn = Yarn::new(4.0, 4096);
        let factors = shape(Stretch::Yarn(yarn)).rope_factors(8192, |_| None);
        assert_eq!((factors.len(), factors[0], factors[31]), (32, 1.0, 4.0));
        assert!(factors.is_sorted(), "{factors:?}");
        // The ramp goes from pair 10 to pair 23: 32 turns are at 10.5, one at 22.5.
        let between =
            |pair: f32| 1.0 / (0.25 * ((pair - 10.0) / 13.0) + 1.0 - (pair - 10.0) / 13.0);
        assert_eq!((factors[10], factors[23]), (1.0, 4.0));
        assert!((factors[16] - between(16.0)).abs() < 1e-6, "{}", factors[16]);
        assert!((yarn.magnitude() - 1.138_629_4).abs() < 1e-6);
        // Factors of the file count too.
        let both = shape(Stretch::Yarn(yarn)).rope_factors(8192, |_| Some(vec![2.0; 32]));
        assert_eq!((both[0], both[31]), (2.0, 8.0));
    }

    #[test]
    fn longrope_takes_the_list_of_the_context() {
        let shape = shape(Stretch::Long { original_context: 4096 });
        let tensor = |name: &str| Some(vec![if name == LONG_FACTORS { 8.0 } else { 1.5 }; 32]);
        assert_eq!(shape.rope_factors(4096, tensor), [1.5; 32]);
        assert_eq!(shape.rope_factors(4097, tensor), [8.0; 32]);
    }
}
