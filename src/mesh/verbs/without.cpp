// In place of the other files that need <infiniband/verbs.h> where a build does not have it.
#include "base/error.h"
#include "mesh/verbs/endpoint.h"

namespace verbund::mesh::verbs {
namespace {

constexpr const char* kBuiltWithout =
    "this program was built without RDMA: <infiniband/verbs.h> was missing (package libibverbs-dev, or the SDK of macOS 26.2)";

}  // namespace

Found find_candidates(const std::string&) { return {{}, kBuiltWithout}; }

std::unique_ptr<Endpoint> open_endpoint(const Plan&) { throw Error({Code::unimplemented, Lost::instance, kBuiltWithout, {}, {}}); }

std::unique_ptr<Link> make_link(std::unique_ptr<Endpoint>, Fd, const std::string&) {
  throw Error({Code::unimplemented, Lost::instance, kBuiltWithout, {}, {}});
}

}  // namespace verbund::mesh::verbs
