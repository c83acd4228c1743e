#include "tests/sim/virtual_world.h"

#include <algorithm>
#include <csetjmp>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>

#include <link.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "tests/sim/virtual_transport.h"

namespace entrain {
namespace {

constexpr size_t kStackBytes = size_t{1} << 20;  // only the used part takes memory
constexpr int64_t kBuryNs = 3600 * kSecond;      // longer than the deadline of every call

thread_local VirtualWorld* running = nullptr;  // the world whose fiber runs

// Stacks are used again: fresh memory costs page faults.
std::vector<void*>& FreeStacks() {
  static auto* const stacks = new std::vector<void*>;
  return *stacks;
}
void* TakeStack() {
  if (FreeStacks().empty()) {
    void* const stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return stack == MAP_FAILED ? nullptr : stack;
  }
  void* const stack = FreeStacks().back();
  FreeStacks().pop_back();
  return stack;
}

// The thread_local variables of the program. While a fiber runs, they have the fiber's values. The
// variables of shared libraries are not included.
class ThreadVariables {
 public:
  static void Save(std::vector<char>* into) {
    into->assign(Own().begin, Own().begin + Own().bytes);
  }
  static void Load(const std::vector<char>& from) {
    const Place& own = Own();
    if (from.empty()) {
      std::memcpy(own.begin, own.initial, own.initial_bytes);
      std::memset(own.begin + own.initial_bytes, 0, own.bytes - own.initial_bytes);
    } else {
      std::memcpy(own.begin, from.data(), own.bytes);
    }
  }

 private:
  struct Place {
    char* begin = nullptr;
    size_t bytes = 0;
    const char* initial = nullptr;
    size_t initial_bytes = 0;
  };
  static const Place& Own() {
    static const Place own = [] {
      Place place;
      dl_iterate_phdr(&Find, &place);
      return place;
    }();
    return own;
  }
  // Called for the first loaded object, which is the program.
  static int Find(dl_phdr_info* object, size_t, void* place) {
    for (int i = 0; i < object->dlpi_phnum; ++i) {
      const auto& header = object->dlpi_phdr[i];
      if (header.p_type == PT_TLS) {
        *static_cast<Place*>(place) = {
            static_cast<char*>(object->dlpi_tls_data), header.p_memsz,
            reinterpret_cast<const char*>(object->dlpi_addr + header.p_vaddr), header.p_filesz};
      }
    }
    return 1;
  }
};

}  // namespace

struct VirtualWorld::Fiber {
  size_t number = 0;
  int process = -1;
  ucontext_t context{};
  std::jmp_buf jump{};  // where it goes on, once it has begun: swapcontext costs two system calls
  bool begun = false;
  void* stack = nullptr;
  std::function<void()> body;
  uint64_t turn = 0;          // of its last resumption; older wake-ups are void
  const void* key = nullptr;  // what it waits for
  bool blocked = false, woken = false, ended = false;
  std::vector<char> variables;  // of its thread; empty: the initial values
  void* identity = nullptr;     // as a thread of Abseil
  int posts = 0;                // of Abseil's semaphore of the thread
};

struct VirtualWorld::Node final : public VirtualNode {
  explicit Node(VirtualWorld* w) : world(w) {}
  void OnMessage(int from, const std::string& text, int64_t now) override {
    world->Note(static_cast<uint64_t>(now) * 31 + static_cast<uint64_t>(from) + text.size());
    if (transport != nullptr) {
      transport->OnMessage(from, text);
    }
  }
  void OnLost(int peer, bool proven, int64_t) override {
    if (transport != nullptr) {
      transport->OnLost(peer, proven);
    }
  }
  void OnTick(int64_t) override {}
  int64_t next_tick() const override { return std::numeric_limits<int64_t>::max(); }

