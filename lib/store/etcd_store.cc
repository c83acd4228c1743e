// A store in etcd. Names of keys, after ROOT, which is the path of the URL:
//   ROOT/k/KEY     a value
//   ROOT/m/...     meetings (etcd_meeting.cc)
//   ROOT/w/LEASE   the mark of a Writer, under the lease LEASE. The value is the number of the
//                  Writer's last write. A process has one Writer for each write that is under way
//
// A write is one transaction, which compares and advances the mark of its writer. So a write takes
// effect once, even if the client sends it several times because answers were lost. The mark then
// shows which attempt took effect. No other attempt can take effect later. An add and a
// compare-and-set also compare the revision of the key. The store repeats them if another process
// has changed the key.
#include <algorithm>
#include <mutex>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

#include "lib/base/status.h"
#include "lib/store/etcd_client.h"
#include "lib/store/etcd_meeting.h"
#include "lib/store/request.h"

namespace entrain {
namespace {

constexpr absl::string_view kDefaultRoot = "entrain";
constexpr int64_t kReadAgainNs = 2 * kSecond;  // the client reads again after this time, even if
                                               // its watch reports nothing
constexpr int64_t kMarkS = 600, kKeepNs = kMarkS / 4 * kSecond;
constexpr int64_t kCloseNs = kSecond;  // time to remove all marks when the store is closed
constexpr int kMostPauseMs = 32;

class EtcdStore final : public RequestStore {
 public:
  EtcdStore(std::shared_ptr<const EtcdClient> client, std::string root, std::string host,
            int64_t opened)
      : client_(std::move(client)),
        root_(std::move(root)),
        host_(std::move(host)),
        opened_(opened) {}
  ~EtcdStore() override {
    const Stop brief{Deadline::After(kCloseNs)};
    for (const Writer& writer : idle_) {
      client_->Revoke(writer.lease, brief).IgnoreError();
    }
  }
  std::string url() const override { return client_->url(); }
  std::string host() const override { return host_; }

 private:
  struct Writer {
    int64_t lease = 0;  // lease of its mark
    int64_t kept_ns = 0;
    int64_t revision = 0;  // revision of its mark; 0: there is none yet
    int64_t number = 0;    // number of its last write
  };

  absl::StatusOr<std::string> Do(const StoreRequest& request, const Stop& stop) override {
    auto answer = request.op == StoreOp::kGet      ? Wait(request, stop)
                  : request.op == StoreOp::kTryGet ? TryRead(request, stop)
                                                   : Write(request, stop);
    return answer.ok() || absl::IsInvalidArgument(answer.status())
               ? answer
               : Annotate(answer.status(), Describe(url(), request));
  }

  absl::StatusOr<std::unique_ptr<StoreMeeting>> Join(const std::string& key, const Entry& entry,
                                                     const Stop& stop) override {
    auto joined = JoinOverEtcd(client_, root_, opened_, key, entry, stop);
    return joined.ok() ? std::move(joined)
                       : Annotate(joined.status(),
                                  absl::StrCat("store ", url(), ": join of meeting \"", key, "\""));
  }

  std::string KeyOf(const StoreRequest& request) const {
    return absl::StrCat(root_, "/k/", request.key);
  }

  // ---- Reading

  absl::StatusOr<std::string> TryRead(const StoreRequest& request, const Stop& stop) const {
    ENTRAIN_ASSIGN_OR_RETURN(const EtcdReply reply,
                             client_->Read({EtcdStep::Read(KeyOf(request))}, stop));
    const EtcdRow* const row = reply.reads[0].row();
    return row != nullptr ? absl::StatusOr<std::string>(row->value)
                          : absl::NotFoundError("there is none");
  }

  absl::StatusOr<std::string> Wait(const StoreRequest& request, const Stop& stop) const {
    const std::string key = KeyOf(request);
    std::unique_ptr<EtcdWatch> watch;
    bool watches = false;
    while (true) {
      ENTRAIN_ASSIGN_OR_RETURN(const EtcdReply reply, client_->Read({EtcdStep::Read(key)}, stop));
      if (const EtcdRow* const row = reply.reads[0].row(); row != nullptr) {
        return row->value;
      }
      if (watch == nullptr) {
        ENTRAIN_ASSIGN_OR_RETURN(watch, client_->Watch());
      }
      if (!watches) {
        watch->Start(key, reply.revision + 1);
        watches = true;
      }
      const Stop again = Sooner(stop, kReadAgainNs);
      EtcdWatch::News news = EtcdWatch::News::kNone;
      while (news == EtcdWatch::News::kNone && CheckStop(again, "").ok()) {
        news = watch->Step(StopSliceMs(again));
      }
      ENTRAIN_RETURN_IF_ERROR(CheckStop(stop, "waiting"));
      if (news == EtcdWatch::News::kEnded) {
        watches = false;
        Pause(1, stop);
      }
    }
  }

  // ---- Writing

  absl::StatusOr<Writer> TakeWriter(const Stop& stop) {
    std::optional<Writer> idle;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!idle_.empty()) {
        idle = idle_.back();
        idle_.pop_back();
      }
    }
    const int64_t now = Clock::Real().Now();
    if (idle && now - idle->kept_ns > kKeepNs) {
      const absl::Status kept = client_->KeepAlive(idle->lease, stop);
      idle->kept_ns = now;
      if (absl::IsNotFound(kept)) {
        idle.reset();
      } else if (!kept.ok()) {
        GiveWriter(*idle);
        return kept;
      }
    }
    if (idle) {
      return *idle;
    }
    Writer fresh;
    ENTRAIN_ASSIGN_OR_RETURN(fresh.lease, client_->Grant(kMarkS, stop));
    fresh.kept_ns = now;
    return fresh;
  }

