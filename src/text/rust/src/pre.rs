//! Pre-tokenisers by the name that a GGUF file gives in `tokenizer.ggml.pre`, with what else that name implies.

use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;
use tokenizers::PreTokenizerWrapper;

use crate::Fault;

pub struct Pre {
    pub pre_tokenizer: PreTokenizerWrapper,
    /// A word that is a token is that token, whatever the merges say: what tiktoken does, so right for vocabularies born there.
    pub ignore_merges: bool,
    pub add_bos: bool,
    pub nfc: bool,
    /// Ids are merge ranks, so that merges can be found again when the file has none.
    pub ranked: bool,
}

const CONTRACTION: &str = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
const SPACES: &str = r"\s*[\r\n]+|\s+(?!\S)|\s+";

pub fn by_name(name: &str) -> Result<Pre, Fault> {
    let plain = |pre_tokenizer| Pre { pre_tokenizer, ignore_merges: false, add_bos: false, nfc: false, ranked: false };
    Ok(match name {
        "gpt-2" => plain(ByteLevel::new(false, true, true).into()),
        "smollm" | "starcoder" | "command-r" => plain(sequence(vec![
            Digits::new(true).into(),
            ByteLevel::new(false, true, true).into(),
        ])),
        "llama-bpe" | "llama3" | "llama-v3" => {
            Pre { ignore_merges: true, add_bos: true, ..plain(splits(&[&llama3(r"\p{N}{1,3}")])?) }
        }
        "glm4" | "chatglm-bpe" => Pre { ignore_merges: true, ..plain(splits(&[&llama3(r"\p{N}{1,3}")])?) },
        "qwen2" | "deepseek-r1-qwen" => Pre { nfc: true, ..plain(splits(&[&llama3(r"\p{N}")])?) },
        "gpt-4o" | "minimax-m2" => Pre {
            ignore_merges: true,
            ..plain(splits(&[&format!(
                "{}|{}|{}|{}",
                words("", &format!("{CONTRACTION}?")),
                r"\p{N}{1,3}",
                r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
                SPACES
            )])?)
        },
        "tekken" => Pre {
            ignore_merges: true,
            add_bos: true,
            ..plain(splits(&[&format!("{}|{}|{}|{}", words("", ""), r"\p{N}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", SPACES)])?)
        },
        "kimi-k2" => Pre {
            ignore_merges: true,
            ranked: true,
            ..plain(splits(&[&format!(
                "{}|{}|{}|{}|{}",
                r"[\p{Han}]+",
                words(r"&&[^\p{Han}]", &format!("{CONTRACTION}?")),
                r"\p{N}{1,3}",
                r" ?[^\s\p{L}\p{N}]+[\r\n]*",
                SPACES
            )])?)
        },
        "deepseek-v3" => plain(splits(&[
            r"\p{N}{1,3}",
            "[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+",
            &format!(
                "{}|{}",
                concat!(
                    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"##,
                    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
                ),
                SPACES
            ),
        ])?),
        "" => {
            return Err(Fault::invalid("the vocabulary does not name its pre-tokeniser (tokenizer.ggml.pre); put a tokenizer.json beside the file"))
        }
        other => {
            return Err(Fault::invalid(format!(
                "unknown pre-tokeniser \"{other}\" (tokenizer.ggml.pre); put a tokenizer.json beside the file"
            )))
        }
    })
}

fn llama3(number: &str) -> String {
    format!(r"{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{number}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{SPACES}")
}

/// The two word branches of the gpt-4o family: words with a capital first, words of capitals.
/// `minus` narrows each class of letters, `suffix` ends both branches.
fn words(minus: &str, suffix: &str) -> String {
    let upper = format!(r"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{minus}]");
    let lower = format!(r"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{minus}]");
    let lead = r"[^\r\n\p{L}\p{N}]?";
    format!("{lead}{upper}*{lower}+{suffix}|{lead}{upper}+{lower}*{suffix}")
}

fn splits(patterns: &[&str]) -> Result<PreTokenizerWrapper, Fault> {
    let mut steps: Vec<PreTokenizerWrapper> = Vec::new();
    for pattern in patterns {
        let split = Split::new(SplitPattern::Regex(pattern.to_string()), SplitDelimiterBehavior::Isolated, false);
        steps.push(split.map_err(Fault::internal)?.into());
    }
    steps.push(ByteLevel::new(false, true, false).into());
    Ok(sequence(steps))
}

fn sequence(steps: Vec<PreTokenizerWrapper>) -> PreTokenizerWrapper {
    Sequence::new(steps).into()
}
