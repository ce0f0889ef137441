//! The tokenizer of a model: text to ids and back.

use std::borrow::Cow;

use super::bpe::{Bpe, byte_token};
use super::error::TextError;
use super::merge::Merger;
use super::special::SpecialTokens;
use super::spm::{ESCAPED_SPACE, Spm};
use super::table::TokenTable;
use super::vocab::{TokenKind, Vocab};
use super::wpm::Wpm;

/// Tokens that end an answer whatever the file says. Files often name only one of the two that a chat model uses.
const END_TEXTS: [&str; 13] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<eos>",
    "</s>",
    "<EOT>",
    "<|return|>",
    "<|call|>",
];

/// Where a vocabulary has these, its messages have parts that each end in [`PART_END`], and these end an answer.
const ANSWER_ENDS: [&str; 2] = ["<|return|>", "<|call|>"];
const PART_END: &str = "<|end|>";

/// Text to token ids and back, as one model file defines it.
///
/// ```
/// use clearway_llm::text::{EncodeOptions, Tokenizer, Vocab};
///
/// let tokens: [&[u8]; 5] = [b"a", b"b", b"ab", "Ġ".as_bytes(), b"<end>"];
/// let tokenizer = Tokenizer::new(&Vocab {
///     model: "gpt2",
///     pre: Some("gpt-2"),
///     tokens: tokens.to_vec(),
///     token_types: Some(&[1, 1, 1, 1, 3]),
///     merges: vec![b"a b"],
///     ..Vocab::default()
/// })?;
/// let ids = tokenizer.encode("ab b<end>", EncodeOptions::PROMPT)?;
/// assert_eq!(ids, [2, 3, 1, 4]);
/// # Ok::<(), clearway_llm::text::TextError>(())
/// ```
#[derive(Debug)]
pub struct Tokenizer {
    table: TokenTable,
    model: Model,
    /// Matched in any text.
    user_defined: SpecialTokens,
    /// Matched where special tokens are parsed; includes the above.
    special: SpecialTokens,
    bos: Option<u32>,
    eos: Option<u32>,
    add_bos: bool,
    add_eos: bool,
    ends: Vec<u32>,
}

#[derive(Debug)]
enum Model {
    Bpe(Bpe),
    Spm(Spm),
    Wpm(Wpm),
}

/// How text is read; see [`Tokenizer::encode`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Put the tokens around the text that the file asks for (BOS, EOS).
    pub add_special: bool,
    /// Read the text of a control token as that token rather than as plain text.
    pub parse_special: bool,
}

impl EncodeOptions {
    /// Plain text with nothing added.
    pub const PLAIN: Self = Self { add_special: false, parse_special: false };
    /// A prompt: special tokens are parsed, and BOS is added where the file asks for it.
    pub const PROMPT: Self = Self { add_special: true, parse_special: true };
}

/// How ids become text; see [`Tokenizer::decode`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DecodeOptions {
    /// Leave out control and unknown tokens.
    pub skip_special: bool,
    /// The ids start a text, so the space that encoding puts before a text is taken off again.
    pub strip_prefix: bool,
}

