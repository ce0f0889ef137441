//! Splitting text into the pieces that byte-level merging works on, one hand-written scanner per expression.
//!
//! A vocabulary was trained on the pieces of one regular expression, so ids are right only if the pieces are exactly the
//! same. The expressions, as the models' own tokenizers have them (`[`, `]` enclose what is applied first):
//!
//! | name | expression |
//! |---|---|
//! | `gpt-2` | `'s\|'t\|'re\|'ve\|'m\|'ll\|'d\| ?\p{L}+\| ?\p{N}+\| ?[^\s\p{L}\p{N}]+\|\s+(?!\S)\|\s+` |
//! | `smollm` | each `\p{N}` alone; between them `gpt-2` |
//! | `default` | runs of `\p{P}` and `$+<=>^~\|` alone; between them `gpt-2`; then `\p{N}+` alone; then `[0-9][0-9][0-9]` alone |
//! | `llama-bpe` | `(?i:'s\|'t\|'re\|'ve\|'m\|'ll\|'d)\|[^\r\n\p{L}\p{N}]?\p{L}+\|\p{N}{1,3}\| ?[^\s\p{L}\p{N}]+[\r\n]*\|\s*[\r\n]+\|\s+(?!\S)\|\s+` |
//! | `qwen2` | as `llama-bpe` with `\p{N}` for `\p{N}{1,3}` |
//! | `gpt-4o` | `O?[U]*[L]+C?\|O?[U]+[L]*C?\|\p{N}{1,3}\| ?[^\s\p{L}\p{N}]+[\r\n/]*\|\s*[\r\n]+\|\s+(?!\S)\|\s+` where `O` is `[^\r\n\p{L}\p{N}]`, `U` is `\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}`, `L` is `\p{Ll}\p{Lm}\p{Lo}\p{M}` and `C` is the first alternative of `llama-bpe` |
//! | `deepseek-llm` | in turn: `[\r\n]`, `\s?[C]+` where `C` is letters of scripts with case, ``\s?[!-/:-~！-／：-～‘-‟　-。]+``, `\s+$`, `[一-龥ࠀ-一가-퟿]+`, `\p{N}+` |
//! | `deepseek-coder` | in turn: `[\r\n]`, `\s?\p{L}+`, `\s?\p{P}+`, `[一-龥ࠀ-一가-퟿]+`, `\p{N}` |
//! | `deepseek-v3` | in turn: `\p{N}{1,3}`, `[一-龥぀-ゟ゠-ヿ]+`, then ``A[A-Za-z]+\|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+\| ?[\p{P}\p{S}]+[\r\n]*\|\s*[\r\n]+\|\s+(?!\S)\|\s+`` where `A` is the punctuation of ASCII |
//!
//! `dbrx` and `glm4` have the expression of `llama-bpe`, `olmo` that of `gpt-2`, and `refact` (Granite) that of `smollm`.
//!
//! Each scanner looks at a character a bounded number of times, so the work is linear in the text. Pieces are never empty
//! and their concatenation is the text.

use unicode_general_category::{GeneralCategory, get_general_category};

use super::error::TextError;

/// How a byte-level vocabulary wants its text split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PreTokenizer {
    /// What files without a better name mean.
    Default,
    /// GPT-2.
    Gpt2,
    /// Llama 3 and its successors.
    Llama3,
    /// GPT-4, DBRX, Phi 4, OLMo 2 and GLM 4: the pieces of Llama 3, without its other habits.
    Gpt4,
    /// GPT-4o, Phi-4-mini and gpt-oss: words are split where their case changes.
    Gpt4o,
    /// Qwen 2, 2.5 and 3.
    Qwen2,
    /// SmolLM, StarCoder and Granite.
    SmolLm,
    /// DeepSeek LLM and V2.
    DeepSeekLlm,
    /// DeepSeek Coder.
    DeepSeekCoder,
    /// DeepSeek V3 and R1.
    DeepSeekV3,
}

