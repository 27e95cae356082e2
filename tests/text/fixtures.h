// What the tests of this folder share: the stored expectations (scripts/fixtures/text_parity.py) as values.
#pragma once

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace verbund::text::test {

using Json = nlohmann::ordered_json;
using Ids = std::vector<int32_t>;

inline Json stored(const std::string& name) {
  std::ifstream file(std::string(VERBUND_TEST_DATA) + "/text/" + name, std::ios::binary);
  if (!file) throw std::runtime_error("no test data: text/" + name);
  return Json::parse(file);
}

inline std::vector<std::string> corpus() { return stored("corpus.json").get<std::vector<std::string>>(); }

inline GgufVocabulary vocabulary_of(const Json& gguf, const std::string& pre = {}) {
  GgufVocabulary vocabulary;
  vocabulary.model = gguf.at("model").get<std::string>();
  vocabulary.pre = pre;
  vocabulary.tokens = gguf.at("tokens").get<std::vector<std::string>>();
  vocabulary.token_types = gguf.at("token_types").get<Ids>();
  if (gguf.contains("merges")) vocabulary.merges = gguf["merges"].get<std::vector<std::string>>();
  if (gguf.contains("scores")) vocabulary.scores = gguf["scores"].get<std::vector<float>>();
  vocabulary.bos = gguf.at("bos").get<int32_t>();
  vocabulary.eos = gguf.at("eos").get<int32_t>();
  if (gguf.contains("unknown")) vocabulary.unknown = gguf["unknown"].get<int32_t>();
  if (gguf.contains("add_space_prefix")) vocabulary.add_space_prefix = gguf["add_space_prefix"].get<bool>();
  return vocabulary;
}

inline std::shared_ptr<const Tokenizer> byte_level(const std::string& pre) {
  return Tokenizer::from_gguf(vocabulary_of(stored("byte_level.json").at("gguf"), pre));
}

inline std::shared_ptr<const Tokenizer> sentence_piece(const std::string& name) {
  return Tokenizer::from_gguf(vocabulary_of(stored("sentence_piece.json").at("cases").at(name).at("gguf")));
}

}  // namespace verbund::text::test
