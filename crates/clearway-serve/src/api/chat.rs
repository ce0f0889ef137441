//! `/v1/chat/completions`: a conversation goes on.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::http::Response;
use bytes::Bytes;
use clearway_llm::engine::LogProbs;
use serde_json::{Value, json};

use super::completions::{decoded, finite, reason, stream_options};
use super::{Call, blocking, check_model, event, json_response, new_id, stream, usage};
use crate::app::App;
use crate::error::{ApiError, Dialect, Result};
use crate::fields::Fields;
use crate::generate::{self, Finish, Step, Tally, Writing, send};
use crate::model::Served;
use crate::prompt::{self, Conversation};
use crate::sampling::{self, Choosing};
use crate::split::Delta;
use crate::tools;

/// Most answers of one request.
const MAX_TEXTS: i64 = 128;

pub(super) struct Prepared {
    id: String,
    model: String,
    texts: Vec<Writing>,
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
    let Prepared { id, model, texts, log_probs, stream: streams, include_usage, token_ids } =
        prepared;
    let created = crate::clock::unix();
    let head = move |object: &str, choices: Vec<Value>| {
        json!({
            "id": id, "object": object, "created": created, "model": model, "choices": choices,
            "system_fingerprint": "b-clearway",
        })
    };
    if streams {
        return Ok(stream(tally.clone(), Dialect::OpenAi, move |out| async move {
            let head = Arc::new(move |choices| head("chat.completion.chunk", choices));
            let chunk = |index: usize, delta: Value, reason: Option<&str>| json!({ "index": index, "delta": delta, "logprobs": null, "finish_reason": reason });
            let called: Vec<Arc<Mutex<usize>>> = texts.iter().map(|_| Arc::default()).collect();
            for index in 0..texts.len() {
                let delta = json!({ "role": "assistant", "content": "" });
                send(&out, event(&head(vec![chunk(index, delta, None)]))).await?;
            }
            let pieces =
                texts.into_iter().zip(&called).enumerate().map(|(index, (writing, called))| {
                    let (head, served, called) = (head.clone(), served.clone(), called.clone());
                    let frame = move |step: Step| {
                        let mut bytes = Vec::new();
                        let mut values =
                            log_probs.map(|count| log_probs_of(&step.log_probs, count, &served));
                        let mut tokens = token_ids.then_some(step.tokens);
                        for delta in step.deltas {
                            let delta = delta_of(delta, &called);
                            let mut choice = chunk(index, delta, None);
                            // They belong to all parts of the piece together.
                            choice["logprobs"] = json!(values.take());
                            if let Some(tokens) = tokens.take() {
                                choice["token_ids"] = json!(tokens);
                            }
                            bytes.extend_from_slice(&event(&head(vec![choice])));
                        }
                        Some(Bytes::from(bytes))
                    };
                    (writing, frame)
                });
            let finished =
                generate::all(&app, &served, &tally, Some(&out), pieces.collect()).await?;
            for (index, (one, called)) in finished.iter().zip(called).enumerate() {
                let calls = called.lock().map_or(0, |called| *called);
                let last = chunk(index, json!({}), Some(finish_reason(&one.finish, calls)));
                send(&out, event(&head(vec![last]))).await?;
            }
            if include_usage {
                let mut last = head(Vec::new());
                last["usage"] = usage(&tally);
                send(&out, event(&last)).await?;
            }
            send(&out, Bytes::from_static(b"data: [DONE]\n\n")).await
        }));
    }
    let gathered: Vec<Arc<Mutex<Gathered>>> = texts.iter().map(|_| Arc::default()).collect();
    let pieces = texts.into_iter().zip(&gathered).map(|(writing, gathered)| {
        let gathered = gathered.clone();
        let frame = move |step: Step| {
            if let Ok(mut gathered) = gathered.lock() {
                gathered.take(step);
            }
            None
        };
        (writing, frame)
    });
    let finished = generate::all(&app, &served, &tally, None, pieces.collect()).await?;
    let mut choices = Vec::new();
    for (index, (one, gathered)) in finished.iter().zip(gathered).enumerate() {
        let gathered = gathered.lock().map(|mut all| std::mem::take(&mut *all)).unwrap_or_default();
        let reason = finish_reason(&one.finish, gathered.calls.len());
        let values = log_probs.map(|count| log_probs_of(&gathered.log_probs, count, &served));
        let tokens = gathered.tokens.clone();
        let message = gathered.message();
        let mut choice = json!({ "index": index, "message": message, "logprobs": values, "finish_reason": reason });
        if token_ids {
            choice["token_ids"] = json!(tokens);
        }
        choices.push(choice);
    }
    let mut answer = head("chat.completion", choices);
    answer["usage"] = usage(&tally);
    Ok(json_response(&answer))
}

