#include "tests/train/trainee.h"

#include <algorithm>
#include <filesystem>

#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace entrain {

ShardConfig Layers() {
  ShardConfig config;
  config.layer_counts = kLayers;
  config.layer_frozen = {0, 0, 1, 0, 0};
  return config;
}

EditOptions Plain() {
  return {};
}

Directory::Directory() {
  std::string pattern = ::testing::TempDir() + "entrain-checkpoint-XXXXXX";
  path_ = mkdtemp(pattern.data());
}

Directory::~Directory() {
  std::filesystem::remove_all(path_);
}

std::vector<std::string> Directory::Files() const {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(path_)) {
    files.push_back(entry.path().filename());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::string Way::name() const {
  return absl::StrCat(full ? "full" : "sharded", rank0_only ? "_rank0_only" : "");
}

CheckpointOptions To(const Directory& directory, CheckpointKind kind, Way way,
                     const std::string& name) {
  return {.directory = directory.path(),
          .name = name,
          .kind = kind,
          .full = way.full,
          .rank0_only = way.rank0_only};
}

Trainee::Trainee(Replica& replica, const EditOptions& options)
    : r_(replica), inner_(replica.params().size()) {
  LayerSync& edit = r_.Edit(options);
  EXPECT_EQ(edit.state().AddState("inner", Holder::kRank, DType::kF32, inner_.data(),
                                  static_cast<int64_t>(inner_.size())),
            absl::OkStatus());
  EXPECT_EQ(edit.state().AddState("tokens", Holder::kAll, DType::kI64, &tokens_, 1),
            absl::OkStatus());
}

bool Trainee::Step(const std::function<void()>& when_exchanged) {
  const int64_t step = r_.edit().info().steps;
  const bool exchanged = r_.Forward();
  if (exchanged && when_exchanged) {
    when_exchanged();
  }
  size_t at = 0;
  r_.ForEach(r_.params(), [&](int layer, int64_t element, float& value) {
    float& inner = inner_[at++];
    const float seed = Noise(r_.replica() + 10 * step, layer, element);
    if (layer != kFrozen) {
      inner = 0.7f * inner + 0.1f * value + 0.05f * seed;
      value -= 0.1f * inner;
    }
  });
  tokens_ += 5;
  r_.EndStep();
  return exchanged;
}

Seen Look(Replica& r, const Trainee& trainee) {
  const EditInfo info = r.edit().info();
  Seen seen;
  seen.params = r.params();
  seen.inner = trainee.inner();
  seen.tokens = trainee.tokens();
  seen.steps = info.steps;
  seen.syncs = info.syncs;
  seen.last = info.last_sync_step;
  seen.checksum = info.anchor_checksum;
  if (info.anchor_checksum != 0) {
    seen.anchor = r.Anchor();
  }
  return seen;
}

void All::Put(Replica& r, Seen seen) {
  const std::lock_guard<std::mutex> lock(mutex_);
  seen_[{r.replica(), r.slot()}] = std::move(seen);
}

}  // namespace entrain
