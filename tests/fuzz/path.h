// The user of an endpoint, for the targets of paths. It acts like the engine: it posts transfers,
// revokes them and closes the endpoint, as the input says. It checks the contract of
// transports/transport.h.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/fuzz/target.h"
#include "transports/packet.h"
#include "transports/transport.h"

namespace entrain::fuzz {

// Few contexts, tags and lengths, so that messages meet receives.
inline constexpr int64_t kSizes[] = {0, 1, 8, 100, 1000, 5000, 20'000, 40'000, 70'000, 300'000};
inline constexpr size_t kSizeCount = std::size(kSizes);

inline Envelope EnvelopeOf(uint8_t choice) {
  const auto context = static_cast<Context>(1 + choice % 2);
  return {
      Tag(context, (choice >> 1) % 16, 0, (choice & 0x20) != 0 ? Tag::kPointToPoint : uint8_t{0}),
      {.kind = CallKind::kSend, .count = 1 + (choice >> 6 & 1)}};
}

// A transfer with memory of its own. The memory is freed as soon as the endpoint may no longer
// touch it, so that a sanitizer sees a later access.
struct Transfer final : Completion {
  Transfer(const Envelope& its_envelope, int64_t its_bytes, bool does_receive)
      : envelope(its_envelope),
        bytes(its_bytes),
        receives(does_receive),
        memory(new std::byte[static_cast<size_t>(its_bytes)]) {
    std::memset(memory.get(), 5, static_cast<size_t>(bytes));
    done = [](Completion* self, const absl::Status& result, int64_t moved) {
      static_cast<Transfer*>(self)->OnDone(result, moved);
    };
  }
  void OnDone(const absl::Status& result, int64_t moved) {
    FUZZ_CHECK(in_poll != nullptr && *in_poll);
    FUZZ_CHECK(++times == 1);
    FUZZ_CHECK(!result.ok() || moved == bytes);
    FUZZ_CHECK(result.ok() || loan.lent == nullptr);
    if (result.ok() && loan.lent != nullptr) {
      for (int64_t i = 0; i < bytes; i += 64) {
        sum += static_cast<uint8_t>(loan.lent[i]);
      }
    }
    memory.reset();
  }

  const Envelope envelope;
  const int64_t bytes;
  const bool receives;
  const bool* in_poll = nullptr;
  std::unique_ptr<std::byte[]> memory;
  Loan loan;
  int times = 0;
  uint64_t sum = 0;
};

class PathUser : public Events {
 public:
  bool Accepts(Context context) override { return context == 1 || context == 2; }
  void OnEarly(Endpoint&, const Envelope& envelope) override {
    FUZZ_CHECK(Accepts(envelope.tag.context()));
  }
  void OnControl(Endpoint&, absl::string_view message) override {
    FUZZ_CHECK(message.size() <= static_cast<size_t>(kMaxControlBytes));
    ++controls;
  }
  void OnLost(Endpoint&, const absl::Status& why) override {
    FUZZ_CHECK(in_poll && !why.ok() && !closed && lost.ok());
    lost = why;
  }

