//! Tokenizers, chat templates and grammars behind the C header include/verbund_text.h, which documents ownership and threads.

mod bytes;
mod detokenizer;
mod ffi;
mod gguf;
mod grammar;
mod jinja;
mod pre;
mod python;
mod template;
mod tokenizer;

/// Why a call failed: a sentence, and whether the caller's input is to blame.
pub struct Fault {
    pub invalid: bool,
    pub text: String,
}

impl Fault {
    fn invalid(text: impl ToString) -> Self {
        Fault { invalid: true, text: text.to_string() }
    }

    fn internal(text: impl ToString) -> Self {
        Fault { invalid: false, text: text.to_string() }
    }
}
