//! A tokenizer from the vocabulary inside a GGUF file: the same object that a tokenizer.json of that model would give.

use ahash::{AHashMap, AHashSet};
use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence as DecoderSequence;
use tokenizers::decoders::strip::Strip;
use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::replace::Replace;
use tokenizers::normalizers::unicode::NFC;
use tokenizers::normalizers::utils::Sequence as NormalizerSequence;
use tokenizers::normalizers::Prepend;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::processors::template::{SpecialToken, TemplateProcessing};
use tokenizers::{AddedToken, ModelWrapper, NormalizerWrapper, PostProcessorWrapper};

use crate::bytes::to_byte;
use crate::pre;
use crate::tokenizer::{Pipeline, SharedModel, Tokenizer};
use crate::Fault;

pub struct Vocabulary<'a> {
    pub model: &'a str,
    pub pre: &'a str,
    pub tokens: Vec<&'a str>,
    pub types: &'a [i32],
    pub merges: Vec<&'a str>,
    pub scores: &'a [f32],
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub unknown: Option<u32>,
    pub add_bos: Option<bool>,
    pub add_eos: Option<bool>,
    pub add_space_prefix: Option<bool>,
}

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;

type Merges = Vec<(String, String)>;

pub fn build(vocabulary: &Vocabulary) -> Result<Tokenizer, Fault> {
    check(vocabulary)?;
    let mut pipeline = match vocabulary.model {
        "gpt2" => byte_level(vocabulary)?,
        "llama" => sentence_piece(vocabulary)?,
        other => {
            return Err(Fault::invalid(format!(
                "tokenizer model \"{other}\" (tokenizer.ggml.model) is not supported; put a tokenizer.json beside the file"
            )))
        }
    };
    pipeline.add_tokens(&added_tokens(vocabulary));
    Ok(Tokenizer::new(pipeline))
}

impl Vocabulary<'_> {
    fn kind(&self, id: usize) -> i32 {
        self.types.get(id).copied().unwrap_or(NORMAL)
    }

    fn ids(&self) -> AHashMap<String, u32> {
        self.tokens.iter().enumerate().map(|(id, token)| (token.to_string(), id as u32)).collect()
    }
}

fn check(vocabulary: &Vocabulary) -> Result<(), Fault> {
    let count = vocabulary.tokens.len();
    if count == 0 || count > i32::MAX as usize {
        return Err(Fault::invalid(format!("the vocabulary has {count} tokens")));
    }
    for (name, size) in [("token types", vocabulary.types.len()), ("scores", vocabulary.scores.len())] {
        if size != 0 && size != count {
            return Err(Fault::invalid(format!("the vocabulary has {count} tokens but {size} {name}")));
        }
    }
    for (name, id) in [("bos", vocabulary.bos), ("eos", vocabulary.eos), ("unknown", vocabulary.unknown)] {
        if id.is_some_and(|id| id as usize >= count) {
            return Err(Fault::invalid(format!("{name} token id {} is outside the vocabulary of {count} tokens", id.unwrap_or(0))));
        }
    }
    Ok(())
}

fn byte_level(vocabulary: &Vocabulary) -> Result<Pipeline, Fault> {
    let pre = pre::by_name(vocabulary.pre)?;
    let merges = match (vocabulary.merges.is_empty(), pre.ranked) {
        (false, _) => vocabulary.merges.iter().map(|merge| split_merge(merge)).collect::<Result<Merges, Fault>>()?,
        (true, true) => merges_from_ranks(vocabulary),
        (true, false) => return Err(Fault::invalid("the vocabulary has no merges (tokenizer.ggml.merges)")),
    };
    let model = BPE::builder().vocab_and_merges(vocabulary.ids(), merges).ignore_merges(pre.ignore_merges).build();
    let mut pipeline = Pipeline::new(SharedModel::new(ModelWrapper::BPE(model.map_err(Fault::invalid)?)));
    if pre.nfc {
        pipeline.with_normalizer(Some(NFC));
    }
    pipeline.with_pre_tokenizer(Some(pre.pre_tokenizer));
    pipeline.with_decoder(Some(ByteLevel::new(false, true, true)));
    pipeline.with_post_processor(post_processor(vocabulary, pre.add_bos)?);
    Ok(pipeline)
}

fn sentence_piece(vocabulary: &Vocabulary) -> Result<Pipeline, Fault> {
    if vocabulary.scores.is_empty() {
        return Err(Fault::invalid("the vocabulary has no scores (tokenizer.ggml.scores)"));
    }
    let unknown = vocabulary.unknown.map(|id| id as usize);
    let unknown = unknown.or_else(|| (0..vocabulary.tokens.len()).find(|id| vocabulary.kind(*id) == UNKNOWN));
    let mut model = BPE::builder().vocab_and_merges(vocabulary.ids(), merges_from_scores(vocabulary)).byte_fallback(true).fuse_unk(true);
    if let Some(id) = unknown {
        model = model.unk_token(vocabulary.tokens[id].to_string());
    }
    let mut pipeline = Pipeline::new(SharedModel::new(ModelWrapper::BPE(model.build().map_err(Fault::invalid)?)));

    let prefix = vocabulary.add_space_prefix.unwrap_or(true);
    let mut normalizers: Vec<NormalizerWrapper> = Vec::new();
    if prefix {
        normalizers.push(Prepend::new("\u{2581}".into()).into());
    }
    normalizers.push(Replace::new(" ", "\u{2581}").map_err(Fault::internal)?.into());
    pipeline.with_normalizer(Some(NormalizerSequence::new(normalizers)));

    let mut decoders = vec![
        Replace::new("\u{2581}", " ").map_err(Fault::internal)?.into(),
        ByteFallback::new().into(),
        Fuse::new().into(),
    ];
    if prefix {
        decoders.push(Strip::new(' ', 1, 0).into());
    }
    pipeline.with_decoder(Some(DecoderSequence::new(decoders)));
    pipeline.with_post_processor(post_processor(vocabulary, true)?);
    Ok(pipeline)
}

