#include "lib/net/handshake.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>
#include <sys/random.h>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/net/socket.h"

namespace entrain {
namespace {

constexpr absl::string_view kMagic = "ENTRAIN1";
constexpr uint16_t kVersionLow = 2, kVersionHigh = 2;
constexpr uint16_t kKeyInUse = 1;
constexpr size_t kPeerIdAt = 16, kPeerIdBytes = 16;
constexpr size_t kNonceAt = 32, kFurtherToAt = 48;

struct Hello {
  uint16_t low, high, purpose, flags;
};

Hello ParseHello(absl::string_view bytes) {
  Reader in(bytes.substr(kMagic.size()));
  Hello hello{};
  hello.low = in.Get<uint16_t>();
  hello.high = in.Get<uint16_t>();
  hello.purpose = in.Get<uint16_t>();
  hello.flags = in.Get<uint16_t>();
  return hello;
}

std::string PurposeName(uint16_t purpose) {
  switch (static_cast<Purpose>(purpose)) {
    case Purpose::kStore:
      return "the store";
    case Purpose::kData:
      return "data";
    case Purpose::kShm:
      return "shared memory";
  }
  return absl::StrCat("unknown purpose ", purpose);
}

ConnectionId IdAt(absl::string_view hello, size_t at) {
  ConnectionId id{};
  std::memcpy(id.data(), hello.data() + at, id.size());
  return id;
}

// 'd' proves that the dialer, 'l' that the listener knows the key, so a proof sent back to its
// maker is wrong.
std::string Proof(absl::string_view key, char role, absl::string_view dialer_hello,
                  absl::string_view listener_hello) {
  const std::string text =
      absl::StrCat("entrain", absl::string_view(&role, 1), dialer_hello, listener_hello);
  const auto* data = reinterpret_cast<const unsigned char*>(text.data());
  unsigned char digest[SHA256_DIGEST_LENGTH];
  if (key.empty()) {
    SHA256(data, text.size(), digest);
  } else {
    HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), data, text.size(), digest,
         nullptr);
  }
  return std::string(reinterpret_cast<const char*>(digest), sizeof(digest));
}

// What arrived, as a person would recognise it: the start, with anything unprintable shown as a
// dot.
std::string Printable(absl::string_view bytes) {
  std::string text(bytes);
  for (char& c : text) {
    c = c >= 0x20 && c < 0x7f && c != '"' ? c : '.';
  }
  return text;
}

}  // namespace

void RandomBytes(void* out, size_t bytes) {
  auto* at = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t got = getrandom(at, bytes, 0);
    if (got < 0) {
      if (errno == EINTR) {
        continue;
      }
      std::abort();  // no kernel that runs this lacks the call, and a guess would not be random
    }
    at += got;
    bytes -= static_cast<size_t>(got);
  }
}

Handshake::Handshake(bool dialer, Purpose purpose, const std::array<uint8_t, 16>& self,
                     absl::string_view key, const ConnectionId& further_to)
    : dialer_(dialer), purpose_(purpose), key_(key) {
  ConnectionId nonce;
  RandomBytes(nonce.data(), nonce.size());
  Writer out;
  out.PutRaw(kMagic.data(), kMagic.size());
  out.Put(kVersionLow).Put(kVersionHigh).Put(purpose).Put(key_.empty() ? uint16_t{0} : kKeyInUse);
  out.PutRaw(self.data(), self.size()).PutRaw(nonce.data(), nonce.size());
  out.PutRaw(further_to.data(), further_to.size());
  mine_ = out.Take();
  output_ = mine_;
}

std::string Handshake::TakeOutput() {
  return std::exchange(output_, std::string());
}

size_t Handshake::wanted() const {
  return step_ == 0 ? kHelloBytes : step_ == 1 ? kProofBytes : 0;
}

bool Handshake::done() const {
  return step_ == 2;
}

const std::array<uint8_t, 16>& Handshake::peer() const {
  return peer_;
}

ConnectionId Handshake::connection() const {
  return IdAt(dialer_ ? mine_ : theirs_, kNonceAt);
}

ConnectionId Handshake::further_to() const {
  return IdAt(dialer_ ? mine_ : theirs_, kFurtherToAt);
}

absl::Status Handshake::Consume(absl::string_view bytes) {
  if (bytes.size() != wanted() || done()) {
    return absl::InternalError(
        absl::StrCat("handshake: fed ", bytes.size(), " bytes, wanted ", wanted()));
  }
  const absl::string_view dialer_hello = dialer_ ? mine_ : theirs_;
  const absl::string_view listener_hello = dialer_ ? theirs_ : mine_;
  if (step_ == 1) {
    const std::string expected = Proof(key_, dialer_ ? 'l' : 'd', dialer_hello, listener_hello);
    if (CRYPTO_memcmp(expected.data(), bytes.data(), kProofBytes) != 0) {
      return absl::FailedPreconditionError(
          key_.empty() ? "handshake: the other side's proof is wrong"
                       : "handshake: the other side does not hold the same key");
    }
    step_ = 2;
    return absl::OkStatus();
  }
  ENTRAIN_RETURN_IF_ERROR(CheckHello(bytes));
  theirs_ = std::string(bytes);
  std::memcpy(peer_.data(), theirs_.data() + kPeerIdAt, kPeerIdBytes);
  output_ += Proof(key_, dialer_ ? 'd' : 'l', dialer_ ? mine_ : theirs_, dialer_ ? theirs_ : mine_);
  step_ = 1;
  return absl::OkStatus();
}

absl::Status Handshake::CheckHello(absl::string_view bytes) const {
  if (bytes.substr(0, kMagic.size()) != kMagic) {
    return absl::FailedPreconditionError(
        absl::StrCat("handshake: the other side does not speak this protocol; it began with \"",
                     Printable(bytes.substr(0, 16)), "\""));
  }
  const Hello theirs = ParseHello(bytes);
  if (theirs.low > kVersionHigh || theirs.high < kVersionLow) {
    return absl::FailedPreconditionError(
        absl::StrCat("handshake: this side speaks protocol versions ", kVersionLow, " to ",
                     kVersionHigh, ", the other ", theirs.low, " to ", theirs.high));
  }
  if (theirs.purpose != static_cast<uint16_t>(purpose_)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "handshake: this connection is for ", PurposeName(static_cast<uint16_t>(purpose_)),
        ", the other side means ", PurposeName(theirs.purpose)));
  }
  const bool their_key = (theirs.flags & kKeyInUse) != 0;
  if (their_key == key_.empty()) {
    return absl::FailedPreconditionError(
        key_.empty() ? "handshake: the other side uses a key, this side has none"
                     : "handshake: this side uses a key, the other has none");
  }
  if (bytes == mine_) {
    return absl::FailedPreconditionError("handshake: the other side sent this side's own hello");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::array<uint8_t, 16>> RunHandshake(int fd, Handshake& handshake,
                                                     const Stop& stop) {
  char buffer[Handshake::kHelloBytes];
  static_assert(Handshake::kHelloBytes >= Handshake::kProofBytes);
  while (true) {
    const std::string output = handshake.TakeOutput();
    absl::Status status = WriteFull(fd, output.data(), output.size(), stop);
    if (status.ok() && handshake.done()) {
      return handshake.peer();
    }
    const size_t wanted = handshake.wanted();
    if (status.ok()) {
      status = ReadFull(fd, buffer, wanted, stop);
    }
    if (!status.ok()) {
      return Annotate(status, "handshake");
    }
    ENTRAIN_RETURN_IF_ERROR(handshake.Consume({buffer, wanted}));
  }
}

}  // namespace entrain
