// way-bench times Entrain's exchanges between the nodes of cluster.sh, on the C ABI. --help has the
// details.
#include <climits>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/way_calls.h"
#include "entrain/entrain.h"
#include "entrain/optim.h"

namespace entrain {
namespace {

constexpr char kAbout[] =
    R"(Times one exchange of all nodes: the first, later ones (median), and one after silence. Run it
by bench/cluster.sh, one process per node. Subjects:

  all_reduce BYTES    a blocking all_reduce, f32, sum
  edit PARAMS LAYERS  an exchange of EDiT without compute, from begin_forward to the last
                      wait_layer: norm weights, clipping, anomalies, outer Nesterov SGD. Each
                      node is a replica
  acco PARAMS         an update of ACCO without compute: two rounds, AdamW. The later updates
                      follow one another. The first and the silent one begin with no round under
                      way, and end with two that are over
  zero1 PARAMS        an update of ZeRO-1 (ENTRAIN_ACCO_ZERO1) without compute: one round

Writes JSON lines. "seconds" is the time from a common start until all nodes are done.
"sent_bytes" is the least that a node has to send: 2 (N-1)/N of the data, of ACCO twice.
)";

constexpr int64_t kTimeoutNs = 300'000'000'000;

void Check(entrain_status_t status, const char* what) {
  if (status != ENTRAIN_OK) {
    FailCall(std::string(what) + ": " + entrain_last_error());
  }
}

entrain_comm_t* CreateComm() {
  entrain_comm_config_t config;
  entrain_comm_config_init(&config);
  config.timeout_ns = kTimeoutNs;
  entrain_comm_t* comm = nullptr;
  Check(entrain_comm_create_from_env(&config, &comm), "creating a communicator");
  return comm;
}

// Returns the bytes of an all_reduce, or of a reduce_scatter and an all_gather, that each node sends.
double LeastSent(const Nodes& nodes, size_t count) {
  return 2.0 * (nodes.size() - 1) / nodes.size() * static_cast<double>(count) * sizeof(float);
}

nlohmann::ordered_json Facts(const std::string& subject, size_t count) {
  return {{"program", "way-bench"}, {"subject", subject}, {"bytes", count * sizeof(float)}};
}

void TimeAllReduce(Nodes& nodes, const CallOptions& options, size_t count) {
  entrain_comm_t* const comm = CreateComm();
  std::vector<float> in(count, static_cast<float>(nodes.rank() + 1)), out(count);
  const auto sum = static_cast<float>(nodes.size() * (nodes.size() + 1) / 2);
  Exchange exchange;
  exchange.facts = Facts("all_reduce", count);
  exchange.sent = LeastSent(nodes, count);
  exchange.prepare = [&] { out.assign(count, 0); };
  exchange.call = [&] {
    Check(entrain_all_reduce(comm, in.data(), out.data(), count, ENTRAIN_F32, ENTRAIN_SUM, nullptr,
                             nullptr),
          "all_reduce");
  };
  exchange.finish = [&] {
    for (const float value : out) {
      if (value != sum) {
        FailCall("all_reduce: a wrong sum");
      }
    }
  };
  TimeCalls(nodes, options, exchange);
  entrain_comm_destroy(comm);
}

// This is a model of equal layers, whole on each node.
class Replica {
 public:
  Replica(size_t params, int layers) : params_(params, 1.0f), grads_(params), layers_(layers) {
    comm_ = CreateComm();
    entrain_mesh_config_t mesh;
    entrain_mesh_config_init(&mesh);
    Check(entrain_mesh_create(comm_, &mesh, &mesh_), "creating a mesh");
    std::vector<size_t> counts(static_cast<size_t>(layers), params / static_cast<size_t>(layers));
    counts.back() += params % static_cast<size_t>(layers);
    entrain_shard_config_t sharding;
    entrain_shard_config_init(&sharding);
    sharding.layers = layers;
    sharding.layer_counts = counts.data();
    Check(entrain_shard_create(mesh_, &sharding, &shard_), "creating a shard");
    Check(entrain_shard_bind(shard_, params_.data(), grads_.data(), ENTRAIN_F32), "binding");
    CreateEdit();
  }
  ~Replica() {
    entrain_edit_destroy(edit_);
    entrain_shard_destroy(shard_);
    entrain_mesh_destroy(mesh_);
    entrain_comm_destroy(comm_);
  }
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  // Moves the parameters as local steps would, by about the same distance each time.
  void Train(int rank) {
    uint32_t random = static_cast<uint32_t>(97 * rank + ++rounds_);
    for (float& value : params_) {
      random = random * 1664525u + 1013904223u;
      value += static_cast<float>(static_cast<int32_t>(random)) * 0x1p-31f * 1e-3f;
    }
  }
  void Exchange() {
    int32_t syncing = 0;
    Check(entrain_edit_begin_forward(edit_, 1, 1, &syncing, nullptr), "begin_forward");
    for (int32_t layer = 0; layer < layers_; ++layer) {
      Check(entrain_edit_wait_layer(edit_, layer), "wait_layer");
    }
    exchanges_ += syncing;
  }
  void EndStep() { Check(entrain_edit_end_step(edit_), "end_step"); }
  nlohmann::ordered_json Found() const {
    entrain_edit_info_t info;
    entrain_edit_info_init(&info);
    Check(entrain_edit_info(edit_, &info), "info");
    if (info.syncs != exchanges_ || exchanges_ != rounds_ || info.rejections != 0) {
      FailCall("an exchange is missing, or a replica was rejected");
    }
    return {{"sent_bytes_in_all", info.bytes_sent_sync}};
  }

