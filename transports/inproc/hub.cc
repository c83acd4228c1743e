#include "transports/inproc/hub.h"

#include <algorithm>

#include <sys/random.h>
#include <unistd.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace entrain {
namespace {

uint64_t RandomWord() {
  uint64_t word = 0;
  if (getrandom(&word, sizeof(word), 0) != sizeof(word)) {
    word = static_cast<uint64_t>(Clock::Real().Now());
  }
  return word;
}

// Calls getpid each time, because a forked child is another process.
std::string Token(uint64_t random) {
  return absl::StrCat(getpid(), "-", absl::Hex(random, absl::kZeroPad16), "/");
}

}  // namespace

Hub& Hub::OfThisProcess() {
  // One per process, because it connects the threads of the process. Never destroyed, because
  // threads may outlive main.
  static Hub* const hub = new Hub();
  return *hub;
}

Hub::Hub() : random_(RandomWord()) {}

uint64_t Hub::Enter() {
  std::lock_guard<std::mutex> lock(mutex_);
  alive_[next_] = true;
  return next_++;
}

void Hub::Leave(uint64_t instance) {
  std::lock_guard<std::mutex> lock(mutex_);
  alive_.erase(instance);
  for (auto half = half_.begin(); half != half_.end();) {
    half = half->second.second == instance ? half_.erase(half) : std::next(half);
  }
}

std::string Hub::AddressOf(uint64_t instance) const {
  return absl::StrCat(Token(random_), instance);
}

uint64_t Hub::InstanceOf(absl::string_view address) const {
  uint64_t instance = 0;
  if (!absl::ConsumePrefix(&address, Token(random_)) || !absl::SimpleAtoi(address, &instance)) {
    return 0;
  }
  return instance;
}

Hub::Joined Hub::Join(uint64_t mine, uint64_t other, const std::shared_ptr<Inbox>& inbox,
                      uint32_t slot) {
  const auto key = std::minmax(mine, other);
  std::lock_guard<std::mutex> lock(mutex_);
  const auto half = half_.find(key);
  if (half == half_.end()) {
    if (alive_.find(other) == alive_.end()) {
      return {};
    }
    auto link = std::make_shared<InprocPair>();
    link->side[0].inbox = inbox;
    link->side[0].slot = slot;
    half_[key] = {link, mine};
    return {link, 0, false, {}};
  }
  std::shared_ptr<InprocPair> link = half->second.first;
  half_.erase(half);
  link->side[1].inbox = inbox;
  link->side[1].slot = slot;
  return {link, 1, true, link->closed};
}

bool Hub::Abandon(InprocPair* link, absl::string_view why) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (link->side[1].inbox != nullptr) {
    return false;
  }
  link->closed = std::string(why);
  return true;
}

}  // namespace entrain
