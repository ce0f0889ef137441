//! `/v1/responses`: a conversation in the form of OpenAI's Responses API. Nothing is stored.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::http::Response;
use bytes::Bytes;
use serde_json::{Value, json};

use super::{Call, blocking, chat, check_model, json_response, new_id, stream};
use crate::app::App;
use crate::error::{ApiError, Dialect, Result};
use crate::fields::{Fields, wrong};
use crate::generate::{Finish, Step, Tally, Writing, send};
use crate::model::Served;
use crate::prompt::{Conversation, content_text};
use crate::sampling;
use crate::split::Delta;
use crate::tools::{self, Tools};

pub(super) struct Prepared {
    writing: Writing,
    stream: bool,
    /// The answer, without what it becomes.
    answer: Value,
}

/// Answers a request.
pub async fn create(call: Call) -> Result<Response<Body>> {
    let Call { app, served, tally, body } = call;
    let prepared = {
        let (app, served, tally) = (app.clone(), served.clone(), tally.clone());
        blocking(move || prepare(&app, &served, &tally, &body)).await?
    };
    let Prepared { writing, stream: streams, answer } = prepared;
    let items = Arc::new(Mutex::new(Items::default()));
    let frame = {
        let items = items.clone();
        move |step: Step| {
            let mut items = items.lock().ok()?;
            let events: Vec<Value> =
                step.deltas.into_iter().flat_map(|delta| items.push(delta)).collect();
            Some(frames(&events))
        }
    };
    let take = |items: &Mutex<Items>| {
        items.lock().map(|mut items| std::mem::take(&mut *items)).unwrap_or_default()
    };
    if !streams {
        let finished = writing.run(&app, &served, &tally, None, frame).await?;
        let mut items = take(&items);
        items.close(&finished.finish);
        return Ok(json_response(&complete(answer, items.done, &finished.finish, &tally)));
    }
    Ok(stream(tally.clone(), Dialect::OpenAi, move |out| async move {
        let first = {
            let mut items = items.lock().map_err(|_| ApiError::internal("the answer is lost"))?;
            let event = |kind: &str| json!({ "type": kind, "response": answer });
            items.numbered(vec![event("response.created"), event("response.in_progress")])
        };
        send(&out, frames(&first)).await?;
        let finished = writing.run(&app, &served, &tally, Some(&out), frame).await?;
        let mut items = take(&items);
        let mut last = items.close(&finished.finish);
        let done = std::mem::take(&mut items.done);
        let answer = complete(answer, done, &finished.finish, &tally);
        let kind = if finished.finish == Finish::Length {
            "response.incomplete"
        } else {
            "response.completed"
        };
        last.extend(items.numbered(vec![json!({ "type": kind, "response": answer })]));
        send(&out, frames(&last)).await
    }))
}

