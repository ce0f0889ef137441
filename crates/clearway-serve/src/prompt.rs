//! Conversations to tokens.

use clearway_llm::text::{ChatOptions, ChatTemplate, Data, EncodeOptions};
use serde_json::{Value, json};

use crate::error::{ApiError, Result};
use crate::fields::{Fields, wrong};
use crate::model::Served;
use crate::split::{CALL, CALL_END, SplitOptions, ToolFormat};
use crate::tools::Tools;

/// A conversation, in the form that templates take.
#[derive(Clone, Debug, Default)]
pub struct Conversation {
    /// Messages, each an object with `role`, `content` and perhaps more.
    pub messages: Vec<Value>,
    /// What the model may call.
    pub tools: Tools,
    /// `enable_thinking`, where the request says.
    pub thinking: Option<bool>,
    /// More variables for the template.
    pub variables: Vec<(String, Value)>,
    /// Whether the answer goes on where the last message ends.
    pub continues: bool,
}

/// A conversation as the model reads it.
#[derive(Clone, Debug)]
pub struct Prompt {
    /// The text.
    pub text: String,
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// What to look for in the answer.
    pub split: SplitOptions,
}

impl Conversation {
    /// The prompt for a model.
    ///
    /// # Errors
    /// A model without a template, or a template that refuses the conversation.
    pub fn prompt(&self, served: &Served) -> Result<Prompt> {
        let template = served.template.as_ref().map_err(|error| {
            ApiError::bad(format!("{error}; use /v1/completions")).with_code("no_chat_template")
        })?;
        let source = template.source();
        let knows_tools = source.contains("tools");
        let format =
            match source.contains("python_tag") || source.contains("\"parameters\": dictionary") {
                true => ToolFormat::Bare,
                false => ToolFormat::Tagged,
            };
        let text = match self.tools.may_call() && !knows_tools {
            true => self.render(template, &self.explained(), None)?,
            false => {
                let tools = self.tools.may_call().then(|| {
                    let tools = self.tools.tools.iter().map(|tool| data(&tool.openai()));
                    Data::List(tools.collect())
                });
                let messages: Vec<Value> = match knows_tools {
                    true => self.messages.iter().map(with_objects).collect(),
                    false => self.plain(),
                };
                self.render(template, &messages, tools)?
            }
        };
        let tokens = served
            .tokenizer
            .encode_chat(&text)
            .map_err(|error| ApiError::bad(error.to_string()))?;
        let thinks = source.contains("<think>") || source.contains("</think>");
        let split = SplitOptions {
            tools: self.tools.may_call().then_some(if knows_tools {
                format
            } else {
                ToolFormat::Tagged
            }),
            reasoning: thinks,
            in_thought: thinks && text.trim_end().ends_with("<think>"),
        };
        Ok(Prompt { text, tokens, split })
    }

    fn render(
        &self,
        template: &ChatTemplate,
        messages: &[Value],
        tools: Option<Data>,
    ) -> Result<String> {
        let mut messages: Vec<Data> = messages.iter().map(data).collect();
        let options = ChatOptions {
            enable_thinking: self.thinking,
            date: crate::clock::today(),
            ..ChatOptions::default()
        };
        let mut variables: Vec<(&str, Data)> =
            self.variables.iter().map(|(name, value)| (name.as_str(), data(value))).collect();
        variables.extend(tools.map(|tools| ("tools", tools)));
        let begun = match self.continues {
            true => messages.pop(),
            false => None,
        };
        let failed = |error: clearway_llm::text::TextError| {
            ApiError::bad(error.to_string()).with_code("chat_template")
        };
        let mut text = template.render_data(&messages, &variables, &options).map_err(failed)?;
        if let Some(Data::Map(fields)) = begun {
            let content = fields.into_iter().find(|(name, _)| name == "content");
            if let Some((_, Data::Text(content))) = content {
                text.push_str(&content);
            }
        }
        Ok(text)
    }

    /// The messages for a template that knows no tools: they are explained in the system message, and calls and results
    /// are written as text.
    fn explained(&self) -> Vec<Value> {
        let mut messages = self.plain();
        let instructions = self.tools.instructions();
        match messages.first_mut() {
            Some(first) if first["role"] == "system" => {
                let content = first["content"].as_str().unwrap_or_default();
                first["content"] = json!(format!("{content}\n\n{instructions}"));
            }
            _ => messages.insert(0, json!({ "role": "system", "content": instructions })),
        }
        messages
    }

