// Keys of a meeting, whose names begin with ROOT/m/<the escaped key>/:
//   rank/R    the entry of rank R (brought.h) and a random number; under a lease of this rank.
//             Removed when the rank finishes
//   outcome   the table of all entries. The rank that came last writes it, under a lease that all
//             ranks keep alive. If the meeting fails, the reason takes the place of the table
//   done/R    exists if rank R has finished; under the table's lease
// R has eight hexadecimal digits, so that keys are in rank order.
//
// Each change is one transaction. It fails if another process has changed the keys in the meantime.
// If etcd executes a transaction twice, the second execution changes nothing, because the first
// execution has already changed the keys. So a request whose answer was lost can be sent again.
//
// All leases last for kLeaseS. If no process keeps a lease alive, the lease ends, and etcd removes
// its keys. So a meeting leaves nothing behind, even if all its processes are killed.
//
// A thread of the meeting keeps the leases alive and watches the outcome. The thread also watches
// the next rank, cyclically, among the ranks that have joined. If the next rank's process is on
// this host, the thread watches the process in /proc. Otherwise it watches the rank's key. So if
// several neighbouring ranks have ended, a living rank detects the first one of them.
#include "lib/store/etcd_meeting.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "lib/base/bytes.h"
#include "lib/base/library_thread.h"
#include "lib/base/log.h"
#include "lib/base/status.h"
#include "lib/net/handshake.h"
#include "lib/store/brought.h"
#include "lib/store/file_access.h"
#include "lib/store/request.h"

namespace entrain {
namespace {

constexpr int64_t kLeaseS = 8;
constexpr int64_t kKeepNs = 2 * kSecond;            // between two keep-alives of the leases
constexpr int64_t kReadNs = kSecond;                // between two reads of the keys
constexpr int64_t kProcessNs = 200 * kMillisecond;  // between two checks of a process
// The time for a rank's last message. It is long, because an election of etcd may delay the
// message. After this time the rank's lease has ended, and the message is not needed any more.
constexpr int64_t kLastWordNs = kLeaseS * kSecond;
constexpr int kStepMs = 20;
constexpr int64_t kPage = 64;      // entries of at most 64 KiB in one answer
constexpr size_t kMaxTold = 4096;  // number of absent ranks that an error lists

using Rows = EtcdStep::Rows;

class EtcdMeeting final : public StoreMeeting {
 public:
  EtcdMeeting(std::shared_ptr<const EtcdClient> client, std::string key, int64_t opened,
              const Entry& entry, Deadline by)
      : client_(std::move(client)),
        key_(std::move(key)),
        opened_(opened),
        mine_{ProcessName::Own(), entry},
        by_(by) {
    std::array<char, 16> number;
    RandomBytes(number.data(), number.size());
    value_ = EncodeBrought(mine_).append(number.data(), number.size());
  }
  ~EtcdMeeting() override {
    StopThread();
    if (joined_ && !finished_) {
      Fail(RankLeft(rank(), "gave up while the ranks were meeting"));
    }
    if (lease_ != 0 && !finished_) {
      client_->Revoke(lease_, LastWord()).IgnoreError();
    }
  }

