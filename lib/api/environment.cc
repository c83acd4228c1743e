#include "lib/api/environment.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"

#include "lib/base/config.h"
#include "lib/base/log.h"
#include "lib/base/status.h"
#include "lib/comm/create/creation.h"
#include "lib/comm/create/runtime.h"
#include "lib/comm/launch/launcher.h"
#include "lib/net/socket.h"
#include "lib/store/prefix_store.h"

namespace entrain::api {
namespace {

// The time within which a store from the environment must answer. A launcher starts all ranks at
// the same time, so a store that has not answered by then will not answer at all.
constexpr int64_t kStoreTimeout = 30 * kSecond;

// The key by which ranks know the store of their own job (Launch::job). A job's rank 0 sets it when it
// begins to serve.
constexpr char kJobKey[] = "entrain/launcher/job";
// How long the first attempt to open a store on one of several ports may take (later ones twice as long
// each, up to a limit), and how long a rank goes on trying when a server has refused it.
constexpr int64_t kFirstAttempt = 2 * kSecond, kMostAttempt = 4 * kSecond, kRefused = 10 * kSecond;
constexpr int kPauseMs = 20;  // between attempts

Stop Within(int64_t ns, const Stop& stop) {
  return {std::min(stop.deadline, Deadline::After(ns)), stop.cancelled};
}

// Returns the URLs at which the store of a launch may be.
std::vector<std::string> UrlsOf(const Launch& launch) {
  std::vector<std::string> urls = {launch.store_url};
  urls.insert(urls.end(), launch.other_urls.begin(), launch.other_urls.end());
  return urls;
}

// Returns the job whose store this is (Launch::job).
absl::StatusOr<std::string> JobOf(Store& store, const Stop& stop) {
  return store.Get(kJobKey, Within(kMostAttempt, stop));
}

bool SomebodyListens(absl::string_view url, const Stop& stop) {
  absl::ConsumePrefix(&url, "tcp://");
  const auto host = ParseHostPort(url);
  const auto addresses =
      host.ok() ? Resolve(*host, stop) : absl::StatusOr<std::vector<Address>>(host.status());
  return addresses.ok() &&
         std::any_of(addresses->begin(), addresses->end(),
                     [&](const Address& address) { return Connect(address, stop).ok(); });
}

// Serves the store of a launch on its first free port. Other jobs may have some of the ports, and this
// job must not harm them. But a job with the same description is one that was started by mistake.
absl::StatusOr<std::shared_ptr<Store>> ServeOnFreePort(const Launch& launch,
                                                       const Security& security) {
  absl::Status in_use;
  for (const std::string& url : UrlsOf(launch)) {
    auto store = ServeStore(url, security);
    if (store.ok()) {
      if (!launch.job.empty()) {
        ENTRAIN_RETURN_IF_ERROR(
            (*store)->Set(kJobKey, launch.job, {Deadline::After(kStoreTimeout)}));
      }
      return store;
    }
    in_use.Update(store.status());
    if (!absl::IsFailedPrecondition(store.status()) || launch.job.empty()) {
      return in_use;
    }
    const Stop brief{Deadline::After(kFirstAttempt)};
    const auto other = OpenStore(url, security, brief);
    if (other.ok() && JobOf(**other, brief).value_or("") == launch.job) {
      return absl::FailedPreconditionError(absl::StrCat(
          store.status().message(), " by another job with ", launch.job,
          "; give each job a MASTER_PORT of its own, or another ", kRunId, " for all its ranks"));
    }
  }
  return Annotate(in_use, "no port for the store is free; ENTRAIN_STORE names another store");
}

// Opens the store of a launch, whichever of its ports has it. Looks at another port only if somebody
// listens on the one before who is not this job's store.
absl::StatusOr<std::shared_ptr<Store>> OpenOnSomePort(const Launch& launch,
                                                      const Security& security, const Stop& stop) {
  absl::Status why;
  Deadline refused;
  for (int64_t attempt = kFirstAttempt;; attempt = std::min(2 * attempt, kMostAttempt)) {
    for (const std::string& url : UrlsOf(launch)) {
      if (url != launch.store_url && !SomebodyListens(url, Within(attempt, stop))) {
        break;
      }
      auto store = OpenStore(url, security, Within(attempt, stop));
      absl::Status status = store.status();
      if (store.ok()) {
        const auto job = JobOf(**store, stop);
        if (job.ok() && *job == launch.job) {
          return store;
        }
        // A store without the key belongs to another job, too.
        status = absl::IsDeadlineExceeded(job.status()) ? absl::OkStatus() : job.status();
      }
      if (url == launch.store_url) {  // what others say at the other ports says less
        why = !status.ok() ? status
                           : absl::FailedPreconditionError(
                                 absl::StrCat("store ", url, " is that of another job"));
      }
      if (absl::IsFailedPrecondition(status)) {
        refused = std::min(refused, Deadline::After(kRefused));
      }
    }
    const int64_t now = Clock::Real().Now();
    if (stop.deadline.Passed(now) || refused.Passed(now) || !Pause(kPauseMs, stop)) {
      return why;
    }
  }
}

// The stores that this process serves, by the URL that was requested.
class ServedStores {
 public:
  absl::StatusOr<std::shared_ptr<Store>> Serve(const Launch& launch, const Security& security) {
    absl::MutexLock lock(&mutex_);
    Served& served = stores_[launch.store_url];
    if (served.store == nullptr) {
      ENTRAIN_ASSIGN_OR_RETURN(served.store, ServeOnFreePort(launch, security));
      served.security = security;
    } else if (!(served.security == security)) {
      return absl::FailedPreconditionError(
          absl::StrCat("store ", launch.store_url,
                       " is served by this process with another pre-shared key or TLS already"));
    }
    return served.store;
  }

