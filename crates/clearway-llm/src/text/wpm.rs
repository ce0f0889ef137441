//! WordPiece: the vocabularies of BERT.
//!
//! Text is cleaned, split into words at white space, around punctuation and around Chinese characters, and each word is
//! cut into the longest pieces that the vocabulary has. A word that cannot be cut is the unknown token. Files mark pieces
//! that begin a word with `▁`; pieces inside a word have no mark.

use unicode_general_category::{GeneralCategory, get_general_category};
use unicode_normalization::UnicodeNormalization;

use super::error::TextError;
use super::spm::ESCAPED_SPACE;
use super::table::{IdMap, TokenTable};
use super::vocab::{TokenKind, Vocab};

/// Longer words are unknown, as in the models' own tokenizers.
const LONGEST_WORD: usize = 100;

/// A WordPiece vocabulary beside its [`TokenTable`].
#[derive(Debug)]
pub(super) struct Wpm {
    ids: IdMap,
    unknown: u32,
    /// Text is brought to lower case, and accents are left out.
    lowercase: bool,
}

impl Wpm {
    /// Reads the vocabulary. Pieces that begin a word start with a space in the table.
    pub(super) fn new(
        vocab: &Vocab<'_>,
        kinds: impl Fn(usize) -> TokenKind,
        unknown: Option<u32>,
    ) -> Result<(TokenTable, Self), TextError> {
        let mut table = TokenTable::new(vocab.tokens.len())?;
        let mark = ESCAPED_SPACE.as_bytes();
        // Files do not say whether case counts. A vocabulary that has upper case needs it.
        let mut lowercase = true;
        for (i, text) in vocab.tokens.iter().enumerate() {
            let kind = kinds(i);
            let piece = text.strip_prefix(mark);
            if kind == TokenKind::Normal && !text.starts_with(b"[") {
                lowercase &= !text.iter().any(u8::is_ascii_uppercase);
            }
            table.push(kind, |out| match piece {
                Some(rest) => {
                    out.push(b' ');
                    out.extend_from_slice(rest);
                }
                None => out.extend_from_slice(text),
            })?;
        }
        let ids = IdMap::new(&table, |_, kind| kind == TokenKind::Normal);
        let named = (0..table.len() as u32).find(|&id| table.bytes(id) == b"[UNK]");
        let unknown = unknown.or(named).ok_or(TextError::MissingSpecial { what: "unknown" })?;
        Ok((table, Self { ids, unknown, lowercase }))
    }

    /// The id of the token with these bytes.
    pub(super) fn id(&self, table: &TokenTable, bytes: &[u8]) -> Option<u32> {
        self.ids.id(table, bytes)
    }

    /// Appends the ids of a text.
    pub(super) fn encode(&self, table: &TokenTable, text: &str, out: &mut Vec<u32>) {
        let mut word = String::new();
        let close = |word: &mut String, out: &mut Vec<u32>| {
            if !word.is_empty() {
                self.cut(table, word, out);
                word.clear();
            }
        };
        let mut take = |ch: char| {
            if ch.is_whitespace() {
                return close(&mut word, out);
            }
            if is_alone(ch) {
                close(&mut word, out);
                word.push(ch);
                return close(&mut word, out);
            }
            word.push(ch);
        };
        let clean = text.chars().filter(|&ch| !is_removed(ch));
        if self.lowercase {
            let bare = clean
                .nfd()
                .filter(|&ch| get_general_category(ch) != GeneralCategory::NonspacingMark);
            bare.flat_map(char::to_lowercase).for_each(&mut take);
        } else {
            clean.for_each(&mut take);
        }
        // White space ends the last word.
        take(' ');
    }

    /// Cuts a word into the longest pieces there are, from front to back.
    fn cut(&self, table: &TokenTable, word: &str, out: &mut Vec<u32>) {
        let first = out.len();
        if word.chars().count() > LONGEST_WORD {
            return out.push(self.unknown);
        }
        let spaced = format!(" {word}");
        // The first piece has the space; the others have not.
        let mut start = 0;
        while start < spaced.len() {
            let ends = (start + 1..=spaced.len().min(start + table.longest())).rev();
            let mut ends = ends.filter(|&end| spaced.is_char_boundary(end));
            let found = ends.find_map(|end| {
                let id = self.ids.id(table, &spaced.as_bytes()[start..end])?;
                Some((id, end))
            });
            match found {
                // A space alone is no piece of a word.
                Some((id, end)) if end > 1 => {
                    out.push(id);
                    start = end;
                }
                _ => {
                    out.truncate(first);
                    return out.push(self.unknown);
                }
            }
        }
    }
}

/// Whether a character is left out: control characters that are no white space, and what stands for nothing.
fn is_removed(ch: char) -> bool {
    use GeneralCategory as C;
    let control = || {
        matches!(get_general_category(ch), C::Control | C::Format | C::Unassigned | C::PrivateUse)
            && !matches!(ch, '\t' | '\n' | '\r')
    };
    ch == '\0' || ch == '\u{fffd}' || control()
}

/// Whether a character is a word of its own: punctuation, ASCII signs, and Chinese characters.
fn is_alone(ch: char) -> bool {
    use GeneralCategory as C;
    if ch.is_ascii() {
        return ch.is_ascii_punctuation();
    }
    let chinese = matches!(u32::from(ch),
        0x4E00..=0x9FFF | 0x3400..=0x4DBF | 0x20000..=0x2A6DF | 0x2A700..=0x2B73F
        | 0x2B740..=0x2B81F | 0x2B920..=0x2CEAF | 0xF900..=0xFAFF | 0x2F800..=0x2FA1F);
    chinese
        || matches!(
            get_general_category(ch),
            C::ConnectorPunctuation
                | C::DashPunctuation
                | C::OpenPunctuation
                | C::ClosePunctuation
                | C::InitialPunctuation
                | C::FinalPunctuation
                | C::OtherPunctuation
        )
}
