//! The C functions. Each does three things: borrow its arguments, call the module, hand the result over. `call` is the border where
//! errors become status codes and panics stop.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, Once};

use crate::detokenizer::Detokenizer;
use crate::gguf::{self, Vocabulary};
use crate::grammar::{Grammar, Kind, Walk, Spelling};
use crate::template::ChatTemplate;
use crate::tokenizer::Tokenizer;
use crate::Fault;

const OK: i32 = 0;
const INVALID: i32 = 1;
const INTERNAL: i32 = 2;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct View {
    data: *const u8,
    size: usize,
}

#[repr(C)]
pub struct Text {
    data: *mut u8,
    size: usize,
}

#[repr(C)]
pub struct Ids {
    data: *mut i32,
    size: usize,
}

/// `vbt_gguf`
#[repr(C)]
pub struct GgufView {
    model: View,
    pre: View,
    tokens: *const View,
    token_count: usize,
    token_types: *const i32,
    token_type_count: usize,
    merges: *const View,
    merge_count: usize,
    scores: *const f32,
    score_count: usize,
    bos: i32,
    eos: i32,
    unknown: i32,
    add_bos: i32,
    add_eos: i32,
    add_space_prefix: i32,
}

/// SAFETY (here and below): the header obliges the caller to pass pointers that are valid for the length that comes with them.
unsafe fn slice<'a, T>(data: *const T, size: usize) -> &'a [T] {
    if size == 0 { &[] } else { std::slice::from_raw_parts(data, size) }
}

unsafe fn text<'a>(view: View) -> Result<&'a str, Fault> {
    std::str::from_utf8(slice(view.data, view.size))
        .map_err(|error| Fault::invalid(format!("text is not UTF-8 (byte {})", error.valid_up_to())))
}

fn give_text(text: String) -> Text {
    let bytes = Box::leak(text.into_bytes().into_boxed_slice());
    Text { data: bytes.as_mut_ptr(), size: bytes.len() }
}

fn give_ids(ids: Vec<i32>) -> Ids {
    let ids = Box::leak(ids.into_boxed_slice());
    Ids { data: ids.as_mut_ptr(), size: ids.len() }
}

/// Runs `action`; success goes to `out`, a failure's sentence to `error`.
unsafe fn call<T>(out: *mut T, error: *mut Text, action: impl FnOnce() -> Result<T, Fault>) -> i32 {
    static QUIET: Once = Once::new();
    // The panic's text comes back as an error; the default hook would print it a second time.
    QUIET.call_once(|| std::panic::set_hook(Box::new(|_| {})));
    let result = catch_unwind(AssertUnwindSafe(action)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned().or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string()));
        Err(Fault::internal(format!("text library panicked: {}", text.unwrap_or_default())))
    });
    match result {
        Ok(value) => {
            out.write(value);
            OK
        }
        Err(fault) => {
            error.write(give_text(fault.text));
            if fault.invalid { INVALID } else { INTERNAL }
        }
    }
}

fn boxed<T>(value: T) -> *mut T {
    Box::into_raw(Box::new(value))
}

unsafe fn free<T>(handle: *mut T) {
    if !handle.is_null() {
        drop(Box::from_raw(handle));
    }
}

#[no_mangle]
pub unsafe extern "C" fn vbt_text_free(text: Text) {
    if !text.data.is_null() {
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(text.data, text.size)));
    }
}

#[no_mangle]
pub unsafe extern "C" fn vbt_ids_free(ids: Ids) {
    if !ids.data.is_null() {
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(ids.data, ids.size)));
    }
}

// ---- tokenizer ----

type SharedTokenizer = Arc<Tokenizer>;

#[no_mangle]
pub unsafe extern "C" fn vbt_tokenizer_from_json(json: View, out: *mut *mut SharedTokenizer, error: *mut Text) -> i32 {
    call(out, error, || Ok(boxed(Arc::new(Tokenizer::from_json(text(json)?)?))))
}

