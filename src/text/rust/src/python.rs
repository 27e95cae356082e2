//! Values as Python writes them: str(), repr() and json.dumps() as the templates of Hugging Face expect.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};

/// str(value): what `{{ value }}` prints.
pub fn to_text(value: &Value) -> String {
    if value.is_undefined() {
        return String::new();
    }
    match value.as_str() {
        Some(text) => text.to_string(),
        None => repr(value),
    }
}

fn repr(value: &Value) -> String {
    match value.kind() {
        ValueKind::Undefined => "Undefined".into(),
        ValueKind::None => "None".into(),
        ValueKind::Bool => (if value.is_true() { "True" } else { "False" }).into(),
        ValueKind::Number => number(value),
        ValueKind::String => quote(value.as_str().unwrap_or_default()),
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<String> = value.try_iter().into_iter().flatten().map(|item| repr(&item)).collect();
            format!("[{}]", items.join(", "))
        }
        ValueKind::Map => {
            let pairs = value.try_iter().into_iter().flatten();
            let pairs: Vec<String> =
                pairs.map(|key| format!("{}: {}", repr(&key), repr(&value.get_item(&key).unwrap_or_default()))).collect();
            format!("{{{}}}", pairs.join(", "))
        }
        _ => value.to_string(),
    }
}

fn quote(text: &str) -> String {
    let mark = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(mark);
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == mark => out.extend(['\\', c]),
            c if !is_printable(c) => out.push_str(&match c as u32 {
                code @ ..=0xff => format!("\\x{code:02x}"),
                code @ ..=0xffff => format!("\\u{code:04x}"),
                code => format!("\\U{code:08x}"),
            }),
            c => out.push(c),
        }
    }
    out.push(mark);
    out
}

/// Python prints control and format characters, separators but the space, and private-use characters as escapes. Unassigned
/// ones, which it escapes too, are left as they are.
fn is_printable(character: char) -> bool {
    !matches!(character as u32,
        0..=0x1f | 0x7f..=0xa0 | 0xad | 0x600..=0x605 | 0x61c | 0x6dd | 0x70f | 0x890 | 0x891 | 0x8e2 | 0x1680 | 0x180e
        | 0x2000..=0x200f | 0x2028..=0x202f | 0x205f..=0x2064 | 0x2066..=0x206f | 0x3000 | 0xe000..=0xf8ff | 0xfeff
        | 0xfff9..=0xfffb | 0x110bd | 0x110cd | 0x13430..=0x1343f | 0x1bca0..=0x1bca3 | 0x1d173..=0x1d17a | 0xe0001
        | 0xe0020..=0xe007f | 0xf0000..)
}

fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    f64::try_from(value.clone()).map_or_else(|_| value.to_string(), float)
}

/// repr(float): shortest digits; an exponent below 1e-4 and from 1e16 on, with at least two digits.
fn float(value: f64) -> String {
    if value.is_nan() {
        return "nan".into();
    }
    if value.is_infinite() {
        return (if value > 0.0 { "inf" } else { "-inf" }).into();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let text = value.to_string();
    if text.contains('.') { text } else { text + ".0" }
}

/// `tojson` of the transformers library: json.dumps without HTML escapes, with its keyword arguments.
pub fn tojson(value: &Value, arguments: Kwargs) -> Result<String, Error> {
    let style = Style {
        ascii: arguments.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort: arguments.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        indent: indent(arguments.get::<Option<Value>>("indent")?)?,
        separators: arguments.get::<Option<Vec<String>>>("separators")?,
    };
    arguments.assert_all_used()?;
    let mut out = String::new();
    style.dump(value, 0, &mut out)?;
    Ok(out)
}

fn indent(value: Option<Value>) -> Result<Option<String>, Error> {
    match value {
        None => Ok(None),
        Some(value) if value.is_none() || value.is_undefined() => Ok(None),
        Some(value) => match (value.as_str(), value.as_usize()) {
            (Some(text), _) => Ok(Some(text.into())),
            (None, Some(width)) if width <= 64 => Ok(Some(" ".repeat(width))),
            _ => Err(Error::new(ErrorKind::InvalidOperation, "tojson: indent must be a small number or a string")),
        },
    }
}

const DEPTH_MAX: usize = 128;

struct Style {
    ascii: bool,
    sort: bool,
    indent: Option<String>,
    separators: Option<Vec<String>>,
}

impl Style {
    fn dump(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        if depth > DEPTH_MAX {
            return Err(Error::new(ErrorKind::InvalidOperation, "tojson: value is nested too deeply"));
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&match number(value).as_str() {
                "nan" => "NaN".to_string(),
                "inf" => "Infinity".to_string(),
                "-inf" => "-Infinity".to_string(),
                text => text.to_string(),
            }),
            ValueKind::String => self.string(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.block('[', ']', &items, depth, out, |item, out| self.dump(item, depth + 1, out))?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort {
                    keys.sort();
                }
                self.block('{', '}', &keys, depth, out, |key, out| {
                    match key.kind() {
                        ValueKind::String => self.string(key.as_str().unwrap_or_default(), out),
                        ValueKind::None | ValueKind::Bool | ValueKind::Number => {
                            out.push('"');
                            self.dump(key, depth + 1, out)?;
                            out.push('"');
                        }
                        kind => return Err(Error::new(ErrorKind::InvalidOperation, format!("tojson: a key cannot be {kind}"))),
                    }
                    out.push_str(self.separator(1, ": "));
                    self.dump(&value.get_item(key)?, depth + 1, out)
                })?;
            }
            kind => return Err(Error::new(ErrorKind::InvalidOperation, format!("tojson: {kind} is not JSON serializable"))),
        }
        Ok(())
    }

    fn block(
        &self,
        open: char,
        close: char,
        items: &[Value],
        depth: usize,
        out: &mut String,
        mut item: impl FnMut(&Value, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(open);
        for (at, value) in items.iter().enumerate() {
            if at > 0 {
                out.push_str(self.separator(0, if self.indent.is_some() { "," } else { ", " }));
            }
            self.new_line(depth + 1, out);
            item(value, out)?;
        }
        if !items.is_empty() {
            self.new_line(depth, out);
        }
        out.push(close);
        Ok(())
    }

    fn new_line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            out.push_str(&indent.repeat(depth));
        }
    }

    fn separator<'a>(&'a self, at: usize, default: &'a str) -> &'a str {
        self.separators.as_ref().and_then(|both| both.get(at)).map_or(default, String::as_str)
    }

    fn string(&self, text: &str, out: &mut String) {
        out.push('"');
        for character in text.chars() {
            match character {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if (c as u32) < 0x20 => out.push_str(&format!("\\u{:04x}", c as u32)),
                c if self.ascii && !(' '..='~').contains(&c) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}
