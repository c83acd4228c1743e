#include "lib/comm/call_work.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace entrain {

WorkInfo InfoOf(const std::string& comm, const Call& call, uint64_t number, int64_t started_ns) {
  return {comm, NameOf(call.named().kind), call.options.user_tag, number, started_ns};
}

CallWork::CallWork(Engine& engine, std::shared_ptr<CommShell> shell, const std::string& comm,
                   Admitted admitted, CallBegin begin)
    : Work(&engine),
      shell_(std::move(shell)),
      comm_(comm),
      begin_(std::move(begin)),
      wiring_(admitted.wiring),
      number_(admitted.waits ? 0 : admitted.wiring.sequence + 1),
      peer_(begin_.call.root) {
  MakeExecutor(std::move(admitted));
}

void CallWork::Run() {
  shell_->StartWork(this);
}

void CallWork::MakeExecutor(Admitted admitted) {
  executor_.emplace(std::move(admitted.plan), begin_.call, admitted.wiring, BestKernels(),
                    std::move(admitted.scratch), [this] {
                      ready = true;
                      shell_->NeedAttention();
                    });
}

void CallWork::Take(Admitted admitted, int peer) {
  wiring_ = admitted.wiring;
  peer_.store(peer, std::memory_order_relaxed);
  number_.store(wiring_.sequence + 1, std::memory_order_relaxed);
  MakeExecutor(std::move(admitted));
}

void CallWork::GiveBuffers(BufferPool& pool) {
  pool.Give(executor_->TakeScratch());
  pool.Give(std::move(begin_.staged));
}

FlightCall CallWork::flight_call() const {
  return {begin_.call.kind, executor_->descriptor(),      number(),
          peer(),           begin_.call.options.user_tag, executor_->algorithm(),
          started_ns()};
}

FlightState CallWork::flight_state() const {
  return !started                            ? FlightState::kPlanned
         : executor_->combining()            ? FlightState::kReducing
         : waits() || executor_->receiving() ? FlightState::kReceiving
                                             : FlightState::kSending;
}

FlightOpen CallWork::flight_open() const {
  FlightOpen open{flight, flight_call(), flight_state(), {}, {}};
  executor_->EachOpenTransfer([&](int rank, Direction direction) {
    (direction == Direction::kRecv ? open.receives_from : open.sends_to).push_back(rank);
  });
  for (std::vector<int>* ranks : {&open.receives_from, &open.sends_to}) {
    std::sort(ranks->begin(), ranks->end());
    ranks->erase(std::unique(ranks->begin(), ranks->end()), ranks->end());
  }
  return open;
}

WorkInfo CallWork::Info() const {
  const Call& call = begin_.call;
  WorkInfo info{comm_, NameOf(call.named().kind), call.options.user_tag, number(), started_ns()};
  info.source = call.kind == CallKind::kRecvAny ? peer() : -1;
  return info;
}

std::string CallWork::Name() const {
  const int64_t tag = begin_.call.options.user_tag;
  return absl::StrCat(NameOf(begin_.call.named().kind), tag < 0 ? "" : absl::StrCat(" tag ", tag),
                      waits() ? "" : absl::StrCat(" #", number()));
}

}  // namespace entrain
