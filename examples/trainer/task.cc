#include "examples/trainer/task.h"

#include <algorithm>

#include "examples/trainer/data.h"
#include "examples/trainer/digits.h"
#include "examples/trainer/mlp.h"
#include "examples/trainer/model.h"
#include "examples/trainer/sample.h"

namespace trainer {
namespace {

class TextTask final : public Task {
 public:
  explicit TextTask(const Options& options) : options_(options), text_(Text::Load(options.data)) {
    text_.CheckLength(options.model.length, options.conditions.text_parts);
  }

  int layers() const override { return LayerCount(options_.model); }
  int64_t layer_size(int layer) const override { return LayerSize(options_.model, layer); }
  void InitialiseLayer(int layer, float* params) const override {
    trainer::InitialiseLayer(options_.model, layer, options_.seed, params);
  }
  std::unique_ptr<Pass> NewPass() const override {
    return std::make_unique<LanguagePass>(options_.model, options_.batch_size);
  }

  void DrawTraining(int rank, int replica, int64_t draw, Batch* batch) const override {
    const int64_t parts = replica < 0 ? 1 : options_.conditions.text_parts;
    const int64_t part = std::max(replica, 0) % parts;
    text_.DrawTraining(options_.seed, rank, draw, options_.batch_size, options_.model.length, batch,
                       part, parts);
  }
  int64_t validation_batches() const override { return options_.val_batches; }
  void TakeValidation(int64_t number, Batch* batch) const override {
    const int rows = options_.batch_size;
    text_.TakeValidation(options_.val_batches * rows, number * rows, rows, options_.model.length,
                         batch);
  }

  const char* unit() const override { return "byte"; }
  double Entropy() const override { return text_.UnigramEntropy(); }
  std::string Sample(const std::vector<std::vector<float>>& layers) const override {
    return options_.sample > 0 ? trainer::Sample(options_, text_, layers) : "";
  }

 private:
  const Options options_;
  const Text text_;
};

class DigitsTask final : public Task {
 public:
  explicit DigitsTask(const Options& options)
      : options_(options),
        config_{.hidden = options.model.hidden, .layers = options.model.layers},
        digits_(Digits::Load(options.data)) {}

  int layers() const override { return config_.layers + 1; }
  int64_t layer_size(int layer) const override { return config_.layer_size(layer); }
  void InitialiseLayer(int layer, float* params) const override {
    trainer::InitialiseLayer(config_, layer, options_.seed, params);
  }
  std::unique_ptr<Pass> NewPass() const override {
    return std::make_unique<MlpPass>(config_, options_.batch_size);
  }

  void DrawTraining(int rank, int /*replica*/, int64_t draw, Batch* batch) const override {
    digits_.DrawTraining(options_.seed, rank, draw, options_.batch_size, batch);
  }
  // Returns the number of batches that all validation images make.
  int64_t validation_batches() const override {
    return (digits_.validation_size() + options_.batch_size - 1) / options_.batch_size;
  }
  void TakeValidation(int64_t number, Batch* batch) const override {
    digits_.TakeValidation(number * options_.batch_size, options_.batch_size, batch);
  }

  const char* unit() const override { return "image"; }
  double Entropy() const override { return digits_.Entropy(); }
  std::string Sample(const std::vector<std::vector<float>>&) const override { return ""; }

 private:
  const Options options_;
  const MlpConfig config_;
  const Digits digits_;
};

}  // namespace

int64_t Task::parameters() const {
  int64_t sum = 0;
  for (int layer = 0; layer < layers(); ++layer) {
    sum += layer_size(layer);
  }
  return sum;
}

std::unique_ptr<Task> MakeTask(const Options& options) {
  if (options.task == "digits") {
    return std::make_unique<DigitsTask>(options);
  }
  return std::make_unique<TextTask>(options);
}

}  // namespace trainer
