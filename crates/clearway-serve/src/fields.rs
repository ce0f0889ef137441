//! The fields of a request, each asked for by its name. What nobody asked for is refused at the end.

use serde_json::{Map, Value};

use crate::error::{ApiError, Result};

/// Bodies may be nested so deep. The parser has a limit of its own, which is twice this.
const MAX_DEPTH: usize = 64;

/// An object whose fields are taken one by one. A field that is `null` counts as absent.
pub struct Fields {
    /// Path of the object in the body, with a point at its end.
    path: String,
    fields: Map<String, Value>,
}

impl Fields {
    /// The object that a body is.
    ///
    /// # Errors
    /// A body that is no JSON, no object, or nested too deep.
    pub fn parse(body: &[u8]) -> Result<Self> {
        let value = parse(body)?;
        match value {
            Value::Object(fields) => Ok(Self { path: String::new(), fields }),
            other => {
                Err(ApiError::bad(format!("the body must be a JSON object, not {}", kind(&other))))
            }
        }
    }

    /// The object that a field is.
    ///
    /// # Errors
    /// A value that is no object.
    pub fn of(path: &str, value: Value) -> Result<Self> {
        match value {
            Value::Object(fields) => Ok(Self { path: format!("{path}."), fields }),
            other => Err(wrong(path, "an object", &other)),
        }
    }

    /// The name of a field in the whole body.
    pub fn name(&self, field: &str) -> String {
        format!("{}{field}", self.path)
    }

    /// An error about a field.
    pub fn error(&self, field: &str, message: impl std::fmt::Display) -> ApiError {
        ApiError::field(self.name(field), message)
    }

    /// Takes a value.
    pub fn take(&mut self, field: &str) -> Option<Value> {
        self.fields.remove(field).filter(|value| !value.is_null())
    }

    /// Puts a value back, or another in its place.
    pub fn put(&mut self, field: &str, value: Value) {
        self.fields.insert(field.to_owned(), value);
    }

    /// Takes a string.
    ///
    /// # Errors
    /// Another type.
    pub fn text(&mut self, field: &str) -> Result<Option<String>> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong(&self.name(field), "a string", &other)),
        }
    }

    /// Takes a truth value.
    ///
    /// # Errors
    /// Another type.
    pub fn flag(&mut self, field: &str) -> Result<Option<bool>> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(other) => Err(wrong(&self.name(field), "true or false", &other)),
        }
    }

    /// Takes a whole number inside limits.
    ///
    /// # Errors
    /// Another type, or a number outside.
    pub fn int(
        &mut self,
        field: &str,
        limits: std::ops::RangeInclusive<i64>,
    ) -> Result<Option<i64>> {
        let Some(value) = self.take(field) else { return Ok(None) };
        let number = value.as_i64().or_else(|| {
            // 5.0 is a whole number, too.
            value
                .as_f64()
                .filter(|number| number.fract() == 0.0 && number.abs() < 9e15)
                .map(|n| n as i64)
        });
        match number {
            Some(number) if limits.contains(&number) => Ok(Some(number)),
            Some(number) => {
                let (low, high) = (limits.start(), limits.end());
                Err(self.error(field, format!("is {number}, but must be from {low} to {high}")))
            }
            None => Err(wrong(&self.name(field), "a whole number", &value)),
        }
    }

    /// Takes a number inside limits.
    ///
    /// # Errors
    /// Another type, or a number outside.
    pub fn number(
        &mut self,
        field: &str,
        limits: std::ops::RangeInclusive<f64>,
    ) -> Result<Option<f32>> {
        let Some(value) = self.take(field) else { return Ok(None) };
        match value.as_f64() {
            Some(number) if limits.contains(&number) => Ok(Some(number as f32)),
            Some(number) => {
                let (low, high) = (limits.start(), limits.end());
                Err(self.error(field, format!("is {number}, but must be from {low} to {high}")))
            }
            None => Err(wrong(&self.name(field), "a number", &value)),
        }
    }

    /// Takes a list.
    ///
    /// # Errors
    /// Another type.
    pub fn list(&mut self, field: &str) -> Result<Option<Vec<Value>>> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(other) => Err(wrong(&self.name(field), "a list", &other)),
        }
    }

    /// Takes an object.
    ///
    /// # Errors
    /// Another type.
    pub fn object(&mut self, field: &str) -> Result<Option<Self>> {
        let path = self.name(field);
        self.take(field).map(|value| Self::of(&path, value)).transpose()
    }

    /// All that was not taken.
    pub fn into_all(self) -> Map<String, Value> {
        self.fields
    }

    /// Takes fields that say nothing about the answer.
    pub fn ignore(&mut self, fields: &[&str]) {
        for field in fields {
            self.fields.remove(*field);
        }
    }

    /// Takes strings that say nothing about the answer.
    ///
    /// # Errors
    /// Another type.
    pub fn ignore_texts(&mut self, fields: &[&str]) -> Result<()> {
        fields.iter().try_for_each(|field| self.text(field).map(drop))
    }

    /// Takes a field that is supported with one value only.
    ///
    /// # Errors
    /// Any other value.
    pub fn only(&mut self, field: &str, allowed: &[Value]) -> Result<()> {
        match self.take(field) {
            Some(value) if !allowed.contains(&value) => {
                let allowed: Vec<String> = allowed.iter().map(Value::to_string).collect();
                let allowed = allowed.join(" or ");
                Err(self.error(field, format!("is not supported here, except as {allowed}")))
            }
            _ => Ok(()),
        }
    }

    /// Refuses what was not taken.
    ///
    /// # Errors
    /// A field that is left.
    pub fn finish(self) -> Result<()> {
        match self.fields.iter().find(|(_, value)| !value.is_null()) {
            None => Ok(()),
            Some((name, _)) => {
                let name = shorten(&format!("{}{name}", self.path));
                Err(ApiError::field(name, "is not supported").with_code("unsupported_field"))
            }
        }
    }
}

