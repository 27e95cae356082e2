// API keys: named, only their SHA-256 is kept. A key has 256 random bits, so that a plain hash cannot be guessed back.
// File: {"keys": [{"name": "laptop", "sha256": "<64 hex>", "created": 1790000000}]}, readable by its owner only.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace verbund::serve {

struct ApiKey {
  std::string name, sha256;
  int64_t created = 0;
};

// $XDG_CONFIG_HOME/verbund/keys.json, else ~/.config/verbund/keys.json
std::string default_key_file();

std::vector<ApiKey> read_keys(const std::string& path);                 // no file: none. Throws data_loss naming the file.
std::string add_key(const std::string& path, const std::string& name);  // returns the key; throws if the name is taken or no name
void revoke_key(const std::string& path, const std::string& name);      // throws not_found

// The keys of a running server: reads the file again when it has changed. One thread.
class KeyRing {
 public:
  explicit KeyRing(std::string path);
  bool empty();
  bool admits(std::string_view key);  // takes the same time whatever the key

 private:
  void refresh();
  std::string path_;
  std::vector<ApiKey> keys_;
  int64_t changed_ns_ = -1;
  std::chrono::steady_clock::time_point checked_{};
};

}  // namespace verbund::serve
