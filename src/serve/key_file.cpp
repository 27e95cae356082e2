#include "serve/key_file.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/sha256.h"
#include "base/unix.h"
#include "serve/generate.h"

namespace verbund::serve {
namespace {

constexpr uint64_t kFileBytesMax = 1 << 20;
constexpr size_t kKeyLength = 43;  // of 62 letters: 256 bits
constexpr std::chrono::seconds kCheckEvery{1};

std::string hash_of(std::string_view key) {
  Sha256 hash;
  hash.update(std::as_bytes(std::span(key)));
  return hash.hex();
}

int64_t changed_ns(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return 0;
#ifdef __APPLE__
  return info.st_mtimespec.tv_sec * 1'000'000'000 + info.st_mtimespec.tv_nsec;
#else
  return info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec;
#endif
}

// Beside the file and then renamed: a reader sees the old keys or the new ones.
void write_keys(const std::string& path, const std::vector<ApiKey>& keys) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const ApiKey& k : keys) list.push_back({{"name", k.name}, {"sha256", k.sha256}, {"created", k.created}});
  const std::string text = nlohmann::ordered_json{{"keys", list}}.dump(2) + "\n";
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  const std::string beside = path + ".new";
  const Fd file(::open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  const bool written = file.valid() && ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
                       ::fsync(file.get()) == 0 && ::rename(beside.c_str(), path.c_str()) == 0;
  if (!written) throw Error(Code::unavailable, "the keys cannot be written: " + errno_text(errno), path);
}

}  // namespace

std::string default_key_file() {
  if (const char* config = std::getenv("XDG_CONFIG_HOME"); config && *config) return std::string(config) + "/verbund/keys.json";
  const char* home = std::getenv("HOME");
  return std::string(home ? home : ".") + "/.config/verbund/keys.json";
}

std::vector<ApiKey> read_keys(const std::string& path) {
  if (!std::filesystem::exists(path)) return {};
  std::vector<ApiKey> keys;
  const auto json = nlohmann::json::parse(read_text_file(path, kFileBytesMax), nullptr, false);
  try {
    for (const auto& k : json.at("keys"))
      keys.push_back({k.at("name").get<std::string>(), k.at("sha256").get<std::string>(), k.value("created", int64_t(0))});
  } catch (const nlohmann::json::exception&) {
    throw Error(Code::data_loss, "this is no file of API keys", path, "delete it and add the keys again with `verbund key add`");
  }
  return keys;
}

std::string add_key(const std::string& path, const std::string& name) {
  if (name.empty() || name.size() > 64) throw Error(Code::invalid_argument, "a key's name must have 1 to 64 characters");
  std::vector<ApiKey> keys = read_keys(path);
  if (std::any_of(keys.begin(), keys.end(), [&](const ApiKey& k) { return k.name == name; }))
    throw Error(Code::invalid_argument, "there is a key named '" + name + "' already", path, "choose another name or revoke it first");
  const std::string key = random_id("vb-", kKeyLength);
  keys.push_back({name, hash_of(key), unix_seconds()});
  write_keys(path, keys);
  return key;
}

void revoke_key(const std::string& path, const std::string& name) {
  std::vector<ApiKey> keys = read_keys(path);
  if (std::erase_if(keys, [&](const ApiKey& k) { return k.name == name; }) == 0)
    throw Error(Code::not_found, "there is no key named '" + name + "'", path, "`verbund key list` shows the names");
  write_keys(path, keys);
}

KeyRing::KeyRing(std::string path) : path_(std::move(path)), keys_(read_keys(path_)), changed_ns_(changed_ns(path_)) {}

bool KeyRing::empty() {
  refresh();
  return keys_.empty();
}

bool KeyRing::admits(std::string_view key) {
  refresh();
  const std::string hash = hash_of(key);
  bool found = false;
  for (const ApiKey& k : keys_) found |= k.sha256.size() == hash.size() && CRYPTO_memcmp(k.sha256.data(), hash.data(), hash.size()) == 0;
  return found;
}

void KeyRing::refresh() {
  const auto now = std::chrono::steady_clock::now();
  if (now - checked_ < kCheckEvery) return;
  checked_ = now;
  const int64_t changed = changed_ns(path_);
  if (changed == changed_ns_) return;
  changed_ns_ = changed;
  try {
    std::vector<ApiKey> keys = read_keys(path_);
    // A file that is gone does not open the door of a server that had keys.
    if (!keys.empty() || std::filesystem::exists(path_)) keys_ = std::move(keys);
    if (keys_.empty()) keys_.push_back({"nobody", std::string(64, '-'), 0});
    spdlog::info("{} API keys read again", keys_.size());
  } catch (const Error& e) { spdlog::error("the API keys stay as they were: {}", e.what()); }
}

}  // namespace verbund::serve
