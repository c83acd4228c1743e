#include "examples/trainer/train.h"

#include "examples/trainer/channel_run.h"
#include "examples/trainer/replica_run.h"

namespace trainer {

void Train(const Options& options, const Task& task, Session* session) {
  if (options.by_channel()) {
    TrainByChannel(options, task, session);
  } else {
    TrainReplicas(options, task, session);
  }
}

}  // namespace trainer
