//! Byte-level BPE: GPT-2's alphabet of 256 printable characters for the 256 bytes, and merges by rank.
//!
//! The alphabet is undone once, when the vocabulary is loaded, so that encoding and decoding work on plain bytes.

use std::borrow::Cow;

use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

use super::error::TextError;
use super::merge::{Merger, Pairs, Symbol, WordCache};
use super::pretokenize::PreTokenizer;
use super::table::{IdMap, NONE, PairMap, TokenTable};
use super::vocab::{TokenKind, Vocab};

/// A byte-level vocabulary beside its [`TokenTable`].
#[derive(Debug)]
pub(super) struct Bpe {
    ids: IdMap,
    pairs: PairMap,
    bytes: Box<[u32; 256]>,
    pre: PreTokenizer,
    /// A piece that is a token is that token, whatever the merges say (Llama 3).
    whole_pieces: bool,
    /// Text is brought to NFC first (Qwen). The file does not say so; the models' own tokenizers do it.
    nfc: bool,
    skipped_merges: usize,
}

impl Bpe {
    /// Reads tokens and merges of a `gpt2` vocabulary.
    pub(super) fn new(
        vocab: &Vocab<'_>,
        kinds: impl Fn(usize) -> TokenKind,
    ) -> Result<(TokenTable, Self), TextError> {
        let pre_name = vocab.pre.unwrap_or("default");
        let pre = PreTokenizer::from_name(pre_name)?;
        let mut table = TokenTable::new(vocab.tokens.len())?;
        let mut plain = Vec::with_capacity(vocab.tokens.len());
        for (i, text) in vocab.tokens.iter().enumerate() {
            let kind = kinds(i);
            let mut decoded = false;
            table.push(kind, |out| match kind {
                TokenKind::Byte => decoded = push_byte_token(text, out),
                TokenKind::Normal | TokenKind::Unused => decoded = push_decoded(text, out),
                TokenKind::Control | TokenKind::UserDefined | TokenKind::Unknown => {
                    out.extend_from_slice(text);
                }
            })?;
            plain.push(decoded);
        }
        let ids = IdMap::new(&table, |id, _| plain[id as usize]);
        let mut bytes = Box::new([NONE; 256]);
        for byte in 0..=u8::MAX {
            bytes[usize::from(byte)] = ids.id(&table, &[byte]).unwrap_or(NONE);
        }
        let (pairs, skipped_merges) = read_merges(vocab, &table, &ids)?;
        let bpe = Self {
            ids,
            pairs,
            bytes,
            pre,
            whole_pieces: pre == PreTokenizer::Llama3,
            nfc: pre_name == "qwen2",
            skipped_merges,
        };
        Ok((table, bpe))
    }

    /// Whether files without `add_bos_token` mean that there is one.
    pub(super) fn adds_bos_by_default(&self) -> bool {
        self.pre == PreTokenizer::Llama3
    }

    /// How many merges name tokens that do not exist.
    pub(super) fn skipped_merges(&self) -> usize {
        self.skipped_merges
    }

    /// The id of ordinary text.
    pub(super) fn id(&self, table: &TokenTable, bytes: &[u8]) -> Option<u32> {
        self.ids.id(table, bytes)
    }

    /// Appends the ids of `text`, which has no special tokens. A byte without a token is left out, as other readers of
    /// such files do; complete vocabularies have all 256.
    pub(super) fn encode(
        &self,
        table: &TokenTable,
        text: &str,
        merger: &mut Merger,
        out: &mut Vec<u32>,
    ) {
        let normal = !self.nfc || is_nfc_quick(text.chars()) == IsNormalized::Yes;
        let text = match normal {
            true => Cow::Borrowed(text),
            false => Cow::Owned(text.nfc().collect::<String>()),
        };
        let mut cache = WordCache::new(text.len());
        let mut start = 0;
        for piece in self.pre.pieces(&text) {
            let end = start + piece.len();
            cache.encode(text.as_bytes(), (start, end), out, |word, out| {
                self.encode_word(table, word, merger, out);
            });
            start = end;
        }
    }

    fn encode_word(
        &self,
        table: &TokenTable,
        word: &[u8],
        merger: &mut Merger,
        out: &mut Vec<u32>,
    ) {
        if self.whole_pieces
            && let Some(id) = self.ids.id(table, word)
        {
            out.push(id);
            return;
        }
        merger.symbols.clear();
        merger.symbols.extend(
            word.iter()
                .enumerate()
                .map(|(i, &byte)| Symbol::new(i as u32, 1, self.bytes[usize::from(byte)])),
        );
        merger.merge(word, &mut ByRank(&self.pairs));
        out.extend(merger.symbols.iter().map(|s| s.id).filter(|&id| id != NONE));
    }
}

/// Merges in the order of the file.
struct ByRank<'a>(&'a PairMap);

impl Pairs for ByRank<'_> {
    #[inline]
    fn pair(&self, _: &[u8], left: &Symbol, right: &Symbol) -> Option<(u32, u32)> {
        self.0.get(left.id, right.id)
    }
}

