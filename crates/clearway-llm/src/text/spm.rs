//! SentencePiece BPE: characters joined by the score of the piece they form, bytes for what no piece covers.
//!
//! Pieces write a space as U+2581; the table holds them with plain spaces, so text needs no escaping. As in
//! SentencePiece, only normal, user-defined and unused pieces take part in merging: control and byte tokens can not be
//! formed from text that happens to spell them.

use std::borrow::Cow;

use rustc_hash::{FxHashMap, FxHashSet};

use super::bpe::{byte_token, push_byte_token};
use super::error::TextError;
use super::merge::{Merger, Pairs, Symbol, WordCache};
use super::table::{IdMap, NONE, TokenTable};
use super::vocab::{TokenKind, Vocab};

/// U+2581, which stands for a space in pieces and counts as one in text.
pub(super) const ESCAPED_SPACE: &str = "\u{2581}";

/// A SentencePiece vocabulary beside its [`TokenTable`].
#[derive(Debug)]
pub(super) struct Spm {
    ids: IdMap,
    /// Per token, the order of merging: the higher the score, the lower the number.
    urgency: Vec<u32>,
    /// Token of each byte, where the vocabulary has all of them.
    bytes: Option<Box<[u32; 256]>>,
    unknown: u32,
    /// Characters after which some piece has a space. A word may end before any other space.
    before_space: FxHashSet<char>,
    has_unused: bool,
    space_prefix: bool,
    collapse_spaces: bool,
}

impl Spm {
    /// Reads the pieces of a `llama` vocabulary. `kinds` gives byte tokens away even where the file has no types.
    pub(super) fn new(
        vocab: &Vocab<'_>,
        kinds: impl Fn(usize) -> TokenKind,
        unknown: Option<u32>,
    ) -> Result<(TokenTable, Self), TextError> {
        let mut table = TokenTable::new(vocab.tokens.len())?;
        let mut bytes = Box::new([NONE; 256]);
        for (i, text) in vocab.tokens.iter().enumerate() {
            let kind = kinds(i);
            table.push(kind, |out| match kind {
                TokenKind::Normal | TokenKind::UserDefined | TokenKind::Unused => {
                    push_unescaped(text, out);
                }
                TokenKind::Byte => {
                    push_byte_token(text, out);
                }
                TokenKind::Control | TokenKind::Unknown => out.extend_from_slice(text),
            })?;
            if let (TokenKind::Byte, Some(byte)) = (kind, byte_token(text)) {
                bytes[usize::from(byte)] = i as u32;
            }
        }
        let bytes = (!bytes.contains(&NONE)).then_some(bytes);
        if bytes.is_none() && unknown.is_none() {
            return Err(TextError::NoFallback);
        }
        let mut before_space = FxHashSet::default();
        let mut has_unused = false;
        let ids = IdMap::new(&table, |id, kind| {
            // A piece that is not UTF-8 equals no run of characters.
            let Ok(piece) = str::from_utf8(table.bytes(id)) else {
                return false;
            };
            let joins =
                matches!(kind, TokenKind::Normal | TokenKind::UserDefined | TokenKind::Unused);
            if joins {
                has_unused |= kind == TokenKind::Unused;
                let ends = piece.match_indices(' ').map(|(at, _)| &piece[..at]);
                before_space.extend(ends.filter_map(|end| end.chars().next_back()));
            }
            joins
        });
        before_space.remove(&' ');
        let urgency = match vocab.scores {
            Some(scores) => scores.iter().copied().map(urgency_of).collect(),
            None => vec![urgency_of(0.0); table.len()],
        };
        let spm = Self {
            ids,
            urgency,
            bytes,
            unknown: unknown.unwrap_or(NONE),
            before_space,
            has_unused,
            space_prefix: vocab.add_space_prefix.unwrap_or(true),
            collapse_spaces: vocab.remove_extra_whitespaces.unwrap_or(false),
        };
        Ok((table, spm))
    }

