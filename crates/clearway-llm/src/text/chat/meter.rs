//! The budget of a running template.
//!
//! Every operation that makes or reads text or containers pays for its size. Sizes of single values are bounded by the
//! budget, and containers by their depth as well, so that whatever the engine does with one of them, from comparing to
//! dropping it, is bounded too.

use std::fmt::{self, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use minijinja::value::{ObjectRepr, ValueKind};
use minijinja::{Error, ErrorKind, Value, functions};

/// Deepest container. Conversations need about four.
const MAX_DEPTH: usize = 24;
/// What one item of a container costs, in bytes.
const ITEM: usize = 16;

/// What a template may still do.
#[derive(Debug)]
pub(super) struct Meter {
    left: AtomicU64,
    spent: AtomicBool,
    raised: Mutex<Option<String>>,
    /// The engine keeps its namespace type private; its name tells namespaces from other maps.
    namespace: &'static str,
}

impl Meter {
    /// A meter with `work` bytes to spend.
    pub(super) fn new(work: u64) -> Self {
        let namespace = functions::namespace(None).ok();
        let namespace = namespace.as_ref().and_then(Value::as_object);
        Self {
            left: AtomicU64::new(work),
            spent: AtomicBool::new(false),
            raised: Mutex::new(None),
            namespace: namespace.map_or("", |object| object.type_name()),
        }
    }

    /// Pays for `bytes`.
    pub(super) fn charge(&self, bytes: usize) -> Result<(), Error> {
        let take = |left: u64| left.checked_sub(bytes as u64);
        match self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            Ok(_) => Ok(()),
            Err(_) => {
                self.spent.store(true, Ordering::Relaxed);
                Err(Error::new(ErrorKind::InvalidOperation, "budget spent"))
            }
        }
    }

    /// Pays for a product that may not fit any integer.
    pub(super) fn charge_times(&self, bytes: usize, times: usize) -> Result<(), Error> {
        self.charge(bytes.saturating_mul(times))
    }

    /// Whether the budget is what stopped the template.
    pub(super) fn is_spent(&self) -> bool {
        self.spent.load(Ordering::Relaxed)
    }

    /// Notes that the template refused the conversation.
    pub(super) fn raise(&self, message: String) -> Error {
        if let Ok(mut raised) = self.raised.lock() {
            raised.get_or_insert(message);
        }
        Error::new(ErrorKind::InvalidOperation, "raise_exception")
    }

    /// With what words the template refused, if it did.
    pub(super) fn raised(&self) -> Option<String> {
        self.raised.lock().ok().and_then(|raised| raised.clone())
    }

    /// Pays for looking at a value without its parts.
    pub(super) fn look(&self, value: &Value) -> Result<(), Error> {
        self.charge(match (value.as_str(), value.as_object()) {
            (Some(text), _) => text.len(),
            (None, Some(object)) => object.enumerator_len().unwrap_or(1).saturating_mul(ITEM),
            (None, None) => 1,
        })
    }

    /// Pays for reading a value with all its parts.
    pub(super) fn read(&self, value: &Value) -> Result<(), Error> {
        self.walk(value, MAX_DEPTH, true, false)
    }

    /// Lets a new value into the program: pays for it, and makes lists of what would be computed at each use.
    pub(super) fn admit(&self, value: Value) -> Result<Value, Error> {
        let value = match value.kind() {
            ValueKind::Iterable => {
                let mut items = Vec::new();
                for item in value.try_iter()?.checked() {
                    self.charge(ITEM)?;
                    items.push(item?);
                }
                Value::from(items)
            }
            ValueKind::String => {
                self.look(&value)?;
                return Ok(value);
            }
            _ => value,
        };
        self.walk(&value, MAX_DEPTH, false, false)?;
        Ok(value)
    }

    /// Lets a value into a namespace. Namespaces may not hold namespaces: a cycle of them would never be freed, and
    /// printing it would never end.
    pub(super) fn admit_to_namespace(&self, value: Value) -> Result<Value, Error> {
        self.walk(&value, MAX_DEPTH, false, true)?;
        Ok(value)
    }

    /// Formats `value` as Python would, within the budget.
    pub(super) fn write(&self, out: &mut dyn Write, value: &Value) -> Result<(), Error> {
        if let Some(text) = value.as_str() {
            self.charge(text.len())?;
            return Ok(out.write_str(text)?);
        }
        // The engine does not descend with a depth of its own; `read` refuses what is too deep.
        self.read(value)?;
        write!(Metered { meter: self, out }, "{value}")?;
        Ok(())
    }

    fn walk(
        &self,
        value: &Value,
        depth: usize,
        with_text: bool,
        for_namespace: bool,
    ) -> Result<(), Error> {
        let Some(object) = value.as_object() else {
            let text = value.as_str().filter(|_| with_text);
            return self.charge(text.map_or(1, str::len));
        };
        if for_namespace && object.type_name() == self.namespace {
            let message = "a namespace can not hold a namespace";
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        }
        let is_container =
            matches!(object.repr(), ObjectRepr::Map | ObjectRepr::Seq | ObjectRepr::Iterable);
        if !is_container {
            return self.charge(ITEM);
        }
        let Some(depth) = depth.checked_sub(1) else {
            let message = "values are nested too deeply";
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        };
        let visit = |item: &Value| {
            self.charge(ITEM)?;
            self.walk(item, depth, with_text, for_namespace)
        };
        match object.repr() {
            ObjectRepr::Map => {
                for (key, item) in object.try_iter_pairs().into_iter().flatten() {
                    visit(&key)?;
                    visit(&item)?;
                }
            }
            _ => {
                for item in object.try_iter().into_iter().flatten() {
                    visit(&item)?;
                }
            }
        }
        Ok(())
    }
}

/// A writer that pays for what it writes.
struct Metered<'a> {
    meter: &'a Meter,
    out: &'a mut dyn Write,
}

impl Write for Metered<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.meter.charge(text.len()).map_err(|_| fmt::Error)?;
        self.out.write_str(text)
    }
}
