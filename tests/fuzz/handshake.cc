// lib/net/handshake: a machine that gets any bytes, and two machines between which bytes are
// changed. No peer is accepted without the key, and the two machines never both accept a
// conversation in which a byte was changed.
#include "lib/net/handshake.h"

#include <array>

#include "tests/fuzz/target.h"

namespace entrain::fuzz {
namespace {

constexpr uint8_t kRaw = 1, kDials = 2, kHasKey = 4, kOtherKey = 8;
constexpr std::array<uint8_t, 16> kDialer{1}, kListener{2};

Purpose PurposeOf(uint8_t bits) {
  return static_cast<Purpose>(1 + bits % 3);
}

void FeedAnything(uint8_t settings, Input in) {
  const bool has_key = (settings & kHasKey) != 0;
  Handshake machine((settings & kDials) != 0, PurposeOf(settings >> 4), kDialer,
                    has_key ? "the key" : "");
  FUZZ_CHECK(machine.TakeOutput().size() == Handshake::kHelloBytes);
  while (!machine.done() && machine.Consume(in.Take(machine.wanted())).ok()) {
    machine.TakeOutput();
  }
  FUZZ_CHECK(!machine.done() || !has_key);
  (void)machine.connection();
}

// One direction of a connection.
struct Direction {
  std::string bytes;
  size_t sent = 0;
  bool changed = false;
};

void ChangeBytes(uint8_t settings, Input in) {
  const bool same_key = (settings & kOtherKey) == 0, has_key = (settings & kHasKey) != 0;
  const uint8_t purposes = in.Byte();
  const Purpose purpose = PurposeOf(purposes), other = PurposeOf(purposes >> 4);
  const ConnectionId further_to{in.Byte()};
  Handshake dialer(true, purpose, kDialer, has_key ? "the key" : "", further_to);
  Handshake listener(false, other, kListener, has_key == same_key ? "the key" : "");
  struct Change {
    uint8_t direction, position, flip;
  };
  std::vector<Change> changes;
  while (!in.empty() && changes.size() < 64) {
    changes.push_back({in.Byte(), in.Byte(), in.Byte()});
  }
  Direction ways[2];
  Handshake* const sides[2] = {&dialer, &listener};
  bool failed[2] = {false, false};
  for (bool moved = true; moved;) {
    moved = false;
    for (int side = 0; side < 2; ++side) {
      Direction& way = ways[side];
      const std::string original = sides[side]->TakeOutput();
      std::string output = original;
      for (const Change& change : changes) {
        if (change.direction % 2 == side && change.position >= way.sent &&
            change.position < way.sent + output.size()) {
          char& byte = output[change.position - way.sent];
          byte = static_cast<char>(byte ^ change.flip);
        }
      }
      way.changed = way.changed || output != original;
      way.sent += output.size();
      way.bytes += output;
      Handshake& receiver = *sides[1 - side];
      while (!failed[1 - side] && !receiver.done() && way.bytes.size() >= receiver.wanted()) {
        const size_t wanted = receiver.wanted();
        failed[1 - side] = !receiver.Consume(way.bytes.substr(0, wanted)).ok();
        way.bytes.erase(0, wanted);
        moved = true;
      }
    }
  }
  const bool both = dialer.done() && listener.done();
  FUZZ_CHECK(both == (purpose == other && same_key && !ways[0].changed && !ways[1].changed));
  if (both) {
    FUZZ_CHECK(dialer.peer() == kListener && listener.peer() == kDialer);
    FUZZ_CHECK(dialer.connection() == listener.connection() && listener.further_to() == further_to);
  }
}

}  // namespace

void FuzzOne(absl::string_view input) {
  Input in(input);
  const uint8_t settings = in.Byte();
  (settings & kRaw) != 0 ? FeedAnything(settings, in) : ChangeBytes(settings, in);
}

std::vector<std::string> FuzzSeeds() {
  std::vector<std::string> seeds;
  for (const bool has_key : {false, true}) {
    const char* const key = has_key ? "the key" : "";
    for (const bool dials : {false, true}) {
      Handshake peer(!dials, Purpose::kStore, kListener, key);
      const uint8_t settings =
          static_cast<uint8_t>(kRaw | (dials ? kDials : 0) | (has_key ? kHasKey : 0));
      seeds.push_back(Script()
                          .Byte(settings)
                          .Raw(peer.TakeOutput())
                          .Raw(std::string(Handshake::kProofBytes, 'x'))
                          .Take());
    }
    const int settings = has_key ? kHasKey : 0;
    seeds.push_back(Script().Byte(settings).Byte(0x11).Byte(0).Take());
    seeds.push_back(Script()
                        .Byte(settings)
                        .Byte(0x11)
                        .Byte(3)
                        .Byte(0)
                        .Byte(70)
                        .Byte(1)
                        .Byte(1)
                        .Byte(70)
                        .Byte(1)
                        .Take());
    seeds.push_back(Script().Byte(settings).Byte(0x21).Byte(0).Take());
    seeds.push_back(Script().Byte(settings | kOtherKey).Byte(0).Byte(0).Take());
  }
  return seeds;
}

}  // namespace entrain::fuzz
