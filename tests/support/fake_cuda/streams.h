// Streams of the fake devices: each a thread with a queue, so that what was not ordered really runs
// in any order. Operations start after random delays. Thread safety: any thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <utility>
#include <vector>

namespace fake_cuda {

class FakeStream;
// All that had been enqueued on a stream when this was made.
struct Mark {
  std::shared_ptr<FakeStream> stream;  // null: reached
  uint64_t operations = 0;
};

class FakeStream {
 public:
  // kLegacy: the default stream, which waits for the blocking ones, and they for it.
  enum Kind { kLegacy, kBlocking, kNonBlocking };
  static std::shared_ptr<FakeStream> Create(int ordinal, Kind kind);

  int ordinal() const { return ordinal_; }
  Kind kind() const { return kind_; }
  // Runs behind what is there, and behind `after`.
  void Enqueue(std::function<void()> run, std::vector<Mark> after);
  Mark Here(const std::shared_ptr<FakeStream>& self);
  bool Reached(uint64_t operations);
  // Streams of all devices begin nothing while it is so.
  static void Pause(bool paused);
  // Waits; dies after a minute, with `why`.
  void Await(uint64_t operations, const char* why);
  // The thread ends when the queue is empty.
  void Close();

 private:
  struct Operation {
    std::function<void()> run;
    std::vector<Mark> after;
  };
  FakeStream(int ordinal, Kind kind) : ordinal_(ordinal), kind_(kind) {}
  static void Run(std::shared_ptr<FakeStream> self);
  void Delay();

  const int ordinal_;
  const Kind kind_;
  std::minstd_rand random_;  // the thread's
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Operation> queue_;
  uint64_t enqueued_ = 0, completed_ = 0;
  bool closed_ = false;
};

}  // namespace fake_cuda
