//! Token ids to text as they come. Each decoder of a tokenizer becomes a stage that passes on what no later token can change, so
//! the pieces joined are exactly what decoding all ids at once gives, in linear time.

use std::sync::Arc;

use tokenizers::{Decoder, DecoderWrapper};

use crate::bytes::token_bytes;
use crate::tokenizer::Tokenizer;
use crate::Fault;

pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    skip_special: bool,
    mode: Mode,
    piece: String,
}

enum Mode {
    Stages(Vec<Stage>),
    /// A decoder that no current language model uses, such as CTC: text comes at the end, but it is the right text.
    Whole(Vec<i32>),
}

impl Detokenizer {
    pub fn new(tokenizer: Arc<Tokenizer>, skip_special: bool) -> Self {
        let mode = stages(tokenizer.decoder()).map_or(Mode::Whole(Vec::new()), Mode::Stages);
        Detokenizer { tokenizer, skip_special, mode, piece: String::new() }
    }

    pub fn push(&mut self, id: i32) -> Result<&str, Fault> {
        self.piece.clear();
        match &mut self.mode {
            Mode::Whole(ids) => ids.push(id),
            Mode::Stages(stages) => {
                if let Some(token) = self.tokenizer.token(id, self.skip_special) {
                    run(stages, token, &mut self.piece)?;
                }
            }
        }
        Ok(&self.piece)
    }

    pub fn finish(&mut self) -> Result<&str, Fault> {
        self.piece.clear();
        match &mut self.mode {
            Mode::Whole(ids) => self.piece = self.tokenizer.decode(&std::mem::take(ids), self.skip_special)?,
            Mode::Stages(stages) => {
                for at in 0..stages.len() {
                    let mut rest = Vec::new();
                    stages[at].finish(&mut rest)?;
                    for token in rest {
                        run(&mut stages[at + 1..], token, &mut self.piece)?;
                    }
                }
                *stages = self::stages(self.tokenizer.decoder()).unwrap_or_default();
            }
        }
        Ok(&self.piece)
    }
}

fn run(stages: &mut [Stage], token: String, text: &mut String) -> Result<(), Fault> {
    let Some((first, rest)) = stages.split_first_mut() else {
        text.push_str(&token);
        return Ok(());
    };
    let mut out = Vec::new();
    first.push(token, &mut out)?;
    out.into_iter().try_for_each(|token| run(rest, token, text))
}

enum Stage {
    /// No decoder: tokens are joined by spaces.
    Join { first: bool },
    /// A decoder that sees one token at a time.
    Each(DecoderWrapper),
    /// As Each, but the first token of a text is decoded differently.
    FirstDiffers { decoder: DecoderWrapper, first: bool },
    /// As Each, but the last token is decoded differently.
    LastDiffers { decoder: DecoderWrapper, held: Option<String> },
    ByteLevel { tail: Vec<u8> },
    ByteFallback(ByteRun),
    /// Strips the whole text: from its start, and from its end.
    StripText { content: char, start_left: usize, stop: usize, held: usize },
}

/// A run of byte tokens counts as a whole: it is UTF-8, or every byte of it is U+FFFD. So it is certain when the run ends or
/// breaks.
#[derive(Default)]
struct ByteRun {
    bytes: Vec<u8>,
    checked: usize,
    broken: bool,
}

/// None: this decoder (or this order of decoders) cannot be followed token by token.
fn stages(decoder: Option<&DecoderWrapper>) -> Option<Vec<Stage>> {
    let Some(decoder) = decoder else { return Some(vec![Stage::Join { first: true }]) };
    let decoders = match decoder {
        DecoderWrapper::Sequence(sequence) => sequence.get_decoders(),
        single => std::slice::from_ref(single),
    };
    let mut fused = false;
    let mut stages = Vec::new();
    for decoder in decoders {
        match (decoder, fused) {
            (DecoderWrapper::Fuse(_), _) => fused = true,
            (DecoderWrapper::Strip(strip), true) => {
                stages.push(Stage::StripText { content: strip.content, start_left: strip.start, stop: strip.stop, held: 0 })
            }
            (_, true) => return None,
            (DecoderWrapper::Replace(_) | DecoderWrapper::Strip(_), false) => stages.push(Stage::Each(decoder.clone())),
            (DecoderWrapper::Metaspace(_) | DecoderWrapper::WordPiece(_), false) => {
                stages.push(Stage::FirstDiffers { decoder: decoder.clone(), first: true })
            }
            (DecoderWrapper::BPE(_), false) => stages.push(Stage::LastDiffers { decoder: decoder.clone(), held: None }),
            (DecoderWrapper::ByteFallback(_), false) => stages.push(Stage::ByteFallback(ByteRun::default())),
            (DecoderWrapper::ByteLevel(_), false) => {
                stages.push(Stage::ByteLevel { tail: Vec::new() });
                fused = true;
            }
            (DecoderWrapper::CTC(_) | DecoderWrapper::Sequence(_), false) => return None,
        }
    }
    Some(stages)
}