#[no_mangle]
pub unsafe extern "C" fn vbt_tokenizer_from_gguf(view: *const GgufView, out: *mut *mut SharedTokenizer, error: *mut Text) -> i32 {
    call(out, error, || {
        let view = &*view;
        let texts = |data, size| slice(data, size).iter().map(|view| text(*view)).collect::<Result<Vec<&str>, Fault>>();
        let flag = |value: i32| (value >= 0).then_some(value != 0);
        let vocabulary = Vocabulary {
            model: text(view.model)?,
            pre: text(view.pre)?,
            tokens: texts(view.tokens, view.token_count)?,
            types: slice(view.token_types, view.token_type_count),
            merges: texts(view.merges, view.merge_count)?,
            scores: slice(view.scores, view.score_count),
            bos: u32::try_from(view.bos).ok(),
            eos: u32::try_from(view.eos).ok(),
            unknown: u32::try_from(view.unknown).ok(),
            add_bos: flag(view.add_bos),
            add_eos: flag(view.add_eos),
            add_space_prefix: flag(view.add_space_prefix),
        };
        Ok(boxed(Arc::new(gguf::build(&vocabulary)?)))
    })
}

#[no_mangle]
pub unsafe extern "C" fn vbt_tokenizer_free(tokenizer: *mut SharedTokenizer) {
    free(tokenizer);
}

#[no_mangle]
pub unsafe extern "C" fn vbt_tokenizer_encode(
    tokenizer: *const SharedTokenizer,
    input: View,
    add_special: i32,
    parse_special: i32,
    out: *mut Ids,
    error: *mut Text,
) -> i32 {
    call(out, error, || Ok(give_ids((*tokenizer).encode(text(input)?, add_special != 0, parse_special != 0)?)))
}

#[no_mangle]
pub unsafe extern "C" fn vbt_tokenizer_guard(
    tokenizer: *const SharedTokenizer,
    input: View,
    guard: u32,
    out: *mut Text,
    error: *mut Text,
) -> i32 {
    call(out, error, || Ok(give_text((*tokenizer).guard(text(input)?, character(guard)?))))
}

#[no_mangle]
pub unsafe extern "C" fn vbt_tokenizer_encode_guarded(
    tokenizer: *const SharedTokenizer,
    input: View,
    guard: u32,
    out: *mut Ids,
    error: *mut Text,
) -> i32 {
    call(out, error, || Ok(give_ids((*tokenizer).encode_guarded(text(input)?, character(guard)?)?)))
}

fn character(code: u32) -> Result<char, Fault> {
    char::from_u32(code).ok_or_else(|| Fault::internal("the guard is no character"))
}

#[no_mangle]
pub unsafe extern "C" fn vbt_tokenizer_bytes_of(tokenizer: *const SharedTokenizer, id: i32, out: *mut Text, error: *mut Text) -> i32 {
    call(out, error, || {
        let tokenizer = &*tokenizer;
        let bytes = Box::leak(Spelling::of(tokenizer).text_bytes(tokenizer, id).into_boxed_slice());
        Ok(Text { data: bytes.as_mut_ptr(), size: bytes.len() })
    })
}

#[no_mangle]
pub unsafe extern "C" fn vbt_tokenizer_decode(
    tokenizer: *const SharedTokenizer,
    ids: *const i32,
    count: usize,
    skip_special: i32,
    out: *mut Text,
    error: *mut Text,
) -> i32 {
    call(out, error, || Ok(give_text((*tokenizer).decode(slice(ids, count), skip_special != 0)?)))
}

#[no_mangle]
pub unsafe extern "C" fn vbt_tokenizer_size(tokenizer: *const SharedTokenizer) -> usize {
    (*tokenizer).size()
}

#[no_mangle]
pub unsafe extern "C" fn vbt_tokenizer_id_of(tokenizer: *const SharedTokenizer, token: View) -> i32 {
    text(token).ok().and_then(|token| (*tokenizer).id_of(token)).unwrap_or(-1)
}

#[no_mangle]
pub unsafe extern "C" fn vbt_tokenizer_token_of(tokenizer: *const SharedTokenizer, id: i32, out: *mut Text, error: *mut Text) -> i32 {
    call(out, error, || Ok(give_text((*tokenizer).token(id, false).unwrap_or_default())))
}

#[no_mangle]
pub unsafe extern "C" fn vbt_tokenizer_is_special(tokenizer: *const SharedTokenizer, id: i32) -> i32 {
    i32::from((*tokenizer).is_special(id))
}

