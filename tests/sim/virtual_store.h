// The store of a VirtualWorld: a map that processes use through functions (lib/store/function_store.h),
// so that the library's own meetings over set, get and add run. Every call takes time and takes
// effect at one instant within this time. A call fails if its process is cut off from the store.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "lib/store/store.h"
#include "tests/sim/virtual_world.h"

namespace entrain {

class VirtualStore {
 public:
  struct Times {
    int64_t least_ns = 20 * kMicrosecond, most_ns = kMillisecond;  // time of a usual call
    double slow = 0;                                               // the share of slow calls
    int64_t slow_ns = 200 * kMillisecond;                          // longest time of a slow call
  };
  VirtualStore(VirtualWorld* world, const Times& times) : world_(*world), times_(times) {}

  // Opens the store in the process of the running fiber. The store must not outlive this object.
  std::shared_ptr<Store> Open();
  // Delays all calls, as a slow disk does: no call ends before this instant of the network's time.
  void StallUntil(int64_t ns) { stalled_until_ = ns; }
  // Makes all calls of this process fail from now on.
  void CutOff(int process) { cut_off_.insert(process); }
  // Makes every call of this process slower from now on.
  void SlowDown(int process, int64_t most_ns) { slow_[process] = most_ns; }
  bool cut_off(int process) const { return cut_off_.contains(process); }

 private:
  struct Door {  // of one process
    VirtualStore* store;
    int process;
  };
  static int32_t Set(void* user, const char* key, const void* value, size_t bytes);
  static int32_t Get(void* user, const char* key, int64_t timeout_ns, void* value, size_t* bytes);
  static int32_t Add(void* user, const char* key, int64_t delta, int64_t* sum);
  static int32_t Remove(void* user, const char* key);
  // Blocks for half of a call's time. Returns false if the call fails.
  bool Travel(int process);
  void Trace(int process, const char* what, const char* key);
  void Changed(const std::string& key);

  VirtualWorld& world_;
  const Times times_;
  std::map<std::string, std::string> values_;
  std::vector<std::unique_ptr<Door>> doors_;
  std::multimap<std::string, int> waiting_;  // the processes that wait for a key
  std::set<int> cut_off_;
  std::map<int, int64_t> slow_;
  int64_t stalled_until_ = 0;
};

}  // namespace entrain
