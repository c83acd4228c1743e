// gloo-bench: Gloo's collectives over TCP loopback. --help has the details.
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "bench/page_store.h"
#include "bench/peer_program.h"
#include "gloo/allgather.h"
#include "gloo/allreduce.h"
#include "gloo/allreduce_halving_doubling.h"
#include "gloo/alltoall.h"
#include "gloo/barrier.h"
#include "gloo/broadcast.h"
#include "gloo/gather.h"
#include "gloo/reduce.h"
#include "gloo/reduce_scatter.h"
#include "gloo/rendezvous/context.h"
#include "gloo/scatter.h"
#include "gloo/transport/tcp/device.h"
#include "gloo/transport/unbound_buffer.h"

namespace entrain::perf {
namespace {

constexpr void (*kSum)(void*, const void*, const void*, size_t) = &gloo::sum<float>;

// An algorithm whose name ends in "_sync" uses Gloo's synchronous busy-polling pairs instead of
// Gloo's thread.
bool BusyPolls(absl::string_view algorithm) {
  return absl::EndsWith(algorithm, "_sync");
}

class GlooSubject final : public Subject {
 public:
  GlooSubject(int rank, int size, std::string algorithm, PageStore& store)
      : rank_(rank), size_(size), algorithm_(std::move(algorithm)) {
    gloo::transport::tcp::attr attributes;
    attributes.hostname = "127.0.0.1";
    auto device = gloo::transport::tcp::CreateDevice(attributes);
    context_ = std::make_shared<gloo::rendezvous::Context>(rank, size);
    context_->setTimeout(std::chrono::seconds(300));
    context_->connectFullMesh(store, device);
    if (BusyPolls(algorithm_)) {
      for (int peer = 0; peer < size; ++peer) {
        if (peer != rank) {
          context_->getPair(peer)->setSync(true, true);
        }
      }
    }
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string transport() const override { return "tcp"; }
  std::string algorithm(const Case&) const override { return algorithm_; }
  bool in_place(const Case&) const override { return halving_doubling(); }

  absl::Status Prepare(const Case& measured, void* in, void* out) override {
    bound_.reset();
    if (measured.collective == CallKind::kSend) {
      const size_t bytes = static_cast<size_t>(measured.bytes);
      sent_ = context_->createUnboundBuffer(in, bytes);
      received_ = context_->createUnboundBuffer(out, bytes);
    }
    if (!halving_doubling()) {
      return absl::OkStatus();
    }
    const std::vector<float*> buffers{static_cast<float*>(out)};
    const auto count = static_cast<int>(measured.in_count());
    if (measured.collective == CallKind::kAllReduce) {
      bound_ = std::make_unique<gloo::AllreduceHalvingDoubling<float>>(context_, buffers, count);
    } else {
      bound_ = std::make_unique<gloo::ReduceScatterHalvingDoubling<float>>(
          context_, buffers, count,
          std::vector<int>(static_cast<size_t>(size_), static_cast<int>(measured.count)));
    }
    return absl::OkStatus();
  }

  absl::Status Run(const Case& measured, const void* in, void* out) override {
    if (bound_ != nullptr) {
      bound_->run();
      return absl::OkStatus();
    }
    auto* const input = static_cast<float*>(const_cast<void*>(in));
    auto* const output = static_cast<float*>(out);
    switch (measured.collective) {
      case CallKind::kAllReduce:
        AllReduce(input, output, static_cast<size_t>(measured.count));
        break;
      case CallKind::kReduceScatter:
        break;  // bound_ has run it
      case CallKind::kAllGather:
        AllGather(measured, input, output);
        break;
      case CallKind::kBroadcast:
        Broadcast(measured, output);
        break;
      case CallKind::kReduce:
        Reduce(measured, input, output);
        break;
      case CallKind::kGather:
        Gather(measured, input, output);
        break;
      case CallKind::kScatter:
        Scatter(measured, input, output);
        break;
      case CallKind::kAllToAll:
        AllToAll(measured, input, output);
        break;
      case CallKind::kBarrier:
        Barrier();
        break;
      case CallKind::kSend:
        PingPong();
        break;
      default:
        return absl::UnimplementedError(absl::StrCat("Gloo has no ", TitleOf(measured.collective)));
    }
    return absl::OkStatus();
  }

 private:
  bool halving_doubling() const { return algorithm_.rfind("halving_doubling", 0) == 0; }

  void AllReduce(float* in, float* out, size_t count) {
    using Algorithm = gloo::AllreduceOptions::Algorithm;
    gloo::AllreduceOptions options(context_);
    options.setInput(in, count);
    options.setOutput(out, count);
    options.setTag(++tag_);
    options.setReduceFunction(kSum);
    options.setAlgorithm(algorithm_ == "bcube" ? Algorithm::BCUBE : Algorithm::RING);
    gloo::allreduce(options);
  }

  void AllGather(const Case& measured, float* in, float* out) {
    gloo::AllgatherOptions options(context_);
    options.setInput(in, static_cast<size_t>(measured.count));
    options.setOutput(out, static_cast<size_t>(measured.out_count()));
    options.setTag(++tag_);
    gloo::allgather(options);
  }

  void Broadcast(const Case& measured, float* out) {
    gloo::BroadcastOptions options(context_);
    options.setOutput(out, static_cast<size_t>(measured.count));
    options.setRoot(measured.root);
    options.setTag(++tag_);
    gloo::broadcast(options);
  }

  void Reduce(const Case& measured, float* in, float* out) {
    gloo::ReduceOptions options(context_);
    options.setInput(in, static_cast<size_t>(measured.count));
    options.setOutput(out, static_cast<size_t>(measured.count));
    options.setReduceFunction(kSum);
    options.setRoot(measured.root);
    options.setTag(++tag_);
    gloo::reduce(options);
  }

  void Gather(const Case& measured, float* in, float* out) {
    gloo::GatherOptions options(context_);
    options.setInput(in, static_cast<size_t>(measured.count));
    if (rank_ == measured.root) {
      options.setOutput(out, static_cast<size_t>(measured.out_count()));
    }
    options.setRoot(measured.root);
    options.setTag(++tag_);
    gloo::gather(options);
  }

  void Scatter(const Case& measured, float* in, float* out) {
    gloo::ScatterOptions options(context_);
    if (rank_ == measured.root) {
      std::vector<float*> parts;
      for (int peer = 0; peer < size_; ++peer) {
        parts.push_back(in + peer * measured.count);
      }
      options.setInputs(parts, static_cast<size_t>(measured.count));
    }
    options.setOutput(out, static_cast<size_t>(measured.count));
    options.setRoot(measured.root);
    options.setTag(++tag_);
    gloo::scatter(options);
  }

  void AllToAll(const Case& measured, float* in, float* out) {
    gloo::AlltoallOptions options(context_);
    options.setInput(in, static_cast<size_t>(measured.in_count()));
    options.setOutput(out, static_cast<size_t>(measured.out_count()));
    options.setTag(++tag_);
    gloo::alltoall(options);
  }

  void Barrier() {
    gloo::BarrierOptions options(context_);
    options.setTag(++tag_);
    gloo::barrier(options);
  }

  // Ranks 0 and 1, 2 and 3, ... exchange messages, as in entrain-perf. An odd last rank does
  // nothing.
  void PingPong() {
    const int peer = rank_ ^ 1;
    if (peer >= size_) {
      return;
    }
    const auto send = [&] {
      sent_->send(peer, 0);
      sent_->waitSend();
    };
    const auto receive = [&] {
      received_->recv(peer, 0);
      received_->waitRecv();
    };
    if (rank_ < peer) {
      send();
      receive();
    } else {
      receive();
      send();
    }
  }

  const int rank_, size_;
  const std::string algorithm_;
  uint32_t tag_ = 0;
  std::shared_ptr<gloo::rendezvous::Context> context_;
  std::unique_ptr<gloo::Algorithm> bound_;
  std::unique_ptr<gloo::transport::UnboundBuffer> sent_, received_;  // used by send_recv
};

class Gloo final : public Peer {
 public:
  const char* name() const override { return "gloo-bench"; }
  const char* about() const override {
    return "Measures Gloo over TCP loopback, f32 sums, as entrain-perf measures Entrain: same "
           "loop, "
           "same columns, same JSON.";
  }
  std::vector<std::string> Algorithms(CallKind collective) const override {
    switch (collective) {
      case CallKind::kAllReduce:
        return {"ring", "bcube", "halving_doubling", "halving_doubling_sync"};
      case CallKind::kReduceScatter:
        return {"halving_doubling", "halving_doubling_sync"};
      case CallKind::kScan:
      case CallKind::kExclusiveScan:
        return {};
      default:
        return {"default"};
    }
  }
  bool HasThreads(const std::string& algorithm) const override { return !BusyPolls(algorithm); }
  void BeforeRanks(int) override { store_ = std::make_unique<PageStore>(); }
  absl::StatusOr<std::unique_ptr<Subject>> Join(const std::string& algorithm, int rank,
                                                int ranks) override {
    return std::make_unique<GlooSubject>(rank, ranks, algorithm, *store_);
  }

 private:
  std::unique_ptr<PageStore> store_;
};

}  // namespace
}  // namespace entrain::perf

int main(int argc, char** argv) {
  entrain::perf::Gloo gloo;
  return entrain::perf::RunPeer(gloo, argc, argv);
}
