#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/net/socket.h"
#include "lib/store/request.h"

namespace entrain {
namespace {

class MemStore final : public RequestStore, public std::enable_shared_from_this<MemStore> {
 public:
  explicit MemStore(std::string url) : url_(std::move(url)) {}
  std::string url() const override { return url_; }

 private:
  friend class MemMeeting;
  absl::StatusOr<std::unique_ptr<StoreMeeting>> Join(const std::string& key, const Entry& entry,
                                                     const Stop& stop) override;

  absl::StatusOr<std::string> Do(const StoreRequest& request, const Stop& stop) override {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      bool changed = false;
      auto answer = table_.Apply(request, "", &changed);
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
  Gatherings meetings_;
};

class MemMeeting final : public StoreMeeting {
 public:
  MemMeeting(std::shared_ptr<MemStore> store, std::string key, int32_t rank, absl::Status refused)
      : store_(std::move(store)), key_(std::move(key)), rank_(rank), refused_(std::move(refused)) {}
  ~MemMeeting() override {
    Change([this](Gatherings& meetings) { meetings.Leave(key_, rank_, false); });
  }

  absl::StatusOr<std::vector<Parts>> Wait(const Stop& stop) override {
    ENTRAIN_RETURN_IF_ERROR(refused_);
    std::unique_lock<std::mutex> lock(store_->mutex_);
    while (true) {
      const Gathering& meeting = *store_->meetings_.Find(key_);
      ENTRAIN_RETURN_IF_ERROR(meeting.failure);
      if (meeting.complete()) {
        return meeting.Table();
      }
      ENTRAIN_RETURN_IF_ERROR(
          CheckStop(stop, absl::StrCat("store ", store_->url_, ": meeting ", key_)));
      store_->changed_.wait_for(lock, std::chrono::milliseconds(StopSliceMs(stop)));
    }
  }
  absl::Status Check() override {
    std::lock_guard<std::mutex> lock(store_->mutex_);
    return refused_.ok() ? store_->meetings_.Find(key_)->failure : refused_;
  }
  void Fail(const absl::Status& why) override {
    Change([&](Gatherings& meetings) { meetings.Fail(key_, why); });
  }
  void Finish() override {
    Change([this](Gatherings& meetings) { meetings.Finish(key_, rank_); });
  }
  absl::StatusOr<std::vector<int>> Absent(const Stop&) override {
    ENTRAIN_RETURN_IF_ERROR(refused_);
    std::lock_guard<std::mutex> lock(store_->mutex_);
    return store_->meetings_.Find(key_)->Absent();
  }

 private:
  template <typename Function>
  void Change(const Function& function) {
    if (!refused_.ok()) {
      return;  // this rank was refused: its place is taken, or there is no meeting
    }
    std::lock_guard<std::mutex> lock(store_->mutex_);
    function(store_->meetings_);
    if (!store_->meetings_.Find(key_)->failure.ok()) {
      store_->changed_.notify_all();
    }
  }

  const std::shared_ptr<MemStore> store_;
  const std::string key_;
  const int32_t rank_;
  const absl::Status refused_;
};

absl::StatusOr<std::unique_ptr<StoreMeeting>> MemStore::Join(const std::string& key,
                                                             const Entry& entry, const Stop&) {
  std::lock_guard<std::mutex> lock(mutex_);
  const absl::Status joined = meetings_.Join(key, entry, 0, url_);
  if (!joined.ok() || meetings_.Find(key)->complete()) {
    changed_.notify_all();
  }
  return std::unique_ptr<StoreMeeting>(
      std::make_unique<MemMeeting>(shared_from_this(), key, entry.rank, joined));
}

// The names of the mem stores in this process. When the last holder of a store is gone, the store
// is destroyed and its name is free.
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
