#include "lib/comm/merge_state.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/bytes.h"
#include "lib/base/status.h"

namespace entrain {
namespace {

constexpr uint64_t kMagic = 0x31534d4e52544e45;  // "ENTRNMS1"

}  // namespace

uint64_t MergeState::NextCall() {
  absl::MutexLock lock(&mutex_);
  return static_cast<uint64_t>(calls_++);
}

float* MergeState::Owed(int64_t tag, int64_t count) {
  absl::MutexLock lock(&mutex_);
  std::vector<float>& owed = owed_[{tag, count}];
  owed.resize(static_cast<size_t>(count));
  // Stays valid when the map grows, because the map moves its vectors.
  return owed.data();
}

void MergeState::Settle(int64_t tag, int64_t count, absl::FunctionRef<void(float*)> body) {
  absl::MutexLock lock(&mutex_);
  std::vector<float>& owed = owed_[{tag, count}];
  owed.resize(static_cast<size_t>(count));
  body(owed.data());
}

std::string MergeState::Save() const {
  absl::MutexLock lock(&mutex_);
  std::vector<Key> keys;
  for (const auto& one : owed_) {
    keys.push_back(one.first);
  }
  std::sort(keys.begin(), keys.end());
  Writer writer;
  writer.Put(kMagic).Put(static_cast<uint64_t>(calls_)).Put(static_cast<uint64_t>(keys.size()));
  for (const Key& key : keys) {
    const std::vector<float>& owed = owed_.at(key);
    writer.Put(key.first).Put(key.second).PutRaw(owed.data(), owed.size() * sizeof(float));
  }
  return writer.Take();
}

absl::Status MergeState::Load(absl::string_view saved) {
  Reader reader(saved);
  const auto magic = reader.Get<uint64_t>();
  const auto calls = reader.Get<uint64_t>();
  const auto entries = reader.Get<uint64_t>();
  absl::flat_hash_map<Key, std::vector<float>> owed;
  bool good = reader.ok() && magic == kMagic;
  for (uint64_t e = 0; good && e < entries; ++e) {
    const auto tag = reader.Get<int64_t>();
    const auto count = reader.Get<int64_t>();
    // Check the count before the allocation. `saved` cannot hold more numbers than this.
    good =
        reader.ok() && count >= 0 && static_cast<uint64_t>(count) <= saved.size() / sizeof(float);
    std::vector<float> numbers(good ? static_cast<size_t>(count) : 0);
    const absl::string_view raw = reader.GetRaw(numbers.size() * sizeof(float));
    if (!raw.empty()) {
      std::memcpy(numbers.data(), raw.data(), raw.size());
    }
    good = good && reader.ok() && owed.emplace(Key{tag, count}, std::move(numbers)).second;
  }
  if (!good || !reader.Finished()) {
    return absl::InvalidArgumentError(
        absl::StrCat("state: its ", saved.size(), " bytes are not the state of a reduction"));
  }
  absl::MutexLock lock(&mutex_);
  calls_ = static_cast<int64_t>(calls);
  owed_ = std::move(owed);
  return absl::OkStatus();
}

absl::StatusOr<Reduction> MakeGta(Merging merging) {
  ENTRAIN_RETURN_IF_ERROR(CheckMerging(merging));
  Reduction reduction;
  reduction.op = ReduceOp::kGta;
  if (merging.Packs()) {
    reduction.merge_state = std::make_shared<MergeState>();
  }
  reduction.merging = std::make_shared<const Merging>(std::move(merging));
  return reduction;
}

}  // namespace entrain
