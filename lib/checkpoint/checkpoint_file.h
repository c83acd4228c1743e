// One file of arrays that is either whole or not there. Layout, in bytes (integers little-endian):
//
//   0   8  89 'E' 'N' 'T' 'R' 0d 0a 1a     whose first and last bytes do not survive a text transfer
//   8   4  format version, 1
//  12   4  zero
//  16   8  bytes of the manifest
//  24   8  bytes of the file
//  32  32  SHA-256 of the manifest
//  64  32  SHA-256 of bytes 0 to 63
//  128     the arrays, each from a multiple of 64 on; zeros between
//          the manifest (JSON), from a multiple of 64 on, to the end
//
// Every byte is covered: the header by its own hash, the manifest by the header's, each array by
// the manifest's, and what lies between must be zero.
//
// Thread safety: one thread at a time. Every message begins with the path.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "lib/base/bytes.h"
#include "lib/checkpoint/digest.h"
#include "lib/checkpoint/manifest.h"
#include "lib/net/socket.h"

namespace entrain {

constexpr uint32_t kCheckpointVersion = 1;

// What a file is that was to become a checkpoint.
struct Unfinished {
  bool is = false;  // it is one: it begins with our mark, or it is whole and lacks its name only
  std::optional<uint32_t> id;  // of the save of several files that it belongs to
};
// The open file of that path.
Unfinished ReadUnfinished(int fd, const std::string& path);

// Writes `PATH.tmp`, which takes the place of PATH in one step, when it is whole and on the disk.
// Until then what PATH was is untouched.
class CheckpointWriter {
 public:
  // kFailedPrecondition where there is no such directory, none may be written, or another process
  // writes the same file.
  static absl::StatusOr<std::unique_ptr<CheckpointWriter>> Create(std::string path);
  // Removes the temporary file if there was no Commit.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // What a dead process had written to the same temporary file.
  const Unfinished& found() const { return found_; }
  // When this began, by the clock of the file system.
  int64_t begun_ns() const { return begun_ns_; }
  // Writes down, until Finish, which save the file belongs to, so that others know after this process is killed. 0: to none
  // of several files, as from Create on.
  absl::Status Mark(uint32_t id);

  // An array begins; Append brings its array.bytes(), in any pieces. Offset and digest are filled
  // in here.
  absl::Status Begin(SavedArray array);
  absl::Status Append(ConstBytes bytes);
  // Writes `manifest`, with the arrays that were written before those it has (which are in other
  // files), and waits until all is on the disk.
  absl::Status Finish(Manifest manifest);
  // As written by Finish.
  const Manifest& manifest() const { return manifest_; }
  const Digest& manifest_digest() const { return manifest_digest_; }
  // After Finish: the file gets its name.
  absl::Status Commit();
  // It has its name; not yet, where Commit failed before that.
  bool committed() const { return committed_; }

 private:
  CheckpointWriter(std::string path, Fd fd, const Unfinished& found, int64_t begun_ns);
  absl::Status Write(const void* data, int64_t bytes);
  // Ends the array under way; zeros up to where the next thing begins.
  absl::Status EndArray();
  absl::Status Error(int error, absl::string_view doing) const;

  const std::string path_, temporary_;
  Fd fd_;
  const Unfinished found_;
  const int64_t begun_ns_;
  int64_t at_ = 0;      // bytes written
  int64_t wanted_ = 0;  // bytes that the array under way still lacks
  Hasher hasher_;
  std::vector<SavedArray> arrays_;
  Manifest manifest_;
  Digest manifest_digest_{};
  bool finished_ = false, committed_ = false;
};

// Reads a file that cannot be trusted. kInvalidArgument says what is wrong with it, and where.
class CheckpointReader {
 public:
  // Checks the header and the manifest, and that the arrays it names fill the file.
  static absl::StatusOr<std::unique_ptr<CheckpointReader>> Open(std::string path);

  const Manifest& manifest() const { return manifest_; }
  const Digest& manifest_digest() const { return manifest_digest_; }
  const std::string& path() const { return path_; }

  // Reads all of an array in this file, as this manifest or one that refers to it has it, compares its digest, and copies `count` elements from
  // `first` on to `out`; on an error what is there is of no use.
  absl::Status Read(const SavedArray& array, int64_t first, int64_t count, void* out) const;
  // The same for nobody: is the array what was written?
  absl::Status Verify(const SavedArray& array) const { return Read(array, 0, 0, nullptr); }

 private:
  CheckpointReader(std::string path, Fd fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  absl::Status ReadHeader();
  absl::Status ReadManifest();
  absl::Status CheckLayout() const;
  absl::Status ReadAt(int64_t offset, void* data, int64_t bytes) const;
  // Everything from `offset` to the next multiple of 64 is zero.
  absl::Status CheckZeros(int64_t offset) const;
  absl::Status Refuse(absl::string_view why) const;

  const std::string path_;
  const Fd fd_;
  int64_t size_ = 0, manifest_bytes_ = 0;
  Digest manifest_digest_{};
  Manifest manifest_;
};

}  // namespace entrain
