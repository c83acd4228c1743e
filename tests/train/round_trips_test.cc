// How often an exchange crosses a long way. The library runs in a virtual world
// (tests/comm/growth_simulation_test.cc) in which every message takes 50 ms and nothing else takes
// time. So the time of a call, divided by 50 ms, is the number of messages that wait for each other:
// two of them are a round trip. The transport of this world sends each message at once; how tcp
// avoids to wait for an answer is in tests/transports/rendezvous_test.cc.

#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "lib/comm/mesh.h"
#include "lib/optim/optimizer.h"
#include "lib/train/acco/gradient_channel.h"
#include "lib/train/edit/layer_sync.h"
#include "tests/sim/virtual_job.h"
#include "tests/train/replicas.h"

namespace entrain {
namespace {

constexpr int64_t kOneWayNs = 50 * kMillisecond, kTimeoutNs = 10 * kSecond, kEndNs = 1000 * kSecond;

class FarJob : private VirtualJob {
 public:
  // `body` runs on each rank. Each rank reports its numbers by Count.
  using Body = std::function<void(FarJob& job, const std::shared_ptr<Communicator>& comm)>;
  FarJob(int ranks, const Body& body) : VirtualJob(1, ranks, {kOneWayNs, kOneWayNs}) {
    for (int rank = 0; rank < ranks; ++rank) {
      world_.Start(rank, 0, [this, rank, ranks, body] {
        const MaybeComm comm = Communicator::Create(OptionsOf(rank, ranks, kTimeoutNs));
        if (comm.ok()) {
          EXPECT_TRUE((*comm)->spans_hosts());
          EXPECT_TRUE((*comm)->spans_sites());
          body(*this, *comm);
        } else {
          Wrong("no communicator: ", comm.status().message());
        }
      });
    }
    CheckEnd(kEndNs);
    EXPECT_EQ(Report(), "");
  }

  // Runs `call` on all ranks from the same moment. Adds the number of messages that follow one
  // another in it, on the slowest rank, to `messages`.
  void Count(const char* name, const std::function<absl::Status()>& call) {
    const int64_t turn = ++turns_[world_.process()] * kTurnNs;
    world_.Sleep(turn - now());
    const int64_t start = now();
    const absl::Status status = call();
    EXPECT_EQ(status, absl::OkStatus()) << name;
    const double took = static_cast<double>(now() - start) / kOneWayNs;
    messages[name] = std::max(messages[name], took);
  }

  std::map<std::string, double> messages;

