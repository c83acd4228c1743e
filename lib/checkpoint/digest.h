// SHA-256, which shows whether a checkpoint's bytes are the bytes that were written.
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

// Computes the digest of all bytes that were added, in that order.
class Hasher {
 public:
  Hasher();
  void Add(ConstBytes bytes);
  // Returns the digest. Call once; nothing may be added afterwards.
  Digest Finish();

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

Digest DigestOf(ConstBytes bytes);
// Convert to 64 hexadecimal digits, and back. For any other text DigestFromHex returns nullopt.
std::string ToHex(const Digest& digest);
std::optional<Digest> DigestFromHex(absl::string_view hex);

}  // namespace entrain
