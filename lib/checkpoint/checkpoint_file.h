// One file of arrays that is either complete or absent. The layout (offset and length in bytes,
// integers little-endian):
//
//      0   8  89 'E' 'N' 'T' 'R' 0d 0a 1a (a transfer in text mode changes some of these bytes)
//      8   4  format version, 1
//     12   4  zero
//     16   8  number of bytes of the manifest
//     24   8  number of bytes of the file
//     32  32  SHA-256 of the manifest
//     64  32  SHA-256 of bytes 0 to 63
//     96  32  zero
//    128      the arrays; each begins at a multiple of 64, with zeros before it
//             the manifest (JSON); begins at a multiple of 64 and ends with the file
//
// A damaged byte is always detected. The header has a hash of itself and of the manifest. The
// manifest has a hash of each array. All other bytes must be zero.
//
// A CheckpointTarget writes these bytes, and a CheckpointSource reads them. In this file both use a
// file on disk. In checkpoint_functions.h both use functions of the caller.
//
// Thread safety: an object may be used by one thread at a time. Every error text begins with the
// path.
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

// Says whether a file is an unfinished checkpoint.
struct Unfinished {
  bool is = false;  // the file begins with FileTarget's mark, or with a complete header
  std::optional<uint32_t>
      id;  // the id of the save that wrote the file, if the save has several files
};
// Examines the open file `fd`. `path` is its path.
Unfinished ReadUnfinished(int fd, const std::string& path);

// Writes the bytes of a checkpoint. Each byte is written once: first the bytes from 128 on, in
// order, then the first 128.
class CheckpointTarget {
 public:
  virtual ~CheckpointTarget() = default;
  // Returns the name for error texts.
  virtual const std::string& name() const = 0;
  virtual absl::Status WriteAt(int64_t offset, ConstBytes bytes) = 0;
  // Called after all bytes were written. Makes the bytes survive the end of this process.
  virtual absl::Status Flush() = 0;
  // Makes the checkpoint take effect. Sets *done if it has taken effect, even if Publish then
  // returns an error.
  virtual absl::Status Publish(bool* done) = 0;
};

// Writes the file PATH.tmp. Publish renames this file to PATH. PATH does not change before that.
class FileTarget final : public CheckpointTarget {
 public:
  // Returns kFailedPrecondition if the directory does not exist or is not writable, or if another
  // process is writing the same file. With `takes_over`, takes the name PATH.tmp from that process,
  // which may be stopped; its Publish then fails.
  static absl::StatusOr<std::unique_ptr<FileTarget>> Create(std::string path,
                                                            bool takes_over = false);
  // Removes the temporary file if it has not been published or taken over.
  ~FileTarget() override;
  FileTarget(const FileTarget&) = delete;
  FileTarget& operator=(const FileTarget&) = delete;

  const std::string& name() const override { return path_; }
  absl::Status WriteAt(int64_t offset, ConstBytes bytes) override;
  absl::Status Flush() override;
  absl::Status Publish(bool* done) override;

  // Describes the file that Create found at PATH.tmp. A dead process has left that file.
  const Unfinished& found() const { return found_; }
  // Returns the time of Create, by the clock of the file system.
  int64_t begun_ns() const { return begun_ns_; }
  // Writes a mark with the id of this save where the header will be. If this process is killed,
  // other processes can read the mark. The header overwrites the mark. Id 0 means that the save has
  // no other files; Create writes a mark with id 0.
  absl::Status Mark(uint32_t id);

 private:
  FileTarget(std::string path, Fd fd, const Unfinished& found, int64_t begun_ns);
  absl::Status Error(int error, absl::string_view doing) const;
  bool HasItsName() const;

  const std::string path_, temporary_;
  Fd fd_;
  const Unfinished found_;
  const int64_t begun_ns_;
  bool published_ = false;
};