impl Tokenizer {
    /// Builds the tokenizer of a file. Nothing of `vocab` is trusted; see [`TextError`] for what is refused.
    ///
    /// Duplicate tokens encode to the first of them. Empty tokens and tokens that are not UTF-8 only decode. Merges that
    /// lead nowhere are skipped and counted in [`Self::skipped_merges`].
    pub fn new(vocab: &Vocab<'_>) -> Result<Self, TextError> {
        let count = vocab.tokens.len();
        let lengths = [
            ("scores", vocab.scores.map(<[f32]>::len)),
            ("token types", vocab.token_types.map(<[i32]>::len)),
        ];
        for (what, found) in lengths {
            if let Some(found) = found.filter(|&found| found != count) {
                return Err(TextError::LengthMismatch { what, tokens: count, found });
            }
        }
        for (what, id) in [
            ("BOS", vocab.bos),
            ("EOS", vocab.eos),
            ("unknown", vocab.unk),
            ("end-of-turn", vocab.eot),
            ("CLS", vocab.cls),
            ("SEP", vocab.sep),
        ] {
            if let Some(id) = id.filter(|&id| id as usize >= count) {
                return Err(TextError::SpecialOutOfRange { what, id, tokens: count });
            }
        }
        let (is_spm, is_wpm) = match vocab.model {
            "llama" => (true, false),
            "gpt2" => (false, false),
            "bert" => (false, true),
            name => {
                return Err(TextError::UnknownModel { name: name.to_owned() });
            }
        };
        let kinds = |i: usize| match vocab.token_types {
            Some(types) => TokenKind::from_gguf(types[i]),
            None if is_spm && byte_token(vocab.tokens[i]).is_some() => TokenKind::Byte,
            None => TokenKind::Normal,
        };
        // SentencePiece models put these three first; old files do not name them.
        let usual = |id: u32, kind: TokenKind| {
            (is_spm && (id as usize) < count && kinds(id as usize) == kind).then_some(id)
        };
        let unknown = vocab.unk.or_else(|| usual(0, TokenKind::Unknown));
        let bos = vocab.bos.or_else(|| usual(1, TokenKind::Control));
        let eos = vocab.eos.or_else(|| usual(2, TokenKind::Control));
        // Texts of BERT stand between two tokens with names of their own.
        let (bos, eos) = match is_wpm {
            true => (vocab.cls.or(bos), vocab.sep.or(eos)),
            false => (bos, eos),
        };
        let (table, model, bos_by_default) = if is_wpm {
            let (table, wpm) = Wpm::new(vocab, kinds, unknown)?;
            (table, Model::Wpm(wpm), true)
        } else if is_spm {
            let (table, spm) = Spm::new(vocab, kinds, unknown)?;
            (table, Model::Spm(spm), true)
        } else {
            let (table, bpe) = Bpe::new(vocab, kinds)?;
            let bos_by_default = bpe.adds_bos_by_default();
            (table, Model::Bpe(bpe), bos_by_default)
        };
        for (what, asked, id) in [("BOS", vocab.add_bos, bos), ("EOS", vocab.add_eos, eos)] {
            if asked == Some(true) && id.is_none() {
                return Err(TextError::MissingSpecial { what });
            }
        }
        // SentencePiece text is searched after its spaces are unescaped; see `Spm::normalize`.
        let spelled = |text: &str| match is_spm {
            true => text.replace(ESCAPED_SPACE, " "),
            false => text.to_owned(),
        };
        let user_defined = |kind| kind == TokenKind::UserDefined;
        let special =
            SpecialTokens::new(&table, |kind| kind.is_special() || user_defined(kind), spelled);
        let mut ends: Vec<u32> = END_TEXTS.iter().filter_map(|text| special.id(text)).collect();
        ends.extend(eos.into_iter().chain(vocab.eot));
        if ANSWER_ENDS.iter().all(|text| special.id(text).is_some()) {
            ends.retain(|&id| Some(id) != special.id(PART_END));
        }
        ends.sort_unstable();
        ends.dedup();
        Ok(Self {
            user_defined: SpecialTokens::new(&table, user_defined, spelled),
            special,
            table,
            model,
            add_bos: vocab.add_bos.unwrap_or(bos_by_default) && bos.is_some(),
            add_eos: vocab.add_eos.unwrap_or(is_wpm) && eos.is_some(),
            bos,
            eos,
            ends,
        })
    }

