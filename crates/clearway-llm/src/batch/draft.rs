//! Drafts from the text itself: what followed the last tokens when they were there before.
//!
//! Summaries, edits and code quote their prompt. When the last few tokens of a text occur earlier in it, the tokens that
//! followed them there are a *draft* of what comes next. A step that checks a draft reads its tokens as extra rows and keeps
//! them while they are what it would have chosen, so a draft never changes a text.
//!
//! A draft that is wrong costs rows. [`Drafts`] therefore learns for each sequence how many tokens of a draft are kept, asks
//! for as many as pay and for none where few are kept. While it is off it looks on: drafts that would have been right turn it
//! on again, at no cost on the device.

use rustc_hash::FxHashMap;

/// How drafts are made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DraftOptions {
    /// Tokens that have to be there before, at most: the longest match counts.
    pub longest: usize,
    /// At least so many.
    pub shortest: usize,
    /// Tokens of a draft at most.
    pub tokens: usize,
    /// What one row more costs, as a share of a step. Drafts whose expected gain is less are not made.
    pub row_cost: f64,
}

impl Default for DraftOptions {
    fn default() -> Self {
        Self { longest: 4, shortest: 2, tokens: 8, row_cost: 0.06 }
    }
}

/// Weight of a new draft in the mean share of tokens that are kept.
const WEIGHT: f64 = 0.1;
/// The share that is assumed before anything is known.
const HOPE: f64 = 0.6;
/// Unlike a draft that was checked, one that was only looked at may be wrong about what comes behind its first miss.
const ON_AGAIN: f64 = 0.05;

/// Where n-grams of a text were last, and what their drafts were worth.
#[derive(Clone, Debug)]
pub struct Drafts {
    options: DraftOptions,
    text: Vec<u32>,
    /// For each length from the shortest: the n-gram's hash to the position behind its last occurrence.
    places: Vec<FxHashMap<u64, Place>>,
    /// Share of the tokens of a draft that were right, up to the first that was not.
    kept: f64,
    /// Drafting pays.
    on: bool,
    /// A draft that was not given away: where it begins, and its tokens.
    shadow: Option<(usize, Vec<u32>)>,
    counts: DraftCounts,
}

/// The position behind the last occurrence of an n-gram, and behind the one before it.
#[derive(Clone, Copy, Debug)]
struct Place {
    last: usize,
    before: Option<usize>,
}

/// What drafts were worth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraftCounts {
    /// Drafts that were given.
    pub drafts: u64,
    /// Their tokens.
    pub drafted: u64,
    /// Tokens of them that were kept.
    pub kept: u64,
}

fn hash(tokens: &[u32]) -> u64 {
    tokens.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &token| {
        let hash = (hash ^ u64::from(token)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^ (hash >> 32)
    })
}

impl Drafts {
    /// Drafts for a text that begins with `prompt`.
    pub fn new(prompt: &[u32], options: DraftOptions) -> Self {
        let shortest = options.shortest.max(1);
        let options = DraftOptions { shortest, longest: options.longest.max(shortest), ..options };
        let mut drafts = Self {
            options,
            text: Vec::new(),
            places: vec![FxHashMap::default(); options.longest - shortest + 1],
            kept: HOPE,
            on: true,
            shadow: None,
            counts: DraftCounts::default(),
        };
        prompt.iter().for_each(|&token| drafts.add(token));
        drafts
    }

    /// The text so far.
    pub fn text(&self) -> &[u32] {
        &self.text
    }

    /// What drafts were worth so far.
    pub fn counts(&self) -> DraftCounts {
        self.counts
    }

    /// Whether drafts are given at present.
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// Tokens that may come next, `most` at most; often none.
    pub fn draft(&mut self, most: usize) -> Vec<u32> {
        let wanted = self.length().min(most);
        let found = self.look_up(self.options.tokens);
        if self.on && wanted > 0 {
            let draft: Vec<u32> = found.into_iter().take(wanted).collect();
            if !draft.is_empty() {
                self.counts.drafts += 1;
                self.counts.drafted += draft.len() as u64;
            }
            self.shadow = None;
            return draft;
        }
        if self.shadow.is_none() && !found.is_empty() {
            self.shadow = Some((self.text.len(), found));
        }
        Vec::new()
    }

    /// A step checked a draft of `drafted` tokens and chose `chosen`: the tokens of the draft that were right, and one more.
    pub fn checked(&mut self, drafted: usize, chosen: &[u32]) {
        let kept = chosen.len().saturating_sub(1).min(drafted);
        self.counts.kept += kept as u64;
        if drafted > 0 {
            self.learn(kept, drafted, WEIGHT);
        }
        for &token in chosen {
            self.add(token);
        }
        self.look_on();
    }

    /// Tokens of a draft that pay: the mean gain of the next one is more than what its row costs.
    fn length(&self) -> usize {
        let mut right = self.kept;
        let mut length = 0;
        while length < self.options.tokens && right > self.options.row_cost {
            length += 1;
            right *= self.kept;
        }
        length
    }

