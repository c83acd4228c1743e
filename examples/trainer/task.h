// The task to learn: a model, and its examples. The model is divided into layers, and each layer
// has one flat parameter vector. There are two tasks: a language model on text, and a small network
// on images of digits.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "examples/trainer/flags.h"
#include "examples/trainer/pass.h"

namespace trainer {

// Thread safety: any thread, because nothing changes after construction.
class Task {
 public:
  virtual ~Task() = default;

  virtual int layers() const = 0;
  // Return the number of elements of a layer's flat parameters, and of all layers.
  virtual int64_t layer_size(int layer) const = 0;
  int64_t parameters() const;
  // Fills in the starting parameters of a layer, which are a function of the model, the layer and
  // --seed only.
  virtual void InitialiseLayer(int layer, float* params) const = 0;
  // Makes a pass for batches of this task.
  virtual std::unique_ptr<Pass> NewPass() const = 0;

  // Makes batch `draw` of `rank`, which is in `replica`, with --batch-size examples. It is a function
  // of (rank, draw), --seed and, with --text-parts, `replica`; below 0: the whole text.
  virtual void DrawTraining(int rank, int replica, int64_t draw, Batch* batch) const = 0;
  // Batches 0 .. validation_batches() - 1 are the validation subset. The last one may be small.
  virtual int64_t validation_batches() const = 0;
  virtual void TakeValidation(int64_t number, Batch* batch) const = 0;

  // Returns the unit over which a loss is a mean: "byte", "image".
  virtual const char* unit() const = 0;
  // Returns -sum p log p over the targets, in nats: the loss of a model that knows only their
  // frequencies.
  virtual double Entropy() const = 0;
  // Returns text that the model writes (--sample), or "" if the task has none.
  virtual std::string Sample(const std::vector<std::vector<float>>& layers) const = 0;
};

// Makes the task of --task, with its data. Throws Error naming the file and the reason.
std::unique_ptr<Task> MakeTask(const Options& options);

}  // namespace trainer
