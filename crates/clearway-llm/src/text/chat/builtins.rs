//! What a template can call: the functions, filters, tests and methods of the reference implementation, metered.
//!
//! Filters and methods whose result can be much larger than their arguments have a rule of their own here, or are left
//! out where no chat template uses them (`format`, `batch`, `slice`, `sum`).

use std::fmt::Write;
use std::sync::Arc;

use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs, from_args};

use minijinja::{Environment, Error, ErrorKind, State, Value, filters, functions, tests};
use minijinja_contrib::pycompat;

use super::meter::Meter;
use super::{Date, json, operators};

/// Arguments of a call, named ones included.
type Args = Rest<ValueOrKwargs>;

/// Gives `env` everything a chat template may use.
pub(super) fn install(env: &mut Environment<'static>, meter: &Arc<Meter>, date: Date) {
    let formatter = Arc::clone(meter);
    env.set_formatter(move |out, _, value| formatter.write(out, value));
    let methods = Arc::clone(meter);
    env.set_unknown_method_callback(move |state, value, name, args| {
        call_method(&methods, state, value, name, args)
    });
    operators::install(env, meter);
    install_functions(env, meter, date);
    install_filters(env, meter);
    install_tests(env, meter);
}

fn install_functions(env: &mut Environment<'static>, meter: &Arc<Meter>, date: Date) {
    for (name, function) in [
        ("range", Value::from_function(functions::range)),
        ("dict", Value::from_function(functions::dict)),
        ("namespace", Value::from_function(functions::namespace)),
    ] {
        env.add_function(name, metered(meter, function));
    }
    let m = Arc::clone(meter);
    env.add_function("raise_exception", move |message: &Value| -> Result<Value, Error> {
        let mut text = String::new();
        m.write(&mut text, message)?;
        Err(m.raise(text))
    });
    env.add_function("strftime_now", move |format: &str| strftime(format, date));
}

fn install_filters(env: &mut Environment<'static>, meter: &Arc<Meter>) {
    for (name, filter) in [
        ("abs", Value::from_function(filters::abs)),
        ("attr", Value::from_function(filters::attr)),
        ("capitalize", Value::from_function(filters::capitalize)),
        ("count", Value::from_function(filters::length)),
        ("d", Value::from_function(filters::default)),
        ("default", Value::from_function(filters::default)),
        ("dictsort", Value::from_function(filters::dictsort)),
        ("e", Value::from_function(filters::escape)),
        ("escape", Value::from_function(filters::escape)),
        ("first", Value::from_function(filters::first)),
        ("float", Value::from_function(filters::float)),
        ("groupby", Value::from_function(filters::groupby)),
        ("int", Value::from_function(filters::int)),
        ("items", Value::from_function(filters::items)),
        ("last", Value::from_function(filters::last)),
        ("length", Value::from_function(filters::length)),
        ("list", Value::from_function(filters::list)),
        ("lower", Value::from_function(filters::lower)),
        ("map", Value::from_function(filters::map)),
        ("max", Value::from_function(filters::max)),
        ("min", Value::from_function(filters::min)),
        ("reject", Value::from_function(filters::reject)),
        ("rejectattr", Value::from_function(filters::rejectattr)),
        ("reverse", Value::from_function(filters::reverse)),
        ("round", Value::from_function(filters::round)),
        ("safe", Value::from_function(filters::safe)),
        ("select", Value::from_function(filters::select)),
        ("selectattr", Value::from_function(filters::selectattr)),
        ("sort", Value::from_function(filters::sort)),
        ("title", Value::from_function(filters::title)),
        ("trim", Value::from_function(filters::trim)),
        ("unique", Value::from_function(filters::unique)),
        ("upper", Value::from_function(filters::upper)),
    ] {
        env.add_filter(name, metered(meter, filter));
    }
    let m = Arc::clone(meter);
    env.add_filter("string", move |value: &Value| {
        let mut text = String::new();
        m.write(&mut text, value)?;
        Ok::<_, Error>(text)
    });
    let m = Arc::clone(meter);
    env.add_filter("tojson", move |value: &Value, args: Args| {
        json::to_json(&m, value, &args.into_values())
    });
    let m = Arc::clone(meter);
    env.add_filter("join", move |value: &Value, separator: Option<&str>, options: Kwargs| {
        let attribute: Option<&str> = options.get("attribute")?;
        let separator = match separator {
            Some(separator) => separator,
            None => options.get::<Option<&str>>("d")?.unwrap_or(""),
        };
        options.assert_all_used()?;
        join(&m, separator, value, attribute)
    });
    let (m, inner) = (Arc::clone(meter), Value::from_function(filters::replace));
    env.add_filter("replace", move |state: &mut State<'_, '_>, args: Args| {
        let args = args.into_values();
        charge_replace(&m, args.first(), args.get(1), args.get(2))?;
        m.admit(inner.call(state, &args)?)
    });
    let (m, inner) = (Arc::clone(meter), Value::from_function(filters::indent));
    env.add_filter("indent", move |state: &mut State<'_, '_>, args: Args| {
        let args = args.into_values();
        charge_indent(&m, &args)?;
        m.admit(inner.call(state, &args)?)
    });
}

