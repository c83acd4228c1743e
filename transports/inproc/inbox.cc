#include "transports/inproc/inbox.h"

#include <cerrno>
#include <utility>

#include <sys/eventfd.h>
#include <unistd.h>

#include "lib/base/status.h"

namespace entrain {
namespace {

// If the payloads of a batch have needed more memory than this, Clear frees the memory.
constexpr size_t kKeptPayload = 1 << 20;

}  // namespace

void NoteBatch::Add(const Note& note, ConstBytes payload) {
  notes.push_back(note);
  notes.back().payload_bytes = static_cast<uint32_t>(payload.size());
  payloads.insert(payloads.end(), payload.begin(), payload.end());
}

void NoteBatch::Clear() {
  notes.clear();
  payloads.clear();
  if (payloads.capacity() > kKeptPayload) {
    payloads.shrink_to_fit();
  }
}

absl::StatusOr<std::shared_ptr<Inbox>> Inbox::Create() {
  const int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0) {
    return ErrnoStatus(errno, "inproc: eventfd");
  }
  return std::shared_ptr<Inbox>(new Inbox(fd));
}

Inbox::~Inbox() {
  close(fd_);
}

void Inbox::Push(const Note& note, ConstBytes payload) {
  std::lock_guard<std::mutex> lock(mutex_);
  waiting_.Add(note, payload);
  any_.store(true, std::memory_order_relaxed);  // see the declaration of any_
  if (armed_ && !rung_) {
    rung_ = true;
    eventfd_write(fd_, 1);
  }
}

bool Inbox::Take(NoteBatch* batch) {
  if (!any_.load(std::memory_order_relaxed)) {  // see the declaration of any_
    return false;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  std::swap(waiting_.notes, batch->notes);
  std::swap(waiting_.payloads, batch->payloads);
  any_.store(false, std::memory_order_relaxed);
  return true;
}

bool Inbox::Arm() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!waiting_.notes.empty()) {
    return false;
  }
  armed_ = true;
  return true;
}

void Inbox::Disarm() {
  std::lock_guard<std::mutex> lock(mutex_);
  armed_ = false;
  if (std::exchange(rung_, false)) {
    eventfd_t count;
    eventfd_read(fd_, &count);
  }
}

}  // namespace entrain
