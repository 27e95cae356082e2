#include "compute/mlx_module.h"

#include <dlfcn.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <mutex>

#include "base/error.h"
#include "base/unix.h"
#include "compute/mlx/abi.h"
#include "compute/mlx/reserve.h"

namespace verbund::compute {
namespace {

struct Module {
  MlxBackendFn* make_backend = nullptr;
  MlxMeshFn* make_mesh = nullptr;
};

constexpr const char* kHint =
    "install the MLX wheel with scripts/setup and configure and build again (cmake says whether it found MLX), or use "
    "--backend native";

std::filesystem::path program_folder() { return std::filesystem::path(executable_path()).parent_path(); }

template <class Fn>
Fn* symbol(void* handle, const char* name, const std::string& path) {
  if (void* address = dlsym(handle, name)) return reinterpret_cast<Fn*>(address);
  throw Error(Code::unavailable, std::string("the MLX module has no function ") + name, path, "build the program and its module together");
}

Module open_module(const std::string& path) {
  if (access(path.c_str(), R_OK) != 0) throw Error(Code::unavailable, "MLX is not built in: the module is missing", path, kHint);
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* reason = dlerror();
    throw Error(Code::unavailable, std::string("cannot load the MLX module: ") + (reason ? reason : "unknown reason"), path, kHint);
  }
  const std::string stamp = symbol<MlxStampFn>(handle, kMlxStampName, path)();
  if (stamp != kMlxStamp)
    throw Error(Code::unavailable, "the MLX module is of another build: it says \"" + stamp + "\", wanted \"" + kMlxStamp + "\"", path,
                "build the program and its module together");
  return {symbol<MlxBackendFn>(handle, kMlxBackendName, path), symbol<MlxMeshFn>(handle, kMlxMeshName, path)};
}

// Never closed: MLX's threads and our objects live in it until the process ends.
const Module& module_at(const std::string& path) {
  static std::mutex mutex;
  static std::map<std::string, Module> opened;
  std::lock_guard lock(mutex);
  auto found = opened.find(path);
  if (found == opened.end()) found = opened.emplace(path, open_module(path)).first;
  return found->second;
}

}  // namespace

std::string mlx_module_path() {
#if defined(__APPLE__)
  return (program_folder() / "libverbund_mlx.dylib").string();
#else
  return (program_folder() / "libverbund_mlx.so").string();
#endif
}

std::unique_ptr<Backend> make_mlx_backend_from(const std::string& module_path) {
  return std::unique_ptr<Backend>(module_at(module_path).make_backend());
}

std::unique_ptr<Backend> make_mlx_backend() { return make_mlx_backend_from(mlx_module_path()); }

MlxReservation::MlxReservation(const std::string& address) {
  ReservedPort reserved = reserve_port(address);
  socket_ = std::move(reserved.socket);
  endpoint_ = "mlx:" + address + ":" + std::to_string(reserved.port);
}

std::unique_ptr<mesh::Mesh> make_mlx_mesh(const MlxMeshOptions& options, const Deadline& deadline) {
  return std::unique_ptr<mesh::Mesh>(module_at(mlx_module_path()).make_mesh(options, deadline));
}

}  // namespace verbund::compute
