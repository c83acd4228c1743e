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
// Where these bytes are is for a CheckpointTarget and a CheckpointSource to say: a file here, functions of the caller's in
// checkpoint_functions.h.
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

// Where the bytes of a checkpoint go. Each byte is written once: those from byte 128 on in order, then the first 128.
class CheckpointTarget {
 public:
  virtual ~CheckpointTarget() = default;
  // The name by which messages call it.
  virtual const std::string& name() const = 0;
  virtual absl::Status WriteAt(int64_t offset, ConstBytes bytes) = 0;
  // Everything has been written: brings it to where this process's end does not reach it.
  virtual absl::Status Flush() = 0;
  // The checkpoint takes effect. *done: it has, whatever is returned.
  virtual absl::Status Publish(bool* done) = 0;
};

// `PATH.tmp`, which takes the place of PATH in one step when it is published. Until then what PATH was is untouched.
class FileTarget final : public CheckpointTarget {
 public:
  // kFailedPrecondition where there is no such directory, none may be written, or another process
  // writes the same file.
  static absl::StatusOr<std::unique_ptr<FileTarget>> Create(std::string path);
  // Removes the temporary file if it was not published.
  ~FileTarget() override;
  FileTarget(const FileTarget&) = delete;
  FileTarget& operator=(const FileTarget&) = delete;

  const std::string& name() const override { return path_; }
  absl::Status WriteAt(int64_t offset, ConstBytes bytes) override;
  absl::Status Flush() override;
  absl::Status Publish(bool* done) override;

  // What a dead process had written to the same temporary file.
  const Unfinished& found() const { return found_; }
  // When this began, by the clock of the file system.
  int64_t begun_ns() const { return begun_ns_; }
  // Writes down, until byte 0 is written, which save the file belongs to, so that others know after this process is killed.
  // 0: to none of several files, as from Create on.
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
  // Creates a writer of the file of that path.
  static absl::StatusOr<std::unique_ptr<CheckpointWriter>> Create(std::string path);
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // An array begins; Append brings its array.bytes(), in any pieces. Offset and digest are filled
  // in here.
  absl::Status Begin(SavedArray array);
  absl::Status Append(ConstBytes bytes);
  // Writes `manifest`, with the arrays that were written before those it has (which are in other
  // files), and flushes the target.
  absl::Status Finish(Manifest manifest);
  // As written by Finish.
  const Manifest& manifest() const { return manifest_; }
  const Digest& manifest_digest() const { return manifest_digest_; }
  // After Finish: the checkpoint takes effect.
  absl::Status Commit();
  // It has; not yet, where Commit failed before that.
  bool committed() const { return committed_; }

 private:
  absl::Status Write(const void* data, int64_t bytes);
  // Ends the array under way; zeros up to where the next thing begins.
  absl::Status EndArray();
  const std::string& path() const { return target_->name(); }

  const std::unique_ptr<CheckpointTarget> target_;
  int64_t at_ = 0;      // bytes written
  int64_t wanted_ = 0;  // bytes that the array under way still lacks
  Hasher hasher_;
  std::vector<SavedArray> arrays_;
  Manifest manifest_;
  Digest manifest_digest_{};
  bool finished_ = false, committed_ = false;
};

// Where the bytes of a checkpoint are.
class CheckpointSource {
 public:
  virtual ~CheckpointSource() = default;
  // The name by which messages call it.
  virtual const std::string& name() const = 0;
  // In bytes.
  virtual int64_t size() const = 0;
  // All of [offset, offset + out.size()), which lies within the size.
  virtual absl::Status ReadAt(int64_t offset, Bytes out) const = 0;
};

// Reads a checkpoint that cannot be trusted. kInvalidArgument says what is wrong with it, and where.
class CheckpointReader {
 public:
  // Checks the header and the manifest, and that the arrays it names fill the file.
  static absl::StatusOr<std::unique_ptr<CheckpointReader>> Open(
      std::unique_ptr<const CheckpointSource> source);
  // The file of that path.
  static absl::StatusOr<std::unique_ptr<CheckpointReader>> Open(std::string path);

  const Manifest& manifest() const { return manifest_; }
  const Digest& manifest_digest() const { return manifest_digest_; }
  const std::string& path() const { return source_->name(); }

  // Reads all of an array in this file, as this manifest or one that refers to it has it, compares its digest, and copies `count` elements from
  // `first` on to `out`; on an error what is there is of no use.
  absl::Status Read(const SavedArray& array, int64_t first, int64_t count, void* out) const;
  // The same for nobody: is the array what was written?
  absl::Status Verify(const SavedArray& array) const { return Read(array, 0, 0, nullptr); }

 private:
  explicit CheckpointReader(std::unique_ptr<const CheckpointSource> source)
      : source_(std::move(source)), size_(source_->size()) {}
  absl::Status ReadHeader();
  absl::Status ReadManifest();
  absl::Status CheckLayout() const;
  absl::Status ReadAt(int64_t offset, void* data, int64_t bytes) const;
  // Everything from `offset` to the next multiple of 64 is zero.
  absl::Status CheckZeros(int64_t offset) const;
  absl::Status Refuse(absl::string_view why) const;

  const std::unique_ptr<const CheckpointSource> source_;
  const int64_t size_;
  int64_t manifest_bytes_ = 0;
  Digest manifest_digest_{};
  Manifest manifest_;
};

}  // namespace entrain
