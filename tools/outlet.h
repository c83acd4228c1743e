// An output stream of this process with a writing thread of its own. It is needed because the
// reader may be slow, stopped or gone, and entrain-run must continue to supervise its ranks.
//
// Thread safety: one calling thread. The writing thread is internal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"

namespace entrain {

class Outlet {
 public:
  // If this many bytes or more wait to be written, the caller should add no more.
  static constexpr size_t kRoom = 1 << 20;

  explicit Outlet(int to);
  // Does not wait: unwritten bytes are lost.
  ~Outlet();
  Outlet(const Outlet&) = delete;
  Outlet& operator=(const Outlet&) = delete;

  // Takes all of the text and returns at once. Texts are written whole and in this order.
  void Add(absl::string_view text);
  size_t waiting() const;
  bool full() const { return waiting() >= kRoom; }
  // Returns a descriptor that is readable if bytes were written, or given up, since ForgetProgress.
  int progress_fd() const;
  void ForgetProgress();
  // Blocks until all bytes are written. Returns false if nothing more was written for
  // `quiet_ns`, or if `interrupted` became readable.
  bool Drain(int64_t quiet_ns, int interrupted);
  // Text that its reader did not get. A line counts if its end was lost.
  struct Loss {
    size_t bytes = 0, lines = 0;
    int error = 0;  // errno of the last write that failed; 0: none did
  };
  // Returns what could not be written. With `waiting`, what has not been written yet counts too.
  Loss lost(bool waiting) const;

 private:
  struct State;
  static void WriteAll(const std::shared_ptr<State>& state);

  std::shared_ptr<State>
      state_;  // shared with the thread, which may outlive this object in a write that does not end
};

// Returns true if two descriptors lead to one file, pipe or terminal.
bool SameFile(int a, int b);

}  // namespace entrain
