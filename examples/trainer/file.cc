#include "examples/trainer/file.h"

#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <memory>

#include <zlib.h>

#include "examples/trainer/error.h"

namespace trainer {
namespace {

struct CloseGz {
  void operator()(gzFile_s* file) const { gzclose(file); }
};

}  // namespace

void FailToRead(const std::string& path, const std::string& reason) {
  throw Error("cannot read data file '" + path + "': " + reason);
}

std::vector<uint8_t> ReadFile(const std::string& path) {
  errno = 0;
  const std::unique_ptr<gzFile_s, CloseGz> file(gzopen(path.c_str(), "rb"));
  if (file == nullptr) {
    FailToRead(path, errno != 0 ? std::strerror(errno) : "out of memory");
  }
  gzbuffer(file.get(), 1u << 18);
  std::vector<uint8_t> bytes;
  std::vector<uint8_t> piece(1u << 20);
  int got = 0;
  while ((got = gzread(file.get(), piece.data(), static_cast<unsigned>(piece.size()))) > 0) {
    bytes.insert(bytes.end(), piece.begin(), piece.begin() + got);
  }
  int code = Z_OK;
  const char* text = gzerror(file.get(), &code);
  if (code == Z_ERRNO) {
    FailToRead(path, std::strerror(errno));
  }
  // A truncated gzip file can be read up to its end, and then reports Z_BUF_ERROR.
  if (got < 0 || code != Z_OK) {
    FailToRead(path, std::string("broken gzip file: ") + text);
  }
  return bytes;
}

double EntropyOf(const std::vector<uint8_t>& values) {
  std::array<int64_t, 256> counts{};
  for (const uint8_t value : values) {
    ++counts[value];
  }
  double entropy = 0.0;
  for (const int64_t count : counts) {
    if (count > 0) {
      const double p = static_cast<double>(count) / static_cast<double>(values.size());
      entropy -= p * std::log(p);
    }
  }
  return entropy;
}

}  // namespace trainer