 private:
  void CreateEdit() {
    entrain_edit_config_t config;
    entrain_edit_config_init(&config);
    config.shard = shard_;
    config.outer_optimizer = ENTRAIN_OUTER_SGD;
    config.outer_nesterov = 1;
    config.reducer = ENTRAIN_REDUCER_LINEAR;
    config.pseudo_gradnorm_reduce = 1;
    config.clip_pseudo_grad = 10;
    config.skip_anomaly = 1;
    config.timeout_ns = kTimeoutNs;
    Check(entrain_edit_create(mesh_, &config, &edit_), "creating EDiT");
    int32_t syncing = 0;  // the first exchange creates the anchors, and sends nothing
    Check(entrain_edit_begin_forward(edit_, 1, 1, &syncing, nullptr), "begin_forward");
    EndStep();
  }

  std::vector<float> params_, grads_;
  int layers_;
  entrain_comm_t* comm_ = nullptr;
  entrain_mesh_t* mesh_ = nullptr;
  entrain_shard_t* shard_ = nullptr;
  entrain_edit_t* edit_ = nullptr;
  int64_t rounds_ = 0, exchanges_ = 0;
};

void TimeEdit(Nodes& nodes, const CallOptions& options, size_t params, int layers) {
  Replica replica(params, layers);
  Exchange exchange;
  exchange.facts = Facts("edit", params);
  exchange.facts.update({{"params", params}, {"layers", layers}});
  exchange.sent = LeastSent(nodes, params);
  exchange.prepare = [&] { replica.Train(nodes.rank()); };
  exchange.call = [&] { replica.Exchange(); };
  exchange.finish = [&] { replica.EndStep(); };
  exchange.found = [&] { return replica.Found(); };
  TimeCalls(nodes, options, exchange);
}

class Channel {
 public:
  Channel(size_t params, int32_t method) : params_(params, 1.0f) {
    comm_ = CreateComm();
    entrain_optim_config_t rule;
    entrain_optim_config_init(&rule);
    rule.kind = ENTRAIN_OPTIM_ADAMW;
    entrain_optim_t* optim = nullptr;
    Check(entrain_optim_create(&rule, &optim), "creating an optimizer");
    entrain_acco_config_t config;
    entrain_acco_config_init(&config);
    config.params = params_.data();
    config.count = params;
    config.method = method;
    config.optim = optim;
    config.timeout_ns = kTimeoutNs;
    Check(entrain_acco_create(comm_, &config, &acco_), "creating a channel");
    entrain_optim_destroy(optim);
    void* gradients = nullptr;
    Check(entrain_acco_gradients(acco_, &gradients), "gradients");
  }
  ~Channel() {
    entrain_acco_destroy(acco_);
    entrain_comm_destroy(comm_);
  }
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  void Install(int times) {
    for (int i = 0; i < times; ++i) {
      int32_t finished = 0;
      Check(entrain_acco_add(acco_, 1, 1), "add");
      Check(entrain_acco_install(acco_, &finished), "install");
    }
  }
  std::vector<double> InARow(int updates) {
    std::vector<double> seconds;
    for (int i = 0; i < updates; ++i) {
      const double begun = SecondsNow();
      Install(2);
      seconds.push_back(SecondsNow() - begun);
    }
    return seconds;
  }
  nlohmann::ordered_json Found() const {
    entrain_acco_info_t info;
    entrain_acco_info_init(&info);
    Check(entrain_acco_info(acco_, &info), "info");
    return {{"commits", info.commits}, {"sent_bytes_in_all", info.bytes_sent}};
  }

