//! A text and the model's memory of it as bytes.
//!
//! | part | bytes |
//! |---|---|
//! | `CLEARWAY TEXT 1\n` | 16 |
//! | checksum of all that follows | 8 |
//! | which model and which type of cache | 8 |
//! | number of messages; length and text of role and content of each | 4; 4 + n, 4 + n |
//! | number of tokens; tokens | 4; 4 each |
//! | rows of the cache, tensor after tensor | the rest |
//!
//! Numbers are little-endian. The bytes are not trusted: damaged ones are an error, and they are checked before anything of
//! the model's own memory is changed.

use super::Model;
use crate::engine::{EngineError, Result};
use crate::text::ChatMessage;

const MAGIC: &[u8; 16] = b"CLEARWAY TEXT 1\n";
const EMBEDDING: &str = "token_embd.weight";
/// Bytes of the embedding that tell a model from others of its shape.
const SAMPLE: usize = 1 << 16;

/// The messages, and what the model remembers.
pub(super) fn write(model: &Model, messages: &[ChatMessage]) -> Result<Vec<u8>> {
    let mut body = Vec::new();
    body.extend(identity(model)?.to_le_bytes());
    put_length(&mut body, messages.len())?;
    for part in messages.iter().flat_map(|message| [&message.role, &message.content]) {
        put_length(&mut body, part.len())?;
        body.extend(part.as_bytes());
    }
    put_length(&mut body, model.read.len())?;
    body.extend(model.read.iter().flat_map(|token| token.to_le_bytes()));
    body.extend(model.engine.read_cache()?);
    let mut bytes = Vec::with_capacity(body.len() + 24);
    bytes.extend(MAGIC);
    bytes.extend(checksum(&body).to_le_bytes());
    bytes.extend(body);
    Ok(bytes)
}

/// The messages; the model remembers what it remembered then.
pub(super) fn read(model: &mut Model, bytes: &[u8]) -> Result<Vec<ChatMessage>> {
    let mut rest = Rest(bytes);
    if rest.take(MAGIC.len())? != MAGIC {
        return Err(saved("it is no saved text of this version"));
    }
    if rest.number()? != checksum(rest.0) {
        return Err(saved("it is damaged"));
    }
    if rest.number()? != identity(model)? {
        return Err(saved("it belongs to another model, other adapters or another type of cache"));
    }
    let mut messages = Vec::new();
    for _ in 0..rest.length()? {
        let role = rest.text()?;
        messages.push(ChatMessage::new(role, rest.text()?));
    }
    let count = rest.length()?;
    let tokens = rest.take(count.checked_mul(4).ok_or_else(|| saved("it is damaged"))?)?;
    let tokens: Vec<u32> = tokens.as_chunks().0.iter().map(|&b| u32::from_le_bytes(b)).collect();
    let vocab = model.engine.shape().vocab;
    if let Some(&token) = tokens.iter().find(|&&token| token as usize >= vocab) {
        return Err(EngineError::TokenOutOfRange { token, vocab });
    }
    model.engine.write_cache(count, rest.0)?;
    model.read = tokens;
    Ok(messages)
}

/// A number that differs between models and types of cache.
fn identity(model: &Model) -> Result<u64> {
    let shape = model.engine.shape();
    let sizes = [shape.layers, shape.embd, shape.vocab, shape.kv_heads, shape.cache_head()];
    let mut bytes: Vec<u8> = sizes.iter().flat_map(|&size| (size as u64).to_le_bytes()).collect();
    bytes.extend(model.engine.cache_row_bytes()?.to_le_bytes());
    bytes.extend(model.file.tensor_bytes().to_le_bytes());
    let embedding = model.file.tensor(EMBEDDING)?;
    let sample = embedding.bytes();
    bytes.extend(&sample[..sample.len().min(SAMPLE)]);
    bytes.extend(model.engine.adapter_identity());
    Ok(checksum(&bytes))
}

/// A hash that finds damage, not malice (FNV-1a over words of 8 bytes).
fn checksum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let all = words.iter().chain(std::iter::once(&last));
    let start = 0xcbf2_9ce4_8422_2325 ^ bytes.len() as u64;
    all.fold(start, |hash, &word| {
        let hash = (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x0000_0100_0000_01b3);
        hash ^ (hash >> 29)
    })
}

fn put_length(bytes: &mut Vec<u8>, length: usize) -> Result<()> {
    let length = u32::try_from(length).map_err(|_| saved("it is too long"))?;
    bytes.extend(length.to_le_bytes());
    Ok(())
}

fn saved(what: &'static str) -> EngineError {
    EngineError::Saved { what }
}

/// Bytes that were not read yet.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8]> {
        let (taken, rest) =
            self.0.split_at_checked(length).ok_or_else(|| saved("it ends early"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self) -> Result<u64> {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(self.take(8)?);
        Ok(u64::from_le_bytes(bytes))
    }

    fn length(&mut self) -> Result<usize> {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(self.take(4)?);
        Ok(u32::from_le_bytes(bytes) as usize)
    }

    fn text(&mut self) -> Result<&'a str> {
        let length = self.length()?;
        str::from_utf8(self.take(length)?).map_err(|_| saved("it is damaged"))
    }
}