    /// Whether a space is put before text, and so is to be taken off decoded text.
    pub(super) fn space_prefix(&self) -> bool {
        self.space_prefix
    }

    /// The id of ordinary text, written with plain spaces.
    pub(super) fn id(&self, table: &TokenTable, bytes: &[u8]) -> Option<u32> {
        self.ids.id(table, bytes)
    }

    /// Text as merging sees it: with plain spaces, and without superfluous ones where the file asks for that.
    pub(super) fn normalize<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let mut text = Cow::Borrowed(text);
        if self.collapse_spaces {
            let mut kept = String::with_capacity(text.len());
            let mut after_space = true;
            for ch in text.chars() {
                if ch != ' ' || !after_space {
                    kept.push(ch);
                }
                after_space = ch == ' ';
            }
            kept.truncate(kept.trim_end_matches([' ', '\u{2581}']).len());
            text = Cow::Owned(kept);
        }
        if text.contains(ESCAPED_SPACE) {
            text = Cow::Owned(text.replace(ESCAPED_SPACE, " "));
        }
        text
    }

    /// Appends the ids of normalized `text`.
    pub(super) fn encode(
        &self,
        table: &TokenTable,
        text: &str,
        merger: &mut Merger,
        out: &mut Vec<u32>,
    ) {
        let first = out.len();
        let mut splits = FxHashMap::default();
        if self.has_unused {
            // How an unused piece is taken apart again depends on the whole text, so it can not be cut into words.
            self.encode_word(table, text.as_bytes(), merger, &mut splits, out);
        } else {
            let mut cache = WordCache::new(text.len());
            let mut start = 0;
            while start < text.len() {
                let end = self.word_end(text, start);
                cache.encode(text.as_bytes(), (start, end), out, |word, out| {
                    self.encode_word(table, word, merger, &mut splits, out);
                });
                start = end;
            }
        }
        if self.bytes.is_none() {
            self.join_unknown(first, out);
        }
    }

    /// End of the word that starts at `start`: the next space that no piece can reach across.
    fn word_end(&self, text: &str, start: usize) -> usize {
        let bytes = text.as_bytes();
        let mut at = start + 1;
        while let Some(found) =
            bytes.get(at..).and_then(|rest| rest.iter().position(|&b| b == b' '))
        {
            let end = at + found;
            let reached = || {
                let before = text[start..end].chars().next_back();
                before.is_some_and(|ch| self.before_space.contains(&ch))
            };
            if bytes[end - 1] != b' ' && (self.before_space.is_empty() || !reached()) {
                return end;
            }
            at = end + 1;
        }
        text.len()
    }

    fn encode_word(
        &self,
        table: &TokenTable,
        word: &[u8],
        merger: &mut Merger,
        splits: &mut FxHashMap<u32, u32>,
        out: &mut Vec<u32>,
    ) {
        merger.symbols.clear();
        let mut start = 0;
        for chunk in word.utf8_chunks() {
            for ch in chunk.valid().chars() {
                let len = ch.len_utf8() as u32;
                merger.symbols.push(Symbol::new(start, len, NONE));
                start += len;
            }
        }
        let mut pairs = ByScore { spm: self, table, splits };
        merger.merge(word, &mut pairs);
        for symbol in &merger.symbols {
            self.emit(table, word, *symbol, splits, out);
        }
    }

    /// Appends the id of a final symbol: its piece, the parts of an unused piece, its bytes, or the unknown token.
    #[inline]
    fn emit(
        &self,
        table: &TokenTable,
        word: &[u8],
        symbol: Symbol,
        splits: &FxHashMap<u32, u32>,
        out: &mut Vec<u32>,
    ) {
        if symbol.id != NONE && !self.has_unused {
            out.push(symbol.id);
            return;
        }
        let text = &word[symbol.start as usize..][..symbol.len as usize];
        match self.split(table, text, splits) {
            None => self.push_part(table, text, out),
            Some(left) => self.emit_parts(table, text, left, splits, out),
        }
    }

    /// Takes an unused piece apart until its parts may be used.
    fn emit_parts(
        &self,
        table: &TokenTable,
        text: &[u8],
        left: usize,
        splits: &FxHashMap<u32, u32>,
        out: &mut Vec<u32>,
    ) {
        // Parts are shorter than what they come from, so this ends.
        let mut pending = vec![&text[left..], &text[..left]];
        while let Some(part) = pending.pop() {
            match self.split(table, part, splits) {
                None => self.push_part(table, part, out),
                Some(left) => pending.extend([&part[left..], &part[..left]]),
            }
        }
    }

    /// Length of the left part of an unused piece.
    fn split(
        &self,
        table: &TokenTable,
        text: &[u8],
        splits: &FxHashMap<u32, u32>,
    ) -> Option<usize> {
        let id = self.ids.id(table, text).filter(|_| self.has_unused)?;
        splits.get(&id).map(|&left| left as usize)
    }

    fn push_part(&self, table: &TokenTable, text: &[u8], out: &mut Vec<u32>) {
        match (self.ids.id(table, text), &self.bytes) {
            (Some(id), _) => out.push(id),
            (None, Some(ids)) => out.extend(text.iter().map(|&byte| ids[usize::from(byte)])),
            (None, None) => out.push(self.unknown),
        }
    }

    /// One unknown token stands for any number of adjacent characters.
    fn join_unknown(&self, first: usize, out: &mut Vec<u32>) {
        let mut kept = first;
        for i in first..out.len() {
            if out[i] != self.unknown || kept == first || out[kept - 1] != self.unknown {
                out[kept] = out[i];
                kept += 1;
            }
        }
        out.truncate(kept);
    }
}