fn install_tests(env: &mut Environment<'static>, meter: &Arc<Meter>) {
    for (name, test) in [
        ("boolean", Value::from_function(tests::is_boolean)),
        ("defined", Value::from_function(tests::is_defined)),
        ("even", Value::from_function(tests::is_even)),
        ("false", Value::from_function(tests::is_false)),
        ("float", Value::from_function(tests::is_float)),
        ("integer", Value::from_function(tests::is_integer)),
        ("lower", Value::from_function(tests::is_lower)),
        ("mapping", Value::from_function(tests::is_mapping)),
        ("none", Value::from_function(tests::is_none)),
        ("number", Value::from_function(tests::is_number)),
        ("odd", Value::from_function(tests::is_odd)),
        ("sameas", Value::from_function(tests::is_sameas)),
        ("string", Value::from_function(tests::is_string)),
        ("true", Value::from_function(tests::is_true)),
        ("undefined", Value::from_function(tests::is_undefined)),
        ("upper", Value::from_function(tests::is_upper)),
    ] {
        env.add_test(name, metered(meter, test));
    }
    for (names, test) in [
        (&["==", "eq", "equalto"][..], Value::from_function(tests::is_eq)),
        (&["!=", "ne"], Value::from_function(tests::is_ne)),
        (&["<", "lt", "lessthan"], Value::from_function(tests::is_lt)),
        (&["<=", "le"], Value::from_function(tests::is_le)),
        (&[">", "gt", "greaterthan"], Value::from_function(tests::is_gt)),
        (&[">=", "ge"], Value::from_function(tests::is_ge)),
        (&["in"], Value::from_function(tests::is_in)),
    ] {
        for &name in names {
            env.add_test(name, metered(meter, test.clone()));
        }
    }
    // The engine's own test panics on zero.
    env.add_test("divisibleby", |value: i128, by: i128| {
        let zero = || Error::new(ErrorKind::InvalidOperation, "division by zero");
        value.checked_rem(by).map(|rest| rest == 0).ok_or_else(zero)
    });
    // In Python a string and a dictionary have a length and items too.
    env.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Map)
    });
    env.add_test("iterable", |value: &Value| {
        matches!(
            value.kind(),
            ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Iterable
        )
    });
}

/// `function` with its arguments and its result paid for.
fn metered(
    meter: &Arc<Meter>,
    function: Value,
) -> impl Fn(&mut State<'_, '_>, Args) -> Result<Value, Error> + Send + Sync + 'static {
    let meter = Arc::clone(meter);
    move |state: &mut State<'_, '_>, args: Args| {
        let args = args.into_values();
        for arg in &args {
            meter.look(arg)?;
        }
        meter.admit(function.call(state, &args)?)
    }
}

fn join(
    meter: &Meter,
    separator: &str,
    values: &Value,
    attribute: Option<&str>,
) -> Result<Value, Error> {
    meter.look(values)?;
    let mut text = String::new();
    for (i, item) in values.try_iter()?.checked().enumerate() {
        if i > 0 {
            meter.charge(separator.len())?;
            text.write_str(separator)?;
        }
        let item = match attribute {
            Some(name) => item?.get_attr(name)?,
            None => item?,
        };
        meter.write(&mut text, &item)?;
    }
    Ok(Value::from(text))
}

