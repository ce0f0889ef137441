//! Logits to a token.

use super::token_loop::Choice;

/// How to choose the next token. The defaults are those llama.cpp users know.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplerOptions {
    /// 0 takes the likeliest token.
    pub temperature: f32,
    /// Only so many of the likeliest; 0 for all.
    pub top_k: usize,
    /// Only the likeliest that together have this probability; 1 for all.
    pub top_p: f32,
    /// Only those at least this likely, relative to the likeliest; 0 for all.
    pub min_p: f32,
    /// Logits of recent tokens are divided (or multiplied, if negative) by this; 1 for none.
    pub repeat_penalty: f32,
    /// The same seed gives the same text on the same device.
    pub seed: u64,
}

impl Default for SamplerOptions {
    fn default() -> Self {
        Self { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05, repeat_penalty: 1.0, seed: 0 }
    }
}

/// Tokens the repeat penalty looks back on.
const RECENT: usize = 64;

/// Chooses tokens from logits.
#[derive(Clone, Debug)]
pub struct Sampler {
    options: SamplerOptions,
    state: u64,
    recent: Vec<u32>,
}

impl Sampler {
    /// What it was made with.
    pub fn options(&self) -> &SamplerOptions {
        &self.options
    }

    /// Whether a device can choose tokens by these options without the host.
    pub fn runs_on_device(&self) -> bool {
        Choice::of(&self.options).is_some()
    }

    /// A sampler at the start of its seed.
    pub fn new(options: SamplerOptions) -> Self {
        Self { options, state: options.seed, recent: Vec::new() }
    }

    /// The next token. Logits that are no number are never chosen; of equals the first is.
    pub fn sample(&mut self, logits: &[f32]) -> u32 {
        let mut candidates: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
        candidates.retain(|(_, logit)| !logit.is_nan());
        self.penalise(&mut candidates);
        let token = if self.options.temperature <= 0.0 {
            let best = candidates.iter().rev().max_by(|a, b| a.1.total_cmp(&b.1));
            best.map_or(0, |&(token, _)| token)
        } else {
            self.draw(candidates)
        };
        self.recent.push(token);
        token
    }

    fn penalise(&self, candidates: &mut [(u32, f32)]) {
        let penalty = self.options.repeat_penalty;
        if penalty == 1.0 || penalty <= 0.0 {
            return;
        }
        let recent = &self.recent[self.recent.len().saturating_sub(RECENT)..];
        for (token, logit) in candidates {
            if recent.contains(token) {
                *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
            }
        }
    }

    fn draw(&mut self, mut candidates: Vec<(u32, f32)>) -> u32 {
        let SamplerOptions { temperature, top_k, top_p, min_p, .. } = self.options;
        candidates.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        if top_k > 0 {
            candidates.truncate(top_k);
        }
        let Some(&(first, best)) = candidates.first() else {
            return 0;
        };
        let weight = |logit: f32| (f64::from(logit - best) / f64::from(temperature)).exp();
        let mut weights: Vec<f64> = candidates.iter().map(|&(_, logit)| weight(logit)).collect();
        // Weights are relative to the likeliest, whose weight is 1.
        let likely = weights.iter().take_while(|&&w| w >= f64::from(min_p)).count().max(1);
        weights.truncate(likely);
        let total: f64 = weights.iter().sum();
        let mut sum = 0.0;
        let nucleus = weights.iter().take_while(|&&w| {
            let inside = sum < f64::from(top_p) * total;
            sum += w;
            inside
        });
        let kept = nucleus.count().max(1);
        weights.truncate(kept);
        let mut point = self.uniform() * weights.iter().sum::<f64>();
        for (&(token, _), weight) in candidates.iter().zip(&weights) {
            point -= weight;
            if point < 0.0 {
                return token;
            }
        }
        first
    }

    /// A number in `0..1` (splitmix64).
    fn uniform(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(options: SamplerOptions, logits: &[f32], count: usize) -> Vec<u32> {
        let mut sampler = Sampler::new(options);
        (0..count).map(|_| sampler.sample(logits)).collect()
    }

    #[test]
    fn temperature_0_takes_the_first_of_the_likeliest() {
        let greedy = SamplerOptions { temperature: 0.0, ..SamplerOptions::default() };
        assert_eq!(tokens(greedy, &[1.0, 3.0, f32::NAN, 3.0], 2), [1, 1]);
    }

    #[test]
    fn the_same_seed_draws_the_same_tokens_and_others_do_not() {
        let logits: Vec<f32> = (0..50).map(|i| (i % 7) as f32).collect();
        let with = |seed| {
            let options =
                SamplerOptions { seed, top_k: 0, min_p: 0.0, ..SamplerOptions::default() };
            tokens(options, &logits, 40)
        };
        assert_eq!(with(3), with(3));
        assert_ne!(with(3), with(4));
    }

    #[test]
    fn frequencies_follow_the_probabilities() {
        let options = SamplerOptions {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            ..SamplerOptions::default()
        };
        let drawn = tokens(options, &[0.0, 3.0_f32.ln(), f32::NEG_INFINITY], 20_000);
        let ones = drawn.iter().filter(|&&t| t == 1).count() as f64 / 20_000.0;
        assert!((ones - 0.75).abs() < 0.02, "{ones}");
        assert!(!drawn.contains(&2));
    }

    #[test]
    fn top_k_top_p_and_min_p_cut_the_tail() {
        let logits = [2.0, 1.0, 0.0, -1.0, -9.0];
        let seen = |options| {
            let mut seen = tokens(options, &logits, 3000);
            seen.sort_unstable();
            seen.dedup();
            seen
        };
        let open = SamplerOptions {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            ..SamplerOptions::default()
        };
        assert_eq!(seen(SamplerOptions { top_k: 2, ..open }), [0, 1]);
        assert_eq!(seen(SamplerOptions { top_p: 0.8, ..open }), [0, 1]);
        assert_eq!(seen(SamplerOptions { min_p: 0.1, ..open }), [0, 1, 2]);
    }

    #[test]
    fn a_repeat_penalty_turns_to_others() {
        let options =
            SamplerOptions { temperature: 0.0, repeat_penalty: 2.0, ..SamplerOptions::default() };
        assert_eq!(tokens(options, &[3.0, 2.0, -1.0], 3), [0, 1, 0]);
    }
}
