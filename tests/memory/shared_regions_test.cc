// Memory that several processes map, and the list of regions.
#include "lib/memory/shared_regions.h"

#include <cinttypes>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/mappings.h"

namespace entrain {
namespace {

using testing::HasSubstr;
using Pages = SealedMemory::Pages;
using Access = SealedMemory::Access;

SealedMemory Make(int64_t bytes, Pages pages = Pages::kUsual) {
  absl::StatusOr<SealedMemory> memory = SealedMemory::Create(bytes, pages);
  EXPECT_TRUE(memory.ok()) << memory.status();
  return *std::move(memory);
}

// Returns whether `body` is true in a child process. The child may make changes that cannot be
// undone.
template <typename Body>
bool InChild(Body body) {
  const pid_t child = fork();
  if (child == 0) {
    _exit(body() ? 0 : 1);
  }
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(SealedMemory, IsZeroAlignedReservedAndSealed) {
  for (const int64_t bytes : {int64_t{1}, int64_t{4096}, int64_t{100'001}, int64_t{3} << 20}) {
    const SealedMemory memory = Make(bytes);
    EXPECT_EQ(memory.size(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.data()) % 4096, 0u);
    EXPECT_EQ(memory.data()[0], std::byte{0});
    EXPECT_EQ(memory.data()[bytes - 1], std::byte{0});
    struct stat info {};
    ASSERT_EQ(fstat(memory.fd(), &info), 0);
    EXPECT_GE(info.st_blocks * 512, bytes);
    EXPECT_NE(ftruncate(memory.fd(), 0), 0);
    EXPECT_NE(ftruncate(memory.fd(), bytes * 2), 0);
    EXPECT_NE(fcntl(memory.fd(), F_GETFD) & FD_CLOEXEC, 0);
  }
}

TEST(SealedMemory, HugePagesOrNoneItIsMemory) {
  const int64_t bytes = (int64_t{3} << 20) + 5;
  const SealedMemory memory = Make(bytes, Pages::kHuge);
  ASSERT_GE(memory.size(), bytes);
  std::memset(memory.data(), 0x5a, static_cast<size_t>(bytes));
  EXPECT_EQ(memory.data()[bytes - 1], std::byte{0x5a});
  absl::StatusOr<SealedMemory> other = SealedMemory::Adopt(dup(memory.fd()), Access::kRead);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(other->size(), memory.size());
  EXPECT_EQ(other->data()[bytes - 1], std::byte{0x5a});
}

constexpr int64_t kHugePage = 2 << 20;

// Returns how many bytes of the mapping that begins at `data` are in huge pages.
int64_t BytesInHugePages(const void* data) {
  std::ifstream smaps("/proc/self/smaps");
  bool here = false;
  int64_t kib = 0, mapped = 0, resident = 0, page = 0;
  for (std::string line; std::getline(smaps, line);) {
    uintptr_t begin, end;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " ", &begin, &end) == 2) {
      here = begin == reinterpret_cast<uintptr_t>(data);
      mapped = here ? static_cast<int64_t>(end - begin) : mapped;
    } else if (here && std::sscanf(line.c_str(), "ShmemPmdMapped: %" SCNd64, &kib) == 1) {
      resident = kib << 10;
    } else if (here && std::sscanf(line.c_str(), "KernelPageSize: %" SCNd64, &kib) == 1) {
      page = kib << 10;
    }
  }
  return page >= kHugePage ? mapped : resident;
}

std::string FirstLine(const std::string& file) {
  std::string line;
  std::getline(std::ifstream(file), line);
  return line;
}

// Returns the reason why shared memory cannot have this number of huge pages here, or "" if it can.
std::string WhyNoHugePages(int pages) {
  const std::string reserved = "/sys/kernel/mm/hugepages/hugepages-2048kB/";
  if (std::atoi(FirstLine(reserved + "free_hugepages").c_str()) -
          std::atoi(FirstLine(reserved + "resv_hugepages").c_str()) >=
      pages) {
    return "";
  }
  const std::string none = "none are reserved, and ", mm = "/sys/kernel/mm/transparent_hugepage/";
  // Newer kernels also have a setting for each size.
  const std::string all = FirstLine(mm + "shmem_enabled");
  const std::string own = FirstLine(mm + "hugepages-2048kB/shmem_enabled");
  const std::string& setting =
      own.empty() || absl::StrContains(own, "[inherit]") || absl::StrContains(all, "[deny]") ? all
                                                                                             : own;
  if (setting.empty() || absl::StrContains(setting, "[never]") ||
      absl::StrContains(setting, "[deny]")) {
    return absl::StrCat(none, mm, "shmem_enabled says \"", setting, "\"");
  }
  if (prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) != 0) {
    return none + "transparent ones are switched off for this process";
  }
  if (madvise(nullptr, 0, 23 /* MADV_POPULATE_WRITE */) != 0) {
    return none + "this kernel has no MADV_POPULATE_WRITE";
  }
  // The last columns are free blocks of 2^9 and 2^10 pages.
  int blocks = 0;
  std::ifstream zones("/proc/buddyinfo");
  for (std::string zone; std::getline(zones, zone);) {
    const std::vector<std::string> words = absl::StrSplit(zone, ' ', absl::SkipEmpty());
    for (size_t order = 9; words.size() > 4 + order; ++order) {
      blocks += std::atoi(words[4 + order].c_str()) << (order - 9);
    }
  }
  return blocks >= 8 * pages ? "" : absl::StrCat(none, "only ", blocks, " are free");
}

TEST(SealedMemory, IsInHugePagesWhereTheSystemHasThem) {
  constexpr int kPages = 8;
  if (const std::string why = WhyNoHugePages(kPages); !why.empty()) {
    GTEST_SKIP() << why;
  }
  const SealedMemory memory = Make(kPages * kHugePage, Pages::kHuge);
  EXPECT_EQ(BytesInHugePages(memory.data()), kPages * kHugePage);
}

TEST(SealedMemory, AShortageNamesTheSize) {
  const absl::StatusOr<SealedMemory> endless = SealedMemory::Create(int64_t{1} << 50);
  EXPECT_EQ(endless.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(endless.status().message()), HasSubstr("1125899906842624 bytes"));
  EXPECT_TRUE(InChild([] {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit small{64 << 10, 64 << 10};  // limits the size of a file
    setrlimit(RLIMIT_FSIZE, &small);
    return absl::IsResourceExhausted(SealedMemory::Create(1 << 20).status());
  }));
  EXPECT_TRUE(InChild([] {
    const rlimit none{0, 0};
    setrlimit(RLIMIT_NOFILE, &none);
    return absl::IsResourceExhausted(SealedMemory::Create(1 << 20).status());
  }));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // sanitizers map much memory
  EXPECT_TRUE(InChild([] {
    const rlimit small{64 << 20, 64 << 20};
    setrlimit(RLIMIT_AS, &small);
    return absl::IsResourceExhausted(SealedMemory::Create(256 << 20).status());
  }));
#endif
}

// For example a profiler's timer. On older kernels a signal interrupts a reservation and undoes it.
TEST(SealedMemory, IsReservedAlsoWhereSignalsComeAllTheTime) {
  EXPECT_TRUE(InChild([] {
    signal(SIGALRM, [](int) {
      static int signals = 0;
      if (++signals > 5000) {
        _exit(2);
      }
    });
    const itimerval often{{0, 2000}, {0, 2000}};
    setitimer(ITIMER_REAL, &often, nullptr);
    return SealedMemory::Create(int64_t{128} << 20).ok();
  }));
}

TEST(SealedMemory, TheOtherMappingSeesWhatIsWrittenAndMayNotWrite) {
  const SealedMemory mine = Make(10'000);
  absl::StatusOr<SealedMemory> theirs = SealedMemory::Adopt(dup(mine.fd()), Access::kRead);
  ASSERT_TRUE(theirs.ok()) << theirs.status();
  theirs->CloseDescriptor();
  EXPECT_EQ(theirs->fd(), -1);
  mine.data()[9'999] = std::byte{7};
  EXPECT_EQ(theirs->data()[9'999], std::byte{7});
  EXPECT_TRUE(InChild([&] {
    signal(SIGSEGV, [](int) { _exit(0); });
    signal(SIGBUS, [](int) { _exit(0); });
    *const_cast<volatile std::byte*>(theirs->data()) = std::byte{1};
    return false;
  }));
  EXPECT_EQ(mine.data()[0], std::byte{0});
}

TEST(SealedMemory, AdoptRefusesWhatCouldChangeItsSize) {
  const int memory = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(memory, 8192), 0);
  EXPECT_FALSE(SealedMemory::Adopt(dup(memory), Access::kRead).ok());
  ASSERT_EQ(fcntl(memory, F_ADD_SEALS, F_SEAL_GROW), 0);
  EXPECT_FALSE(SealedMemory::Adopt(dup(memory), Access::kRead).ok());
  ASSERT_EQ(fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL), 0);
  EXPECT_TRUE(SealedMemory::Adopt(memory, Access::kRead).ok());
  EXPECT_FALSE(SealedMemory::Adopt(open("/dev/zero", O_RDWR | O_CLOEXEC), Access::kRead).ok());
  EXPECT_FALSE(SealedMemory::Adopt(-1, Access::kRead).ok());
}

// Makes memfd_create fail in this process from now on, as in a container that forbids it.
bool ForbidMemfd() {
  sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_memfd_create, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {.len = static_cast<unsigned short>(std::size(rules)),
                              .filter = rules};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST(SharedRegions, WhatMayNotBeSharedIsRegisteredWhereItIs) {
  EXPECT_TRUE(InChild([] {
    std::vector<std::byte> memory(1 << 20, std::byte{5});
    SharedRegions regions;
    if (!ForbidMemfd() || regions.Allocate(4096, Pages::kUsual).ok()) {
      return false;
    }
    const auto region = regions.Register({memory.data(), memory.size()});
    return region.ok() && (*region)->memory.size() == 0 && memory[70'000] == std::byte{5} &&
           regions.Register({memory.data(), memory.size()}).status().code() ==
               absl::StatusCode::kInvalidArgument;
  }));
}

TEST(SharedRegions, FindsTheRegionAroundABuffer) {
  SharedRegions regions;
  const std::byte elsewhere[8] = {};
  EXPECT_EQ(regions.Find({elsewhere, 8}), nullptr);
  std::vector<std::shared_ptr<const SharedRegion>> all;
  for (int i = 0; i < 50; ++i) {
    auto region = regions.Allocate(4096 * (1 + i % 3), Pages::kUsual);
    ASSERT_TRUE(region.ok()) << region.status();
    all.push_back(*region);
  }
  EXPECT_EQ(regions.Find({elsewhere, 8}), nullptr);
  for (const auto& region : all) {
    const std::byte* const begin = region->memory.data();
    const auto size = static_cast<size_t>(region->memory.size());
    EXPECT_NE(region->id, 0u);
    EXPECT_EQ(regions.Find({begin, size}), region);
    EXPECT_EQ(regions.Find({begin + size - 1, 1}), region);
    EXPECT_EQ(regions.Find({begin + 64, 64}), region);
    EXPECT_EQ(regions.Find({begin + 64, size - 63}), nullptr) << "one byte beyond";
    EXPECT_EQ(regions.At(begin), region);
    EXPECT_EQ(regions.At(begin + 1), nullptr);
  }
  regions.Remove(*all[7]);
  EXPECT_EQ(regions.At(all[7]->memory.data()), nullptr);
  EXPECT_EQ(regions.Find({all[7]->memory.data(), 1}), nullptr);
  EXPECT_EQ(regions.Find({all[8]->memory.data(), 1}), all[8]);
  const uint64_t last = all.back()->id;
  EXPECT_GT((*regions.Allocate(1, Pages::kUsual))->id, last) << "numbers are not used again";
}

// ---- Memory of the caller --------------------------------------------------------------------

constexpr size_t kPage = 4096;

// Private pages, each with unique bytes.
class PrivatePages {
 public:
  explicit PrivatePages(size_t pages) : size_(pages * kPage) {
    void* const data =
        mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(data, MAP_FAILED);
    data_ = static_cast<std::byte*>(data);
    for (size_t i = 0; i < size_; ++i) {
      data_[i] = At(i);
    }
  }
  ~PrivatePages() { munmap(data_, size_); }
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  static std::byte At(size_t i) { return static_cast<std::byte>(i / kPage * 31 + i); }
  bool Holds() const {
    for (size_t i = 0; i < size_; ++i) {
      if (data_[i] != At(i)) {
        return false;
      }
    }
    return true;
  }

 private:
  size_t size_;
  std::byte* data_;
};

TEST(SealedMemory, ReplacesPrivateMemoryAndGivesItBack) {
  const int mappings = SharedMappings();
  const PrivatePages pages(20'000);  // several pieces
  const auto bytes = static_cast<int64_t>(pages.size() - 2 * kPage);
  std::byte* const begin = pages.data() + kPage;
  ASSERT_TRUE(SealedMemory::IsPrivate(pages.data(), static_cast<int64_t>(pages.size())));
  absl::StatusOr<SealedMemory> memory = SealedMemory::Replace(begin, bytes);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(memory->data(), begin);
  EXPECT_EQ(memory->size(), bytes);
  EXPECT_TRUE(pages.Holds());
  EXPECT_FALSE(SealedMemory::IsPrivate(begin, bytes));
  EXPECT_FALSE(SealedMemory::IsPrivate(pages.data(), static_cast<int64_t>(pages.size())));
  EXPECT_TRUE(SealedMemory::IsPrivate(pages.data(), kPage)) << "beside it";
  EXPECT_EQ(SharedMappings(), mappings + 1) << "its pieces are one";
  {
    absl::StatusOr<SealedMemory> theirs =
        SealedMemory::Adopt(dup(memory->fd()), Access::kRead, kPage);
    ASSERT_TRUE(theirs.ok()) << theirs.status();
    EXPECT_EQ(std::memcmp(theirs->data(), begin, static_cast<size_t>(bytes)), 0);
    begin[bytes - 1] = std::byte{1};
    EXPECT_EQ(theirs->data()[bytes - 1], std::byte{1});
    begin[bytes - 1] = PrivatePages::At(static_cast<size_t>(bytes) + kPage - 1);
    // The margin is writable.
    std::memset(theirs->data() - kPage, 7, kPage);
    std::memset(theirs->data() + bytes, 7, kPage);
  }
  const SealedMemory moved = *std::move(memory);
  EXPECT_EQ(const_cast<SealedMemory&>(moved).GiveBack(), absl::OkStatus());
  EXPECT_TRUE(pages.Holds());
  EXPECT_TRUE(SealedMemory::IsPrivate(pages.data(), static_cast<int64_t>(pages.size())));
  EXPECT_EQ(SharedMappings(), mappings);
}

TEST(SealedMemory, WhatIsNotGivenBackStaysMemory) {
  const PrivatePages pages(3);
  EXPECT_TRUE(SealedMemory::Replace(pages.data(), 3 * kPage).ok());
  EXPECT_TRUE(pages.Holds());
  pages.data()[5] = std::byte{0};
  EXPECT_FALSE(pages.Holds());
}

TEST(SealedMemory, AShortageWhileItReplacesChangesNothing) {
  const PrivatePages pages(20'000);
  EXPECT_TRUE(InChild([&] {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit some{50 << 20, 50 << 20};  // so that it fails after the first piece
    setrlimit(RLIMIT_FSIZE, &some);
    const auto memory = SealedMemory::Replace(pages.data(), static_cast<int64_t>(pages.size()));
    return absl::IsResourceExhausted(memory.status()) && pages.Holds() &&
           SealedMemory::IsPrivate(pages.data(), static_cast<int64_t>(pages.size()));
  }));
}

TEST(SealedMemory, OnlyPrivateMemoryThatCanBeWrittenIsPrivate) {
  const PrivatePages pages(8);
  EXPECT_TRUE(SealedMemory::IsPrivate(pages.data(), 8 * kPage));
  mprotect(pages.data() + 2 * kPage, kPage, PROT_READ);
  EXPECT_FALSE(SealedMemory::IsPrivate(pages.data(), 8 * kPage));
  EXPECT_FALSE(SealedMemory::IsPrivate(pages.data() + 2 * kPage, kPage));
  EXPECT_TRUE(SealedMemory::IsPrivate(pages.data() + 3 * kPage, 5 * kPage));
  munmap(pages.data() + 5 * kPage, kPage);
  EXPECT_FALSE(SealedMemory::IsPrivate(pages.data() + 3 * kPage, 5 * kPage));
  EXPECT_TRUE(SealedMemory::IsPrivate(pages.data() + 3 * kPage, 2 * kPage));
  mmap(pages.data() + 5 * kPage, kPage, PROT_READ | PROT_WRITE,
       MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  EXPECT_FALSE(SealedMemory::IsPrivate(pages.data() + 3 * kPage, 5 * kPage));
  std::vector<std::byte> heap(8 * kPage);
  EXPECT_TRUE(SealedMemory::IsPrivate(heap.data(), 8 * kPage));
  const int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  void* const mapped = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
  close(file);
  EXPECT_FALSE(SealedMemory::IsPrivate(static_cast<std::byte*>(mapped), kPage));
  munmap(mapped, kPage);
}

TEST(SharedRegions, RegistersTheWholePagesOfARange) {
  SharedRegions regions;
  const PrivatePages pages(6);
  std::byte* const begin = pages.data() + 100;
  const size_t size = 5 * kPage;
  const auto region = regions.Register({begin, size});
  ASSERT_TRUE(region.ok()) << region.status();
  EXPECT_TRUE((*region)->registered);
  EXPECT_EQ((*region)->memory.data(), pages.data() + kPage);
  EXPECT_EQ((*region)->memory.size(), 4 * kPage);
  EXPECT_TRUE(pages.Holds());
  EXPECT_EQ(regions.Find({begin, size}), *region);
  EXPECT_EQ(regions.Find({begin, 1}), *region);
  EXPECT_EQ(regions.Find({begin - 1, 2}), nullptr);
  EXPECT_EQ(regions.Find({begin + 1, size}), nullptr);
  EXPECT_EQ(regions.At(begin), *region);
  EXPECT_EQ(regions.Register({begin + size - 1, kPage}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(regions.Register({pages.data(), 101}).status().code(),
            absl::StatusCode::kInvalidArgument);
  // Less than a page beside the region: nothing can be mapped.
  const auto rest = regions.Register({begin + size, 100});
  ASSERT_TRUE(rest.ok()) << rest.status();
  EXPECT_EQ((*rest)->memory.size(), 0);
  EXPECT_EQ(regions.Find({begin + size, 100}), nullptr);
  EXPECT_EQ(regions.At(begin + size), *rest);
  const auto taken = regions.Remove(**region);
  EXPECT_EQ(taken, *region);
  EXPECT_EQ(regions.At(begin), nullptr);
  EXPECT_EQ(taken->memory.GiveBack(), absl::OkStatus());
  EXPECT_TRUE(pages.Holds());
  EXPECT_EQ((*regions.Register({begin, size}))->memory.size(), 4 * kPage) << "once more";
}

}  // namespace
}  // namespace entrain
