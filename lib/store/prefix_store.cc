#include "lib/store/prefix_store.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/store/request.h"

namespace entrain {
namespace {

absl::StatusOr<std::string> AsText(const absl::StatusOr<int64_t>& number) {
  return number.ok() ? absl::StatusOr<std::string>(absl::StrCat(*number)) : number.status();
}

class PrefixStore final : public RequestStore {
 public:
  PrefixStore(std::shared_ptr<Store> base, absl::string_view prefix)
      : base_(std::move(base)), prefix_(prefix) {}
  std::string url() const override { return base_->url(); }
  bool IsOfFunctions() const override { return base_->IsOfFunctions(); }
  std::string host() const override { return base_->host(); }

 private:
  absl::StatusOr<std::string> Do(const StoreRequest& request, const Stop& stop) override {
    const std::string key = absl::StrCat(prefix_, request.key);
    switch (request.op) {
      case StoreOp::kSet: {
        const absl::Status set = base_->Set(key, request.value, stop);
        return set.ok() ? absl::StatusOr<std::string>(request.value) : set;
      }
      case StoreOp::kGet:
        return base_->Get(key, stop);
      case StoreOp::kTryGet:
        return base_->TryGet(key, stop);
      case StoreOp::kAdd:
        return AsText(base_->Add(key, request.delta, stop));
      case StoreOp::kCompareAndSet:
        return base_->CompareAndSet(key, request.expected, request.value, stop);
      case StoreOp::kDelete: {
        const absl::Status deleted = base_->Delete(key, stop);
        return deleted.ok() ? absl::StatusOr<std::string>("") : deleted;
      }
      default:
        return absl::InternalError("store: unknown operation");
    }
  }

  absl::StatusOr<std::unique_ptr<StoreMeeting>> Join(const std::string& key, const Entry& entry,
                                                     const Stop& stop) override {
    const absl::StatusOr<Parts> mine =
        entry.unable.ok() ? absl::StatusOr<Parts>(entry.parts) : entry.unable;
    return base_->Join(absl::StrCat(prefix_, key), entry.rank, entry.size, mine, stop);
  }

  const std::shared_ptr<Store> base_;
  const std::string prefix_;
};

}  // namespace

std::shared_ptr<Store> WithPrefix(std::shared_ptr<Store> base, absl::string_view prefix) {
  return std::make_shared<PrefixStore>(std::move(base), prefix);
}

}  // namespace entrain
