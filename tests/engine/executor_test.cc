// The executor over endpoints that a test plays: every order of completions, and failures in the
// middle of a call.

#include "lib/engine/executor.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "collectives/catalog.h"

namespace entrain {
namespace {

struct Posted {
  Envelope envelope;
  std::byte* data;
  size_t bytes;
  Completion* done;
  Loan* loan = nullptr;
};

// A message lent to a receive: a copy, which is overwritten when the loan ends.
struct Lending {
  std::vector<std::byte> bytes;
  Completion* sent;
};

// One end of a path. A posted transfer waits until the test moves it.
class PlayedEndpoint final : public Endpoint {
 public:
  void PostSend(const Envelope& envelope, ConstBytes bytes, Completion* done) override {
    sends.push_back({envelope, const_cast<std::byte*>(bytes.data()), bytes.size(), done});
  }
  void PostRecv(const Envelope& envelope, Bytes bytes, Completion* done, RecvHint hint) override {
    if (hint.loan != nullptr) {
      *hint.loan = Loan();
    }
    receives.push_back({envelope, bytes.data(), bytes.size(), done, lends ? hint.loan : nullptr});
  }
  absl::Status Release(Loan* loan) override {
    Lending& lending = lent.at(loan->handle);
    std::fill(lending.bytes.begin(), lending.bytes.end(), std::byte{0xee});
    ended.push_back(std::exchange(lending.sent, nullptr));
    EXPECT_NE(ended.back(), nullptr) << "ended twice";
    *loan = Loan();
    return end;
  }
  bool HasEarly(Tag) const override { return false; }
  void SendControl(absl::string_view) override {}
  void Revoke(Context, Context, const absl::Status&) override {}
  void Close(const absl::Status&) override {}
  std::string peer_address() const override { return "played"; }

  std::deque<Posted> sends, receives;
  bool lends = false;
  absl::Status end;                  // result of Release
  std::map<uint64_t, Lending> lent;  // by handle
  std::vector<Completion*> ended;    // sends that ended with their loans
};

// N ranks, their endpoints and executors.
class Stage {
 public:
  Stage(int ranks, const char* algorithm, CallKind kind, int64_t count, int lanes, int window,
        bool in_place = false)
      : ranks_(ranks) {
    const int64_t results = count * (kind == CallKind::kAllGather ? ranks : 1);
    const std::vector<int> hosts(static_cast<size_t>(ranks), 0);
    for (int r = 0; r < ranks; ++r) {
      endpoints_.emplace_back();
      for (int p = 0; p < ranks; ++p) {
        owned_.push_back(std::make_unique<PlayedEndpoint>());
        endpoints_.back().push_back(p == r ? nullptr : owned_.back().get());
      }
      contexts_.emplace_back(static_cast<size_t>(ranks), Context{7});
      data_.emplace_back(static_cast<size_t>(count));
      out_.emplace_back(static_cast<size_t>(results), -1);
      for (int64_t i = 0; i < count; ++i) {
        data_.back()[static_cast<size_t>(i)] = i + r;
      }
    }
    const Algorithm* const found = FindAlgorithm(kind, algorithm).value();
    for (int r = 0; r < ranks; ++r) {
      const Spec spec{kind, r, ranks, 0, lanes};
      auto plan = std::make_shared<const Plan>(
          Plan::Make(std::make_shared<const Schedule>(found->build(spec, hosts)), algorithm,
                     UniformLayout(spec, count), UniformLayout(spec, count), 8, window));
      Call call;
      call.kind = kind;
      call.dtype = DType::kI64;
      call.count = count;
      call.in = {data_[static_cast<size_t>(r)].data(), count * 8};
      call.out = {out_[static_cast<size_t>(r)].data(), results * 8};
      if (in_place) {
        call.in = call.out;
        out_[static_cast<size_t>(r)] = data_[static_cast<size_t>(r)];
      }
      Wiring wiring{endpoints_[static_cast<size_t>(r)], contexts_[static_cast<size_t>(r)], 7};
      OwnedBuffer scratch = *OwnedBuffer::Allocate(plan->slot_bytes * plan->window);
      executors_.push_back(std::make_unique<Executor>(plan, call, wiring, BestKernels(),
                                                      std::move(scratch), [this] { ++ready_; }));
    }
  }

