//! One tokenizer as two pipelines over one shared model: `parsed` knows the special tokens' text, `plain` does not, so that text
//! from a user can never become a control token.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ahash::{AHashMap, AHashSet};
use serde::{Deserialize, Deserializer};
use tokenizers::models::TrainerWrapper;
use tokenizers::{
    AddedToken, AddedVocabulary, Decoder, DecoderWrapper, Model, ModelWrapper, NormalizerWrapper, OffsetReferential, OffsetType,
    PostProcessorWrapper, PreTokenizerWrapper, Token, TokenizerImpl,
};

use crate::Fault;

pub type Pipeline = TokenizerImpl<SharedModel, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;

const GUARD_PASSES_MAX: usize = 8;

pub struct Tokenizer {
    parsed: Pipeline,
    plain: Pipeline,
    special: AHashSet<u32>,
    markers: AHashSet<u32>,
    size: usize,
    bytes: u64,
}

impl Tokenizer {
    pub fn from_json(json: &str) -> Result<Self, Fault> {
        let pipeline: Pipeline = serde_json::from_str(json).map_err(|e| Fault::invalid(format!("bad tokenizer.json: {e}")))?;
        Ok(Self::new(pipeline))
    }

    pub fn new(mut parsed: Pipeline) -> Self {
        // A file may carry the limits of somebody's training run; how long a prompt may be is not the tokenizer's business.
        let _ = parsed.with_truncation(None);
        parsed.with_padding(None);
        let plain = without_markers(&parsed);
        let added = parsed.get_added_vocabulary().get_added_tokens_decoder();
        let special = added.iter().filter(|(_, token)| token.special).map(|(id, _)| *id).collect();
        let markers = added.iter().filter(|(_, token)| is_marker(token)).map(|(id, _)| *id).collect();
        let (size, bytes) = measure(&parsed);
        Tokenizer { parsed, plain, special, markers, size, bytes }
    }

    pub fn encode(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<i32>, Fault> {
        let pipeline = if parse_special { &self.parsed } else { &self.plain };
        let encoding = pipeline.encode_fast(text, add_special).map_err(Fault::invalid)?;
        Ok(encoding.get_ids().iter().map(|id| *id as i32).collect())
    }

    /// The text with `guard` after the first character of everything that spells a marker, so that no marker is found in it any more.
    pub fn guard(&self, text: &str, guard: char) -> String {
        let mut guarded = text.to_string();
        // Markers do not overlap in what one pass finds; another pass finds what began inside them.
        for _ in 0..GUARD_PASSES_MAX {
            let mut out = String::with_capacity(guarded.len() + 8);
            let mut found = false;
            for (piece, token) in self.pieces(&guarded) {
                let marker = token.is_some_and(|id| self.markers.contains(&id)) && piece.chars().nth(1).is_some();
                let mut characters = piece.chars();
                if marker {
                    out.extend(characters.next());
                    out.push(guard);
                    found = true;
                }
                out.push_str(characters.as_str());
            }
            guarded = out;
            if !found {
                break;
            }
        }
        guarded
    }

    /// Encodes text of which parts went through `guard`: markers are parsed where nothing guards them, and the guards are dropped.
    pub fn encode_guarded(&self, text: &str, guard: char) -> Result<Vec<i32>, Fault> {
        if !text.contains(guard) {
            return self.encode(text, false, true);
        }
        let mut ids = Vec::new();
        for (piece, token) in self.pieces(text) {
            match token {
                Some(id) => ids.push(id as i32),
                None => ids.extend(self.encode(&piece.replace(guard, ""), false, false)?),
            }
        }
        Ok(ids)
    }

    /// The text cut at added tokens, as the parsed pipeline cuts it.
    fn pieces(&self, text: &str) -> Vec<(String, Option<u32>)> {
        let cut = self.parsed.get_added_vocabulary().extract_and_normalize(None::<&NormalizerWrapper>, text);
        let splits = cut.get_splits(OffsetReferential::Original, OffsetType::Byte);
        splits
            .into_iter()
            .map(|(piece, _, tokens)| (piece.to_string(), tokens.as_ref().and_then(|tokens| tokens.first()).map(|token| token.id)))
            .collect()
    }

    pub fn decode(&self, ids: &[i32], skip_special: bool) -> Result<String, Fault> {
        let tokens: Vec<String> = ids.iter().filter_map(|id| self.token(*id, skip_special)).collect();
        match self.parsed.get_decoder() {
            Some(decoder) => decoder.decode(tokens).map_err(Fault::invalid),
            None => Ok(tokens.join(" ")),
        }
    }

    /// The token of an id; None if there is none, or if it is special and those are skipped.
    pub fn token(&self, id: i32, skip_special: bool) -> Option<String> {
        let id = u32::try_from(id).ok()?;
        if skip_special && self.special.contains(&id) {
            return None;
        }
        self.parsed.id_to_token(id)
    }

    pub fn decoder(&self) -> Option<&DecoderWrapper> {
        self.parsed.get_decoder()
    }

    pub fn id_of(&self, token: &str) -> Option<i32> {
        self.parsed.token_to_id(token).map(|id| id as i32)
    }

    pub fn is_special(&self, id: i32) -> bool {
        u32::try_from(id).is_ok_and(|id| self.special.contains(&id))
    }

    pub fn size(&self) -> usize {
        self.size
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// The model of both pipelines. In the plain one it also answers for added tokens that the model itself does not have, and keeps
/// a word that spells a marker from being taken for it.
#[derive(Clone)]
pub struct SharedModel {
    model: Arc<ModelWrapper>,
    plain: Option<Arc<Plain>>,
}

struct Plain {
    added: AHashMap<String, u32>,
    markers: AHashSet<String>,
}

impl SharedModel {
    pub fn new(model: ModelWrapper) -> Self {
        SharedModel { model: Arc::new(model), plain: None }
    }
}

impl<'de> Deserialize<'de> for SharedModel {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::new(ModelWrapper::deserialize(deserializer)?))
    }
}

impl Model for SharedModel {
    type Trainer = TrainerWrapper;