  // Takes this rank's place in the meeting. Must be called only once.
  absl::Status Join(const Stop& stop) {
    ENTRAIN_ASSIGN_OR_RETURN(lease_, client_->Grant(kLeaseS, stop));
    ENTRAIN_ASSIGN_OR_RETURN(watch_, client_->Watch());
    // The keys that this rank may replace, because the process that left them has ended.
    Replaced replaced;
    std::optional<Place> place;
    while (!place.has_value()) {
      ENTRAIN_RETURN_IF_ERROR(CheckStop(stop, What()));
      ENTRAIN_ASSIGN_OR_RETURN(const EtcdReply reply, client_->Run(Claim(replaced), stop));
      ENTRAIN_ASSIGN_OR_RETURN(place, PlaceFrom(reply, stop, &replaced));
    }
    joined_ = place->status.ok();
    if (place->refused) {
      Fail(place->status);
      failure_ = place->status;  // this rank's own error counts here, even if the meeting failed
                                 // earlier for another reason
      return absl::OkStatus();
    }
    failure_ = place->status;
    if (failure_.ok() && !mine_.entry.unable.ok()) {
      Fail(mine_.entry.unable);
    } else if (failure_.ok() && place->ranks == mine_.entry.size) {
      ENTRAIN_RETURN_IF_ERROR(PublishTable(stop));
    }
    if (failure_.ok()) {
      thread_ = LibraryThread([this] { Attend(); });
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<Parts>> Wait(const Stop& stop) override {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      ENTRAIN_RETURN_IF_ERROR(failure_);
      if (has_table_) {
        return table_;
      }
      ENTRAIN_RETURN_IF_ERROR(CheckStop(stop, What()));
      changed_.wait_for(lock, std::chrono::milliseconds(StopSliceMs(stop)));
    }
  }

  absl::Status Check() override {
    std::lock_guard<std::mutex> lock(mutex_);
    return failure_;
  }

  void Fail(const absl::Status& why) override { FailBy(LastWord(), why); }

  void Finish() override {
    stopping_ = true;
    watch_->Wake();
    finished_ = true;
    const absl::Status told = TellFinished(LastWord());
    if (!told.ok()) {
      ENTRAIN_LOG(kDebug, What(), ": finishing: ", told.message());
    }
  }

  absl::StatusOr<std::vector<int>> Absent(const Stop& stop) override {
    ENTRAIN_RETURN_IF_ERROR(Check());
    std::vector<int> absent;
    std::vector<bool> came(static_cast<size_t>(mine_.entry.size));
    // The range contains the keys done/R of finished ranks and rank/R of the other ranks that have
    // joined.
    ENTRAIN_ASSIGN_OR_RETURN(const auto rows, List(Key("done/"), Key("rank0"), Rows::kKeys, stop));
    for (const EtcdRow& row : rows) {
      const std::optional<int32_t> rank = RankOf(row);
      if (rank.has_value() && static_cast<size_t>(*rank) < came.size()) {
        came[static_cast<size_t>(*rank)] = true;
      }
    }
    for (int32_t r = 0; r < mine_.entry.size && absent.size() < kMaxTold; ++r) {
      if (!came[static_cast<size_t>(r)]) {
        absent.push_back(r);
      }
    }
    return absent;
  }

 private:
  struct Replaced {
    int64_t place = 0, outcome = 0;  // revisions of the two keys; 0: the key must not exist
  };
  struct Place {
    absl::Status status;   // OK: the rank has its place
    bool refused = false;  // the store refuses this rank, so the meeting fails
    int64_t ranks = 0;     // number of ranks that have a place
  };
  // The next rank in the meeting.
  struct Watched {
    int32_t rank = -1;
    int64_t revision = 0, lease = 0;
    ProcessName process;
    bool is_here = false;
  };

  int32_t rank() const { return mine_.entry.rank; }
  // Returns the deadline for all last messages of this rank. The first call sets the deadline. Must
  // not be called by thread_.
  Stop LastWord() {
    last_word_ = last_word_.value_or(LastWordBy(by_, kLastWordNs));
    return {*last_word_};
  }
  std::string Key(absl::string_view name) const { return absl::StrCat(key_, "/", name); }
  std::string OfRank(absl::string_view name, int32_t rank) const {
    return absl::StrCat(key_, "/", name, "/", absl::Hex(rank, absl::kZeroPad8));
  }
  std::string What() const { return absl::StrCat("store ", client_->url(), ": meeting ", key_); }
  static std::optional<int32_t> RankOf(const EtcdRow& row) {
    int32_t rank = 0;
    const size_t slash = row.key.rfind('/');
    return absl::SimpleHexAtoi(absl::string_view(row.key).substr(slash + 1), &rank)
               ? std::optional<int32_t>(rank)
               : std::nullopt;
  }
  absl::StatusOr<Brought> BroughtIn(const EtcdRow& row) const {
    constexpr size_t kNumber = 16;
    const absl::string_view value = row.value;
    return DecodeBrought(value.substr(0, value.size() - std::min(value.size(), kNumber)),
                         absl::StrCat("store ", client_->url(), ": key \"", row.key, "\""));
  }

  // ---- Joining

  EtcdTransaction Claim(const Replaced& replaced) const {
    const std::string place = OfRank("rank", rank()), done = OfRank("done", rank());
    const std::vector<EtcdStep> look = {
        EtcdStep::ReadRange(Key("rank/"), Key("rank0"), Rows::kCount),
        EtcdStep::ReadRange(Key("rank/"), Key("rank0"), Rows::kWhole, 1)};
    EtcdTransaction claim;
    claim.compares = {{place, replaced.place}, {done, 0}, {Key("outcome"), replaced.outcome}};
    claim.then = {EtcdStep::Put(place, value_, lease_)};
    if (replaced.outcome != 0) {
      claim.then.push_back(EtcdStep::Delete(Key("outcome")));
    }
    claim.then.insert(claim.then.end(), look.begin(), look.end());
    claim.otherwise = look;
    claim.otherwise.insert(
        claim.otherwise.end(),
        {EtcdStep::Read(place), EtcdStep::Read(done), EtcdStep::Read(Key("outcome")),
         EtcdStep::ReadRange(Key("done/"), Key("done0"), Rows::kCount)});
    return claim;
  }

  // Returns nullopt if the claim must be repeated.
  absl::StatusOr<std::optional<Place>> PlaceFrom(const EtcdReply& reply, const Stop& stop,
                                                 Replaced* replaced) {
    const EtcdRow* const first = reply.reads[1].row();
    const int64_t ranks = reply.reads[0].count;
    const EtcdRow* const holder = reply.compared ? nullptr : reply.reads[2].row();
    if (reply.compared || (holder != nullptr && holder->value == value_)) {
      ENTRAIN_ASSIGN_OR_RETURN(const Brought other, first != nullptr
                                                        ? BroughtIn(*first)
                                                        : absl::StatusOr<Brought>(mine_));
      Place place;
      place.ranks = ranks;
      if (other.entry.size != mine_.entry.size) {
        place.refused = true;
        place.status = SizesDiffer(other.entry.rank, other.entry.size, rank(), mine_.entry.size);
      }
      return std::optional<Place>(place);
    }
    const EtcdRow* const outcome = reply.reads[4].row();
    if (holder != nullptr) {
      ENTRAIN_ASSIGN_OR_RETURN(const Brought other, BroughtIn(*holder));
      if (outcome == nullptr && other.process.IsHere() && other.process.HasEnded()) {
        replaced->place = holder->revision;
        return std::optional<Place>();
      }
      return std::optional<Place>(Taken());
    }
    replaced->place = 0;
    return outcome != nullptr                ? PlaceAfter(*outcome, reply, stop, replaced)
           : reply.reads[3].row() != nullptr ? std::optional<Place>(Taken())
                                             : std::optional<Place>();
  }

  // Handles a meeting that already has an outcome.
  absl::StatusOr<std::optional<Place>> PlaceAfter(const EtcdRow& outcome, const EtcdReply& reply,
                                                  const Stop& stop, Replaced* replaced) {
    ENTRAIN_ASSIGN_OR_RETURN(const News news, DecodeNews(outcome.value));
    if (news.kind == NewsKind::kFailed) {
      // If no rank of the failed meeting is left, and the meeting failed before this process opened
      // the store, the failure belongs to an earlier start of the job.
      if (reply.reads[0].count == 0 && outcome.revision <= opened_) {
        replaced->outcome = outcome.revision;
        return std::optional<Place>();
      }
      Place told;
      told.status = news.failure;
      return std::optional<Place>(told);
    }
    const auto size = static_cast<int32_t>(news.table.size());
    if (reply.reads[5].count == size) {
      // All ranks have finished. The last rank will remove the remaining keys soon, or was killed
      // before it could do so.
      ENTRAIN_RETURN_IF_ERROR(client_->Revoke(outcome.lease, stop));
      return std::optional<Place>();
    }
    Place refused = Taken();
    if (size != mine_.entry.size) {
      refused.status = SizesDiffer(0, size, rank(), mine_.entry.size);
    }
    return std::optional<Place>(refused);
  }

  Place Taken() const {
    Place taken;
    taken.refused = true;
    taken.status = PlaceTaken(client_->url(), rank(), 2);
    return taken;
  }

  absl::StatusOr<std::vector<EtcdRow>> List(std::string from, const std::string& end, Rows rows,
                                            const Stop& stop) const {
    const int64_t page = rows == Rows::kKeys ? 64 * kPage : kPage;
    std::vector<EtcdRow> all;
    while (true) {
      ENTRAIN_ASSIGN_OR_RETURN(EtcdReply reply,
                               client_->Read({EtcdStep::ReadRange(from, end, rows, page)}, stop));
      std::vector<EtcdRow>& some = reply.reads[0].rows;
      const bool last = static_cast<int64_t>(some.size()) < page;
      std::move(some.begin(), some.end(), std::back_inserter(all));
      if (last) {
        return all;
      }
      from = all.back().key + '\0';
    }
  }

  // Called by the rank that came last.
  absl::Status PublishTable(const Stop& stop) {
    ENTRAIN_ASSIGN_OR_RETURN(const auto rows, List(Key("rank/"), Key("rank0"), Rows::kWhole, stop));
    std::vector<Parts> table;
    for (const EtcdRow& row : rows) {
      ENTRAIN_ASSIGN_OR_RETURN(Brought brought, BroughtIn(row));
      if (brought.entry.rank != static_cast<int32_t>(table.size())) {
        break;
      }
      table.push_back(std::move(brought.entry.parts));
    }
    const auto came = static_cast<int32_t>(table.size());
    if (came != mine_.entry.size) {
      // The answer to this rank's claim may have been lost and the claim sent again. Meanwhile
      // another rank may have published the table, and rank `came` may have finished.
      ENTRAIN_ASSIGN_OR_RETURN(const EtcdReply reply,
                               client_->Read({EtcdStep::Read(Key("outcome"))}, stop));
      if (reply.reads[0].row() != nullptr) {
        Learn(reply.reads[0].row());
      } else {
        Fail(Unheard(came));
      }
      return absl::OkStatus();
    }
    std::string bytes = EncodeTable(table);
    if (bytes.size() > kMaxStoreValue) {
      Fail(absl::ResourceExhaustedError(
          absl::StrCat("creating the communicator: the table of ", came, " ranks has ",
                       bytes.size(), " bytes; a store of etcd holds ", kMaxStoreValue)));
      return absl::OkStatus();
    }
    ENTRAIN_ASSIGN_OR_RETURN(const int64_t lease, client_->Grant(kLeaseS, stop));
    EtcdTransaction publish;
    publish.compares = {{Key("outcome"), 0}};
    publish.then = {EtcdStep::Put(Key("outcome"), bytes, lease)};
    publish.otherwise = {EtcdStep::Read(Key("outcome"))};
    ENTRAIN_ASSIGN_OR_RETURN(const EtcdReply reply, client_->Run(publish, stop));
    const EtcdRow published{Key("outcome"), std::move(bytes), reply.revision, lease};
    Learn(reply.compared ? &published : reply.reads[0].row());
    return absl::OkStatus();
  }

  static absl::Status Unheard(int32_t rank, absl::string_view more = "") {
    return RankLeft(rank, absl::StrCat("has not been heard of for ", kLeaseS, " s", more));
  }

  // ---- The outcome

  // Stores the outcome that was read from etcd; null: there is none.
  void Learn(const EtcdRow* outcome) {
    absl::StatusOr<News> news = absl::NotFoundError("");
    if (outcome != nullptr) {
      news = DecodeNews(outcome->value);
    }
    std::lock_guard<std::mutex> lock(mutex_);
    // If the last rank has removed the keys, this rank has finished and is stopping. That is no
    // failure.
    if (!failure_.ok() || stopping_) {
      return;
    }
    if (outcome == nullptr && has_table_) {
      failure_ = absl::DataLossError(absl::StrCat(What(), ": its keys were removed"));
    } else if (outcome != nullptr && !news.ok()) {
      failure_ = news.status();
    } else if (outcome != nullptr && news->kind == NewsKind::kFailed) {
      failure_ = news->failure;
    } else if (outcome != nullptr && !has_table_) {
      has_table_ = true;
      table_ = std::move(news->table);
      table_lease_ = outcome->lease;
    }
    outcome_revision_ = outcome == nullptr ? 0 : outcome->revision;
    changed_.notify_all();
  }

  // Only the first failure counts, for all ranks.
  void FailBy(const Stop& stop, const absl::Status& why) {
    absl::Status agreed = Check();
    if (!agreed.ok()) {
      return;  // this rank knows the failure, or it has no place in the meeting
    }
    agreed = why;
    EtcdTransaction fail;
    fail.compares = {{Key("outcome"), 0}};
    fail.otherwise = {EtcdStep::Read(Key("outcome"))};
    const auto lease = client_->Grant(kLeaseS, stop);
    fail.then = {EtcdStep::Put(Key("outcome"), EncodeFailed(why), lease.value_or(0))};
    bool told = !lease.ok();  // true: etcd does not answer. The other ranks notice this, or the end
                              // of this rank
    while (!told) {
      const auto reply = client_->Run(fail, stop);
      told = !reply.ok() || reply->compared;
      if (!told) {
        const EtcdRow* const outcome = reply->reads[0].row();
        fail.compares[0].second = outcome == nullptr ? 0 : outcome->revision;
        const auto news = outcome == nullptr ? absl::NotFoundError("") : DecodeNews(outcome->value);
        if (news.ok() && news->kind == NewsKind::kFailed) {
          agreed = news->failure;
          told = true;
        }
      }
    }
    std::lock_guard<std::mutex> lock(mutex_);
    failure_ = failure_.ok() ? agreed : failure_;
    changed_.notify_all();
  }

  absl::Status TellFinished(const Stop& stop) {
    int64_t table_lease = 0;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      table_lease = table_lease_;
    }
    if (table_lease == 0) {  // this rank has not yet read the table
      ENTRAIN_ASSIGN_OR_RETURN(const EtcdReply reply,
                               client_->Read({EtcdStep::Read(Key("outcome"), Rows::kKeys)}, stop));
      table_lease = reply.reads[0].row() == nullptr ? lease_ : reply.reads[0].row()->lease;
    }
    EtcdTransaction finish;
    finish.then = {EtcdStep::Put(OfRank("done", rank()), "", table_lease),
                   EtcdStep::Delete(OfRank("rank", rank())),
                   EtcdStep::ReadRange(Key("done/"), Key("done0"), Rows::kCount)};
    ENTRAIN_ASSIGN_OR_RETURN(const EtcdReply reply, client_->Run(finish, stop));
    return reply.reads[0].count == mine_.entry.size ? client_->Revoke(table_lease, stop)
                                                    : absl::OkStatus();
  }

