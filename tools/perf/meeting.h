// Where ranks meet outside the library that is measured: barriers and the exchange of times.
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

// One object a rank. Every member function is collective: all ranks call it, in the same order.
class Meeting {
 public:
  virtual ~Meeting() = default;
  virtual absl::Status Barrier() = 0;
  // times[i] becomes the largest of all ranks' times[i]; at most kMaxCalls.
  virtual absl::Status Slowest(absl::Span<double> times) = 0;
  virtual absl::StatusOr<int64_t> Sum(int64_t mine) = 0;
  // For checking barriers. Mark: this rank has come as far as `step`. Behind: how many ranks have
  // not; -1 when that cannot be seen.
  virtual void Mark(int64_t step) = 0;
  virtual int Behind(int64_t step) const = 0;
  // What the ranks meet in: "a shared page".
  virtual const char* place() const = 0;
  // Whether a rank waits for the others by looking all the time, with a core of its own.
  virtual bool spins() const { return false; }
};

// How a rank waits for the others. kSpin: for ranks with a core each. kYield: there are more ranks
// than cores. kSleep: the library has threads of its own that want the cores.
enum class Waiting { kSpin, kYield, kSleep };

// Returns the error that ended the others, so that nobody waits for the dead; asked now and then.
using Health = std::function<absl::Status()>;

// A page of memory that all ranks map: processes of one machine, in whatever namespaces, or
// threads.
class SharedPage {
 public:
  static absl::StatusOr<SharedPage> Create(int ranks);
  // By what Name() gave in another process of this machine. kNotFound when it is another machine.
  static absl::StatusOr<SharedPage> Open(const std::string& name, int ranks);
  SharedPage(SharedPage&& other) noexcept;
  SharedPage& operator=(SharedPage&& other) noexcept;
  ~SharedPage();

  // Valid while the creating process keeps this object.
  std::string Name() const;
  // This rank's place in it. The page must outlive the meeting.
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
