#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/net/socket.h"
#include "lib/store/request.h"

namespace entrain {
namespace {

class MemStore final : public RequestStore {
 public:
  explicit MemStore(std::string url) : url_(std::move(url)) {}
  std::string url() const override { return url_; }

 private:
  absl::StatusOr<std::string> Do(const StoreRequest& request, const Stop& stop) override {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      bool changed = false;
      auto answer = table_.Apply(request, &changed);
      if (changed) {
        changed_.notify_all();
      }
      if (request.op != StoreOp::kGet || !absl::IsNotFound(answer.status())) {
        return answer;
      }
      if (absl::Status ended = CheckStop(stop, Describe(url_, request)); !ended.ok()) {
        return ended;
      }
      changed_.wait_for(lock, std::chrono::milliseconds(StopSliceMs(stop)));
    }
  }

  const std::string url_;
  std::mutex mutex_;
  std::condition_variable changed_;
  StoreTable table_;
};

// The names of this process. A name without holders is free again, and its store gone.
struct Names {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<Store>> stores;
};

Names& ProcessNames() {
  static auto* names = new Names;  // never destroyed: handles may outlive static destructors
  return *names;
}

}  // namespace

absl::StatusOr<std::shared_ptr<Store>> OpenMemStore(absl::string_view where) {
  if (where.empty()) {
    return absl::InvalidArgumentError("store URL \"mem:\": a name is missing, as in mem:NAME");
  }
  Names& names = ProcessNames();
  std::lock_guard<std::mutex> lock(names.mutex);
  for (auto at = names.stores.begin(); at != names.stores.end();) {
    at = at->second.expired() ? names.stores.erase(at) : std::next(at);
  }
  std::weak_ptr<Store>& slot = names.stores[std::string(where)];
  std::shared_ptr<Store> store = slot.lock();
  if (store == nullptr) {
    store = std::make_shared<MemStore>(absl::StrCat("mem:", where));
    slot = store;
  }
  return store;
}

}  // namespace entrain