  // ---- The thread

  void StopThread() {
    stopping_ = true;
    if (thread_.joinable()) {
      watch_->Wake();
      thread_.join();
    }
  }

  void Attend() {
    const Stop stop{Deadline::Never(), &stopping_};
    int64_t read_at = 0, keep_at = Clock::Real().Now() + kKeepNs, process_at = 0;
    bool watches = false;
    while (!stopping_ && Check().ok()) {
      const int64_t now = Clock::Real().Now();
      if (now >= keep_at) {
        keep_at = now + kKeepNs;
        KeepAlive(stop);
      }
      if (now >= read_at) {
        const auto revision = Look(stop);
        read_at = Clock::Real().Now() + kReadNs;
        if (revision.ok() && !watches) {
          watch_->Start(Key("outcome"), *revision + 1);
          watches = true;
        }
      }
      if (now >= process_at && !stopping_) {
        process_at = now + kProcessNs;
        LookAtProcess(stop);
      }
      const EtcdWatch::News news = watches ? watch_->Step(kStepMs) : EtcdWatch::News::kEnded;
      if (news == EtcdWatch::News::kChanged) {
        read_at = 0;
      } else if (news == EtcdWatch::News::kEnded) {
        watches = false;
        Pause(kStepMs, stop);
      }
    }
  }

