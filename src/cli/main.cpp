#include <clocale>
#include <cstdio>
#include <utility>
#include <vector>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/terminal.h"
#include "compute/cpu.h"

namespace verbund::cli {
namespace {

int run_program(int argc, char** argv) {
  compute::require_cpu();
  CLI::App app(
      "Several machines act as one for AI: one pool of memory, one accelerator, one API.\n"
      "Tested on Linux x86-64. Written for macOS and Arm from their documented interfaces, not run there yet.",
      "verbund");
  app.require_subcommand(1);
  app.failure_message(CLI::FailureMessage::simple);
  std::vector<std::pair<CLI::App*, Command>> commands;
  for (auto add : {add_run, add_serve, add_key, add_perplexity, add_inspect, add_bench, add_version, add_runner}) {
    Command command = add(app);
    commands.emplace_back(app.get_subcommands([](CLI::App*) { return true; }).back(), std::move(command));
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);  // --help
    throw Error(Code::invalid_argument, e.what(), {},
                "verbund " + (app.get_subcommands().empty() ? std::string() : app.get_subcommands().front()->get_name() + " ") +
                    "--help lists the options");
  }
  for (auto& [sub, command] : commands)
    if (sub->parsed()) return command();
  return 0;
}

}  // namespace
}  // namespace verbund::cli

int main(int argc, char** argv) {
  try {
    return verbund::cli::run_program(argc, argv);
  } catch (...) {
    const verbund::Error error = verbund::current_error();
    verbund::cli::print_error(error);
    return verbund::mapping(error.code()).exit_code;
  }
}
