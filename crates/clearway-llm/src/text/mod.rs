//! Text: tokenizers and chat templates, from a model file's metadata alone.
//!
//! [`Tokenizer`] turns text into ids and back for the two families of vocabulary that GGUF files hold, byte-level BPE and
//! SentencePiece. [`StreamDecoder`] turns ids into text as they come. [`ChatTemplate`] turns a conversation into the prompt
//! that a chat model was trained on.
//!
//! Ids must be exactly those of the tokenizer a model was trained with: a model fed with other ids answers worse, and
//! nothing says why. Where other readers of the same files differ from that tokenizer, this module follows the tokenizer.
//! The metadata itself is not trusted: a hostile file gets an error or a defined result, never a panic or unbounded memory.

mod bpe;
mod chat;
mod deepseek;
mod error;
mod merge;
mod pretokenize;
mod special;
mod spm;
mod stream;
mod table;
mod tokenizer;
mod vocab;
mod wpm;

pub(crate) use bpe::byte_char;
pub use chat::{ChatFormat, ChatMessage, ChatOptions, ChatTemplate, Data, Date};
pub use error::TextError;
pub use pretokenize::{Pieces, PreTokenizer};
pub(crate) use stream::DecoderState;
pub use stream::StreamDecoder;
pub use tokenizer::{DecodeOptions, EncodeOptions, Tokenizer};
pub use vocab::{TokenKind, Vocab};
