// Byte spans, buffers in host or device memory, and the little-endian encoding that all wire
// formats use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace entrain {

using Bytes = absl::Span<std::byte>;
using ConstBytes = absl::Span<const std::byte>;

inline ConstBytes AsBytes(absl::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}
inline absl::string_view AsText(ConstBytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

enum class MemoryKind : int32_t { kHost = 0, kDevice = 1, kHostPinned = 2 };
// The text of the error that a caller gets if it asks for device memory in a build without
// lib/device/{cuda,nccl,calls}.
inline constexpr char kBuiltWithoutDevices[] =
    "this library was built without CUDA (the build option ENTRAIN_DEVICE)";

// Memory that the view does not own. `data` may be null if `bytes` is 0.
struct BufferView {
  void* data = nullptr;
  int64_t bytes = 0;
  MemoryKind kind = MemoryKind::kHost;
};

// Appends values to a string. Integers are in little-endian order. A text is its length as a u32,
// followed by its bytes.
class Writer {
 public:
  template <typename T>
  Writer& Put(T value) {
    static_assert(std::is_integral_v<T> || std::is_enum_v<T>);
    char raw[sizeof(T)];
    std::memcpy(raw, &value, sizeof(T));  // the machine is little-endian, see bytes.cc
    out_.append(raw, sizeof(T));
    return *this;
  }
  Writer& PutText(absl::string_view text) {
    Put(static_cast<uint32_t>(text.size()));
    out_.append(text.data(), text.size());
    return *this;
  }
  Writer& PutRaw(const void* data, size_t bytes) {
    out_.append(static_cast<const char*>(data), bytes);
    return *this;
  }
  std::string Take() { return std::move(out_); }
  const std::string& text() const { return out_; }

 private:
  std::string out_;
};

// Decodes the output of a Writer from bytes that cannot be trusted. After the first failed read,
// every Get function returns zero or an empty text, and ok() returns false. A caller therefore
// needs to check only once, after its last read.
class Reader {
 public:
  explicit Reader(absl::string_view in) : in_(in) {}
  template <typename T>
  T Get() {
    T value{};
    if (!Take(sizeof(T))) {
      return value;
    }
    std::memcpy(&value, taken_.data(), sizeof(T));
    return value;
  }
  // A longer text is an error.
  absl::string_view GetText(size_t max = 1 << 20) {
    const auto length = Get<uint32_t>();
    if (!ok_ || length > max || !Take(length)) {
      ok_ = false;
      return {};
    }
    return taken_;
  }
  absl::string_view GetRaw(size_t bytes) { return Take(bytes) ? taken_ : absl::string_view(); }
  bool ok() const { return ok_; }
  // Returns true if no read failed and no byte is left.
  bool Finished() const { return ok_ && in_.empty(); }

 private:
  bool Take(size_t bytes) {
    if (!ok_ || in_.size() < bytes) {
      ok_ = false;
      return false;
    }
    taken_ = in_.substr(0, bytes);
    in_.remove_prefix(bytes);
    return true;
  }
  absl::string_view in_, taken_;
  bool ok_ = true;
};

}  // namespace entrain