 private:
  struct Served {
    std::shared_ptr<Store> store;
    Security security;
  };
  absl::Mutex mutex_;
  std::map<std::string, Served> stores_ ABSL_GUARDED_BY(mutex_);
};

ServedStores& StoresOfThisProcess() {
  static auto* stores = new ServedStores;  // never destroyed: ends with the process
  return *stores;
}

absl::StatusOr<std::shared_ptr<Store>> StoreOf(const Launch& launch, const Security& security,
                                               const Stop& stop) {
  if (launch.serve) {
    return StoresOfThisProcess().Serve(launch, security);
  }
  const Stop sooner = Within(kStoreTimeout, stop);
  auto store = !launch.job.empty() ? OpenOnSomePort(launch, security, sooner)
                                   : OpenStore(launch.store_url, security, sooner);
  if (store.ok() || launch.store_origin.empty()) {
    return store;
  }
  const bool refused = absl::IsFailedPrecondition(store.status());  // somebody has answered
  const bool by_port = absl::StartsWith(launch.store_url, "tcp:");
  const absl::string_view cause =
      refused   ? (by_port ? ": another job or another program may have that port" : "")
      : by_port ? ": it has not come, or it failed (its own output says why), or another program "
                  "has that port"
                : ": it has not come, or it failed (its own output says why)";
  return WithBlame(absl::Status(store.status().code(),
                                absl::StrCat(store.status().message(), "; ", launch.store_origin,
                                             cause, "; ENTRAIN_STORE names another store")),
                   BlameOf(store.status()));
}

// Returns the place of a process without launcher: a world of one rank, with a store that no other
// process can open.
absl::StatusOr<Place> Alone() {
  static std::atomic<int> count{0};
  ENTRAIN_LOG(kInfo, "no launcher's variables are set: a world of one");
  // A launcher that is not known, or the half of a known one's variables, is rather a mistake.
  for (const char* const name : {"PMIX_RANK", "FLUX_TASK_RANK", "PALS_RANKID", "MASTER_ADDR"}) {
    if (const std::optional<std::string> value = GetEnv(name)) {
      ENTRAIN_LOG(kWarning, name, "=", *value,
                  " is set, but no variables that say the rank and the ",
                  "number of ranks: this process is a world of one. Set RANK, LOCAL_RANK, ",
                  "WORLD_SIZE and ENTRAIN_STORE for each process if there are others");
      break;
    }
  }
  Place place;
  ENTRAIN_ASSIGN_OR_RETURN(place.store,
                           OpenStore(absl::StrCat("mem:alone-", count.fetch_add(1)), "", {}));
  return place;
}

// Opens the job's store, or if the launcher counts the starts of the job, the part of the store for
// this start.
absl::StatusOr<std::shared_ptr<Store>> PartOf(const Launch& launch, const Security& security,
                                              const Stop& stop) {
  ENTRAIN_ASSIGN_OR_RETURN(std::shared_ptr<Store> store, StoreOf(launch, security, stop));
  const std::string prefix = StartPrefix(launch);
  return prefix.empty() ? store : WithPrefix(std::move(store), prefix);
}

absl::StatusOr<std::optional<int64_t>> Restarts() {
  ENTRAIN_ASSIGN_OR_RETURN(const std::optional<int64_t> restarts, GetEnvInt(kRestarts));
  if (restarts.has_value() && *restarts < 0) {
    return absl::InvalidArgumentError(absl::StrCat(kRestarts, ": ", *restarts, " is negative"));
  }
  return restarts;
}

}  // namespace

absl::StatusOr<Place> PlaceFromEnvironment(const Security& security, int64_t timeout_ns) {
  ENTRAIN_ASSIGN_OR_RETURN(const std::optional<int64_t> restarts, Restarts());
  // True if a variable of a launcher is set. If it is, but the rank is missing, that is an error.
  bool launched = GetEnv("ENTRAIN_STORE").has_value() || GetEnv("WORLD_SIZE").has_value();
  absl::StatusOr<Launch> launch = DetectLaunch([&launched](const char* name) {
    std::optional<std::string> value = GetEnv(name);
    launched = launched || value.has_value();
    return value;
  });
  if (!launch.ok()) {
    if (!launched) {
      return Alone();
    }
    return launch.status();
  }
  ENTRAIN_ASSIGN_OR_RETURN(std::shared_ptr<Store> store,
                           PartOf(*launch, security, {Deadline::After(timeout_ns)}));
  return Place{
      .rank = launch->rank, .size = launch->size, .store = std::move(store), .restarts = restarts};
}

void TellOthers(const std::string& name, const absl::Status& why) {
  constexpr int64_t kTellNs = 2 * kSecond;
  const absl::StatusOr<Launch> launch = DetectLaunch(GetEnv);
  const auto restarts = Restarts();
  // A process that was started again does not meet the others: it is a newcomer.
  if (!launch.ok() || launch->size < 2 || !restarts.ok() || restarts->value_or(0) > 0) {
    return;
  }
  const absl::StatusOr<Security> security = LoadSecurity({});
  const bool needs_proof = !absl::StartsWith(launch->store_url, "file:") &&
                           !absl::StartsWith(launch->store_url, "etcd:");
  if (!security.ok() && needs_proof) {
    return;
  }
  const auto store =
      PartOf(*launch, security.ok() ? *security : Security(), {Deadline::After(kTellNs)});
  if (!store.ok()) {
    return;
  }
  const int use = entrain::Runtime::UsesOfDefault()->Next((*store)->url(), name);
  TellUnable(**store, {.key = MeetingKey(name, use), .rank = launch->rank, .size = launch->size},
             why, {Deadline::After(kTellNs)});
}

absl::StatusOr<std::shared_ptr<Store>> StoreFromEnvironment(const Security& security,
                                                            const Stop& stop) {
  const absl::StatusOr<Launch> launch = DetectLaunch(GetEnv);
  return launch.ok() ? PartOf(*launch, security, stop) : OpenStoreOfOthers(security, stop);
}

absl::StatusOr<std::shared_ptr<Store>> OpenStoreOfOthers(const Security& security,
                                                         const Stop& stop) {
  const absl::StatusOr<Launch> launch = DetectStore(GetEnv);
  if (!launch.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "store: none is given, and the environment names none: ", launch.status().message(),
        ". Or set ENTRAIN_STORE to the store's URL"));
  }
  return PartOf(*launch, security, stop);
}

void TellLauncher(const Place& place) {
  if (!place.restarts.has_value()) {
    return;
  }
  const absl::Status told = place.store->Set(MemberKey(place.rank), absl::StrCat(*place.restarts),
                                             {Deadline::After(kStoreTimeout)});
  if (!told.ok()) {
    ENTRAIN_LOG(kWarning,
                "entrain-run does not learn that this rank has its communicator: ", told.message());
  }
}

void TellLauncherOfJoin(const Security& security) {
  const auto restarts = Restarts();
  if (!restarts.ok() || !restarts->has_value()) {
    return;
  }
  const absl::StatusOr<Place> place = PlaceFromEnvironment(security, kStoreTimeout);
  if (place.ok()) {
    TellLauncher(*place);
  } else {
    ENTRAIN_LOG(kWarning,
                "entrain-run does not learn that this rank has joined: ", place.status().message());
  }
}

}  // namespace entrain::api
