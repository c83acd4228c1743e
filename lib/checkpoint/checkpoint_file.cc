#include "lib/checkpoint/checkpoint_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/net/fork_close.h"

namespace entrain {
namespace {

constexpr absl::string_view kMagic =
    "\x89"
    "ENTR\r\n\x1a";
constexpr int64_t kHeaderBytes = 96, kHashedHeader = 64;
constexpr int64_t kAlignment = 64;
constexpr int64_t kFirstArray = 128;
// Enough for several hundred thousand arrays.
constexpr int64_t kMostManifest = 256 << 20;
// Bytes that are read and hashed at a time. A piece fits into the cache.
constexpr int64_t kPiece = 256 << 10;

int64_t AlignUp(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

struct Header {
  uint32_t version = 0, zero = 0;
  int64_t manifest_bytes = 0, file_bytes = 0;
  Digest manifest{};
};

std::string Encode(const Header& header) {
  Writer out;
  out.PutRaw(kMagic.data(), kMagic.size())
      .Put(header.version)
      .Put(header.zero)
      .Put(header.manifest_bytes)
      .Put(header.file_bytes)
      .PutRaw(header.manifest.data(), header.manifest.size());
  const Digest digest = DigestOf(AsBytes(out.text()));
  std::string bytes = out.PutRaw(digest.data(), digest.size()).Take();
  bytes.resize(kFirstArray);  // with zeros
  return bytes;
}

// Returns true for an error that the user can fix, such as a missing directory or a missing
// permission.
bool IsUsers(int error) {
  return error == EACCES || error == EPERM || error == ENOENT || error == ENOTDIR ||
         error == EROFS || error == EISDIR || error == ELOOP || error == ENAMETOOLONG;
}

absl::Status FileError(int error, absl::string_view path, absl::string_view doing) {
  const std::string what = absl::StrCat(path, ": cannot ", doing);
  if (IsUsers(error)) {
    return absl::FailedPreconditionError(absl::StrCat(what, ": ", std::strerror(error)));
  }
  if (error == EDQUOT || error == EFBIG) {
    return absl::ResourceExhaustedError(absl::StrCat(what, ": ", std::strerror(error)));
  }
  return ErrnoStatus(error, what);
}

// Returns 0 or an errno value. The new name of a file is on disk only after fsync of its directory.
int SyncDirectory(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string directory =
      slash == std::string::npos ? "." : path.substr(0, std::max<size_t>(slash, 1));
  const Fd fd(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Some file systems do not support fsync of a directory (EINVAL). This is not an error.
  return !fd.valid() || (fsync(fd.get()) != 0 && errno != EINVAL) ? errno : 0;
}

// The first 8 bytes of an unfinished file, in place of the header. A u32 follows: the id of the
// save, or 0.
constexpr absl::string_view kMark(
    "\x89"
    "ENTR"
    "\x00\x00\x00",
    8);

// Returns the id of the save that wrote the complete file NAME.ckpt. The file lists files named
// NAME_RANK_ID.ckpt, and ID is the id.
std::optional<uint32_t> NumberOfFiles(const std::string& path) {
  const auto whole = CheckpointReader::Open(path);
  if (!whole.ok() || (*whole)->manifest().files.empty()) {
    return std::nullopt;
  }
  absl::string_view name = (*whole)->manifest().files[0].name;
  uint32_t id = 0;
  return absl::ConsumeSuffix(&name, ".ckpt") && name.size() > 8 &&
                 absl::SimpleHexAtoi(name.substr(name.size() - 8), &id)
             ? std::optional<uint32_t>(id)
             : std::nullopt;
}

}  // namespace

// ---- Writing -----------------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<FileTarget>> FileTarget::Create(std::string path, bool takes_over) {
  const std::string temporary = path + ".tmp";
  const auto open_with = [&](int flags) {
    return OpenClosedOnFork([&] {
      return open(temporary.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | flags, 0644);
    });
  };
  // Opens the existing file if a dead process has left one.
  Fd fd = open_with(0);
  if (!fd.valid()) {
    return FileError(errno, path, absl::StrCat("create ", temporary));
  }
  bool locked = flock(fd.get(), LOCK_EX | LOCK_NB) == 0;
  if (!locked && takes_over) {
    unlink(temporary.c_str());
    fd = open_with(O_EXCL);
    locked = fd.valid() && flock(fd.get(), LOCK_EX | LOCK_NB) == 0;
  }
  if (!locked) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": somebody else is writing ", temporary));
  }
  // Another writer may have renamed the file and closed it between open and flock.
  struct stat opened {
  }, named{};
  if (fstat(fd.get(), &opened) != 0 || stat(temporary.c_str(), &named) != 0 ||
      opened.st_ino != named.st_ino || opened.st_dev != named.st_dev) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": somebody else has just written it"));
  }
  const Unfinished found = ReadUnfinished(fd.get(), temporary);
  // Changes the file even if it is empty, so that its change time is now.
  if (ftruncate(fd.get(), 1) != 0 || ftruncate(fd.get(), 0) != 0 || fstat(fd.get(), &opened) != 0) {
    return FileError(errno, path, absl::StrCat("write ", temporary));
  }
  const int64_t begun_ns = opened.st_ctim.tv_sec * kSecond + opened.st_ctim.tv_nsec;
  std::unique_ptr<FileTarget> file(new FileTarget(std::move(path), std::move(fd), found, begun_ns));
  ENTRAIN_RETURN_IF_ERROR(file->Mark(0));
  return file;
}

