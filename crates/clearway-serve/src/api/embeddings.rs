//! `/v1/embeddings`: texts to vectors.

use std::sync::atomic::Ordering::Relaxed;

use axum::body::Body;
use axum::http::Response;
use serde_json::{Value, json};

use super::{Call, blocking, check_model, json_response};
use crate::backend::{Failure, Vectors};
use crate::error::Result;
use crate::fields::Fields;
use crate::generate::Tally;
use crate::model::Served;
use crate::prompt;

/// Most texts of one request, as OpenAI has it.
const MAX_TEXTS: usize = 2048;

pub(super) struct Prepared {
    model: String,
    vectors: Vectors,
    base64: bool,
}

/// Answers a request.
pub async fn create(call: Call) -> Result<Response<Body>> {
    let Call { app, served, tally, body } = call;
    let timeout = app.config.timeout;
    let prepared = {
        let tally = tally.clone();
        blocking(move || prepare(&served, &tally, &body)).await?
    };
    let Prepared { model, vectors, base64 } = prepared;
    let vectors = match tokio::time::timeout(timeout, vectors).await {
        Ok(vectors) => vectors?,
        Err(_) => return Err(Failure::TimedOut.into()),
    };
    blocking(move || {
        let data = vectors.iter().enumerate().map(|(index, vector)| {
            let vector = if base64 { json!(encode(vector)) } else { json!(vector) };
            json!({ "object": "embedding", "index": index, "embedding": vector })
        });
        let tokens = tally.prompt.load(Relaxed);
        Ok(json_response(&json!({
            "object": "list",
            "data": data.collect::<Vec<Value>>(),
            "model": model,
            "usage": { "prompt_tokens": tokens, "total_tokens": tokens },
        })))
    })
    .await
}

pub(super) fn prepare(served: &Served, tally: &Tally, body: &[u8]) -> Result<Prepared> {
    let mut fields = Fields::parse(body)?;
    let model = fields.text("model")?;
    if check_model(model.as_deref(), served)?.is_some() {
        return Err(fields.error("model", "is an adapter; vectors are those of the model itself"));
    }
    let input = fields.take("input").ok_or_else(|| fields.error("input", "is missing"))?;
    let texts = prompt::inputs(&fields.name("input"), input, served)?;
    if texts.len() > MAX_TEXTS {
        let message = format!("has {} texts, but at most {MAX_TEXTS} are taken", texts.len());
        return Err(fields.error("input", message));
    }
    if texts.iter().any(Vec::is_empty) {
        return Err(fields.error("input", "has a text without tokens"));
    }
    let base64 = match fields.text("encoding_format")?.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(_) => return Err(fields.error("encoding_format", "must be `float` or `base64`")),
    };
    let size = served.facts.embedding;
    if let Some(wanted) = fields.int("dimensions", 1..=i64::from(u32::MAX))?
        && wanted != size as i64
    {
        let message = format!("is {wanted}, but vectors of this model have {size} numbers");
        return Err(fields.error("dimensions", message));
    }
    fields.ignore_texts(&["user"])?;
    fields.finish()?;
    tally.prompt.fetch_add(texts.iter().map(Vec::len).sum(), Relaxed);
    let vectors = served.backend.embed(texts)?;
    Ok(Prepared { model: model.unwrap_or_else(|| served.name().to_owned()), vectors, base64 })
}

/// Numbers as little-endian f32 in base64, as OpenAI has them.
fn encode(vector: &[f32]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let at = |index: usize| three.get(index).copied().map_or(0, u32::from);
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for letter in 0..4 {
            text.push(match letter > three.len() {
                true => '=',
                false => LETTERS[(bits >> (18 - 6 * letter) & 63) as usize].into(),
            });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_padded() {
        // 1.0 is 00 00 80 3f.
        assert_eq!(encode(&[1.0]), "AACAPw==");
        assert_eq!(encode(&[1.0, -2.0]), "AACAPwAAAMA=");
        assert_eq!(encode(&[1.0, -2.0, 0.5]), "AACAPwAAAMAAAAA/");
        assert_eq!(encode(&[]), "");
    }
}
