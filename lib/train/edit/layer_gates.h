// Records which job of the worker exchanges each layer, and waits for these jobs. All gathers wait
// here (LayerGate), and so does entrain_edit_wait_layer. The worker may exchange up to `prefetch`
// layers beyond the last layer for which the caller has waited. If `prefetch` is 0, a layer is
// exchanged while the caller waits for it.
//
// A turn is the job that exchanges one layer of a round (exchange_round.h):
//
//   Begin           posts the jobs of all turns; turns 0 .. prefetch - 1 may begin
//   Expect(layer)   the turns up to the layer's turn may begin, and `prefetch` further turns
//
// Thread safety: one thread at a time. Callbacks of WhenOpen and WhenOver may run on the worker's
// thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

#include "lib/train/edit/exchange_results.h"
#include "lib/train/edit/exchange_round.h"
#include "lib/train/shard/layer_gather.h"
#include "lib/train/worker/worker.h"

namespace entrain {

class LayerGates final : public LayerGate {
 public:
  // `worker` and `error` must outlive this object. `error` is the first error of the EDiT object.
  LayerGates(Worker& worker, const FirstError& error, int layers, int prefetch)
      : worker_(worker),
        error_(error),
        prefetch_(prefetch),
        jobs_(static_cast<size_t>(layers), 0),
        waited_(static_cast<size_t>(layers), true) {}

  // From now on, the layers of this round wait for this round. `post_turn` must post the job of the
  // round's next turn and return the job's number.
  void Begin(std::shared_ptr<ExchangeRound> round, absl::FunctionRef<uint64_t()> post_turn);
  absl::Status CheckLayer(int layer) const;
  // Returns the first layer whose exchange is under way. Returns -1 if there is none, or after an
  // error.
  int FirstPending() const;
  // Returns the first layer of the round for which the caller has neither waited nor asked to be
  // told. Returns -1 if there is none, or after an error. Such a layer may have been used while it
  // was exchanged, also if its exchange is over by now.
  int FirstWithoutWait() const;
  // Returns the first layer that the worker must not begin yet; -1 if there is none.
  int FirstHeldBack() const;
  // Calls `then` once when the exchange of the layer is over, with the status that Hold would
  // return.
  void WhenOver(int layer, Worker::Continuation then);
  // Blocks until the exchange of the layer is over. Returns `error` if it is set.
  absl::Status Hold(int layer);
  // Returns the total time that WaitOpen has blocked.
  uint64_t waited_ns() const { return waited_ns_; }

  // Returns the job of the layer's last exchange; 0: none.
  uint64_t JobOf(int layer) const { return jobs_[static_cast<size_t>(layer)]; }

  // LayerGate
  void WhenOpen(int layer, absl::AnyInvocable<void(const absl::Status&)> then) override;
  void Expect(int layer) override;
  absl::Status WaitOpen(int layer) override;

 private:
  Worker& worker_;
  const FirstError& error_;
  const int prefetch_;
  std::shared_ptr<ExchangeRound> round_;  // the round of the last Begin; null: none
  std::vector<uint64_t> jobs_;            // by layer: the job of its last exchange; 0: none
  std::vector<bool> waited_;              // by layer: see FirstWithoutWait
  uint64_t waited_ns_ = 0;
};

}  // namespace entrain
