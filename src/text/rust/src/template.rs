//! Chat templates, rendered with the settings, functions and filters that the transformers library gives them.

use minijinja::{context, Environment, Error, ErrorKind, Value};

use crate::{jinja, python, Fault};

/// Instructions of one rendering. A conversation of a thousand messages takes about 10^5; this many take some 50 ms.
const FUEL: u64 = 2_000_000;
/// Calls of macros and loops inside one another. Threads may have small stacks (512 KiB on macOS).
const RECURSION_MAX: usize = 100;
const NAME: &str = "chat_template";

pub struct ChatTemplate {
    environment: Environment<'static>,
}

impl ChatTemplate {
    pub fn new(source: &str) -> Result<Self, Fault> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(RECURSION_MAX);
        environment.set_formatter(|out, _, value| {
            out.write_str(&python::to_text(value)).map_err(Error::from)
        });
        jinja::install(&mut environment);
        environment.add_function("raise_exception", |message: String| -> Result<String, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_function("strftime_now", |format: String| strftime_now(&format));
        environment.add_template_owned(NAME, without_generation_tags(source)).map_err(|e| fault("chat template", &e))?;
        Ok(ChatTemplate { environment })
    }

    pub fn render(&self, variables: &str) -> Result<String, Fault> {
        let variables: serde_json::Value =
            serde_json::from_str(variables).map_err(|e| Fault::invalid(format!("bad template variables: {e}")))?;
        let template = self.environment.get_template(NAME).map_err(|e| fault("chat template", &e))?;
        template.render(context! { ..Value::from_serialize(&variables) }).map_err(|e| fault("chat template", &e))
    }
}

fn fault(what: &str, error: &Error) -> Fault {
    if error.kind() == ErrorKind::OutOfFuel {
        return Fault::invalid(format!("{what} does not come to an end (more than {FUEL} instructions)"));
    }
    let line = error.line().map_or(String::new(), |line| format!(", line {line}"));
    let mut text = match error.detail() {
        // The template's own words (raise_exception) are the message, without the library's category in front.
        Some(detail) if error.kind() == ErrorKind::InvalidOperation => format!("{what}{line}: {detail}"),
        Some(detail) => format!("{what}{line}: {}: {detail}", error.kind()),
        None => format!("{what}{line}: {}", error.kind()),
    };
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    Fault::invalid(text)
}

fn strftime_now(format: &str) -> Result<String, Error> {
    let wrong = || Error::new(ErrorKind::InvalidOperation, "strftime_now: bad format");
    if format.is_empty() {
        return Ok(String::new());
    }
    let format = std::ffi::CString::new(format).map_err(|_| wrong())?;
    let mut buffer = [0u8; 1024];
    // SAFETY: both calls write only to the memory given to them; localtime_r is the reentrant one.
    let length = unsafe {
        let now = libc::time(std::ptr::null_mut());
        let mut parts: libc::tm = std::mem::zeroed();
        libc::localtime_r(&now, &mut parts);
        libc::strftime(buffer.as_mut_ptr().cast(), buffer.len(), format.as_ptr(), &parts)
    };
    String::from_utf8(buffer[..length].to_vec()).map_err(|_| wrong())
}

/// `{% generation %}` marks the assistant's part for training and prints its body as it is. It has a scope of its own, as `with`.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start..].find("%}") else { break };
        let inner = &rest[start + 2..start + length];
        let word = inner.trim_matches(['-', '+']).trim();
        out.push_str(&rest[..start]);
        match word {
            "generation" => out.push_str(&format!("{{%{}%}}", inner.replace("generation", "with"))),
            "endgeneration" => out.push_str(&format!("{{%{}%}}", inner.replace("endgeneration", "endwith"))),
            _ => {
                // Only the opening is passed on: a string inside the tag may hold "%}".
                out.push_str("{%");
                rest = &rest[start + 2..];
                continue;
            }
        }
        rest = &rest[start + length + 2..];
    }
    out.push_str(rest);
    out
}
