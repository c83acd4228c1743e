// SHA-256, by which a checkpoint's bytes are known to be those that were written.
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

// Of what was added, in that order.
class Hasher {
 public:
  Hasher();
  void Add(ConstBytes bytes);
  // Once; nothing may be added after it.
  Digest Finish();

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

Digest DigestOf(ConstBytes bytes);
// 64 hexadecimal digits, and back; nullopt for anything else.
std::string ToHex(const Digest& digest);
std::optional<Digest> DigestFromHex(absl::string_view hex);

}  // namespace entrain