    /// What followed the longest match.
    fn look_up(&self, most: usize) -> Vec<u32> {
        let DraftOptions { shortest, longest, .. } = self.options;
        for length in (shortest..=longest.min(self.text.len())).rev() {
            let end = &self.text[self.text.len() - length..];
            let Some(place) = self.places[length - shortest].get(&hash(end)) else { continue };
            // The last occurrence is the end of the text itself.
            let Some(at) = place.before.filter(|_| place.last == self.text.len()) else { continue };
            if self.text.get(at.wrapping_sub(length)..at) != Some(end) {
                continue;
            }
            let mut draft = Vec::with_capacity(most);
            // Where the match reaches the end of the text, the draft goes on with itself: a text that repeats.
            for index in 0..most {
                let here = self.text.get(at + index).copied();
                let token = here.or_else(|| draft.get(at + index - self.text.len()).copied());
                draft.extend(token);
            }
            return draft;
        }
        Vec::new()
    }

    fn learn(&mut self, kept: usize, drafted: usize, weight: f64) {
        // Of `kept + 1` tokens that were looked at the last was wrong, unless all were right.
        let looked_at = (kept + 1).min(drafted).max(1);
        let share = kept as f64 / looked_at as f64;
        let weight = 1.0 - (1.0 - weight).powi(looked_at as i32);
        self.kept += (share - self.kept) * weight;
        // Off and on at different shares, so that it does not flicker.
        let pays = 2.0 * self.options.row_cost;
        self.on = self.kept > if self.on { pays } else { 2.0 * pays };
    }

    /// Compares a draft that was not given away with what came.
    fn look_on(&mut self) {
        let Some((start, draft)) = &self.shadow else { return };
        let came = &self.text[*start..];
        let right = came.iter().zip(draft).take_while(|(came, drafted)| came == drafted).count();
        if right < came.len().min(draft.len()) || right == draft.len() {
            let drafted = draft.len();
            self.shadow = None;
            self.learn(right, drafted, ON_AGAIN);
        }
    }

    fn add(&mut self, token: u32) {
        self.text.push(token);
        let DraftOptions { shortest, longest, .. } = self.options;
        let end = self.text.len();
        for length in shortest..=longest.min(end) {
            let key = hash(&self.text[end - length..]);
            let place = self.places[length - shortest].entry(key);
            place
                .and_modify(|place| *place = Place { last: end, before: Some(place.last) })
                .or_insert(Place { last: end, before: None });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays a text with drafts: steps that it takes, and the drafts.
    fn play(prompt: &[u32], reply: &[u32], options: DraftOptions) -> (usize, Drafts) {
        let mut drafts = Drafts::new(prompt, options);
        let (mut at, mut steps) = (0, 0);
        while at < reply.len() {
            let draft = drafts.draft(reply.len() - at - 1);
            let right = draft.iter().zip(&reply[at..]).take_while(|(a, b)| a == b).count();
            let end = at + right + 1;
            drafts.checked(draft.len(), &reply[at..end]);
            (at, steps) = (end, steps + 1);
        }
        assert_eq!(drafts.text(), [prompt, reply].concat());
        (steps, drafts)
    }

    fn random(count: usize, vocab: u32, seed: u32) -> Vec<u32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % vocab
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn a_draft_is_what_followed_the_longest_match() {
        let options = DraftOptions { shortest: 1, longest: 3, tokens: 3, row_cost: 0.0 };
        let mut drafts = Drafts::new(&[1, 2, 3, 9, 9, 2, 3, 7, 7, 1, 2, 3], options);
        assert_eq!(drafts.draft(8), [9, 9, 2], "1 2 3 and not the later 2 3");
        assert_eq!(Drafts::new(&[1, 2, 3], options).draft(8), [0; 0]);
        assert_eq!(drafts.draft(0), [0; 0]);
        let mut repeats = Drafts::new(&[5, 6, 5, 6], DraftOptions { shortest: 2, ..options });
        assert_eq!(repeats.draft(8), [5, 6, 5], "a text that repeats goes on with itself");
    }

    #[test]
    fn a_text_that_quotes_its_prompt_takes_few_steps() {
        let prompt = random(600, 1000, 1);
        // Quotes of forty tokens with five tokens of its own between them.
        let mut reply = Vec::new();
        for part in 0..8 {
            reply.extend(&prompt[part * 70..part * 70 + 40]);
            reply.extend(random(5, 1000, 77 + part as u32));
        }
        let (steps, drafts) = play(&prompt, &reply, DraftOptions::default());
        assert!(steps * 2 < reply.len(), "{steps} steps for {} tokens", reply.len());
        let counts = drafts.counts();
        assert!(counts.kept * 3 > counts.drafted * 2, "{counts:?}");
        assert!(drafts.is_on());
    }

    #[test]
    fn a_text_without_repetition_turns_drafts_off() {
        // Few tokens, so that n-grams do occur again, and nothing follows from them.
        let (prompt, reply) = (random(300, 12, 3), random(2000, 12, 4));
        let (steps, drafts) = play(&prompt, &reply, DraftOptions::default());
        let counts = drafts.counts();
        assert!(steps * 100 >= reply.len() * 95 - 200, "{steps}");
        assert!(counts.drafted * 100 <= steps as u64 * 10, "rows for nothing: {counts:?}");
        assert!(!drafts.is_on());
    }

    #[test]
    fn drafts_come_back_when_the_text_begins_to_quote() {
        let prompt = random(500, 12, 5);
        let mut reply = random(1000, 12, 6);
        let quoted = random(300, 1000, 7);
        reply.extend(&quoted);
        (0..4).for_each(|_| reply.extend(&quoted));
        let (steps, drafts) = play(&prompt, &reply, DraftOptions::default());
        assert!(drafts.is_on());
        assert!(steps < 1900, "{steps} steps for {} tokens", reply.len());
    }
}
