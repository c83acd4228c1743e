// Keys of a meeting, whose names begin with the meeting's key:
//   /place/R    counter: the number of processes that have come as rank R
//   /entry/R    the entry of rank R, and the name of its process. If the key is removed or its
//               value is "f", the rank has finished
//   /beat/R     changes every second while rank R waits for more than a second
//   /came       counter, to which each rank adds (size << 21) + 1: shows how many ranks have come,
//               and whether they agree on the size
//   /decided    counter: the rank that sets it to 1 writes /outcome
//   /outcome    the table of all entries, written by the rank that came last; or the reason why the
//               meeting has failed
//   /failures   counter: the rank that sets it to 1 writes /failed
//   /failed     the reason why the meeting has failed, if /outcome already holds the table
//   /finished   counter of the ranks that have finished; the last one removes the keys of the
//               meeting
// The user's functions are called only by threads that call the meeting. So a rank changes its
// /beat only inside Wait and Check. Each rank watches the next rank, cyclically. If the next rank's
// process is on this host, the rank watches the process in /proc. Otherwise it watches the /beat of
// the next rank.
#include "lib/store/function_meeting.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include <poll.h>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/net/socket.h"
#include "lib/store/brought.h"

namespace entrain {
namespace {

constexpr int kSizeShift = 21;  // sizes and ranks are at most 2^20
constexpr absl::string_view kFinished = "f";
constexpr int64_t kLookNs = 200 * kMillisecond, kBeatNs = kSecond, kSilenceNs = 10 * kSecond;
constexpr size_t kMaxTold = 4096;  // number of absent ranks that an error lists
constexpr int kMaxSleepMs = 20;

class FunctionMeeting final : public StoreMeeting {
 public:
  FunctionMeeting(std::shared_ptr<const FunctionCalls> calls, std::string key, const Entry& entry)
      : calls_(std::move(calls)),
        key_(std::move(key)),
        mine_{ProcessName::Own(), entry},
        next_((entry.rank + 1) % entry.size) {}
  ~FunctionMeeting() override {
    if (!finished_ && failure_.ok()) {
      Fail(RankLeft(rank(), "gave up while the ranks were meeting"));
    }
  }

