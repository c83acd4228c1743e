#include "lib/engine/express.h"

namespace entrain {
Express::Express(const Plan& plan, const Call& call, const Wiring& wiring, const Kernels& kernels,
                 std::byte* scratch)
    : plan_(plan),
      wiring_(wiring),
      descriptor_(call.descriptor()),
      binding_(plan, call, kernels),
      lane_(plan.schedule->lanes[0]),
      scratch_(scratch) {}

bool Express::Run(Engine& engine) {
  Patience patience(engine);
  for (; progress_.round < lane_.rounds; ++progress_.round) {
    const Round& round = plan_.schedule->rounds[lane_.first_round + progress_.round];
    if (!SendAll(round) || !ReceiveAll(round, patience)) {
      return false;
    }
    binding_.RunOps(scratch_, round);
    progress_.done = 0;
  }
  return true;
}

template <typename Do>
bool Express::ForEach(const Round& round, Direction direction, Do&& each) {
  for (uint32_t t = 0; t < round.transfers; ++t) {
    const uint64_t bit = uint64_t{1} << t;
    const Transfer& transfer = plan_.schedule->transfers[round.first_transfer + t];
    if (transfer.direction != direction || (progress_.done & bit) != 0) {
      continue;
    }
    if (!each(*wiring_.endpoints[static_cast<size_t>(transfer.peer)], transfer.peer,
              binding_.Span(scratch_, plan_.transfers[round.first_transfer + t]), bit)) {
      return false;
    }
  }
  return true;
}

bool Express::SendAll(const Round& round) {
  return ForEach(
      round, Direction::kSend, [&](Endpoint& endpoint, int peer, Bytes data, uint64_t bit) {
        if (!endpoint.TrySend(wiring_.EnvelopeTo(peer, wiring_.LaneOf(0), descriptor_), data)) {
          return false;
        }
        progress_.done |= bit;
        progress_.bytes_sent += static_cast<int64_t>(data.size());
        return true;
      });
}

bool Express::ReceiveAll(const Round& round, Patience& patience) {
  const Envelope envelope = wiring_.EnvelopeFrom(wiring_.LaneOf(0), descriptor_);
  bool missing = true;
  while (missing) {
    missing = false;
    const bool go_on =
        ForEach(round, Direction::kRecv, [&](Endpoint& endpoint, int, Bytes into, uint64_t bit) {
          const Endpoint::Next next = endpoint.TryRecv(envelope, into);
          if (next == Endpoint::Next::kThis) {
            progress_.done |= bit;
            progress_.bytes_received += static_cast<int64_t>(into.size());
          }
          missing |= next == Endpoint::Next::kNothing;
          return next != Endpoint::Next::kOther;
        });
    if (!go_on || (missing && !patience.Wait())) {
      return false;
    }
  }
  return true;
}

}  // namespace entrain
