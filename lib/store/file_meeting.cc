// Files of a meeting, whose names begin with "m<escaped key>.":
//   R        the place of rank R: u8 state ('i' in, 'f' finished), u32 claims, then its Entry. The
//            rank's process holds a lock (flock) on the file. The kernel releases the lock when the
//            process ends, even by kill -9
//   failed   the first failure, an encoded status
// A rank locks its file before a rename gives the file its name. Each rank watches the next
// unfinished rank, cyclically. If the watching rank can lock that rank's file, and the state in the
// file is not 'f', the process of the watched rank has ended. So a rank tries to lock one file per
// interval. If several neighbouring ranks have ended, a living rank detects the first one of them.
#include "lib/store/file_meeting.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

#include "lib/base/bytes.h"
#include "lib/base/status.h"
#include "lib/store/file_access.h"
#include "lib/store/request.h"

namespace entrain {
namespace {

constexpr char kIn = 'i', kFinished = 'f';
constexpr size_t kClaimsAt = 1, kEntryAt = kClaimsAt + sizeof(uint32_t);
constexpr size_t kMaxSeatBytes = kEntryAt + 2 * kMaxEntryBytes + 64;
constexpr int64_t kWatchNs = 200 * kMillisecond;
constexpr int kMaxSleepMs = 20;

struct Seat {
  char state = kIn;
  uint32_t claims = 1;
  Entry entry;
};

absl::StatusOr<Seat> ReadSeat(const std::string& path) {
  const auto bytes = ReadFile(path, kMaxSeatBytes);
  ENTRAIN_RETURN_IF_ERROR(bytes.status());
  Reader in(*bytes);
  Seat seat;
  seat.state = in.Get<char>();
  seat.claims = in.Get<uint32_t>();
  auto entry = in.ok() ? DecodeEntry(absl::string_view(*bytes).substr(kEntryAt))
                       : absl::InvalidArgumentError("");
  if (!entry.ok()) {
    return absl::DataLossError(absl::StrCat("file store: ", path, " is not one of this store's"));
  }
  seat.entry = *std::move(entry);
  return seat;
}

class FileMeeting final : public StoreMeeting {
 public:
  FileMeeting(std::string directory, std::string key, const Entry& entry, Deadline by)
      : directory_(std::move(directory)), key_(std::move(key)), mine_(entry), by_(by) {}
  ~FileMeeting() override {
    if (lock_.valid() && Check().ok()) {
      Fail(RankLeft(mine_.rank, "gave up while the ranks were meeting"));
    }
  }

  // Takes this rank's place in the meeting. Must be called only once.
  absl::Status Join(const Stop& stop) {
    ENTRAIN_ASSIGN_OR_RETURN(const Fd turn, LockDirectory(directory_, stop, What()));
    refused_ = TakePlace();
    if (refused_.ok() && !mine_.unable.ok()) {
      refused_ = mine_.unable;
    }
    return refused_.ok() || IsUsedBefore(refused_) ? absl::OkStatus() : WriteFailure(refused_);
  }

  absl::StatusOr<std::vector<Parts>> Wait(const Stop& stop) override {
    for (int sleep_ms = 1;; sleep_ms = std::min(2 * sleep_ms, kMaxSleepMs)) {
      ENTRAIN_RETURN_IF_ERROR(Check());
      const size_t had = table_.size();
      ENTRAIN_RETURN_IF_ERROR(ReadSeats());
      if (table_.size() == static_cast<size_t>(mine_.size)) {
        return std::exchange(table_, {});
      }
      ENTRAIN_RETURN_IF_ERROR(CheckStop(stop, What()));
      sleep_ms = table_.size() > had ? 1 : sleep_ms;
      poll(nullptr, 0, std::min(sleep_ms, StopSliceMs(stop)));
    }
  }

  absl::Status Check() override {
    ENTRAIN_RETURN_IF_ERROR(refused_);
    ENTRAIN_RETURN_IF_ERROR(ReadFailure());
    const int64_t now = Clock::Real().Now();
    if (now >= watch_again_ns_) {
      watch_again_ns_ = now + kWatchNs;
      if (const int32_t ended = FindEnded(); ended >= 0) {
        // Does not wait for the directory's lock. If other processes are writing now, this rank
        // detects the ended rank again at its next check.
        FailBy({0}, RankLeft(ended, absl::StrCat("has ended while the ranks were meeting, or in an "
                                                 "earlier run that used ",
                                                 url())));
        return ReadFailure();
      }
    }
    return absl::OkStatus();
  }

  void Fail(const absl::Status& why) override { FailBy(LastWordBy(by_), why); }

  void Finish() override {
    if (lock_.valid()) {
      // The state is written before the lock is released, so no rank finds the file unlocked and
      // not finished.
      (void)pwrite(lock_.get(), &kFinished, 1, 0);
      lock_.Reset();
    }
  }

  absl::StatusOr<std::vector<int>> Absent(const Stop&) override {
    std::vector<int> absent;
    for (int32_t rank = 0; rank < mine_.size; ++rank) {
      if (access(Path(rank).c_str(), F_OK) != 0) {
        absent.push_back(rank);
      }
    }
    return absent;
  }

