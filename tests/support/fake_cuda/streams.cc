#include "tests/support/fake_cuda/streams.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

namespace fake_cuda {
namespace {

std::mutex pause_mutex;
std::condition_variable resumed;
bool paused = false;

unsigned Setting(const char* name, unsigned otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : static_cast<unsigned>(std::strtoul(text, nullptr, 10));
}

}  // namespace

std::shared_ptr<FakeStream> FakeStream::Create(int ordinal, Kind kind) {
  static std::atomic<unsigned> made{0};
  std::shared_ptr<FakeStream> stream(new FakeStream(ordinal, kind));
  stream->random_.seed(Setting("FAKE_CUDA_SEED", 1) * 7919 + made.fetch_add(1) + 1);
  std::thread(Run, stream).detach();
  return stream;
}

void FakeStream::Delay() {
  static const unsigned most_us = Setting("FAKE_CUDA_DELAY_US", 100);
  if (most_us > 0 && random_() % 4 == 0) {  // a device needs time
    std::this_thread::sleep_for(std::chrono::microseconds(random_() % most_us));
  }
}

void FakeStream::Run(std::shared_ptr<FakeStream> self) {
  for (;;) {
    Operation operation;
    {
      std::unique_lock<std::mutex> lock(self->mutex_);
      self->changed_.wait(lock, [&] { return self->closed_ || !self->queue_.empty(); });
      if (self->queue_.empty()) {
        return;
      }
      operation = std::move(self->queue_.front());
      self->queue_.pop_front();
    }
    for (const Mark& mark : operation.after) {
      std::unique_lock<std::mutex> lock(mark.stream->mutex_);
      mark.stream->changed_.wait(lock, [&] { return mark.stream->completed_ >= mark.operations; });
    }
    self->Delay();
    {
      std::unique_lock<std::mutex> lock(pause_mutex);
      resumed.wait(lock, [] { return !paused; });
    }
    operation.run();
    operation = {};  // destroyed before waiters are told
    const std::lock_guard<std::mutex> lock(self->mutex_);
    ++self->completed_;
    self->changed_.notify_all();
  }
}

void FakeStream::Enqueue(std::function<void()> run, std::vector<Mark> after) {
  const std::lock_guard<std::mutex> lock(mutex_);
  queue_.push_back({std::move(run), std::move(after)});
  ++enqueued_;
  changed_.notify_all();
}

Mark FakeStream::Here(const std::shared_ptr<FakeStream>& self) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return {self, enqueued_};
}

bool FakeStream::Reached(uint64_t operations) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return completed_ >= operations;
}

void FakeStream::Pause(bool pause) {
  const std::lock_guard<std::mutex> lock(pause_mutex);
  paused = pause;
  resumed.notify_all();
}

void FakeStream::Await(uint64_t operations, const char* why) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!changed_.wait_for(lock, std::chrono::minutes(1), [&] { return completed_ >= operations; })) {
    std::fprintf(stderr, "fake_cuda: a minute of waiting for a stream in %s: a deadlock\n", why);
    std::abort();
  }
}

void FakeStream::Close() {
  const std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

}  // namespace fake_cuda
