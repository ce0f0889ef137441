//! The vocabulary of a file to a tokenizer and a chat template.

use super::{EngineError, Result, adapter};
use crate::gguf::{FromValue, Gguf, Metadata, Numbers, Strings};
use crate::text::{ChatTemplate, TextError, Tokenizer, Vocab};

/// Most tokens, and most merges: twice what the largest vocabularies in use have. An entry of one byte in the file
/// takes some fifty in the tokenizer's tables.
const MAX_ENTRIES: usize = 1 << 19;

/// The tokenizer of a file.
///
/// # Errors
/// [`EngineError::NoVocabulary`], [`EngineError::IsAdapter`], and what is wrong with the vocabulary.
pub fn tokenizer(gguf: &Gguf) -> Result<Tokenizer> {
    adapter::check_is_model(gguf)?;
    let meta = gguf.metadata();
    let model = meta.optional::<&str>(&key("model"))?.unwrap_or("no_vocab");
    if model == "no_vocab" {
        return Err(EngineError::NoVocabulary { model: model.to_owned() });
    }
    let tokens = bounded("tokens", meta.strings(&key("tokens"))?)?;
    let merges = meta.optional::<Strings<'_>>(&key("merges"))?;
    let merges = merges.map(|merges| bounded("merges", merges)).transpose()?;
    let scores = for_each_token::<f32>(meta, ["scores", "scores"], tokens.len())?;
    let types = for_each_token::<i32>(meta, ["token_type", "token types"], tokens.len())?;
    let vocab = Vocab {
        model,
        pre: meta.optional(&key("pre"))?,
        tokens: tokens.iter().collect(),
        scores: scores.as_deref(),
        token_types: types.as_deref(),
        merges: merges.map_or_else(Vec::new, |merges| merges.iter().collect()),
        bos: id(meta, "bos_token_id")?,
        eos: id(meta, "eos_token_id")?,
        unk: id(meta, "unknown_token_id")?,
        eot: id(meta, "eot_token_id")?,
        cls: id(meta, "cls_token_id")?,
        // Files spell it so.
        sep: id(meta, "seperator_token_id")?.or(id(meta, "separator_token_id")?),
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

/// A list that is short enough to be copied.
fn bounded<'a>(name: &str, list: Strings<'a>) -> Result<Strings<'a>> {
    if list.len() <= MAX_ENTRIES {
        return Ok(list);
    }
    Err(EngineError::Parameter {
        key: key(name),
        found: format!("a list of {}", list.len()),
        expected: format!("at most {MAX_ENTRIES} are supported"),
    })
}

/// Numbers that go with the tokens, copied only if there are as many.
fn for_each_token<'a, T: FromValue<'a>>(
    meta: &'a Metadata,
    [name, what]: [&'static str; 2],
    tokens: usize,
) -> Result<Option<Vec<T>>>
where
    Numbers<'a, T>: FromValue<'a>,
{
    match meta.optional::<Numbers<'_, T>>(&key(name))? {
        Some(numbers) if numbers.len() != tokens => {
            let found = numbers.len();
            Err(TextError::LengthMismatch { what, tokens, found }.into())
        }
        numbers => Ok(numbers.map(|numbers| numbers.to_vec())),
    }
}

fn key(name: &str) -> String {
    format!("tokenizer.ggml.{name}")
}

fn id(meta: &Metadata, name: &str) -> Result<Option<u32>> {
    Ok(meta.optional(&key(name))?)
}
