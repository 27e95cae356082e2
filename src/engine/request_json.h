// Request <-> JSON, for the frames between owner and runner.
#pragma once

#include <nlohmann/json.hpp>

#include "engine/request.h"

namespace verbund::engine {

nlohmann::json to_json(const Request& request);
Request request_from_json(const nlohmann::json& json);  // throws invalid_argument

}  // namespace verbund::engine
