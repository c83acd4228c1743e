#include "lib/comm/open_calls.h"

#include <algorithm>

namespace entrain {

void OpenCalls::Add(CallWork* work) {
  works_.push_back(work);
  in_line_ += work->waits() ? 1 : 0;
}

void OpenCalls::Remove(CallWork* work) {
  works_.erase(std::find(works_.begin(), works_.end(), work));
  in_line_ -= work->waits() ? 1 : 0;
}

bool OpenCalls::Has(const CallWork* work) const {
  return std::find(works_.begin(), works_.end(), work) != works_.end();
}

const CallWork* OpenCalls::Collective(CallId call) const {
  const auto found = std::find_if(works_.begin(), works_.end(), [&](const CallWork* work) {
    const Wiring& wiring = work->wiring();
    return !wiring.point_to_point && CallId{wiring.user_tag, wiring.call_number} == call;
  });
  return found == works_.end() ? nullptr : *found;
}

std::optional<OwnCall> OpenCalls::OwnCollective(CallId call) const {
  const CallWork* const work = Collective(call);
  return work == nullptr
             ? std::nullopt
             : std::optional<OwnCall>({call, work->wiring().sequence, work->call().descriptor()});
}

CallWork* OpenCalls::Oldest() const {
  const auto oldest = std::min_element(
      works_.begin(), works_.end(),
      [](const CallWork* a, const CallWork* b) { return a->started_ns() < b->started_ns(); });
  return oldest == works_.end() ? nullptr : *oldest;
}

CallWork* OpenCalls::OldestCollective() const {
  CallWork* oldest = nullptr;
  for (CallWork* work : works_) {
    if (!work->wiring().point_to_point &&
        (oldest == nullptr || work->started_ns() < oldest->started_ns())) {
      oldest = work;
    }
  }
  return oldest;
}

Deadline OpenCalls::FirstDeadline() const {
  Deadline first;
  for (const CallWork* work : works_) {
    if (!work->inquired) {
      first = std::min(first, work->call().options.deadline);
    }
  }
  return first;
}

const CallWork* OpenCalls::UserOf(ConstBytes bytes) const {
  const auto touches = [&](const BufferView& buffer) {
    const auto* const data = static_cast<const std::byte*>(buffer.data);
    return buffer.bytes > 0 && data < bytes.data() + bytes.size() &&
           data + buffer.bytes > bytes.data();
  };
  const auto user = std::find_if(works_.begin(), works_.end(), [&](const CallWork* work) {
    return touches(work->call().named().in) || touches(work->call().named().out);
  });
  return user == works_.end() ? nullptr : *user;
}

Running OpenCalls::RunningFunction() const {
  for (const CallWork* work : works_) {
    if (const int64_t since = work->executor().combining_since_ns(); since > 0) {
      return {work, since};
    }
  }
  return {};
}

Running OpenCalls::HeldUpByFunction(const CallWork& work, int64_t now_ns) const {
  const Running running = RunningFunction();
  return work.executor().combining() && now_ns - running.since_ns >= kLongRunNs ? running
                                                                                : Running();
}

}  // namespace entrain
