// Which safetensors files of a folder make up its model. Any thread.
#pragma once

#include <string>
#include <vector>

#include "formats/safetensors_source.h"

namespace verbund::formats {

struct SafetensorsFiles {
  std::vector<std::string> paths;
  SafetensorsSource::Expected expected;  // from the index, if there is one
};

// model.safetensors.index.json decides; without it one file, or a complete set name-0000i-of-0000n.safetensors.
// Names in an index that lead out of the folder are refused (permission_denied). Throws not_found naming what is missing.
SafetensorsFiles find_safetensors(const std::string& folder);

}  // namespace verbund::formats
