//! Logits to a token on the host. [`sampling`](super::sampling) has the order of operations.

use std::cmp::Ordering;

use super::sampling::{Penalties, Sampling, TokenMask};

/// A token of the vocabulary that may come, and its logit.
type Candidate = (u32, f32);

/// Chooses tokens from logits. It has no state but memory that it uses again, and a constraint where the row has one:
/// without it the same logits after the same text give the same token.
#[derive(Clone, Debug)]
pub struct Sampler {
    sampling: Sampling,
    candidates: Vec<Candidate>,
}

/// The log probabilities of a token that was chosen, by the logits as the model gave them.
#[derive(Clone, Debug, PartialEq)]
pub struct LogProbs {
    /// The token.
    pub token: u32,
    /// Its log probability.
    pub log_prob: f32,
    /// The likeliest tokens and their log probabilities, the likeliest first.
    pub top: Vec<(u32, f32)>,
}

impl Sampler {
    /// A sampler by this row.
    pub fn new(sampling: Sampling) -> Self {
        Self { sampling, candidates: Vec::new() }
    }

    /// What it was made with.
    pub fn sampling(&self) -> &Sampling {
        &self.sampling
    }

    /// Whether a device can choose the same tokens without the host.
    pub fn runs_on_device(&self) -> bool {
        self.sampling.runs_on_device()
    }

    /// The token after `text`; `None` where no token may come. The length of the text is the position of the token, and
    /// its last tokens are what penalties look back on.
    pub fn sample(&mut self, logits: &[f32], text: &[u32]) -> Option<u32> {
        let Some(constraint) = self.sampling.constraint.clone() else {
            return self.choose(logits, text, None);
        };
        let mut constraint = constraint.lock();
        // A constraint that cannot say what may come allows nothing.
        let mask = constraint.mask().ok()?;
        let token = self.choose(logits, text, mask.as_deref())?;
        constraint.accept(token).ok()?;
        Some(token)
    }

    fn choose(&mut self, logits: &[f32], text: &[u32], more: Option<&TokenMask>) -> Option<u32> {
        self.adjust(logits, text);
        if let Some(mask) = more {
            self.candidates.retain(|&(token, _)| mask.allows(token));
        }
        let draw = self.sampling.draw();
        let candidates = &mut self.candidates;
        if self.sampling.is_greedy() {
            return candidates.iter().copied().min_by(in_order).map(|(token, _)| token);
        }
        let kept = candidates.len().min(draw.top_k as usize);
        if kept < candidates.len() {
            candidates.select_nth_unstable_by(kept, in_order);
            candidates.truncate(kept);
        }
        candidates.sort_unstable_by(in_order);
        let logits = candidates.iter().map(|&(_, logit)| logit);
        let chosen = draw.choose(logits, text.len() as u32)?;
        candidates.get(chosen).map(|&(token, _)| token)
    }

    /// The log probabilities that the row asks for, of a token that was chosen; `None` where it asks for none.
    pub fn log_probs(&self, logits: &[f32], token: u32) -> Option<LogProbs> {
        let count = self.sampling.log_probs;
        (count > 0).then(|| log_probs(logits, token, count))
    }

    /// Leaves the candidates with their logits after biases, mask and penalties.
    pub(super) fn adjust(&mut self, logits: &[f32], text: &[u32]) -> &mut Vec<Candidate> {
        let candidates = &mut self.candidates;
        candidates.clear();
        candidates.extend((0..).zip(logits.iter().copied()));
        for &(token, bias) in &self.sampling.biases {
            if let Some((_, logit)) = candidates.get_mut(token as usize) {
                *logit += bias;
            }
        }
        if let Some(mask) = &self.sampling.mask {
            let closed = candidates.iter_mut().filter(|(token, _)| !mask.allows(*token));
            closed.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
        }
        penalise(candidates, &self.sampling.penalties, text);
        candidates.retain(|&(_, logit)| logit > f32::NEG_INFINITY);
        candidates
    }
}

/// Larger logits first, of equals the lower id. No candidate is NaN.
fn in_order(a: &Candidate, b: &Candidate) -> Ordering {
    b.1.partial_cmp(&a.1).unwrap_or(Ordering::Equal).then(a.0.cmp(&b.0))
}

fn penalise(candidates: &mut [Candidate], penalties: &Penalties, text: &[u32]) {
    if penalties.are_none() {
        return;
    }
    let Penalties { window, repeat, frequency, presence } = *penalties;
    let mut recent = text[text.len().saturating_sub(window)..].to_vec();
    recent.sort_unstable();
    for same in recent.chunk_by(|a, b| a == b) {
        let Some((_, logit)) = candidates.get_mut(same[0] as usize) else { continue };
        if repeat > 0.0 {
            *logit = if *logit > 0.0 { *logit / repeat } else { *logit * repeat };
        }
        *logit -= same.len() as f32 * frequency + presence;
    }
}

