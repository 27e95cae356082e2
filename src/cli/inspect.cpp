// `verbund inspect`: what a model on disk is and what it needs, from its headers alone.
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <map>

#include "base/bytes.h"
#include "cli/commands.h"
#include "cli/model_folder.h"
#include "cli/terminal.h"
#include "model/decoder.h"
#include "model/family.h"
#include "model/shard_weights.h"

namespace verbund::cli {
namespace {

struct Kind {
  size_t tensors = 0;
  uint64_t elements = 0, bytes = 0;
};

struct Inspection {
  formats::ModelFiles files;
  model::DecoderSpec spec;
  std::map<std::string, Kind> kinds;  // by stored type
  uint64_t parameters = 0;
  std::vector<std::string> notes;               // tensors that are not kept exactly
  uint64_t weight_bytes = 0;                    // in the native backend's layout, one node
  std::vector<std::pair<size_t, uint64_t>> kv;  // context -> bytes
};

Inspection look_at(const std::string& path) {
  Inspection i;
  i.files = formats::open_model(path);
  i.spec = model::read_spec(i.files);
  for (const formats::TensorInfo& t : i.files.tensors->tensors()) {
    uint64_t elements = 1;
    for (size_t n : t.shape) elements *= n;
    Kind& kind = i.kinds[t.stored];
    ++kind.tensors, kind.elements += elements, kind.bytes += t.stored_bytes;
    i.parameters += elements;
    if (!t.exact) i.notes.push_back(t.name + ": " + t.note);
  }
  const model::ShardPlan plan = model::make_shard_plan(i.spec, model::units_of(i.files, i.spec), {});
  const auto backend = compute::make_native_backend("auto", 1);
  std::vector<size_t> contexts;
  for (size_t c = 1024; c < i.spec.context_max; c *= 4) contexts.push_back(c);
  contexts.push_back(i.spec.context_max);
  for (size_t c : contexts) {
    const model::DecoderOptions options{c, static_cast<size_t>(ceil_div(c, compute::kKvBlock)), compute::KvType::f16, 256};
    const model::DecoderBytes bytes = model::decoder_bytes(i.files, i.spec, plan.units, plan.ranks[0], *backend, options);
    i.weight_bytes = bytes.weights;
    i.kv.emplace_back(c, bytes.kv + bytes.tables);
  }
  return i;
}

const char* container_name(const Inspection& i) { return i.files.container == formats::Container::gguf ? "GGUF" : "safetensors"; }

nlohmann::json to_json(const Inspection& i) {
  const model::DecoderSpec& s = i.spec;
  nlohmann::json kinds = nlohmann::json::object(), memory = nlohmann::json::array();
  for (const auto& [name, k] : i.kinds) kinds[name] = {{"tensors", k.tensors}, {"elements", k.elements}, {"bytes", k.bytes}};
  for (const auto& [context, kv] : i.kv) memory.push_back({{"context", context}, {"kv_bytes", kv}, {"total_bytes", kv + i.weight_bytes}});
  return {{"path", i.files.path},
          {"format", container_name(i)},
          {"family", s.family},
          {"parameters", i.parameters},
          {"bytes_on_disk", i.files.bytes_on_disk},
          {"layers", s.layers.size()},
          {"hidden", s.hidden},
          {"heads", s.heads},
          {"kv_heads", s.kv_heads},
          {"head_dim", s.head_dim},
          {"mlp", s.mlp},
          {"vocabulary", s.vocabulary},
          {"tied", s.tied},
          {"context_max", s.context_max},
          {"quantisation", kinds},
          {"weight_bytes", i.weight_bytes},
          {"memory", memory},
          {"notes", i.notes}};
}

std::string count(uint64_t n) {
  const double v = static_cast<double>(n);
  return v >= 1e9   ? fixed(v / 1e9, 2) + " B"
         : v >= 1e6 ? fixed(v / 1e6, 1) + " M"
         : v >= 1e3 ? fixed(v / 1e3, 1) + " k"
                    : std::to_string(n);
}

void print(const Inspection& i) {
  const model::DecoderSpec& s = i.spec;
  std::printf(
      "%s\n",
      table({{"model", i.files.path},
             {"format", std::string(container_name(i)) + ", " + format_bytes(i.files.bytes_on_disk)},
             {"family", s.family},
             {"parameters", count(i.parameters) + (s.tied ? " (embedding and head are one matrix)" : "")},
             {"shape", std::to_string(s.layers.size()) + " layers, hidden " + std::to_string(s.hidden) + ", MLP " + std::to_string(s.mlp)},
             {"attention",
              std::to_string(s.heads) + " heads of " + std::to_string(s.head_dim) + ", " + std::to_string(s.kv_heads) + " KV heads"},
             {"vocabulary", std::to_string(s.vocabulary)},
             {"context", std::to_string(s.context_max)}},
            2)
          .c_str());
  std::vector<std::vector<std::string>> rows{{"stored as", "tensors", "elements", "bytes"}};
  for (const auto& [name, k] : i.kinds) rows.push_back({name, std::to_string(k.tensors), count(k.elements), format_bytes(k.bytes)});
  std::printf("%s\n", table(rows, 1).c_str());
  rows = {{"context", "weights", "KV cache", "together"}};
  for (const auto& [context, kv] : i.kv)
    rows.push_back({std::to_string(context), format_bytes(i.weight_bytes), format_bytes(kv), format_bytes(i.weight_bytes + kv)});
  std::printf("%s", table(rows, 0).c_str());
  for (const std::string& note : i.notes) std::printf("\n  note: %s", note.c_str());
  if (!i.notes.empty()) std::printf("\n");
}

}  // namespace

Command add_inspect(CLI::App& app) {
  struct Options {
    std::string model;
    bool json = false;
  };
  auto o = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand("inspect", "What a model is: format, family, sizes, quantisation, memory for a context");
  sub->add_option("MODEL", o->model, "A folder, a GGUF file, or the name of a model in the model folder")->required();
  sub->add_flag("--json", o->json, "One JSON object");
  return [o] {
    const Inspection i = look_at(resolve_model(o->model));
    if (o->json)
      std::cout << to_json(i).dump() << std::endl;
    else
      print(i);
    return 0;
  };
}

}  // namespace verbund::cli