pub(super) fn prepare(app: &App, served: &Served, tally: &Tally, body: &[u8]) -> Result<Prepared> {
    let mut fields = Fields::parse(body)?;
    let model = fields.text("model")?;
    let adapter = check_model(model.as_deref(), served)?;
    let (temperature, top_p) = (peek(&mut fields, "temperature"), peek(&mut fields, "top_p"));
    let mut choosing = sampling::read(&mut fields, served.tokenizer.len())?;
    choosing.sampling.adapter = adapter;
    let instructions = fields.text("instructions")?;
    let (tools, shown_tools, shown_choice) = read_tools(&mut fields)?;
    let parallel = tools.parallel;
    let mut conversation = Conversation { tools, ..Conversation::default() };
    if let Some(instructions) = &instructions {
        conversation.messages.push(json!({ "role": "system", "content": instructions }));
    }
    input(&mut fields, &mut conversation.messages)?;
    let mut effort = None;
    if let Some(mut reasoning) = fields.object("reasoning")? {
        effort = reasoning.text("effort")?;
        conversation.thinking = match effort.as_deref() {
            None => None,
            Some("none") => Some(false),
            Some("minimal" | "low" | "medium" | "high" | "xhigh") => Some(true),
            Some(other) => return Err(reasoning.error("effort", format!("`{other}` is not known"))),
        };
        reasoning.only("summary", &[json!("auto")])?;
        reasoning.only("generate_summary", &[json!("auto")])?;
        reasoning.finish()?;
    }
    let mut shown_format = json!({ "type": "text" });
    if let Some(mut text) = fields.object("text")? {
        if let Some(format) = text.take("format") {
            shown_format = format.clone();
            choosing.grammar = sampling::response_format(Fields::of("text.format", format)?)?;
        }
        text.only("verbosity", &[json!("medium")])?;
        text.finish()?;
    }
    let budget = sampling::budget(&mut fields, &["max_output_tokens"])?;
    choosing.sampling.budget = budget.unwrap_or(usize::MAX);
    let streams = fields.flag("stream")?.unwrap_or(false);
    if let Some(mut options) = fields.object("stream_options")? {
        options.only("include_obfuscation", &[json!(false)])?;
        options.finish()?;
    }
    let metadata = fields.take("metadata").unwrap_or_else(|| json!({}));
    let texts =
        |value: &Value| value.as_object().is_some_and(|map| map.values().all(Value::is_string));
    if !texts(&metadata) {
        return Err(fields.error("metadata", "must be an object of strings"));
    }
    // Nothing is stored, so nothing can be asked for again.
    fields.only("store", &[json!(false)])?;
    fields.only("background", &[json!(false)])?;
    fields.only("truncation", &[json!("disabled")])?;
    fields.only("service_tier", &[json!("auto"), json!("default")])?;
    fields.only("include", &[json!([]), json!(["reasoning.encrypted_content"])])?;
    fields.only("top_logprobs", &[json!(0)])?;
    let user = fields.text("user")?;
    fields.ignore_texts(&["safety_identifier", "prompt_cache_key"])?;
    fields.finish()?;
    let mut started = chat::start(app, served, tally, &conversation, &choosing, 1)?;
    let writing = started.pop().ok_or_else(|| ApiError::internal("no text was started"))?;
    let answer = json!({
        "id": new_id("resp_"), "object": "response", "created_at": crate::clock::unix(), "status": "in_progress",
        "error": null, "incomplete_details": null, "instructions": instructions, "max_output_tokens": budget,
        "model": model.unwrap_or_else(|| served.name().to_owned()), "output": [], "parallel_tool_calls": parallel,
        "previous_response_id": null, "reasoning": { "effort": effort, "summary": null }, "store": false,
        "temperature": temperature.unwrap_or(json!(choosing.sampling.temperature)),
        "text": { "format": shown_format }, "tool_choice": shown_choice, "tools": shown_tools,
        "top_p": top_p.unwrap_or(json!(choosing.sampling.top_p)), "truncation": "disabled", "usage": null,
        "user": user, "metadata": metadata, "background": false, "top_logprobs": 0, "service_tier": "default",
    });
    Ok(Prepared { writing, stream: streams, answer })
}

/// A value that is looked at and left where it is.
fn peek(fields: &mut Fields, name: &str) -> Option<Value> {
    let value = fields.take(name)?;
    fields.put(name, value.clone());
    Some(value)
}

/// The tools, and tools and choice as the answer repeats them.
fn read_tools(fields: &mut Fields) -> Result<(Tools, Value, Value)> {
    let list = fields.list("tools")?.unwrap_or_default();
    let mut shown = Vec::new();
    let mut chat_tools = Vec::new();
    for (at, value) in list.into_iter().enumerate() {
        let path = format!("tools[{at}]");
        let mut tool = Fields::of(&path, value)?;
        match tool.text("type")?.as_deref() {
            Some("function") => {}
            Some(other) => return Err(tool.error("type", format!("`{other}` is not supported"))),
            None => return Err(tool.error("type", "is missing")),
        }
        let strict = tool.flag("strict")?;
        let read = tools::from_function(&path, tool)?;
        shown.push(json!({
            "type": "function", "name": read.name, "description": read.description, "parameters": read.parameters,
            "strict": strict.unwrap_or(true),
        }));
        chat_tools.push(read.openai());
    }
    let choice = peek(fields, "tool_choice");
    fields.put("tools", Value::Array(chat_tools));
    let tools = tools::from_chat(fields)?;
    Ok((tools, Value::Array(shown), choice.unwrap_or_else(|| json!("auto"))))
}

/// Reads the input: a text, or items.
fn input(fields: &mut Fields, messages: &mut Vec<Value>) -> Result<()> {
    let items = match fields.take("input") {
        None => return Err(fields.error("input", "is missing")),
        Some(Value::String(text)) => {
            messages.push(json!({ "role": "user", "content": text }));
            return Ok(());
        }
        Some(Value::Array(items)) => items,
        Some(other) => return Err(wrong("input", "a string or a list of items", &other)),
    };
    if items.is_empty() {
        return Err(fields.error("input", "is empty"));
    }
    for (at, value) in items.into_iter().enumerate() {
        item(Fields::of(&format!("input[{at}]"), value)?, messages)?;
    }
    Ok(())
}

