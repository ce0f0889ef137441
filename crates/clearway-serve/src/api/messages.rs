//! `/v1/messages`: a conversation in Anthropic's form.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use axum::body::Body;
use axum::http::Response;
use bytes::Bytes;
use serde_json::{Value, json};

use super::chat::{self, Gathered};
use super::{Call, blocking, check_model, json_response, new_id, respond, stream};
use crate::app::App;
use crate::error::{ApiError, Dialect, Result};
use crate::fields::{Fields, wrong};
use crate::generate::{Finish, Finished, Step, Tally, Writing, send};
use crate::model::Served;
use crate::prompt::{Conversation, content_text};
use crate::sampling;
use crate::split::Delta;
use crate::tools::{Choice, Tool, Tools, choice_word};

pub(super) struct Prepared {
    model: String,
    writing: Writing,
    stream: bool,
}

/// Answers a request.
pub async fn create(call: Call) -> Response<Body> {
    answer(call).await.unwrap_or_else(|error| respond(&error, Dialect::Anthropic))
}

/// Counts the tokens of a request that is not answered.
pub async fn count(call: Call) -> Response<Body> {
    let counted = blocking(move || counted(&call.served, &call.body));
    match counted.await {
        Ok(tokens) => json_response(&json!({ "input_tokens": tokens })),
        Err(error) => respond(&error, Dialect::Anthropic),
    }
}

/// The tokens of a conversation.
pub(super) fn counted(served: &Served, body: &[u8]) -> Result<usize> {
    let mut fields = Fields::parse(body)?;
    check_model(fields.text("model")?.as_deref(), served)?;
    let conversation = conversation(&mut fields)?;
    fields.finish()?;
    Ok(conversation.prompt(served)?.tokens.len())
}

async fn answer(call: Call) -> Result<Response<Body>> {
    let Call { app, served, tally, body } = call;
    let prepared = {
        let (app, served, tally) = (app.clone(), served.clone(), tally.clone());
        blocking(move || prepare(&app, &served, &tally, &body)).await?
    };
    let Prepared { model, writing, stream: streams } = prepared;
    let id = new_id("msg_");
    let message = move |content: Vec<Value>, finished: Option<(&Finished, usize)>, usage: Value| {
        let (reason, sequence) =
            finished.map_or((Value::Null, Value::Null), |(finished, calls)| ended(finished, calls));
        json!({
            "id": id, "type": "message", "role": "assistant", "model": model, "content": content,
            "stop_reason": reason, "stop_sequence": sequence, "usage": usage,
        })
    };
    if !streams {
        let mut gathered = Gathered::default();
        let frame = |step: Step| {
            gathered.take(step);
            None
        };
        let finished = writing.run(&app, &served, &tally, None, frame).await?;
        let calls = gathered.calls.len();
        let mut content = Vec::new();
        if !gathered.thoughts.is_empty() {
            content.push(
                json!({ "type": "thinking", "thinking": gathered.thoughts, "signature": "" }),
            );
        }
        if !gathered.text.is_empty() || calls == 0 {
            content.push(json!({ "type": "text", "text": gathered.text, "citations": null }));
        }
        for (name, arguments) in gathered.calls {
            let input: Value = serde_json::from_str(&arguments).unwrap_or_else(|_| json!({}));
            content.push(
                json!({ "type": "tool_use", "id": new_id("toolu_"), "name": name, "input": input }),
            );
        }
        return Ok(json_response(&message(content, Some((&finished, calls)), usage(&tally))));
    }
    Ok(stream(tally.clone(), Dialect::Anthropic, move |out| async move {
        let start =
            json!({ "type": "message_start", "message": message(Vec::new(), None, usage(&tally)) });
        send(&out, event(&start)).await?;
        let blocks = Arc::new(std::sync::Mutex::new(Blocks::default()));
        let frame = {
            let blocks = blocks.clone();
            move |step: Step| {
                let mut blocks = blocks.lock().ok()?;
                let events: Vec<Value> =
                    step.deltas.into_iter().flat_map(|delta| blocks.push(delta)).collect();
                Some(Bytes::from(
                    events.iter().flat_map(|value| event(value).to_vec()).collect::<Vec<u8>>(),
                ))
            }
        };
        let finished = writing.run(&app, &served, &tally, Some(&out), frame).await?;
        let (last, calls) = match blocks.lock() {
            Ok(mut blocks) => (blocks.close(), blocks.calls),
            Err(_) => (None, 0),
        };
        if let Some(last) = last {
            send(&out, event(&last)).await?;
        }
        let (reason, sequence) = ended(&finished, calls);
        let delta = json!({ "stop_reason": reason, "stop_sequence": sequence });
        send(
            &out,
            event(&json!({ "type": "message_delta", "delta": delta, "usage": usage(&tally) })),
        )
        .await?;
        send(&out, event(&json!({ "type": "message_stop" }))).await
    }))
}