pub(super) fn prepare(app: &App, served: &Served, tally: &Tally, body: &[u8]) -> Result<Prepared> {
    let mut fields = Fields::parse(body)?;
    let model = fields.text("model")?;
    let adapter = check_model(model.as_deref(), served)?;
    let mut choosing = sampling::read(&mut fields, served.tokenizer.len())?;
    choosing.sampling.adapter = adapter;
    let mut conversation = conversation(&mut fields)?;
    conversation.messages = prompt::messages(&mut fields)?;
    choosing.grammar = sampling::grammar(&mut fields)?;
    let budget = sampling::budget(&mut fields, &["max_completion_tokens", "max_tokens"])?;
    choosing.sampling.budget = budget.unwrap_or(usize::MAX);
    let n = fields.int("n", 1..=MAX_TEXTS)?.unwrap_or(1) as usize;
    let wanted = fields.flag("logprobs")?.unwrap_or(false);
    let top = fields.int("top_logprobs", 0..=20)?;
    if top.is_some_and(|top| top > 0) && !wanted {
        return Err(fields.error("top_logprobs", "needs `logprobs`"));
    }
    let log_probs = wanted.then_some(top.unwrap_or(0) as usize);
    choosing.sampling.log_probs = log_probs.map_or(0, |count| count.max(1));
    let stream = fields.flag("stream")?.unwrap_or(false);
    let include_usage = stream_options(&mut fields, stream)?;
    let token_ids = fields.flag("return_token_ids")?.unwrap_or(false);
    fields.only("modalities", &[json!(["text"])])?;
    fields.only("service_tier", &[json!("auto"), json!("default")])?;
    fields.only("store", &[json!(false)])?;
    fields.ignore(&["metadata"]);
    fields.ignore_texts(&["user", "safety_identifier", "prompt_cache_key"])?;
    fields.finish()?;
    let texts = start(app, served, tally, &conversation, &choosing, n)?;
    let model = model.unwrap_or_else(|| served.name().to_owned());
    Ok(Prepared {
        id: new_id("chatcmpl-"),
        model,
        texts,
        log_probs,
        stream,
        include_usage,
        token_ids,
    })
}

/// Starts answers to a conversation.
///
/// # Errors
/// A conversation that the template refuses, and as [`Writing::start`].
pub fn start(
    app: &App,
    served: &Served,
    tally: &Tally,
    conversation: &Conversation,
    choosing: &Choosing,
    n: usize,
) -> Result<Vec<Writing>> {
    let prompt = conversation.prompt(served)?;
    let mut choosing = choosing.clone();
    if let Some(grammar) = prompt.split.tools.and_then(|format| conversation.tools.grammar(format))
    {
        if choosing.grammar.is_some() && conversation.tools.choice != tools::Choice::Auto {
            return Err(ApiError::field(
                "response_format",
                "cannot stand beside a tool that must be called",
            ));
        }
        // What the answer must look like comes before the wish to call tools.
        choosing.grammar = choosing.grammar.or(Some(grammar));
    }
    tally.prompt.fetch_add(prompt.tokens.len(), Relaxed);
    let one = |copy: usize| {
        let mut choosing = choosing.clone();
        choosing.sampling.seed = choosing.sampling.seed.wrapping_add(copy as u64);
        Writing::start(app, served, prompt.tokens.clone(), choosing, prompt.split)
    };
    (0..n).map(one).collect()
}