  // Every endpoint lends all messages that may be lent.
  void Lend() {
    for (auto& endpoint : owned_) {
      endpoint->lends = true;
    }
  }
  int lendings() const { return lendings_; }

  // Moves one message between a random pair that has one, or ends a send that was lent. Returns
  // false when there is none.
  bool MoveOne(std::mt19937& random) {
    for (auto& endpoint : owned_) {
      if (!endpoint->ended.empty() && random() % 2 == 0) {
        Completion* const sent = endpoint->ended.back();
        endpoint->ended.pop_back();
        sent->done(sent, absl::OkStatus(), 1);
        return true;
      }
    }
    const bool any_ended = std::any_of(owned_.begin(), owned_.end(),
                                       [](auto& endpoint) { return !endpoint->ended.empty(); });
    for (int from = 0; from < ranks_; ++from) {
      for (int to = 0; to < ranks_; ++to) {
        if (from == to) {
          continue;
        }
        auto& sends = End(from, to)->sends;
        auto& receives = End(to, from)->receives;
        for (size_t s = 0; s < sends.size(); ++s) {
          for (size_t r = 0; r < receives.size(); ++r) {
            if (sends[s].envelope.tag == receives[r].envelope.tag) {
              candidates_.push_back({from, to, s, r});
              s = sends.size() - 1;
              break;
            }
          }
        }
      }
    }
    if (candidates_.empty()) {
      return any_ended;
    }
    const Candidate c = candidates_[random() % candidates_.size()];
    candidates_.clear();
    auto& sends = End(c.from, c.to)->sends;
    auto& receives = End(c.to, c.from)->receives;
    const Posted send = sends[c.send], receive = receives[c.receive];
    sends.erase(sends.begin() + static_cast<std::ptrdiff_t>(c.send));
    receives.erase(receives.begin() + static_cast<std::ptrdiff_t>(c.receive));
    EXPECT_EQ(send.bytes, receive.bytes);
    EXPECT_EQ(send.envelope.descriptor, receive.envelope.descriptor);
    if (receive.loan != nullptr) {
      const uint64_t handle = static_cast<uint64_t>(++lendings_);
      Lending& lending = End(c.to, c.from)->lent[handle];
      lending = {{send.data, send.data + send.bytes}, send.done};
      *receive.loan = {lending.bytes.data(), handle};
      receive.done->done(receive.done, absl::OkStatus(), static_cast<int64_t>(receive.bytes));
      return true;
    }
    if (send.bytes > 0) {
      std::memcpy(receive.data, send.data, send.bytes);
    }
    send.done->done(send.done, absl::OkStatus(), static_cast<int64_t>(send.bytes));
    receive.done->done(receive.done, absl::OkStatus(), static_cast<int64_t>(receive.bytes));
    return true;
  }

  PlayedEndpoint* End(int rank, int peer) {
    return static_cast<PlayedEndpoint*>(
        endpoints_[static_cast<size_t>(rank)][static_cast<size_t>(peer)]);
  }
  std::vector<std::unique_ptr<Executor>>& executors() { return executors_; }
  const std::vector<std::vector<int64_t>>& out() const { return out_; }
  // Returns whether posted receives write to their rank's result.
  bool ReceivesIntoResults() {
    for (int r = 0; r < ranks_; ++r) {
      const auto* const out = reinterpret_cast<std::byte*>(out_[static_cast<size_t>(r)].data());
      const auto* const end = out + out_[static_cast<size_t>(r)].size() * 8;
      for (Endpoint* endpoint : endpoints_[static_cast<size_t>(r)]) {
        if (endpoint == nullptr) {
          continue;
        }
        for (const Posted& receive : static_cast<PlayedEndpoint*>(endpoint)->receives) {
          if (receive.data >= out && receive.data < end) {
            return true;
          }
        }
      }
    }
    return false;
  }
  int ready() const { return ready_; }

