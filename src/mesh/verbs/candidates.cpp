// Which ports of this machine can be used, and for those that cannot, why not and what to do.
#include <fmt/format.h>
#include <ifaddrs.h>
#include <netinet/in.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>

#include "base/error.h"
#include "mesh/verbs/endpoint.h"
#include "mesh/verbs/library.h"

namespace verbund::mesh::verbs {
namespace {

constexpr int kGidsLookedAt = 128;  // tables may have a thousand places, nearly all empty

#ifdef __APPLE__
constexpr const char* kNoDevice =
    "no RDMA device: it needs Thunderbolt 5 ports and must be enabled: in Recovery, open Terminal and run \"rdma_ctl enable\" (macOS 26), "
    "or "
    "switch on \"RDMA over Thunderbolt\" in System Settings, Privacy & Security, Developer Tools (macOS 27), then restart";
#else
constexpr const char* kNoDevice = "no RDMA device: \"rdma link\" lists them; check that the adapter's driver is loaded";
#endif

std::string system_line(const std::string& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

// Linux says more in /sys than the plain library calls do; elsewhere these lines are empty.
std::string port_folder(const std::string& device, int port) { return fmt::format("/sys/class/infiniband/{}/ports/{}", device, port); }

std::string interface_of(const std::string& device, int port) {
  if (device.rfind("rdma_", 0) == 0) return device.substr(5);  // rdma_en3 of a Mac
  const std::string name = system_line(port_folder(device, port) + "/gid_attrs/ndevs/0");
  return name.empty() ? "its network interface" : name;
}

// How many bits of this IPv4 address name its network; 0: it is on no interface.
uint8_t prefix_of(const Gid& gid) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return 0;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  for (const ifaddrs* i = list; i; i = i->ifa_next) {
    if (!i->ifa_addr || !i->ifa_netmask || i->ifa_addr->sa_family != AF_INET) continue;
    const auto address = reinterpret_cast<const sockaddr_in*>(i->ifa_addr)->sin_addr.s_addr;
    if (std::memcmp(&address, gid.data() + 12, sizeof address) == 0)
      return static_cast<uint8_t>(std::popcount(reinterpret_cast<const sockaddr_in*>(i->ifa_netmask)->sin_addr.s_addr));
  }
  return 0;
}

// The addresses of one port, best first, or why it has none.
void look_at_port(const Library& library, ibv_context* context, const std::string& device, uint8_t port, Found& found) {
  const auto cannot = [&](const std::string& why) {
    found.problem += fmt::format("{}{} port {}: {}", found.problem.empty() ? "" : "; ", device, port, why);
  };
  ibv_port_attr attr{};
  if (const int rc = library.query_port(context, port, &attr)) return cannot("cannot be looked at: " + errno_text(rc));
  if (attr.state != IBV_PORT_ACTIVE)
    return cannot(fmt::format("port down; check the cable, and that {} is up", interface_of(device, port)));

  Candidate c;
  c.device = device;
  c.port = port;
  c.network = attr.link_layer == IBV_LINK_LAYER_INFINIBAND ? Network::infiniband : Network::ethernet;
  c.mtu = static_cast<uint8_t>(std::clamp<int>(attr.active_mtu, IBV_MTU_256, IBV_MTU_4096));
  c.kinds = device.rfind("rdma_en", 0) == 0 ? kUnreliable : kUnreliable | kReliable;  // Thunderbolt has UC only
  c.lid = attr.lid;
  const size_t before = found.candidates.size();
  for (int i = 0; i < std::min<int>(attr.gid_tbl_len, kGidsLookedAt); ++i) {
    ::ibv_gid gid{};
    if (library.query_gid(context, port, i, &gid) != 0) continue;
    std::memcpy(c.gid.data(), gid.raw, c.gid.size());
    if (c.gid == Gid{}) continue;
    // The older RoCE is not routed and not what the peer's entry of the same address would mean.
    if (c.network == Network::ethernet &&
        (!c.ipv4() || system_line(fmt::format("{}/gid_attrs/types/{}", port_folder(device, port), i)) == "IB/RoCE v1"))
      continue;
    c.gid_index = static_cast<uint16_t>(i);
    c.prefix_bits = c.ipv4() ? prefix_of(c.gid) : 0;
    if (found.candidates.size() < kCandidatesMax) found.candidates.push_back(c);
    if (c.network == Network::infiniband) break;  // the first is the port's own
  }
  if (found.candidates.size() == before)
    cannot(fmt::format("no IPv4 address on {}; give that very interface one", interface_of(device, port)));
}

}  // namespace

Found find_candidates(const std::string& path) {
  Found found;
  try {
    const Library& library = load_library(path);
    int count = 0;
    ibv_device** devices = library.get_device_list(&count);
    if (!devices || count == 0) found.problem = kNoDevice;
    for (int i = 0; devices && i < count; ++i) {
      const std::string name = library.get_device_name(devices[i]);
      ibv_context* context = library.open_device(devices[i]);
      if (!context) {
        found.problem += fmt::format("{}{}: cannot be opened: {}", found.problem.empty() ? "" : "; ", name, errno_text(errno));
        continue;
      }
      ibv_device_attr limits{};
      const int ports = library.query_device(context, &limits) == 0 ? limits.phys_port_cnt : 1;
      for (int port = 1; port <= ports; ++port) look_at_port(library, context, name, static_cast<uint8_t>(port), found);
      library.close_device(context);
    }
    if (devices) library.free_device_list(devices);
  } catch (const Error& e) { found.problem = e.what(); }
  return found;
}

}  // namespace verbund::mesh::verbs
