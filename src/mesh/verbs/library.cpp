#include "mesh/verbs/library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <map>
#include <memory>
#include <mutex>

#include "base/error.h"

namespace verbund::mesh::verbs {
namespace {

#ifdef __APPLE__
constexpr const char* kLibrary = "/usr/lib/librdma.dylib";
constexpr const char* kHint = "RDMA over Thunderbolt needs macOS 26.2 or newer";
#else
constexpr const char* kLibrary = "libibverbs.so.1";
constexpr const char* kHint = "install it: package libibverbs1 and the driver's provider (ibverbs-providers)";
#endif

std::unique_ptr<Library> open(const std::string& path) {
  const char* name = path.empty() ? kLibrary : path.c_str();
  void* handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (!handle) throw Error({Code::unavailable, Lost::instance, fmt::format("no RDMA library: {}", ::dlerror()), {}, kHint});
  auto library = std::make_unique<Library>();
  const auto find = [&](auto& function, const char* symbol) {
    void* found = ::dlsym(handle, symbol);
    if (!found) throw Error({Code::unavailable, Lost::instance, fmt::format("the RDMA library {} has no {}", name, symbol), {}, kHint});
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(found);
  };
  find(library->get_device_list, "ibv_get_device_list");
  find(library->free_device_list, "ibv_free_device_list");
  find(library->get_device_name, "ibv_get_device_name");
  find(library->open_device, "ibv_open_device");
  find(library->close_device, "ibv_close_device");
  find(library->query_device, "ibv_query_device");
  find(library->query_port, "ibv_query_port");
  find(library->query_gid, "ibv_query_gid");
  find(library->alloc_pd, "ibv_alloc_pd");
  find(library->dealloc_pd, "ibv_dealloc_pd");
  find(library->reg_mr, "ibv_reg_mr");
  find(library->dereg_mr, "ibv_dereg_mr");
  find(library->create_comp_channel, "ibv_create_comp_channel");
  find(library->destroy_comp_channel, "ibv_destroy_comp_channel");
  find(library->create_cq, "ibv_create_cq");
  find(library->destroy_cq, "ibv_destroy_cq");
  find(library->get_cq_event, "ibv_get_cq_event");
  find(library->ack_cq_events, "ibv_ack_cq_events");
  find(library->create_qp, "ibv_create_qp");
  find(library->modify_qp, "ibv_modify_qp");
  find(library->destroy_qp, "ibv_destroy_qp");
  return library;  // stays loaded: its threads and handlers may outlive any use
}

}  // namespace

const Library& load_library(const std::string& path) {
  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<Library>> loaded;
  std::lock_guard lock(mutex);
  auto& library = loaded[path];
  if (!library) library = open(path);
  return *library;
}

std::string status_text(ibv_wc_status status) {
  const auto words = [&]() -> const char* {
    switch (status) {
      case IBV_WC_SUCCESS: return "success";
      case IBV_WC_LOC_LEN_ERR: return "a message longer than its receive buffer";
      case IBV_WC_LOC_QP_OP_ERR: return "the device could not carry it out (its interface may be down)";
      case IBV_WC_LOC_PROT_ERR: return "memory that is not registered for it";
      case IBV_WC_WR_FLUSH_ERR: return "given up because the queue pair had failed before";
      case IBV_WC_BAD_RESP_ERR: return "a malformed answer";
      case IBV_WC_LOC_ACCESS_ERR: return "no access to the local memory";
      case IBV_WC_REM_INV_REQ_ERR: return "the peer's queue pair refused the message";
      case IBV_WC_REM_ACCESS_ERR: return "no access to the peer's memory";
      case IBV_WC_REM_OP_ERR: return "the peer's device failed";
      case IBV_WC_RETRY_EXC_ERR: return "no answer from the peer's device (cable, link or node down)";
      case IBV_WC_RNR_RETRY_EXC_ERR: return "the peer posted no receive";
      case IBV_WC_REM_ABORT_ERR: return "the peer's device gave up";
      case IBV_WC_RESP_TIMEOUT_ERR: return "the peer's answer timed out";
      case IBV_WC_FATAL_ERR: return "the device failed";
      default: return "an unexpected failure";
    }
  };
  return fmt::format("{} (status {})", words(), static_cast<int>(status));
}

}  // namespace verbund::mesh::verbs