  // Takes this rank's place in the meeting. Must be called only once.
  absl::Status Join() {
    ENTRAIN_ASSIGN_OR_RETURN(const int64_t claims, calls_->Add(OfRank("place", rank()), 1));
    if (claims == 1) {
      ENTRAIN_RETURN_IF_ERROR(calls_->Set(OfRank("entry", rank()), EncodeBrought(mine_)));
    }
    const int64_t one = (int64_t{mine_.entry.size} << kSizeShift) + 1;
    ENTRAIN_ASSIGN_OR_RETURN(const int64_t came, calls_->Add(Key("came"), one));
    const int64_t ranks = came & ((int64_t{1} << kSizeShift) - 1), sizes = came >> kSizeShift;
    if (claims > 1 || sizes != ranks * mine_.entry.size || ranks > mine_.entry.size) {
      ENTRAIN_ASSIGN_OR_RETURN(const int64_t finished, calls_->Add(Key("finished"), 0));
      if (finished == ranks - 1) {
        failure_ = UsedBefore(calls_->url());
        // Restores the counters for the next process that comes.
        ENTRAIN_RETURN_IF_ERROR(calls_->Add(Key("came"), -one).status());
        return calls_->Add(OfRank("place", rank()), -1).status();
      }
      const absl::Status refused = claims > 1
                                       ? PlaceTaken(calls_->url(), rank(), static_cast<int>(claims))
                                       : SizesDifferHere(sizes);
      Fail(refused);
      failure_ = refused;  // this rank's own error, even if the meeting has failed before
    } else if (!mine_.entry.unable.ok()) {
      Fail(mine_.entry.unable);
    } else if (ranks == mine_.entry.size) {
      return PublishTable();
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<Parts>> Wait(const Stop& stop) override {
    ENTRAIN_RETURN_IF_ERROR(failure_);
    for (int sleep_ms = 1;; sleep_ms = std::min(2 * sleep_ms, kMaxSleepMs)) {
      auto outcome = calls_->Get(Key("outcome"), GetSliceNs(stop));
      if (outcome.ok()) {
        ENTRAIN_ASSIGN_OR_RETURN(News news, DecodeNews(*outcome));
        has_outcome_ = true;
        if (news.kind == NewsKind::kTable) {
          return std::move(news.table);
        }
        failure_ = news.failure;
        return failure_;
      }
      if (!absl::IsNotFound(outcome.status())) {
        return outcome.status();
      }
      ENTRAIN_RETURN_IF_ERROR(
          CheckStop(stop, absl::StrCat("store ", calls_->url(), ": meeting ", key_)));
      ENTRAIN_RETURN_IF_ERROR(Watch());
      poll(nullptr, 0, std::min(sleep_ms, StopSliceMs(stop)));
    }
  }

  absl::Status Check() override {
    const int64_t now = Clock::Real().Now();
    if (!failure_.ok() || finished_ || now < look_again_ns_) {
      return failure_;
    }
    look_again_ns_ = now + kLookNs;
    const auto told = calls_->Get(Key(has_outcome_ ? "failed" : "outcome"), 0);
    if (told.ok()) {
      const auto news = DecodeNews(*told);
      failure_ = !news.ok()                        ? news.status()
                 : news->kind == NewsKind::kFailed ? news->failure
                                                   : absl::OkStatus();
    } else if (!absl::IsNotFound(told.status())) {
      failure_ = told.status();
    }
    return failure_.ok() ? Watch() : failure_;
  }

  void Fail(const absl::Status& why) override {
    if (!failure_.ok()) {
      return;  // this rank knows the failure, or the store has refused this rank
    }
    failure_ = why;
    // Only the first failure counts. The other ranks read the failure instead of the table, or
    // after the table.
    for (const auto& [claim, place] : {std::pair("decided", "outcome"), {"failures", "failed"}}) {
      const auto claims = calls_->Add(Key(claim), 1);
      if (!claims.ok()) {
        return;  // the user's functions fail; the other ranks notice this in their own calls
      }
      if (*claims == 1) {
        calls_->Set(Key(place), EncodeFailed(why)).IgnoreError();
        return;
      }
      if (const auto outcome = calls_->Get(Key(place), 0); outcome.ok()) {
        const auto news = DecodeNews(*outcome);
        if (news.ok() && news->kind == NewsKind::kFailed) {
          failure_ = news->failure;
          return;
        }
      }
    }
  }

  void Finish() override {
    finished_ = true;
    if (calls_->removes()) {
      for (const char* own : {"entry", "place", "beat"}) {
        calls_->Forget(OfRank(own, rank()));
      }
    } else {
      calls_->Set(OfRank("entry", rank()), std::string(kFinished)).IgnoreError();
    }
    const auto finished = calls_->Add(Key("finished"), 1);
    if (finished.ok() && *finished == mine_.entry.size && calls_->removes()) {
      for (const char* shared : {"outcome", "decided", "failed", "failures", "came", "finished"}) {
        calls_->Forget(Key(shared));
      }
    }
  }

  absl::StatusOr<std::vector<int>> Absent(const Stop& stop) override {
    ENTRAIN_RETURN_IF_ERROR(failure_);
    std::vector<int> absent;
    for (int32_t r = 0; r < mine_.entry.size && absent.size() < kMaxTold; ++r) {
      const auto entry = r == rank() ? std::string() : calls_->Get(OfRank("entry", r), 0);
      if (absl::IsNotFound(entry.status())) {
        absent.push_back(r);
      } else if (!entry.ok()) {
        return entry.status();
      }
      const absl::Status time = CheckStop(stop, absl::StrCat("store ", calls_->url()));
      if (!time.ok() && absent.empty()) {
        return time;
      }
      if (!time.ok()) {
        break;
      }
    }
    return absent;
  }

 private:
  int32_t rank() const { return mine_.entry.rank; }
  std::string Key(absl::string_view name) const { return absl::StrCat(key_, "/", name); }
  std::string OfRank(absl::string_view name, int32_t rank) const {
    return absl::StrCat(key_, "/", name, "/", rank);
  }

  absl::StatusOr<Brought> BroughtBy(int32_t rank) const {
    ENTRAIN_ASSIGN_OR_RETURN(const std::string bytes, calls_->Get(OfRank("entry", rank), 0));
    return DecodeBrought(
        bytes, absl::StrCat("store ", calls_->url(), ": key \"", OfRank("entry", rank), "\""));
  }

  // Called by the rank that came last, so all entries are there.
  absl::Status PublishTable() {
    std::vector<Parts> table;
    for (int32_t r = 0; r < mine_.entry.size; ++r) {
      ENTRAIN_ASSIGN_OR_RETURN(Brought brought, BroughtBy(r));
      table.push_back(std::move(brought.entry.parts));
    }
    ENTRAIN_ASSIGN_OR_RETURN(const int64_t claims, calls_->Add(Key("decided"), 1));
    return claims == 1 ? calls_->Set(Key("outcome"), EncodeTable(table)) : absl::OkStatus();
  }

  // `sizes` is the sum of the sizes that all ranks have stated so far.
  absl::Status SizesDifferHere(int64_t sizes) const {
    for (int32_t r = 0; r < std::min<int64_t>(sizes, kMaxMeetingSize); ++r) {
      const auto other = r == rank() ? absl::NotFoundError("") : BroughtBy(r);
      if (other.ok() && other->entry.size != mine_.entry.size) {
        return SizesDiffer(r, other->entry.size, rank(), mine_.entry.size);
      }
      if (!other.ok() && !absl::IsNotFound(other.status())) {
        return other.status();
      }
    }
    return PlaceTaken(calls_->url(), rank(), 2);
  }

  // Changes this rank's /beat, and checks whether the next rank has ended.
  absl::Status Watch() {
    const int64_t now = Clock::Real().Now();
    if (now < watch_again_ns_ || next_ == rank()) {
      return absl::OkStatus();
    }
    const bool first = watch_again_ns_ == 0;
    watch_again_ns_ = now + kLookNs;
    if (first) {
      beat_again_ns_ = now + kBeatNs;
      return absl::OkStatus();
    }
    const bool beats = now >= beat_again_ns_;
    if (beats) {
      beat_again_ns_ = now + kBeatNs;
      ENTRAIN_RETURN_IF_ERROR(calls_->Set(OfRank("beat", rank()), absl::StrCat(++beats_)));
    }
    if (!watched_ && (beats || !has_looked_)) {
      has_looked_ = true;
      auto next = BroughtBy(next_);
      if (next.ok()) {
        watched_ = std::move(next->process);
        is_here_ = watched_->IsHere();
        heard_ns_ = now;
      }
    }
    return watched_ ? LookAtNext(now, beats) : absl::OkStatus();
  }

  absl::Status LookAtNext(int64_t now, bool beats) {
    if (!is_here_ && beats) {
      const auto beat = calls_->Get(OfRank("beat", next_), 0);
      if (beat.ok() && *beat != heard_) {
        heard_ = *beat;
        heard_ns_ = now;
      }
    }
    const bool silent = !is_here_ && now - heard_ns_ > kSilenceNs;
    if (silent || (is_here_ && watched_->HasEnded())) {
      const auto still = BroughtBy(next_);
      if (!still.ok()) {
        heard_ns_ = now;  // the next rank has finished
        is_here_ = false;
        return absl::OkStatus();
      }
      Fail(RankLeft(next_, silent ? absl::StrCat("has not been heard of for ", kSilenceNs / kSecond,
                                                 " s, in store ", calls_->url())
                                  : "has ended while the ranks were meeting"));
    }
    return failure_;
  }

  const std::shared_ptr<const FunctionCalls> calls_;
  const std::string key_;
  const Brought mine_;
  const int32_t next_;    // the rank that this rank watches
  absl::Status failure_;  // reason of the meeting's failure, or of the store's refusal of this rank
  bool has_outcome_ = false, finished_ = false;
  int64_t look_again_ns_ = 0, watch_again_ns_ = 0, beat_again_ns_ = 0;
  int64_t beats_ = 0;
  // About the next rank. watched_: its process, once the rank has come. has_looked_: this rank has
  // looked for it. is_here_: the process runs on this host. heard_, heard_ns_: the last value of
  // its /beat, and the time when the value changed.
  std::optional<ProcessName> watched_;
  bool has_looked_ = false, is_here_ = false;
  std::string heard_;
  int64_t heard_ns_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<StoreMeeting>> JoinByFunctions(
    std::shared_ptr<const FunctionCalls> calls, const std::string& key, const Entry& entry) {
  auto meeting = std::make_unique<FunctionMeeting>(std::move(calls), key, entry);
  ENTRAIN_RETURN_IF_ERROR(meeting->Join());
  return std::unique_ptr<StoreMeeting>(std::move(meeting));
}

}  // namespace entrain