class CheckpointWriter {
 public:
  explicit CheckpointWriter(std::unique_ptr<CheckpointTarget> target);
  // Creates a writer for the file at `path`.
  static absl::StatusOr<std::unique_ptr<CheckpointWriter>> Create(std::string path);
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Begin starts an array. Append adds its bytes, array.bytes() in all, in one or more calls. The
  // writer sets array.offset and array.digest.
  absl::Status Begin(SavedArray array);
  absl::Status Append(ConstBytes bytes);
  // Writes `manifest` and flushes the target. `manifest` must already list the arrays of other
  // files. Finish inserts the arrays that this object has written before those.
  absl::Status Finish(Manifest manifest);
  // Returns the manifest that Finish wrote.
  const Manifest& manifest() const { return manifest_; }
  const Digest& manifest_digest() const { return manifest_digest_; }
  // Makes the checkpoint take effect. Must be called after Finish.
  absl::Status Commit();
  // Returns true if the checkpoint has taken effect. Can be true even if Commit has failed.
  bool committed() const { return committed_; }

 private:
  absl::Status Write(const void* data, int64_t bytes);
  // Ends the current array and writes zeros up to the next multiple of 64.
  absl::Status EndArray();
  const std::string& path() const { return target_->name(); }

  const std::unique_ptr<CheckpointTarget> target_;
  int64_t at_ = 0;      // bytes written
  int64_t wanted_ = 0;  // bytes of the current array that are not yet appended
  Hasher hasher_;
  std::vector<SavedArray> arrays_;
  Manifest manifest_;
  Digest manifest_digest_{};
  bool finished_ = false, committed_ = false;
};

// Reads the bytes of a checkpoint.
class CheckpointSource {
 public:
  virtual ~CheckpointSource() = default;
  // Returns the name for error texts.
  virtual const std::string& name() const = 0;
  // Returns the number of bytes.
  virtual int64_t size() const = 0;
  // Reads the bytes from `offset` to offset + out.size() - 1. All of them must lie within size().
  virtual absl::Status ReadAt(int64_t offset, Bytes out) const = 0;
};

// Reads a checkpoint that cannot be trusted. If the contents are wrong, returns kInvalidArgument
// with the reason and the place.
class CheckpointReader {
 public:
  // Checks the header and the manifest, and checks that the arrays in the manifest fill the file.
  static absl::StatusOr<std::unique_ptr<CheckpointReader>> Open(
      std::unique_ptr<const CheckpointSource> source);
  // Opens the file at `path`.
  static absl::StatusOr<std::unique_ptr<CheckpointReader>> Open(std::string path);

  const Manifest& manifest() const { return manifest_; }
  const Digest& manifest_digest() const { return manifest_digest_; }
  const std::string& path() const { return source_->name(); }

  // Reads the whole array and compares its digest. Copies `count` elements, beginning with element
  // `first`, to `out`. The bytes of the array must be in this file. `array` may come from the
  // manifest of this file, or from the manifest of another file that lists this file. After an
  // error, the contents of `out` are undefined.
  absl::Status Read(const SavedArray& array, int64_t first, int64_t count, void* out) const;
  // Checks the digest of the array and copies nothing.
  absl::Status Verify(const SavedArray& array) const { return Read(array, 0, 0, nullptr); }

 private:
  explicit CheckpointReader(std::unique_ptr<const CheckpointSource> source)
      : source_(std::move(source)), size_(source_->size()) {}
  absl::Status ReadHeader();
  absl::Status ReadManifest();
  absl::Status CheckLayout() const;
  absl::Status ReadAt(int64_t offset, void* data, int64_t bytes) const;
  // Checks that the bytes from `offset` to the next multiple of 64 are zero.
  absl::Status CheckZeros(int64_t offset) const;
  absl::Status Refuse(absl::string_view why) const;

  const std::unique_ptr<const CheckpointSource> source_;
  const int64_t size_;
  int64_t manifest_bytes_ = 0;
  Digest manifest_digest_{};
  Manifest manifest_;
};

}  // namespace entrain