#[no_mangle]
pub unsafe extern "C" fn vbt_tokenizer_bytes(tokenizer: *const SharedTokenizer) -> u64 {
    (*tokenizer).bytes()
}

// ---- detokenizer ----

#[no_mangle]
pub unsafe extern "C" fn vbt_detokenizer_new(
    tokenizer: *const SharedTokenizer,
    skip_special: i32,
    out: *mut *mut Detokenizer,
    error: *mut Text,
) -> i32 {
    call(out, error, || Ok(boxed(Detokenizer::new((*tokenizer).clone(), skip_special != 0))))
}

#[no_mangle]
pub unsafe extern "C" fn vbt_detokenizer_free(detokenizer: *mut Detokenizer) {
    free(detokenizer);
}

#[no_mangle]
pub unsafe extern "C" fn vbt_detokenizer_push(detokenizer: *mut Detokenizer, id: i32, out: *mut View, error: *mut Text) -> i32 {
    call(out, error, || (*detokenizer).push(id).map(borrow))
}

#[no_mangle]
pub unsafe extern "C" fn vbt_detokenizer_finish(detokenizer: *mut Detokenizer, out: *mut View, error: *mut Text) -> i32 {
    call(out, error, || (*detokenizer).finish().map(borrow))
}

fn borrow(piece: &str) -> View {
    View { data: piece.as_ptr(), size: piece.len() }
}

// ---- chat template ----

#[no_mangle]
pub unsafe extern "C" fn vbt_template_new(source: View, out: *mut *mut ChatTemplate, error: *mut Text) -> i32 {
    call(out, error, || Ok(boxed(ChatTemplate::new(text(source)?)?)))
}

#[no_mangle]
pub unsafe extern "C" fn vbt_template_free(template: *mut ChatTemplate) {
    free(template);
}

#[no_mangle]
pub unsafe extern "C" fn vbt_template_render(template: *const ChatTemplate, variables: View, out: *mut Text, error: *mut Text) -> i32 {
    call(out, error, || Ok(give_text((*template).render(text(variables)?)?)))
}

// ---- grammar ----

#[no_mangle]
pub unsafe extern "C" fn vbt_grammar_new(
    tokenizer: *const SharedTokenizer,
    vocabulary_size: usize,
    eos: *const i32,
    eos_count: usize,
    out: *mut *mut Grammar,
    error: *mut Text,
) -> i32 {
    call(out, error, || Ok(boxed(Grammar::new((*tokenizer).clone(), vocabulary_size, slice(eos, eos_count))?)))
}

#[no_mangle]
pub unsafe extern "C" fn vbt_grammar_free(grammar: *mut Grammar) {
    free(grammar);
}

#[no_mangle]
pub unsafe extern "C" fn vbt_matcher_new(
    grammar: *const Grammar,
    kind: i32,
    source: View,
    out: *mut *mut Walk,
    error: *mut Text,
) -> i32 {
    call(out, error, || {
        let kind = match kind {
            0 => Kind::JsonSchema,
            1 => Kind::Regex,
            2 => Kind::Lark,
            other => return Err(Fault::invalid(format!("unknown kind of grammar {other}"))),
        };
        Ok(boxed((*grammar).start(kind, text(source)?)?))
    })
}

#[no_mangle]
pub unsafe extern "C" fn vbt_matcher_free(matcher: *mut Walk) {
    free(matcher);
}

#[no_mangle]
pub unsafe extern "C" fn vbt_matcher_allowed(matcher: *mut Walk, words: *mut u32, word_count: usize, error: *mut Text) -> i32 {
    call(&mut (), error, || (*matcher).allowed(if word_count == 0 { &mut [] } else { std::slice::from_raw_parts_mut(words, word_count) }))
}

#[no_mangle]
pub unsafe extern "C" fn vbt_matcher_accept(matcher: *mut Walk, id: i32, error: *mut Text) -> i32 {
    call(&mut (), error, || (*matcher).accept(id))
}

#[no_mangle]
pub unsafe extern "C" fn vbt_matcher_finished(matcher: *const Walk) -> i32 {
    i32::from((*matcher).finished())
}
