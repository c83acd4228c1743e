#include "examples/trainer/data.h"

#include <algorithm>
#include <utility>

#include "examples/trainer/error.h"
#include "examples/trainer/file.h"
#include "examples/trainer/random.h"

namespace trainer {
namespace {

constexpr int64_t kValidationShare = 20;  // one part in twenty

}  // namespace

Text Text::Load(const std::string& path) {
  return Text(ReadFile(path), path);
}

Text::Text(std::vector<uint8_t> bytes, const std::string& name)
    : bytes_(std::move(bytes)), name_(name) {
  training_ = size() - size() / kValidationShare;
}

void Text::CheckLength(int length, int64_t parts) const {
  if (validation_size() < length + 1) {
    throw Error("data file '" + name_ + "' is too short: " + std::to_string(size()) +
                " bytes, of which the validation part (5 %) must hold a sequence of " +
                std::to_string(length) + " + 1");
  }
  if (training_ / parts < length + 1) {
    throw Error("--text-parts " + std::to_string(parts) + ": a part of the training text of '" +
                name_ + "', " + std::to_string(training_) +
                " bytes, is too short for a sequence of " + std::to_string(length) + " + 1");
  }
}

void Text::CopyWindow(int64_t at, int length, Batch* batch) const {
  const auto first = bytes_.begin() + at;
  batch->inputs.insert(batch->inputs.end(), first, first + length);
  batch->targets.insert(batch->targets.end(), first + 1, first + length + 1);
}

void Text::DrawTraining(uint64_t seed, int rank, int64_t draw, int rows, int length, Batch* batch,
                        int64_t part, int64_t parts) const {
  batch->inputs.clear();
  batch->targets.clear();
  Random random(Mix(Mix(seed, static_cast<uint64_t>(rank)), static_cast<uint64_t>(draw)));
  const int64_t first = training_ / parts * part;
  const auto places = static_cast<uint64_t>(training_ / parts - length);
  for (int row = 0; row < rows; ++row) {
    CopyWindow(first + static_cast<int64_t>(random.Below(places)), length, batch);
  }
}

void Text::TakeValidation(int64_t windows, int64_t first, int rows, int length,
                          Batch* batch) const {
  batch->inputs.clear();
  batch->targets.clear();
  const int64_t room = validation_size() - length - 1;
  for (int64_t i = first; i < first + rows; ++i) {
    const int64_t step = windows > 1 ? room * (i % windows) / (windows - 1) : 0;
    CopyWindow(training_ + step, length, batch);
  }
}

std::vector<uint8_t> Text::ValidationBytes(int64_t first, int64_t count) const {
  const auto begin = bytes_.begin() + std::min(training_ + first, size());
  return {begin, begin + std::min<int64_t>(count, bytes_.end() - begin)};
}

double Text::UnigramEntropy() const {
  return EntropyOf(bytes_);
}

}  // namespace trainer
