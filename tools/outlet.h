// A descriptor of this process's own output, written by a thread of its own: whoever reads it may be slow, stopped or
// gone, and entrain-run must go on supervising its ranks.
//
// Thread safety: one thread calls; the writing thread is inside.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"

namespace entrain {

class Outlet {
 public:
  // So much may wait to be written before the caller should stop adding.
  static constexpr size_t kRoom = 1 << 20;

  explicit Outlet(int to);
  // Does not wait: bytes that are not written are lost.
  ~Outlet();
  Outlet(const Outlet&) = delete;
  Outlet& operator=(const Outlet&) = delete;

  // Takes all of it and returns at once. Texts come out whole and in this order.
  void Add(absl::string_view text);
  size_t waiting() const;
  bool full() const { return waiting() >= kRoom; }
  // Readable when bytes have been written, or given up, since ForgetProgress.
  int progress_fd() const;
  void ForgetProgress();
  // Waits until nothing waits to be written; false when nothing more was written for `quiet_ns`, or when `interrupted`
  // became readable.
  bool Drain(int64_t quiet_ns, int interrupted);
  // Bytes that could not be written, and why ("Broken pipe").
  size_t lost() const;
  std::string why_lost() const;

 private:
  struct State;
  static void WriteAll(const std::shared_ptr<State>& state);

  std::shared_ptr<State>
      state_;  // shared with the thread, which may outlive this in a write that nobody reads
};

// Whether two descriptors lead to one file, pipe or terminal.
bool SameFile(int a, int b);

}  // namespace entrain
