//! Which tokens may come next under a grammar: llguidance over the trie of this tokenizer's tokens.

use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::{Matcher, ParserFactory};
use tokenizers::DecoderWrapper;
use toktrie::{TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};

use crate::bytes::token_bytes;
use crate::detokenizer::byte_token;
use crate::tokenizer::Tokenizer;
use crate::Fault;

pub struct Grammar {
    factory: ParserFactory,
}

pub enum Kind {
    JsonSchema,
    Regex,
    Lark,
}

pub struct Walk {
    matcher: Matcher,
    eos: Vec<TokenId>,
    size: usize,
}

struct Environment {
    tokenizer: Arc<Tokenizer>,
    trie: TokTrie,
}

impl TokenizerEnv for Environment {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.trie.tokenize_with_greedy_fallback(bytes, |text| {
            let ids = self.tokenizer.encode(text, false, false).unwrap_or_default();
            ids.into_iter().map(|id| id as TokenId).collect()
        })
    }

    /// Masks are all we ask for; forced tokens, which need this, stay the sampler's business.
    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}

impl Grammar {
    pub fn new(tokenizer: Arc<Tokenizer>, size: usize, eos: &[i32]) -> Result<Self, Fault> {
        let eos: Vec<TokenId> = eos.iter().filter_map(|id| TokenId::try_from(*id).ok()).filter(|id| (*id as usize) < size).collect();
        let Some(first) = eos.first().copied() else { return Err(Fault::invalid("a grammar needs an end token of the vocabulary")) };
        let spelling = Spelling::of(&tokenizer);
        let words: Vec<Vec<u8>> = (0..size as i32).map(|id| spelling.bytes(&tokenizer, id)).collect();
        let trie = TokTrie::from(&TokRxInfo::new(size as u32, first), &words).with_eos_tokens(&eos);
        let environment: TokEnv = Arc::new(Environment { tokenizer, trie });
        let mut factory = ParserFactory::new_simple(&environment).map_err(Fault::internal)?;
        factory.quiet();
        factory.limits_mut().verbose_errors = false; // errors reach clients; they need the reason, not the parser's state
        Ok(Grammar { factory })
    }

    pub fn start(&self, kind: Kind, source: &str) -> Result<Walk, Fault> {
        let grammar = match kind {
            Kind::JsonSchema => TopLevelGrammar::from_json_schema(
                serde_json::from_str(source).map_err(|e| Fault::invalid(format!("the JSON schema is not JSON: {e}")))?,
            ),
            Kind::Regex => TopLevelGrammar::from_regex(source),
            Kind::Lark => TopLevelGrammar::from_lark(source.to_string()),
        };
        let parser = self.factory.create_parser(grammar).map_err(|e| Fault::invalid(format!("bad grammar: {e:#}")))?;
        let matcher = Matcher::new(Ok(parser));
        let trie = self.factory.tok_env().tok_trie();
        match matcher.get_error() {
            Some(error) => Err(Fault::invalid(format!("bad grammar: {error}"))),
            None => Ok(Walk { matcher, eos: trie.eos_tokens().to_vec(), size: trie.vocab_size() }),
        }
    }
}

impl Walk {
    pub fn allowed(&mut self, words: &mut [u32]) -> Result<(), Fault> {
        let mask = self.matcher.compute_mask_or_eos().map_err(|e| Fault::invalid(format!("grammar: {e:#}")))?;
        let bits = mask.as_slice();
        for (at, word) in words.iter_mut().enumerate() {
            *word = bits.get(at).copied().unwrap_or(0);
        }
        Ok(())
    }

    pub fn accept(&mut self, id: i32) -> Result<(), Fault> {
        let wrong = || Fault::invalid(format!("token {id} is not allowed by the grammar here"));
        // An id outside the vocabulary would end the matcher; as a refused token it changes nothing.
        let token = TokenId::try_from(id).ok().filter(|token| (*token as usize) < self.size).ok_or_else(wrong)?;
        if self.finished() {
            return if self.eos.contains(&token) { Ok(()) } else { Err(wrong()) };
        }
        match self.matcher.try_consume_tokens(&[token]) {
            Ok(1) => Ok(()),
            Ok(_) => Err(wrong()),
            Err(error) => Err(Fault::invalid(format!("grammar: {error:#}"))),
        }
    }

    pub fn finished(&self) -> bool {
        self.matcher.is_stopped() && !self.matcher.is_error()
    }
}

/// How tokens spell bytes, by the tokenizer's decoder.
pub enum Spelling {
    ByteLevel,
    Pieces,
    Text,
}

impl Spelling {
    pub fn of(tokenizer: &Tokenizer) -> Self {
        let Some(decoder) = tokenizer.decoder() else { return Spelling::Text };
        let decoders = match decoder {
            DecoderWrapper::Sequence(sequence) => sequence.get_decoders(),
            single => std::slice::from_ref(single),
        };
        if decoders.iter().any(|d| matches!(d, DecoderWrapper::ByteLevel(_))) {
            Spelling::ByteLevel
        } else if decoders.iter().any(|d| matches!(d, DecoderWrapper::ByteFallback(_) | DecoderWrapper::Metaspace(_))) {
            Spelling::Pieces
        } else {
            Spelling::Text
        }
    }

    /// Special tokens get the trie's marker byte in front, so that no text can match them. Ids without a token are empty.
    fn bytes(&self, tokenizer: &Tokenizer, id: i32) -> Vec<u8> {
        let Some(token) = tokenizer.token(id, false) else { return Vec::new() };
        if tokenizer.is_special(id) {
            return [&[TokTrie::SPECIAL_TOKEN_MARKER], token.as_bytes()].concat();
        }
        self.spelled(token)
    }

    /// The bytes that a token stands for in an answer; a special one is its own text.
    pub fn text_bytes(&self, tokenizer: &Tokenizer, id: i32) -> Vec<u8> {
        let Some(token) = tokenizer.token(id, false) else { return Vec::new() };
        if tokenizer.is_special(id) { token.into_bytes() } else { self.spelled(token) }
    }

    fn spelled(&self, token: String) -> Vec<u8> {
        match self {
            Spelling::ByteLevel => token_bytes(&token),
            Spelling::Pieces => byte_token(&token).map_or_else(|| token.replace('\u{2581}', " ").into_bytes(), |byte| vec![byte]),
            Spelling::Text => token.into_bytes(),
        }
    }
}
