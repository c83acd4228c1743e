// Ranks whose calls fail because of one of them, in a virtual world (growth_simulation_test.cc). A
// rank crashes, stops, loses the path to another one, leaves, does not make its call, makes another
// call, has its call refused, or has a reduction of its own that fails or never returns. All others
// must name it in time. This includes ranks that wait for a rank that waits for the guilty rank in
// another communicator, and a rank that receives from any rank.

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <tuple>

#include "absl/strings/match.h"
#include "gtest/gtest.h"

#include "tests/sim/virtual_job.h"

namespace entrain {
namespace {

constexpr int64_t kTimeoutNs = 1500 * kMillisecond;
constexpr int64_t kFaultNs = 2 * kSecond, kFaultsEndNs = 3 * kSecond;
constexpr int64_t kCallsNs = 4 * kSecond, kEndNs = 60 * kSecond;
constexpr int kMostRanks = 6;

class BlameJob : private VirtualJob {
 public:
  explicit BlameJob(uint64_t seed)
      : VirtualJob(seed, kMostRanks),
        size_(static_cast<int>(Between(2, kMostRanks))),
        pairs_(Chance(0.6)) {
    guilty_ = static_cast<int>(Between(0, size_ - 1));
    root_ = static_cast<int>(Between(0, size_ - 1));
    for (int rank = 0; rank < size_; ++rank) {
      world_.Start(rank, 0, [this, rank] { BeRank(rank); });
    }
    PickFault();
    CheckEnd(kEndNs);
    for (int rank = 0; rank < size_; ++rank) {
      if (fault_ == kQuiet && !well_.contains(rank)) {
        Wrong("nothing has failed, and rank ", rank, " has an error");
      }
    }
  }

  using VirtualJob::Report;
  // The faults, and other things that the test counts.
  enum What {
    kQuiet,
    kCrashed,
    kStopped,
    kCut,
    kAbsent,
    kLeft,
    kDiffered,
    kRefused,
    kHung,
    kBroke,
    kFaults,
    kBlamed = kFaults,
    kFromAny
  };
  static constexpr const char* kReached[] = {"runs without a fault",
                                             "crashed",
                                             "stopped",
                                             "paths cut",
                                             "absent",
                                             "left",
                                             "differ",
                                             "refused",
                                             "reductions hang",
                                             "they fail",
                                             "blamed",
                                             "receives from any rank fail"};
  const std::array<uint64_t, std::size(kReached)>& reached() const { return reached_; }

 private:
  // The call that the ranks make first in each round.
  enum class First { kNone, kReduce, kGather, kBroadcast, kOwnReduction, kMessages };

  void PickFault() {
    const int64_t at = Between(kFaultNs, kFaultsEndNs);
    fault_ = static_cast<What>(Between(0, kFaults - 1));
    ++reached_[fault_];
    first_ = fault_ == kHung || fault_ == kBroke ? First::kOwnReduction
             : Chance(0.4)                       ? First::kMessages
                                                 : static_cast<First>(Between(0, 4));
    if (fault_ == kStopped) {
      WillStop(guilty_, at, 20 * kSecond);
    } else if (fault_ == kCut) {
      CutPath(guilty_, (guilty_ + 1) % size_, at);
    } else if (fault_ >= kAbsent) {
      touched_.insert(guilty_);
      acts_at_ = at;
      Tell("rank ", guilty_, ": ", kReached[fault_], " at ", at / kMillisecond, " ms");
    }
  }

  void BeRank(int rank) {
    const CommOptions options = OptionsOf(rank, size_, kTimeoutNs);
    const MaybeComm all = Communicator::Create(options);
    const MaybeComm pair = all.ok() && pairs_ ? (*all)->Split(rank / 2, rank) : all;
    if (!all.ok() || !pair.ok()) {
      Wrong("rank ", rank, " has no communicator: ", all.status().message());
      return;
    }
    world_.Sleep(std::max<int64_t>(kFaultNs - now(), 0));
    if (rank == guilty_ && fault_ == kCrashed) {
      Crash(rank, Between(1, 60));
    }
    const absl::Status status = MakeCalls(rank, **all, **pair);
    if (world_.isolated(world_.process())) {
      return;
    }
    if (status.ok()) {
      well_.insert(rank);
    } else {
      CheckBlame(rank, **all, status);
      // The others may still ask this rank.
      world_.Sleep(4 * kTimeoutNs);
    }
  }

