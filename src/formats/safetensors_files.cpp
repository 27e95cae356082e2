#include "formats/safetensors_files.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "formats/json_text.h"

namespace verbund::formats {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kIndexBytesMax = 32 << 20;
constexpr size_t kFilesMax = 4096;
constexpr std::string_view kExtension = ".safetensors";

// A plain name in the same folder. Everything else could reach out of it.
void check_name(const std::string& name, const std::string& index) {
  const bool plain = !name.empty() && name != "." && name != ".." && name.find_first_of(std::string_view("/\\:\0", 4)) == std::string::npos;
  if (!plain)
    throw Error(Code::permission_denied, "the index names the file " + shown(name) + ", which is not a plain name in the model's folder",
                index, "do not use this model");
}

SafetensorsFiles from_index(const std::string& folder, const std::string& index_path) {
  const nlohmann::json index = read_json_object(index_path, kIndexBytesMax);
  const auto map = index.find("weight_map");
  if (map == index.end() || !map->is_object())
    throw Error(Code::data_loss, "the index has no object 'weight_map'", index_path, "fetch the model again");
  std::map<std::string, size_t> number;
  SafetensorsFiles files;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string())
      throw Error(Code::data_loss, "the index names no file for tensor " + shown(tensor), index_path, "fetch the model again");
    const auto name = file.get<std::string>();
    const auto [it, added] = number.emplace(name, files.paths.size());
    if (added) {
      check_name(name, index_path);
      if (files.paths.size() == kFilesMax)
        throw Error(Code::data_loss, "the index names more than " + std::to_string(kFilesMax) + " files", index_path);
      files.paths.push_back((fs::path(folder) / name).string());
    }
    files.expected.emplace(tensor, it->second);
  }
  size_t missing = 0;
  std::string first;
  for (const std::string& path : files.paths)
    if (!fs::exists(path) && missing++ == 0) first = path;
  if (missing > 0)
    throw Error(Code::not_found,
                std::to_string(missing) + " of " + std::to_string(files.paths.size()) + " weight files are missing, the first is " +
                    fs::path(first).filename().string(),
                folder, "fetch the model again");
  return files;
}

// name-00002-of-00005.safetensors -> 5; 0 for other names.
size_t shard_count(const std::string& file) {
  const size_t tail = std::string_view("-00001-of-00001.safetensors").size();
  if (file.size() < tail) return 0;
  const std::string_view t = std::string_view(file).substr(file.size() - tail);
  size_t count = 0;
  for (size_t i = 1; i < 15; ++i) {
    const bool digit = i < 6 || i >= 10;
    if (digit && (t[i] < '0' || t[i] > '9')) return 0;
    if (i >= 10) count = count * 10 + static_cast<size_t>(t[i] - '0');
  }
  return t[0] == '-' && t.substr(6, 4) == "-of-" ? count : 0;
}

SafetensorsFiles from_listing(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == kExtension && entry.path().filename() != "consolidated.safetensors")
      names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  if (const auto model = std::find(names.begin(), names.end(), "model.safetensors"); model != names.end()) names = {"model.safetensors"};
  if (names.empty())
    throw Error(Code::not_found, "no .safetensors file", folder, "fetch the model again; pickled weights (.bin, .pt) are not read");
  if (names.size() > 1 || shard_count(names[0]) > 1)
    if (const size_t count = shard_count(names[0]);
        count != names.size() || std::any_of(names.begin(), names.end(), [&](const auto& n) { return shard_count(n) != count; }))
      throw Error(Code::not_found,
                  "there are " + std::to_string(names.size()) +
                      " .safetensors files, no model.safetensors.index.json, and the names are no complete set",
                  folder, "fetch model.safetensors.index.json and all files it names");
  SafetensorsFiles files;
  for (const std::string& name : names) files.paths.push_back((fs::path(folder) / name).string());
  return files;
}

}  // namespace

SafetensorsFiles find_safetensors(const std::string& folder) {
  const std::string index = (fs::path(folder) / "model.safetensors.index.json").string();
  return fs::exists(index) ? from_index(folder, index) : from_listing(folder);
}

}  // namespace verbund::formats
