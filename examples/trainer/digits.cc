#include "examples/trainer/digits.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "examples/trainer/error.h"
#include "examples/trainer/file.h"
#include "examples/trainer/random.h"

namespace trainer {
namespace {

constexpr int64_t kValidationShare = 5;  // one image in five

bool Blank(char c) {
  return c == ' ' || c == '\t' || c == '\r';
}

}  // namespace

Digits Digits::Load(const std::string& path) {
  const std::vector<uint8_t> bytes = ReadFile(path);
  const char* at = reinterpret_cast<const char*>(bytes.data());
  const char* const end = at + bytes.size();
  Digits digits;
  for (int64_t line = 1; at != end; ++line) {
    const char* const stop = std::find(at, end, '\n');
    try {
      digits.ReadLine(at, stop);
    } catch (const Error& error) {
      FailToRead(path, "line " + std::to_string(line) + " " + error.what());
    }
    at = stop == end ? end : stop + 1;
  }
  digits.training_ = digits.size() - digits.size() / kValidationShare;
  if (digits.validation_size() == 0) {
    FailToRead(path, "it has " + std::to_string(digits.size()) + " images, and needs " +
                         std::to_string(kValidationShare));
  }
  return digits;
}

// Throws Error if the line is malformed. The text of the error completes a sentence about the line.
void Digits::ReadLine(const char* at, const char* end) {
  int count = 0;
  for (at = std::find_if_not(at, end, Blank); at != end; at = std::find_if_not(at, end, Blank)) {
    const char* const stop = std::find_if(at, end, Blank);
    const int most = count < kPixels ? kDarkest : kDigits - 1;
    int value = 0;
    const auto parsed = std::from_chars(at, stop, value);
    if (count <= kPixels &&
        (parsed.ec != std::errc() || parsed.ptr != stop || value < 0 || value > most)) {
      throw Error("has '" + std::string(at, std::min<size_t>(stop - at, 20)) + "' as its " +
                  (count < kPixels ? "pixel " + std::to_string(count + 1) : "digit") +
                  ", not a whole number from 0 to " + std::to_string(most));
    }
    (count < kPixels ? pixels_ : labels_).push_back(static_cast<uint8_t>(value));
    ++count;
    at = stop;
  }
  if (count != kPixels + 1) {
    throw Error("has " + std::to_string(count) + " numbers, not " + std::to_string(kPixels) +
                " pixels and a digit");
  }
}

void Digits::Append(int64_t image, Batch* batch) const {
  const auto first = pixels_.begin() + image * kPixels;
  batch->inputs.insert(batch->inputs.end(), first, first + kPixels);
  batch->targets.push_back(labels_[static_cast<size_t>(image)]);
}

void Digits::DrawTraining(uint64_t seed, int rank, int64_t draw, int count, Batch* batch) const {
  *batch = {};
  Random random(Mix(Mix(seed, static_cast<uint64_t>(rank)), static_cast<uint64_t>(draw)));
  for (int i = 0; i < count; ++i) {
    Append(static_cast<int64_t>(random.Below(static_cast<uint64_t>(training_))), batch);
  }
}

void Digits::TakeValidation(int64_t first, int64_t count, Batch* batch) const {
  *batch = {};
  for (int64_t i = first; i < std::min(first + count, validation_size()); ++i) {
    Append(training_ + i, batch);
  }
}

double Digits::Entropy() const {
  return EntropyOf(labels_);
}

}  // namespace trainer