/// Merges by the score of the resulting piece.
struct ByScore<'a> {
    spm: &'a Spm,
    table: &'a TokenTable,
    /// Unused pieces met so far, and the length of the left part they came from.
    splits: &'a mut FxHashMap<u32, u32>,
}

impl Pairs for ByScore<'_> {
    #[inline]
    fn pair(&self, word: &[u8], left: &Symbol, right: &Symbol) -> Option<(u32, u32)> {
        let len = (left.len + right.len) as usize;
        if len > self.table.longest() {
            return None;
        }
        let start = left.start as usize;
        let id = self.spm.ids.id(self.table, &word[start..start + len])?;
        Some((self.spm.urgency[id as usize], id))
    }

    #[inline]
    fn found(&mut self, left: &Symbol, id: u32) {
        if self.spm.has_unused && self.table.kind(id) == Some(TokenKind::Unused) {
            self.splits.insert(id, left.len);
        }
    }
}

/// Orders scores from high to low as integers; NaN comes last, and both zeros are equal.
fn urgency_of(score: f32) -> u32 {
    let score = if score.is_nan() { f32::NEG_INFINITY } else { score + 0.0 };
    let bits = score.to_bits();
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    !ascending
}

/// Appends `text` with U+2581 turned into spaces.
fn push_unescaped(text: &[u8], out: &mut Vec<u8>) {
    let escaped = ESCAPED_SPACE.as_bytes();
    let mut rest = text;
    while let Some((&first, tail)) = rest.split_first() {
        rest = match rest.strip_prefix(escaped) {
            Some(after) => {
                out.push(b' ');
                after
            }
            None => {
                out.push(first);
                tail
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urgency_orders_scores_downwards() {
        let scores = [f32::INFINITY, 1e30, 1.0, 0.0, -1e-40, -1.0, -1e30, f32::NEG_INFINITY];
        for two in scores.windows(2) {
            assert!(urgency_of(two[0]) < urgency_of(two[1]), "{two:?}");
        }
        assert_eq!(urgency_of(0.0), urgency_of(-0.0));
        assert_eq!(urgency_of(f32::NAN), urgency_of(f32::NEG_INFINITY));
        assert!(urgency_of(f32::NEG_INFINITY) < NONE);
    }
}
