#include "examples/trainer/evaluate.h"

namespace trainer {

Validation Validate(const Task& task, Session* session, Pass* pass,
                    const std::function<void(Pass*)>& forward) {
  session->LookAround();
  const int64_t ranks = session->ranks_left();
  const int64_t batches = task.validation_batches();
  double sums[3] = {0.0, 0.0, 0.0};  // loss, hits, targets
  Batch batch;
  // Every rank runs the same number of passes, because each rank holds a part of its replica's
  // parameters. A pass for which no batch is left does not count.
  for (int64_t turn = 0; turn < (batches + ranks - 1) / ranks; ++turn) {
    const int64_t number = turn * ranks + session->rank_left();
    task.TakeValidation(number % batches, &batch);
    pass->SetBatch(batch);
    forward(pass);
    if (number < batches) {
      const auto targets = static_cast<double>(batch.targets.size());
      sums[0] += pass->loss() * targets;
      sums[1] += static_cast<double>(pass->hits());
      sums[2] += targets;
    }
  }
  session->SumOverAll(sums, 3);
  return {.loss = sums[0] / sums[2], .accuracy = sums[1] / sums[2]};
}

void Judge(const Options& options, const Task& task, Session* session, Pass* pass,
           const Validation& validation, const std::vector<std::vector<float>>& layers,
           Summary* summary) {
  summary->params = task.parameters();
  summary->val_loss = validation.loss;
  summary->val_accuracy = validation.accuracy;
  summary->unigram_entropy = task.Entropy();
  const auto sum = [session](double* values, int count) { session->SumOverAll(values, count); };
  summary->sharpness = LossRises(options.sharpness_rho, task,
                                 {session->rank_left(), session->ranks_left(), sum}, pass, layers);
  if (session->rank_left() == 0) {
    summary->sample = task.Sample(layers);
  }
}

}  // namespace trainer
