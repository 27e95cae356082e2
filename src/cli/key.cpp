// `verbund key`: the API keys of `verbund serve`.
#include <cstdio>
#include <ctime>

#include "cli/commands.h"
#include "cli/terminal.h"
#include "serve/key_file.h"

namespace verbund::cli {
namespace {

int list(const std::string& path) {
  std::vector<std::vector<std::string>> rows{{"name", "created"}};
  for (const serve::ApiKey& key : serve::read_keys(path)) {
    const std::time_t time = key.created;
    std::tm parts{};
    ::gmtime_r(&time, &parts);
    char text[32];
    rows.push_back({key.name, std::string(text, std::strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", &parts))});
  }
  std::fputs(table(rows, 2).c_str(), stdout);
  return 0;
}

}  // namespace

Command add_key(CLI::App& app) {
  struct Options {
    std::string path = serve::default_key_file(), name;
  };
  auto o = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand("key", "API keys of `verbund serve`: add, list, revoke")->require_subcommand(1);
  sub->add_option("--keys", o->path, "File of the keys; only their hashes are kept")->capture_default_str();
  CLI::App* add = sub->add_subcommand("add", "Make a key; it is shown this once");
  CLI::App* revoke = sub->add_subcommand("revoke", "End a key; a running server notices within a second");
  sub->add_subcommand("list", "Names of the keys");
  for (CLI::App* one : {add, revoke}) one->add_option("NAME", o->name, "Whose key it is, or where it is used")->required();
  return [o, add, revoke] {
    if (add->parsed()) return std::printf("%s\n", serve::add_key(o->path, o->name).c_str()), 0;
    if (revoke->parsed()) return serve::revoke_key(o->path, o->name), 0;
    return list(o->path);
  };
}

}  // namespace verbund::cli
