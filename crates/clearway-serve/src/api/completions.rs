//! `/v1/completions`: a text goes on.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use axum::body::Body;
use axum::http::Response;
use bytes::Bytes;
use clearway_llm::engine::LogProbs;
use serde_json::{Value, json};

use super::{Call, blocking, check_model, event, json_response, new_id, stream, usage};
use crate::error::{ApiError, Dialect, Result};
use crate::fields::Fields;
use crate::generate::{self, Finish, Step, Writing, send};
use crate::model::Served;
use crate::prompt;
use crate::sampling;
use crate::split::{Delta, SplitOptions};

/// Tokens that are written where the request does not say, as OpenAI has it.
const TOKENS: usize = 16;
/// Most texts of one request.
const MAX_TEXTS: usize = 128;

pub(super) struct Prepared {
    id: String,
    model: String,
    texts: Vec<Writing>,
    /// Texts that stand in front of the answers.
    echoes: Vec<String>,
    log_probs: Option<usize>,
    stream: bool,
    include_usage: bool,
    token_ids: bool,
}

/// Answers a request.
pub async fn create(call: Call) -> Result<Response<Body>> {
    let Call { app, served, tally, body } = call;
    let prepared = {
        let (app, served, tally) = (app.clone(), served.clone(), tally.clone());
        blocking(move || prepare(&app, &served, &tally, &body)).await?
    };
    let Prepared { id, model, texts, echoes, log_probs, stream: streams, include_usage, token_ids } =
        prepared;
    let created = crate::clock::unix();
    let head = move |choices: Vec<Value>| {
        json!({
            "id": id, "object": "text_completion", "created": created, "model": model, "choices": choices,
            "system_fingerprint": "b-clearway",
        })
    };
    if streams {
        return Ok(stream(tally.clone(), Dialect::OpenAi, move |out| async move {
            let head = Arc::new(head);
            let pieces = texts.into_iter().zip(echoes).enumerate().map(|(index, (writing, echo))| {
                let (head, served) = (head.clone(), served.clone());
                let (mut echo, mut offset) = (Some(echo), 0);
                let frame = move |step: Step| {
                    let text = echo.take().unwrap_or_default() + &text_of(&step.deltas);
                    let log_probs = log_probs.map(|_| log_probs_of(&step.log_probs, &served, &mut offset));
                    let mut choice =
                        json!({ "index": index, "text": text, "logprobs": log_probs, "finish_reason": null });
                    if token_ids {
                        choice["token_ids"] = json!(step.tokens);
                    }
                    Some(event(&head(vec![choice])))
                };
                (writing, frame)
            });
            let finished =
                generate::all(&app, &served, &tally, Some(&out), pieces.collect()).await?;
            for (index, one) in finished.iter().enumerate() {
                let reason = reason(&one.finish);
                let choice = json!({ "index": index, "text": "", "logprobs": null, "finish_reason": reason });
                send(&out, event(&head(vec![choice]))).await?;
            }
            if include_usage {
                let mut last = head(Vec::new());
                last["usage"] = usage(&tally);
                send(&out, event(&last)).await?;
            }
            send(&out, Bytes::from_static(b"data: [DONE]\n\n")).await
        }));
    }
    let gathered: Vec<Arc<std::sync::Mutex<Step>>> = texts.iter().map(|_| Arc::default()).collect();
    let pieces = texts.into_iter().zip(&gathered).map(|(writing, gathered)| {
        let gathered = gathered.clone();
        let frame = move |step: Step| {
            if let Ok(mut all) = gathered.lock() {
                all.deltas.extend(step.deltas);
                all.tokens.extend(step.tokens);
                all.log_probs.extend(step.log_probs);
            }
            None
        };
        (writing, frame)
    });
    let finished = generate::all(&app, &served, &tally, None, pieces.collect()).await?;
    let mut choices = Vec::new();
    for (index, ((one, gathered), echo)) in finished.iter().zip(gathered).zip(echoes).enumerate() {
        let gathered = gathered.lock().map(|mut all| std::mem::take(&mut *all)).unwrap_or_default();
        let log_probs = log_probs.map(|_| log_probs_of(&gathered.log_probs, &served, &mut 0));
        let text = echo + &text_of(&gathered.deltas);
        let mut choice = json!({ "index": index, "text": text, "logprobs": log_probs, "finish_reason": reason(&one.finish) });
        if token_ids {
            choice["token_ids"] = json!(gathered.tokens);
        }
        choices.push(choice);
    }
    let mut answer = head(choices);
    answer["usage"] = usage(&tally);
    Ok(json_response(&answer))
}

