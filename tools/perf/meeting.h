// Meetings of the ranks outside the measured library: barriers, and exchange of times.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace entrain::perf {

constexpr int kMaxCalls = 4096;  // timed calls of one case

// One object per rank. Every member function is collective: all ranks call it, in the same order.
class Meeting {
 public:
  virtual ~Meeting() = default;
  virtual absl::Status Barrier() = 0;
  // Replaces times[i] by the largest times[i] of all ranks. `times` has at most kMaxCalls entries.
  virtual absl::Status Slowest(absl::Span<double> times) = 0;
  virtual absl::StatusOr<int64_t> Sum(int64_t mine) = 0;
  // For checks of barriers. Mark records that this rank has reached `step`. Behind returns the
  // number of ranks that have not reached it, or -1 if that cannot be seen.
  virtual void Mark(int64_t step) = 0;
  virtual int Behind(int64_t step) const = 0;
  // Returns the place of the meeting: "a shared page", for example.
  virtual const char* place() const = 0;
  // Returns true if a rank waits by polling without pause, on a core of its own.
  virtual bool spins() const { return false; }
};

// How a rank waits for the others. kSpin: each rank has a core. kYield: there are more ranks than
// cores. kSleep: the library has threads of its own that need the cores.
enum class Waiting { kSpin, kYield, kSleep };

// Returns the error that ended the other ranks, if any, so that no rank waits for dead ranks.
// Called from time to time.
using Health = std::function<absl::Status()>;

// A page of memory that all ranks map: processes of one machine, also in different namespaces, or
// threads.
class SharedPage {
 public:
  static absl::StatusOr<SharedPage> Create(int ranks);
  // Opens the page by the Name() of another process of this machine. kNotFound: the page is on
  // another machine.
  static absl::StatusOr<SharedPage> Open(const std::string& name, int ranks);
  SharedPage(SharedPage&& other) noexcept;
  SharedPage& operator=(SharedPage&& other) noexcept;
  ~SharedPage();

  // Returns the page's name, valid while the creating process keeps this object.
  std::string Name() const;
  // Returns this rank's meeting in the page. The page must outlive the meeting.
  std::unique_ptr<Meeting> Join(int rank, Waiting waiting, Health health) const;

 private:
  struct Page;
  friend class PageMeeting;
  SharedPage(int fd, Page* page, int ranks, uint64_t token)
      : fd_(fd), page_(page), ranks_(ranks), token_(token) {}
  static size_t Bytes(int ranks);

  int fd_;
  Page* page_;
  int ranks_;
  uint64_t token_;
};

}  // namespace entrain::perf