/// "left right", cut at the first space that is not the first character (a piece may itself be a space).
fn split_merge(merge: &str) -> Result<(String, String), Fault> {
    let first = merge.chars().next().map_or(0, char::len_utf8);
    match merge[first..].find(' ') {
        Some(at) => Ok((merge[..first + at].to_string(), merge[first + at + 1..].to_string())),
        None => Err(Fault::invalid(format!("merge \"{merge}\" is not two pieces"))),
    }
}

/// SentencePiece merges whatever adjacent pair makes the piece with the best score. As ranked merges: every split of every
/// normal piece into two normal pieces, best score first; among equals the longer left piece, then the longer right one.
fn merges_from_scores(vocabulary: &Vocabulary) -> Merges {
    let normal: AHashSet<&str> =
        vocabulary.tokens.iter().enumerate().filter(|(id, _)| vocabulary.kind(*id) == NORMAL).map(|(_, token)| *token).collect();
    struct Candidate<'a> {
        score: f32,
        left: (usize, &'a str),
        right: (usize, &'a str),
    }
    let mut candidates: Vec<Candidate> = Vec::new();
    for (id, token) in vocabulary.tokens.iter().enumerate().filter(|(id, _)| vocabulary.kind(*id) == NORMAL) {
        let length = token.chars().count();
        for (position, (at, _)) in token.char_indices().enumerate().skip(1) {
            let (left, right) = token.split_at(at);
            if normal.contains(left) && normal.contains(right) {
                candidates.push(Candidate { score: vocabulary.scores[id], left: (position, left), right: (length - position, right) });
            }
        }
    }
    candidates.sort_by(|a, b| b.score.total_cmp(&a.score).then(b.left.0.cmp(&a.left.0)).then(b.right.0.cmp(&a.right.0)));
    candidates.into_iter().map(|c| (c.left.1.to_string(), c.right.1.to_string())).collect()
}

/// In a tiktoken vocabulary the id is the merge rank: a token's merge is the last step of BPE over its bytes with lower ranks only.
fn merges_from_ranks(vocabulary: &Vocabulary) -> Merges {
    let ids: AHashMap<&str, usize> = vocabulary.tokens.iter().enumerate().map(|(id, token)| (*token, id)).collect();
    let mut merges = Merges::new();
    for (rank, token) in vocabulary.tokens.iter().enumerate() {
        if vocabulary.kind(rank) != NORMAL || !token.chars().all(|c| to_byte(c).is_some()) {
            continue;
        }
        if let [left, right] = parts_below(token, rank, &ids)[..] {
            merges.push((left.to_string(), right.to_string()));
        }
    }
    merges
}

fn parts_below<'a>(token: &'a str, rank: usize, ids: &AHashMap<&str, usize>) -> Vec<&'a str> {
    let mut borders: Vec<usize> = token.char_indices().map(|(at, _)| at).chain([token.len()]).collect();
    loop {
        let best = (0..borders.len().saturating_sub(2))
            .filter_map(|i| ids.get(&token[borders[i]..borders[i + 2]]).filter(|id| **id < rank).map(|id| (*id, i)))
            .min();
        match best {
            Some((_, i)) => drop(borders.remove(i + 1)),
            None => return borders.windows(2).map(|pair| &token[pair[0]..pair[1]]).collect(),
        }
    }
}

fn post_processor(vocabulary: &Vocabulary, bos_by_default: bool) -> Result<Option<PostProcessorWrapper>, Fault> {
    let mut template = vec!["$A".to_string()];
    let mut specials = Vec::new();
    let mut place = |name: &str, id: u32| -> Result<String, Fault> {
        let token = vocabulary.tokens[id as usize].to_string();
        specials.push(SpecialToken::new(name.into(), vec![id], vec![token]).map_err(Fault::internal)?);
        Ok(name.to_string())
    };
    match (vocabulary.add_bos, vocabulary.bos) {
        (Some(true), None) => return Err(Fault::invalid("the vocabulary asks for a bos token but does not name one")),
        (Some(true), Some(id)) => template.insert(0, place("bos", id)?),
        (None, Some(id)) if bos_by_default => template.insert(0, place("bos", id)?),
        _ => {}
    }
    match (vocabulary.add_eos, vocabulary.eos) {
        (Some(true), None) => return Err(Fault::invalid("the vocabulary asks for an eos token but does not name one")),
        (Some(true), Some(id)) => template.push(place("eos", id)?),
        _ => {}
    }
    if specials.is_empty() {
        return Ok(None);
    }
    let mut builder = TemplateProcessing::builder();
    builder.try_single(template).map_err(Fault::internal)?.special_tokens(specials);
    Ok(Some(builder.build().map_err(|e| Fault::internal(e.to_string()))?.into()))
}

fn added_tokens(vocabulary: &Vocabulary) -> Vec<AddedToken> {
    let mut tokens = Vec::new();
    for (id, token) in vocabulary.tokens.iter().enumerate() {
        let kind = vocabulary.kind(id);
        if matches!(kind, UNKNOWN | CONTROL | USER_DEFINED) && !token.is_empty() {
            tokens.push(AddedToken::from(*token, kind != USER_DEFINED).normalized(false));
        }
    }
    tokens
}
