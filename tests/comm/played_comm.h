// The parts of a communicator of three ranks, which a test calls one by one. Works are created and
// kept, but no thread drives them.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "lib/comm/call_funnel.h"
#include "tests/comm/played_peer.h"
#include "tests/comm/played_shell.h"

namespace entrain {

// For works that no thread drives.
class NoShell final : public PlayedShell {
 public:
  void StartWork(CallWork*) override {}
  void NeedAttention() override {}
};

class PlayedComm : public testing::Test, public PlayedShell {
 protected:
  static constexpr int kRanks = 3, kMe = 1;
  PlayedComm() {
    for (int r = 0; r < kRanks; ++r) {
      Member member;
      member.host_id = "host";
      member.context = static_cast<Context>(20 + r);
      member.endpoint = r == kMe ? nullptr : &endpoints[static_cast<size_t>(r)];
      config.members.push_back(member);
    }
    config.name = config.world = "c";
    config.rank = kMe;
    config.context = 21;
    config.tuning = *LoadTuning("");
    config.timeout_ns = 7 * kSecond;
    config.paths.inside = Link::kShm;  // long messages go inline too
    peers = std::make_unique<Peers>(config.name, config.world, kMe, config.members);
    topology = Topology::FromHostIds(std::vector<std::string>(kRanks, "host"));
    funnel = std::make_unique<CallFunnel>(*this, config, topology, *peers, end, pool);
  }
  void TearDown() override { engine->Shutdown(); }
  RefPtr<CallWork> Submit(Admitted admitted, CallBegin begin) override {
    ++submitted;
    return RefPtr<CallWork>::Adopt(new CallWork(*engine, std::make_shared<NoShell>(), config.name,
                                                std::move(admitted), std::move(begin)));
  }

  Call AllReduce(int tag = -1) {
    Call call;
    call.kind = CallKind::kAllReduce;
    call.dtype = DType::kI64;
    call.count = 4;
    call.in = {data.data(), 32, MemoryKind::kHost};
    call.out = {data.data() + 4, 32, MemoryKind::kHost};
    call.options.user_tag = tag;
    return call;
  }
  Call Message(CallKind kind, int peer, int tag = -1) {
    Call call;
    call.kind = kind;
    call.dtype = DType::kI64;
    call.count = 4;
    call.root = peer;
    (kind == CallKind::kSend ? call.in : call.out) = {data.data(), 32, MemoryKind::kHost};
    call.options.user_tag = tag;
    return call;
  }
  // Starts the call and keeps the work.
  CallWork& Started(const Call& call) {
    works.push_back(funnel->Start(call, 0).value());
    auto& work = static_cast<CallWork&>(*works.back());
    work.started = true;  // as the driver does
    return work;
  }

  std::deque<PlayedPeer> endpoints{kRanks};
  CoreConfig config;
  std::unique_ptr<Peers> peers;
  Topology topology;
  CommEnd end;
  BufferPool pool{int64_t{1} << 30};
  std::shared_ptr<Engine> engine = std::make_shared<Engine>(SeatOptions{.own_thread = false});
  std::unique_ptr<CallFunnel> funnel;
  std::vector<int64_t> data = std::vector<int64_t>(64);
  std::vector<RefPtr<Work>> works;
  int submitted = 0;
};

}  // namespace entrain
