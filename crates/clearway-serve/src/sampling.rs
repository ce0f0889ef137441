//! The fields that say how tokens are chosen, which most endpoints share.

use clearway_llm::Sampling;
use clearway_llm::engine::Penalties;
use clearway_llm::grammar::Grammar;
use serde_json::{Value, json};

use crate::error::{ApiError, Result};
use crate::fields::{Fields, wrong};

/// Most stop strings, and the longest.
const MAX_STOPS: usize = 16;
const MAX_STOP_BYTES: usize = 1 << 10;
/// Most tokens with a bias.
const MAX_BIASES: usize = 1024;

/// How one text is written.
#[derive(Clone, Debug)]
pub struct Choosing {
    /// The row of sampling data, without stop strings.
    pub sampling: Sampling,
    /// Strings that end the text.
    pub stops: Vec<String>,
    /// Whether tokens that end a text are ordinary ones.
    pub ignore_end: bool,
    /// What the text must look like.
    pub grammar: Option<Grammar>,
}

/// Reads the fields that all endpoints which write text have in common.
///
/// # Errors
/// A value of the wrong type or outside its limits.
pub fn read(fields: &mut Fields, vocabulary: usize) -> Result<Choosing> {
    let seed = match fields.int("seed", i64::MIN..=i64::MAX)? {
        Some(seed) => seed as u64,
        None => random(),
    };
    // What routers add says what is done anyway.
    fields.only("skip_special_tokens", &[json!(true)])?;
    fields.only("no_stop_trim", &[json!(false)])?;
    fields.only("return_hidden_states", &[json!(false)])?;
    let mut sampling = Sampling { seed, ..Sampling::default() };
    if let Some(temperature) = fields.number("temperature", 0.0..=2.0)? {
        sampling.temperature = temperature;
    }
    if let Some(top_p) = fields.number("top_p", 0.0..=1.0)? {
        sampling.top_p = top_p;
    }
    if let Some(min_p) = fields.number("min_p", 0.0..=1.0)? {
        sampling.min_p = min_p;
    }
    // Some clients write -1 for "all".
    if let Some(top_k) = fields.int("top_k", -1..=i64::from(u32::MAX))? {
        sampling.top_k = top_k.max(0) as usize;
    }
    let mut penalties = Penalties::default();
    for name in ["repetition_penalty", "repeat_penalty"] {
        if let Some(repeat) = fields.number(name, 0.01..=100.0)? {
            penalties.repeat = repeat;
        }
    }
    if let Some(frequency) = fields.number("frequency_penalty", -2.0..=2.0)? {
        penalties.frequency = frequency;
    }
    if let Some(presence) = fields.number("presence_penalty", -2.0..=2.0)? {
        penalties.presence = presence;
    }
    if let Some(window) = fields.int("repeat_last_n", -1..=i64::from(u32::MAX))? {
        penalties.window = usize::try_from(window).unwrap_or(usize::MAX);
    }
    sampling.penalties = penalties;
    sampling.biases = biases(fields, vocabulary)?;
    if let Some(ids) = fields.list("stop_token_ids")? {
        sampling.stop_tokens = ids
            .iter()
            .map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()))
            .collect::<Option<_>>()
            .ok_or_else(|| fields.error("stop_token_ids", "must be a list of token ids"))?;
    }
    let ignore_end = fields.flag("ignore_eos")?.unwrap_or(false);
    Ok(Choosing { sampling, stops: stops(fields, "stop")?, ignore_end, grammar: None })
}

/// Reads how many tokens may be written, by any of the names that is used for it.
///
/// # Errors
/// A value of the wrong type or outside its limits, or two that differ.
pub fn budget(fields: &mut Fields, names: &[&str]) -> Result<Option<usize>> {
    let mut found: Option<i64> = None;
    for name in names {
        let Some(value) = fields.int(name, 1..=i64::from(u32::MAX))? else { continue };
        if found.is_some_and(|found| found != value) {
            return Err(fields.error(name, format!("differs from `{}`", names[0])));
        }
        found = Some(value);
    }
    Ok(found.map(|tokens| tokens as usize))
}

/// Reads one string or a list of them.
///
/// # Errors
/// Other types, too many or too long ones.
pub fn stops(fields: &mut Fields, name: &str) -> Result<Vec<String>> {
    let stops = match fields.take(name) {
        None => return Ok(Vec::new()),
        Some(Value::String(stop)) => vec![Value::String(stop)],
        Some(Value::Array(stops)) => stops,
        Some(other) => {
            return Err(wrong(&fields.name(name), "a string or a list of strings", &other));
        }
    };
    if stops.len() > MAX_STOPS {
        return Err(fields.error(name, format!("has more than {MAX_STOPS} strings")));
    }
    let text = |stop: Value| match stop {
        Value::String(text) if text.len() <= MAX_STOP_BYTES => Ok(text),
        Value::String(_) => {
            Err(fields.error(name, format!("has a string of more than {MAX_STOP_BYTES} bytes")))
        }
        other => Err(wrong(&fields.name(name), "a string or a list of strings", &other)),
    };
    let stops: Vec<String> = stops.into_iter().map(text).collect::<Result<_>>()?;
    Ok(stops.into_iter().filter(|stop| !stop.is_empty()).collect())
}

