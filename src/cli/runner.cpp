#include "engine/runner.h"
#include "cli/commands.h"

namespace verbund::cli {

Command add_runner(CLI::App& app) {
  auto fd = std::make_shared<int>(-1);
  CLI::App* sub = app.add_subcommand("runner", "The process of one rank; started by verbund itself")->group("");
  sub->add_option("--fd", *fd, "Descriptor of the control socket")->required()->check(CLI::Range(3, 1023));
  return [fd] { return engine::run_runner(*fd); };
}

}  // namespace verbund::cli
