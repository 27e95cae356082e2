// Gloo's all-reduce over TCP on loopback (it has no shared memory):  gloo_allreduce RANK RANKS FOLDER 4608 65536
// One process a rank; FOLDER is empty and shared by them, they find each other through files in it.
#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include "allreduce.h"

int main(int argc, char** argv) {
  if (argc < 4) return std::fprintf(stderr, "usage: gloo_allreduce RANK RANKS FOLDER BYTES...\n"), 2;
  const int rank = std::atoi(argv[1]), ranks = std::atoi(argv[2]);
  gloo::transport::tcp::attr address("127.0.0.1");
  auto device = gloo::transport::tcp::CreateDevice(address);
  gloo::rendezvous::FileStore store(argv[3]);
  const auto context = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
  context->connectFullMesh(store, device);
  time_all_reduce(argv + 4, argv + argc, rank, ranks, [&](const int64_t* in, int64_t* out, size_t count) {
    gloo::AllreduceOptions options(context);
    options.setInput(const_cast<int64_t*>(in), count);
    options.setOutput(out, count);
    options.setReduceFunction(static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<int64_t>));
    gloo::allreduce(options);
  });
}
