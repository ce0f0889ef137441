//! Values that a template is given: what JSON can say, with the order of its keys.

use minijinja::Value;

/// A value for a template.
#[derive(Debug, Clone, PartialEq)]
pub enum Data {
    /// Nothing.
    Null,
    /// True or false.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// Any other number.
    Float(f64),
    /// Text.
    Text(String),
    /// Values in order.
    List(Vec<Self>),
    /// Values by name, in order.
    Map(Vec<(String, Self)>),
}

impl Data {
    /// Text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// Bytes of its text, names included.
    pub(super) fn size(&self) -> usize {
        match self {
            Self::Null | Self::Bool(_) | Self::Int(_) | Self::Float(_) => 8,
            Self::Text(text) => text.len(),
            Self::List(items) => items.iter().map(|item| item.size() + 8).sum(),
            Self::Map(entries) => entries.iter().map(|(key, value)| key.len() + value.size()).sum(),
        }
    }

    pub(super) fn to_value(&self) -> Value {
        match self {
            Self::Null => Value::from(()),
            Self::Bool(value) => Value::from(*value),
            Self::Int(value) => Value::from(*value),
            Self::Float(value) => Value::from(*value),
            Self::Text(text) => Value::from(text.as_str()),
            Self::List(items) => items.iter().map(Self::to_value).collect::<Vec<_>>().into(),
            Self::Map(entries) => Value::from_pairs(
                entries.iter().map(|(key, value)| (key.as_str(), value.to_value())),
            ),
        }
    }
}