pub(super) fn prepare(
    app: &crate::app::App,
    served: &Served,
    tally: &generate::Tally,
    body: &[u8],
) -> Result<Prepared> {
    let mut fields = Fields::parse(body)?;
    let model = fields.text("model")?;
    let adapter = check_model(model.as_deref(), served)?;
    let prompts = prompt::prompts(&mut fields, served)?;
    let mut choosing = sampling::read(&mut fields, served.tokenizer.len())?;
    choosing.sampling.adapter = adapter;
    choosing.grammar = sampling::grammar(&mut fields)?;
    let budget = sampling::budget(&mut fields, &["max_tokens", "max_completion_tokens"])?;
    choosing.sampling.budget = budget.unwrap_or(TOKENS);
    let n = fields.int("n", 1..=MAX_TEXTS as i64)?.unwrap_or(1) as usize;
    let log_probs = fields.int("logprobs", 0..=20)?.map(|count| count as usize);
    choosing.sampling.log_probs = log_probs.map_or(0, |count| count.max(1));
    let stream = fields.flag("stream")?.unwrap_or(false);
    let include_usage = stream_options(&mut fields, stream)?;
    let echo = fields.flag("echo")?.unwrap_or(false);
    if echo && log_probs.is_some() {
        return Err(fields.error("echo", "cannot stand beside `logprobs`"));
    }
    let token_ids = fields.flag("return_token_ids")?.unwrap_or(false);
    fields.only("best_of", &[json!(n), json!(1)])?;
    fields.only("suffix", &[json!("")])?;
    fields.ignore_texts(&["user"])?;
    fields.finish()?;
    if prompts.len() * n > MAX_TEXTS {
        return Err(ApiError::field("n", format!("asks for more than {MAX_TEXTS} texts in all")));
    }
    let (mut texts, mut echoes) = (Vec::new(), Vec::new());
    for prompt in prompts {
        let echoed = match echo {
            true => decoded(&prompt, served),
            false => String::new(),
        };
        tally.prompt.fetch_add(prompt.len(), Relaxed);
        for copy in 0..n {
            let mut choosing = choosing.clone();
            choosing.sampling.seed = choosing.sampling.seed.wrapping_add(copy as u64);
            texts.push(Writing::start(
                app,
                served,
                prompt.clone(),
                choosing,
                SplitOptions::default(),
            )?);
            echoes.push(echoed.clone());
        }
    }
    let model = model.unwrap_or_else(|| served.name().to_owned());
    let id = new_id("cmpl-");
    Ok(Prepared { id, model, texts, echoes, log_probs, stream, include_usage, token_ids })
}

/// Reads `stream_options`; whether the last piece has the counts.
///
/// # Errors
/// Options without a stream, and others than `include_usage`.
pub fn stream_options(fields: &mut Fields, streams: bool) -> Result<bool> {
    let Some(mut options) = fields.object("stream_options")? else { return Ok(false) };
    if !streams {
        return Err(fields.error("stream_options", "needs `stream`"));
    }
    let include_usage = options.flag("include_usage")?.unwrap_or(false);
    options.only("continuous_usage_stats", &[json!(false)])?;
    options.only("include_obfuscation", &[json!(false)])?;
    options.finish()?;
    Ok(include_usage)
}

/// OpenAI's word for the end of a text.
pub fn reason(finish: &Finish) -> &'static str {
    match finish {
        Finish::Stop | Finish::StopString(_) => "stop",
        Finish::Length => "length",
    }
}

fn text_of(deltas: &[Delta]) -> String {
    let text = |delta: &Delta| match delta {
        Delta::Text(text) => text.clone(),
        _ => String::new(),
    };
    deltas.iter().map(text).collect()
}

/// Text of tokens, special ones by their names.
pub fn decoded(tokens: &[u32], served: &Served) -> String {
    let bytes = served.tokenizer.decode(tokens, Default::default()).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn log_probs_of(all: &[LogProbs], served: &Served, offset: &mut usize) -> Value {
    let name = |token: u32| decoded(&[token], served);
    let (mut tokens, mut values, mut tops, mut offsets) = (vec![], vec![], vec![], vec![]);
    for one in all {
        let text = name(one.token);
        offsets.push(json!(*offset));
        *offset += text.chars().count();
        tokens.push(json!(text));
        values.push(json!(finite(one.log_prob)));
        let top = one.top.iter().map(|&(token, value)| (name(token), json!(finite(value))));
        tops.push(Value::Object(top.collect()));
    }
    json!({ "tokens": tokens, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets })
}

/// JSON has no infinity; OpenAI writes this for what cannot come.
pub fn finite(log_prob: f32) -> f32 {
    if log_prob.is_finite() { log_prob } else { -9999.0 }
}