fn item(mut item: Fields, messages: &mut Vec<Value>) -> Result<()> {
    let kind = item.text("type")?.unwrap_or_else(|| "message".to_owned());
    item.ignore(&["id", "status"]);
    match kind.as_str() {
        "message" => {
            let role = item.text("role")?.ok_or_else(|| item.error("role", "is missing"))?;
            let role = match role.as_str() {
                "developer" => "system",
                "system" | "user" | "assistant" => &role,
                other => return Err(item.error("role", format!("`{other}` is not supported"))),
            };
            let content =
                item.take("content").ok_or_else(|| item.error("content", "is missing"))?;
            let content = content_text(&item.name("content"), content)?;
            item.ignore(&["phase"]);
            messages.push(json!({ "role": role, "content": content }));
        }
        "function_call" => {
            let name = item.text("name")?.ok_or_else(|| item.error("name", "is missing"))?;
            let arguments = item.text("arguments")?.unwrap_or_else(|| "{}".into());
            let id = item.text("call_id")?;
            item.ignore(&["namespace"]);
            let call = json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } });
            match messages.last_mut().filter(|last| last["role"] == "assistant") {
                Some(last) => match last.get_mut("tool_calls").and_then(Value::as_array_mut) {
                    Some(calls) => calls.push(call),
                    None => last["tool_calls"] = json!([call]),
                },
                None => messages
                    .push(json!({ "role": "assistant", "content": "", "tool_calls": [call] })),
            }
        }
        "function_call_output" => {
            let id = item.text("call_id")?.ok_or_else(|| item.error("call_id", "is missing"))?;
            let output = item.take("output").ok_or_else(|| item.error("output", "is missing"))?;
            let output = content_text(&item.name("output"), output)?;
            messages.push(json!({ "role": "tool", "tool_call_id": id, "content": output }));
        }
        // Thoughts of earlier answers are not read again.
        "reasoning" => item.ignore(&["summary", "content", "encrypted_content"]),
        other => return Err(item.error("type", format!("`{other}` is not supported"))),
    }
    item.finish()
}

/// The items of an answer as they come.
#[derive(Default)]
struct Items {
    /// Items that are complete.
    done: Vec<Value>,
    /// The item that is written: its kind, its id and what it holds.
    open: Option<Open>,
    /// Number of the next event.
    sequence: u64,
}

struct Open {
    kind: &'static str,
    id: String,
    call: Option<(String, String)>,
    text: String,
}

impl Open {
    fn item(&self, status: &str) -> Value {
        let Self { id, text, .. } = self;
        match (&self.call, self.kind) {
            (Some((call, name)), _) => json!({
                "type": "function_call", "id": id, "call_id": call, "name": name, "arguments": text, "status": status,
            }),
            (None, "reasoning") => {
                let content = if text.is_empty() { json!([]) } else { json!([self.part()]) };
                json!({ "type": "reasoning", "id": id, "summary": [], "content": content, "status": status })
            }
            _ => {
                let content = if text.is_empty() { json!([]) } else { json!([self.part()]) };
                json!({ "type": "message", "id": id, "role": "assistant", "status": status, "content": content })
            }
        }
    }

    fn part(&self) -> Value {
        match self.kind {
            "reasoning" => json!({ "type": "reasoning_text", "text": self.text }),
            _ => {
                json!({ "type": "output_text", "text": self.text, "annotations": [], "logprobs": [] })
            }
        }
    }
}

impl Items {
    /// Gives events their numbers.
    fn numbered(&mut self, mut events: Vec<Value>) -> Vec<Value> {
        for event in &mut events {
            event["sequence_number"] = json!(self.sequence);
            self.sequence += 1;
        }
        events
    }

