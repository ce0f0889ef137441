//! Drafts from the text itself: what followed the last tokens when they were there before.
//!
//! Summaries, edits and code quote their prompt. When the last few tokens of a text occur earlier in it, the tokens that
//! followed them there are a draft of what comes next. The longer the match, the surer the draft.

use rustc_hash::FxHashMap;

use super::Drafter;
use crate::engine::{Result, Sampling};

/// Tokens that have to be there before, at least.
const SHORTEST: usize = 2;
/// Matches are looked for up to this length; longer ones are among them.
const LONGEST: usize = 4;
/// A match of so many tokens is a quotation.
const QUOTED: usize = 8;

/// Where n-grams of a text were last.
#[derive(Clone, Debug, Default)]
pub struct Ngrams {
    text: Vec<u32>,
    /// For each length from the shortest: the n-gram's hash to the position behind its last occurrence.
    places: [FxHashMap<u64, Place>; LONGEST - SHORTEST + 1],
}

/// The position behind the last occurrence of an n-gram, and behind the one before it.
#[derive(Clone, Copy, Debug)]
struct Place {
    last: usize,
    before: Option<usize>,
}

fn hash(tokens: &[u32]) -> u64 {
    tokens.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &token| {
        let hash = (hash ^ u64::from(token)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^ (hash >> 32)
    })
}

impl Drafter for Ngrams {
    fn kind(&mut self, text: &[u32]) -> Option<usize> {
        self.follow(text);
        let (_, length) = self.find()?;
        Some(match length {
            0..=SHORTEST => 0,
            3 => 1,
            4..QUOTED => 2,
            QUOTED.. => 3,
        })
    }

    fn draft(&mut self, text: &[u32], most: usize, _: &Sampling) -> Result<Vec<u32>> {
        self.follow(text);
        Ok(self.find().map_or_else(Vec::new, |(at, _)| self.behind(at, most)))
    }

    fn is_free(&self) -> bool {
        true
    }
}

impl Ngrams {
    /// Takes up what is new of a text; one that does not begin as the last is read from its beginning.
    fn follow(&mut self, text: &[u32]) {
        if !text.starts_with(&self.text) {
            *self = Self::default();
        }
        for &token in &text[self.text.len()..] {
            self.add(token);
        }
    }

    /// The position behind the longest match, and its length.
    fn find(&self) -> Option<(usize, usize)> {
        (SHORTEST..=LONGEST.min(self.text.len())).rev().find_map(|length| {
            let end = &self.text[self.text.len() - length..];
            let place = self.places[length - SHORTEST].get(&hash(end))?;
            // The last occurrence is the end of the text itself.
            let at = place.before.filter(|_| place.last == self.text.len())?;
            if self.text.get(at.checked_sub(length)?..at) != Some(end) {
                return None;
            }
            let same = |(a, b): &(&u32, &u32)| a == b;
            let pairs = self.text[..at].iter().rev().zip(self.text.iter().rev());
            Some((at, pairs.take(QUOTED).take_while(same).count()))
        })
    }

    /// What stands behind a place. Where that reaches the end of the text, it goes on with itself: a text that repeats.
    fn behind(&self, at: usize, most: usize) -> Vec<u32> {
        let period = self.text.len() - at;
        (0..most).map(|index| self.text[at + index % period]).collect()
    }

    fn add(&mut self, token: u32) {
        self.text.push(token);
        let end = self.text.len();
        for length in SHORTEST..=LONGEST.min(end) {
            let key = hash(&self.text[end - length..]);
            let place = self.places[length - SHORTEST].entry(key);
            place
                .and_modify(|place| *place = Place { last: end, before: Some(place.last) })
                .or_insert(Place { last: end, before: None });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft(text: &[u32], most: usize) -> (Option<usize>, Vec<u32>) {
        let mut ngrams = Ngrams::default();
        let kind = ngrams.kind(text);
        (kind, ngrams.draft(text, most, &Sampling::greedy()).unwrap())
    }

    #[test]
    fn a_draft_is_what_followed_the_longest_match() {
        let text = [1, 2, 3, 4, 9, 9, 2, 3, 4, 7, 7, 1, 2, 3, 4];
        assert_eq!(draft(&text, 3), (Some(2), vec![9, 9, 2]), "1 2 3 4 and not the later 2 3 4");
        assert_eq!(draft(&text[6..], 3), (Some(1), vec![7, 7, 1]));
        assert_eq!(draft(&text, 0), (Some(2), vec![]));
        assert_eq!(draft(&[1, 2, 3], 8), (None, vec![]));
        assert_eq!(draft(&[], 8), (None, vec![]));
        assert_eq!(draft(&[4; 2], 8), (None, vec![]), "one pair is no repetition");
    }

    #[test]
    fn a_text_that_repeats_goes_on_with_itself() {
        assert_eq!(draft(&[5, 6, 5, 6], 5), (Some(0), vec![5, 6, 5, 6, 5]));
        assert_eq!(draft(&[4; 12], 3), (Some(3), vec![4; 3]));
    }

    #[test]
    fn longer_matches_are_surer() {
        let kinds: Vec<_> = (1..=10)
            .map(|length| {
                let quoted: Vec<u32> = (0..length).collect();
                draft(&[&[77][..], &quoted, &[88], &quoted].concat(), 1).0
            })
            .collect();
        let expected = [None, Some(0), Some(1), Some(2), Some(2), Some(2), Some(2)];
        assert_eq!(kinds[..7], expected);
        assert_eq!(kinds[7..], [Some(3); 3]);
    }

    #[test]
    fn another_text_is_read_anew() {
        let mut ngrams = Ngrams::default();
        assert_eq!(ngrams.kind(&[1, 2, 3, 1, 2]), Some(0));
        assert_eq!(ngrams.kind(&[1, 2, 3, 1, 2, 3, 1]), Some(2), "a text that goes on");
        assert_eq!(ngrams.kind(&[1, 2, 3, 4, 1, 2]), Some(0), "and one that does not");
        assert_eq!(ngrams.draft(&[1, 2, 3, 4, 1, 2], 2, &Sampling::greedy()).unwrap(), [3, 4]);
        assert_eq!(ngrams.kind(&[7, 8]), None);
    }
}
