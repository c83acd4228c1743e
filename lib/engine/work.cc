#include "lib/engine/work.h"

#include "lib/engine/engine.h"

namespace entrain {

bool Work::Wait(Deadline give_up, bool background) {
  return done() || (engine_ != nullptr && engine_->Await(*this, give_up, background));
}

bool Work::Test() {
  if (!done() && engine_ != nullptr) {
    engine_->PollOnce();
  }
  return done();
}

void Work::Finish(absl::Status status) {
  if (done()) {
    return;
  }
  status_ = std::move(status);
  // A waiter may free the work as soon as done_ is set, so the engine is remembered before; the
  // work's address is only compared afterwards. Release: pairs with the acquire in done().
  Engine* engine = engine_;
  const Work* self = this;
  done_.store(1, std::memory_order_release);
  if (engine != nullptr) {
    engine->WakeWaiters(self);
  }
}

}  // namespace entrain