    fn push(&mut self, delta: Delta) -> Vec<Value> {
        let mut events = Vec::new();
        let (kind, call) = match &delta {
            Delta::Text(_) => ("message", None),
            Delta::Reasoning(_) => ("reasoning", None),
            Delta::Call { name } => ("call", Some((new_id("call_"), name.clone()))),
            Delta::Arguments(_) => ("call", None),
        };
        if self.open.as_ref().is_none_or(|open| open.kind != kind) || call.is_some() {
            events.extend(self.shut("completed"));
            let prefix = match kind {
                "message" => "msg_",
                "reasoning" => "rs_",
                _ => "fc_",
            };
            let open = Open { kind, id: new_id(prefix), call, text: String::new() };
            let index = self.done.len();
            let item = open.item("in_progress");
            events.push(json!({ "type": "response.output_item.added", "output_index": index, "item": item }));
            if kind != "call" {
                events.push(json!({
                    "type": "response.content_part.added", "item_id": open.id, "output_index": index,
                    "content_index": 0, "part": open.part(),
                }));
            }
            self.open = Some(open);
        }
        let index = self.done.len();
        if let Some(open) = &mut self.open {
            let (kind, more) = match delta {
                Delta::Text(more) => ("response.output_text.delta", more),
                Delta::Reasoning(more) => ("response.reasoning_text.delta", more),
                Delta::Arguments(more) => ("response.function_call_arguments.delta", more),
                Delta::Call { .. } => ("", String::new()),
            };
            open.text.push_str(&more);
            if !kind.is_empty() {
                let mut event = json!({ "type": kind, "item_id": open.id, "output_index": index, "delta": more });
                if open.kind != "call" {
                    event["content_index"] = json!(0);
                }
                if open.kind == "message" {
                    event["logprobs"] = json!([]);
                }
                events.push(event);
            }
        }
        self.numbered(events)
    }

    /// Ends the last item.
    fn close(&mut self, finish: &Finish) -> Vec<Value> {
        if self.open.is_none() && self.done.is_empty() {
            // An answer without a word is a message without a word.
            let open =
                Open { kind: "message", id: new_id("msg_"), call: None, text: String::new() };
            let item = open.item("in_progress");
            self.open = Some(open);
            let mut events = vec![
                json!({ "type": "response.output_item.added", "output_index": 0, "item": item }),
            ];
            events.extend(self.shut("completed"));
            return self.numbered(events);
        }
        let events = self.shut(if *finish == Finish::Length { "incomplete" } else { "completed" });
        self.numbered(events)
    }

    fn shut(&mut self, status: &str) -> Vec<Value> {
        let Some(open) = self.open.take() else { return Vec::new() };
        let (index, id) = (self.done.len(), &open.id);
        let mut events = Vec::new();
        let mut done = match open.kind {
            "call" => {
                json!({ "type": "response.function_call_arguments.done", "arguments": open.text })
            }
            "reasoning" => {
                json!({ "type": "response.reasoning_text.done", "text": open.text, "content_index": 0 })
            }
            _ => {
                json!({ "type": "response.output_text.done", "text": open.text, "content_index": 0, "logprobs": [] })
            }
        };
        done["item_id"] = json!(id);
        done["output_index"] = json!(index);
        if let Some((_, name)) = &open.call {
            done["name"] = json!(name);
        }
        events.push(done);
        if open.kind != "call" {
            events.push(json!({
                "type": "response.content_part.done", "item_id": id, "output_index": index, "content_index": 0,
                "part": open.part(),
            }));
        }
        let item = open.item(status);
        events.push(
            json!({ "type": "response.output_item.done", "output_index": index, "item": item }),
        );
        self.done.push(item);
        events
    }
}

fn complete(mut answer: Value, output: Vec<Value>, finish: &Finish, tally: &Tally) -> Value {
    let cut = *finish == Finish::Length;
    answer["status"] = json!(if cut { "incomplete" } else { "completed" });
    if cut {
        answer["incomplete_details"] = json!({ "reason": "max_output_tokens" });
    }
    answer["output"] = Value::Array(output);
    let (prompt, tokens) = (tally.prompt.load(Relaxed), tally.tokens.load(Relaxed));
    answer["usage"] = json!({
        "input_tokens": prompt,
        "input_tokens_details": { "cached_tokens": tally.cached.load(Relaxed), "cache_write_tokens": 0 },
        "output_tokens": tokens,
        "output_tokens_details": { "reasoning_tokens": 0 },
        "total_tokens": prompt + tokens,
    });
    answer
}

fn frames(events: &[Value]) -> Bytes {
    let frame = |event: &Value| {
        let kind = event["type"].as_str().unwrap_or_default();
        format!("event: {kind}\ndata: {event}\n\n")
    };
    Bytes::from(events.iter().map(frame).collect::<String>())
}