  void KeepAlive(const Stop& stop) {
    const absl::Status kept = client_->KeepAlive(lease_, stop);
    if (absl::IsNotFound(kept) && !stopping_) {
      FailBy({LastWordBy(by_, kLastWordNs), &stopping_}, Unheard(rank(), ", in its own store"));
    }
    int64_t table_lease = 0;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      table_lease = table_lease_;
    }
    if (table_lease != 0) {
      client_->KeepAlive(table_lease, stop).IgnoreError();
    }
  }

  // Reads the outcome and the keys of the next ranks. Returns etcd's revision.
  absl::StatusOr<int64_t> Look(const Stop& stop) {
    bool has_table = false;
    int64_t known = 0;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      has_table = has_table_;
      known = outcome_revision_;
    }
    const std::string outcome = Key("outcome");
    ENTRAIN_ASSIGN_OR_RETURN(
        EtcdReply reply,
        client_->Read(
            {EtcdStep::Read(outcome, has_table ? Rows::kKeys : Rows::kWhole),
             EtcdStep::Read(OfRank("rank", watched_.rank), Rows::kKeys),
             EtcdStep::Read(OfRank("done", watched_.rank), Rows::kKeys),
             EtcdStep::ReadRange(OfRank("rank", rank() + 1), Key("rank0"), Rows::kKeys, 1),
             EtcdStep::ReadRange(Key("rank/"), OfRank("rank", rank()), Rows::kKeys, 1)},
            stop));
    const EtcdRow* now = reply.reads[0].row();
    if (has_table && now != nullptr && now->revision != known) {
      ENTRAIN_ASSIGN_OR_RETURN(const EtcdReply whole,
                               client_->Read({EtcdStep::Read(outcome)}, stop));
      Learn(whole.reads[0].row());
    } else if (now == nullptr ? known != 0 : now->revision != known) {
      Learn(now);
    }
    if (Check().ok() && !stopping_) {
      ENTRAIN_RETURN_IF_ERROR(LookAtNeighbours(reply, stop));
    }
    return reply.revision;
  }