/// Name in the file, and what it means.
const NAMES: [(&str, PreTokenizer); 23] = [
    ("default", PreTokenizer::Default),
    ("gpt-2", PreTokenizer::Gpt2),
    ("phi-2", PreTokenizer::Gpt2),
    ("olmo", PreTokenizer::Gpt2),
    ("llama-bpe", PreTokenizer::Llama3),
    ("llama3", PreTokenizer::Llama3),
    ("llama-v3", PreTokenizer::Llama3),
    ("dbrx", PreTokenizer::Gpt4),
    ("smaug-bpe", PreTokenizer::Gpt4),
    ("glm4", PreTokenizer::Gpt4),
    ("chatglm-bpe", PreTokenizer::Gpt4),
    ("gpt-4o", PreTokenizer::Gpt4o),
    ("llama4", PreTokenizer::Gpt4o),
    ("qwen2", PreTokenizer::Qwen2),
    ("deepseek-r1-qwen", PreTokenizer::Qwen2),
    ("megrez", PreTokenizer::Qwen2),
    ("smollm", PreTokenizer::SmolLm),
    ("starcoder", PreTokenizer::SmolLm),
    ("refact", PreTokenizer::SmolLm),
    ("command-r", PreTokenizer::SmolLm),
    ("deepseek-llm", PreTokenizer::DeepSeekLlm),
    ("deepseek-coder", PreTokenizer::DeepSeekCoder),
    ("deepseek-v3", PreTokenizer::DeepSeekV3),
];

impl PreTokenizer {
    /// The pre-tokenizer with the name that `tokenizer.ggml.pre` has.
    pub fn from_name(name: &str) -> Result<Self, TextError> {
        match NAMES.iter().find(|(known, _)| *known == name) {
            Some(&(_, found)) => Ok(found),
            None => Err(TextError::UnknownPreTokenizer {
                name: name.to_owned(),
                known: NAMES.map(|(known, _)| known).join(", "),
            }),
        }
    }

    /// The pieces of `text`, in order.
    pub fn pieces(self, text: &str) -> Pieces<'_> {
        Pieces { scan: Scan(text), pre: self, pos: 0, ahead: Vec::new() }
    }
}

/// Iterator over the pieces of a text; see [`PreTokenizer::pieces`].
#[derive(Debug, Clone)]
pub struct Pieces<'t> {
    scan: Scan<'t>,
    pre: PreTokenizer,
    pos: usize,
    /// Ends of pieces that are known already, last first.
    ahead: Vec<usize>,
}

impl<'t> Iterator for Pieces<'t> {
    type Item = &'t str;

    #[inline]
    fn next(&mut self) -> Option<&'t str> {
        let start = self.pos;
        let first = self.scan.at(start)?;
        self.pos = match self.pre {
            PreTokenizer::Gpt2 => self.scan.gpt2(start, first, |_| false),
            PreTokenizer::SmolLm => self.scan.smollm(start, first),
            PreTokenizer::Default => self.scan.default(start, first),
            PreTokenizer::Llama3 | PreTokenizer::Gpt4 => self.scan.llama3(start, first, 3),
            PreTokenizer::Gpt4o => self.scan.gpt4o(start, first),
            PreTokenizer::Qwen2 => self.scan.llama3(start, first, 1),
            PreTokenizer::DeepSeekV3 => self.scan.deepseek_v3(start, first),
            PreTokenizer::DeepSeekLlm => self.next_of(|scan| scan.deepseek_llm(start)),
            PreTokenizer::DeepSeekCoder => self.next_of(|scan| scan.deepseek_coder(start)),
        };
        Some(&self.scan.0[start..self.pos])
    }
}

impl<'t> Pieces<'t> {
    /// The next end of those known, which `more` finds where there is none.
    fn next_of(&mut self, more: impl Fn(Scan<'t>) -> Vec<usize>) -> usize {
        if self.ahead.is_empty() {
            self.ahead = more(self.scan);
        }
        // A text that does not end has a piece.
        self.ahead.pop().unwrap_or(self.scan.0.len())
    }
}

/// What the expressions distinguish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// `\p{L}`
    Letter,
    /// `\p{N}`
    Number,
    /// `\s`
    Space,
    /// Everything else.
    Other,
}

/// A character, its class and where the next one starts.
#[derive(Debug, Clone, Copy)]
pub(super) struct At {
    pub(super) ch: char,
    pub(super) class: Class,
    pub(super) end: usize,
}

/// Scanners over one text. Each takes the start of a piece and its first character and returns the end of the piece.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scan<'t>(pub(super) &'t str);

