//! Text to tokens and back, and conversations to prompts.

use axum::body::Body;
use axum::http::Response;
use clearway_llm::text::EncodeOptions;
use serde_json::{Value, json};

use super::completions::decoded;
use super::{Call, blocking, chat, check_model, json_response};
use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::model::Served;
use crate::prompt;

/// `/tokenize`: `content` as llama.cpp has it or `prompt` as vLLM has it.
pub async fn tokenize(call: Call) -> Result<Response<Body>> {
    blocking(move || Ok(json_response(&tokenized(&call.served, &call.body)?))).await
}

pub(super) fn tokenized(served: &Served, body: &[u8]) -> Result<Value> {
    let mut fields = Fields::parse(body)?;
    check_model(fields.text("model")?.as_deref(), served)?;
    let (content, prompt) = (fields.text("content")?, fields.text("prompt")?);
    // Each of the two has its own default.
    let adds = prompt.is_some();
    let text = match (content, prompt) {
        (Some(text), None) | (None, Some(text)) => text,
        (None, None) => return Err(fields.error("content", "is missing")),
        (Some(_), Some(_)) => {
            return Err(fields.error("prompt", "cannot stand beside `content`"));
        }
    };
    let add_special = fields.flag("add_special")?;
    let add_special = fields.flag("add_special_tokens")?.or(add_special).unwrap_or(adds);
    let parse_special = fields.flag("parse_special")?.unwrap_or(true);
    let with_pieces = fields.flag("with_pieces")?.unwrap_or(false);
    let token_texts = fields.flag("return_token_strs")?.unwrap_or(false);
    fields.finish()?;
    let options = EncodeOptions { add_special, parse_special };
    let tokens = served.tokenizer.encode(&text, options);
    let tokens = tokens.map_err(|error| ApiError::bad(error.to_string()))?;
    let texts =
        || -> Vec<String> { tokens.iter().map(|&token| decoded(&[token], served)).collect() };
    let mut answer = json!({ "count": tokens.len(), "max_model_len": served.context });
    if token_texts {
        answer["token_strs"] = json!(texts());
    }
    answer["tokens"] = match with_pieces {
        false => json!(tokens),
        true => {
            let piece = |(id, piece): (&u32, String)| json!({ "id": id, "piece": piece });
            tokens.iter().zip(texts()).map(piece).collect()
        }
    };
    Ok(answer)
}

/// `/detokenize`
pub async fn detokenize(call: Call) -> Result<Response<Body>> {
    blocking(move || Ok(json_response(&detokenized(&call.served, &call.body)?))).await
}

pub(super) fn detokenized(served: &Served, body: &[u8]) -> Result<Value> {
    let mut fields = Fields::parse(body)?;
    check_model(fields.text("model")?.as_deref(), served)?;
    let tokens = fields.list("tokens")?.ok_or_else(|| fields.error("tokens", "is missing"))?;
    fields.finish()?;
    let text = decoded(&prompt::tokens("tokens", &tokens, served)?, served);
    Ok(json!({ "content": text, "prompt": text }))
}

/// `/apply-template`
pub async fn apply_template(call: Call) -> Result<Response<Body>> {
    blocking(move || Ok(json_response(&templated(&call.served, &call.body)?))).await
}

pub(super) fn templated(served: &Served, body: &[u8]) -> Result<Value> {
    let mut fields = Fields::parse(body)?;
    check_model(fields.text("model")?.as_deref(), served)?;
    let mut conversation = chat::conversation(&mut fields)?;
    conversation.messages = prompt::messages(&mut fields)?;
    fields.finish()?;
    let prompt = conversation.prompt(served)?;
    Ok(json!({ "prompt": prompt.text, "count": prompt.tokens.len() }))
}
