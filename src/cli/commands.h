// One file a command. Each adds its subcommand to the program and returns what it does when chosen: the exit code.
// Options are declared once, in the command's file, with name, unit, default, bounds and help.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace verbund::cli {

using Command = std::function<int()>;

Command add_run(CLI::App& app);
Command add_serve(CLI::App& app);
Command add_key(CLI::App& app);
Command add_perplexity(CLI::App& app);
Command add_inspect(CLI::App& app);
Command add_bench(CLI::App& app);
Command add_version(CLI::App& app);
Command add_runner(CLI::App& app);  // hidden: the process of one rank

}  // namespace verbund::cli
