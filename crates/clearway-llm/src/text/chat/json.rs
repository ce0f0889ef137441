//! The `tojson` filter as `transformers` defines it: Python's `json.dumps` without escaping of non-ASCII characters.

use std::fmt::Write;

use minijinja::value::{Kwargs, ValueKind, from_args};
use minijinja::{Error, ErrorKind, Value};

use super::meter::Meter;

/// Most spaces per level of indentation.
const MAX_INDENT: usize = 16;

/// `value` as JSON, with the arguments of `json.dumps` that templates use.
pub(super) fn to_json(meter: &Meter, value: &Value, args: &[Value]) -> Result<Value, Error> {
    let (indent, options): (Option<usize>, Kwargs) = from_args(args)?;
    let indent = indent.or(options.get("indent")?);
    let separators: Option<Vec<String>> = options.get("separators")?;
    let separators = separators.and_then(|s| <[String; 2]>::try_from(s).ok());
    let sort_keys: Option<bool> = options.get("sort_keys")?;
    let ensure_ascii: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    // The value is no deeper than the meter allows.
    meter.read(value)?;
    let item = if indent.is_some() { "," } else { ", " };
    let [item, key] = separators.unwrap_or([item.to_owned(), ": ".to_owned()]);
    let mut writer = Json {
        meter,
        out: String::new(),
        indent: indent.map(|width| width.min(MAX_INDENT)),
        item,
        key,
        sort_keys: sort_keys.unwrap_or(false),
        ensure_ascii: ensure_ascii.unwrap_or(false),
    };
    writer.value(value, 0)?;
    Ok(Value::from(writer.out))
}

struct Json<'a> {
    meter: &'a Meter,
    out: String,
    indent: Option<usize>,
    item: String,
    key: String,
    sort_keys: bool,
    ensure_ascii: bool,
}

impl Json<'_> {
    fn value(&mut self, value: &Value, level: usize) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => {
                let text = if value.is_true() { "true" } else { "false" };
                self.out.push_str(text);
            }
            ValueKind::Number => write!(self.out, "{value}")?,
            ValueKind::String => self.string(value.as_str().unwrap_or_default())?,
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.checked().collect::<Result<Vec<_>, _>>()?;
                self.nested(['[', ']'], items, level, |this, item| this.value(item, level + 1))?;
            }
            ValueKind::Map => {
                let mut pairs = Vec::new();
                for key in value.try_iter()? {
                    let item = value.get_item(&key)?;
                    pairs.push((key, item));
                }
                if self.sort_keys {
                    pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
                }
                self.nested(['{', '}'], pairs, level, |this, (key, item)| {
                    match key.as_str() {
                        Some(key) => this.string(key)?,
                        None => this.string(&key.to_string())?,
                    }
                    let separator = this.key.clone();
                    this.out.push_str(&separator);
                    this.value(item, level + 1)
                })?;
            }
            kind => {
                let detail = format!("{kind} has no JSON form");
                return Err(Error::new(ErrorKind::BadSerialization, detail));
            }
        }
        Ok(())
    }

    /// The items of a container between its brackets, one a line where there is indentation.
    fn nested<T>(
        &mut self,
        [open, close]: [char; 2],
        items: Vec<T>,
        level: usize,
        mut write: impl FnMut(&mut Self, &T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(open);
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                self.meter.charge(self.item.len())?;
                self.out.push_str(&self.item);
            }
            self.new_line(level + 1)?;
            write(self, item)?;
        }
        if !items.is_empty() {
            self.new_line(level)?;
        }
        self.out.push(close);
        Ok(())
    }

    fn new_line(&mut self, level: usize) -> Result<(), Error> {
        if let Some(width) = self.indent {
            self.meter.charge(width * level + 1)?;
            write!(self.out, "\n{:1$}", "", width * level)?;
        }
        Ok(())
    }

    fn string(&mut self, text: &str) -> Result<(), Error> {
        self.meter.charge_times(text.len(), 6)?;
        self.out.push('"');
        for ch in text.chars() {
            match ch {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                ch if ch < ' ' || (self.ensure_ascii && !(' '..='~').contains(&ch)) => {
                    for unit in ch.encode_utf16(&mut [0; 2]) {
                        write!(self.out, "\\u{unit:04x}")?;
                    }
                }
                ch => self.out.push(ch),
            }
        }
        self.out.push('"');
        Ok(())
    }
}