FileTarget::FileTarget(std::string path, Fd fd, const Unfinished& found, int64_t begun_ns)
    : path_(std::move(path)),
      temporary_(path_ + ".tmp"),
      fd_(std::move(fd)),
      found_(found),
      begun_ns_(begun_ns) {}

FileTarget::~FileTarget() {
  if (!published_ && HasItsName()) {
    unlink(temporary_.c_str());
  }
}

// Returns false if another process has taken over the name of the temporary file.
bool FileTarget::HasItsName() const {
  struct stat mine {
  }, named{};
  return fstat(fd_.get(), &mine) == 0 && stat(temporary_.c_str(), &named) == 0 &&
         mine.st_ino == named.st_ino && mine.st_dev == named.st_dev;
}

Unfinished ReadUnfinished(int fd, const std::string& path) {
  std::array<char, kFirstArray> bytes{};
  const ssize_t got = pread(fd, bytes.data(), bytes.size(), 0);
  if (got < 0) {
    return {};
  }
  const absl::string_view text(bytes.data(), static_cast<size_t>(got));
  if (absl::StartsWith(text, kMagic)) {
    return {true, NumberOfFiles(path)};
  }
  Reader reader(text);
  const bool marked = reader.GetRaw(kMark.size()) == kMark;
  const auto id = reader.Get<uint32_t>();
  const bool rest =
      text.find_first_not_of('\0', kMark.size() + sizeof(id)) == absl::string_view::npos;
  if (!marked || !reader.ok() || !rest) {
    return {};
  }
  return {true, id == 0 ? std::nullopt : std::optional<uint32_t>(id)};
}

absl::Status FileTarget::Mark(uint32_t id) {
  return WriteAt(0, AsBytes(Writer().PutRaw(kMark.data(), kMark.size()).Put(id).Take()));
}

absl::Status FileTarget::Error(int error, absl::string_view doing) const {
  return FileError(error, path_, absl::StrCat(doing, " ", temporary_));
}

absl::Status FileTarget::WriteAt(int64_t offset, ConstBytes bytes) {
  while (!bytes.empty()) {
    const ssize_t wrote = pwrite(fd_.get(), bytes.data(), bytes.size(), offset);
    if (wrote < 0 && errno != EINTR) {
      return Error(errno, "write");
    }
    if (wrote > 0) {
      bytes = bytes.subspan(static_cast<size_t>(wrote));
      offset += wrote;
    }
  }
  return absl::OkStatus();
}

absl::Status FileTarget::Flush() {
  return fsync(fd_.get()) == 0 ? absl::OkStatus() : Error(errno, "bring to the disk");
}