 private:
  struct Candidate {
    int from, to;
    size_t send, receive;
  };
  const int ranks_;
  std::vector<std::unique_ptr<PlayedEndpoint>> owned_;
  std::vector<std::vector<Endpoint*>> endpoints_;
  std::vector<std::vector<Context>> contexts_;
  std::vector<std::vector<int64_t>> data_, out_;
  std::vector<std::unique_ptr<Executor>> executors_;
  std::vector<Candidate> candidates_;
  int ready_ = 0, lendings_ = 0;
};

TEST(Executor, GivesTheSumInEveryOrderOfCompletions) {
  for (const char* algorithm : {"ring", "halving_doubling", "direct"}) {
    for (unsigned seed = 0; seed < 20; ++seed) {
      SCOPED_TRACE(absl::StrCat(algorithm, " seed ", seed));
      std::mt19937 random(seed);
      Stage stage(4, algorithm, CallKind::kAllReduce, 37, 3, 1 + static_cast<int>(seed % 3));
      for (auto& executor : stage.executors()) {
        executor->Start();
      }
      std::vector<bool> over(4, false);
      while (stage.MoveOne(random)) {
        for (size_t r = 0; r < 4; ++r) {
          over[r] = over[r] || stage.executors()[r]->Advance();
        }
      }
      EXPECT_THAT(over, testing::Each(true));
      for (size_t r = 0; r < 4; ++r) {
        EXPECT_EQ(stage.executors()[r]->pending(), 0);
        EXPECT_EQ(stage.executors()[r]->status(), absl::OkStatus());
        for (int64_t i = 0; i < 37; ++i) {
          ASSERT_EQ(stage.out()[r][static_cast<size_t>(i)], 4 * i + 6);
        }
      }
    }
  }
}

// If the call's buffers are apart, an operand is received into the result with which it is
// combined. In place this is not allowed.
TEST(Executor, GivesTheSameInPlaceAndApart) {
  for (const char* algorithm :
       {"ring", "halving_doubling", "direct", "two_step", "recursive_doubling"}) {
    for (const int ranks : {2, 3, 4, 7}) {
      for (const bool in_place : {false, true}) {
        SCOPED_TRACE(absl::StrCat(algorithm, ", ", ranks, " ranks", in_place ? ", in place" : ""));
        std::mt19937 random(static_cast<unsigned>(ranks));
        Stage stage(ranks, algorithm, CallKind::kAllReduce, 37, 2, 2, in_place);
        for (auto& executor : stage.executors()) {
          executor->Start();
        }
        if (absl::string_view(algorithm) == "two_step" ||
            absl::string_view(algorithm) == "direct") {
          EXPECT_EQ(stage.ReceivesIntoResults(), !in_place);
        }
        while (stage.MoveOne(random)) {
          for (auto& executor : stage.executors()) {
            executor->Advance();
          }
        }
        for (const auto& out : stage.out()) {
          for (int64_t i = 0; i < 37; ++i) {
            ASSERT_EQ(out[static_cast<size_t>(i)], ranks * i + ranks * (ranks - 1) / 2);
          }
        }
      }
    }
  }
}

// Two ranks that lend to each other must not wait for each other. After a loan has ended, its
// memory must not be read.
TEST(Executor, GivesTheSameOfWhatIsLent) {
  for (const char* algorithm :
       {"ring", "halving_doubling", "direct", "two_step", "recursive_doubling"}) {
    for (const int ranks : {2, 3, 4, 6}) {
      for (unsigned seed = 0; seed < 10; ++seed) {
        SCOPED_TRACE(absl::StrCat(algorithm, ", ", ranks, " ranks, seed ", seed));
        std::mt19937 random(seed);
        Stage stage(ranks, algorithm, CallKind::kAllReduce, 37, 3, 1 + static_cast<int>(seed % 3));
        stage.Lend();
        for (auto& executor : stage.executors()) {
          executor->Start();
        }
        const auto n = static_cast<size_t>(ranks);
        std::vector<bool> over(n, false);
        while (stage.MoveOne(random)) {
          for (size_t r = 0; r < n; ++r) {
            over[r] = over[r] || stage.executors()[r]->Advance();
          }
        }
        ASSERT_THAT(over, testing::Each(true));
        for (size_t r = 0; r < n; ++r) {
          EXPECT_EQ(stage.executors()[r]->pending(), 0);
          for (int64_t i = 0; i < 37; ++i) {
            ASSERT_EQ(stage.out()[r][static_cast<size_t>(i)], ranks * i + ranks * (ranks - 1) / 2);
          }
        }
        if (algorithm == absl::string_view("ring") || algorithm == absl::string_view("two_step")) {
          EXPECT_GT(stage.lendings(), 0);
        }
      }
    }
  }
}

TEST(Executor, ALoanThatWasTakenBackFailsTheCall) {
  std::mt19937 random(1);
  Stage stage(2, "ring", CallKind::kAllReduce, 8, 1, 1);
  stage.Lend();
  stage.End(0, 1)->end = absl::AbortedError("taken back");
  for (auto& executor : stage.executors()) {
    executor->Start();
  }
  Executor& executor = *stage.executors()[0];
  while (stage.lendings() == 0 || executor.status().ok()) {
    ASSERT_TRUE(stage.MoveOne(random));
    executor.Advance();
  }
  EXPECT_EQ(executor.status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(executor.WaitingFor(), 1);
  EXPECT_TRUE(executor.Advance());
}

TEST(Executor, WhatIsLentToACallThatIsStoppedIsGivenBack) {
  std::mt19937 random(1);
  Stage stage(2, "ring", CallKind::kAllReduce, 8, 1, 1);
  stage.Lend();
  for (auto& executor : stage.executors()) {
    executor->Start();
  }
  while (stage.End(0, 1)->lent.empty()) {
    ASSERT_TRUE(stage.MoveOne(random));
  }
  stage.executors()[0]->Stop(absl::AbortedError("enough"));
  EXPECT_EQ(stage.End(0, 1)->ended.size(), 1u);
}

TEST(Executor, NeverHasMoreLanesUnderWayThanTheWindow) {
  Stage stage(2, "ring", CallKind::kAllReduce, 64, 8, 2);
  stage.executors()[0]->Start();
  std::map<int, int> lanes;
  for (const Posted& send : stage.End(0, 1)->sends) {
    ++lanes[send.envelope.tag.lane()];
  }
  EXPECT_EQ(lanes.size(), 2u);
}

TEST(Executor, AFailedTransferStopsItAndNamesThePeer) {
  Stage stage(3, "ring", CallKind::kAllReduce, 30, 1, 1);
  Executor& executor = *stage.executors()[0];
  executor.Start();
  const int pending = executor.pending();
  ASSERT_EQ(pending, 2);  // a send to 1, a receive from 2
  const Posted receive = stage.End(0, 2)->receives.front();
  receive.done->done(receive.done, absl::UnavailableError("gone"), 0);
  EXPECT_EQ(stage.ready(), 1);
  EXPECT_TRUE(executor.Advance());
  EXPECT_EQ(executor.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(executor.WaitingFor(), 2);
  EXPECT_EQ(executor.pending(), 1);
  // The other transfers may still complete. The executor then reports the end, because nothing else
  // does.
  const Posted send = stage.End(0, 1)->sends.front();
  send.done->done(send.done, absl::OkStatus(), static_cast<int64_t>(send.bytes));
  EXPECT_EQ(executor.pending(), 0);
  EXPECT_EQ(stage.ready(), 2);
}

TEST(Executor, StoppedBeforeAnythingCompletesPostsNoMore) {
  Stage stage(3, "ring", CallKind::kAllReduce, 30, 4, 4);
  Executor& executor = *stage.executors()[0];
  executor.Start();
  const size_t sends = stage.End(0, 1)->sends.size();
  executor.Stop(absl::AbortedError("enough"));
  for (const Posted& receive : stage.End(0, 2)->receives) {
    receive.done->done(receive.done, absl::OkStatus(), static_cast<int64_t>(receive.bytes));
  }
  EXPECT_TRUE(executor.Advance());
  EXPECT_EQ(stage.End(0, 1)->sends.size(), sends);
  EXPECT_EQ(executor.status().code(), absl::StatusCode::kAborted);
}

}  // namespace
}  // namespace entrain
