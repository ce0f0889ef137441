//! The splitting rules of DeepSeek.
//!
//! Those of the first models and of V2 are lists of expressions, each applied to all pieces that the one before it left. The first
//! takes line breaks out, so that a line is split at a time. That of V3 takes out numbers, then Chinese and Japanese, and has one
//! expression for what lies between.

use unicode_general_category::{GeneralCategory as Category, get_general_category};

use super::pretokenize::{At, Class, Scan, is_newline};

impl Scan<'_> {
    /// Ends of the pieces of a line from `start` on, last first, by `deepseek-llm`.
    pub(super) fn deepseek_llm(self, start: usize) -> Vec<usize> {
        self.by_passes(start, |this, mut ends| {
            ends = this.isolate(start, &ends, |at, end| this.spaced(at, end, is_cased));
            ends = this.isolate(start, &ends, |at, end| this.spaced(at, end, is_mark));
            ends = this.without_last_spaces(start, &ends);
            ends = this.isolate(start, &ends, |at, end| this.run_of(at, end, is_eastern));
            this.isolate(start, &ends, |at, end| {
                this.run_of(at, end, |at| at.class == Class::Number)
            })
        })
    }

    /// The same by `deepseek-coder`.
    pub(super) fn deepseek_coder(self, start: usize) -> Vec<usize> {
        self.by_passes(start, |this, mut ends| {
            let letter = |at: At| at.class == Class::Letter;
            let number = |at: At| (at.class == Class::Number).then_some(at.end);
            ends = this.isolate(start, &ends, |at, end| this.spaced(at, end, letter));
            ends = this.isolate(start, &ends, |at, end| this.spaced(at, end, is_punctuation));
            ends = this.isolate(start, &ends, |at, end| this.run_of(at, end, is_eastern));
            this.isolate(start, &ends, |at, _| number(at))
        })
    }

    /// A line break alone, or what `passes` make of the line.
    fn by_passes(
        self,
        start: usize,
        passes: impl Fn(Self, Vec<usize>) -> Vec<usize>,
    ) -> Vec<usize> {
        let line = self.0[start..].find(is_newline).unwrap_or(self.0.len() - start);
        let mut ends = match line {
            // Line breaks are one byte.
            0 => vec![start + 1],
            line => passes(self, vec![start + line]),
        };
        ends.reverse();
        ends
    }

    /// Pieces that end at `ends` with each match as a piece of its own. `found` gets a character and the end of its piece and
    /// answers with the end of the match that starts there.
    fn isolate(
        self,
        start: usize,
        ends: &[usize],
        found: impl Fn(At, usize) -> Option<usize>,
    ) -> Vec<usize> {
        let mut all = Vec::with_capacity(ends.len());
        let (mut pos, mut rest) = (start, start);
        for &end in ends {
            while let Some(at) = self.at(pos).filter(|_| pos < end) {
                match found(at, end) {
                    Some(to) => {
                        if rest < pos {
                            all.push(pos);
                        }
                        all.push(to);
                        (pos, rest) = (to, to);
                    }
                    None => pos = at.end,
                }
            }
            if rest < end {
                all.push(end);
            }
            (pos, rest) = (end, end);
        }
        all
    }

    /// `\s?X+`.
    fn spaced(self, first: At, end: usize, is: impl Fn(At) -> bool) -> Option<usize> {
        let next = self.at(first.end).filter(|next| next.end <= end);
        if let Some(next) = next
            && first.class == Class::Space
            && is(next)
        {
            return self.run_of(next, end, is);
        }
        // A space may be one of those looked for.
        self.run_of(first, end, is)
    }

    /// `X+`.
    fn run_of(self, first: At, end: usize, is: impl Fn(At) -> bool) -> Option<usize> {
        if !is(first) {
            return None;
        }
        let mut to = first.end;
        while let Some(at) = self.at(to).filter(|&at| at.end <= end && is(at)) {
            to = at.end;
        }
        Some(to)
    }

    /// `\s+$`: white space at the end of each piece is one of its own.
    fn without_last_spaces(self, start: usize, ends: &[usize]) -> Vec<usize> {
        let mut all = Vec::with_capacity(ends.len());
        let mut from = start;
        for &end in ends {
            let words = from + self.0[from..end].trim_end_matches(char::is_whitespace).len();
            if from < words && words < end {
                all.push(words);
            }
            all.push(end);
            from = end;
        }
        all
    }

    /// End of the piece that starts at `pos`, by `deepseek-v3`.
    pub(super) fn deepseek_v3(self, pos: usize, first: At) -> usize {
        if first.class == Class::Number {
            let mut end = first.end;
            for _ in 1..3 {
                match self.at(end) {
                    Some(next) if next.class == Class::Number => end = next.end,
                    _ => break,
                }
            }
            return end;
        }
        let japanese = is_chinese_or_japanese(first.ch);
        let stop = |at: At| at.class == Class::Number || is_chinese_or_japanese(at.ch) != japanese;
        if let Some(end) = self.v3_match(pos, first, stop) {
            return end;
        }
        // What nothing matches goes up to the next match.
        let mut end = first.end;
        while let Some(at) = self.at(end).filter(|&at| !stop(at)) {
            if self.v3_match(end, at, stop).is_some() {
                break;
            }
            end = at.end;
        }
        end
    }

    /// End of the match of V3's expression that starts at `pos`, on a text that ends before the first character that `stop`
    /// accepts.
    fn v3_match(self, pos: usize, first: At, stop: impl Fn(At) -> bool + Copy) -> Option<usize> {
        let letters = |from: usize, is: &dyn Fn(At) -> bool| {
            let mut end = from;
            while let Some(at) = self.at(end).filter(|&at| !stop(at) && is(at)) {
                end = at.end;
            }
            (end > from).then_some(end)
        };
        if first.ch.is_ascii_punctuation()
            && let Some(end) = letters(first.end, &|at| at.ch.is_ascii_alphabetic())
        {
            return Some(end);
        }
        let word = |at: At| at.class == Class::Letter || is_combining(at.ch);
        if word(first) {
            return letters(pos, &word);
        }
        let mark = |at: At| is_punctuation(at) || is_symbol(at);
        if !is_newline(first.ch)
            && !mark(first)
            && let Some(end) = letters(first.end, &word)
        {
            return Some(end);
        }
        let marks = if first.ch == ' ' { first.end } else { pos };
        if let Some(end) = letters(marks, &mark) {
            return letters(end, &|at| is_newline(at.ch)).or(Some(end));
        }
        if first.class != Class::Space {
            return None;
        }
        let spaces = self.run(pos, Class::Space, stop);
        Some(match self.0[pos..spaces].rfind(is_newline) {
            Some(newline) => pos + newline + 1,
            None => self.spaces(pos, stop),
        })
    }
}

