//! What a model file says about its vocabulary, as plain data.
//!
//! [`Vocab`] borrows from the mapped file, so that a vocabulary of 150,000 tokens and 280,000 merges costs no
//! allocation per string before the tokenizer copies the bytes it keeps.

/// The tokenizer metadata of a model file (`tokenizer.ggml.*`), field by field. `None` means that the file has no such key.
#[derive(Debug, Clone, Default)]
pub struct Vocab<'a> {
    /// `model`: `gpt2` for byte-level BPE, `llama` for SentencePiece, `bert` for WordPiece.
    pub model: &'a str,
    /// `pre`: the pre-tokenizer of a byte-level vocabulary.
    pub pre: Option<&'a str>,
    /// `tokens`: the text of each token, in the notation of `model`.
    pub tokens: Vec<&'a [u8]>,
    /// `scores`: SentencePiece scores; ignored by byte-level vocabularies.
    pub scores: Option<&'a [f32]>,
    /// `token_type`: see [`TokenKind`].
    pub token_types: Option<&'a [i32]>,
    /// `merges`: pairs joined by a space, the most urgent first; ignored by SentencePiece vocabularies.
    pub merges: Vec<&'a [u8]>,
    /// `bos_token_id`.
    pub bos: Option<u32>,
    /// `eos_token_id`.
    pub eos: Option<u32>,
    /// `unknown_token_id`.
    pub unk: Option<u32>,
    /// `eot_token_id`.
    pub eot: Option<u32>,
    /// `cls_token_id`: begins a text of a WordPiece vocabulary.
    pub cls: Option<u32>,
    /// `seperator_token_id`, as files spell it: ends a text of a WordPiece vocabulary.
    pub sep: Option<u32>,
    /// `add_bos_token`.
    pub add_bos: Option<bool>,
    /// `add_eos_token`.
    pub add_eos: Option<bool>,
    /// `add_space_prefix`; SentencePiece only.
    pub add_space_prefix: Option<bool>,
    /// `remove_extra_whitespaces`; SentencePiece only.
    pub remove_extra_whitespaces: Option<bool>,
    /// `tokenizer.chat_template`.
    pub chat_template: Option<&'a str>,
}

/// The role of a token, as `tokenizer.ggml.token_type` numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenKind {
    /// Ordinary text.
    Normal,
    /// Stands for text outside the vocabulary.
    Unknown,
    /// Structure such as the start of a turn; never produced from plain text.
    Control,
    /// Text that is always one token, before any other rule.
    UserDefined,
    /// A reserved piece that encoding must not produce.
    Unused,
    /// One byte, written `<0xNN>`, for text outside a SentencePiece vocabulary.
    Byte,
}

impl TokenKind {
    /// Reads a value of `token_type`. Files contain 0 ("undefined") for ordinary tokens, so unknown values mean ordinary text.
    pub fn from_gguf(value: i32) -> Self {
        match value {
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => Self::Normal,
        }
    }

    /// Whether the token is markup rather than text, so that output for people leaves it out.
    pub fn is_special(self) -> bool {
        matches!(self, Self::Control | Self::Unknown)
    }
}
