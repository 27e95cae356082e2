#include <cstdio>

#include "cli/commands.h"
#include "compute/backend.h"
#include "mesh/verbs/verbs.h"

namespace verbund::cli {

Command add_version(CLI::App& app) {
  app.add_subcommand("version", "Version and what this machine can run");
  return [] {
    std::string isas;
    for (const std::string& isa : compute::native_isas()) isas += (isas.empty() ? "" : " ") + isa;
    std::printf("verbund %s\ninstruction sets here: %s\nRDMA here: %s\n", VERBUND_VERSION, isas.c_str(), mesh::describe_rdma().c_str());
    return 0;
  };
}

}  // namespace verbund::cli
