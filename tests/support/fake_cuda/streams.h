// Streams of the fake devices. Each is a thread with a queue, so that unordered operations really
// run in any order. Operations start after random delays. Thread safety: any thread.
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
// Stands for all operations that were enqueued on a stream when the mark was made.
struct Mark {
  std::shared_ptr<FakeStream> stream;  // null: reached
  uint64_t operations = 0;
};

class FakeStream {
 public:
  // kLegacy: the default stream. It waits for the blocking streams, and they wait for it.
  enum Kind { kLegacy, kBlocking, kNonBlocking };
  static std::shared_ptr<FakeStream> Create(int ordinal, Kind kind);

  int ordinal() const { return ordinal_; }
  Kind kind() const { return kind_; }
  // Enqueues an operation that runs after all earlier ones, and after `after`.
  void Enqueue(std::function<void()> run, std::vector<Mark> after);
  Mark Here(const std::shared_ptr<FakeStream>& self);
  bool Reached(uint64_t operations);
  // While paused, the streams of all devices begin no operation.
  static void Pause(bool paused);
  // Waits until this number of operations has run. Aborts the process with `why` after a minute.
  void Await(uint64_t operations, const char* why);
  // Lets the thread end when the queue is empty.
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
  std::minstd_rand random_;  // used by the thread only
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Operation> queue_;
  uint64_t enqueued_ = 0, completed_ = 0;
  bool closed_ = false;
};

}  // namespace fake_cuda
