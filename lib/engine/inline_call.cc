#include "lib/engine/inline_call.h"

#include <cstring>

namespace entrain {
namespace {

InlineEnd Wait(InlineBackoff& backoff) {
  return backoff.Wait()     ? InlineEnd::kDone
         : backoff.wanted() ? InlineEnd::kEngineWanted
                            : InlineEnd::kWaitedLong;
}

}  // namespace

InlineCall::InlineCall(const Plan& plan, const Call& call, const Descriptor& descriptor,
                       const Wiring& wiring, const Kernels& kernels, std::byte* scratch)
    : plan_(plan),
      wiring_(wiring),
      descriptor_(descriptor),
      binding_(plan, call, kernels),
      lane_(plan.schedule->lanes[0]),
      scratch_(scratch) {}

InlineEnd InlineCall::Run(DriverSeat& seat) {
  crowded_ = seat.crowded();
  InlineBackoff backoff(seat);
  for (; progress_.round < lane_.rounds; ++progress_.round) {
    const InlineEnd end = RunRound(lane_.first_round + progress_.round, backoff);
    if (end != InlineEnd::kDone) {
      return end;
    }
    progress_.ops_done = false;
    progress_.done = 0;
  }
  return InlineEnd::kDone;
}

InlineEnd InlineCall::RunRound(uint32_t index, InlineBackoff& backoff) {
  const Round& round = plan_.schedule->rounds[index];
  if (const InlineEnd end = SendAll(round); end != InlineEnd::kDone) {
    return end;
  }
  if (const InlineEnd end = ReceiveAll(round, backoff); end != InlineEnd::kDone) {
    Keep();
    return end;
  }
  if (round.ops > 0) {
    if (!progress_.lent.empty() && !plan_.ops_before_sends[index]) {
      // AwaitTaken polls the endpoints again, which may overwrite the received messages.
      Keep();
      if (const InlineEnd end = AwaitTaken(round, backoff); end != InlineEnd::kDone) {
        return end;
      }
    }
    binding_.RunOps(scratch_, round, 0, lent_);
    progress_.ops_done = true;
  }
  lent_.clear();
  return AwaitTaken(round, backoff);
}

InlineEnd InlineCall::SendAll(const Round& round) {
  sends_ = 0;
  for (uint32_t t = 0; t < round.transfers; ++t) {
    const Transfer& transfer = plan_.schedule->transfers[round.first_transfer + t];
    if (transfer.direction != Direction::kSend) {
      continue;
    }
    ++sends_;
    const Bytes data = binding_.Span(scratch_, binding_.PlaceOf(round.first_transfer + t));
    Endpoint& endpoint = *wiring_.endpoints[static_cast<size_t>(transfer.peer)];
    const Envelope envelope = wiring_.EnvelopeTo(transfer.peer, wiring_.LaneOf(0), descriptor_);
    SendRequest request;
    switch (endpoint.TrySend(envelope, data, &request)) {
      case Endpoint::Sent::kCopied:
        progress_.done |= uint64_t{1} << t;
        progress_.bytes_sent += static_cast<int64_t>(data.size());
        break;
      case Endpoint::Sent::kRtsSent:
        progress_.lent.push_back({t, request});
        break;
      case Endpoint::Sent::kNo:
        return InlineEnd::kNoRoom;
    }
  }
  return InlineEnd::kDone;
}

InlineEnd InlineCall::AwaitTaken(const Round& round, InlineBackoff& backoff) {
  while (!progress_.lent.empty()) {
    const auto [t, request] = progress_.lent.back();
    const Transfer& transfer = plan_.schedule->transfers[round.first_transfer + t];
    switch (wiring_.endpoints[static_cast<size_t>(transfer.peer)]->TryTaken(request)) {
      case Endpoint::Next::kThis:
        progress_.done |= uint64_t{1} << t;
        progress_.bytes_sent += request.bytes;
        progress_.lent.pop_back();
        break;
      case Endpoint::Next::kOther:
        return InlineEnd::kOtherFirst;
      case Endpoint::Next::kPart:
      case Endpoint::Next::kNothing:
        if (const InlineEnd end = Wait(backoff); end != InlineEnd::kDone) {
          return end;
        }
    }
  }
  return InlineEnd::kDone;
}

InlineEnd InlineCall::ReceiveAll(const Round& round, InlineBackoff& backoff) {
  const Envelope envelope = wiring_.EnvelopeFrom(wiring_.LaneOf(0), descriptor_);
  // A round that also sends cannot continue until all its messages have arrived. If ranks share
  // cores and a message is missing, do not look for the other messages: that would use the core
  // that a peer needs to send the missing one.
  const bool in_turn = crowded_ && sends_ > 0;
  while (sends_ < round.transfers) {
    int missing = 0;
    bool part = false;
    for (uint32_t t = 0; t < round.transfers; ++t) {
      const uint64_t bit = uint64_t{1} << t;
      const uint32_t index = round.first_transfer + t;
      const Transfer& transfer = plan_.schedule->transfers[index];
      if (transfer.direction != Direction::kRecv || (progress_.done & bit) != 0) {
        continue;
      }
      Endpoint& endpoint = *wiring_.endpoints[static_cast<size_t>(transfer.peer)];
      const Bytes into = binding_.Span(scratch_, binding_.PlaceOf(index));
      const std::byte* data = into.data();
      const Endpoint::Next next =
          endpoint.TryRecv(envelope, into, plan_.read_once[index] ? &data : nullptr);
      if (next == Endpoint::Next::kThis) {
        if (data != into.data() && !into.empty()) {
          lent_.push_back({binding_.PlaceOf(index), data});
        }
        progress_.done |= bit;
        progress_.bytes_received += static_cast<int64_t>(into.size());
      } else if (next == Endpoint::Next::kOther) {
        return InlineEnd::kOtherFirst;
      }
      missing += next != Endpoint::Next::kThis ? 1 : 0;
      part |= next == Endpoint::Next::kPart;
      if (next == Endpoint::Next::kNothing && in_turn) {
        break;
      }
    }
    if (missing == 0) {
      break;
    }
    // The rest of the last message is being written, so this thread keeps the core. In all other
    // cases another process may need the core to send a message.
    if (part && missing == 1) {
      backoff.Expect();
    }
    if (const InlineEnd end = Wait(backoff); end != InlineEnd::kDone) {
      return end;
    }
  }
  return InlineEnd::kDone;
}

void InlineCall::Keep() {
  for (const Lent& one : lent_) {
    const Bytes into = binding_.Span(scratch_, one.place);
    std::memcpy(into.data(), one.data, into.size());
  }
  lent_.clear();
}

}  // namespace entrain
