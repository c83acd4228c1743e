#include "lib/api/environment.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "lib/api/settings.h"
#include "lib/base/config.h"
#include "lib/base/log.h"
#include "lib/base/status.h"
#include "lib/comm/launcher.h"
#include "lib/store/prefix_store.h"

namespace entrain::api {
namespace {

// A store that is named in the environment is there already; one that a rank serves appears when
// that rank comes.
constexpr int64_t kNamedStoreTimeout = 30 * kSecond;

// The stores that this process serves, by the URL asked for.
class ServedStores {
 public:
  absl::StatusOr<std::shared_ptr<Store>> Serve(const std::string& url, const std::string& key) {
    absl::MutexLock lock(&mutex_);
    std::shared_ptr<Store>& store = stores_[url];
    if (store == nullptr) {
      ENTRAIN_ASSIGN_OR_RETURN(store, ServeStore(url, key));
    }
    return store;
  }

 private:
  absl::Mutex mutex_;
  std::map<std::string, std::shared_ptr<Store>> stores_ ABSL_GUARDED_BY(mutex_);
};

ServedStores& Served() {
  static auto* stores = new ServedStores;  // not destroyed: ends with the process
  return *stores;
}

absl::StatusOr<std::shared_ptr<Store>> StoreOf(const Launch& launch, int64_t timeout_ns) {
  ENTRAIN_ASSIGN_OR_RETURN(const std::string key, KeyFromEnvironment());
  if (launch.serve) {
    return Served().Serve(launch.store_url, key);
  }
  const bool named = GetEnv("ENTRAIN_STORE").has_value();
  const int64_t timeout = named ? std::min(timeout_ns, kNamedStoreTimeout) : timeout_ns;
  return OpenStore(launch.store_url, key, {.deadline = Deadline::After(timeout)});
}

// A store by no name that anybody else could know.
absl::StatusOr<Place> Alone() {
  static std::atomic<int> count{0};
  ENTRAIN_LOG(kInfo, "no launcher's variables are set: a world of one");
  Place place;
  ENTRAIN_ASSIGN_OR_RETURN(place.store,
                           OpenStore(absl::StrCat("mem:alone-", count.fetch_add(1)), "", {}));
  return place;
}

}  // namespace

absl::StatusOr<Place> PlaceFromEnvironment(int64_t timeout_ns) {
  // A job's variables without a rank are a mistake, not a world of one.
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
  ENTRAIN_ASSIGN_OR_RETURN(std::shared_ptr<Store> store, StoreOf(*launch, timeout_ns));
  if (!launch->incarnation.empty()) {
    store = WithPrefix(std::move(store), absl::StrCat("start.", launch->incarnation, "/"));
  }
  return Place{.rank = launch->rank, .size = launch->size, .store = std::move(store)};
}

}  // namespace entrain::api
