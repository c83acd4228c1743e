#include "lib/store/function_store.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include <poll.h>

#include "absl/strings/str_cat.h"

#include "lib/base/callback_scope.h"
#include "lib/base/log.h"
#include "lib/base/status.h"
#include "lib/net/socket.h"
#include "lib/store/function_meeting.h"
#include "lib/store/request.h"

namespace entrain {
namespace {

constexpr size_t kFirstRoom = 4 << 10;  // first size of the buffer for a value, whose length is not
                                        // known yet
constexpr int64_t kSliceNs = 200 * kMillisecond, kFlagSliceNs = 20 * kMillisecond;
constexpr int kMaxSleepMs = 20;

class FunctionStore final : public RequestStore {
 public:
  FunctionStore(std::shared_ptr<const FunctionCalls> calls, std::string host)
      : calls_(std::move(calls)), host_(std::move(host)) {}
  std::string url() const override { return calls_->url(); }
  bool IsOfFunctions() const override { return true; }
  std::string host() const override { return host_; }

 private:
  absl::StatusOr<std::string> Do(const StoreRequest& request, const Stop& stop) override {
    if (request.key.find('\0') != std::string::npos) {
      return absl::InvalidArgumentError(absl::StrCat(
          Describe(url(), request), ": a key of a store of functions has no zero byte"));
    }
    switch (request.op) {
      case StoreOp::kSet: {
        const absl::Status set = calls_->Set(request.key, request.value);
        return set.ok() ? absl::StatusOr<std::string>(request.value) : set;
      }
      case StoreOp::kGet:
        return Wait(request, stop);
      case StoreOp::kTryGet:
        return calls_->Get(request.key, 0);
      case StoreOp::kAdd: {
        ENTRAIN_ASSIGN_OR_RETURN(const int64_t sum, calls_->Add(request.key, request.delta));
        return absl::StrCat(sum);
      }
      case StoreOp::kDelete: {
        const absl::Status removed = calls_->Remove(request.key);
        return removed.ok() ? absl::StatusOr<std::string>("") : removed;
      }
      default:
        return absl::UnimplementedError(
            absl::StrCat(Describe(url(), request), ": a store of functions has no such function"));
    }
  }

  // If the user's `get` returns without waiting, calls it again after 1 to 20 ms.
  absl::StatusOr<std::string> Wait(const StoreRequest& request, const Stop& stop) const {
    for (int sleep_ms = 1;; sleep_ms = std::min(2 * sleep_ms, kMaxSleepMs)) {
      auto value = calls_->Get(request.key, GetSliceNs(stop));
      if (!absl::IsNotFound(value.status())) {
        return value;
      }
      ENTRAIN_RETURN_IF_ERROR(CheckStop(stop, Describe(url(), request)));
      poll(nullptr, 0, std::min(sleep_ms, StopSliceMs(stop)));
    }
  }

  absl::StatusOr<std::unique_ptr<StoreMeeting>> Join(const std::string& key, const Entry& entry,
                                                     const Stop&) override {
    return JoinByFunctions(calls_, key, entry);
  }

  const std::shared_ptr<const FunctionCalls> calls_;
  const std::string host_;
};

}  // namespace

FunctionCalls::~FunctionCalls() {
  if (functions_.release != nullptr) {
    const CallbackScope scope("the store function release", Does::kLook);
    functions_.release(functions_.user);
  }
}

absl::Status FunctionCalls::Check(int32_t code, const char* function,
                                  const std::string& key) const {
  if (code == ENTRAIN_OK) {
    return absl::OkStatus();
  }
  const std::string what =
      absl::StrCat("store ", url_, ": the function ", function, " failed for key \"", key, "\": ");
  const std::string name = CodeName(code);
  return code < 0 && name != "ENTRAIN_?"
             ? absl::Status(FromCode(code), absl::StrCat(what, name))
             : absl::UnavailableError(absl::StrCat(what, "it returned ", code));
}

absl::Status FunctionCalls::Set(const std::string& key, const std::string& value) const {
  const CallbackScope scope("the store function set", Does::kLook);
  return Check(functions_.set(functions_.user, key.c_str(), value.data(), value.size()), "set",
               key);
}

absl::StatusOr<std::string> FunctionCalls::Get(const std::string& key, int64_t timeout_ns) const {
  const CallbackScope scope("the store function get", Does::kLook);
  std::string value(kFirstRoom, '\0');
  while (true) {
    size_t bytes = value.size();
    const int32_t code =
        functions_.get(functions_.user, key.c_str(), timeout_ns, value.data(), &bytes);
    if (code == ENTRAIN_TIMED_OUT) {
      return absl::NotFoundError(absl::StrCat("store ", url_, ": no key \"", key, "\""));
    }
    ENTRAIN_RETURN_IF_ERROR(Check(code, "get", key));
    const bool whole = bytes <= value.size();
    value.resize(bytes);
    if (whole) {
      return value;
    }
    timeout_ns = 0;  // the key exists
  }
}

absl::StatusOr<int64_t> FunctionCalls::Add(const std::string& key, int64_t delta) const {
  const CallbackScope scope("the store function add", Does::kLook);
  int64_t sum = 0;
  ENTRAIN_RETURN_IF_ERROR(
      Check(functions_.add(functions_.user, key.c_str(), delta, &sum), "add", key));
  return sum;
}

absl::Status FunctionCalls::Remove(const std::string& key) const {
  const CallbackScope scope("the store function remove", Does::kLook);
  return functions_.remove == nullptr
             ? absl::UnimplementedError(absl::StrCat("store ", url_, ": delete of key \"", key,
                                                     "\": it has no function remove"))
             : Check(functions_.remove(functions_.user, key.c_str()), "remove", key);
}

void FunctionCalls::Forget(const std::string& key) const {
  if (const absl::Status removed = Remove(key); !removed.ok()) {
    ENTRAIN_LOG(kDebug, removed.message());
  }
}

int64_t GetSliceNs(const Stop& stop) {
  return std::min(stop.cancelled == nullptr ? kSliceNs : kFlagSliceNs,
                  stop.deadline.Left(Clock::Real().Now()));
}

std::shared_ptr<Store> MakeFunctionStore(const StoreFunctions& functions, std::string host) {
  static std::atomic<int> made{0};
  return std::make_shared<FunctionStore>(
      std::make_shared<const FunctionCalls>(functions, absl::StrCat("functions:", ++made)),
      std::move(host));
}

}  // namespace entrain