  absl::Status LookAtNeighbours(const EtcdReply& reply, const Stop& stop) {
    const bool is_in = reply.reads[1].row() != nullptr, is_done = reply.reads[2].row() != nullptr;
    if (watched_.rank >= 0 && !is_in && !is_done) {
      FailBy({LastWordBy(by_, kLastWordNs), &stopping_},
             Unheard(watched_.rank, absl::StrCat(", in store ", client_->url())));
      return absl::OkStatus();
    }
    const EtcdRow* const next =
        reply.reads[3].row() != nullptr ? reply.reads[3].row() : reply.reads[4].row();
    if (next == nullptr) {
      watched_ = Watched();
    } else if (next->revision != watched_.revision) {
      ENTRAIN_ASSIGN_OR_RETURN(const EtcdReply whole,
                               client_->Read({EtcdStep::Read(next->key)}, stop));
      const EtcdRow* const row = whole.reads[0].row();
      if (row != nullptr) {
        ENTRAIN_ASSIGN_OR_RETURN(const Brought brought, BroughtIn(*row));
        watched_ = {brought.entry.rank, row->revision, row->lease, brought.process,
                    brought.process.IsHere()};
      }
    }
    return absl::OkStatus();
  }

  void LookAtProcess(const Stop& stop) {
    if (!watched_.is_here || !watched_.process.HasEnded()) {
      return;
    }
    const auto reply =
        client_->Read({EtcdStep::Read(OfRank("rank", watched_.rank), Rows::kKeys)}, stop);
    if (!reply.ok()) {
      return;
    }
    const EtcdRow* const row = reply->reads[0].row();
    if (row != nullptr && row->revision == watched_.revision) {
      FailBy({LastWordBy(by_, kLastWordNs), &stopping_},
             RankLeft(watched_.rank, "has ended while the ranks were meeting"));
      client_->Revoke(watched_.lease, {LastWordBy(by_, kLastWordNs), &stopping_}).IgnoreError();
    } else {
      watched_.is_here = false;  // the watched rank has finished, or another process has taken its
                                 // place
    }
  }