impl Scan<'_> {
    /// The character at byte `pos`.
    #[inline]
    pub(super) fn at(self, pos: usize) -> Option<At> {
        let byte = *self.0.as_bytes().get(pos)?;
        if byte < 128 {
            return Some(At {
                ch: char::from(byte),
                class: ASCII[usize::from(byte)],
                end: pos + 1,
            });
        }
        let ch = self.0[pos..].chars().next()?;
        Some(At { ch, class: class_of(ch), end: pos + ch.len_utf8() })
    }

    /// End of the run of `class` from `pos` on, not beyond a character that `stop` accepts.
    #[inline]
    pub(super) fn run(self, mut pos: usize, class: Class, stop: impl Fn(At) -> bool) -> usize {
        while let Some(at) = self.at(pos) {
            if at.class != class || stop(at) {
                break;
            }
            pos = at.end;
        }
        pos
    }

    /// The GPT-2 expression on a text that ends before the first character that `stop` accepts.
    #[inline]
    fn gpt2(self, pos: usize, first: At, stop: impl Fn(At) -> bool + Copy) -> usize {
        if first.ch == '\''
            && let Some(end) = self.contraction(first.end, |ch| ch)
        {
            return end;
        }
        let body = match first.ch {
            ' ' => self.at(first.end).filter(|&next| !stop(next)),
            _ => Some(first),
        };
        match body {
            Some(body) if body.class != Class::Space => self.run(body.end, body.class, stop),
            _ => self.spaces(pos, stop),
        }
    }

    /// Numbers one by one, and GPT-2 on what lies between.
    #[inline]
    fn smollm(self, pos: usize, first: At) -> usize {
        match first.class {
            Class::Number => first.end,
            _ => self.gpt2(pos, first, |at| at.class == Class::Number),
        }
    }

    /// Four expressions in turn, each on the pieces that the one before left.
    fn default(self, pos: usize, first: At) -> usize {
        if is_default_punctuation(first) {
            let mut end = first.end;
            while let Some(at) = self.at(end).filter(|&at| is_default_punctuation(at)) {
                end = at.end;
            }
            return end;
        }
        if first.class == Class::Number {
            return self.default_numbers(pos);
        }
        let next_is_number = || self.at(first.end).is_some_and(|next| next.class == Class::Number);
        if first.ch == ' ' && next_is_number() {
            return first.end;
        }
        self.gpt2(pos, first, is_default_punctuation)
    }

    /// Three ASCII digits, or the numbers before the next three ASCII digits.
    fn default_numbers(self, start: usize) -> usize {
        let three_digits = |pos: usize| {
            self.0
                .as_bytes()
                .get(pos..pos + 3)
                .is_some_and(|digits| digits.iter().all(u8::is_ascii_digit))
        };
        if three_digits(start) {
            return start + 3;
        }
        let mut pos = start;
        while let Some(at) = self.at(pos).filter(|at| at.class == Class::Number) {
            if three_digits(pos) {
                break;
            }
            pos = at.end;
        }
        pos
    }

    /// The Llama 3 expression, with at most `max_numbers` numbers in a piece.
    #[inline]
    fn llama3(self, pos: usize, first: At, max_numbers: usize) -> usize {
        if first.ch == '\''
            && let Some(end) = self.contraction(first.end, fold_case)
        {
            return end;
        }
        let never = |_| false;
        if first.class == Class::Letter {
            return self.run(first.end, Class::Letter, never);
        }
        if first.class == Class::Number {
            let mut end = first.end;
            for _ in 1..max_numbers {
                match self.at(end) {
                    Some(next) if next.class == Class::Number => end = next.end,
                    _ => break,
                }
            }
            return end;
        }
        let next = self.at(first.end);
        if let Some(next) = next
            && next.class == Class::Letter
            && !is_newline(first.ch)
        {
            return self.run(next.end, Class::Letter, never);
        }
        let body = match first.ch {
            ' ' => next,
            _ => Some(first),
        };
        if let Some(body) = body
            && body.class == Class::Other
        {
            let end = self.run(body.end, Class::Other, never);
            return end + self.0[end..].bytes().take_while(|b| matches!(b, b'\r' | b'\n')).count();
        }
        let spaces = self.run(pos, Class::Space, never);
        match self.0[pos..spaces].rfind(is_newline) {
            Some(newline) => pos + newline + 1,
            None => self.spaces(pos, never),
        }
    }

    /// The expression of GPT-4o: words by case, with the contraction behind them, else as Llama 3 but for slashes.
    fn gpt4o(self, pos: usize, first: At) -> usize {
        let bare = self.cased(pos);
        let behind = match first.class {
            Class::Space | Class::Other if !is_newline(first.ch) => self.cased(first.end),
            _ => Cased::default(),
        };
        let word = behind.mixed.or(bare.mixed).or(behind.upper).or(bare.upper);
        if let Some(end) = word {
            let apostrophe = self.at(end).filter(|next| next.ch == '\'');
            let contraction = apostrophe.and_then(|next| self.contraction(next.end, fold_case));
            return contraction.unwrap_or(end);
        }
        let body = match first.ch {
            ' ' => self.at(first.end),
            _ => Some(first),
        };
        if let Some(body) = body
            && body.class == Class::Other
        {
            let end = self.run(body.end, Class::Other, |_| false);
            let ends = |b: &u8| matches!(b, b'\r' | b'\n' | b'/');
            return end + self.0[end..].bytes().take_while(ends).count();
        }
        self.llama3(pos, first, 3)
    }

    /// The words from `pos` on: characters that may be upper case, then such that may be lower case.
    fn cased(self, pos: usize) -> Cased {
        let (mut end, mut either) = (pos, None);
        while let Some((at, case)) = self.at(end).map(|at| (at, case_of(at.ch))) {
            match case {
                Case::Upper => end = at.end,
                Case::Either => {
                    end = at.end;
                    either = Some(end);
                }
                Case::Lower => {
                    while let Some(at) = self.at(end) {
                        match case_of(at.ch) {
                            Case::Lower | Case::Either => end = at.end,
                            Case::Upper | Case::None => break,
                        }
                    }
                    return Cased { mixed: Some(end), upper: None };
                }
                Case::None => break,
            }
        }
        // Without lower case the last character that may be either is the end: the expression gives back what follows.
        Cased { mixed: either, upper: Some(end).filter(|&end| end > pos) }
    }

    /// `'s` and its kind after the apostrophe: end of the contraction, if there is one.
    #[inline]
    fn contraction(self, pos: usize, fold: impl Fn(char) -> char) -> Option<usize> {
        let first = self.at(pos)?;
        let second = match fold(first.ch) {
            's' | 't' | 'm' | 'd' => return Some(first.end),
            'r' | 'v' => 'e',
            'l' => 'l',
            _ => return None,
        };
        self.at(first.end).filter(|next| fold(next.ch) == second).map(|next| next.end)
    }

    /// `\s+(?!\S)|\s+`: a run of white space, without its last character where a word follows.
    #[inline]
    pub(super) fn spaces(self, start: usize, stop: impl Fn(At) -> bool + Copy) -> usize {
        let end = self.run(start, Class::Space, stop);
        if self.at(end).is_none_or(stop) {
            return end;
        }
        match self.0[start..end].char_indices().next_back() {
            Some((last, _)) if last > 0 => start + last,
            _ => end,
        }
    }
}

