//! Operators whose results can grow, with Python's meaning and paid for before they are made.

use std::sync::Arc;

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Value};

use super::meter::Meter;
use super::rewrite;

/// The functions that `rewrite` puts into a template.
pub(super) fn install(env: &mut Environment<'static>, meter: &Arc<Meter>) {
    let m = Arc::clone(meter);
    env.add_function(rewrite::ADMIT, move |value: Value| m.admit(value));
    let m = Arc::clone(meter);
    env.add_function(rewrite::ADMIT_TO_NAMESPACE, move |value: Value| m.admit_to_namespace(value));
    let m = Arc::clone(meter);
    env.add_function(rewrite::LOOK, move |value: Value| m.look(&value).map(|()| value));
    let m = Arc::clone(meter);
    env.add_function(rewrite::READ, move |value: Value| m.read(&value).map(|()| value));
    let m = Arc::clone(meter);
    env.add_function(rewrite::ADD, move |a: Value, b: Value| add(&m, &a, &b));
    let m = Arc::clone(meter);
    env.add_function(rewrite::MULTIPLY, move |a: Value, b: Value| multiply(&m, &a, &b));
    let m = Arc::clone(meter);
    env.add_function(rewrite::CONCAT, move |a: Value, b: Value| {
        let mut text = String::new();
        m.write(&mut text, &a)?;
        m.write(&mut text, &b)?;
        Ok::<_, Error>(Value::from(text))
    });
    let m = Arc::clone(meter);
    env.add_function(
        rewrite::SLICE,
        move |value: Value, start: Value, stop: Value, step: Value| {
            slice(&m, &value, &start, &stop, &step)
        },
    );
}

fn add(meter: &Meter, a: &Value, b: &Value) -> Result<Value, Error> {
    if let (Some(a), Some(b)) = (a.as_str(), b.as_str()) {
        meter.charge(a.len().saturating_add(b.len()))?;
        return Ok(Value::from([a, b].concat()));
    }
    if is_list(a) && is_list(b) {
        let mut items = Vec::new();
        for list in [a, b] {
            meter.look(list)?;
            for item in list.try_iter()?.checked() {
                items.push(item?);
            }
        }
        return meter.admit(match a.is_tuple() && b.is_tuple() {
            true => Value::from(Tuple::from(items)),
            false => Value::from(items),
        });
    }
    arithmetic("+", a, b, i128::checked_add, |a, b| a + b)
}

fn multiply(meter: &Meter, a: &Value, b: &Value) -> Result<Value, Error> {
    for (many, count) in [(a, b), (b, a)] {
        // Python takes a negative count for none.
        let count = count.as_i64().map(|count| usize::try_from(count).unwrap_or(0));
        match (many.as_str(), count) {
            (Some(text), Some(count)) => {
                meter.charge_times(text.len(), count)?;
                return Ok(Value::from(text.repeat(count)));
            }
            (None, Some(count)) if is_list(many) => {
                let items: Vec<Value> = many.try_iter()?.checked().collect::<Result<_, _>>()?;
                meter.charge_times(items.len().saturating_mul(size_of::<Value>()), count)?;
                // Nothing is free, however often it is repeated, but going through it is not.
                let count = if items.is_empty() { 0 } else { count };
                let repeated = std::iter::repeat_n(items, count).flatten();
                return meter.admit(Value::from(repeated.collect::<Vec<_>>()));
            }
            _ => {}
        }
    }
    arithmetic("*", a, b, i128::checked_mul, |a, b| a * b)
}

