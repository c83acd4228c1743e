#include "tools/perf/meeting.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <fstream>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "lib/base/clock.h"
#include "lib/base/status.h"

namespace entrain::perf {
namespace {

// The number of spins of a rank that has a core of its own, before it yields.
constexpr int kSpins = 20000;
constexpr int kYieldsPerLook = 256;  // number of yields between two looks at the clock
constexpr int64_t kLookEvery = 100 * kMillisecond;

std::string BootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

}  // namespace

struct SharedPage::Page {
  uint64_t token;
  alignas(64) std::atomic<uint32_t> arrived;
  alignas(64) std::atomic<uint32_t> generation;
  struct alignas(64) Rank {
    std::atomic<int64_t> mark;
    int64_t number;
    double times[kMaxCalls];
  };
  Rank ranks[1];  // the real length is the number of ranks
};

class PageMeeting final : public Meeting {
 public:
  PageMeeting(SharedPage::Page* page, int rank, int ranks, Waiting waiting, Health health)
      : page_(*page), rank_(rank), ranks_(ranks), waiting_(waiting), health_(std::move(health)) {}

  absl::Status Barrier() override {
    const uint32_t generation = page_.generation.load(std::memory_order_acquire);
    // Release and acquire: the last rank sees the earlier writes of every rank, and through
    // `generation` all ranks see them.
    if (page_.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 ==
        static_cast<uint32_t>(ranks_)) {
      page_.arrived.store(0, std::memory_order_relaxed);
      page_.generation.store(generation + 1, std::memory_order_release);
      if (waiting_ == Waiting::kSleep) {
        Futex(FUTEX_WAKE, INT_MAX, nullptr);
      }
      return absl::OkStatus();
    }
    const int spins = waiting_ == Waiting::kSpin ? kSpins : 0;
    for (int i = 0; page_.generation.load(std::memory_order_acquire) == generation; ++i) {
      if (i < spins) {
        Pause();
        continue;
      }
      GiveWay(generation);
      if (i % kYieldsPerLook == 0 || waiting_ == Waiting::kSleep) {
        ENTRAIN_RETURN_IF_ERROR(Look());
      }
    }
    return absl::OkStatus();
  }

  absl::Status Slowest(absl::Span<double> times) override {
    std::copy(times.begin(), times.end(), page_.ranks[rank_].times);
    ENTRAIN_RETURN_IF_ERROR(Barrier());
    for (int r = 0; r < ranks_; ++r) {
      for (size_t i = 0; i < times.size(); ++i) {
        times[i] = std::max(times[i], page_.ranks[r].times[i]);
      }
    }
    return Barrier();
  }

  absl::StatusOr<int64_t> Sum(int64_t mine) override {
    page_.ranks[rank_].number = mine;
    ENTRAIN_RETURN_IF_ERROR(Barrier());
    int64_t sum = 0;
    for (int r = 0; r < ranks_; ++r) {
      sum += page_.ranks[r].number;
    }
    ENTRAIN_RETURN_IF_ERROR(Barrier());
    return sum;
  }

  // The accesses are sequentially consistent, because the measured barrier may be broken and order
  // nothing.
  void Mark(int64_t step) override { page_.ranks[rank_].mark.store(step); }
  int Behind(int64_t step) const override {
    int behind = 0;
    for (int r = 0; r < ranks_; ++r) {
      behind += page_.ranks[r].mark.load() < step ? 1 : 0;
    }
    return behind;
  }
  const char* place() const override { return "a shared page"; }
  bool spins() const override { return waiting_ == Waiting::kSpin; }

 private:
  static void Pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }

  void Futex(int operation, uint32_t value, const timespec* timeout) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&page_.generation), operation, value, timeout,
            nullptr, 0);
  }

  void GiveWay(uint32_t generation) {
    if (waiting_ == Waiting::kSleep) {
      const timespec nap{0, kLookEvery};
      Futex(FUTEX_WAIT, generation, &nap);
    } else {
      sched_yield();
    }
  }

  absl::Status Look() {
    const int64_t now = Clock::Real().Now();
    if (health_ == nullptr || now - looked_ < kLookEvery) {
      return absl::OkStatus();
    }
    looked_ = now;
    return health_();
  }

  SharedPage::Page& page_;
  const int rank_, ranks_;
  const Waiting waiting_;
  const Health health_;
  int64_t looked_ = 0;
};

size_t SharedPage::Bytes(int ranks) {
  return sizeof(Page) + static_cast<size_t>(ranks - 1) * sizeof(Page::Rank);
}

absl::StatusOr<SharedPage> SharedPage::Create(int ranks) {
  const int fd = memfd_create("entrain-perf", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(Bytes(ranks))) != 0) {
    return ErrnoStatus(errno, "cannot create the page in which ranks meet");
  }
  void* const page = mmap(nullptr, Bytes(ranks), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  uint64_t token = 0;
  if (page == MAP_FAILED || getrandom(&token, sizeof(token), 0) != sizeof(token)) {
    close(fd);
    return ErrnoStatus(errno, "cannot map the page in which ranks meet");
  }
  static_cast<Page*>(page)->token = token;
  return SharedPage(fd, static_cast<Page*>(page), ranks, token);
}

std::string SharedPage::Name() const {
  return absl::StrCat(BootId(), ";/proc/", getpid(), "/fd/", fd_, ";", token_);
}

absl::StatusOr<SharedPage> SharedPage::Open(const std::string& name, int ranks) {
  const std::vector<std::string> parts = absl::StrSplit(name, ';');
  uint64_t token = 0;
  if (parts.size() != 3 || parts[0] != BootId() || !absl::SimpleAtoi(parts[2], &token)) {
    return absl::NotFoundError("the page lies on another machine");
  }
  // Another process may have the number in this name, in another PID namespace. So this function
  // checks the file before it maps the file.
  const int fd = open(parts[1].c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  struct stat file {};
  if (fd < 0 || fstat(fd, &file) != 0 || !S_ISREG(file.st_mode) ||
      file.st_size != static_cast<off_t>(Bytes(ranks))) {
    if (fd >= 0) {
      close(fd);
    }
    return absl::NotFoundError("the page cannot be reached from here");
  }
  void* const page = mmap(nullptr, Bytes(ranks), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (page == MAP_FAILED) {
    close(fd);
    return ErrnoStatus(errno, "cannot map the page in which ranks meet");
  }
  SharedPage shared(fd, static_cast<Page*>(page), ranks, token);
  if (shared.page_->token != token) {
    return absl::NotFoundError("the page is another one");
  }
  return shared;
}

SharedPage::SharedPage(SharedPage&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      page_(std::exchange(other.page_, nullptr)),
      ranks_(other.ranks_),
      token_(other.token_) {}

SharedPage& SharedPage::operator=(SharedPage&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(page_, other.page_);
  std::swap(ranks_, other.ranks_);
  std::swap(token_, other.token_);
  return *this;
}

SharedPage::~SharedPage() {
  if (page_ != nullptr) {
    munmap(page_, Bytes(ranks_));
  }
  if (fd_ >= 0) {
    close(fd_);
  }
}

std::unique_ptr<Meeting> SharedPage::Join(int rank, Waiting waiting, Health health) const {
  return std::make_unique<PageMeeting>(page_, rank, ranks_, waiting, std::move(health));
}

}  // namespace entrain::perf
