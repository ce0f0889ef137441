//! Text from tokens as they come, never with half a character.

use super::error::TextError;
use super::tokenizer::{DecodeOptions, Tokenizer};

/// Turns ids into text one by one. A character whose bytes lie in several tokens comes out with the last of them; bytes
/// that are no UTF-8 become U+FFFD, exactly where `String::from_utf8_lossy` would put it in the whole text.
#[derive(Debug, Clone)]
pub struct StreamDecoder<'t> {
    tokenizer: &'t Tokenizer,
    state: DecoderState,
}

/// A [`StreamDecoder`] without its tokenizer.
#[derive(Debug, Clone)]
pub(crate) struct DecoderState {
    options: DecodeOptions,
    strip: bool,
    /// The start of a character that is not complete: at most three bytes between calls.
    pending: Vec<u8>,
}

impl<'t> StreamDecoder<'t> {
    /// A decoder with nothing pending.
    pub fn new(tokenizer: &'t Tokenizer, options: DecodeOptions) -> Self {
        Self { tokenizer, state: DecoderState::new(options) }
    }

    /// The text that `id` completes; often empty inside a character.
    pub fn push(&mut self, id: u32) -> Result<String, TextError> {
        self.state.push(self.tokenizer, id)
    }

    /// The end of the text: U+FFFD if a character stayed incomplete, otherwise nothing. The decoder can be used again.
    pub fn finish(&mut self) -> String {
        self.state.finish()
    }
}

impl DecoderState {
    pub(crate) fn new(options: DecodeOptions) -> Self {
        Self { options, strip: options.strip_prefix, pending: Vec::new() }
    }

    pub(crate) fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> Result<String, TextError> {
        let piece = tokenizer.piece(id, self.options.skip_special, &mut self.strip)?;
        self.pending.extend_from_slice(piece);
        let mut text = String::with_capacity(self.pending.len());
        let mut rest = self.pending.as_slice();
        while !rest.is_empty() {
            match str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = &[];
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    let Some(bad) = error.error_len() else {
                        rest = after;
                        break;
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &after[bad..];
                }
            }
        }
        self.pending.drain(..self.pending.len() - rest.len());
        Ok(text)
    }

    pub(crate) fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        self.strip = self.options.strip_prefix;
        text
    }
}
