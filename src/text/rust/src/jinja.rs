//! Filters, tests and methods where minijinja answers otherwise than Jinja2 does. Templates are written against Jinja2.

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{filters, Environment, Error, ErrorKind, State, Value};

use crate::python;

pub fn install(environment: &mut Environment) {
    environment.set_unknown_method_callback(method);
    environment.add_test("iterable", |value: Value| {
        matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Iterable | ValueKind::Map | ValueKind::Undefined)
    });
    // Whatever has a length and takes an index: strings and dicts too.
    environment.add_test("sequence", |value: Value| {
        matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Iterable | ValueKind::Map | ValueKind::Undefined)
    });
    environment.add_test("number", |value: Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool));
    environment.add_test("none", |value: Value| value.kind() == ValueKind::None);

    environment.add_filter("tojson", |value: Value, arguments: Kwargs| python::tojson(&value, arguments));
    environment.add_filter("string", |value: Value| python::to_text(&value));
    environment.add_filter("join", join);
    environment.add_filter("trim", |value: Value, characters: Option<String>| match characters {
        Some(characters) => python::to_text(&value).trim_matches(|c| characters.contains(c)).to_string(),
        None => python::to_text(&value).trim().to_string(),
    });
    environment.add_filter("upper", |value: Value| python::to_text(&value).to_uppercase());
    environment.add_filter("lower", |value: Value| python::to_text(&value).to_lowercase());
    environment.add_filter("title", |value: Value| title(&python::to_text(&value)));
    environment.add_filter("indent", indent);
    environment.add_filter("round", round);
    environment.add_filter("length", length);
    environment.add_filter("count", length);
}

/// Methods of Python values: those of minijinja-contrib, except where they count bytes or know too few letters.
fn method(state: &State, value: &Value, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        let argument = if let [argument] = arguments { argument.as_str() } else { None };
        let place = |at: Option<usize>| at.map_or(-1, |at| text[..at].chars().count() as i64);
        match (name, argument) {
            ("find", Some(part)) => return Ok(place(text.find(part)).into()),
            ("rfind", Some(part)) => return Ok(place(text.rfind(part)).into()),
            ("removeprefix", Some(affix)) => return Ok(text.strip_prefix(affix).unwrap_or(text).into()),
            ("removesuffix", Some(affix)) => return Ok(text.strip_suffix(affix).unwrap_or(text).into()),
            ("title", None) if arguments.is_empty() => return Ok(capitals(text, |before| !before.is_alphabetic()).into()),
            _ => {}
        }
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, arguments)
}

fn wrong(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, text.into())
}

fn length(value: Value) -> Result<Value, Error> {
    if value.is_undefined() { Ok(Value::from(0)) } else { filters::length(&value).map(Value::from) }
}

/// join(d='', attribute=none)
fn join(values: Value, rest: Rest<Value>, named: Kwargs) -> Result<String, Error> {
    let separator = argument(&rest, &named, 0, "d")?.map_or(String::new(), |value| python::to_text(&value));
    let attribute = argument(&rest, &named, 1, "attribute")?.map(|name| python::to_text(&name));
    named.assert_all_used()?;
    let mut items = Vec::new();
    match values.as_str() {
        Some(text) => items.extend(text.chars().map(String::from)),
        None if values.is_undefined() => {}
        None => {
            for item in values.try_iter()? {
                let item = attribute.as_ref().map_or(Ok(item.clone()), |name| item.get_attr(name))?;
                items.push(python::to_text(&item));
            }
        }
    }
    Ok(items.join(&separator))
}

/// The filter: a word begins after white space, a hyphen or an opening bracket.
fn title(text: &str) -> String {
    capitals(text, |before| before.is_whitespace() || matches!(before, '-' | '(' | '{' | '[' | '<'))
}

/// Upper case for characters after a border, lower case for the others.
fn capitals(text: &str, is_border: impl Fn(char) -> bool) -> String {
    let mut first = true;
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        if first {
            out.extend(character.to_uppercase());
        } else {
            out.extend(character.to_lowercase());
        }
        first = is_border(character);
    }
    out
}

/// A filter's argument, given by place or by name.
fn argument(rest: &Rest<Value>, named: &Kwargs, at: usize, name: &str) -> Result<Option<Value>, Error> {
    match rest.get(at) {
        Some(value) => Ok(Some(value.clone())),
        None => named.get(name),
    }
}

/// indent(width=4, first=false, blank=false)
fn indent(value: Value, rest: Rest<Value>, named: Kwargs) -> Result<String, Error> {
    let width = argument(&rest, &named, 0, "width")?;
    let first = argument(&rest, &named, 1, "first")?.is_some_and(|flag| flag.is_true());
    let blank = argument(&rest, &named, 2, "blank")?.is_some_and(|flag| flag.is_true());
    named.assert_all_used()?;
    let indentation = match width {
        None => " ".repeat(4),
        Some(width) => match (width.as_str(), width.as_usize()) {
            (Some(text), _) => text.to_string(),
            (None, Some(count)) if count <= 1024 => " ".repeat(count),
            _ => return Err(wrong("indent: width must be a small number or a string")),
        },
    };
    let mut out = String::new();
    for (at, line) in python::to_text(&value).split('\n').enumerate() {
        if at > 0 {
            out.push('\n');
        }
        let indented = if at == 0 { first } else { blank || !line.is_empty() };
        if indented {
            out.push_str(&indentation);
        }
        out.push_str(line);
    }
    Ok(out)
}

/// round(precision=0, method='common'). Python rounds halves to even, and so does Rust's formatting with a precision.
fn round(value: Value, rest: Rest<Value>, named: Kwargs) -> Result<Value, Error> {
    let precision = argument(&rest, &named, 0, "precision")?.map_or(Some(0), |value| value.as_usize());
    let method = argument(&rest, &named, 1, "method")?.map_or("common".to_string(), |value| python::to_text(&value));
    named.assert_all_used()?;
    let Some(precision) = precision.filter(|precision| *precision <= 15) else { return Err(wrong("round: precision must be 0 to 15")) };
    if value.is_integer() && method == "common" {
        return Ok(value);
    }
    let number = f64::try_from(value)?;
    let scale = 10f64.powi(precision as i32);
    let rounded: f64 = match method.as_str() {
        "common" => format!("{number:.precision$}").parse().map_err(|_| wrong("round: not a number"))?,
        "ceil" => (number * scale).ceil() / scale,
        "floor" => (number * scale).floor() / scale,
        other => return Err(wrong(format!("round: unknown method {other}"))),
    };
    Ok(Value::from(rounded))
}
