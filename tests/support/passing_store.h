// A store and a meeting that pass every call on to another store and meeting: base classes for
// tests that watch or change some of the calls.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/store/store.h"

namespace entrain {

class PassingMeeting : public StoreMeeting {
 public:
  explicit PassingMeeting(std::unique_ptr<StoreMeeting> base) : base_(std::move(base)) {}
  absl::StatusOr<std::vector<Parts>> Wait(const Stop& stop) override { return base_->Wait(stop); }
  absl::Status Check() override { return base_->Check(); }
  void Fail(const absl::Status& why) override { base_->Fail(why); }
  void Finish() override { base_->Finish(); }
  absl::StatusOr<std::vector<int>> Absent(const Stop& stop) override { return base_->Absent(stop); }

 private:
  const std::unique_ptr<StoreMeeting> base_;
};

class PassingStore : public Store {
 public:
  explicit PassingStore(std::shared_ptr<Store> base) : base_(std::move(base)) {}
  absl::Status Set(absl::string_view key, absl::string_view value, const Stop& stop) override {
    return base_->Set(key, value, stop);
  }
  absl::StatusOr<std::string> Get(absl::string_view key, const Stop& stop) override {
    return base_->Get(key, stop);
  }
  absl::StatusOr<std::string> TryGet(absl::string_view key, const Stop& stop) override {
    return base_->TryGet(key, stop);
  }
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta, const Stop& stop) override {
    return base_->Add(key, delta, stop);
  }
  absl::StatusOr<std::string> CompareAndSet(absl::string_view key, absl::string_view expected,
                                            absl::string_view desired, const Stop& stop) override {
    return base_->CompareAndSet(key, expected, desired, stop);
  }
  absl::Status Delete(absl::string_view key, const Stop& stop) override {
    return base_->Delete(key, stop);
  }
  absl::StatusOr<std::unique_ptr<StoreMeeting>> Join(absl::string_view key, int rank, int size,
                                                     const absl::StatusOr<Parts>& mine,
                                                     const Stop& stop) override {
    return base_->Join(key, rank, size, mine, stop);
  }
  std::string url() const override { return base_->url(); }
  std::string host() const override { return base_->host(); }

 private:
  const std::shared_ptr<Store> base_;
};

}  // namespace entrain
