// SHA-256. Shows whether the bytes of a checkpoint are those that were written.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

#include "lib/base/bytes.h"

struct evp_md_ctx_st;  // OpenSSL's

namespace entrain {

using Digest = std::array<uint8_t, 32>;

// Computes the digest of all added bytes, in the order of Add.
class Hasher {
 public:
  Hasher();
  void Add(ConstBytes bytes);
  // Returns the digest. May be called once. Add must not be called afterwards.
  Digest Finish();

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

Digest DigestOf(ConstBytes bytes);
// Converts to 64 hexadecimal digits, and back. DigestFromHex returns nullopt for any other text.
std::string ToHex(const Digest& digest);
std::optional<Digest> DigestFromHex(absl::string_view hex);

}  // namespace entrain