/// `[一-龥ࠀ-一가-퟿]`
fn is_eastern(at: At) -> bool {
    matches!(at.ch, '\u{800}'..='\u{9fa5}' | '\u{ac00}'..='\u{d7ff}')
}

/// `[一-龥぀-ゟ゠-ヿ]`
fn is_chinese_or_japanese(ch: char) -> bool {
    matches!(ch, '\u{4e00}'..='\u{9fa5}' | '\u{3040}'..='\u{30ff}')
}

/// `[!-/:-~！-／：-～‘-‟　-。]`, which has the letters of ASCII in it.
fn is_mark(at: At) -> bool {
    matches!(at.ch, '!'..='/' | ':'..='~' | '\u{ff01}'..='\u{ff0f}' | '\u{ff1a}'..='\u{ff5e}'
        | '\u{2018}'..='\u{201f}' | '\u{3000}'..='\u{3002}')
}

/// `\p{P}`
fn is_punctuation(at: At) -> bool {
    at.class == Class::Other
        && matches!(
            get_general_category(at.ch),
            Category::ConnectorPunctuation
                | Category::DashPunctuation
                | Category::OpenPunctuation
                | Category::ClosePunctuation
                | Category::InitialPunctuation
                | Category::FinalPunctuation
                | Category::OtherPunctuation
        )
}

