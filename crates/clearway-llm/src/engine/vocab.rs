//! The vocabulary of a file to a tokenizer and a chat template.

use super::{EngineError, Result};
use crate::gguf::{Gguf, Metadata, Numbers, Strings};
use crate::text::{ChatTemplate, Tokenizer, Vocab};

/// The tokenizer of a file.
///
/// # Errors
/// [`EngineError::NoVocabulary`], and what is wrong with the vocabulary.
pub fn tokenizer(gguf: &Gguf) -> Result<Tokenizer> {
    let meta = gguf.metadata();
    let model = meta.optional::<&str>(&key("model"))?.unwrap_or("no_vocab");
    if model == "no_vocab" {
        return Err(EngineError::NoVocabulary { model: model.to_owned() });
    }
    let scores = meta.optional::<Numbers<'_, f32>>(&key("scores"))?.map(|s| s.to_vec());
    let types = meta.optional::<Numbers<'_, i32>>(&key("token_type"))?.map(|t| t.to_vec());
    let vocab = Vocab {
        model,
        pre: meta.optional(&key("pre"))?,
        tokens: meta.strings(&key("tokens"))?.iter().collect(),
        scores: scores.as_deref(),
        token_types: types.as_deref(),
        merges: meta
            .optional::<Strings<'_>>(&key("merges"))?
            .map_or_else(Vec::new, |merges| merges.iter().collect()),
        bos: id(meta, "bos_token_id")?,
        eos: id(meta, "eos_token_id")?,
        unk: id(meta, "unknown_token_id")?,
        eot: id(meta, "eot_token_id")?,
        add_bos: meta.optional(&key("add_bos_token"))?,
        add_eos: meta.optional(&key("add_eos_token"))?,
        add_space_prefix: meta.optional(&key("add_space_prefix"))?,
        remove_extra_whitespaces: meta.optional(&key("remove_extra_whitespaces"))?,
        chat_template: None,
    };
    Ok(Tokenizer::new(&vocab)?)
}

/// The chat template of a file, or the one its vocabulary suggests.
///
/// # Errors
/// A template that does not parse.
pub fn chat_template(gguf: &Gguf, tokenizer: &Tokenizer) -> Result<ChatTemplate> {
    let template = gguf.metadata().optional::<&str>("tokenizer.chat_template")?;
    Ok(ChatTemplate::for_tokenizer(template, tokenizer)?)
}

fn key(name: &str) -> String {
    format!("tokenizer.ggml.{name}")
}

fn id(meta: &Metadata, name: &str) -> Result<Option<u32>> {
    Ok(meta.optional(&key(name))?)
}