/// Where words end by the two alternatives of GPT-4o.
#[derive(Debug, Clone, Copy, Default)]
struct Cased {
    /// Some upper case, then at least one lower case.
    mixed: Option<usize>,
    /// At least one upper case, then some lower case.
    upper: Option<usize>,
}

/// What the expression of GPT-4o takes a character for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Case {
    Upper,
    Lower,
    /// Letters without case, and marks.
    Either,
    None,
}

fn case_of(ch: char) -> Case {
    use GeneralCategory as C;
    match get_general_category(ch) {
        C::UppercaseLetter | C::TitlecaseLetter => Case::Upper,
        C::LowercaseLetter => Case::Lower,
        C::ModifierLetter
        | C::OtherLetter
        | C::NonspacingMark
        | C::SpacingMark
        | C::EnclosingMark => Case::Either,
        _ => Case::None,
    }
}

/// Case folding as far as a contraction needs it: the long s folds to s.
fn fold_case(ch: char) -> char {
    match ch {
        'ſ' => 's',
        _ => ch.to_ascii_lowercase(),
    }
}

pub(super) fn is_newline(ch: char) -> bool {
    matches!(ch, '\r' | '\n')
}

/// The first expression of `default`: `[\p{P}\$\+<=>\^~\|]`.
fn is_default_punctuation(at: At) -> bool {
    use GeneralCategory as C;
    if at.class != Class::Other {
        return false;
    }
    if at.ch.is_ascii() {
        return at.ch.is_ascii_punctuation() && at.ch != '`';
    }
    matches!(
        get_general_category(at.ch),
        C::ConnectorPunctuation
            | C::DashPunctuation
            | C::OpenPunctuation
            | C::ClosePunctuation
            | C::InitialPunctuation
            | C::FinalPunctuation
            | C::OtherPunctuation
    )
}

