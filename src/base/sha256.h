// SHA-256 over pieces. One object, one thread.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace verbund {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  void update(std::span<const std::byte> data);
  std::string hex();  // finishes; call once

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

}  // namespace verbund