fn biases(fields: &mut Fields, vocabulary: usize) -> Result<Vec<(u32, f32)>> {
    let Some(value) = fields.take("logit_bias") else { return Ok(Vec::new()) };
    let Value::Object(entries) = value else {
        return Err(wrong("logit_bias", "an object of token ids and numbers", &value));
    };
    if entries.len() > MAX_BIASES {
        return Err(ApiError::field("logit_bias", format!("has more than {MAX_BIASES} tokens")));
    }
    let bias = |(id, bias): (&String, &Value)| {
        let token = id.parse::<u32>().ok().filter(|&token| (token as usize) < vocabulary);
        let token = token.ok_or_else(|| {
            ApiError::field(
                "logit_bias",
                format!("has a key that is no token id below {vocabulary}"),
            )
        })?;
        match bias.as_f64() {
            // A bias of -100 bans a token, as OpenAI has it.
            Some(-100.0) => Ok((token, f32::NEG_INFINITY)),
            Some(bias) if (-100.0..=100.0).contains(&bias) => Ok((token, bias as f32)),
            _ => {
                Err(ApiError::field("logit_bias", "has a value that is no number from -100 to 100"))
            }
        }
    };
    entries.iter().map(bias).collect()
}

/// Reads `response_format`, and `structured_outputs` as vLLM has it.
///
/// # Errors
/// Other types, or both.
pub fn grammar(fields: &mut Fields) -> Result<Option<Grammar>> {
    let format = fields.object("response_format")?.map(response_format).transpose()?.flatten();
    let structured = fields.object("structured_outputs")?.map(structured).transpose()?;
    match (format, structured) {
        (Some(_), Some(_)) => {
            Err(ApiError::field("structured_outputs", "cannot stand beside `response_format`"))
        }
        (format, structured) => Ok(format.or(structured)),
    }
}

/// Reads an object with a `type`.
///
/// # Errors
/// Other types, or what is missing.
pub fn response_format(mut format: Fields) -> Result<Option<Grammar>> {
    let kind = format.text("type")?.ok_or_else(|| format.error("type", "is missing"))?;
    let missing = |format: &Fields, name: &str| format.error(name, "is missing");
    let grammar = match kind.as_str() {
        "text" => None,
        "json_object" => Some(Grammar::JsonObject),
        "json_schema" => {
            // The Responses API has these fields one level higher.
            let mut inner = match format.object("json_schema")? {
                Some(inner) => inner,
                None => std::mem::replace(&mut format, Fields::of("response_format", json!({}))?),
            };
            inner.text("name")?;
            inner.text("description")?;
            inner.flag("strict")?;
            let schema = inner.take("schema").ok_or_else(|| missing(&inner, "schema"))?;
            inner.finish()?;
            Some(schema_grammar(schema)?)
        }
        "regex" => {
            let regex = format.text("regex")?.ok_or_else(|| missing(&format, "regex"))?;
            Some(Grammar::Regex(regex))
        }
        "lark" | "grammar" => {
            let grammar = format.text("grammar")?.ok_or_else(|| missing(&format, "grammar"))?;
            Some(Grammar::Lark(grammar))
        }
        other => {
            let message = format!(
                "`{other}` is not supported; text, json_object, json_schema, regex and lark are"
            );
            return Err(format.error("type", message));
        }
    };
    format.finish()?;
    Ok(grammar)
}

fn schema_grammar(schema: Value) -> Result<Grammar> {
    match schema {
        Value::Object(_) | Value::Bool(true) => Ok(Grammar::JsonSchema(schema)),
        other => Err(wrong("response_format.json_schema.schema", "a JSON schema", &other)),
    }
}

fn structured(mut fields: Fields) -> Result<Grammar> {
    let mut found = Vec::new();
    found.extend(fields.take("json").map(schema_grammar).transpose()?);
    found.extend(fields.text("regex")?.map(Grammar::Regex));
    found.extend(fields.text("grammar")?.map(Grammar::Lark));
    if fields.flag("json_object")? == Some(true) {
        found.push(Grammar::JsonObject);
    }
    if let Some(choices) = fields.list("choice")? {
        found.push(one_of(&choices)?);
    }
    fields.finish()?;
    match (found.pop(), found.is_empty()) {
        (Some(grammar), true) => Ok(grammar),
        _ => Err(ApiError::field(
            "structured_outputs",
            "needs one of json, json_object, regex, grammar, choice",
        )),
    }
}

/// A grammar of several texts, one of which must come.
fn one_of(choices: &[Value]) -> Result<Grammar> {
    let texts: Option<Vec<&str>> = choices.iter().map(Value::as_str).collect();
    match texts {
        Some(texts) if !texts.is_empty() && texts.iter().all(|text| !text.is_empty()) => {
            // A string in Lark's notation is one of JSON.
            let texts: Vec<String> = texts.iter().map(|text| json!(text).to_string()).collect();
            Ok(Grammar::Lark(format!("start: {}", texts.join(" | "))))
        }
        _ => Err(ApiError::field("structured_outputs.choice", "must be a list of strings")),
    }
}

/// A number that is another one each time.
pub fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}
