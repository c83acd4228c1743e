#include "lib/engine/express.h"

#include <cstring>

namespace entrain {

Express::Express(const Plan& plan, const Call& call, const Descriptor& descriptor,
                 const Wiring& wiring, const Kernels& kernels, std::byte* scratch)
    : plan_(plan),
      wiring_(wiring),
      descriptor_(descriptor),
      binding_(plan, call, kernels),
      lane_(plan.schedule->lanes[0]),
      scratch_(scratch) {}

bool Express::Run(Engine& engine) {
  crowded_ = engine.crowded();
  InlineBackoff backoff(engine);
  for (; progress_.round < lane_.rounds; ++progress_.round) {
    const uint32_t index = lane_.first_round + progress_.round;
    const Round& round = plan_.schedule->rounds[index];
    if (!SendAll(round)) {
      return false;
    }
    if (plan_.copies_first[index]) {
      binding_.RunOps(scratch_, round);
      progress_.ops_done = true;
    }
    if (!ReceiveAll(round, backoff)) {
      Keep();
      return false;
    }
    if (!progress_.ops_done) {
      if (!progress_.lent.empty() && !plan_.ops_before_sends[index]) {
        Keep();  // the endpoint is asked again
        if (!TakeBackAll(round, backoff)) {
          return false;
        }
      }
      binding_.RunOps(scratch_, round, 0, lent_);
      lent_.clear();
      progress_.ops_done = true;
    }
    if (!TakeBackAll(round, backoff)) {
      return false;
    }
    progress_.ops_done = false;
    progress_.done = 0;
  }
  return true;
}

bool Express::SendAll(const Round& round) {
  sends_ = false;
  for (uint32_t t = 0; t < round.transfers; ++t) {
    const Transfer& transfer = plan_.schedule->transfers[round.first_transfer + t];
    if (transfer.direction != Direction::kSend) {
      continue;
    }
    sends_ = true;
    const Bytes data = binding_.Span(scratch_, binding_.PlaceOf(round.first_transfer + t));
    Endpoint& endpoint = *wiring_.endpoints[static_cast<size_t>(transfer.peer)];
    const Envelope envelope = wiring_.EnvelopeTo(transfer.peer, wiring_.LaneOf(0), descriptor_);
    Ticket ticket;
    switch (endpoint.TrySend(envelope, data, &ticket)) {
      case Endpoint::Sent::kCopied:
        progress_.done |= uint64_t{1} << t;
        progress_.bytes_sent += static_cast<int64_t>(data.size());
        break;
      case Endpoint::Sent::kAnnounced:
        progress_.lent.push_back({t, ticket});
        break;
      case Endpoint::Sent::kNo:
        return false;
    }
  }
  return true;
}

bool Express::TakeBackAll(const Round& round, InlineBackoff& backoff) {
  while (!progress_.lent.empty()) {
    const auto [t, ticket] = progress_.lent.back();
    const Transfer& transfer = plan_.schedule->transfers[round.first_transfer + t];
    switch (wiring_.endpoints[static_cast<size_t>(transfer.peer)]->TryTaken(ticket)) {
      case Endpoint::Next::kThis:
        progress_.done |= uint64_t{1} << t;
        progress_.bytes_sent += ticket.bytes;
        progress_.lent.pop_back();
        break;
      case Endpoint::Next::kOther:
        return false;
      case Endpoint::Next::kPart:
      case Endpoint::Next::kNothing:
        if (!backoff.Wait()) {
          return false;
        }
    }
  }
  return true;
}

bool Express::ReceiveAll(const Round& round, InlineBackoff& backoff) {
  const Envelope envelope = wiring_.EnvelopeFrom(wiring_.LaneOf(0), descriptor_);
  // Of an exchange all is needed, and looking for the rest takes from the core that somebody may send it on.
  const bool in_turn = crowded_ && sends_;
  while (true) {
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
        return false;
      }
      missing += next != Endpoint::Next::kThis ? 1 : 0;
      part |= next == Endpoint::Next::kPart;
      if (next == Endpoint::Next::kNothing && in_turn) {
        break;
      }
    }
    if (missing == 0) {
      return true;
    }
    if (part && missing == 1) {  // else another process may need the core for what is missing
      backoff.Expect();
    }
    if (!backoff.Wait()) {
      return false;
    }
  }
}

void Express::Keep() {
  for (const Lent& one : lent_) {
    const Bytes into = binding_.Span(scratch_, one.place);
    std::memcpy(into.data(), one.data, into.size());
  }
  lent_.clear();
}

bool ExpressSend(Engine& engine, const Wiring& wiring, const Descriptor& descriptor, int to,
                 ConstBytes data, Progress* progress) {
  Endpoint& endpoint = *wiring.endpoints[static_cast<size_t>(to)];
  const Envelope envelope = wiring.EnvelopeTo(to, wiring.LaneOf(0), descriptor);
  Ticket ticket;
  const Endpoint::Sent sent = endpoint.TrySend(envelope, data, &ticket);
  if (sent == Endpoint::Sent::kNo) {
    return false;
  }
  if (sent == Endpoint::Sent::kAnnounced) {
    InlineBackoff backoff(engine);
    Endpoint::Next next = endpoint.TryTaken(ticket);
    while (next == Endpoint::Next::kNothing && backoff.Wait()) {
      next = endpoint.TryTaken(ticket);
    }
    if (next != Endpoint::Next::kThis) {
      progress->lent.push_back({0, ticket});
      return false;
    }
  }
  progress->bytes_sent = static_cast<int64_t>(data.size());
  return true;
}

bool ExpressRecv(Engine& engine, const Wiring& wiring, const Descriptor& descriptor, int from,
                 Bytes into, Progress* progress) {
  Endpoint& endpoint = *wiring.endpoints[static_cast<size_t>(from)];
  const Envelope envelope = wiring.EnvelopeFrom(wiring.LaneOf(0), descriptor);
  InlineBackoff backoff(engine);
  while (true) {
    const Endpoint::Next next = endpoint.TryRecv(envelope, into);
    if (next == Endpoint::Next::kThis) {
      progress->bytes_received = static_cast<int64_t>(into.size());
      return true;
    }
    if (next == Endpoint::Next::kPart) {
      backoff.Expect();
    }
    if (next == Endpoint::Next::kOther || !backoff.Wait()) {
      return false;
    }
  }
}

}  // namespace entrain