/// Reads what a template is told besides the messages.
///
/// # Errors
/// A value of the wrong type.
pub fn conversation(fields: &mut Fields) -> Result<Conversation> {
    let mut conversation =
        Conversation { tools: tools::from_chat(fields)?, ..Conversation::default() };
    if let Some(variables) = fields.object("chat_template_kwargs")? {
        for (name, value) in variables.into_all() {
            match (name.as_str(), &value) {
                ("enable_thinking", Value::Bool(thinking)) => {
                    conversation.thinking = Some(*thinking)
                }
                _ => conversation.variables.push((name, value)),
            }
        }
    }
    match fields.text("reasoning_effort")?.as_deref() {
        None => {}
        Some("none") => conversation.thinking = Some(false),
        Some("minimal" | "low" | "medium" | "high" | "xhigh") => conversation.thinking = Some(true),
        Some(other) => {
            return Err(fields.error("reasoning_effort", format!("`{other}` is not known")));
        }
    }
    conversation.continues = fields.flag("continue_final_message")?.unwrap_or(false);
    // What routers add says what is done anyway.
    for field in ["include_reasoning", "separate_reasoning", "stream_reasoning"] {
        fields.only(field, &[json!(true)])?;
    }
    Ok(conversation)
}

/// The parts of an answer, gathered.
#[derive(Default)]
pub struct Gathered {
    /// Words for the user.
    pub text: String,
    /// Thoughts.
    pub thoughts: String,
    /// Names and arguments of calls.
    pub calls: Vec<(String, String)>,
    /// All tokens.
    pub tokens: Vec<u32>,
    /// Their log probabilities.
    pub log_probs: Vec<LogProbs>,
}

impl Gathered {
    /// Takes a piece.
    pub fn take(&mut self, step: Step) {
        self.tokens.extend(step.tokens);
        self.log_probs.extend(step.log_probs);
        for delta in step.deltas {
            match delta {
                Delta::Text(text) => self.text.push_str(&text),
                Delta::Reasoning(text) => self.thoughts.push_str(&text),
                Delta::Call { name } => self.calls.push((name, String::new())),
                Delta::Arguments(more) => {
                    if let Some((_, arguments)) = self.calls.last_mut() {
                        arguments.push_str(&more);
                    }
                }
            }
        }
    }

    fn message(self) -> Value {
        let content = match self.text.is_empty() && !self.calls.is_empty() {
            true => Value::Null,
            false => json!(self.text),
        };
        let mut message = json!({ "role": "assistant", "content": content, "refusal": null });
        if !self.thoughts.is_empty() {
            message["reasoning_content"] = json!(self.thoughts);
        }
        if !self.calls.is_empty() {
            let call = |(name, arguments): (String, String)| {
                let function = json!({ "name": name, "arguments": arguments });
                json!({ "id": new_id("call_"), "type": "function", "function": function })
            };
            message["tool_calls"] = self.calls.into_iter().map(call).collect();
        }
        message
    }
}

fn delta_of(delta: Delta, called: &Mutex<usize>) -> Value {
    let index = |more: usize| {
        let mut called = called.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *called += more;
        called.saturating_sub(1)
    };
    match delta {
        Delta::Text(text) => json!({ "content": text }),
        Delta::Reasoning(text) => json!({ "reasoning_content": text }),
        Delta::Call { name } => {
            let function = json!({ "name": name, "arguments": "" });
            let id = new_id("call_");
            json!({ "tool_calls": [{ "index": index(1), "id": id, "type": "function", "function": function }] })
        }
        Delta::Arguments(more) => {
            json!({ "tool_calls": [{ "index": index(0), "function": { "arguments": more } }] })
        }
    }
}

fn finish_reason(finish: &Finish, calls: usize) -> &'static str {
    match finish {
        Finish::Stop if calls > 0 => "tool_calls",
        other => reason(other),
    }
}

fn log_probs_of(all: &[LogProbs], count: usize, served: &Served) -> Value {
    let entry = |token: u32, value: f32| {
        let bytes = served.tokenizer.token_bytes(token).unwrap_or_default();
        json!({ "token": decoded(&[token], served), "logprob": finite(value), "bytes": bytes })
    };
    let of = |one: &LogProbs| {
        let mut value = entry(one.token, one.log_prob);
        value["top_logprobs"] =
            one.top.iter().take(count).map(|&(token, value)| entry(token, value)).collect();
        value
    };
    json!({ "content": all.iter().map(of).collect::<Vec<_>>(), "refusal": null })
}
