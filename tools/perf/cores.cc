#include "tools/perf/cores.h"

#include <algorithm>

#include <sched.h>

#include "lib/base/cpu_share.h"

namespace entrain::perf {

int Cores() {
  CpuCrowd alone;
  alone.Add(CpuShare::OfThisThread());
  return alone.Cores();
}

void PinToCore(int rank) {
  cpu_set_t allowed, one;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) {
    return;
  }
  int skip = rank % std::max(1, CPU_COUNT(&allowed));
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &allowed) && skip-- == 0) {
      CPU_ZERO(&one);
      CPU_SET(core, &one);
      sched_setaffinity(0, sizeof(one), &one);
      return;
    }
  }
}

}  // namespace entrain::perf