absl::Status FileTarget::Publish(bool* done) {
  if (!HasItsName()) {
    return absl::AbortedError(absl::StrCat(
        path_, ": another rank has taken over this save, because this one was silent"));
  }
  if (rename(temporary_.c_str(), path_.c_str()) != 0) {
    return FileError(errno, path_, absl::StrCat("rename ", temporary_));
  }
  *done = published_ = true;
  const int error = SyncDirectory(path_);
  return error == 0 ? absl::OkStatus() : FileError(error, path_, "bring its name to the disk");
}

CheckpointWriter::CheckpointWriter(std::unique_ptr<CheckpointTarget> target)
    : target_(std::move(target)), at_(kFirstArray) {}

absl::StatusOr<std::unique_ptr<CheckpointWriter>> CheckpointWriter::Create(std::string path) {
  ENTRAIN_ASSIGN_OR_RETURN(auto file, FileTarget::Create(std::move(path)));
  return std::make_unique<CheckpointWriter>(std::move(file));
}

absl::Status CheckpointWriter::Write(const void* data, int64_t bytes) {
  ENTRAIN_RETURN_IF_ERROR(
      target_->WriteAt(at_, {static_cast<const std::byte*>(data), static_cast<size_t>(bytes)}));
  at_ += bytes;
  return absl::OkStatus();
}

absl::Status CheckpointWriter::Begin(SavedArray array) {
  ENTRAIN_RETURN_IF_ERROR(EndArray());
  wanted_ = array.bytes();
  array.offset = at_;
  arrays_.push_back(std::move(array));
  hasher_ = Hasher();
  return absl::OkStatus();
}

absl::Status CheckpointWriter::Append(ConstBytes bytes) {
  const auto more = static_cast<int64_t>(bytes.size());
  if (more > wanted_) {
    return absl::InternalError(absl::StrCat(path(), ": ", more - wanted_, " bytes too many for ",
                                            Describe(arrays_.back())));
  }
  wanted_ -= more;
  hasher_.Add(bytes);
  return Write(bytes.data(), more);
}

absl::Status CheckpointWriter::EndArray() {
  if (arrays_.empty()) {
    return absl::OkStatus();
  }
  if (wanted_ != 0) {
    return absl::InternalError(
        absl::StrCat(path(), ": ", wanted_, " bytes too few for ", Describe(arrays_.back())));
  }
  arrays_.back().digest = hasher_.Finish();
  const char zeros[kAlignment] = {};
  return Write(zeros, AlignUp(at_) - at_);
}

absl::Status CheckpointWriter::Finish(Manifest manifest) {
  ENTRAIN_RETURN_IF_ERROR(EndArray());
  manifest.arrays.insert(manifest.arrays.begin(), std::make_move_iterator(arrays_.begin()),
                         std::make_move_iterator(arrays_.end()));
  const std::string json = ToJson(manifest);
  Header header{.version = kCheckpointVersion,
                .manifest_bytes = static_cast<int64_t>(json.size()),
                .file_bytes = at_ + static_cast<int64_t>(json.size()),
                .manifest = DigestOf(AsBytes(json))};
  if (header.manifest_bytes > kMostManifest) {
    return absl::ResourceExhaustedError(
        absl::StrCat(path(), ": the manifest of ", manifest.arrays.size(), " arrays has ",
                     json.size(), " bytes, more than ", kMostManifest));
  }
  ENTRAIN_RETURN_IF_ERROR(Write(json.data(), header.manifest_bytes));
  ENTRAIN_RETURN_IF_ERROR(target_->WriteAt(0, AsBytes(Encode(header))));
  ENTRAIN_RETURN_IF_ERROR(target_->Flush());
  finished_ = true;
  manifest_ = std::move(manifest);
  manifest_digest_ = header.manifest;
  return absl::OkStatus();
}

absl::Status CheckpointWriter::Commit() {
  if (!finished_ || committed_) {
    return absl::InternalError(absl::StrCat(path(), ": commit of a file that is not finished"));
  }
  return target_->Publish(&committed_);
}

// ---- Reading -----------------------------------------------------------------------------------

