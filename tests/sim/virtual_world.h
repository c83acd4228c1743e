// Processes that exist only in a test. They run the library's own code: its threads are fibers of
// one thread, and the system calls by which it reads the clock, sleeps and wakes are replaced when
// the test is linked (CMakeLists.txt lists them). So the library needs no code for this test, and
// time passes only while all fibers wait.
//
//   a fiber runs until it blocks: a sleep, a futex, an epoll_wait, a call of the virtual store
//   VirtualNetwork then runs the next event: a message, a fault, or a fiber whose time has come
//
// Every process has a clock of its own, which may be wrong and may run fast or slow. A process may
// crash at its n-th blocking call, stop for a while, or lose the path to another one. Equal seeds give
// equal runs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/clock.h"
#include "tests/sim/virtual_network.h"

namespace entrain {

class VirtualTransport;  // virtual_transport.h

class VirtualWorld {
 public:
  VirtualWorld(uint64_t seed, int processes, VirtualNetwork::Delays delays);
  ~VirtualWorld();

  VirtualNetwork& network() { return network_; }
  // ---- Set up
  struct Process {
    int host = 0;  // processes of one host see each other's end in /proc
    int64_t clock_offset_ns = kSecond;
    double clock_rate = 1;
  };
  void Describe(int process, const Process& how);
  // Runs `body` in the process, on a new fiber.
  void Start(int process, int64_t at_ns, std::function<void()> body);
  // Makes the process crash instead of returning from its `calls`-th blocking call from now on.
  void CrashAtCall(int process, int64_t calls, bool notice);
  bool notices(int process) const;  // true: the others are told of that crash
  // Runs until this time, or until no event is left.
  void Run(int64_t until_ns);
  // Frees the memory of crashed processes: they continue without network and store until their
  // fibers end. Returns the number of fibers that have not ended.
  int Bury();
  // Returns a hash of the run: equal runs have equal fingerprints.
  uint64_t fingerprint() const { return fingerprint_; }

  // ---- For the code that runs on a fiber
  // Returns the world of the running fiber, or null if no fiber runs.
  static VirtualWorld* OfFiber();
  int process() const;  // returns the process of the running fiber
  // Blocks for this time of the process's clock.
  void Sleep(int64_t ns);
  // As Sleep, but Wake with this key ends the sleep. Returns false if the time has passed.
  bool Block(const void* key, int64_t ns);
  void Wake(int process, const void* key);
  // Ends the sleeps that wait for descriptors.
  void Poke(int process);
  int64_t LocalNow(int process) const;
  bool isolated(int process) const;  // true: it has crashed, and runs only to free its memory
  int64_t blocking_calls(int process) const;
  const Process& description(int process) const;

  // ---- For the replaced system calls and the virtual transport
  void Attach(int process, VirtualTransport* transport);
  VirtualTransport* TransportOf(int process) const;  // null: none
  bool HasEnded(int process) const;                  // crashed, or its last fiber has ended
  int OpenDescriptor();                              // an eventfd, or the set of an epoll
  void CloseDescriptor(int fd);
  void Watch(int set, int fd) { at(set).members.push_back(fd); }
  uint64_t& CountOf(int fd) { return at(fd).count; }
  int Ready(int set);  // returns the number of members of the set that are readable
  static bool IsVirtual(int fd) { return fd >= kFirstDescriptor; }
  uint64_t StartThread(std::function<void()> body);
  void JoinThread(uint64_t fiber);
  // For Abseil, to which the running fiber is a thread: its identity, memory that is zero at first,
  // and a semaphore.
  void* Identity(size_t bytes, size_t alignment);
  bool AwaitPost(int64_t ns);       // false: the time has passed
  bool Post(const void* identity);  // false: no fiber has this identity
  void Note(uint64_t value) { fingerprint_ = (fingerprint_ ^ value) * 0x100000001B3u; }

 private:
  static constexpr int kFirstDescriptor = 1 << 24;
  struct Fiber;
  struct Node;
  struct Descriptor {
    bool open = false;
    uint64_t count = 0;
    std::vector<int> members;
  };
  Descriptor& at(int fd) { return descriptors_[static_cast<size_t>(fd - kFirstDescriptor)]; }
  Node& node(int process) const;
  Fiber& NewFiber(int process, std::function<void()> body);
  void Resume(size_t fiber, uint64_t turn);
  static void Switch(Fiber* from, Fiber* to);
  void SwitchToScheduler();
  static void Enter();

  VirtualNetwork network_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Descriptor> descriptors_;
  std::vector<int> free_descriptors_;
  Fiber* current_ = nullptr;
  std::unique_ptr<Fiber> scheduler_;
  uint64_t fingerprint_ = 0xCBF29CE484222325u;
};

}  // namespace entrain