/// [`Class`] of a character outside ASCII.
fn class_of(ch: char) -> Class {
    use GeneralCategory as C;
    match get_general_category(ch) {
        C::UppercaseLetter
        | C::LowercaseLetter
        | C::TitlecaseLetter
        | C::ModifierLetter
        | C::OtherLetter => Class::Letter,
        C::DecimalNumber | C::LetterNumber | C::OtherNumber => Class::Number,
        _ if ch.is_whitespace() => Class::Space,
        _ => Class::Other,
    }
}

/// [`Class`] of the ASCII characters.
const ASCII: [Class; 128] = {
    let mut table = [Class::Other; 128];
    let mut byte = 0;
    while byte < 128 {
        table[byte] = match byte as u8 {
            b'a'..=b'z' | b'A'..=b'Z' => Class::Letter,
            b'0'..=b'9' => Class::Number,
            b'\t'..=b'\r' | b' ' => Class::Space,
            _ => Class::Other,
        };
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::PreTokenizer::*;
    use super::*;

    #[track_caller]
    fn check(pre: PreTokenizer, text: &str, pieces: &[&str]) {
        assert_eq!(pre.pieces(text).collect::<Vec<_>>(), pieces, "{pre:?}");
    }

    #[test]
    fn contractions_depend_on_case_only_where_the_expression_says_so() {
        check(Gpt2, "it's IT'S", &["it", "'s", " IT", "'", "S"]);
        check(Llama3, "it's IT'S he'lL", &["it", "'s", " IT", "'S", " he", "'lL"]);
        check(Llama3, "x'ſa x'rx", &["x", "'ſ", "a", " x", "'rx"]);
        check(Default, "don't", &["don", "'", "t"]);
    }

    #[test]
    fn white_space_before_a_word_keeps_its_last_character_for_the_word() {
        check(Gpt2, "a   b  ", &["a", "  ", " b", "  "]);
        check(Gpt2, "a\n\n b", &["a", "\n\n", " b"]);
        check(Gpt2, "a\u{3000}\u{3000}b", &["a", "\u{3000}", "\u{3000}", "b"]);
        check(Llama3, "a \n  b", &["a", " \n", " ", " b"]);
        check(Llama3, "a.\r\n\tb", &["a", ".\r\n", "\tb"]);
        check(SmolLm, "a  5  b", &["a", "  ", "5", " ", " b"]);
    }

    #[test]
    fn numbers_split_as_each_vocabulary_was_trained() {
        check(Gpt2, " 12345", &[" 12345"]);
        check(Llama3, " 12345", &[" ", "123", "45"]);
        check(Qwen2, "12", &["1", "2"]);
        check(SmolLm, "x12", &["x", "1", "2"]);
        check(Default, " 12345 १२1234", &[" ", "123", "45", " ", "१२", "123", "4"]);
    }

    #[test]
    fn words_of_gpt_4o_are_split_where_their_case_changes() {
        check(Gpt4o, "camelCase HTTPServer's", &["camel", "Case", " HTTPServer's"]);
        check(Gpt4o, "ABC'S x 12345", &["ABC'S", " x", " ", "123", "45"]);
        check(Gpt4o, "日本ABC 日ABC日", &["日本", "ABC", " 日ABC日"]);
        check(Gpt4o, "a.//\r\n/b (Go", &["a", ".//\r\n/", "b", " (", "Go"]);
        check(Gpt4o, "e\u{301}x \u{301}", &["e\u{301}x", " \u{301}"]);
        check(Gpt4, "camelCase 12345", &["camelCase", " ", "123", "45"]);
    }

    #[test]
    fn unknown_names_list_the_known_ones() {
        let error = PreTokenizer::from_name("tekken").unwrap_err().to_string();
        assert!(error.contains("tekken") && error.contains("llama-bpe"), "{error}");
    }
}