 private:
  std::string url() const { return absl::StrCat("file:", directory_); }
  void FailBy(Deadline by, const absl::Status& why) {
    if (!refused_.ok()) {
      return;  // Join has failed, and has written the failure if the meeting must fail
    }
    const auto turn = LockDirectory(directory_, {by}, What());
    if (turn.ok()) {
      WriteFailure(why).IgnoreError();
    }
  }

  std::string What() const { return absl::StrCat("store ", url(), ": meeting ", key_); }
  std::string Path(const absl::AlphaNum& name) const {
    return absl::StrCat(directory_, "/m", EscapeForFile(key_), ".", name);
  }
  bool IsUsedBefore(const absl::Status& status) const { return status == UsedBefore(url()); }

  // The caller holds the directory's lock.
  absl::Status TakePlace() {
    const std::string path = Path(mine_.rank);
    auto taken = ReadSeat(path);
    if (taken.ok()) {
      const uint32_t claims = taken->claims + 1;
      const Fd seat(open(path.c_str(), O_WRONLY | O_CLOEXEC));
      (void)pwrite(seat.get(), &claims, sizeof(claims), kClaimsAt);
      return taken->state == kFinished ? UsedBefore(url())
                                       : PlaceTaken(url(), mine_.rank, static_cast<int>(claims));
    }
    if (!absl::IsNotFound(taken.status())) {
      return taken.status();
    }
    const auto first = ReadSeat(Path(0));
    if (first.ok() && first->state == kFinished) {
      return UsedBefore(url());
    }
    if (first.ok() && first->entry.size != mine_.size) {
      return SizesDiffer(0, first->entry.size, mine_.rank, mine_.size);
    }
    const std::string bytes = Writer().Put(kIn).Put(uint32_t{1}).Take() + EncodeEntry(mine_);
    return ReplaceFile(directory_, path, bytes, &lock_);
  }

  // The caller holds the directory's lock. Only the first failure counts.
  absl::Status WriteFailure(const absl::Status& why) const {
    const std::string path = Path("failed");
    return access(path.c_str(), F_OK) == 0 ? absl::OkStatus()
                                           : ReplaceFile(directory_, path, EncodeStatus(why));
  }

  absl::Status ReadFailure() const {
    const auto bytes = ReadFile(Path("failed"), kMaxEntryBytes);
    if (absl::IsNotFound(bytes.status())) {
      return absl::OkStatus();
    }
    ENTRAIN_RETURN_IF_ERROR(bytes.status());
    const std::optional<absl::Status> why = DecodeStatus(*bytes);
    return why && !why->ok() ? *why
                             : absl::DataLossError(absl::StrCat("file store: ", Path("failed"),
                                                                " is not one of this store's"));
  }

  // Reads the entries of the next ranks, in rank order, up to the first that has not joined.
  absl::Status ReadSeats() {
    while (table_.size() < static_cast<size_t>(mine_.size)) {
      const auto rank = static_cast<int32_t>(table_.size());
      auto seat = ReadSeat(Path(rank));
      if (absl::IsNotFound(seat.status())) {
        return absl::OkStatus();
      }
      ENTRAIN_RETURN_IF_ERROR(seat.status());
      if (seat->entry.size != mine_.size) {
        const absl::Status differ = SizesDiffer(mine_.rank, mine_.size, rank, seat->entry.size);
        Fail(differ);
        return differ;
      }
      table_.push_back(std::move(seat->entry.parts));
    }
    return absl::OkStatus();
  }

  // If the process of the watched rank has ended, returns the watched rank, else -1.
  int32_t FindEnded() const {
    for (int32_t step = 1; step < mine_.size; ++step) {
      const int32_t rank = (mine_.rank + step) % mine_.size;
      const Fd seat(open(Path(rank).c_str(), O_RDONLY | O_CLOEXEC));
      if (!seat.valid()) {
        continue;  // it has not joined
      }
      if (flock(seat.get(), LOCK_SH | LOCK_NB) != 0) {
        return -1;
      }
      char state = kFinished;
      if (pread(seat.get(), &state, 1, 0) == 1 && state != kFinished) {
        return rank;
      }
    }
    return -1;
  }

  const std::string directory_, key_;
  const Entry mine_;
  const Deadline by_;
  Fd lock_;               // on this rank's own file
  absl::Status refused_;  // reason why the store refused the rank
  std::vector<Parts> table_;
  int64_t watch_again_ns_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<StoreMeeting>> JoinInDirectory(const std::string& directory,
                                                              const std::string& key,
                                                              const Entry& entry,
                                                              const Stop& stop) {
  auto meeting = std::make_unique<FileMeeting>(directory, key, entry, stop.deadline);
  ENTRAIN_RETURN_IF_ERROR(meeting->Join(stop));
  return std::unique_ptr<StoreMeeting>(std::move(meeting));
}

}  // namespace entrain
