// A fuzz target is one file of this folder. It defines FuzzOne, which feeds an input to the code
// under test, and FuzzSeeds. target.cc connects them to libFuzzer, and replay.cc runs kept inputs
// without it.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "lib/base/bytes.h"

namespace entrain::fuzz {

// Ends the process with SIGABRT if the code under test does something wrong that no sanitizer sees.
// Must not depend on anything but the input. The random bytes of lib/net begin anew with each input
// (target.cc).
void FuzzOne(absl::string_view input);
// Returns inputs that honest peers and users produce, made with the library's own encoders.
std::vector<std::string> FuzzSeeds();

// Reads decisions from an input, in the encoding of Script. Behind the end, numbers are zero and
// texts are empty.
class Input {
 public:
  explicit Input(absl::string_view bytes) : bytes_(bytes) {}
  bool empty() const { return bytes_.empty(); }
  template <typename T>
  T Number() {
    T value{};
    const size_t count = bytes_.size() < sizeof(T) ? bytes_.size() : sizeof(T);
    std::memcpy(&value, bytes_.data(), count);
    bytes_.remove_prefix(count);
    return value;
  }
  uint8_t Byte() { return Number<uint8_t>(); }
  // Returns the next bytes, at most `most`.
  absl::string_view Take(size_t most) {
    const absl::string_view taken = bytes_.substr(0, most);
    bytes_.remove_prefix(taken.size());
    return taken;
  }
  // Returns a text with a length of 16 bits before it. A text that is cut off ends with the input.
  absl::string_view Text() { return Take(Number<uint16_t>()); }
  absl::string_view Rest() { return Take(bytes_.size()); }

 private:
  absl::string_view bytes_;
};

// Writes the bytes that Input reads.
class Script {
 public:
  template <typename T>
  Script& Number(T value) {
    out_.Put(value);
    return *this;
  }
  Script& Byte(int value) { return Number(static_cast<uint8_t>(value)); }
  Script& Raw(absl::string_view text) {
    out_.PutRaw(text.data(), text.size());
    return *this;
  }
  Script& Text(absl::string_view text) {
    return Number(static_cast<uint16_t>(text.size())).Raw(text);
  }
  std::string Take() { return out_.Take(); }

 private:
  Writer out_;
};

}  // namespace entrain::fuzz

// Ends the process, and shows the condition, if it is false.
#define FUZZ_CHECK(condition)                                                     \
  do {                                                                            \
    if (!(condition)) {                                                           \
      std::fprintf(stderr, "%s:%d: false: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                               \
    }                                                                             \
  } while (false)

// Ends the process, and shows the status, if it is an error.
#define FUZZ_CHECK_OK(expression)                                                              \
  do {                                                                                         \
    const absl::Status fuzz_status = (expression);                                             \
    if (!fuzz_status.ok()) {                                                                   \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, fuzz_status.ToString().c_str()); \
      std::abort();                                                                            \
    }                                                                                          \
  } while (false)