/// `\p{S}`
fn is_symbol(at: At) -> bool {
    at.class == Class::Other
        && matches!(
            get_general_category(at.ch),
            Category::MathSymbol
                | Category::CurrencySymbol
                | Category::ModifierSymbol
                | Category::OtherSymbol
        )
}

/// `\p{M}`
fn is_combining(ch: char) -> bool {
    !ch.is_ascii()
        && matches!(
            get_general_category(ch),
            Category::NonspacingMark | Category::SpacingMark | Category::EnclosingMark
        )
}

/// Letters of scripts that have case, as the expression lists them.
fn is_cased(at: At) -> bool {
    if at.ch.is_ascii() {
        return at.ch.is_ascii_alphabetic();
    }
    let ch = u32::from(at.ch);
    let after = CASED.partition_point(|&(first, _)| first <= ch);
    after.checked_sub(1).is_some_and(|range| ch <= CASED[range].1)
}

#[rustfmt::skip] // a table
const CASED: [(u32, u32); 82] = [
    (0xb5, 0xb5), (0xc0, 0xd6), (0xd8, 0xf6), (0xf8, 0x1ba), (0x1bc, 0x1bf), (0x1c4, 0x293), (0x295, 0x2af), (0x370, 0x373),
    (0x376, 0x377), (0x37b, 0x37d), (0x37f, 0x37f), (0x386, 0x386), (0x388, 0x38a), (0x38c, 0x38c), (0x38e, 0x3a1),
    (0x3a3, 0x3f5), (0x3f7, 0x481), (0x48a, 0x52f), (0x531, 0x556), (0x10a0, 0x10c5), (0x13a0, 0x13f5), (0x13f8, 0x13fd),
    (0x1c90, 0x1cba), (0x1cbd, 0x1cbf), (0x1d00, 0x1d2b), (0x1d6b, 0x1d77), (0x1d79, 0x1d9a), (0x1e00, 0x1f15),
    (0x1f18, 0x1f1d), (0x1f20, 0x1f45), (0x1f48, 0x1f4d), (0x1f50, 0x1f57), (0x1f59, 0x1f59), (0x1f5b, 0x1f5b),
    (0x1f5d, 0x1f5d), (0x1f5f, 0x1f7d), (0x1f80, 0x1fb4), (0x1fb6, 0x1fbc), (0x1fbe, 0x1fbe), (0x1fc2, 0x1fc4),
    (0x1fc6, 0x1fcc), (0x1fd0, 0x1fd3), (0x1fd6, 0x1fdb), (0x1fe0, 0x1fec), (0x1ff2, 0x1ff4), (0x1ff6, 0x1ffc),
    (0x2102, 0x2102), (0x2107, 0x2107), (0x210a, 0x2113), (0x2115, 0x2115), (0x2119, 0x211d), (0x2124, 0x2124),
    (0x2126, 0x2126), (0x2128, 0x2128), (0x212a, 0x212d), (0x212f, 0x2134), (0x2139, 0x2139), (0x213c, 0x213f),
    (0x2145, 0x2149), (0x214e, 0x214e), (0x2183, 0x2184), (0x2c00, 0x2c7b), (0x2c7e, 0x2ce4), (0x2ceb, 0x2cee),
    (0x2cf2, 0x2cf3), (0xa640, 0xa66d), (0xa680, 0xa69b), (0xa722, 0xa76f), (0xa771, 0xa787), (0xa78b, 0xa78e),
    (0xab70, 0xabbf), (0xfb00, 0xfb06), (0xfb13, 0xfb17), (0xff21, 0xff3a), (0xff41, 0xff5a), (0x10400, 0x1044f),
    (0x104b0, 0x104d3), (0x104d8, 0x104fb), (0x10c80, 0x10cb2), (0x10cc0, 0x10cf2), (0x118a0, 0x118df), (0x1e900, 0x1e943),
];
