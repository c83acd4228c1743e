// One file of arrays that is either complete or absent. Layout, in bytes (integers little-endian):
//
//      0   8  89 'E' 'N' 'T' 'R' 0d 0a 1a     (a transfer as text damages the first and last bytes)
//      8   4  format version, 1
//     12   4  zero
//     16   8  bytes of the manifest
//     24   8  bytes of the file
//     32  32  SHA-256 of the manifest
//     64  32  SHA-256 of bytes 0 to 63
//    128     the arrays, each from a multiple of 64 on; zeros between
//            the manifest (JSON), from a multiple of 64 on, to the end
//
// Every byte is covered. The header has a hash of itself and of the manifest. The manifest has a
// hash of each array. The bytes between arrays must be zero.
//
// A CheckpointTarget takes these bytes, and a CheckpointSource gives them. The classes here use a
// file; checkpoint_functions.h uses the caller's functions.
//
// Thread safety: one thread at a time. Every error message begins with the path.
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

// The result of examining a file that may be an unfinished checkpoint.
struct Unfinished {
  bool is = false;  // the file begins with the mark of FileTarget, or lacks only its name
  std::optional<uint32_t> id;  // the id of its save, if the save has several files
};
// Examines the open file `fd`, whose path is `path`.
Unfinished ReadUnfinished(int fd, const std::string& path);

// Takes the bytes of a checkpoint. Each byte is written once: the bytes from 128 on in order, then
// the first 128.
class CheckpointTarget {
 public:
  virtual ~CheckpointTarget() = default;
  // Returns the name for messages.
  virtual const std::string& name() const = 0;
  virtual absl::Status WriteAt(int64_t offset, ConstBytes bytes) = 0;
  // Called when everything has been written. Makes the bytes survive the end of this process.
  virtual absl::Status Flush() = 0;
  // Makes the checkpoint take effect. Sets *done if the checkpoint has taken effect. This is
  // possible even if Publish returns an error.
  virtual absl::Status Publish(bool* done) = 0;
};

// Writes `PATH.tmp`, which replaces PATH in one step when it is published. Until then PATH does not
// change.
class FileTarget final : public CheckpointTarget {
 public:
  // Returns kFailedPrecondition if the directory does not exist or is not writable, or if another
  // process writes the same file.
  static absl::StatusOr<std::unique_ptr<FileTarget>> Create(std::string path);
  // Removes the temporary file if it was not published.
  ~FileTarget() override;
  FileTarget(const FileTarget&) = delete;
  FileTarget& operator=(const FileTarget&) = delete;

  const std::string& name() const override { return path_; }
  absl::Status WriteAt(int64_t offset, ConstBytes bytes) override;
  absl::Status Flush() override;
  absl::Status Publish(bool* done) override;

  // Describes the unfinished file that Create found under the temporary name, left by a dead
  // process.
  const Unfinished& found() const { return found_; }
  // Returns the time of Create by the clock of the file system.
  int64_t begun_ns() const { return begun_ns_; }
  // Marks the file with the id of its save, until byte 0 is written. If this process is killed,
  // other processes can read the mark. The id 0 means that the save has no other files; Create sets
  // it.
  absl::Status Mark(uint32_t id);

 private:
  FileTarget(std::string path, Fd fd, const Unfinished& found, int64_t begun_ns);
  absl::Status Error(int error, absl::string_view doing) const;

  const std::string path_, temporary_;
  Fd fd_;
  const Unfinished found_;
  const int64_t begun_ns_;
  bool published_ = false;
};

class CheckpointWriter {
 public:
  explicit CheckpointWriter(std::unique_ptr<CheckpointTarget> target);
  // Creates a writer for the file of that path.
  static absl::StatusOr<std::unique_ptr<CheckpointWriter>> Create(std::string path);
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Begin starts an array. Append takes the array.bytes() bytes of this array, in any pieces. The
  // writer fills in offset and digest.
  absl::Status Begin(SavedArray array);
  absl::Status Append(ConstBytes bytes);
  // Writes `manifest` and flushes the target. The arrays written here are inserted in front of the
  // arrays of other files, which `manifest` already has.
  absl::Status Finish(Manifest manifest);
  // Returns the manifest that Finish has written.
  const Manifest& manifest() const { return manifest_; }
  const Digest& manifest_digest() const { return manifest_digest_; }
  // Makes the checkpoint take effect. Call after Finish.
  absl::Status Commit();
  // Returns true if the checkpoint has taken effect. This is possible even if Commit has failed.
  bool committed() const { return committed_; }

 private:
  absl::Status Write(const void* data, int64_t bytes);
  // Ends the current array, and writes zeros up to the next multiple of 64.
  absl::Status EndArray();
  const std::string& path() const { return target_->name(); }

  const std::unique_ptr<CheckpointTarget> target_;
  int64_t at_ = 0;      // bytes written
  int64_t wanted_ = 0;  // bytes that the current array still lacks
  Hasher hasher_;
  std::vector<SavedArray> arrays_;
  Manifest manifest_;
  Digest manifest_digest_{};
  bool finished_ = false, committed_ = false;
};

// Provides the bytes of a checkpoint.
class CheckpointSource {
 public:
  virtual ~CheckpointSource() = default;
  // Returns the name for messages.
  virtual const std::string& name() const = 0;
  // Returns the size in bytes.
  virtual int64_t size() const = 0;
  // Reads [offset, offset + out.size()), which must lie within the size.
  virtual absl::Status ReadAt(int64_t offset, Bytes out) const = 0;
};

// Reads a checkpoint that cannot be trusted. Errors of kInvalidArgument say what is wrong, and
// where.
class CheckpointReader {
 public:
  // Checks the header and the manifest, and that the arrays in the manifest fill the file.
  static absl::StatusOr<std::unique_ptr<CheckpointReader>> Open(
      std::unique_ptr<const CheckpointSource> source);
  // Opens the file of that path.
  static absl::StatusOr<std::unique_ptr<CheckpointReader>> Open(std::string path);

  const Manifest& manifest() const { return manifest_; }
  const Digest& manifest_digest() const { return manifest_digest_; }
  const std::string& path() const { return source_->name(); }

  // Reads the whole array, which must be in this file, and compares its digest. `array` may come
  // from the manifest of this file, or from the manifest of a file that lists this file. Copies
  // `count` elements from `first` on to `out`. After an error the contents of `out` are undefined.
  absl::Status Read(const SavedArray& array, int64_t first, int64_t count, void* out) const;
  // Checks the array's digest without a copy.
  absl::Status Verify(const SavedArray& array) const { return Read(array, 0, 0, nullptr); }

 private:
  explicit CheckpointReader(std::unique_ptr<const CheckpointSource> source)
      : source_(std::move(source)), size_(source_->size()) {}
  absl::Status ReadHeader();
  absl::Status ReadManifest();
  absl::Status CheckLayout() const;
  absl::Status ReadAt(int64_t offset, void* data, int64_t bytes) const;
  // Checks that all bytes from `offset` to the next multiple of 64 are zero.
  absl::Status CheckZeros(int64_t offset) const;
  absl::Status Refuse(absl::string_view why) const;

  const std::unique_ptr<const CheckpointSource> source_;
  const int64_t size_;
  int64_t manifest_bytes_ = 0;
  Digest manifest_digest_{};
  Manifest manifest_;
};

}  // namespace entrain