    fn tokenize(&self, sequence: &str) -> tokenizers::Result<Vec<Token>> {
        let spells_marker = self.plain.as_ref().is_some_and(|plain| plain.markers.contains(sequence));
        let border = sequence.chars().next().map_or(0, char::len_utf8);
        if !spells_marker || border == sequence.len() {
            return self.model.tokenize(sequence);
        }
        let mut tokens = self.model.tokenize(&sequence[..border])?;
        tokens.extend(self.model.tokenize(&sequence[border..])?.into_iter().map(|mut token| {
            token.offsets = (token.offsets.0 + border, token.offsets.1 + border);
            token
        }));
        Ok(tokens)
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        let added = self.plain.as_ref().and_then(|plain| plain.added.get(token).copied());
        added.or_else(|| self.model.token_to_id(token))
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        self.model.id_to_token(id)
    }

    fn get_vocab(&self) -> HashMap<String, u32> {
        self.model.get_vocab()
    }

    fn get_vocab_size(&self) -> usize {
        self.model.get_vocab_size()
    }

    fn save(&self, folder: &Path, prefix: Option<&str>) -> tokenizers::Result<Vec<PathBuf>> {
        self.model.save(folder, prefix)
    }

    fn get_trainer(&self) -> TrainerWrapper {
        self.model.get_trainer()
    }
}

fn without_markers(parsed: &Pipeline) -> Pipeline {
    let added = parsed.get_added_vocabulary();
    let mut tokens: Vec<(u32, AddedToken)> =
        added.get_added_tokens_decoder().iter().map(|(id, token)| (*id, token.clone())).collect();
    tokens.sort_by_key(|(id, _)| *id);
    let (markers, others): (Vec<_>, Vec<_>) = tokens.into_iter().partition(|(_, token)| is_marker(token));
    let plain = Plain {
        added: others.iter().map(|(id, token)| (token.content.clone(), *id)).collect(),
        markers: markers.into_iter().map(|(_, token)| token.content).collect(),
    };
    let mut pipeline = Pipeline::new(SharedModel { model: parsed.get_model().model.clone(), plain: Some(Arc::new(plain)) });
    pipeline.with_normalizer(parsed.get_normalizer().cloned());
    pipeline.with_pre_tokenizer(parsed.get_pre_tokenizer().cloned());
    pipeline.with_post_processor(parsed.get_post_processor().cloned());
    let mut vocabulary = AddedVocabulary::new();
    let others: Vec<AddedToken> = others.into_iter().map(|(_, token)| token).collect();
    vocabulary.add_tokens(&others, pipeline.get_model(), pipeline.get_normalizer());
    pipeline.with_added_vocabulary(vocabulary);
    pipeline
}

/// Added tokens that structure a conversation. Besides the special ones these are tokens that vendors did not flag as special but
/// whose text steers the model or our parsers; runs of spaces, HTML tags and the like stay tokens of ordinary text.
fn is_marker(token: &AddedToken) -> bool {
    if token.special {
        return true;
    }
    let text = token.content.as_str();
    if ["<|", "|>", "<\u{ff5c}", "\u{ff5c}>"].iter().any(|bar| text.contains(bar)) {
        return true;
    }
    let bare = text.trim_start_matches(['<', '[', '/']).trim_end_matches(['>', ']', '/']);
    if bare.len() == text.len() {
        return false;
    }
    let name = bare.rsplit(':').next().unwrap_or(bare).to_ascii_lowercase();
    ["think", "thinking", "reasoning", "tools", "available_tools", "arg_key", "arg_value", "function_calls"].contains(&name.as_str())
        || ["tool_call", "tool_response", "tool_result"].iter().any(|prefix| name.starts_with(prefix))
}

/// One more than the largest id, and about how much memory the maps of tokens and merges hold.
fn measure(pipeline: &Pipeline) -> (usize, u64) {
    let added = pipeline.get_added_vocabulary().get_added_tokens_decoder();
    let mut size = added.keys().max().map_or(0, |id| *id as usize + 1);
    let count = pipeline.get_model().get_vocab_size();
    let mut characters = 0;
    let mut seen = 0;
    // Ids may have holes, but a model does not have more of them than tokens.
    for id in 0..(2 * count as u64 + 1024).min(u32::MAX as u64) as u32 {
        if seen == count {
            break;
        }
        if let Some(token) = pipeline.get_model().id_to_token(id) {
            seen += 1;
            characters += token.len() as u64;
            size = size.max(id as usize + 1);
        }
    }
    // Two hash maps of tokens (24 bytes of string header, 4 of id, a third of slots free) and one of merges (16 bytes), plus the
    // cache of 10,000 words.
    (size, 2 * characters + count as u64 * (2 * 44 + 24) + 10_000 * 256)
}
