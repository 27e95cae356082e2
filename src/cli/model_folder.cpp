#include "cli/model_folder.h"

#include <cstdlib>
#include <filesystem>

#include "base/error.h"

namespace verbund::cli {
namespace {

namespace fs = std::filesystem;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

}  // namespace

std::string model_folder() {
  if (const std::string folder = environment("VERBUND_MODELS"); !folder.empty()) return folder;
  if (const std::string data = environment("XDG_DATA_HOME"); !data.empty()) return data + "/verbund/models";
  return environment("HOME") + "/.local/share/verbund/models";
}

std::string resolve_model(const std::string& text) {
  std::error_code ignored;
  if (fs::exists(text, ignored)) return text;
  const fs::path folder(model_folder());
  // A name, not a path: it must not lead out of the folder.
  if (text.find('/') == std::string::npos && text != "." && text != "..") {
    if (const fs::path file = folder / (text + ".gguf"); fs::exists(file, ignored)) return file.string();
    if (const fs::path sub = folder / text; fs::is_directory(sub, ignored)) return sub.string();
  }
  throw Error(Code::not_found, "there is no model '" + text.substr(0, 200) + "'",
              "looked for a file or folder of that name here and in " + folder.string(),
              text == "smollm2" ? "`make run` or scripts/fetch-model fetches the demo model"
                                : "give the path of a GGUF file or of a folder with config.json and safetensors");
}

}  // namespace verbund::cli