  VirtualWorld* const world;
  Process how;
  VirtualTransport* transport = nullptr;
  std::vector<size_t> fibers;
  int64_t calls = 0, crash_at = -1;
  bool notice = true, isolated = false;
};

VirtualWorld::VirtualWorld(uint64_t seed, int processes, VirtualNetwork::Delays delays)
    : network_(seed, processes, delays), scheduler_(std::make_unique<Fiber>()) {
  for (int p = 0; p < processes; ++p) {
    nodes_.push_back(std::make_unique<Node>(this));
    network_.Attach(p, nodes_.back().get());
  }
}

VirtualWorld::~VirtualWorld() = default;

VirtualWorld* VirtualWorld::OfFiber() {
  return running;
}
VirtualWorld::Node& VirtualWorld::node(int process) const {
  return *nodes_[static_cast<size_t>(process)];
}
int VirtualWorld::process() const {
  return current_->process;
}
bool VirtualWorld::isolated(int process) const {
  return node(process).isolated;
}
int64_t VirtualWorld::blocking_calls(int process) const {
  return node(process).calls;
}
const VirtualWorld::Process& VirtualWorld::description(int process) const {
  return node(process).how;
}
void VirtualWorld::Describe(int process, const Process& how) {
  node(process).how = how;
}
void VirtualWorld::Attach(int process, VirtualTransport* transport) {
  node(process).transport = transport;
}
VirtualTransport* VirtualWorld::TransportOf(int process) const {
  return node(process).transport;
}
bool VirtualWorld::HasEnded(int process) const {
  const std::vector<size_t>& fibers = node(process).fibers;
  return !network_.alive(process) ||
         std::all_of(fibers.begin(), fibers.end(), [this](size_t f) { return fibers_[f]->ended; });
}
void VirtualWorld::CrashAtCall(int process, int64_t calls, bool notice) {
  node(process).crash_at = node(process).calls + calls;
  node(process).notice = notice;
}
bool VirtualWorld::notices(int process) const {
  return node(process).notice;
}
void VirtualWorld::Run(int64_t until_ns) {
  network_.Run(until_ns);
}

int64_t VirtualWorld::LocalNow(int process) const {
  const Process& how = node(process).how;
  return how.clock_offset_ns +
         static_cast<int64_t>(static_cast<double>(network_.now()) * how.clock_rate);
}

// ---- Fibers

VirtualWorld::Fiber& VirtualWorld::NewFiber(int process, std::function<void()> body) {
  auto fiber = std::make_unique<Fiber>();
  fiber->number = fibers_.size();
  fiber->process = process;
  fiber->body = std::move(body);
  fiber->stack = TakeStack();
  fiber->blocked = true;
  getcontext(&fiber->context);
  fiber->context.uc_stack.ss_sp = fiber->stack;
  fiber->context.uc_stack.ss_size = kStackBytes;
  makecontext(&fiber->context, &VirtualWorld::Enter, 0);
  node(process).fibers.push_back(fiber->number);
  fibers_.push_back(std::move(fiber));
  return *fibers_.back();
}

void VirtualWorld::Start(int process, int64_t at_ns, std::function<void()> body) {
  const size_t number = NewFiber(process, std::move(body)).number;
  network_.On(process, at_ns, [this, number] { Resume(number, 0); });
}

uint64_t VirtualWorld::StartThread(std::function<void()> body) {
  const int here = process();
  const size_t number = NewFiber(here, std::move(body)).number;
  network_.On(here, network_.now(), [this, number] { Resume(number, 0); });
  return number + 1;  // 0: no thread
}

void VirtualWorld::JoinThread(uint64_t fiber) {
  const Fiber& other = *fibers_[fiber - 1];
  while (!other.ended) {
    Block(&other, std::numeric_limits<int64_t>::max());
  }
}

void VirtualWorld::Enter() {
  VirtualWorld* const world = running;
  Fiber* const self = world->current_;
  self->body();
  self->body = nullptr;
  self->ended = true;
  world->Wake(self->process, self);
  world->SwitchToScheduler();
}

void VirtualWorld::Switch(Fiber* from, Fiber* to) {
  from->begun = true;
  if (_setjmp(from->jump) == 0) {
    if (to->begun) {
      _longjmp(to->jump, 1);
    }
    setcontext(&to->context);
  }
}

void VirtualWorld::SwitchToScheduler() {
  Fiber* const self = current_;
  Switch(self, scheduler_.get());
}

void VirtualWorld::Resume(size_t number, uint64_t turn) {
  Fiber& fiber = *fibers_[number];
  if (fiber.ended || fiber.turn != turn || !fiber.blocked) {
    return;
  }
  fiber.blocked = false;
  Note(static_cast<uint64_t>(network_.now()) * 1000003 + number);
  current_ = &fiber;
  ThreadVariables::Load(fiber.variables);
  running = this;
  Switch(scheduler_.get(), &fiber);
  ThreadVariables::Save(&fiber.variables);
  ThreadVariables::Load({});
  current_ = nullptr;
  running = nullptr;
  if (fiber.ended) {
    FreeStacks().push_back(std::exchange(fiber.stack, nullptr));
    std::free(std::exchange(fiber.identity, nullptr));
    fiber.variables = {};
  }
}

bool VirtualWorld::Block(const void* key, int64_t ns) {
  Fiber& self = *current_;
  Node& home = node(self.process);
  if (++home.calls == home.crash_at) {
    network_.Crash(self.process, home.notice);
  }
  self.key = key;
  self.woken = false;
  self.blocked = true;
  const uint64_t turn = ++self.turn;
  const double global = static_cast<double>(ns) / home.how.clock_rate;
  if (global < 1e17) {
    network_.On(self.process,
                network_.now() + std::max<int64_t>(static_cast<int64_t>(global), 0) + 1,
                [this, number = self.number, turn] { Resume(number, turn); });
  }
  SwitchToScheduler();
  self.key = nullptr;
  return self.woken;
}

void VirtualWorld::Sleep(int64_t ns) {
  Block(nullptr, ns);
}

void VirtualWorld::Wake(int process, const void* key) {
  for (const size_t number : node(process).fibers) {
    Fiber& fiber = *fibers_[number];
    if (fiber.blocked && !fiber.ended && fiber.key == key && !fiber.woken) {
      fiber.woken = true;
      // Most threads run soon, some much later.
      const int64_t late = network_.Chance(0.02) ? 3 * kMillisecond : 30 * kMicrosecond;
      network_.On(process, network_.now() + network_.Between(0, late),
                  [this, number, turn = fiber.turn] { Resume(number, turn); });
    }
  }
}

void* VirtualWorld::Identity(size_t bytes, size_t alignment) {
  if (current_->identity == nullptr) {
    const size_t room = (bytes + alignment - 1) / alignment * alignment;
    current_->identity = std::memset(std::aligned_alloc(alignment, room), 0, room);
  }
  return current_->identity;
}

bool VirtualWorld::AwaitPost(int64_t ns) {
  Fiber& self = *current_;
  const Deadline until = Deadline::From(LocalNow(self.process), ns);
  while (self.posts == 0) {
    const int64_t left = until.Left(LocalNow(self.process));
    if (left == 0) {
      return false;
    }
    Block(&self.posts, left);
  }
  --self.posts;
  return true;
}

bool VirtualWorld::Post(const void* identity) {
  const auto found = std::find_if(fibers_.begin(), fibers_.end(), [identity](const auto& fiber) {
    return fiber->identity == identity;
  });
  if (found == fibers_.end()) {
    return false;
  }
  ++(*found)->posts;
  Wake((*found)->process, &(*found)->posts);
  return true;
}

void VirtualWorld::Poke(int process) {
  Wake(process, &node(process).how);
}

int VirtualWorld::Bury() {
  for (size_t p = 0; p < nodes_.size(); ++p) {
    const int process = static_cast<int>(p);
    Node& home = node(process);
    if (network_.alive(process)) {
      continue;
    }
    home.isolated = true;
    home.crash_at = -1;
    network_.Revive(process);
    if (home.transport != nullptr) {
      for (int peer = 0; peer < network_.size(); ++peer) {
        home.transport->OnLost(peer, false);
      }
    }
    for (const size_t number : home.fibers) {
      network_.On(process, network_.now(),
                  [this, number, turn = fibers_[number]->turn] { Resume(number, turn); });
    }
  }
  network_.Run(network_.now() + kBuryNs);
  return static_cast<int>(std::count_if(fibers_.begin(), fibers_.end(),
                                        [](const auto& fiber) { return !fiber->ended; }));
}

// ---- Descriptors

int VirtualWorld::OpenDescriptor() {
  int place = static_cast<int>(descriptors_.size());
  if (free_descriptors_.empty()) {
    descriptors_.emplace_back();
  } else {
    place = free_descriptors_.back();
    free_descriptors_.pop_back();
  }
  descriptors_[static_cast<size_t>(place)] = {.open = true, .count = 0, .members = {}};
  return kFirstDescriptor + place;
}

void VirtualWorld::CloseDescriptor(int fd) {
  at(fd).open = false;
  free_descriptors_.push_back(fd - kFirstDescriptor);
}

int VirtualWorld::Ready(int set) {
  const std::vector<int>& members = at(set).members;
  return static_cast<int>(
      std::count_if(members.begin(), members.end(), [this](int fd) { return CountOf(fd) > 0; }));
}

}  // namespace entrain
