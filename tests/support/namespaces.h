// Two hosts on one machine: two network namespaces on a bridge. Each has a cable that can be
// pulled. Needs root, iproute2 and a kernel that permits it. Tests skip if one is missing.
#pragma once

#include <cstdlib>
#include <string>

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace entrain {

class TwoHosts {
 public:
  TwoHosts() : name_(absl::StrCat("ent", getpid())) {
    made_ = Run(absl::StrCat("ip netns add ", Switch(), " && ip -n ", Switch(),
                             " link add bridge type bridge && ip -n ", Switch(),
                             " link set bridge up"));
    for (int host = 0; host < 2 && made_; ++host) {
      made_ = Run(absl::StrCat(
          "ip netns add ", Name(host), " && ip link add eth0 netns ", Name(host),
          " type veth peer name port", host, " netns ", Switch(), " && ip -n ", Switch(),
          " link set port", host, " master bridge && ip -n ", Switch(), " link set port", host,
          " up && ip -n ", Name(host), " link set lo up && ip -n ", Name(host), " addr add ",
          AddressOf(host), "/24 dev eth0 && ip -n ", Name(host), " link set eth0 up"));
    }
  }
  ~TwoHosts() {
    for (const std::string& each : {Name(0), Name(1), Switch()}) {
      Run(absl::StrCat("ip netns del ", each));
    }
  }
  TwoHosts(const TwoHosts&) = delete;
  TwoHosts& operator=(const TwoHosts&) = delete;

  bool made() const { return made_; }
  static std::string AddressOf(int host) { return absl::StrCat("10.77.9.", host + 1); }
  // Moves the calling thread, and the threads and processes that it starts, to that host.
  bool Enter(int host) const {
    const int fd = open(absl::StrCat("/run/netns/", Name(host)).c_str(), O_RDONLY | O_CLOEXEC);
    const bool entered = fd >= 0 && setns(fd, CLONE_NEWNET) == 0;
    close(fd);
    return entered;
  }
  // Pulls the cable at the far end, so that the host's own end does not notice.
  bool Unplug(int host) const {
    return Run(absl::StrCat("ip -n ", Switch(), " link set port", host, " down"));
  }
  // Limits the rate at which a host sends. `rate`: as in tc.
  bool Slow(const std::string& rate) const {
    bool done = true;
    for (int host = 0; host < 2; ++host) {
      done =
          done && Run(absl::StrCat("tc -n ", Name(host), " qdisc replace dev eth0 root tbf rate ",
                                   rate, " burst 32kb latency 30ms"));
    }
    return done;
  }

 private:
  std::string Switch() const { return absl::StrCat(name_, "s"); }
  std::string Name(int host) const { return absl::StrCat(name_, "h", host); }
  static bool Run(const std::string& command) {
    return std::system(absl::StrCat("(", command, ") > /dev/null 2>&1").c_str()) == 0;
  }

  const std::string name_;
  bool made_ = false;
};

}  // namespace entrain
