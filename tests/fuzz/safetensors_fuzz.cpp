// The input is a u16 length, that many bytes of config.json, and a safetensors file.
#include <algorithm>
#include <memory>

#include "formats/json_text.h"
#include "formats/safetensors_source.h"
#include "read_everything.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace verbund;
  using namespace verbund::formats;
  if (size < 2) return 0;
  const size_t config_size = std::min<size_t>(size_t(data[0]) | size_t(data[1]) << 8, size - 2);
  const std::string_view config(reinterpret_cast<const char*>(data) + 2, config_size);
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  std::vector<std::unique_ptr<ByteSource>> files;
  files.push_back(std::make_unique<MemoryBytes>(std::vector<std::byte>(bytes + 2 + config_size, bytes + size), "fuzz input"));
  try {
    read_everything(SafetensorsSource("fuzz folder", std::move(files), parse_json_object(config, "fuzz config")));
  } catch (const Error& e) { check_refusal(e); }
  return 0;
}
