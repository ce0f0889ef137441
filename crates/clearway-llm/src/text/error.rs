//! What can go wrong between a model file's text metadata, a prompt and token ids.

/// An error of the tokenizer or of a chat template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// `tokenizer.ggml.model` names an algorithm this crate does not have.
    #[error("tokenizer model {name:?} is not supported (supported: gpt2, llama, bert)")]
    UnknownModel {
        /// The name in the file.
        name: String,
    },
    /// `tokenizer.ggml.pre` names a pre-tokenizer this crate does not have.
    #[error("pre-tokenizer {name:?} is not supported (supported: {known})")]
    UnknownPreTokenizer {
        /// The name in the file.
        name: String,
        /// Every name that would have been accepted, separated by commas.
        known: String,
    },
    /// The file has no tokens at all.
    #[error("the vocabulary is empty")]
    EmptyVocab,
    /// The vocabulary does not fit 32-bit offsets.
    #[error("the vocabulary's {what} exceed 32-bit offsets")]
    VocabTooLarge {
        /// Which part is too large.
        what: &'static str,
    },
    /// A per-token array has another length than the token list.
    #[error("the vocabulary has {tokens} tokens but {found} {what}")]
    LengthMismatch {
        /// Which array.
        what: &'static str,
        /// How many tokens there are.
        tokens: usize,
        /// How many entries the array has.
        found: usize,
    },
    /// A special token id lies outside the vocabulary.
    #[error("the file's {what} token is {id}, but the vocabulary ends at {tokens}")]
    SpecialOutOfRange {
        /// Which special token.
        what: &'static str,
        /// Its id in the file.
        id: u32,
        /// How many tokens there are.
        tokens: usize,
    },
    /// The file asks for a token at the start or end of every text but names none.
    #[error("the file asks for a {what} token around every text but does not name one")]
    MissingSpecial {
        /// Which special token.
        what: &'static str,
    },
    /// A byte-level vocabulary without one merge that its tokens can form.
    #[error("none of the file's {found} merges joins two tokens of its vocabulary")]
    NoMerges {
        /// How many merges the file lists.
        found: usize,
    },
    /// A SentencePiece vocabulary that has no ids for characters outside it.
    #[error(
        "the vocabulary has neither the 256 byte tokens nor an unknown token, so some text has no ids"
    )]
    NoFallback,
    /// A text too long for 32-bit positions.
    #[error("a text of {bytes} bytes is too long to tokenize at once")]
    InputTooLong {
        /// Length of the text.
        bytes: usize,
    },
    /// A token id outside the vocabulary was to be decoded.
    #[error("token id {id} is outside the vocabulary of {tokens} tokens")]
    TokenOutOfRange {
        /// The id.
        id: u32,
        /// How many tokens there are.
        tokens: usize,
    },
    /// The file has no chat template and its tokens match none of the known formats.
    #[error(
        "the file has no chat template and its tokens match no known chat format \
         (known: chatml, llama2, llama3, gemma, mistral); use raw prompts"
    )]
    NoChatTemplate,
    /// The chat template is longer than any real one.
    #[error("the chat template has {bytes} bytes; the limit is {limit}")]
    TemplateTooLong {
        /// Length of the template.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The chat template is not valid Jinja, or uses a construct that is refused.
    #[error("chat template, line {line}: {message}")]
    TemplateSyntax {
        /// Line in the template, from 1; 0 where unknown.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// The chat template failed while it ran.
    #[error("chat template failed at line {line}: {message}")]
    TemplateFailed {
        /// Line in the template, from 1; 0 where unknown.
        line: usize,
        /// What went wrong.
        message: String,
    },
    /// The chat template refused the conversation with `raise_exception`.
    #[error("the chat template refuses this conversation (line {line}): {message}")]
    TemplateRaised {
        /// Line in the template, from 1; 0 where unknown.
        line: usize,
        /// The template's own words.
        message: String,
    },
    /// The chat template used more steps, memory or output than any real one needs.
    #[error("the chat template exceeded its limit of {what} at line {line}")]
    TemplateLimit {
        /// Which limit.
        what: &'static str,
        /// Line in the template, from 1; 0 where unknown.
        line: usize,
    },
}