pub(super) fn prepare(app: &App, served: &Served, tally: &Tally, body: &[u8]) -> Result<Prepared> {
    let mut fields = Fields::parse(body)?;
    let model = fields.text("model")?.ok_or_else(|| fields.error("model", "is missing"))?;
    let adapter = check_model(Some(&model), served)?;
    let conversation = conversation(&mut fields)?;
    let budget = sampling::budget(&mut fields, &["max_tokens"])?;
    let budget = budget.ok_or_else(|| fields.error("max_tokens", "is missing"))?;
    let stops = sampling::stops(&mut fields, "stop_sequences")?;
    let stream = fields.flag("stream")?.unwrap_or(false);
    fields.only("service_tier", &[json!("auto"), json!("standard_only")])?;
    fields.ignore(&["metadata"]);
    let mut choosing = sampling::read(&mut fields, served.tokenizer.len())?;
    choosing.sampling.adapter = adapter;
    fields.finish()?;
    choosing.stops.extend(stops);
    choosing.sampling.budget = budget;
    let mut texts = chat::start(app, served, tally, &conversation, &choosing, 1)?;
    let writing = texts.pop().ok_or_else(|| ApiError::internal("no text was started"))?;
    Ok(Prepared { model, writing, stream })
}

/// Reads system, messages, tools and thinking.
fn conversation(fields: &mut Fields) -> Result<Conversation> {
    let mut conversation = Conversation { tools: tools(fields)?, ..Conversation::default() };
    if let Some(system) = fields.take("system") {
        let text = content_text("system", system)?;
        conversation.messages.push(json!({ "role": "system", "content": text }));
    }
    let list = fields.list("messages")?.ok_or_else(|| fields.error("messages", "is missing"))?;
    if list.is_empty() {
        return Err(fields.error("messages", "is empty"));
    }
    for (at, value) in list.into_iter().enumerate() {
        message(&format!("messages[{at}]"), value, &mut conversation.messages)?;
    }
    // A last message of the assistant is one that goes on.
    conversation.continues =
        conversation.messages.last().is_some_and(|last| last["role"] == "assistant");
    if let Some(mut thinking) = fields.object("thinking")? {
        let kind = thinking.text("type")?;
        conversation.thinking = match kind.as_deref() {
            Some("enabled" | "adaptive") => Some(true),
            Some("disabled") => Some(false),
            _ => return Err(thinking.error("type", "must be \"enabled\" or \"disabled\"")),
        };
        thinking.int("budget_tokens", 0..=i64::from(u32::MAX))?;
        thinking.ignore(&["display"]);
        thinking.finish()?;
    }
    Ok(conversation)
}

/// Reads a message: one for the template, or several where it holds results of tools.
fn message(path: &str, value: Value, messages: &mut Vec<Value>) -> Result<()> {
    let mut fields = Fields::of(path, value)?;
    let role = fields.text("role")?.ok_or_else(|| fields.error("role", "is missing"))?;
    if !matches!(role.as_str(), "user" | "assistant" | "system") {
        return Err(fields.error("role", format!("`{role}` is not supported")));
    }
    let content = fields.take("content").ok_or_else(|| fields.error("content", "is missing"))?;
    let path = fields.name("content");
    fields.finish()?;
    let blocks = match content {
        Value::String(text) => {
            messages.push(json!({ "role": role, "content": text }));
            return Ok(());
        }
        Value::Array(blocks) => blocks,
        other => return Err(wrong(&path, "a string or a list of blocks", &other)),
    };
    let (mut text, mut thoughts, mut calls) = (String::new(), String::new(), Vec::new());
    for (at, block) in blocks.into_iter().enumerate() {
        let path = format!("{path}[{at}]");
        let mut block = Fields::of(&path, block)?;
        let kind = block.text("type")?.ok_or_else(|| block.error("type", "is missing"))?;
        block.ignore(&["cache_control", "citations", "caller"]);
        match (kind.as_str(), role.as_str()) {
            ("text", _) => {
                text.push_str(
                    &block.text("text")?.ok_or_else(|| block.error("text", "is missing"))?,
                );
            }
            ("thinking", "assistant") => {
                thoughts.push_str(&block.text("thinking")?.unwrap_or_default());
                block.ignore(&["signature"]);
            }
            ("redacted_thinking", "assistant") => block.ignore(&["data"]),
            ("tool_use", "assistant") => {
                let id = block.text("id")?;
                let name = block.text("name")?.ok_or_else(|| block.error("name", "is missing"))?;
                let input = block.take("input").unwrap_or_else(|| json!({})).to_string();
                let function = json!({ "name": name, "arguments": input });
                calls.push(json!({ "id": id, "type": "function", "function": function }));
            }
            ("tool_result", "user") => {
                let id = block.text("tool_use_id")?;
                let id = id.ok_or_else(|| block.error("tool_use_id", "is missing"))?;
                block.flag("is_error")?;
                let content = block.take("content").unwrap_or_else(|| json!(""));
                let content = content_text(&block.name("content"), content)?;
                messages.push(json!({ "role": "tool", "tool_call_id": id, "content": content }));
            }
            (other, _) => {
                return Err(block.error("type", format!("`{other}` is not supported here")));
            }
        }
        block.finish()?;
    }
    let only_results =
        text.is_empty() && messages.last().is_some_and(|last| last["role"] == "tool");
    if role == "user" && only_results {
        return Ok(());
    }
    let mut message = json!({ "role": role, "content": text });
    if !thoughts.is_empty() {
        message["reasoning_content"] = json!(thoughts);
    }
    if !calls.is_empty() {
        message["tool_calls"] = json!(calls);
    }
    messages.push(message);
    Ok(())
}