namespace {

class FileSource final : public CheckpointSource {
 public:
  static absl::StatusOr<std::unique_ptr<const CheckpointSource>> Open(std::string path) {
    Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat stat {};
    if (!fd.valid() || fstat(fd.get(), &stat) != 0) {
      return FileError(errno, path, "open it");
    }
    if (!S_ISREG(stat.st_mode)) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": is not a file"));
    }
    return std::make_unique<FileSource>(std::move(path), std::move(fd), stat.st_size);
  }
  FileSource(std::string path, Fd fd, int64_t size)
      : path_(std::move(path)), fd_(std::move(fd)), size_(size) {}

  const std::string& name() const override { return path_; }
  int64_t size() const override { return size_; }
  absl::Status ReadAt(int64_t offset, Bytes out) const override {
    while (!out.empty()) {
      const ssize_t got = pread(fd_.get(), out.data(), out.size(), offset);
      if (got < 0 && errno != EINTR) {
        return FileError(errno, path_, absl::StrCat("read byte ", offset));
      }
      if (got == 0) {
        return absl::InvalidArgumentError(absl::StrCat(
            path_, ": ends at byte ", offset, ", though it had ", size_, " when it was opened"));
      }
      if (got > 0) {
        out = out.subspan(static_cast<size_t>(got));
        offset += got;
      }
    }
    return absl::OkStatus();
  }

 private:
  const std::string path_;
  const Fd fd_;
  const int64_t size_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CheckpointReader>> CheckpointReader::Open(std::string path) {
  ENTRAIN_ASSIGN_OR_RETURN(auto source, FileSource::Open(std::move(path)));
  return Open(std::move(source));
}

absl::StatusOr<std::unique_ptr<CheckpointReader>> CheckpointReader::Open(
    std::unique_ptr<const CheckpointSource> source) {
  std::unique_ptr<CheckpointReader> reader(new CheckpointReader(std::move(source)));
  ENTRAIN_RETURN_IF_ERROR(reader->ReadHeader());
  ENTRAIN_RETURN_IF_ERROR(reader->ReadManifest());
  ENTRAIN_RETURN_IF_ERROR(reader->CheckLayout());
  return reader;
}

absl::Status CheckpointReader::Refuse(absl::string_view why) const {
  return absl::InvalidArgumentError(absl::StrCat(path(), ": ", why));
}

absl::Status CheckpointReader::ReadAt(int64_t offset, void* data, int64_t bytes) const {
  return source_->ReadAt(offset, {static_cast<std::byte*>(data), static_cast<size_t>(bytes)});
}

absl::Status CheckpointReader::ReadHeader() {
  std::string bytes(static_cast<size_t>(std::min(size_, kHeaderBytes)), '\0');
  ENTRAIN_RETURN_IF_ERROR(ReadAt(0, bytes.data(), static_cast<int64_t>(bytes.size())));
  if (absl::string_view(bytes).substr(0, kMagic.size()) != kMagic) {
    return Refuse("is not a checkpoint: it does not begin as one");
  }
  if (size_ < kHeaderBytes) {
    return Refuse(absl::StrCat("is cut off: it has ", size_, " bytes, and the header alone has ",
                               kHeaderBytes));
  }
  Reader in(absl::string_view(bytes).substr(kMagic.size()));
  const auto version = in.Get<uint32_t>();
  const auto zero = in.Get<uint32_t>();
  manifest_bytes_ = in.Get<int64_t>();
  const auto file_bytes = in.Get<int64_t>();
  std::memcpy(manifest_digest_.data(), in.GetRaw(sizeof(Digest)).data(), sizeof(Digest));
  const Digest own = DigestOf(AsBytes(absl::string_view(bytes).substr(0, kHashedHeader)));
  const bool damaged = std::memcmp(own.data(), bytes.data() + kHashedHeader, sizeof(own)) != 0;
  if (version > kCheckpointVersion) {
    return Refuse(absl::StrCat("has format version ", version, "; this library reads up to ",
                               kCheckpointVersion, damaged ? " (or its header is damaged)" : ""));
  }
  if (damaged) {
    return Refuse("the header is damaged: its SHA-256 differs from the one it gives");
  }
  if (version < 1 || zero != 0) {
    return Refuse(absl::StrCat("has format version ", version, ", flags ", zero,
                               ", which no library writes"));
  }
  if (file_bytes != size_) {
    return Refuse(absl::StrCat(size_ < file_bytes ? "is cut off" : "has something appended",
                               ": it has ", size_, " bytes, and had ", file_bytes,
                               " when it was written"));
  }
  return CheckZeros(kHeaderBytes);
}

