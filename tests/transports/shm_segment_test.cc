#include <cstring>
#include <string>

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "transports/shm/segment.h"

namespace entrain::shm {
namespace {

using testing::HasSubstr;

constexpr size_t kRing = 64 << 10;

Segment Make() {
  absl::StatusOr<Segment> segment = Segment::Create(kRing);
  EXPECT_TRUE(segment.ok()) << segment.status();
  return *std::move(segment);
}
Fd Duplicate(int fd) {
  return Fd(fcntl(fd, F_DUPFD_CLOEXEC, 0));
}
// Makes a memfd of `bytes` with `seals`.
Fd Memory(size_t bytes, int seals) {
  Fd fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}
size_t SizeOf(const Segment& segment) {
  return static_cast<size_t>(lseek(segment.fd(), 0, SEEK_END));
}

TEST(ShmSegment, BothMappingsShareWordsAndRings) {
  Segment mine = Make();
  absl::StatusOr<Segment> theirs = Segment::Adopt(Duplicate(mine.fd()));
  ASSERT_TRUE(theirs.ok()) << theirs.status();
  EXPECT_EQ(theirs->ring_bytes(), kRing);
  mine.side(0).head = 1;
  mine.revoked(1, 0) = 2;
  mine.revoked(1, Side::kFirstContexts) = 4;
  mine.revoked(1, Side::kContexts - 1) = 8;
  theirs->side(1).sleeping = kForData;
  std::memset(mine.ring(0), 0x11, kRing);
  std::memset(mine.ring(1), 0x22, kRing);
  EXPECT_EQ(theirs->side(0).head, 1u);
  EXPECT_EQ(theirs->revoked(1, 63), 2u);
  EXPECT_EQ(theirs->revoked(1, Side::kFirstContexts + 63), 4u);
  EXPECT_EQ(theirs->revoked(1, Side::kContexts - 64), 8u);
  EXPECT_EQ(theirs->revoked(0, Side::kFirstContexts - 1), 0u);
  EXPECT_EQ(mine.side(1).sleeping, uint32_t{kForData});
  EXPECT_EQ(theirs->ring(0)[kRing - 1], std::byte{0x11});
  EXPECT_EQ(theirs->ring(1)[0], std::byte{0x22});
  EXPECT_EQ(theirs->ring(1)[kRing - 1], std::byte{0x22});
  EXPECT_EQ(mine.side(0).closed, 0u);
}

size_t Exists(const Segment& segment) {
  struct stat info {};
  EXPECT_EQ(fstat(segment.fd(), &info), 0);
  return static_cast<size_t>(info.st_blocks) * 512;
}

// Two processes share the segment, so each of them pays half of it per peer.
TEST(ShmSegment, HasFewPagesUntilARingIsReserved) {
  const Segment segment = Make();
  EXPECT_GE(Exists(segment), Segment::kPage + 2 * Segment::kFirstOfRing);
  EXPECT_LE(Exists(segment), size_t{2} * (10 << 10));
  const absl::StatusOr<Segment> theirs = Segment::Adopt(Fd(dup(segment.fd())));
  ASSERT_TRUE(theirs.ok()) << theirs.status();
  EXPECT_LE(Exists(segment), size_t{2} * (10 << 10)) << "adopting takes no more";
  ASSERT_TRUE(segment.ReserveRing(0).ok());
  EXPECT_GE(Exists(segment), kRing);
  EXPECT_LT(Exists(segment), 2 * kRing);
  ASSERT_TRUE(theirs->ReserveRing(1).ok());
  EXPECT_GE(Exists(segment), 2 * kRing);
}

TEST(ShmSegment, HasTheWordsOfFewContextsUntilAllAreReserved) {
  const Segment segment = Make();
  const auto page_of = [&](int number, size_t context) {
    return reinterpret_cast<uintptr_t>(&segment.revoked(number, context)) / Segment::kPage -
           reinterpret_cast<uintptr_t>(&segment.side(0)) / Segment::kPage;
  };
  for (const int number : {0, 1}) {
    EXPECT_EQ(page_of(number, Side::kFirstContexts - 1), 0u);
    EXPECT_GT(page_of(number, Side::kFirstContexts), 0u);
  }
  const size_t before = Exists(segment);
  ASSERT_TRUE(segment.ReserveWords(0).ok());
  EXPECT_EQ(Exists(segment), before + 2 * Segment::kPage);
  ASSERT_TRUE(segment.ReserveWords(1).ok());
  EXPECT_EQ(Exists(segment), before + 4 * Segment::kPage);
  for (const int number : {0, 1}) {
    segment.revoked(number, Side::kContexts - 1) = 1;
  }
  EXPECT_EQ(Exists(segment), before + 4 * Segment::kPage);
}

TEST(ShmSegment, TheSizeIsSealed) {
  const Segment segment = Make();
  struct stat info {};
  ASSERT_EQ(fstat(segment.fd(), &info), 0);
  EXPECT_NE(ftruncate(segment.fd(), 0), 0);
  EXPECT_NE(ftruncate(segment.fd(), info.st_size * 2), 0);
  EXPECT_NE(fcntl(segment.fd(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(ShmSegment, ShortageIsAnErrorThatNamesTheSize) {
  // Runs in a separate process, because the limit cannot be raised again. A file may not grow
  // beyond the limit, as if memory were short.
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit small{64 << 10, 64 << 10};
    setrlimit(RLIMIT_FSIZE, &small);
    const absl::StatusOr<Segment> segment = Segment::Create(kRing);
    const bool named = segment.status().message().find("bytes") != absl::string_view::npos;
    _exit(absl::IsResourceExhausted(segment.status()) && named ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(ShmSegment, RefusesRingSizesThatItCannotLayOut) {
  for (const size_t bytes : {size_t{0}, size_t{4096}, kRing + 1, 3 * kRing, size_t{1} << 30}) {
    const absl::StatusOr<Segment> segment = Segment::Create(bytes);
    EXPECT_EQ(segment.status().code(), absl::StatusCode::kInvalidArgument) << bytes;
    EXPECT_THAT(std::string(segment.status().message()), HasSubstr(std::to_string(bytes)));
  }
}

TEST(ShmSegment, AdoptRefusesWhatIsNotASegment) {
  const size_t size = SizeOf(Make());
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  EXPECT_THAT(std::string(Segment::Adopt(Memory(size, 0)).status().message()), HasSubstr("sealed"));
  EXPECT_FALSE(Segment::Adopt(Memory(size, F_SEAL_GROW)).ok()) << "could be cut short under us";
  EXPECT_FALSE(Segment::Adopt(Memory(size - 4096, kSeals)).ok());
  EXPECT_FALSE(Segment::Adopt(Memory(0, kSeals)).ok());
  EXPECT_THAT(std::string(Segment::Adopt(Memory(size, kSeals)).status().message()),
              HasSubstr("laid out"));
  EXPECT_FALSE(Segment::Adopt(Fd(open("/dev/zero", O_RDWR | O_CLOEXEC))).ok());
  EXPECT_FALSE(Segment::Adopt(Fd()).ok());
}

TEST(ShmSegment, AdoptRefusesAHeaderThatDoesNotFitItsSize) {
  const Segment segment = Make();
  std::byte* base = segment.ring(0) - Segment::kPage - 2 * Segment::kFurtherBytes;
  for (const size_t at : {size_t{0}, size_t{8}, size_t{12}, size_t{16}}) {  // magic, version, sizes
    base[at] ^= std::byte{1};
    EXPECT_FALSE(Segment::Adopt(Duplicate(segment.fd())).ok()) << at;
    base[at] ^= std::byte{1};
  }
  EXPECT_TRUE(Segment::Adopt(Duplicate(segment.fd())).ok());
}

TEST(ShmSegment, AForkedChildDoesNotHaveTheMapping) {
  const Segment segment = Make();
  std::byte* const ring = segment.ring(0);
  const pid_t child = fork();
  if (child == 0) {
    // mincore accepts only mapped pages.
    unsigned char resident = 0;
    _exit(mincore(ring, 4096, &resident) != 0 && errno == ENOMEM ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace entrain::shm
