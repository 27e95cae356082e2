#include "formats/model_files.h"

#include <array>
#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "formats/gguf_source.h"
#include "formats/json_text.h"
#include "formats/safetensors_files.h"

namespace verbund::formats {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kConfigBytesMax = 4 << 20;
constexpr const char* kHint = "give a folder with config.json and *.safetensors, or a GGUF file";

std::vector<std::unique_ptr<ByteSource>> open_all(const std::vector<std::string>& paths) {
  std::vector<std::unique_ptr<ByteSource>> files;
  for (const std::string& path : paths) files.push_back(std::make_unique<FileBytes>(path));
  return files;
}

ModelFiles open_gguf(const std::string& path) {
  auto source = std::make_unique<GgufSource>(open_all(gguf_shards(path)));
  ModelFiles model{Container::gguf, path, nullptr, {}, {}, source->take_metadata(), source->bytes_on_disk()};
  model.tensors = std::move(source);
  return model;
}

std::string gguf_inside(const std::string& folder) {
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ".gguf") return entry.path().string();
  return {};
}

ModelFiles open_folder(const std::string& path) {
  const fs::path folder(path);
  if (!fs::exists(folder / "config.json")) {
    const std::string gguf = gguf_inside(path);
    throw Error(Code::invalid_argument, "the folder has no config.json, so it is no model", path,
                gguf.empty() ? kHint : "for the GGUF file in it give " + gguf);
  }
  ModelFiles model{Container::safetensors, path, nullptr, read_json_object((folder / "config.json").string(), kConfigBytesMax), {}, {}, 0};
  if (const fs::path generation = folder / "generation_config.json"; fs::exists(generation))
    model.generation_config = read_json_object(generation.string(), kConfigBytesMax);
  SafetensorsFiles files = find_safetensors(path);
  auto source = std::make_unique<SafetensorsSource>(path, open_all(files.paths), model.config, files.expected);
  model.bytes_on_disk = source->bytes_on_disk();
  model.tensors = std::move(source);
  return model;
}

ModelFiles open_file(const std::string& path) {
  const FileBytes file(path);
  std::array<unsigned char, 4> magic{};
  const size_t n = std::min<uint64_t>(magic.size(), file.size());
  file.read(0, std::as_writable_bytes(std::span(magic).first(n)));
  if (n == magic.size() && std::string_view(reinterpret_cast<const char*>(magic.data()), n) == "GGUF") return open_gguf(path);
  if (fs::path(path).extension() == ".safetensors")
    throw Error(Code::invalid_argument, "a weight file alone is no model", path, "give its folder, which has config.json too");
  throw Error(Code::invalid_argument,
              "not a model: the file has " + std::to_string(file.size()) + " bytes and begins with " +
                  shown(std::string_view(reinterpret_cast<const char*>(magic.data()), n)),
              path, kHint);
}

}  // namespace

ModelFiles open_model(const std::string& path) try {
  std::error_code problem;
  const fs::file_status status = fs::status(path, problem);
  switch (status.type()) {
    case fs::file_type::not_found: throw Error(Code::not_found, "no such file or folder", path, kHint);
    case fs::file_type::directory: return open_folder(path);
    case fs::file_type::regular: return open_file(path);
    case fs::file_type::none: throw Error(Code::permission_denied, "cannot look at it: " + problem.message(), path);
    default: throw Error(Code::invalid_argument, "neither a folder nor a regular file", path, kHint);
  }
} catch (const fs::filesystem_error& e) { throw Error(Code::permission_denied, "cannot read the folder: " + e.code().message(), path); }

}  // namespace verbund::formats