  const std::shared_ptr<const EtcdClient> client_;
  const std::string key_;
  const int64_t opened_;
  const Brought mine_;
  const Deadline by_;
  std::string value_;  // value of this rank's key
  int64_t lease_ = 0;  // lease of this rank
  bool joined_ = false, finished_ = false;
  std::optional<Deadline> last_word_;
  Watched watched_;  // used only by thread_
  std::unique_ptr<EtcdWatch> watch_;
  std::thread thread_;
  std::atomic<bool> stopping_{false};

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  absl::Status failure_;  // reason of the meeting's failure, or of the store's refusal of this rank
  bool has_table_ = false;
  std::vector<Parts> table_;
  int64_t table_lease_ = 0, outcome_revision_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<StoreMeeting>> JoinOverEtcd(std::shared_ptr<const EtcdClient> client,
                                                           const std::string& root, int64_t opened,
                                                           const std::string& key,
                                                           const Entry& entry, const Stop& stop) {
  auto meeting = std::make_unique<EtcdMeeting>(std::move(client),
                                               absl::StrCat(root, "/m/", EscapeForFile(key)),
                                               opened, entry, stop.deadline);
  ENTRAIN_RETURN_IF_ERROR(meeting->Join(stop));
  return std::unique_ptr<StoreMeeting>(std::move(meeting));
}

}  // namespace entrain
