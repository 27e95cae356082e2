#include "engine/request_json.h"

#include "base/error.h"

namespace verbund::engine {

nlohmann::json to_json(const Request& r) {
  const SamplingParams& p = r.params;
  nlohmann::json bias = nlohmann::json::array();
  for (const auto& [id, value] : p.logit_bias) bias.push_back({id, value});
  nlohmann::json j{{"id", r.id},
                   {"prompt", r.prompt},
                   {"generated", r.generated},
                   {"temperature", p.temperature},
                   {"top_k", p.top_k},
                   {"top_p", p.top_p},
                   {"min_p", p.min_p},
                   {"repetition_penalty", p.repetition_penalty},
                   {"frequency_penalty", p.frequency_penalty},
                   {"presence_penalty", p.presence_penalty},
                   {"logit_bias", bias},
                   {"choice", p.choice},
                   {"max_tokens", r.max_tokens},
                   {"eos", r.eos},
                   {"ignore_eos", r.ignore_eos},
                   {"min_tokens", r.min_tokens},
                   {"stop", r.stop},
                   {"score_from", r.score_from},
                   {"priority", r.priority}};
  if (p.seed) j["seed"] = *p.seed;
  if (r.logprobs) j["logprobs"] = *r.logprobs;
  if (r.grammar) j["grammar"] = {static_cast<int>(r.grammar->kind), r.grammar->source};
  return j;
}

Request request_from_json(const nlohmann::json& j) {
  Request r;
  SamplingParams& p = r.params;
  try {
    j.at("id").get_to(r.id);
    j.at("prompt").get_to(r.prompt);
    j.at("generated").get_to(r.generated);
    j.at("temperature").get_to(p.temperature);
    j.at("top_k").get_to(p.top_k);
    j.at("top_p").get_to(p.top_p);
    j.at("min_p").get_to(p.min_p);
    j.at("repetition_penalty").get_to(p.repetition_penalty);
    j.at("frequency_penalty").get_to(p.frequency_penalty);
    j.at("presence_penalty").get_to(p.presence_penalty);
    for (const auto& entry : j.at("logit_bias")) p.logit_bias[entry.at(0).get<int32_t>()] = entry.at(1).get<float>();
    j.at("choice").get_to(p.choice);
    j.at("max_tokens").get_to(r.max_tokens);
    j.at("eos").get_to(r.eos);
    j.at("ignore_eos").get_to(r.ignore_eos);
    j.at("min_tokens").get_to(r.min_tokens);
    j.at("stop").get_to(r.stop);
    j.at("score_from").get_to(r.score_from);
    j.at("priority").get_to(r.priority);
    if (j.contains("seed")) p.seed = j.at("seed").get<uint64_t>();
    if (j.contains("logprobs")) r.logprobs = j.at("logprobs").get<uint32_t>();
    if (j.contains("grammar")) {
      const int kind = j.at("grammar").at(0).get<int>();
      if (kind < 0 || kind > static_cast<int>(text::GrammarKind::lark))
        throw Error(Code::invalid_argument, "there is no such kind of grammar");
      r.grammar = Grammar{static_cast<text::GrammarKind>(kind), j.at("grammar").at(1).get<std::string>()};
    }
  } catch (const nlohmann::json::exception& e) {
    throw Error(Code::invalid_argument, std::string("the request is malformed: ") + e.what());
  }
  return r;
}

}  // namespace verbund::engine
