#include "tests/support/fake_cuda/driver_state.h"

#include <cstdlib>
#include <utility>

#include <unistd.h>

namespace fake_cuda {
namespace {

thread_local std::vector<CUcontext> contexts;

CUstream HandleOf(const std::shared_ptr<FakeStream>& stream) {
  return reinterpret_cast<CUstream>(stream.get());
}

}  // namespace

DriverState& DriverState::Get() {
  static auto* const state = new DriverState;
  return *state;
}

CUresult DriverState::Init() {
  const CUresult fault = faults_.Count("cuInit");
  if (fault != CUDA_SUCCESS) {
    return fault;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  if (pid_ != 0) {
    return pid_ == getpid() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
  }
  const char* const text = std::getenv("FAKE_CUDA_DEVICES");
  const int count = text == nullptr ? 1 : std::atoi(text);
  if (count == 0) {
    return CUDA_ERROR_NO_DEVICE;
  }
  devices_.resize(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    devices_[static_cast<size_t>(i)].ordinal = i;
  }
  pid_ = getpid();
  return CUDA_SUCCESS;
}

CUresult DriverState::Enter(const char* function, bool needs_context) {
  const CUresult fault = faults_.Count(function);
  if (fault != CUDA_SUCCESS) {
    return fault;
  }
  if (pid_ != getpid()) {  // not initialised, or in a child process
    return CUDA_ERROR_NOT_INITIALIZED;
  }
  if (needs_context && Current() == nullptr) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  return broken_;
}

CUresult DriverState::Retain(int ordinal, CUcontext* out) {
  if (ordinal < 0 || ordinal >= static_cast<int>(devices_.size())) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  FakeDevice& device = devices_[static_cast<size_t>(ordinal)];
  if (device.retained++ == 0) {
    device.legacy = FakeStream::Create(ordinal, FakeStream::kLegacy);
  }
  *out = reinterpret_cast<CUcontext>(&device);
  return CUDA_SUCCESS;
}

bool DriverState::IsActive(int ordinal) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return devices_[static_cast<size_t>(ordinal)].retained > 0;
}

FakeDevice* DriverState::Current() {
  return contexts.empty() ? nullptr : reinterpret_cast<FakeDevice*>(contexts.back());
}

CUresult DriverState::Push(CUcontext context) {
  for (const FakeDevice& device : devices_) {
    if (reinterpret_cast<CUcontext>(const_cast<FakeDevice*>(&device)) == context &&
        device.retained > 0) {
      contexts.push_back(context);
      return CUDA_SUCCESS;
    }
  }
  return CUDA_ERROR_INVALID_CONTEXT;
}

CUresult DriverState::Pop(CUcontext* out) {
  if (contexts.empty()) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  *out = contexts.back();
  contexts.pop_back();
  return CUDA_SUCCESS;
}

CUresult DriverState::NewStream(bool blocking, CUstream* out) {
  const auto stream = FakeStream::Create(
      Current()->ordinal, blocking ? FakeStream::kBlocking : FakeStream::kNonBlocking);
  const std::lock_guard<std::mutex> lock(mutex_);
  *out = HandleOf(stream);
  streams_.emplace(*out, stream);
  return CUDA_SUCCESS;
}

CUresult DriverState::DropStream(CUstream stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = streams_.find(stream);
  if (found == streams_.end()) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  found->second->Close();
  streams_.erase(found);
  return CUDA_SUCCESS;
}

FakeDevice* DriverState::DeviceOf(CUstream stream) {
  if (stream == nullptr || stream == CU_STREAM_LEGACY) {
    return Current();
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = streams_.find(stream);
  return found == streams_.end() ? nullptr
                                 : &devices_[static_cast<size_t>(found->second->ordinal())];
}

std::shared_ptr<FakeStream> DriverState::StreamOf(CUstream stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (stream == nullptr || stream == CU_STREAM_LEGACY) {
    return Current()->legacy;
  }
  const auto found = streams_.find(stream);
  return found == streams_.end() || found->second->ordinal() != Current()->ordinal ? nullptr
                                                                                   : found->second;
}

void DriverState::Enqueue(const std::shared_ptr<FakeStream>& stream, std::function<void()> run,
                          std::vector<Mark> after) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto& legacy = devices_[static_cast<size_t>(stream->ordinal())].legacy;
  if (stream->kind() == FakeStream::kLegacy) {
    for (const auto& [handle, other] : streams_) {
      if (other->ordinal() == stream->ordinal() && other->kind() == FakeStream::kBlocking) {
        after.push_back(other->Here(other));
      }
    }
  } else if (stream->kind() == FakeStream::kBlocking) {
    after.push_back(legacy->Here(legacy));
  }
  stream->Enqueue(std::move(run), std::move(after));
}

void DriverState::Drain(const char* why) {
  std::vector<Mark> marks;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const FakeDevice& device = *Current();
    marks.push_back(device.legacy->Here(device.legacy));
    for (const auto& [handle, stream] : streams_) {
      if (stream->ordinal() == device.ordinal) {
        marks.push_back(stream->Here(stream));
      }
    }
  }
  for (const Mark& mark : marks) {
    mark.stream->Await(mark.operations, why);
  }
}

CUresult DriverState::NewEvent(CUevent* out) {
  const std::lock_guard<std::mutex> lock(mutex_);
  last_event_ += 16;
  *out = reinterpret_cast<CUevent>(last_event_);
  events_.emplace(*out, Mark{});
  return CUDA_SUCCESS;
}

CUresult DriverState::DropEvent(CUevent event) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return events_.erase(event) == 0 ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

CUresult DriverState::Record(CUevent event, const std::shared_ptr<FakeStream>& stream) {
  // The event is reached behind this operation, which is also ordered with the default stream.
  Enqueue(stream, [] {});
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = events_.find(event);
  if (found == events_.end()) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  found->second = stream->Here(stream);
  return CUDA_SUCCESS;
}

int DriverState::Live(bool streams) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int>(streams ? streams_.size() : events_.size());
}

CUresult DriverState::MarkOf(CUevent event, Mark* out) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = events_.find(event);
  if (found == events_.end()) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  *out = found->second;
  return CUDA_SUCCESS;
}

}  // namespace fake_cuda