absl::Status CheckpointReader::ReadManifest() {
  const int64_t most = std::min(kMostManifest, size_ - kFirstArray);
  if (manifest_bytes_ < 1 || manifest_bytes_ > most) {
    return Refuse(absl::StrCat("the header says that the manifest has ", manifest_bytes_,
                               " bytes; 1 to ", most, " are possible"));
  }
  std::string json(static_cast<size_t>(manifest_bytes_), '\0');
  ENTRAIN_RETURN_IF_ERROR(ReadAt(size_ - manifest_bytes_, json.data(), manifest_bytes_));
  const Digest found = DigestOf(AsBytes(json));
  if (found != manifest_digest_) {
    return Refuse(absl::StrCat("the manifest is damaged: its SHA-256 is ", ToHex(found), ", not ",
                               ToHex(manifest_digest_)));
  }
  auto manifest = ParseManifest(json);
  if (!manifest.ok()) {
    return Annotate(manifest.status(), path());
  }
  manifest_ = *std::move(manifest);
  return absl::OkStatus();
}

// Each array must begin where the one before it ends. The manifest must follow the last array.
absl::Status CheckpointReader::CheckLayout() const {
  const int64_t end = size_ - manifest_bytes_;
  int64_t at = kFirstArray;
  for (const SavedArray& array : manifest_.arrays) {
    if (array.file != 0) {
      continue;  // in another file
    }
    if (array.offset != at || array.bytes() > end - at) {
      return Refuse(absl::StrCat("manifest: ", Describe(array), " of ", array.bytes(),
                                 " bytes cannot lie at byte ", array.offset, ": ", at, " to ", end,
                                 " are free"));
    }
    at = AlignUp(at + array.bytes());
  }
  if (at != end) {
    return Refuse(absl::StrCat("manifest: the arrays end at byte ", at,
                               ", but the manifest begins at ", end));
  }
  return absl::OkStatus();
}

absl::Status CheckpointReader::CheckZeros(int64_t offset) const {
  char bytes[kAlignment] = {};
  const int64_t count = std::min(AlignUp(offset), size_) - offset;
  ENTRAIN_RETURN_IF_ERROR(ReadAt(offset, bytes, count));
  for (int64_t i = 0; i < count; ++i) {
    if (bytes[i] != 0) {
      return Refuse(absl::StrCat("is damaged at byte ", offset + i, ", which must be 0"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckpointReader::Read(const SavedArray& array, int64_t first, int64_t count,
                                    void* out) const {
  const int64_t begin = first * SizeOf(array.dtype), end = begin + count * SizeOf(array.dtype);
  Hasher hasher;
  std::vector<std::byte> piece(static_cast<size_t>(std::min(kPiece, array.bytes())));
  for (int64_t at = 0; at < array.bytes(); at += kPiece) {
    const int64_t bytes = std::min(kPiece, array.bytes() - at);
    ENTRAIN_RETURN_IF_ERROR(ReadAt(array.offset + at, piece.data(), bytes));
    hasher.Add({piece.data(), static_cast<size_t>(bytes)});
    const int64_t from = std::max(at, begin), to = std::min(at + bytes, end);
    if (from < to) {
      std::memcpy(static_cast<std::byte*>(out) + (from - begin), piece.data() + (from - at),
                  static_cast<size_t>(to - from));
    }
  }
  const Digest found = hasher.Finish();
  if (found != array.digest) {
    return Refuse(absl::StrCat(Describe(array), " is damaged: the SHA-256 of its bytes ",
                               array.offset, " to ", array.offset + array.bytes(), " is ",
                               ToHex(found), ", not ", ToHex(array.digest)));
  }
  return CheckZeros(array.offset + array.bytes());
}

}  // namespace entrain
