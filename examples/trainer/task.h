// What is learned: a model, cut into layers that each have one flat parameter vector, and the
// examples that it learns from. Two of them: a language model on text, and a small network on
// images of digits.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "examples/trainer/device.h"
#include "examples/trainer/flags.h"
#include "examples/trainer/pass.h"

namespace trainer {

// Any thread: nothing changes after it is made.
class Task {
 public:
  virtual ~Task() = default;

  virtual int layers() const = 0;
  // Elements of a layer's flat parameters, and of all layers.
  virtual int64_t layer_size(int layer) const = 0;
  int64_t parameters() const;
  // The starting parameters of a layer: a function of the model, the layer and --seed only.
  virtual void InitialiseLayer(int layer, float* params) const = 0;
  // For batches of this task.
  virtual std::unique_ptr<Pass> NewPass(Device* device) const = 0;

  // Batch number `draw` of `rank`, --batch-size large: a function of these and --seed only.
  virtual void DrawTraining(int rank, int64_t draw, Batch* batch) const = 0;
  // Batches 0 .. validation_batches() - 1 are the validation subset; the last one may be small.
  virtual int64_t validation_batches() const = 0;
  virtual void TakeValidation(int64_t number, Batch* batch) const = 0;

  // What a loss is the mean over: "byte", "image".
  virtual const char* unit() const = 0;
  // -sum p log p over what there is to predict, in nats: the loss of counting alone.
  virtual double Entropy() const = 0;
  // What the model writes when asked (--sample); "" where it writes nothing.
  virtual std::string Sample(const std::vector<std::vector<float>>& layers) const = 0;
};

// That of --task, with its data. Throws Error naming the file and the reason.
std::unique_ptr<Task> MakeTask(const Options& options);

}  // namespace trainer