  void GiveWriter(const Writer& writer) {
    std::lock_guard<std::mutex> lock(mutex_);
    idle_.push_back(writer);
  }

  absl::StatusOr<std::string> Write(const StoreRequest& request, const Stop& stop) {
    ENTRAIN_ASSIGN_OR_RETURN(Writer writer, TakeWriter(stop));
    bool settled = true;
    auto answer = WriteBy(&writer, request, stop, &settled);
    if (settled) {
      GiveWriter(writer);
    } else {
      // An attempt may still be under way. After the end of the writer's lease, the attempt cannot
      // take effect.
      client_->Revoke(writer.lease, Sooner({LastWordBy(stop.deadline)}, kCloseNs)).IgnoreError();
    }
    return answer;
  }

  // Returns the value that the key holds after the write. Sets `settled` to false if an attempt may
  // take effect later.
  absl::StatusOr<std::string> WriteBy(Writer* writer, const StoreRequest& request, const Stop& stop,
                                      bool* settled) const {
    const std::string key = KeyOf(request);
    const bool depends = request.op == StoreOp::kAdd || request.op == StoreOp::kCompareAndSet;
    const int64_t before = writer->number;
    std::vector<std::string> values;  // values of the attempts
    std::optional<EtcdRow> held;
    if (depends) {
      ENTRAIN_ASSIGN_OR_RETURN(EtcdReply reply, client_->Read({EtcdStep::Read(key)}, stop));
      held = RowOf(reply.reads[0]);
    }
    while (true) {
      const std::string* const old = held ? &held->value : nullptr;
      absl::StatusOr<std::string> value =
          request.op == StoreOp::kDelete ? std::string() : ValueAfter(request, old);
      if (!value.ok() || IsRefused(request, old)) {
        *settled = values.empty();
        return value;
      }
      const std::string mark = absl::StrCat(root_, "/w/", absl::Hex(writer->lease));
      EtcdTransaction write;
      write.compares = {{mark, writer->revision}};
      if (depends) {
        write.compares.emplace_back(key, held ? held->revision : 0);
      }
      write.then = {
          EtcdStep::Put(mark, absl::StrCat(++writer->number), writer->lease),
          request.op == StoreOp::kDelete ? EtcdStep::Delete(key) : EtcdStep::Put(key, *value)};
      write.otherwise = {EtcdStep::Read(mark), EtcdStep::Read(key)};
      values.push_back(*std::move(value));
      *settled = false;
      const auto ran = client_->Run(write, stop);
      if (absl::IsNotFound(ran.status())) {
        return LostMark();
      }
      ENTRAIN_RETURN_IF_ERROR(ran.status());
      const EtcdReply& reply = *ran;
      *settled = true;
      if (reply.compared) {
        writer->revision = reply.revision;
        return values.back();
      }
      const std::optional<EtcdRow> marked = RowOf(reply.reads[0]);
      if (marked ? marked->revision != writer->revision : writer->revision != 0) {
        int64_t number = 0;
        if (!marked || !absl::SimpleAtoi(marked->value, &number) || number <= before ||
            number > writer->number) {
          *settled = false;
          return LostMark();
        }
        writer->revision = marked->revision;
        return values[static_cast<size_t>(number - before - 1)];
      }
      held = RowOf(reply.reads[1]);
      if (!Pause(RandomPauseMs(values.size()), stop)) {
        *settled = false;
        return CheckStop(stop, "other processes change the key all the time");
      }
    }
  }

  static absl::Status LostMark() {
    return absl::UnavailableError(
        "the mark of this writer was removed, so the outcome is not known");
  }

  static std::optional<EtcdRow> RowOf(const EtcdReply::Read& read) {
    return read.row() == nullptr ? std::nullopt : std::optional<EtcdRow>(*read.row());
  }

  // Returns the time to wait after this number of attempts. The time is random, so that processes
  // that change the same key do not collide again.
  static int RandomPauseMs(size_t attempts) {
    thread_local std::minstd_rand random{std::random_device{}()};
    const int most = std::min(kMostPauseMs, 1 << std::min<size_t>(attempts, 16));
    return std::uniform_int_distribution<int>(0, most)(random);
  }

  const std::shared_ptr<const EtcdClient> client_;
  const std::string root_, host_;
  const int64_t opened_;
  std::mutex mutex_;
  std::vector<Writer> idle_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<Store>> OpenEtcdStore(absl::string_view where, const Stop& stop) {
  const std::string url = absl::StrCat("etcd://", where);
  const size_t slash = std::min(where.find('/'), where.size());
  std::vector<HostPort> members;
  for (const absl::string_view part : absl::StrSplit(where.substr(0, slash), ',')) {
    auto member = ParseHostPort(part);
    if (member.ok() && member->port == 0) {
      member = absl::InvalidArgumentError("port 0 cannot be connected to");
    }
    if (!member.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("store URL \"", url, "\": ", member.status().message()));
    }
    members.push_back(*std::move(member));
  }
  absl::string_view root = where.substr(slash);
  while (absl::ConsumePrefix(&root, "/") || absl::ConsumeSuffix(&root, "/")) {
  }
  const std::string host = members.front().host;
  auto client = std::make_shared<const EtcdClient>(url, std::move(members));
  const std::string used(root.empty() ? kDefaultRoot : root);
  const auto reached = client->Read({EtcdStep::Read(used, EtcdStep::Rows::kKeys)}, stop);
  if (!reached.ok()) {
    const absl::Status why = Annotate(reached.status(), absl::StrCat("cannot reach store ", url));
    return absl::IsDeadlineExceeded(why) ? absl::UnavailableError(why.message()) : why;
  }
  return std::shared_ptr<Store>(
      std::make_shared<EtcdStore>(std::move(client), used, host, reached->revision));
}

}  // namespace entrain
