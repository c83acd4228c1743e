// Images of handwritten digits, in the format of examples/digits.py: one line of text per image,
// with the 64 pixels of an 8 x 8 image row by row, 0 (paper) to 16, then the digit, separated by
// blanks. The last fifth of the lines is for validation.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "examples/trainer/pass.h"

namespace trainer {

inline constexpr int kPixels = 64, kDarkest = 16, kDigits = 10;

class Digits {
 public:
  // Reads a file, plain or gzip. Throws Error naming the path, the line and the reason.
  static Digits Load(const std::string& path);

  int64_t size() const { return static_cast<int64_t>(labels_.size()); }
  int64_t training_size() const { return training_; }
  int64_t validation_size() const { return size() - training_; }

  // Makes batch `draw` of `rank`: `count` images, each drawn from the whole training part. Inputs
  // are the pixels, image after image, and targets the digits.
  void DrawTraining(uint64_t seed, int rank, int64_t draw, int count, Batch* batch) const;
  // Takes images first .. first + count - 1 of the validation part, or fewer at its end.
  void TakeValidation(int64_t first, int64_t count, Batch* batch) const;

  // Returns -sum p log p over the digits of all images, in nats.
  double Entropy() const;

 private:
  Digits() = default;
  void ReadLine(const char* at, const char* end);
  void Append(int64_t image, Batch* batch) const;

  std::vector<uint8_t> pixels_, labels_;
  int64_t training_ = 0;
};

}  // namespace trainer