/// Pays for the largest result that replacing can have.
fn charge_replace(
    meter: &Meter,
    text: Option<&Value>,
    old: Option<&Value>,
    new: Option<&Value>,
) -> Result<(), Error> {
    let len = |value: Option<&Value>| value.and_then(Value::as_str).map_or(0, str::len);
    let (text, old, new) = (len(text), len(old), len(new));
    meter.charge(text)?;
    meter.charge_times(text / old.max(1) + 1, new)
}

/// Pays for indenting every line by the width asked for.
fn charge_indent(meter: &Meter, args: &[Value]) -> Result<(), Error> {
    let text = args.first().and_then(Value::as_str).unwrap_or("");
    let mut width = 4;
    for arg in args.iter().skip(1) {
        let named = arg.is_kwargs().then(|| arg.get_attr("width")).transpose()?;
        for value in [Some(arg), named.as_ref()].into_iter().flatten() {
            width = width.max(value.as_usize().or(value.as_str().map(str::len)).unwrap_or(0));
        }
    }
    meter.charge(text.len())?;
    meter.charge_times(text.bytes().filter(|&b| b == b'\n').count() + 1, width)
}

/// Python's methods of strings, dictionaries and lists.
fn call_method(
    meter: &Meter,
    state: &mut State<'_, '_>,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    meter.look(value)?;
    for arg in args {
        meter.look(arg)?;
    }
    if let Some(text) = value.as_str() {
        match name {
            "replace" => charge_replace(meter, Some(value), args.first(), args.get(1))?,
            "join" => {
                let (values,): (&Value,) = from_args(args)?;
                return join(meter, text, values, None);
            }
            "removeprefix" => {
                let (prefix,): (&str,) = from_args(args)?;
                return Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)));
            }
            "removesuffix" => {
                let (suffix,): (&str,) = from_args(args)?;
                return Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)));
            }
            "rsplit" => {
                let (separator, limit): (&str, Option<usize>) = from_args(args)?;
                let limit = limit.unwrap_or(text.len()).saturating_add(1);
                let mut parts: Vec<&str> = text.rsplitn(limit, separator).collect();
                parts.reverse();
                return meter.admit(Value::from_iter(parts));
            }
            "format" => return Err(Error::from(ErrorKind::UnknownMethod)),
            _ => {}
        }
    }
    meter.admit(pycompat::unknown_method_callback(state, value, name, args)?)
}

/// Python's `strftime` at midnight of `date`.
fn strftime(format: &str, date: Date) -> Result<String, Error> {
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    const DAYS: [&str; 7] =
        ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
    let month = MONTHS[usize::from(date.month.clamp(1, 12) - 1)];
    let day = DAYS[weekday(date)];
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(ch) = chars.next() {
        if ch != '%' {
            out.push(ch);
            continue;
        }
        match chars.next() {
            Some('Y') => write!(out, "{:04}", date.year)?,
            Some('y') => write!(out, "{:02}", date.year % 100)?,
            Some('m') => write!(out, "{:02}", date.month)?,
            Some('d') => write!(out, "{:02}", date.day)?,
            Some('e') => write!(out, "{:2}", date.day)?,
            Some('B') => out.push_str(month),
            Some('b' | 'h') => out.push_str(&month[..3]),
            Some('A') => out.push_str(day),
            Some('a') => out.push_str(&day[..3]),
            Some('F') => write!(out, "{:04}-{:02}-{:02}", date.year, date.month, date.day)?,
            Some('H' | 'M' | 'S') => out.push_str("00"),
            Some('%') => out.push('%'),
            other => {
                let detail = format!("strftime_now does not know %{}", other.unwrap_or(' '));
                return Err(Error::new(ErrorKind::InvalidOperation, detail));
            }
        }
    }
    Ok(out)
}

/// Day of the week, Sunday first: Zeller's congruence, with January and February counted to the year before.
fn weekday(date: Date) -> usize {
    let (mut year, mut month) = (usize::from(date.year), usize::from(date.month));
    if month < 3 {
        month += 12;
        year = year.saturating_sub(1);
    }
    let day = usize::from(date.day);
    (day + 13 * (month + 1) / 5 + year + year / 4 + year / 400 + 6 - year / 100 % 7 + 7) % 7
}
