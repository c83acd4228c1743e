// A text: a file of bytes, plain or gzip. Its last part is for validation, the rest for training. A
// batch depends only on (seed, rank, draw), so runs can be repeated, and ranks read different
// places.
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
  // The last 5 % are for validation. Messages call the text `name`.
  Text(std::vector<uint8_t> bytes, const std::string& name);

  int64_t size() const { return static_cast<int64_t>(bytes_.size()); }
  int64_t training_size() const { return training_; }
  int64_t validation_size() const { return size() - training_; }

  // Throws Error if the validation part, or one of `parts` equal parts of the training part, cannot
  // hold a sequence of `length` tokens and the token after it.
  void CheckLength(int length, int64_t parts = 1) const;

  // Makes batch `draw` of `rank`: `rows` windows at random places of the training part. Inputs are
  // rows * length tokens, window after window. The target of each token is the token after it.
  // The windows lie in part number `part` of `parts` equal parts of the training part.
  void DrawTraining(uint64_t seed, int rank, int64_t draw, int rows, int length, Batch* batch,
                    int64_t part = 0, int64_t parts = 1) const;
  // `windows` windows are spread evenly over the validation part (they overlap if it is short).
  // Takes windows first .. first + rows - 1. Numbers from `windows` on wrap around.
  void TakeValidation(int64_t windows, int64_t first, int rows, int length, Batch* batch) const;
  // Returns at most `count` bytes of the validation part from `first` on.
  std::vector<uint8_t> ValidationBytes(int64_t first, int64_t count) const;

  // Returns -sum p log p over the bytes of the whole text, in nats: the loss of a model that knows
  // only the frequencies of the bytes.
  double UnigramEntropy() const;

 private:
  void CopyWindow(int64_t at, int length, Batch* batch) const;

  std::vector<uint8_t> bytes_;
  std::string name_;
  int64_t training_ = 0;
};

}  // namespace trainer
