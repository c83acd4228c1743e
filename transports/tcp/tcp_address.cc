#include "transports/tcp/tcp_address.h"

#include <cstdint>

#include <fcntl.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"

namespace entrain {
namespace {

// FNV-1a. A weak hash suffices: different hosts only need to have different marks with high
// probability.
uint64_t Mix(uint64_t hash, absl::string_view text) {
  for (const char c : text) {
    hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  }
  return hash;
}

std::string MarkOfThisHost() {
  char text[128];
  uint64_t hash = 0xcbf29ce484222325u;
  const Fd boot(open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  if (const ssize_t bytes = boot.valid() ? read(boot.get(), text, sizeof(text)) : 0; bytes > 0) {
    hash = Mix(hash, {text, static_cast<size_t>(bytes)});
  }
  if (const ssize_t bytes = readlink("/proc/self/ns/net", text, sizeof(text)); bytes > 0) {
    hash = Mix(hash, {text, static_cast<size_t>(bytes)});
  }
  return absl::StrCat(absl::Hex(hash, absl::kZeroPad16));
}

}  // namespace

absl::StatusOr<TcpAddress> TcpAddress::Parse(absl::string_view text) {
  const size_t mark = text.find('#');
  TcpAddress parsed;
  ENTRAIN_ASSIGN_OR_RETURN(parsed.address, Address::Parse(text.substr(0, mark)));
  if (mark != absl::string_view::npos) {
    parsed.mark = std::string(text.substr(mark + 1));
  }
  if (parsed.address.port() == 0 || parsed.address.IsAny() ||
      parsed.mark.empty() == parsed.address.IsLoopback()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tcp: \"", text, "\" is not an address that a process published"));
  }
  return parsed;
}

TcpAddress TcpAddress::OfListener(const Address& address) {
  return {address, address.IsLoopback() ? MarkOfThisHost() : std::string()};
}

std::string TcpAddress::ToString() const {
  return mark.empty() ? address.ToString() : absl::StrCat(address.ToString(), "#", mark);
}

bool TcpAddress::Reaches(const TcpAddress& other) const {
  return address.family() == other.address.family() && mark == other.mark;
}

}  // namespace entrain
