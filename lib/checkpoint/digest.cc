#include "lib/checkpoint/digest.h"

#include <cstdlib>

#include <openssl/evp.h>

#include "absl/strings/escaping.h"

namespace entrain {
namespace {

// Aborts the process if `ok` is not 1. libcrypto fails only if there is no memory or no SHA-256.
// The process cannot continue in either case.
void Must(int ok) {
  if (ok != 1) {
    std::abort();
  }
}

int DigitOf(char c) {
  if (c >= '0' && c <= '9') {
    return c - '0';
  }
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

}  // namespace

void Hasher::Free::operator()(evp_md_ctx_st* context) const {
  EVP_MD_CTX_free(context);
}

Hasher::Hasher() : context_(EVP_MD_CTX_new()) {
  Must(context_ != nullptr ? EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) : 0);
}

void Hasher::Add(ConstBytes bytes) {
  Must(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()));
}

Digest Hasher::Finish() {
  Digest digest;
  unsigned int size = 0;
  Must(EVP_DigestFinal_ex(context_.get(), digest.data(), &size));
  return digest;
}

Digest DigestOf(ConstBytes bytes) {
  Hasher hasher;
  hasher.Add(bytes);
  return hasher.Finish();
}

std::string ToHex(const Digest& digest) {
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest.data()), digest.size()});
}

std::optional<Digest> DigestFromHex(absl::string_view hex) {
  Digest digest;
  if (hex.size() != 2 * digest.size()) {
    return std::nullopt;
  }
  for (size_t i = 0; i < digest.size(); ++i) {
    const int high = DigitOf(hex[2 * i]), low = DigitOf(hex[2 * i + 1]);
    if (high < 0 || low < 0) {
      return std::nullopt;
    }
    digest[i] = static_cast<uint8_t>(16 * high + low);
  }
  return digest;
}

}  // namespace entrain