/// `value[start:stop:step]` as Python has it. The engine's own slices panic on an empty list taken backwards.
fn slice(
    meter: &Meter,
    value: &Value,
    start: &Value,
    stop: &Value,
    step: &Value,
) -> Result<Value, Error> {
    let index = |value: &Value| match value.is_none() {
        true => Ok(None),
        false => i64::try_from(value.clone()).map(Some),
    };
    let (start, stop, step) = (index(start)?, index(stop)?, index(step)?.unwrap_or(1));
    if step == 0 {
        let detail = "a slice can not have a step of 0";
        return Err(Error::new(ErrorKind::InvalidOperation, detail));
    }
    meter.look(value)?;
    if let Some(text) = value.as_str() {
        let chars: Vec<char> = text.chars().collect();
        let picked = indices(chars.len(), start, stop, step).map(|i| chars[i]);
        return meter.admit(Value::from(picked.collect::<String>()));
    }
    if !is_list(value) {
        let detail = format!("{} has no slices", value.kind());
        return Err(Error::new(ErrorKind::InvalidOperation, detail));
    }
    let items: Vec<Value> = value.try_iter()?.checked().collect::<Result<_, _>>()?;
    let picked = indices(items.len(), start, stop, step).map(|i| items[i].clone());
    meter.admit(match value.is_tuple() {
        true => Value::from(Tuple::from(picked.collect::<Vec<_>>())),
        false => Value::from(picked.collect::<Vec<_>>()),
    })
}

/// The indices that a Python slice of `len` items names, all below `len`.
fn indices(
    len: usize,
    start: Option<i64>,
    stop: Option<i64>,
    step: i64,
) -> impl Iterator<Item = usize> {
    let len = i128::try_from(len).unwrap_or(i128::MAX);
    let step = i128::from(step);
    let forward = step > 0;
    // Where an index outside the list stops: one before its start only when going backwards.
    let (low, high) = if forward { (0, len) } else { (-1, len - 1) };
    let clamp = |index: Option<i64>, default: i128| match index.map(i128::from) {
        None => default,
        Some(index) => (if index < 0 { index + len } else { index }).clamp(low, high),
    };
    let start = clamp(start, if forward { low } else { high });
    let stop = clamp(stop, if forward { high } else { low });
    let more = move |&at: &i128| if forward { at < stop } else { at > stop };
    std::iter::successors(Some(start), move |at| Some(at + step))
        .take_while(more)
        .filter_map(|at| usize::try_from(at).ok())
}

fn is_list(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
}

fn arithmetic(
    operator: &str,
    a: &Value,
    b: &Value,
    integers: impl Fn(i128, i128) -> Option<i128>,
    floats: impl Fn(f64, f64) -> f64,
) -> Result<Value, Error> {
    let failed = |why: &str| {
        let detail = format!("{} {operator} {}: {why}", a.kind(), b.kind());
        Error::new(ErrorKind::InvalidOperation, detail)
    };
    let is_number = |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool);
    if !is_number(a) || !is_number(b) {
        return Err(failed("unsupported types"));
    }
    let is_float = |value: &Value| value.is_number() && !value.is_integer();
    if !is_float(a)
        && !is_float(b)
        && let (Ok(a), Ok(b)) = (i128::try_from(a.clone()), i128::try_from(b.clone()))
    {
        let result = integers(a, b).ok_or_else(|| failed("out of range"))?;
        return Ok(i64::try_from(result).map_or_else(|_| Value::from(result), Value::from));
    }
    let float = |value: &Value| f64::try_from(value.clone()).map_err(|_| failed("out of range"));
    Ok(Value::from(floats(float(a)?, float(b)?)))
}

#[cfg(test)]
mod tests {
    use super::indices;

    #[test]
    fn slices_are_pythons() {
        let picked = |len, start, stop, step| indices(len, start, stop, step).collect::<Vec<_>>();
        assert_eq!(picked(4, None, None, 1), [0, 1, 2, 3]);
        assert_eq!(picked(4, None, None, -1), [3, 2, 1, 0]);
        assert_eq!(picked(4, Some(1), Some(-1), 1), [1, 2]);
        assert_eq!(picked(4, Some(-2), None, 1), [2, 3]);
        assert_eq!(picked(4, Some(9), Some(0), -2), [3, 1]);
        assert_eq!(picked(4, Some(-9), Some(9), 3), [0, 3]);
        assert_eq!(picked(4, Some(2), Some(1), 1), [0; 0]);
        assert_eq!(picked(0, None, None, -1), [0; 0]);
        assert_eq!(picked(3, Some(i64::MIN), Some(i64::MAX), i64::MAX), [0]);
        assert_eq!(picked(3, Some(i64::MAX), Some(i64::MIN), i64::MIN), [2]);
    }
}