    /// The messages with calls and results as text.
    fn plain(&self) -> Vec<Value> {
        let of = |message: &Value| {
            let content = message["content"].as_str().unwrap_or_default();
            if message["role"] == "tool" {
                let content = format!("<tool_response>\n{content}\n</tool_response>");
                return json!({ "role": "user", "content": content });
            }
            let Some(calls) = message["tool_calls"].as_array() else { return message.clone() };
            let mut parts: Vec<String> = Vec::new();
            parts.extend((!content.is_empty()).then(|| content.to_owned()));
            for call in calls {
                let function = &call["function"];
                let arguments = parsed(&function["arguments"]);
                let call = json!({ "name": function["name"], "arguments": arguments });
                parts.push(format!("{CALL}\n{call}\n{CALL_END}"));
            }
            json!({ "role": "assistant", "content": parts.join("\n") })
        };
        self.messages.iter().map(of).collect()
    }
}

/// A message whose calls have their arguments as objects, as templates expect.
fn with_objects(message: &Value) -> Value {
    let mut message = message.clone();
    if let Some(calls) = message.get_mut("tool_calls").and_then(Value::as_array_mut) {
        for call in calls {
            let arguments = parsed(&call["function"]["arguments"]);
            if let Some(function) = call.get_mut("function") {
                function["arguments"] = arguments;
            }
        }
    }
    message
}

/// Arguments as JSON where they are, and as text otherwise.
fn parsed(arguments: &Value) -> Value {
    match arguments.as_str() {
        Some(text) => serde_json::from_str(text).unwrap_or_else(|_| arguments.clone()),
        None => arguments.clone(),
    }
}

/// JSON for a template.
pub fn data(value: &Value) -> Data {
    match value {
        Value::Null => Data::Null,
        Value::Bool(value) => Data::Bool(*value),
        Value::Number(number) => match number.as_i64() {
            Some(number) => Data::Int(number),
            None => Data::Float(number.as_f64().unwrap_or(0.0)),
        },
        Value::String(text) => Data::text(text),
        Value::Array(items) => Data::List(items.iter().map(data).collect()),
        Value::Object(fields) => {
            Data::Map(fields.iter().map(|(name, value)| (name.clone(), data(value))).collect())
        }
    }
}

/// Reads the messages of chat completions.
///
/// # Errors
/// Messages that are missing or malformed, and contents other than text.
pub fn messages(fields: &mut Fields) -> Result<Vec<Value>> {
    let list = fields.list("messages")?.ok_or_else(|| fields.error("messages", "is missing"))?;
    if list.is_empty() {
        return Err(fields.error("messages", "is empty"));
    }
    list.into_iter()
        .enumerate()
        .map(|(at, value)| message(&format!("messages[{at}]"), value))
        .collect()
}

fn message(path: &str, value: Value) -> Result<Value> {
    let mut fields = Fields::of(path, value)?;
    let role = fields.text("role")?.ok_or_else(|| fields.error("role", "is missing"))?;
    let role = match role.as_str() {
        // The new name of the system's role.
        "developer" => "system",
        "system" | "user" | "assistant" | "tool" => &role,
        other => return Err(fields.error("role", format!("`{other}` is not supported"))),
    };
    let content = match fields.take("content") {
        None => None,
        Some(content) => Some(content_text(&fields.name("content"), content)?),
    };
    let mut message = json!({ "role": role });
    fields.text("name")?;
    if role == "assistant" {
        if let Some(refusal) = fields.text("refusal")? {
            message["content"] = json!(refusal);
        }
        if let Some(thought) = fields.text("reasoning_content")? {
            message["reasoning_content"] = json!(thought);
        }
        fields.only("audio", &[])?;
        fields.only("function_call", &[])?;
        let calls = fields.list("tool_calls")?.unwrap_or_default();
        let calls: Vec<Value> = calls
            .into_iter()
            .enumerate()
            .map(|(at, call)| tool_call(&format!("{path}.tool_calls[{at}]"), call))
            .collect::<Result<_>>()?;
        if !calls.is_empty() {
            message["tool_calls"] = json!(calls);
        }
    }
    if role == "tool" {
        let id = fields.text("tool_call_id")?;
        message["tool_call_id"] =
            json!(id.ok_or_else(|| fields.error("tool_call_id", "is missing"))?);
    }
    match content {
        Some(content) => message["content"] = json!(content),
        None if message.get("content").is_some() => {}
        None if message.get("tool_calls").is_some() => message["content"] = json!(""),
        None => return Err(fields.error("content", "is missing")),
    }
    fields.finish()?;
    Ok(message)
}

