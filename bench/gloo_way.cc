// gloo-way times Gloo's all_reduce between the nodes of cluster.sh, as way-bench times Entrain's.
// gloo-bench cannot do this, because it forks its ranks on one host.
#include <chrono>
#include <climits>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/way_calls.h"
#include "gloo/allreduce.h"
#include "gloo/math.h"
#include "gloo/rendezvous/context.h"
#include "gloo/rendezvous/file_store.h"
#include "gloo/transport/tcp/device.h"

namespace entrain {
namespace {

constexpr char kAbout[] =
    R"(Times an all_reduce (f32, sum) of Gloo over tcp, as way-bench does. Run it by
bench/cluster.sh, one process per node. The ranks meet in FOLDER, which must be empty.
)";

constexpr void (*kSum)(void*, const void*, const void*, size_t) = &gloo::sum<float>;

void TimeAllReduce(Nodes& nodes, const CallOptions& options, const std::string& algorithm,
                   size_t count, const std::string& folder) {
  gloo::transport::tcp::attr attributes;
  attributes.iface = "eth0";  // of the node's namespace
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  gloo::rendezvous::FileStore store(folder);
  auto context = std::make_shared<gloo::rendezvous::Context>(nodes.rank(), nodes.size());
  context->setTimeout(std::chrono::seconds(300));
  context->connectFullMesh(store, device);

  std::vector<float> in(count, static_cast<float>(nodes.rank() + 1)), out(count);
  const auto sum = static_cast<float>(nodes.size() * (nodes.size() + 1) / 2);
  uint32_t tag = 0;
  Exchange exchange;
  exchange.facts = {{"program", "gloo-way"},
                    {"subject", "all_reduce"},
                    {"algorithm", algorithm},
                    {"bytes", count * sizeof(float)}};
  exchange.sent =
      2.0 * (nodes.size() - 1) / nodes.size() * static_cast<double>(count * sizeof(float));
  exchange.prepare = [&] { out.assign(count, 0); };
  exchange.call = [&] {
    gloo::AllreduceOptions call(context);
    call.setInput(in.data(), count);
    call.setOutput(out.data(), count);
    call.setTag(++tag);
    call.setReduceFunction(kSum);
    call.setAlgorithm(algorithm == "ring" ? gloo::AllreduceOptions::Algorithm::RING
                                          : gloo::AllreduceOptions::Algorithm::BCUBE);
    gloo::allreduce(call);
  };
  exchange.finish = [&] {
    for (const float value : out) {
      if (value != sum) {
        FailCall("all_reduce: a wrong sum");
      }
    }
  };
  TimeCalls(nodes, options, exchange);
  nodes.AllGather({0});  // no rank ends while another still uses its connection
}

int Main(int argc, char** argv) {
  CallOptions options;
  std::string algorithm, folder;
  int bytes = 0;
  CommandLine line(kAbout, "gloo-way");
  line.RequiredText("ALGORITHM", algorithm, "ring, bcube");
  line.RequiredWhole("BYTES", bytes, "of the vector", 4, INT_MAX);
  line.RequiredText("FOLDER", folder, "where the ranks meet");
  if (const std::optional<int> code = ParseCalls(line, argc, argv, options)) {
    return *code;
  }
  if (algorithm != "ring" && algorithm != "bcube") {
    RefuseArgument("ALGORITHM", algorithm, "is not one of ring, bcube");
  }
  Nodes nodes;
  TimeAllReduce(nodes, options, algorithm, static_cast<size_t>(bytes) / sizeof(float), folder);
  return 0;
}

}  // namespace
}  // namespace entrain

int main(int argc, char** argv) {
  try {
    return entrain::Main(argc, argv);
  } catch (const std::exception& failure) {  // Gloo throws
    entrain::FailCall(failure.what());
  }
}
