// The common part of all targets: the entry points of libFuzzer, and random bytes that begin anew
// with each input.
#include "tests/fuzz/target.h"

#include <atomic>
#include <filesystem>
#include <fstream>

#include <sys/random.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

#include "lib/base/log.h"
#include "tests/fuzz/replay.h"

namespace entrain::fuzz {
namespace {

constexpr uint64_t kGamma = 0x9e3779b97f4a7c15;
std::atomic<uint64_t> random_state = 0;  // a target's threads share it

uint8_t NextRandomByte() {  // splitmix64
  uint64_t z = random_state.fetch_add(kGamma, std::memory_order_relaxed) + kGamma;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return static_cast<uint8_t>(z ^ (z >> 31));
}

}  // namespace

void Prepare() {
  SetLogLevel(LogLevel::kError);
}

void RunOne(absl::string_view input) {
  // Names of sockets must differ between processes.
  random_state = static_cast<uint64_t>(getpid()) << 32;
  FuzzOne(input);
}

int WriteSeeds(const char* directory) {
  std::filesystem::create_directories(directory);
  int number = 0;
  for (const std::string& seed : FuzzSeeds()) {
    std::ofstream file(absl::StrCat(directory, "/seed-", number++), std::ios::binary);
    file.write(seed.data(), static_cast<std::streamsize>(seed.size()));
    if (!file.flush()) {
      std::fprintf(stderr, "cannot write to %s\n", directory);
      return 1;
    }
  }
  return 0;
}

}  // namespace entrain::fuzz

// Replaces the C library's function: nonces and numbers of paths are then equal in every run of an
// input by one process, so that its coverage does not change.
extern "C" ssize_t getrandom(void* buffer, size_t bytes, unsigned) {
  for (size_t i = 0; i < bytes; ++i) {
    static_cast<uint8_t*>(buffer)[i] = entrain::fuzz::NextRandomByte();
  }
  return static_cast<ssize_t>(bytes);
}

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  if (*argc == 3 && std::strcmp((*argv)[1], "--seeds") == 0) {
    std::exit(entrain::fuzz::WriteSeeds((*argv)[2]));
  }
  entrain::fuzz::Prepare();
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  entrain::fuzz::RunOne({reinterpret_cast<const char*>(data), bytes});
  return 0;
}
