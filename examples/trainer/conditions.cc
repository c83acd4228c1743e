#include "examples/trainer/conditions.h"

#include <algorithm>
#include <string>
#include <utility>

#include "examples/trainer/error.h"
#include "examples/trainer/random.h"

namespace trainer {
namespace {

// Keys of the random draws here. They differ from the keys with which batches are drawn.
constexpr uint64_t kStragglers = 0x57A6, kLabels = 0x1ABE;

}  // namespace

void Conditions::CheckReplicas() const {
  for (const auto& [flag, replica] :
       {std::pair("--straggler-replica", options_.straggler_replica),
        std::pair("--shuffle-labels-replica", options_.shuffle_labels_replica)}) {
    if (replica >= replicas_) {
      throw Error(std::string(flag) + " " + std::to_string(replica) + " is none of the " +
                  std::to_string(replicas_) + " replicas, which count from 0");
    }
  }
}

std::optional<int> Conditions::Late(int64_t step) const {
  if (options_.straggler == "fixed") {
    return options_.straggler_replica;
  }
  if (options_.straggler == "random") {
    Random random(Mix(Mix(seed_, kStragglers), static_cast<uint64_t>(step)));
    return static_cast<int>(random.Below(static_cast<uint64_t>(replicas_)));
  }
  return std::nullopt;
}

double Conditions::Rest(int64_t step, int replica, double own_s, int64_t parts) const {
  const double part_s = 1e-3 / static_cast<double>(parts);
  const double delay_ms = Late(step) == replica ? options_.straggler_ms : 0.0;
  return std::max(options_.step_ms * part_s - own_s, 0.0) + delay_ms * part_s;
}

bool Conditions::Shuffles(int64_t interval, int replica) const {
  return options_.shuffle_labels_every > 0 && interval > 0 &&
         interval % options_.shuffle_labels_every == 0 &&
         replica == options_.shuffle_labels_replica;
}

void Conditions::Shuffle(int rank, int64_t draw, Batch* batch) const {
  Random random(
      Mix(Mix(Mix(seed_, kLabels), static_cast<uint64_t>(rank)), static_cast<uint64_t>(draw)));
  for (size_t left = batch->targets.size(); left > 1; --left) {
    std::swap(batch->targets[left - 1], batch->targets[random.Below(left)]);
  }
}

}  // namespace trainer