 private:
  static constexpr int64_t kTurnNs = 20 * kSecond;
  std::map<int, int64_t> turns_;
};

// Waking a thread and looking at a descriptor take a few milliseconds of this world.
constexpr double kSlack = 0.45;

std::map<std::string, double> OfCollectives(int ranks) {
  const auto keep = KeepProcess();
  FarJob job(ranks, [](FarJob& self, const std::shared_ptr<Communicator>& comm) {
    for (const int64_t kib : {1, 64, 1024, 8192}) {
      const int64_t count = kib << 8;
      std::vector<float> in(static_cast<size_t>(count), 1), out(in);
      Call call;
      call.dtype = DType::kF32;
      call.count = count;
      call.in = {in.data(), 4 * count};
      call.out = {out.data(), 4 * count};
      call.kind = CallKind::kAllReduce;
      self.Count("all_reduce", [&] { return comm->Run(call); });
      EXPECT_EQ(out[0], static_cast<float>(comm->size()));
      call.kind = CallKind::kBroadcast;
      self.Count("broadcast", [&] { return comm->Run(call); });
      call.kind = CallKind::kReduceScatter;
      call.count = count / comm->size();
      call.out.bytes = 4 * call.count;
      self.Count("reduce_scatter", [&] { return comm->Run(call); });
      std::swap(call.in, call.out);
      call.kind = CallKind::kAllGather;
      self.Count("all_gather", [&] { return comm->Run(call); });
    }
    self.Count("barrier", [&] { return comm->Barrier({}); });
  });
  return job.messages;
}

TEST(RoundTrips, CollectivesOfTwoCrossOnce) {
  for (const auto& [name, count] : OfCollectives(2)) {
    EXPECT_LT(count, 1 + kSlack) << name;
  }
}

TEST(RoundTrips, CollectivesOfFourCrossAFewTimes) {
  for (const auto& [name, count] : OfCollectives(4)) {
    // A broadcast of many bytes goes along a chain: that takes one way more than a tree, and half of
    // the root's bytes.
    const int most = name == "broadcast" ? 3 : name == "all_reduce" || name == "barrier" ? 2 : 1;
    EXPECT_LT(count, most + kSlack) << name;
  }
}

// A split is one all_gather. An agreement, and the shrinking of a communicator that is whole, gather
// the reports of all ranks and send the decision.
TEST(RoundTrips, MembershipCrossesAFewTimes) {
  const auto keep = KeepProcess();
  for (const int ranks : {2, 4}) {
    FarJob job(ranks, [](FarJob& self, const std::shared_ptr<Communicator>& comm) {
      self.Count("split", [&] { return comm->Split(0, comm->rank()).status(); });
      uint32_t flag = 1;
      self.Count("agree", [&] { return comm->Agree(&flag); });
      self.Count("shrink", [&] { return comm->Shrink().status(); });
    });
    for (const auto& [name, count] : job.messages) {
      printf("%d ranks, %s: %.2f\n", ranks, name.c_str(), count);
      EXPECT_LT(count, (name == "split" ? 1 : 6) + kSlack) << name;
    }
  }
}

// Returns the messages of one exchange of EDiT: the rendezvous, all layers, and the outer step.
double OfEdit(int replicas, int layers, const EditOptions& options) {
  const auto keep = KeepProcess();
  FarJob job(replicas, [&](FarJob& self, const std::shared_ptr<Communicator>& comm) {
    const auto mesh = Mesh::Create(comm, {});
    ASSERT_TRUE(mesh.ok()) << mesh.status();
    ShardConfig shape;
    shape.layer_counts.assign(static_cast<size_t>(layers), 1000);
    Replica replica(*mesh, shape);
    LayerSync& edit = replica.Edit(options);
    replica.Forward();  // makes the anchors
    for (int step = 0; step < 2; ++step) {
      replica.ForEach(replica.params(), [&](int layer, int64_t i, float& value) {
        value += 0.01f * static_cast<float>((layer + i + replica.replica() + step) % 7);
      });
      EXPECT_EQ(edit.EndStep(), absl::OkStatus());
      self.Count("exchange", [&] {
        EXPECT_TRUE(replica.Forward());
        return absl::OkStatus();
      });
    }
    EXPECT_EQ(edit.Leave(), absl::OkStatus());
  });
  return job.messages["exchange"];
}

EditOptions EveryStep(EditOptions options) {
  options.timeout_ns = kTimeoutNs;
  options.local_sgd_sync_interval = 1;
  return options;
}

TEST(RoundTrips, AnExchangeOfEditTakesOneWhateverTheNumberOfLayers) {
  for (const int layers : {1, 13, 100}) {
    // The rendezvous, and the sums of all layers.
    EXPECT_LT(OfEdit(2, layers, EveryStep(Weighed())), 2 + kSlack) << layers;
    EXPECT_LT(OfEdit(4, layers, EveryStep(Weighed())), 3 + kSlack) << layers;
  }
}

TEST(RoundTrips, WhatDoesNotFitInTheMemoryCostsMore) {
  EditOptions options = EveryStep(Weighed());
  options.in_flight_bytes = 0;  // two layers at a time
  EXPECT_GT(OfEdit(2, 13, options), 6);
  options.in_flight_bytes = 4 * 4000;
  EXPECT_LT(OfEdit(2, 13, options), 6);
}

// Returns the messages of one synchronous step: the sums of the gradients over replicas, as in ddp and in warm-up.
double OfSynchronous(const Grid& grid, int layers) {
  const auto keep = KeepProcess();
  FarJob job(grid.ranks(), [&](FarJob& self, const std::shared_ptr<Communicator>& comm) {
    MeshConfig axes;
    axes.lengths[static_cast<size_t>(Axis::kContext)] = grid.copies;
    const auto mesh = Mesh::Create(comm, axes);
    ASSERT_TRUE(mesh.ok()) << mesh.status();
    ShardConfig shape;
    shape.layer_counts.assign(static_cast<size_t>(layers), 1000);
    shape.timeout_ns = kTimeoutNs;
    Replica replica(*mesh, shape);
    LayerShards& shards = replica.shards();
    ASSERT_EQ(shards.SetGradients(GradientScope::kGlobal), absl::OkStatus());
    for (int step = 0; step < 2; ++step) {
      ASSERT_EQ(shards.BeginPass(Pass::kBackward), absl::OkStatus());
      self.Count("step", [&] {
        for (int layer = layers; layer-- > 0;) {
          const auto buffer = shards.Gradients(layer);
          EXPECT_TRUE(buffer.ok()) << buffer.status();
          std::fill_n(static_cast<float*>(*buffer), 1000, 1.0f + static_cast<float>(layer));
          EXPECT_EQ(shards.ReduceGradients(layer), absl::OkStatus());
        }
        return shards.FinishGradients();
      });
      replica.ForEach(replica.grads(), [&](int layer, int64_t, float& value) {
        EXPECT_EQ(value, 1.0f + static_cast<float>(layer));
        value = 0;
      });
    }
  });
  return job.messages["step"];
}

TEST(RoundTrips, ASynchronousStepTakesOneWhateverTheNumberOfLayers) {
  for (const int layers : {1, 13, 100}) {
    EXPECT_LT(OfSynchronous({.replicas = 2}, layers), 1 + kSlack) << layers;
    EXPECT_LT(OfSynchronous({.replicas = 4}, layers), 2 + kSlack) << layers;
    EXPECT_LT(OfSynchronous({.replicas = 2, .copies = 2}, layers), 2 + kSlack) << layers;
  }
}

// Returns the messages of one update.
double OfChannel(int ranks, DelayMethod method, double clip_norm) {
  const auto keep = KeepProcess();
  FarJob job(ranks, [&](FarJob& self, const std::shared_ptr<Communicator>& comm) {
    std::vector<float> params(1000, 1);
    OptimizerConfig config;
    config.kind = OptimizerKind::kAdamw;
    ChannelOptions options;
    options.method = method;
    options.count = static_cast<int64_t>(params.size());
    options.params = params.data();
    options.optimizer = *MakeOptimizer(config);
    options.lr = 0.01;
    options.limit = 8;
    options.clip_norm = clip_norm;
    const auto channel = GradientChannel::Create(*comm, options);
    ASSERT_TRUE(channel.ok()) << channel.status();
    for (int step = 0; !(*channel)->info().finished; ++step) {
      const auto update = [&] {
        auto* const sums = static_cast<float*>((*channel)->gradients());
        for (size_t i = 0; i < params.size(); ++i) {
          sums[i] += 0.5f;
        }
        EXPECT_EQ((*channel)->Add(1, 2), absl::OkStatus());
        return (*channel)->Install();
      };
      self.Count(step == 2 ? "update" : "other", update);
    }
  });
  return job.messages["update"];
}

TEST(RoundTrips, AnUpdateOfZero1AndAccoTakesOne) {
  for (const int ranks : {2, 4}) {
    // The sums of gradients, and the parameters; with clipping also the norm.
    EXPECT_LT(OfChannel(ranks, DelayMethod::kZero1, 0), 2 + kSlack);
    EXPECT_LT(OfChannel(ranks, DelayMethod::kZero1, 1), 3 + kSlack);
    EXPECT_LT(OfChannel(ranks, DelayMethod::kAcco, 0), 2 + kSlack);
  }
}

}  // namespace
}  // namespace entrain