fn tool_call(path: &str, value: Value) -> Result<Value> {
    let mut call = Fields::of(path, value)?;
    let id = call.text("id")?;
    call.only("type", &[json!("function")])?;
    call.ignore(&["index"]);
    let mut function =
        call.object("function")?.ok_or_else(|| call.error("function", "is missing"))?;
    let name = function.text("name")?.ok_or_else(|| function.error("name", "is missing"))?;
    let arguments = match function.take("arguments") {
        None => json!("{}"),
        Some(text @ Value::String(_)) => text,
        Some(object @ Value::Object(_)) => json!(object.to_string()),
        Some(other) => return Err(wrong(&function.name("arguments"), "a string of JSON", &other)),
    };
    function.finish()?;
    call.finish()?;
    Ok(
        json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } }),
    )
}

/// The text of a content: a string, or parts that are text.
///
/// # Errors
/// Parts of other kinds.
pub fn content_text(path: &str, content: Value) -> Result<String> {
    let parts = match content {
        Value::String(text) => return Ok(text),
        Value::Array(parts) => parts,
        other => return Err(wrong(path, "a string or a list of parts", &other)),
    };
    let mut text = String::new();
    for (at, part) in parts.into_iter().enumerate() {
        let mut part = Fields::of(&format!("{path}[{at}]"), part)?;
        let kind = part.text("type")?;
        match kind.as_deref() {
            Some("text" | "input_text" | "output_text") => {
                text.push_str(&part.text("text")?.ok_or_else(|| part.error("text", "is missing"))?);
            }
            Some("refusal") => {
                text.push_str(
                    &part.text("refusal")?.ok_or_else(|| part.error("refusal", "is missing"))?,
                );
            }
            Some(other) => {
                return Err(part.error("type", format!("`{other}` is not supported; only text is")));
            }
            None => return Err(part.error("type", "is missing")),
        }
        part.ignore(&["annotations", "logprobs", "cache_control", "citations"]);
        part.finish()?;
    }
    Ok(text)
}

/// Reads a prompt of `/v1/completions`: a text, a list of texts, tokens, or a list of lists of tokens.
///
/// # Errors
/// Other types, and tokens that do not exist.
pub fn prompts(fields: &mut Fields, served: &Served) -> Result<Vec<Vec<u32>>> {
    let value = fields.take("prompt").ok_or_else(|| fields.error("prompt", "is missing"))?;
    let name = fields.name("prompt");
    inputs(&name, value, served)
}

/// Reads texts or tokens.
///
/// # Errors
/// Other types, and tokens that do not exist.
pub fn inputs(name: &str, value: Value, served: &Served) -> Result<Vec<Vec<u32>>> {
    let text = |text: &str| {
        let tokens = served.tokenizer.encode(text, EncodeOptions::PROMPT);
        tokens.map_err(|error| ApiError::field(name, error))
    };
    match value {
        Value::String(whole) => Ok(vec![text(&whole)?]),
        Value::Array(items) if items.is_empty() => Err(ApiError::field(name, "is empty")),
        Value::Array(items) if items.iter().all(Value::is_number) => {
            Ok(vec![tokens(name, &items, served)?])
        }
        Value::Array(items) => items
            .iter()
            .map(|item| match item {
                Value::String(part) => text(part),
                Value::Array(ids) if !ids.is_empty() => tokens(name, ids, served),
                other => {
                    Err(wrong(name, "a string, a list of strings, or lists of token ids", other))
                }
            })
            .collect(),
        other => Err(wrong(name, "a string, a list of strings, or lists of token ids", &other)),
    }
}

/// Reads ids of tokens.
///
/// # Errors
/// Other types, and tokens that do not exist.
pub fn tokens(name: &str, ids: &[Value], served: &Served) -> Result<Vec<u32>> {
    let vocabulary = served.tokenizer.len();
    let id = |id: &Value| {
        let id = id.as_u64().filter(|&id| id < vocabulary as u64);
        id.map(|id| id as u32).ok_or_else(|| {
            ApiError::field(name, format!("has a value that is no token id below {vocabulary}"))
        })
    };
    ids.iter().map(id).collect()
}