    /// The ids of `text`.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>, TextError> {
        // One position must stay free for the space before a SentencePiece text, one as the mark for "none".
        if text.len() >= u32::MAX as usize - 1 {
            return Err(TextError::InputTooLong { bytes: text.len() });
        }
        let mut out = Vec::with_capacity(text.len() / 4 + 2);
        let around = |add: bool, id: Option<u32>| id.filter(|_| options.add_special && add);
        out.extend(around(self.add_bos, self.bos));
        let special = match options.parse_special {
            true => &self.special,
            false => &self.user_defined,
        };
        let text = match &self.model {
            Model::Bpe(_) | Model::Wpm(_) => Cow::Borrowed(text),
            Model::Spm(spm) => spm.normalize(text),
        };
        let mut merger = Merger::default();
        let mut start = 0;
        while let Some((at, end, id)) = special.find(&text, start) {
            self.encode_fragment(&text[start..at], &mut merger, &mut out);
            out.push(id);
            start = end;
        }
        self.encode_fragment(&text[start..], &mut merger, &mut out);
        out.extend(around(self.add_eos, self.eos));
        Ok(out)
    }

    /// The ids of a rendered chat: special tokens are parsed, and BOS is added where the file asks for it and the template
    /// has not written it already.
    pub fn encode_chat(&self, text: &str) -> Result<Vec<u32>, TextError> {
        let options = EncodeOptions { add_special: false, parse_special: true };
        let mut ids = self.encode(text, options)?;
        if let Some(bos) = self.bos.filter(|_| self.add_bos)
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        Ok(ids)
    }

    /// The bytes that `ids` stand for. They are UTF-8 only as far as the ids make them so.
    pub fn decode(&self, ids: &[u32], options: DecodeOptions) -> Result<Vec<u8>, TextError> {
        let mut out = Vec::new();
        let mut strip = options.strip_prefix;
        for &id in ids {
            out.extend_from_slice(self.piece(id, options.skip_special, &mut strip)?);
        }
        Ok(out)
    }

    /// The bytes of one token: text for ordinary tokens, the name of a special one.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.table.kind(id).map(|_| self.table.bytes(id))
    }

    /// The role of a token.
    pub fn token_kind(&self, id: u32) -> Option<TokenKind> {
        self.table.kind(id)
    }

    /// The token with exactly this text, special tokens first.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        match &self.model {
            Model::Bpe(bpe) => {
                let ordinary = || bpe.id(&self.table, text.as_bytes());
                self.special.id(text).or_else(ordinary)
            }
            Model::Wpm(wpm) => {
                let text = text.replace(ESCAPED_SPACE, " ");
                let ordinary = || wpm.id(&self.table, text.as_bytes());
                self.special.id(&text).or_else(ordinary)
            }
            Model::Spm(spm) => {
                let text = text.replace(ESCAPED_SPACE, " ");
                let ordinary = || spm.id(&self.table, text.as_bytes());
                self.special.id(&text).or_else(ordinary)
            }
        }
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Never true: a vocabulary without tokens is refused.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Whether the file asks for BOS before every text.
    pub fn adds_bos(&self) -> bool {
        self.add_bos
    }

    /// The tokens that end an answer, in ascending order.
    pub fn end_tokens(&self) -> &[u32] {
        &self.ends
    }

    /// Whether a token ends an answer.
    pub fn is_end(&self, id: u32) -> bool {
        self.ends.binary_search(&id).is_ok()
    }

    /// Whether this is a SentencePiece vocabulary.
    pub fn is_sentencepiece(&self) -> bool {
        matches!(self.model, Model::Spm(_))
    }

    /// How many merges of the file could not be used because they name tokens that do not exist.
    pub fn skipped_merges(&self) -> usize {
        match &self.model {
            Model::Bpe(bpe) => bpe.skipped_merges(),
            Model::Spm(_) | Model::Wpm(_) => 0,
        }
    }

    /// The bytes that `id` adds to a text. `strip` is true until the first token that has text.
    pub(super) fn piece(
        &self,
        id: u32,
        skip_special: bool,
        strip: &mut bool,
    ) -> Result<&[u8], TextError> {
        let Some(kind) = self.table.kind(id) else {
            return Err(TextError::TokenOutOfRange { id, tokens: self.table.len() });
        };
        if kind.is_special() {
            return Ok(match skip_special {
                true => &[],
                false => self.table.bytes(id),
            });
        }
        let bytes = self.table.bytes(id);
        if !std::mem::take(strip) {
            return Ok(bytes);
        }
        match &self.model {
            Model::Spm(spm) if spm.space_prefix() && kind != TokenKind::UserDefined => {
                Ok(bytes.strip_prefix(b" ").unwrap_or(bytes))
            }
            Model::Wpm(_) => Ok(bytes.strip_prefix(b" ").unwrap_or(bytes)),
            _ => Ok(bytes),
        }
    }

    /// Appends the ids of a stretch of text without special tokens.
    fn encode_fragment(&self, text: &str, merger: &mut Merger, out: &mut Vec<u32>) {
        if text.is_empty() {
            return;
        }
        match &self.model {
            Model::Bpe(bpe) => bpe.encode(&self.table, text, merger, out),
            Model::Wpm(wpm) => wpm.encode(&self.table, text, out),
            // A fragment starts the text or follows a special token, and gets the space in both cases: the models' own
            // tokenizers do the same.
            Model::Spm(spm) if spm.space_prefix() => {
                spm.encode(&self.table, &format!(" {text}"), merger, out);
            }
            Model::Spm(spm) => spm.encode(&self.table, text, merger, out),
        }
    }
}
