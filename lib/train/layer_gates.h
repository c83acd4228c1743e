// Knows which exchange each layer waits for. LayerGates is the gate of all gathers, and
// entrain_edit_wait_layer waits through it. The worker may work up to `prefetch` layers ahead of
// the layer last waited for. If `prefetch` is 0, each layer is exchanged while the caller waits for
// it.
//
//   Begin           turns 0 .. prefetch - 1 may begin; the jobs of all turns are posted
//   Expect(layer)   turns up to the layer's, and `prefetch` more
//
// Thread safety: one thread at a time, except WaitOver. Callbacks of WhenOpen and WhenOver run on
// the worker's thread.
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
  // `worker` and `error` must outlive this object. `error` is the first error of the EDiT object.
  LayerGates(Worker& worker, const FirstError& error, int layers, int prefetch)
      : worker_(worker),
        error_(error),
        prefetch_(prefetch),
        jobs_(static_cast<size_t>(layers), 0) {}

  // Makes layers wait for this round. `post_turn` posts the job of the round's next turn and
  // returns its number.
  void Begin(std::shared_ptr<ExchangeRound> round, absl::FunctionRef<uint64_t()> post_turn);
  absl::Status CheckLayer(int layer) const;
  // Returns the first layer whose exchange is under way; -1 if there is none, or after an error. On
  // a device, an exchange does not count if the caller's stream already waits for it.
  int FirstPending() const;
  // Returns the first layer that the worker must not begin yet; -1 if there is none.
  int FirstHeldBack() const;
  // Calls `then` once when the exchange is over, with the status that Hold would return. On a
  // device too, `then` is called only when the exchange itself is over.
  void WhenOver(int layer, Worker::Continuation then);
  // Orders the caller's next work behind the exchange: blocks, or makes the caller's stream wait.
  // Returns `error` if it is set.
  absl::Status Hold(int layer);
  // Returns the time that callers have spent in WaitOpen.
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
  std::shared_ptr<ExchangeRound> round_;  // the last round for which layers wait or waited
  std::vector<uint64_t> jobs_;            // by layer: last job of its last exchange; 0: none
  uint64_t waited_ns_ = 0;
};

}  // namespace entrain
