#include "examples/trainer/evaluate.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "examples/trainer/random.h"

namespace trainer {
namespace {

constexpr int64_t kPromptBytes = 32;

// A byte drawn from p^(1 / temperature), normalised.
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

// The start of a line some way into the validation part.
std::string DefaultPrompt(const Text& text) {
  const auto bytes = text.ValidationBytes(0, 4096);
  const auto line = std::find(bytes.begin(), bytes.end(), '\n');
  const auto first = line == bytes.end() ? bytes.begin() : line + 1;
  return {first, first + std::min<int64_t>(kPromptBytes, bytes.end() - first)};
}

}  // namespace

double ValidationLoss(const Options& options, const Text& text, Session* session,
                      ShardedModel* model, Method* method, Pass* pass) {
  const int rows = options.batch_size;
  const int64_t ranks = session->ranks();
  const int64_t batches = options.val_batches;
  double sums[2] = {0.0, 0.0};  // loss, batches
  Batch batch;
  // Every rank runs as many passes, since it holds a part of its replica's parameters; some may not
  // count.
  for (int64_t turn = 0; turn < (batches + ranks - 1) / ranks; ++turn) {
    const int64_t number = turn * ranks + session->rank();
    text.TakeValidation(batches * rows, number * rows, rows, options.model.length, &batch);
    pass->SetBatch(batch.inputs.data(), batch.targets.data());
    method->BeginForward(false, true);
    model->Forward(pass, [method](int layer) { method->WaitLayer(layer); });
    if (number < batches) {
      sums[0] += pass->loss();
      sums[1] += 1.0;
    }
  }
  session->SumOverAll(sums, 2);
  return sums[0] / sums[1];
}

std::string Sample(const Options& options, const Text& text,
                   const std::vector<std::vector<float>>& layers) {
  const auto length = static_cast<size_t>(options.model.length);
  Pass pass(options.model, 1);
  Random random(Mix(options.seed, 0x5A));
  std::string out = options.prompt.empty() ? DefaultPrompt(text) : options.prompt;
  const size_t end = out.size() + static_cast<size_t>(options.sample);
  std::vector<uint8_t> window(length);
  while (out.size() < end) {
    const size_t seen = std::min(out.size(), length);
    std::memcpy(window.data(), out.data() + out.size() - seen, seen);
    // What follows the text in the window is not seen by it, and the targets do not matter.
    pass.SetBatch(window.data(), window.data());
    for (size_t layer = 0; layer < layers.size(); ++layer) {
      pass.Forward(static_cast<int>(layer), layers[layer].data());
    }
    const float* p = pass.probabilities(static_cast<int>(seen) - 1);
    out.push_back(static_cast<char>(Draw(p, options.sample_temperature, &random)));
  }
  return out;
}

}  // namespace trainer
