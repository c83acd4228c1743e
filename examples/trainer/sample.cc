#include "examples/trainer/sample.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "examples/trainer/model.h"
#include "examples/trainer/random.h"

namespace trainer {
namespace {

constexpr int64_t kPromptBytes = 32;

// Draws a byte from p^(1 / temperature), normalised.
uint8_t Draw(const float* p, double temperature, Random* random) {
  double weights[kVocabulary];
  double sum = 0.0;
  for (int i = 0; i < kVocabulary; ++i) {
    weights[i] = std::pow(static_cast<double>(p[i]), 1.0 / temperature);
    sum += weights[i];
  }
  double left = random->Uniform() * sum;
  for (int i = 0; i < kVocabulary; ++i) {
    left -= weights[i];
    if (left < 0.0) {
      return static_cast<uint8_t>(i);
    }
  }
  return static_cast<uint8_t>(std::max_element(p, p + kVocabulary) - p);
}

// Returns the beginning of the second line of the validation part.
std::string DefaultPrompt(const Text& text) {
  const auto bytes = text.ValidationBytes(0, 4096);
  const auto line = std::find(bytes.begin(), bytes.end(), '\n');
  const auto first = line == bytes.end() ? bytes.begin() : line + 1;
  return {first, first + std::min<int64_t>(kPromptBytes, bytes.end() - first)};
}

}  // namespace

std::string Sample(const Options& options, const Text& text,
                   const std::vector<std::vector<float>>& layers) {
  const auto length = static_cast<size_t>(options.model.length);
  LanguagePass pass(options.model, 1);
  Random random(Mix(options.seed, 0x5A));
  std::string out = options.prompt.empty() ? DefaultPrompt(text) : options.prompt;
  const size_t end = out.size() + static_cast<size_t>(options.sample);
  Batch window{std::vector<uint8_t>(length), std::vector<uint8_t>(length)};
  while (out.size() < end) {
    const size_t seen = std::min(out.size(), length);
    std::memcpy(window.inputs.data(), out.data() + out.size() - seen, seen);
    // The model does not see the bytes after the text in the window, and the targets do not matter.
    pass.SetBatch(window);
    for (size_t layer = 0; layer < layers.size(); ++layer) {
      pass.Forward(static_cast<int>(layer), layers[layer].data());
    }
    const float* p = pass.probabilities(static_cast<int>(seen) - 1);
    out.push_back(static_cast<char>(Draw(p, options.sample_temperature, &random)));
  }
  return out;
}

}  // namespace trainer
