// The text: a file of bytes, plain or gzip, cut into a training part and, at its end, a validation
// part. Batches are a function of (seed, rank, draw) only, so that runs can be repeated and ranks
// read different places.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "examples/trainer/pass.h"

namespace trainer {

class Text {
 public:
  // Throws Error naming the path and the reason.
  static Text Load(const std::string& path);
  // The last 5 % are for validation. `name` is for messages.
  Text(std::vector<uint8_t> bytes, const std::string& name);

  int64_t size() const { return static_cast<int64_t>(bytes_.size()); }
  int64_t training_size() const { return training_; }
  int64_t validation_size() const { return size() - training_; }

  // Throws Error when sequences of `length` do not fit into both parts.
  void CheckLength(int length) const;

  // Draw number `draw` of `rank`: `rows` windows at random places of the training part. Inputs are
  // rows * length tokens, side by side, and targets for each the token that follows it.
  void DrawTraining(uint64_t seed, int rank, int64_t draw, int rows, int length,
                    Batch* batch) const;
  // Windows first .. first + rows - 1 of `windows` that are spread evenly over the validation part
  // (they overlap when it is short). Numbers from `windows` on wrap around.
  void TakeValidation(int64_t windows, int64_t first, int rows, int length, Batch* batch) const;
  // The bytes of the validation part from `first`, at most `count`.
  std::vector<uint8_t> ValidationBytes(int64_t first, int64_t count) const;

  // -sum p log p over the bytes of the whole text, in nats: what a model that only counts bytes
  // would reach.
  double UnigramEntropy() const;

 private:
  void CopyWindow(int64_t at, int length, Batch* batch) const;

  std::vector<uint8_t> bytes_;
  std::string name_;
  int64_t training_ = 0;
};

}  // namespace trainer