 private:
  std::vector<float> params_;
  entrain_comm_t* comm_ = nullptr;
  entrain_acco_t* acco_ = nullptr;
};

void TimeChannel(Nodes& nodes, const CallOptions& options, size_t params, bool overlaps) {
  Channel channel(params, overlaps ? ENTRAIN_ACCO : ENTRAIN_ACCO_ZERO1);
  Exchange exchange;
  exchange.facts = Facts(overlaps ? "acco" : "zero1", params);
  exchange.facts["params"] = params;
  exchange.sent = LeastSent(nodes, params) * (overlaps ? 2 : 1);
  // An install of ACCO waits for the round under way, and begins the next. If no round is under
  // way, the first of three only begins one.
  exchange.call = [&] { channel.Install(overlaps ? 3 : 1); };
  if (overlaps) {
    exchange.in_a_row = [&](int updates) { return channel.InARow(updates); };
  }
  exchange.found = [&] { return channel.Found(); };
  TimeCalls(nodes, options, exchange);
  nodes.AllGather({0});  // a channel ends on all nodes together
}

int Main(int argc, char** argv) {
  CallOptions options;
  std::string subject;
  int amount = 0, layers = 0;
  CommandLine line(kAbout, "way-bench");
  line.RequiredText("SUBJECT", subject, "all_reduce, edit, acco, zero1");
  line.RequiredWhole("AMOUNT", amount, "BYTES or PARAMS", 4, INT_MAX);
  line.Whole("LAYERS", layers, "of edit", 1, INT_MAX);
  if (const std::optional<int> code = ParseCalls(line, argc, argv, options)) {
    return *code;
  }
  const bool layered = subject == "edit";
  if (!layered && subject != "all_reduce" && subject != "acco" && subject != "zero1") {
    RefuseArgument("SUBJECT", subject, "is not one of all_reduce, edit, acco, zero1");
  }
  if (layered != (layers > 0) || layers > amount) {
    RefuseArgument("LAYERS", layers > 0 ? std::to_string(layers) : "",
                   "is wrong: edit takes a number from 1 to PARAMS, the other subjects none");
  }
  Nodes nodes;
  const auto count = static_cast<size_t>(amount);
  if (subject == "all_reduce") {
    TimeAllReduce(nodes, options, count / sizeof(float));
  } else if (layered) {
    TimeEdit(nodes, options, count, layers);
  } else {
    TimeChannel(nodes, options, count, subject == "acco");
  }
  return 0;
}

}  // namespace
}  // namespace entrain

int main(int argc, char** argv) {
  return entrain::Main(argc, argv);
}
