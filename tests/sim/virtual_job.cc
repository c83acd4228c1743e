#include "tests/sim/virtual_job.h"

#include <algorithm>
#include <cstdlib>

#include "absl/synchronization/mutex.h"

namespace entrain {
namespace {

// The time after which a path is noticed that the network has cut without notice.
constexpr int64_t kKeepAliveNs = 2 * kSecond;

}  // namespace

std::shared_ptr<Communicator> KeepProcess() {
  setenv("ENTRAIN_LOG", Seeds::Traced() ? "info" : "error", 0);  // NOLINT(concurrency-mt-unsafe)
  // The thread of the flight recorder answers other processes, such as entrain-top, and then wakes the
  // engines of this process. Those of a virtual world can be woken by fibers alone.
  setenv("ENTRAIN_FLIGHT_CALLS", "0", 1);  // NOLINT(concurrency-mt-unsafe)
  // The detection would take all fibers for one thread.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  CommOptions options;
  options.runtime = *Runtime::Create({});
  options.store = *OpenStore("mem:kept", {}, {});
  return *Communicator::Create(options);
}

VirtualNetwork::Delays VirtualJob::PickDelays(uint64_t seed) {
  constexpr int64_t kMost[] = {100 * kMicrosecond, kMillisecond, 10 * kMillisecond,
                               50 * kMillisecond};
  return {kMicrosecond, kMost[seed % 4]};
}

VirtualStore::Times VirtualJob::PickTimes(uint64_t seed) {
  const int64_t most = seed / 4 % 3 == 0 ? 5 * kMillisecond : 500 * kMicrosecond;
  return {20 * kMicrosecond, most, seed / 12 % 4 == 0 ? 0.02 : 0.0, 100 * kMillisecond};
}

VirtualJob::VirtualJob(uint64_t seed, int processes)
    : world_(seed, processes, PickDelays(seed)), store_(&world_, PickTimes(seed)) {
  slack_ns_ += 4 * PickDelays(seed).most_ns;
  const bool skewed = Chance(0.3);
  one_host_ = Chance(0.5);
  for (int p = 0; p < processes; ++p) {
    VirtualWorld::Process how;
    how.host = one_host_ ? 0 : static_cast<int>(Between(0, 1));
    how.clock_offset_ns = Between(1, 1000) * kSecond;
    how.clock_rate = skewed ? 1 + 1e-3 * static_cast<double>(Between(-20, 20)) : 1;
    world_.Describe(p, how);
  }
}

VirtualJob::VirtualJob(uint64_t seed, int processes, VirtualNetwork::Delays delays)
    : world_(seed, processes, delays),
      store_(&world_, {20 * kMicrosecond, 20 * kMicrosecond, 0, 0}),
      one_host_(false) {
  slack_ns_ += 4 * delays.most_ns;
  for (int p = 0; p < processes; ++p) {
    VirtualWorld::Process how;
    how.host = p;
    world_.Describe(p, how);
  }
}

void VirtualJob::Crash(int process, int64_t at_call) {
  const bool notice = Chance(0.8);
  touched_.insert(process);
  Tell("process ", process, " will crash at blocking call ", at_call,
       notice ? "" : ", and nobody is told");
  world_.CrashAtCall(process, at_call, notice);
}

void VirtualJob::WillStop(int process, int64_t at_ns, int64_t for_ns) {
  touched_.insert(process);
  Tell("process ", process, " will stop at ", at_ns / kMillisecond, " ms for ",
       for_ns / kMillisecond, " ms");
  world_.network().At(
      at_ns, [this, process, until = at_ns + for_ns] { world_.network().Stop(process, until); });
}

void VirtualJob::CutPath(int a, int b, int64_t at_ns) {
  cut_.insert(std::minmax(a, b));
  touched_.insert({a, b});
  Tell("processes ", a, " and ", b, " will lose their path at ", at_ns / kMillisecond, " ms");
  world_.network().At(at_ns, [this, a, b] {
    for (const auto& [from, to] : {std::pair(a, b), std::pair(b, a)}) {
      world_.network().Cut(from, to, false);
      world_.network().Tell(to, from, now() + Between(0, kKeepAliveNs), false);
    }
  });
}

void VirtualJob::CutFromStore(int process, int64_t at_ns) {
  touched_.insert(process);
  Tell("process ", process, " will lose the store at ", at_ns / kMillisecond, " ms");
  world_.network().At(at_ns, [this, process] { store_.CutOff(process); });
}

void VirtualJob::StallStore(int64_t at_ns, int64_t for_ns) {
  store_touched_ = true;
  slack_ns_ += for_ns;
  Tell("the store will stall at ", at_ns / kMillisecond, " ms for ", for_ns / kMillisecond, " ms");
  world_.network().At(at_ns, [this, until = at_ns + for_ns] { store_.StallUntil(until); });
}

CommOptions VirtualJob::OptionsOf(int rank, int size, int64_t timeout_ns) {
  RuntimeOptions runtime;
  runtime.transports = "inproc";
  runtime.host_id = absl::StrCat("host ", world_.description(world_.process()).host);
  CommOptions options;
  options.runtime = *Runtime::Create(runtime);
  process_of_[options.runtime->id()] = world_.process();
  options.store = store_.Open();
  options.rank = rank;
  options.size = size;
  options.timeout_ns = timeout_ns;
  options.cpus = CpuShare(CpuSet::First(1));  // waiting threads yield at once
  return options;
}

void VirtualJob::Check(const char* name, int64_t took_ns, int64_t limit_ns) {
  const int process = world_.process();
  if (took_ns > limit_ns + slack_ns_ && !world_.isolated(process) && !touched(process)) {
    Wrong("process ", process, ": ", name, " took ", took_ns / kMillisecond, " ms, its limit is ",
          limit_ns / kMillisecond);
  }
}

int VirtualJob::ProcessOf(const PeerId& id) const {
  const auto found = process_of_.find(id);
  return found == process_of_.end() ? -1 : found->second;
}

void VirtualJob::Saw(const Communicator& comm) {
  if (world_.isolated(world_.process())) {
    return;
  }
  std::vector<int> members;
  for (const MemberReport& member : comm.Members()) {
    members.push_back(ProcessOf(member.id));
  }
  Tell("process ", world_.process(), " is rank ", comm.rank(), " of generation ", comm.generation(),
       ": {", absl::StrJoin(members, ","), "}");
  views_[comm.generation()][world_.process()] = std::move(members);
}

void VirtualJob::CheckViews() {
  for (const auto& [generation, views] : views_) {
    for (const auto& [process, members] : views) {
      if (members != views.begin()->second) {
        Wrong("generation ", generation, ": process ", process, " has {",
              absl::StrJoin(members, ","), "}, process ", views.begin()->first, " has {",
              absl::StrJoin(views.begin()->second, ","), "}");
      }
    }
  }
}

void VirtualJob::CheckEnd(int64_t until_ns) {
  world_.Run(until_ns);
  for (int p = 0; p < world_.network().size(); ++p) {
    if (!world_.HasEnded(p)) {
      Wrong("process ", p, " still runs at the end");
    }
  }
  if (const int left = world_.Bury(); left > 0) {
    Wrong(left, " threads never end");
  }
}

std::string VirtualJob::Report() const {
  return wrong_.empty() ? wrong_
                        : absl::StrCat(wrong_, "\n  ", absl::StrJoin(story_, "\n  "), "\n");
}

}  // namespace entrain