/// The merges that join two tokens into a third, and how many others there are. Files contain a few that lead nowhere;
/// other readers ignore them too.
fn read_merges(
    vocab: &Vocab<'_>,
    table: &TokenTable,
    ids: &IdMap,
) -> Result<(PairMap, usize), TextError> {
    let merges = &vocab.merges;
    if merges.len() >= NONE as usize {
        return Err(TextError::VocabTooLarge { what: "merges" });
    }
    let mut pairs = PairMap::new(merges.len());
    let mut skipped = 0;
    let mut joined = Vec::new();
    for (rank, merge) in merges.iter().enumerate() {
        let mut parts = || {
            // The first part is not empty, so a separator at the very start belongs to it.
            let space = 1 + merge.get(1..)?.iter().position(|&b| b == b' ')?;
            joined.clear();
            if !push_decoded(&merge[..space], &mut joined) {
                return None;
            }
            let middle = joined.len();
            if !push_decoded(&merge[space + 1..], &mut joined) {
                return None;
            }
            let left = ids.id(table, &joined[..middle])?;
            let right = ids.id(table, &joined[middle..])?;
            Some((left, right, ids.id(table, &joined)?))
        };
        match parts() {
            Some((left, right, merged)) => pairs.insert(left, right, rank as u32, merged),
            None => skipped += 1,
        }
    }
    if skipped == merges.len() {
        return Err(TextError::NoMerges { found: merges.len() });
    }
    Ok((pairs, skipped))
}

/// Appends the bytes that `text` stands for in GPT-2's alphabet; `text` itself, and false, where it has other characters.
fn push_decoded(text: &[u8], out: &mut Vec<u8>) -> bool {
    let start = out.len();
    if let Ok(text) = str::from_utf8(text) {
        for ch in text.chars() {
            match ALPHABET.get(ch as usize) {
                Some(&byte) if byte != NO_BYTE => out.push(byte as u8),
                _ => {
                    out.truncate(start);
                    out.extend_from_slice(text.as_bytes());
                    return false;
                }
            }
        }
        return true;
    }
    out.extend_from_slice(text);
    false
}

/// Appends the byte of a `<0xNN>` token; `text` itself, and false, where it is not one.
pub(super) fn push_byte_token(text: &[u8], out: &mut Vec<u8>) -> bool {
    match byte_token(text) {
        Some(byte) => {
            out.push(byte);
            true
        }
        None => {
            out.extend_from_slice(text);
            false
        }
    }
}

/// The byte that a `<0xNN>` token stands for.
pub(super) fn byte_token(text: &[u8]) -> Option<u8> {
    let [b'<', b'0', b'x', high, low, b'>'] = *text else {
        return None;
    };
    let digit = |c: u8| char::from(c).to_digit(16);
    Some((digit(high)? * 16 + digit(low)?) as u8)
}

/// The character that stands for a byte in GPT-2's alphabet.
pub(crate) fn byte_char(byte: u8) -> char {
    let at = ALPHABET.iter().position(|&found| found == u16::from(byte));
    // Every byte is there: a test counts them.
    at.and_then(|at| char::from_u32(at as u32)).unwrap_or_default()
}

const NO_BYTE: u16 = u16::MAX;

/// GPT-2's alphabet, from character to byte: printable Latin-1 stands for itself, the other 68 bytes for U+0100 and up.
const ALPHABET: [u16; 0x144] = {
    let mut table = [NO_BYTE; 0x144];
    let mut moved = 0x100;
    let mut byte = 0u16;
    while byte < 256 {
        if matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) {
            table[byte as usize] = byte;
        } else {
            table[moved] = byte;
            moved += 1;
        }
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_covers_every_byte_once() {
        let mut bytes: Vec<u16> = ALPHABET.iter().copied().filter(|&b| b != NO_BYTE).collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..256).collect::<Vec<u16>>());
        let mut out = Vec::new();
        assert!(push_decoded("ĠaĊéł".as_bytes(), &mut out));
        assert_eq!(out, [0x20, b'a', 0x0a, 0xe9, 0xa0]);
        for byte in 0..=u8::MAX {
            out.clear();
            assert!(push_decoded(byte_char(byte).to_string().as_bytes(), &mut out));
            assert_eq!(out, [byte]);
        }
    }

    #[test]
    fn text_outside_the_alphabet_stays_as_it_is() {
        for text in ["한".as_bytes(), b"a b", b"\xff\xfe"] {
            let mut out = vec![1];
            assert!(!push_decoded(text, &mut out));
            assert_eq!(&out[1..], text);
        }
    }

    #[test]
    fn byte_tokens() {
        assert_eq!(byte_token(b"<0x0A>"), Some(10));
        assert_eq!(byte_token(b"<0xfF>"), Some(255));
        for bad in [&b"<0x0G>"[..], b"<0x0>", b"<0x+1>", b"0x0A", b""] {
            assert_eq!(byte_token(bad), None);
        }
    }
}