fn tools(fields: &mut Fields) -> Result<Tools> {
    let mut tools = Tools::default();
    for (at, value) in fields.list("tools")?.unwrap_or_default().into_iter().enumerate() {
        let path = format!("tools[{at}]");
        let mut tool = Fields::of(&path, value)?;
        tool.only("type", &[json!("custom")])?;
        let name = tool.text("name")?.ok_or_else(|| tool.error("name", "is missing"))?;
        let (description, schema) = (tool.text("description")?, tool.take("input_schema"));
        tool.ignore(&["cache_control", "strict", "eager_input_streaming", "input_examples"]);
        tool.finish()?;
        tools.tools.push(Tool::new(&path, name, description, schema)?);
    }
    if let Some(mut choice) = fields.object("tool_choice")? {
        let kind = choice.text("type")?.unwrap_or_default();
        tools.choice = match kind.as_str() {
            "tool" => {
                let name = choice.text("name")?;
                Choice::Named(name.ok_or_else(|| choice.error("name", "is missing"))?)
            }
            word => choice_word(word)?,
        };
        tools.parallel = !choice.flag("disable_parallel_tool_use")?.unwrap_or(false);
        choice.finish()?;
    }
    tools.check()?;
    Ok(tools)
}

/// The blocks of an answer as it comes.
#[derive(Default)]
struct Blocks {
    /// Number and kind of the block that is open.
    open: Option<(usize, &'static str)>,
    next: usize,
    calls: usize,
}

impl Blocks {
    fn push(&mut self, delta: Delta) -> Vec<Value> {
        let mut events = Vec::new();
        let (kind, block, change) = match delta {
            Delta::Text(text) => (
                "text",
                json!({ "type": "text", "text": "", "citations": null }),
                Some(json!({ "type": "text_delta", "text": text })),
            ),
            Delta::Reasoning(text) => (
                "thinking",
                json!({ "type": "thinking", "thinking": "", "signature": "" }),
                Some(json!({ "type": "thinking_delta", "thinking": text })),
            ),
            Delta::Call { name } => {
                self.calls += 1;
                events.extend(self.close());
                let id = new_id("toolu_");
                (
                    "tool_use",
                    json!({ "type": "tool_use", "id": id, "name": name, "input": {} }),
                    None,
                )
            }
            Delta::Arguments(more) => (
                "tool_use",
                Value::Null,
                Some(json!({ "type": "input_json_delta", "partial_json": more })),
            ),
        };
        if self.open.is_none_or(|(_, open)| open != kind) {
            events.extend(self.close());
            self.open = Some((self.next, kind));
            events.push(json!({ "type": "content_block_start", "index": self.next, "content_block": block }));
            self.next += 1;
        }
        if let (Some(change), Some((index, _))) = (change, self.open) {
            events.push(json!({ "type": "content_block_delta", "index": index, "delta": change }));
        }
        events
    }

    fn close(&mut self) -> Option<Value> {
        let (index, _) = self.open.take()?;
        Some(json!({ "type": "content_block_stop", "index": index }))
    }
}

fn event(value: &Value) -> Bytes {
    let kind = value["type"].as_str().unwrap_or_default();
    Bytes::from(format!("event: {kind}\ndata: {value}\n\n"))
}

/// Why a text ended, and the stop string.
fn ended(finished: &Finished, calls: usize) -> (Value, Value) {
    match &finished.finish {
        Finish::Stop if calls > 0 => (json!("tool_use"), Value::Null),
        Finish::Stop => (json!("end_turn"), Value::Null),
        Finish::StopString(string) => (json!("stop_sequence"), json!(string)),
        Finish::Length => (json!("max_tokens"), Value::Null),
    }
}

fn usage(tally: &Tally) -> Value {
    let (prompt, cached) = (tally.prompt.load(Relaxed), tally.cached.load(Relaxed));
    json!({
        "input_tokens": prompt.saturating_sub(cached),
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": tally.tokens.load(Relaxed),
    })
}
