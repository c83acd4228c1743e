// Which exchange a layer waits for: the gate of its gathers, and what wait_layer waits for. The worker is allowed to come
// `prefetch` layers further than the layer last waited for; 0: each layer is exchanged in its own wait.
//
//   Begin           turns 0 .. prefetch - 1 may begin; the jobs of all turns are posted
//   Expect(layer)   turns up to the layer's, and `prefetch` more
//
// Thread safety: one thread at a time, but for WaitOver; what WhenOpen and WhenOver call is called by the worker's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

#include "lib/train/exchange_round.h"
#include "lib/train/first_error.h"
#include "lib/train/layer_gate.h"
#include "lib/train/worker.h"

namespace entrain {

class LayerGates final : public LayerGate {
 public:
  // `worker` and `error`, the first of the object, outlive this.
  LayerGates(Worker& worker, const FirstError& error, int layers, int prefetch)
      : worker_(worker),
        error_(error),
        prefetch_(prefetch),
        jobs_(static_cast<size_t>(layers), 0) {}

  // A round that layers wait for. `post_turn` posts the job of its next turn, and gives the number.
  void Begin(std::shared_ptr<ExchangeRound> round, absl::FunctionRef<uint64_t()> post_turn);
  absl::Status CheckLayer(int layer) const;
  // The first layer whose exchange is under way, on a device and nobody has waited for; -1: none, or there was an error.
  int FirstPending() const;
  // The layer that the worker may not take yet; -1: none.
  int FirstHeldBack() const;
  // Calls `then` once when the exchange is over, with what Hold would return; on a device too.
  void WhenOver(int layer, Worker::Continuation then);
  // What the caller does next comes after the exchange: blocks, or the caller's stream waits. Returns the object's first error.
  absl::Status Hold(int layer);
  // The time that callers have spent in WaitOpen.
  uint64_t waited_ns() const { return waited_ns_; }

  // LayerGate
  void WhenOpen(int layer, absl::AnyInvocable<void(const absl::Status&)> then) override;
  void Expect(int layer) override;
  absl::Status WaitOpen(int layer) override;
  uint64_t BegunSoFar(int layer) const override { return jobs_[static_cast<size_t>(layer)]; }
  absl::Status WaitOver(int layer, uint64_t begun) override;

 private:
  Worker& worker_;
  const FirstError& error_;
  const int prefetch_;
  std::shared_ptr<ExchangeRound> round_;  // the last that layers wait for, or had to
  std::vector<uint64_t> jobs_;  // by layer: the job that ends its last exchange; 0: there was none
  uint64_t waited_ns_ = 0;
};

}  // namespace entrain