  absl::Status MakeCalls(int rank, Communicator& all, Communicator& pair) {
    for (int64_t over = 0; over == 0;) {
      world_.Sleep(Between(0, 100) * kMillisecond);
      ENTRAIN_RETURN_IF_ERROR(MakeFirst(rank, all));
      over = now() >= kCallsNs ? 1 : 0;
      int64_t sum = 1;
      for (auto [comm, value, op] :
           {std::tuple(&pair, &sum, ReduceOp::kSum), std::tuple(&all, &over, ReduceOp::kMax)}) {
        Call call = CallOf(CallKind::kAllReduce, value, value);
        call.reduction.op = op;
        ENTRAIN_RETURN_IF_ERROR(Make(rank, *comm, call));
        if (gone_ && rank == guilty_) {
          return absl::OkStatus();
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status MakeFirst(int rank, Communicator& all) {
    std::array<int64_t, kMostRanks> in{}, out{};
    Call call = CallOf(CallKind::kAllReduce, in.data(), out.data());
    switch (first_) {
      case First::kNone:
        return absl::OkStatus();
      case First::kReduce:
        call.kind = CallKind::kReduce;
        break;
      case First::kGather:
        call.kind = CallKind::kGather;
        call.out.bytes *= size_;
        break;
      case First::kBroadcast:
        call.kind = CallKind::kBroadcast;
        call.out = call.in;
        break;
      case First::kOwnReduction:
        call.reduction.op = ReduceOp::kCustom;
        call.reduction.combine = OwnReduction;
        call.reduction.user = this;
        break;
      case First::kMessages:
        return Pass(rank, all, in.data());
    }
    call.root = call.kind == CallKind::kAllReduce ? 0 : root_;
    return Make(rank, all, call);
  }

  // All ranks send a message to the root, which receives from any rank.
  absl::Status Pass(int rank, Communicator& all, int64_t* data) {
    if (rank != root_) {
      Call send = CallOf(CallKind::kSend, data, nullptr);
      send.root = root_;
      return Make(rank, all, send);
    }
    for (int i = 1; i < size_; ++i) {
      Call receive = CallOf(CallKind::kRecvAny, nullptr, data);
      receive.root = -1;
      const absl::Status status = Make(rank, all, receive);
      reached_[kFromAny] += status.ok() ? 0 : 1;
      ENTRAIN_RETURN_IF_ERROR(status);
    }
    return absl::OkStatus();
  }

  static Call CallOf(CallKind kind, int64_t* in, int64_t* out) {
    const auto view = [](int64_t* data) {
      return BufferView{data, data == nullptr ? 0 : int64_t{sizeof(*data)}, MemoryKind::kHost};
    };
    Call call;
    call.kind = kind;
    call.dtype = DType::kI64;
    call.count = 1;
    call.in = view(in);
    call.out = view(out);
    return call;
  }

  // Makes the call of this rank, or does what the guilty rank does in its place.
  absl::Status Make(int rank, Communicator& comm, Call call) {
    // The guilty rank may make some more calls first, so that it fails in each kind of call.
    const bool acts = rank == guilty_ && acts_at_ > 0 && now() >= acts_at_ && comm.size() > 1 &&
                      among_ == 0 && Chance(0.5);
    if (gone_ && rank == guilty_) {
      return absl::OkStatus();
    }
    if (acts && fault_ <= kLeft) {
      gone_ = true;
      world_.Sleep(fault_ == kAbsent ? 20 * kSecond : 0);
      return absl::OkStatus();
    }
    if (acts && fault_ == kRefused && !IsMessage(call.kind)) {
      gone_ = true;
      says_ = !pairs_ && call.kind == CallKind::kAllReduce;
      among_ = comm.size();
      Tell("rank ", rank, " cannot make ", NameOf(call.kind), " #", comm.last_sequence() + 1,
           " of ", comm.name());
      comm.Refused(call, absl::ResourceExhaustedError("no room"));
      world_.Sleep(Chance(0.5) ? 20 * kSecond : 0);
      return absl::OkStatus();
    }
    if (acts && fault_ == kDiffered && !IsMessage(call.kind)) {
      among_ = comm.size();
      Change(&call);
    }
    return Timed("a call", kTimeoutNs, [&] { return comm.Run(call); });
  }

  void Change(Call* call) {
    const auto change = Between(0, 3);
    if (change == 0 && call->kind != CallKind::kAllReduce) {
      call->root = guilty_ != root_ ? guilty_ : (root_ + 1) % size_;
    } else if (change <= 1) {
      call->dtype = DType::kF64;
    } else if (change == 2 && call->reduction.op != ReduceOp::kCustom) {
      call->kind = CallKind::kBroadcast;
      call->out = call->in;
    } else {
      call->count = 0;
      call->in.bytes = call->out.bytes = 0;
    }
  }

  static int32_t OwnReduction(void* dst, const void* src, size_t, int32_t, void* user) {
    auto& job = *static_cast<BlameJob*>(user);
    *static_cast<int64_t*>(dst) += *static_cast<const int64_t*>(src);
    const bool guilty = job.world_.process() == job.guilty_ && job.acts_at_ > 0 &&
                        job.now() >= job.acts_at_ && !job.gone_;
    if (guilty && job.fault_ == kHung) {
      job.world_.Sleep(20 * kSecond);
    }
    return guilty && job.fault_ == kBroke ? 7 : 0;
  }

  void CheckBlame(int rank, Communicator& all, const absl::Status& why) {
    Tell("rank ", rank, ": ", why.ToString());
    if (touched(rank)) {
      return;
    }
    const int named = ProcessOf(BlameOf(why).peer_id);
    reached_[kBlamed] += named >= 0 ? 1 : 0;
    if (fault_ == kQuiet ||
        (named < 0 ? !MayNameNone(why) : !touched(named) && !MayNameInstead(why))) {
      Wrong("rank ", rank, " of ", all.size(), " blames ", named, " and not rank ", guilty_, ": ",
            why.message());
    }
    if (says_ && !MayNameInstead(why) && !Explains(why)) {
      Wrong("rank ", rank, " does not say what the guilty rank did: ", why.message());
    }
  }

  // Returns true if an error may name no rank.
  bool MayNameNone(const absl::Status& why) const {
    const auto says = [&](const char* words) { return absl::StrContains(why.message(), words); };
    switch (fault_) {
      case kCut:
        return true;  // a network that loses messages without notice is noticed late
      case kDiffered:
        // Two calls do not show which of them is wrong. A rank that has not made its call in time
        // has no vote.
        return among_ == 2 || says("not known: ");
      default:
        // Each rank may be the missing sender. Or a rank waits for one that waits for a third one,
        // each in another communicator.
        return says("nothing has come from ") || (pairs_ && size_ > 2 && says("cannot be known"));
    }
  }

  // Returns true if an error may name a rank that is not guilty. This rank waits for the guilty one
  // in an earlier call, and the others have gone on, because the earlier call needed nothing more
  // of them. The error then says in which call the rank is.
  bool MayNameInstead(const absl::Status& why) const {
    return absl::StrContains(why.message(), "its oldest unfinished call is ") &&
           !absl::StrContains(why.message(), "recv_any: timed out");
  }

  // Returns true if the error says what the guilty rank did.
  bool Explains(const absl::Status& why) const {
    const auto says = [&](const char* words) { return absl::StrContains(why.message(), words); };
    switch (fault_) {
      case kLeft:
        // It is noticed at once if nobody else can send.
        return size_ > 2 || !absl::IsDeadlineExceeded(why);
      case kDiffered:
        return says("ranks disagree: ");
      case kRefused:
        return says("no room");
      case kHung:
        return says("the user reduction of all_reduce");
      case kBroke:
        return says("the user reduction of all_reduce") && says("returned 7");
      default:
        return true;
    }
  }

  const int size_;
  const bool pairs_;  // every second call is in a communicator of two
  int guilty_ = 0, root_ = 0;
  What fault_ = kQuiet;
  First first_ = First::kNone;
  int64_t acts_at_ = 0;  // the time of a fault of the guilty rank's program; 0: it has none
  int among_ = 0;        // the size of the communicator in which it did so; 0: it has not
  // An error says that a call was refused only if this call is the one for which the others wait.
  // In another communicator, or where it needs only some of the ranks, they may wait for a later
  // one.
  bool says_ = true;
  bool gone_ = false;  // the guilty rank makes no more calls
  std::set<int> well_;
  std::array<uint64_t, std::size(kReached)> reached_{};
};

TEST(BlameSimulation, TheGuiltyRankIsNamedInTime) {
  RunSeeds<BlameJob>(2000, {});
}

}  // namespace
}  // namespace entrain
