// The input is a GGUF file.
#include <memory>

#include "formats/gguf_source.h"
#include "read_everything.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace verbund;
  using namespace verbund::formats;
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  std::vector<std::unique_ptr<ByteSource>> files;
  files.push_back(std::make_unique<MemoryBytes>(std::vector<std::byte>(bytes, bytes + size), "fuzz input"));
  try {
    read_everything(GgufSource(std::move(files)));
  } catch (const Error& e) { check_refusal(e); }
  return 0;
}
