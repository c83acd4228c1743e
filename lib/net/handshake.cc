#include "lib/net/handshake.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/sha.h>
#include <sys/random.h>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/base/text.h"
#include "lib/net/key_file.h"

namespace entrain {
namespace {

// A store lives until the end of the process that serves it. So a thread of the library may compute a
// proof, or encrypt, while the process exits. Without this flag, exit() would free the state of OpenSSL under
// this thread. The flag counts only before the first use of OpenSSL, so it is set when the library is
// loaded.
[[maybe_unused]] const int kept_at_exit = OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr);

constexpr absl::string_view kMagic = "ENTRAIN1";
constexpr uint16_t kVersionLow = 6, kVersionHigh = 6;
constexpr uint16_t kKeyInUse = 1, kWantsTls = 2, kHasCertificates = 4, kWantsChecksums = 8;
constexpr absl::string_view kSalt = "entrain handshake 3";
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

absl::string_view Label(Purpose purpose) {
  switch (purpose) {
    case Purpose::kStore:
      return "store";
    case Purpose::kData:
      return "data";
    case Purpose::kShm:
      return "shm";
  }
  return "";
}

// The refusal that a listener sends instead of its proof.
std::string Refusal() {
  return std::string(Handshake::kProofBytes, '\0');
}

std::string Sha256(absl::string_view text) {
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(),
         reinterpret_cast<unsigned char*>(digest.data()));
  return digest;
}

}  // namespace

absl::StatusOr<std::string> DeriveKey(absl::string_view key, absl::string_view use) {
  EVP_KDF* const kdf = EVP_KDF_fetch(nullptr, "HKDF", nullptr);
  EVP_KDF_CTX* const context = EVP_KDF_CTX_new(kdf);
  EVP_KDF_free(kdf);
  std::string digest = "SHA256", secret(key), salt(kSalt), label(use),
              derived(SHA256_DIGEST_LENGTH, '\0');
  const OSSL_PARAM settings[] = {
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest.data(), digest.size()),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, secret.data(), secret.size()),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SALT, salt.data(), salt.size()),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, label.data(), label.size()),
      OSSL_PARAM_construct_end()};
  const bool done = context != nullptr &&
                    EVP_KDF_derive(context, reinterpret_cast<unsigned char*>(derived.data()),
                                   derived.size(), settings) > 0;
  EVP_KDF_CTX_free(context);
  OPENSSL_cleanse(secret.data(), secret.size());
  if (!done) {
    return absl::InternalError("handshake: OpenSSL cannot derive a key with HKDF-SHA-256");
  }
  return derived;
}

void RandomBytes(void* out, size_t bytes) {
  auto* at = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t got = getrandom(at, bytes, 0);
    if (got < 0) {
      if (errno == EINTR) {
        continue;
      }
      std::abort();  // cannot happen: all supported kernels have getrandom
    }
    at += got;
    bytes -= static_cast<size_t>(got);
  }
}

Handshake::Handshake(bool dialer, Purpose purpose, const std::array<uint8_t, 16>& self,
                     absl::string_view key, const ConnectionId& further_to, Offer offer)
    : dialer_(dialer), purpose_(purpose), offer_(offer), key_(key) {
  ConnectionId nonce;
  RandomBytes(nonce.data(), nonce.size());
  Writer out;
  out.PutRaw(kMagic.data(), kMagic.size());
  const uint16_t flags = (key_.empty() ? 0 : kKeyInUse) | (offer_.tls ? kWantsTls : 0) |
                         (offer_.certificates ? kHasCertificates : 0) |
                         (offer_.checksums ? kWantsChecksums : 0);
  out.Put(kVersionLow).Put(kVersionHigh).Put(purpose).Put(flags);
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
  if (step_ == 0) {
    ENTRAIN_RETURN_IF_ERROR(CheckHello(bytes));
    theirs_ = std::string(bytes);
    std::memcpy(peer_.data(), theirs_.data() + kPeerIdAt, kPeerIdBytes);
    const uint16_t flags = ParseHello(theirs_).flags;
    tls_ = offer_.tls || (flags & kWantsTls) != 0;
    checksums_ = offer_.checksums || (flags & kWantsChecksums) != 0;
  } else {
    const absl::Status proven = CheckProof(bytes);
    if (!proven.ok() && !dialer_) {
      output_ += Refusal();
    }
    ENTRAIN_RETURN_IF_ERROR(proven);
  }
  ++step_;
  if (dialer_ == (step_ == 1)) {  // the dialer sends its proof after the hellos, the listener after
                                  // the dialer's proof
    ENTRAIN_ASSIGN_OR_RETURN(const std::string proof, Proof(dialer_));
    output_ += proof;
  }
  return absl::OkStatus();
}

std::string Handshake::digest() const {
  return Sha256(BothHellos());
}

absl::StatusOr<std::string> Handshake::Proof(bool dialer) const {
  const std::string label = absl::StrCat(dialer ? "dialer " : "listener ", Label(purpose_));
  const std::string hellos = BothHellos();
  if (key_.empty()) {
    return Sha256(label + hellos);
  }
  ENTRAIN_ASSIGN_OR_RETURN(const std::string key, DeriveKey(key_, label));
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  if (HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
           reinterpret_cast<const unsigned char*>(hellos.data()), hellos.size(),
           reinterpret_cast<unsigned char*>(digest.data()), nullptr) == nullptr) {
    return absl::InternalError("handshake: OpenSSL cannot compute an HMAC-SHA-256");
  }
  return digest;
}

absl::Status Handshake::CheckProof(absl::string_view bytes) const {
  ENTRAIN_ASSIGN_OR_RETURN(const std::string expected, Proof(!dialer_));
  if (CRYPTO_memcmp(expected.data(), bytes.data(), kProofBytes) != 0) {
    return absl::FailedPreconditionError(
        key_.empty()
            ? "handshake: the other side's proof is wrong"
            : "handshake: the other side does not hold the same key; ENTRAIN_KEY_FILE must "
              "name the same key on all ranks");
  }
  return absl::OkStatus();
}

absl::Status Handshake::CheckHello(absl::string_view bytes) const {
  if (bytes.substr(0, kMagic.size()) != kMagic) {
    return absl::FailedPreconditionError(
        absl::StrCat("handshake: the other side does not speak this protocol; it began with \"",
                     CleanText(bytes.substr(0, 16)), "\""));
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
  return CheckTls(theirs.flags);
}

absl::Status Handshake::CheckTls(uint16_t theirs) const {
  if (!offer_.tls && (theirs & kWantsTls) == 0) {
    return absl::OkStatus();
  }
  if (offer_.certificates != ((theirs & kHasCertificates) != 0)) {
    return absl::FailedPreconditionError(
        offer_.certificates
            ? "handshake: this side uses certificates for TLS, the other has none"
            : "handshake: the other side uses certificates for TLS, this side has none");
  }
  if (!offer_.certificates && key_.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("handshake: ", offer_.tls ? "this side" : "the other side",
                     " refuses plain traffic between hosts. ", kHowToSecure));
  }
  return absl::OkStatus();
}

}  // namespace entrain