fn log_probs(logits: &[f32], token: u32, count: usize) -> LogProbs {
    let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - best).exp()).sum();
    let of = |logit: f32| (f64::from(logit - best) - sum.ln()) as f32;
    let mut top: Vec<Candidate> = (0..).zip(logits.iter().copied()).collect();
    let count = count.min(top.len());
    if count < top.len() {
        top.select_nth_unstable_by(count, in_order);
        top.truncate(count);
    }
    top.sort_unstable_by(in_order);
    top.iter_mut().for_each(|(_, logit)| *logit = of(*logit));
    let log_prob = logits.get(token as usize).map_or(f32::NEG_INFINITY, |&logit| of(logit));
    LogProbs { token, log_prob, top }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::engine::{Constraint, TextConstraint};

    /// Tokens at the first positions, always from the same logits.
    fn tokens(sampling: Sampling, logits: &[f32], count: usize) -> Vec<u32> {
        let mut sampler = Sampler::new(sampling);
        let mut text = Vec::new();
        for _ in 0..count {
            text.push(sampler.sample(logits, &text).unwrap());
        }
        text
    }

    fn open() -> Sampling {
        Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, ..Sampling::default() }
    }

    fn seen(sampling: Sampling, logits: &[f32]) -> Vec<u32> {
        let mut seen = tokens(sampling, logits, 3000);
        seen.sort_unstable();
        seen.dedup();
        seen
    }

    #[test]
    fn temperature_0_takes_the_first_of_the_likeliest() {
        assert_eq!(tokens(Sampling::greedy(), &[1.0, 3.0, f32::NAN, 3.0], 2), [1, 1]);
        assert_eq!(tokens(Sampling::greedy(), &[-0.0, 0.0], 1), [0], "both zeros are equal");
    }

    /// Even and odd tokens in turns.
    struct Turns(u32);

    impl Constraint for Turns {
        fn mask(&mut self) -> crate::engine::Result<Option<Arc<TokenMask>>> {
            Ok(Some(Arc::new(TokenMask::new((0..50).filter(|token| token % 2 == self.0)))))
        }

        fn accept(&mut self, token: u32) -> crate::engine::Result<()> {
            assert_eq!(token % 2, self.0);
            self.0 = 1 - self.0;
            Ok(())
        }
    }

    #[test]
    fn a_constraint_is_asked_before_each_token_and_told_of_it() {
        let logits: Vec<f32> = (0..50).map(|i| (i % 7) as f32).collect();
        let constraint = Some(TextConstraint::new(Turns(1)));
        let sampling = Sampling { constraint, ..open() };
        assert!(!sampling.runs_on_device());
        let drawn = tokens(sampling, &logits, 40);
        assert!(
            drawn.iter().enumerate().all(|(at, token)| token % 2 == 1 - at as u32 % 2),
            "{drawn:?}"
        );
    }

    #[test]
    fn the_same_seed_draws_the_same_tokens_and_others_do_not() {
        let logits: Vec<f32> = (0..50).map(|i| (i % 7) as f32).collect();
        let with = |seed| tokens(Sampling { seed, ..open() }, &logits, 40);
        assert_eq!(with(3), with(3));
        assert_ne!(with(3), with(4));
        assert_ne!(with(3), with(3 | 1 << 40), "all bits of the seed count");
    }

    #[test]
    fn a_draw_depends_on_the_position_and_not_on_what_was_drawn_before() {
        let logits: Vec<f32> = (0..50).map(|i| (i % 7) as f32).collect();
        let all = tokens(open(), &logits, 60);
        let mut sampler = Sampler::new(open());
        for position in (0..60).rev() {
            assert_eq!(sampler.sample(&logits, &vec![0; position]), Some(all[position]));
        }
        assert!(all[1..].iter().any(|&token| token != all[0]));
    }

    #[test]
    fn shares_are_even_over_positions_and_over_seeds() {
        let share = |seed: u64, position| Sampling { seed, ..open() }.draw().share(position);
        let even = |shares: &mut dyn Iterator<Item = f32>| {
            let mut counts = [0_u32; 10];
            for share in shares {
                assert!((0.0..1.0).contains(&share));
                counts[(share * 10.0) as usize] += 1;
            }
            assert!(counts.iter().all(|&count| (9_500..10_500).contains(&count)), "{counts:?}");
        };
        even(&mut (0..100_000).map(|position| share(7, position)));
        even(&mut (0..100_000).map(|seed| share(seed, 11)));
        // Neighbours do not move together.
        let product = |i: u32| (share(7, i) - 0.5) * (share(7, i + 1) - 0.5);
        let correlation = (0..100_000).map(product).sum::<f32>() * 12.0 / 100_000.0;
        assert!(correlation.abs() < 0.02, "{correlation}");
    }

    #[test]
    fn frequencies_follow_the_probabilities() {
        let drawn = tokens(open(), &[0.0, 3.0_f32.ln(), f32::NEG_INFINITY], 20_000);
        let ones = drawn.iter().filter(|&&t| t == 1).count() as f64 / 20_000.0;
        assert!((ones - 0.75).abs() < 0.02, "{ones}");
        assert!(!drawn.contains(&2));
    }

    #[test]
    fn top_k_top_p_and_min_p_cut_the_tail() {
        let logits = [2.0, 1.0, 0.0, -1.0, -9.0];
        assert_eq!(seen(Sampling { top_k: 2, ..open() }, &logits), [0, 1]);
        assert_eq!(seen(Sampling { top_p: 0.8, ..open() }, &logits), [0, 1]);
        assert_eq!(seen(Sampling { min_p: 0.1, ..open() }, &logits), [0, 1, 2]);
    }

    #[test]
    fn top_p_counts_what_min_p_will_cut_and_temperature_moves_no_cut() {
        let tail = std::iter::repeat_n(0.04_f32, 36);
        let logits: Vec<f32> = [1.0_f32, 0.3, 0.06].into_iter().chain(tail).map(f32::ln).collect();
        for temperature in [0.5, 1.0, 2.0] {
            assert_eq!(
                seen(Sampling { temperature, ..Sampling::default() }, &logits),
                [0, 1, 2],
                "at {temperature}"
            );
        }
    }

    #[test]
    fn penalties_look_back_as_far_as_their_window() {
        let logits = [3.0, 2.0, -1.0];
        let with = |penalties| Sampling { penalties, ..Sampling::greedy() };
        let none = Penalties::default();
        assert_eq!(tokens(with(Penalties { repeat: 2.0, ..none }), &logits, 3), [0, 1, 0]);
        assert_eq!(tokens(with(Penalties { presence: 1.5, ..none }), &logits, 3), [0, 1, 0]);
        // Two of token 0 cost more than one of token 1.
        assert_eq!(tokens(with(Penalties { frequency: 0.8, ..none }), &logits, 4), [0, 0, 1, 0]);
        let short = Penalties { presence: 1.5, window: 1, ..none };
        assert_eq!(tokens(with(short), &logits, 4), [0, 1, 0, 1]);
        let mut sampler = Sampler::new(with(Penalties { repeat: 9.0, ..none }));
        assert_eq!(sampler.sample(&logits, &[2, 1, 0, 99]), Some(0), "ids outside are nothing");
        // A negative logit falls, too.
        assert_eq!(sampler.sample(&[-1.0, -2.0], &[0]), Some(1));
    }

    #[test]
    fn biases_and_masks_decide_which_tokens_may_come() {
        let logits = [3.0, 2.0, 1.0];
        let biases = vec![(2, 5.0), (0, f32::NEG_INFINITY), (77, 1.0)];
        let biased = Sampling { biases, ..Sampling::greedy() };
        assert_eq!(tokens(biased.clone(), &logits, 1), [2]);
        let mask = |allowed: &[u32]| Some(Arc::new(TokenMask::new(allowed.iter().copied())));
        assert_eq!(tokens(Sampling { mask: mask(&[0, 1, 40]), ..biased.clone() }, &logits, 1), [1]);
        assert_eq!(seen(Sampling { mask: mask(&[0, 1]), ..open() }, &logits), [0, 1]);
        let closed = Sampling { mask: mask(&[]), ..open() };
        assert_eq!(Sampler::new(closed).sample(&logits, &[]), None);
        assert_eq!(Sampler::new(open()).sample(&[], &[]), None);
    }

    #[test]
    fn log_probabilities_are_those_of_the_models_logits() {
        let logits = [1.0_f32.ln(), 5.0_f32.ln(), 2.0_f32.ln(), 2.0_f32.ln()];
        let sampler = Sampler::new(Sampling { log_probs: 3, ..open() });
        let found = sampler.log_probs(&logits, 0).unwrap();
        assert_eq!(found.token, 0);
        assert!((found.log_prob - 0.1_f32.ln()).abs() < 1e-6);
        let ids: Vec<u32> = found.top.iter().map(|&(id, _)| id).collect();
        assert_eq!(ids, [1, 2, 3]);
        assert!((found.top[0].1 - 0.5_f32.ln()).abs() < 1e-6);
        assert_eq!(Sampler::new(open()).log_probs(&logits, 0), None);
    }
}