/// Reads JSON that is not nested too deep.
fn parse(body: &[u8]) -> Result<Value> {
    let value: Value = serde_json::from_slice(body)
        .map_err(|error| ApiError::bad(format!("the body is no valid JSON: {error}")))?;
    match depth(&value) > MAX_DEPTH {
        true => Err(ApiError::bad(format!("the body is nested deeper than {MAX_DEPTH} levels"))),
        false => Ok(value),
    }
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// An error about the type of a value.
pub fn wrong(name: &str, expected: &str, found: &Value) -> ApiError {
    ApiError::field(name, format!("must be {expected}, not {}", kind(found)))
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn shorten(text: &str) -> String {
    match text.char_indices().nth(100) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_asked_for_is_refused_by_its_name() {
        let mut fields = Fields::parse(br#"{"a": 1, "b": null, "c": {"d": "x"}}"#).unwrap();
        assert_eq!(fields.int("a", 0..=5).unwrap(), Some(1));
        let inner = fields.object("c").unwrap().unwrap();
        let error = inner.finish().unwrap_err();
        assert_eq!(error.openai()["error"]["param"], "c.d");
        fields.finish().unwrap();
    }

    #[test]
    fn types_and_limits_are_checked() {
        let mut fields = Fields::parse(br#"{"a": 9, "b": 2.0, "c": "x", "d": 2.5}"#).unwrap();
        assert!(fields.int("a", 0..=5).unwrap_err().message().contains("from 0 to 5"));
        assert_eq!(fields.int("b", 0..=5).unwrap(), Some(2));
        assert!(
            fields.number("c", 0.0..=1.0).unwrap_err().message().contains("a number, not a string")
        );
        assert!(fields.int("d", 0..=5).is_err());
    }

    #[test]
    fn depth_is_limited() {
        let nested = |depth: usize| format!("{{\"a\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
        assert!(Fields::parse(nested(63).as_bytes()).is_ok());
        for deep in [64, 127, 100_000] {
            assert!(Fields::parse(nested(deep).as_bytes()).is_err(), "{deep}");
        }
        assert!(Fields::parse(b"[1]").is_err() && Fields::parse(b"{").is_err());
    }
}
