#include "transports/shm/ways.h"

#include <chrono>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include <sys/uio.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace entrain::shm {
namespace {

constexpr const char* kNames[] = {"eager", "read", "ring", "mapped", "lent"};
constexpr int kLastPower = 40;

std::string SizeText(uint64_t bytes) {
  return bytes < 1 << 20 ? absl::StrCat(bytes >> 10, "K") : absl::StrCat(bytes >> 20, "M");
}

// Returns the methods for messages like `ask`, by size, above the eager limit. For example: "read,
// ring from 2M".
std::string BySize(Ask ask, const Facts& facts) {
  ask.bytes = EagerLimit(facts) + 1;
  Way way = Choose(ask, facts);
  std::string text = kNames[static_cast<size_t>(way)];
  for (int power = 10; power < kLastPower; ++power) {
    ask.bytes = uint64_t{1} << power;
    if (ask.bytes > EagerLimit(facts) && Choose(ask, facts) != way) {
      way = Choose(ask, facts);
      absl::StrAppend(&text, ", ", kNames[static_cast<size_t>(way)], " from ", SizeText(ask.bytes));
    }
  }
  return text;
}

// Returns the time of the fastest of several runs. (In this run probably no other thread used the
// core.)
double LeastNs(const std::function<bool()>& copy) {
  using Clock = std::chrono::steady_clock;
  constexpr int kTimes = 12;
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kTimes; ++i) {
    const auto start = Clock::now();
    if (!copy()) {
      return std::numeric_limits<double>::infinity();
    }
    least = std::min(least, std::chrono::duration<double, std::nano>(Clock::now() - start).count());
  }
  return least;
}

// The limits are above 1 because the ring, too, costs more than one copy: a message is copied twice,
// between the caches of two cores. docs/lab/shm.md has the ratios of the machines.
Reads Measure() {
  constexpr size_t kBytes = 256 << 10;
  constexpr double kQuick = 3.5, kFair = 6;  // limits of the time of a read divided by the time of a copy
  std::vector<char> into(kBytes, 1), from(kBytes, 1);
  iovec here{into.data(), kBytes}, there{from.data(), kBytes};
  const double read = LeastNs([&] {
    return process_vm_readv(getpid(), &here, 1, &there, 1, 0) == static_cast<ssize_t>(kBytes);
  });
  const double copy = LeastNs([&] {
    std::memcpy(into.data(), from.data(), kBytes);
    return into[kBytes - 1] == 1;
  });
  return read <= kQuick * copy ? Reads::kQuick : read <= kFair * copy ? Reads::kFair : Reads::kSlow;
}

}  // namespace

std::string Explained(const Facts& facts) {
  return absl::StrCat(facts.spare_cores ? "spare cores" : "shared cores", ", memory of the peer ",
                      !facts.can_read                ? "cannot be read"
                      : facts.reads == Reads::kQuick ? "is read quickly"
                      : facts.reads == Reads::kFair  ? "is read about as quickly as the ring"
                                                     : "is read slowly",
                      ": eager to ", SizeText(EagerLimit(facts)), "; one way ", BySize({}, facts),
                      "; both ways ", BySize({.exchange = true}, facts),
                      "; from a sender that sleeps ", BySize({.awake = false}, facts),
                      "; from a region mapped or lent");
}

Reads MeasuredReads() {
  static const Reads reads = Measure();
  return reads;
}

}  // namespace entrain::shm