  // Takes one step that the engine may take.
  void Act(Input& in, Endpoint& path) {
    const uint8_t what = in.Byte();
    const uint8_t choice = in.Byte();
    const Envelope envelope = EnvelopeOf(choice);
    const int64_t bytes = kSizes[in.Byte() % kSizeCount];
    if (transfers.size() > 64 && what % 9 < 5) {
      return;
    }
    switch (what % 9) {
      case 0:
      case 1: {
        Transfer& transfer = Add(envelope, bytes, true);
        path.PostRecv(envelope, BytesOf(transfer), &transfer,
                      {.loan = what % 9 == 1 ? &transfer.loan : nullptr});
        break;
      }
      case 2: {
        Transfer& transfer = Add(envelope, bytes, false);
        path.PostSend(envelope, BytesOf(transfer), &transfer);
        break;
      }
      case 3: {
        const std::unique_ptr<std::byte[]> into(new std::byte[static_cast<size_t>(bytes)]);
        (void)path.HasEarly(envelope.tag);
        (void)path.TryRecv(envelope, {into.get(), static_cast<size_t>(bytes)});
        break;
      }
      case 4: {
        Transfer& transfer = Add(envelope, bytes, false);
        SendRequest request;
        if (path.TrySend(envelope, BytesOf(transfer), &request) != Endpoint::Sent::kRtsSent) {
          transfers.pop_back();
        } else {
          if (path.TryTaken(request) == Endpoint::Next::kThis) {
            transfers.pop_back();
          } else {
            path.Await(request, &transfer);
          }
        }
        break;
      }
      case 5:
        path.SendControl(in.Take(choice));
        break;
      case 6:
        (void)path.SendUrgent(in.Take(choice));
        break;
      case 7: {
        const auto context = static_cast<Context>(1 + choice % 2);
        path.Revoke(context, context, absl::AbortedError("revoked"));
        for (const auto& transfer : transfers) {
          if (transfer->envelope.tag.context() == context) {
            transfer->memory.reset();
          }
        }
        break;
      }
      default:
        if (choice % 8 == 0) {
          Close(path);
        }
    }
    ReleaseLoans(path, choice % 4 == 0);
  }
  void Close(Endpoint& path) {
    path.Close(absl::AbortedError("closed"));
    closed = true;
  }
  // Must be called when the path is closed and its transport was polled for the last time.
  void CheckAllDone() {
    for (const auto& transfer : transfers) {
      FUZZ_CHECK(transfer->times == 1);
    }
  }
  void ReleaseLoans(Endpoint& path, bool all) {
    for (const auto& transfer : transfers) {
      if (transfer->loan.lent != nullptr && all) {
        (void)path.Release(&transfer->loan);
        FUZZ_CHECK(transfer->loan.lent == nullptr);
      }
    }
  }

  bool in_poll = false;  // true while the transport is polled
  bool closed = false;
  absl::Status lost;
  int controls = 0;
  std::vector<std::unique_ptr<Transfer>> transfers;

 private:
  Transfer& Add(const Envelope& envelope, int64_t bytes, bool receives) {
    transfers.push_back(std::make_unique<Transfer>(envelope, bytes, receives));
    transfers.back()->in_poll = &in_poll;
    return *transfers.back();
  }
  static Bytes BytesOf(const Transfer& transfer) {
    return {transfer.memory.get(), static_cast<size_t>(transfer.bytes)};
  }
};

// The actions of PathUser::Act, for the scripts of seeds.
enum UserAction : uint8_t {
  kPostRecv = 0,
  kPostRecvLoan = 1,
  kPostSend = 2,
  kTryRecv = 3,
  kTrySend = 4,
  kControl = 5,
  kUrgent = 6,
  kRevoke = 7,
  kClose = 8
};

// Reads a packet header whose fields are mostly plausible. `known`: numbers of messages that the
// other side has given.
inline PacketHeader TakeHeader(Input& in, const std::vector<uint64_t>& known) {
  PacketHeader header;
  header.type = static_cast<PacketType>(in.Byte() % 15);
  const uint8_t which = in.Byte();
  const uint8_t choice = in.Byte();
  const Envelope envelope = EnvelopeOf(choice);
  header.tag = envelope.tag.bits();
  header.descriptor = envelope.descriptor;
  header.bytes = kSizes[in.Byte() % kSizeCount];
  header.message = which % 4 == 0 || known.empty() ? in.Byte() : known[in.Byte() % known.size()];
  if ((which & 4) != 0) {
    header.streams = in.Byte();
  }
  if ((which & 8) != 0) {
    header.credit = in.Number<uint32_t>();
  }
  if ((which & 16) != 0) {
    header.bytes = in.Number<int64_t>();
  }
  if ((which & 32) != 0) {
    header.tag = in.Number<uint64_t>();
  }
  if ((which & 64) != 0) {
    header.version = in.Byte();
  }
  return header;
}

// Appends the bytes to a script that TakeHeader reads as a plain packet of this type.
inline Script& PutHeader(Script& script, PacketType type, int choice, int size, int message,
                         bool known = false, int streams = 0) {
  script.Byte(static_cast<int>(type))
      .Byte((known ? 1 : 0) | (streams != 0 ? 4 : 0))
      .Byte(choice)
      .Byte(size)
      .Byte(message);
  return streams != 0 ? script.Byte(streams) : script;
}

}  // namespace entrain::fuzz
