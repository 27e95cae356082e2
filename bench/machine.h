// Which machine a figure comes from, and how busy it was: printed with every table.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/unix.h"

namespace verbund::bench {

inline nlohmann::json machine() {
  std::string cpu = "unknown CPU";
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.rfind("model name", 0) == 0) {
      cpu = line.substr(line.find(':') + 2);
      break;
    }
  double load = 0;
  ::getloadavg(&load, 1);
  return {{"cpu", cpu}, {"cores", available_cores()}, {"load_average", load}};
}

inline std::string describe(const nlohmann::json& machine) {
  char load[16];
  std::snprintf(load, sizeof load, "%.2f", machine["load_average"].get<double>());
  return machine["cpu"].get<std::string>() + ", " + machine["cores"].dump() + " cores, load average " + load;
}

}  // namespace verbund::bench
