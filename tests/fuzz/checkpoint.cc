// A checkpoint that cannot be trusted: the text of its manifest, the bytes of its file, and the
// bytes that a killed save has left.
#include <sys/mman.h>
#include <unistd.h>

#include "lib/checkpoint/checkpoint_file.h"
#include "lib/checkpoint/leftovers.h"
#include "tests/fuzz/target.h"

namespace entrain::fuzz {
namespace {

enum Kind : uint8_t { kManifest, kFile, kRepairedFile, kUnfinished, kKinds };
constexpr size_t kHeader = 128, kHashed = 64, kManifestBytesAt = 16, kFileBytesAt = 24,
                 kManifestDigestAt = 32;

class Memory final : public CheckpointSource {
 public:
  explicit Memory(std::string bytes) : bytes_(std::move(bytes)) {}
  const std::string& name() const override { return name_; }
  int64_t size() const override { return static_cast<int64_t>(bytes_.size()); }
  absl::Status ReadAt(int64_t offset, Bytes out) const override {
    FUZZ_CHECK(offset >= 0 && offset <= size() &&
               static_cast<int64_t>(out.size()) <= size() - offset);
    std::memcpy(out.data(), bytes_.data() + offset, out.size());
    return absl::OkStatus();
  }

 private:
  const std::string name_ = "memory";
  const std::string bytes_;
};

class MemoryTarget final : public CheckpointTarget {
 public:
  explicit MemoryTarget(std::string* bytes) : bytes_(*bytes) {}
  const std::string& name() const override { return name_; }
  absl::Status WriteAt(int64_t offset, ConstBytes bytes) override {
    const auto at = static_cast<size_t>(offset);
    bytes_.resize(std::max(bytes_.size(), at + bytes.size()));
    std::memcpy(&bytes_[at], bytes.data(), bytes.size());
    return absl::OkStatus();
  }
  absl::Status Flush() override { return absl::OkStatus(); }
  absl::Status Publish(bool* done) override {
    *done = true;
    return absl::OkStatus();
  }

 private:
  const std::string name_ = "memory";
  std::string& bytes_;
};

void CheckManifest(absl::string_view text) {
  const auto manifest = ParseManifest(text);
  if (!manifest.ok()) {
    FUZZ_CHECK(manifest.status().code() == absl::StatusCode::kInvalidArgument);
    return;
  }
  for (const SavedArray& array : manifest->arrays) {
    FUZZ_CHECK(IsArrayName(array.name) && array.count >= 0 && array.bytes() >= 0 &&
               array.offset >= 0);
    FUZZ_CHECK(array.file >= 0 && static_cast<size_t>(array.file) <= manifest->files.size());
    FUZZ_CHECK(!Describe(array).empty());
  }
  const std::string written = ToJson(*manifest);
  const auto again = ParseManifest(written);
  FUZZ_CHECK(again.ok() && ToJson(*again) == written);
}

void ReadFile(const std::string& bytes) {
  const auto reader = CheckpointReader::Open(std::make_unique<Memory>(bytes));
  if (!reader.ok()) {
    FUZZ_CHECK(reader.status().code() == absl::StatusCode::kInvalidArgument);
    return;
  }
  for (const SavedArray& array : (*reader)->manifest().arrays) {
    if (array.file == 0) {
      std::vector<std::byte> out(static_cast<size_t>(array.bytes()));
      (void)(*reader)->Read(array, 0, array.count, out.data());
      (void)(*reader)->Verify(array);
    }
  }
}

// Enters the right sizes and digests, which no mutation finds, so that the code behind these checks
// is reached.
std::string Repaired(std::string bytes, size_t manifest_bytes) {
  if (bytes.size() < kHeader) {
    return bytes;
  }
  manifest_bytes = std::min(manifest_bytes, bytes.size() - kHeader);
  const auto put = [&](size_t at, const auto& value) {
    std::memcpy(&bytes[at], &value, sizeof(value));
  };
  put(kManifestBytesAt, int64_t(manifest_bytes));
  put(kFileBytesAt, int64_t(bytes.size()));
  put(kManifestDigestAt,
      DigestOf(AsBytes(absl::string_view(bytes).substr(bytes.size() - manifest_bytes))));
  put(kHashed, DigestOf(AsBytes(absl::string_view(bytes).substr(0, kHashed))));
  return bytes;
}

void LookAtUnfinished(absl::string_view bytes) {
  const Fd file(memfd_create("fuzz", MFD_CLOEXEC));
  FUZZ_CHECK(file.valid());
  FUZZ_CHECK(write(file.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  (void)ReadUnfinished(file.get(), "/nowhere/run.ckpt.tmp");
}

Manifest SmallManifest() {
  Manifest manifest;
  manifest.kind = CheckpointKind::kExact;
  manifest.step = 12;
  manifest.mesh = {1, 1, 1, 2, 2};
  manifest.parts = {{{.count = 3}, {.count = 5, .frozen = true}}};
  return manifest;
}

std::string SmallFile(size_t* manifest_bytes) {
  std::string bytes;
  CheckpointWriter writer(std::make_unique<MemoryTarget>(&bytes));
  const float anchor[3] = {1, 2, 3};
  const int64_t counters[2] = {4, -5};
  const auto append = [&](const SavedArray& array, const void* data) {
    FUZZ_CHECK(writer.Begin(array).ok());
    FUZZ_CHECK(
        writer.Append({static_cast<const std::byte*>(data), static_cast<size_t>(array.bytes())})
            .ok());
  };
  append({.name = "anchor", .part = 0, .layer = 0, .count = 3}, anchor);
  append({.name = "counters", .rank = 1, .count = 2, .dtype = DType::kI64}, counters);
  FUZZ_CHECK(writer.Finish(SmallManifest()).ok());
  FUZZ_CHECK(writer.Commit().ok());
  *manifest_bytes = ToJson(writer.manifest()).size();
  return bytes;
}

}  // namespace

void FuzzOne(absl::string_view input) {
  Input in(input);
  switch (in.Byte() % kKinds) {
    case kManifest:
      CheckManifest(in.Rest());
      return;
    case kFile:
      ReadFile(std::string(in.Rest()));
      return;
    case kRepairedFile: {
      const auto manifest_bytes = in.Number<uint16_t>();
      ReadFile(Repaired(std::string(in.Rest()), manifest_bytes));
      return;
    }
    default:
      LookAtUnfinished(in.Rest());
  }
}

std::vector<std::string> FuzzSeeds() {
  size_t manifest_bytes = 0;
  const std::string file = SmallFile(&manifest_bytes);
  const std::string text = file.substr(file.size() - manifest_bytes);
  Manifest several = SmallManifest();
  several.files = {{.name = PartName("run", 1, 7)}};
  several.arrays = {
      {.name = "anchor", .part = 0, .layer = 0, .first = 1, .count = 2, .file = 1, .offset = 128}};
  return {
      Script().Byte(kManifest).Raw(text).Take(),
      Script().Byte(kManifest).Raw(ToJson(several)).Take(),
      Script().Byte(kFile).Raw(file).Take(),
      Script().Byte(kRepairedFile).Number(static_cast<uint16_t>(manifest_bytes)).Raw(file).Take(),
      Script().Byte(kUnfinished).Raw(file).Take(),
      Script().Byte(kUnfinished).Raw(file.substr(0, 100)).Take(),
  };
}

}  // namespace entrain::fuzz