impl Stage {
    fn push(&mut self, token: String, out: &mut Vec<String>) -> Result<(), Fault> {
        match self {
            Stage::Join { first } => {
                out.push(if std::mem::take(first) { token } else { format!(" {token}") });
            }
            Stage::Each(decoder) => out.extend(decoder.decode_chain(vec![token]).map_err(Fault::invalid)?),
            Stage::FirstDiffers { decoder, first } => {
                let chain = if std::mem::take(first) { vec![token] } else { vec![String::new(), token] };
                out.extend(decoder.decode_chain(chain).map_err(Fault::invalid)?.pop());
            }
            Stage::LastDiffers { decoder, held } => {
                if let Some(before) = held.replace(token) {
                    out.push(decoder.decode_chain(vec![before, String::new()]).map_err(Fault::invalid)?.swap_remove(0));
                }
            }
            Stage::ByteLevel { tail } => {
                tail.extend(token_bytes(&token));
                out.push(take_certain(tail));
            }
            Stage::ByteFallback(run) => match byte_token(&token) {
                Some(byte) => run.push(byte, out),
                None => {
                    run.end(out);
                    out.push(token);
                }
            },
            Stage::StripText { content, start_left, stop, held } => out.push(strip_piece(&token, *content, start_left, *stop, held)),
        }
        Ok(())
    }

    fn finish(&mut self, out: &mut Vec<String>) -> Result<(), Fault> {
        match self {
            Stage::ByteLevel { tail } if !tail.is_empty() => {
                tail.clear();
                out.push("\u{fffd}".into());
            }
            Stage::ByteFallback(run) => run.end(out),
            Stage::LastDiffers { decoder, held } => {
                if let Some(last) = held.take() {
                    out.extend(decoder.decode_chain(vec![last]).map_err(Fault::invalid)?);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// The text of the bytes so far, with U+FFFD for what can no longer become UTF-8. What still can (at most three bytes) stays.
fn take_certain(bytes: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut at = 0;
    loop {
        match std::str::from_utf8(&bytes[at..]) {
            Ok(valid) => {
                text.push_str(valid);
                at = bytes.len();
                break;
            }
            Err(error) => {
                text.push_str(&String::from_utf8_lossy(&bytes[at..at + error.valid_up_to()]));
                at += error.valid_up_to();
                let Some(length) = error.error_len() else { break };
                text.push('\u{fffd}');
                at += length;
            }
        }
    }
    bytes.drain(..at);
    text
}

/// "<0x41>" -> 0x41, read as the ByteFallback decoder reads it.
pub fn byte_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() != 2 {
        return None;
    }
    u8::from_str_radix(digits, 16).ok()
}

impl ByteRun {
    fn push(&mut self, byte: u8, out: &mut Vec<String>) {
        if self.broken {
            out.push("\u{fffd}".into());
            return;
        }
        self.bytes.push(byte);
        match std::str::from_utf8(&self.bytes[self.checked..]) {
            Ok(_) => self.checked = self.bytes.len(),
            Err(error) if error.error_len().is_none() => self.checked += error.valid_up_to(),
            Err(_) => {
                out.extend(self.bytes.drain(..).map(|_| "\u{fffd}".to_string()));
                self.broken = true;
            }
        }
    }

    fn end(&mut self, out: &mut Vec<String>) {
        let run = std::mem::take(self);
        if run.bytes.is_empty() {
            return;
        }
        match String::from_utf8(run.bytes) {
            Ok(text) => out.push(text),
            Err(error) => out.extend(error.as_bytes().iter().map(|_| "\u{fffd}".to_string())),
        }
    }
}

/// `held` content characters at the end of what came before are still unsaid: they are dropped if the text ends with them.
fn strip_piece(token: &str, content: char, start_left: &mut usize, stop: usize, held: &mut usize) -> String {
    let mut text = String::new();
    for character in token.chars() {
        if *start_left > 0 && character == content {
            *start_left -= 1;
            continue;
        }
        *start_left = 0;
        if character == content && stop > 0 {
            if *held == stop {
                text.push(content);
            } else {
                *held += 1;
            }
            continue;
        }
        text.extend(std::iter::repeat_n(content, std::mem::take(held)));
        text.push(character);
    }
    text
}
