#include "tests/support/fake_nccl/communicator.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <utility>

#include <unistd.h>

#include "tests/support/fake_nccl/cuda_of_fake.h"

namespace fake_nccl {
namespace {

using entrain::nccl::Result;

std::atomic<int> communicators{0}, operators{0}, launched{0}, under_way{0};

const char* Variable(const char* name) {
  return std::getenv(name);
}

// Sleeps between two polls of what a call waits for.
void Nap() {
  std::this_thread::sleep_for(std::chrono::microseconds(50));
}

}  // namespace

struct Communicator::Submitted {
  std::shared_ptr<Communicator> communicator;
  uint64_t number = 0;
  Operation operation;
  void* stream = nullptr;
};

Settings Settings::Read() {
  Settings settings;
  if (const char* const version = Variable("FAKE_NCCL_VERSION")) {
    settings.version = std::atoi(version);
  }
  if (const char* const polls = Variable("FAKE_NCCL_POLLS")) {
    settings.polls = std::atoi(polls);
  }
  settings.hangs = Variable("FAKE_NCCL_HANG") != nullptr;
  settings.connects = Variable("FAKE_NCCL_CONNECT") != nullptr;
  if (const char* const abort_ms = Variable("FAKE_NCCL_ABORT_MS")) {
    settings.abort_ms = std::atoi(abort_ms);
  }
  if (const char* const fail = Variable("FAKE_NCCL_FAIL")) {
    int failure = 0;
    if (std::sscanf(fail, "%d:%d", &settings.fail_after, &failure) == 2) {
      settings.failure = static_cast<Result>(failure);
    }
  }
  return settings;
}

Communicator::Communicator(std::shared_ptr<Board> board, Place place, const Settings& settings)
    : board_(std::move(board)), place_(place), settings_(settings), polls_left_(settings.polls) {
  ++communicators;
}

Communicator::~Communicator() {
  --communicators;
  operators -= static_cast<int>(operators_.size());
}

int Communicator::live() {
  return communicators.load();
}
int Communicator::launches() {
  return launched.load();
}
int Communicator::operations() {
  return under_way.load();
}
int Communicator::live_operators() {
  return operators.load();
}

void Communicator::FindMemory() {
  uintptr_t memory = 0;
  void* ours = nullptr;
  TheCuda().cuCtxPushCurrent_v2(context_);
  TheCuda().cuMemAlloc_v2(&memory, 4096);
  TheCuda().cuCtxPopCurrent_v2(&ours);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    memory_ = memory;
  }
  if (Gone()) {
    FreeMemory();
  }
}

void Communicator::FreeMemory() {
  uintptr_t memory = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    memory = std::exchange(memory_, 0);
  }
  void* ours = nullptr;
  if (memory != 0) {
    TheCuda().cuCtxPushCurrent_v2(context_);
    TheCuda().cuMemFree_v2(memory);
    TheCuda().cuCtxPopCurrent_v2(&ours);
  }
}

void Communicator::Join(int device) {
  TheCuda().cuCtxGetCurrent(&context_);
  board_->device[place_.rank].store(device);
  board_->process[place_.rank].store(getpid());
  board_->presence[place_.rank].store(Presence::kHere);
  std::thread([self = shared_from_this()] {
    const Board& board = *self->board_;
    while (board.Count(Presence::kHere) < self->place_.size || self->settings_.hangs) {
      if (self->Gone()) {
        return;
      }
      Nap();
    }
    for (int a = 0; a < self->place_.size; ++a) {
      for (int b = 0; b < a; ++b) {
        if (board.device[a].load() == board.device[b].load()) {
          self->Fail(entrain::nccl::kInvalidUsage, "Duplicate GPU detected : rank " +
                                                       std::to_string(a) + " and rank " +
                                                       std::to_string(b));
          return;
        }
      }
    }
    self->FindMemory();
    const std::lock_guard<std::mutex> lock(self->mutex_);
    self->polls_left_ = 0;
    self->state_.store(entrain::nccl::kSuccess);
  }).detach();
}

Result Communicator::Submit(Operation operation, void* stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  pending_ = std::make_unique<Submitted>(
      Submitted{shared_from_this(), ++submitted_, std::move(operation), stream});
  ++under_way;
  state_.store(entrain::nccl::kInProgress);
  polls_left_ = settings_.polls;
  board_->came[place_.rank].store(1);
  if (polls_left_ == 0 && Connected()) {
    Launch();
  }
  return state_.load();
}

Result Communicator::AsyncError() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (pending_ != nullptr && --polls_left_ <= 0 && Connected()) {
    Launch();
  }
  return state_.load();
}

bool Communicator::Connected() const {
  for (int r = 0; r < place_.size && settings_.connects; ++r) {
    if (board_->came[r].load() == 0) {
      return false;
    }
  }
  return true;
}

void Communicator::Launch() {
  Submitted* const submitted = pending_.release();
  ++launched;
  const int result = TheCuda().cuLaunchHostFunc(
      submitted->stream,
      [](void* argument) {
        const std::unique_ptr<Submitted> given(static_cast<Submitted*>(argument));
        Communicator& self = *given->communicator;
        if (!self.Run(given->number, given->operation)) {
          self.AwaitAbort();  // like a kernel whose peer does not come
        }
        const std::lock_guard<std::mutex> lock(self.mutex_);
        ++self.over_;
        --under_way;
        self.changed_.notify_all();
      },
      submitted);
  if (result != 0) {
    delete submitted;
    ++over_;
    --under_way;
    SetLastError("Cuda failure " + std::to_string(result));
    state_.store(entrain::nccl::kUnhandledCudaError);
    return;
  }
  state_.store(entrain::nccl::kSuccess);
}

// Operations run in the order in which they were submitted, on whatever streams.
bool Communicator::Run(uint64_t number, Operation& operation) {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return over_ + 1 == number || Gone(); });
  }
  if (settings_.fail_after >= 0 && number > static_cast<uint64_t>(settings_.fail_after)) {
    Fail(settings_.failure, "FAKE_NCCL_FAIL");
    return false;
  }
  for (const auto& step : operation.before) {
    if (!step()) {
      Fail(entrain::nccl::kUnhandledCudaError, "an address that is none of the device");
      return false;
    }
  }
  if (!Pump(operation)) {
    return false;
  }
  for (const auto& step : operation.after) {
    if (!step()) {
      Fail(entrain::nccl::kUnhandledCudaError, "an address that is none of the device");
      return false;
    }
  }
  return true;
}

// Moves bytes until all transfers are done. For each peer and direction, moves one transfer at a
// time.
bool Communicator::Pump(Operation& operation) {
  struct Way {
    std::vector<std::pair<char*, size_t>> pieces;
    size_t at = 0, done = 0;
  };
  Way ways[2][kMostRanks];
  for (const Transfer& transfer : operation.transfers) {
    std::vector<char>* const room = transfer.room;
    char* const seen = room != nullptr ? room->data() : transfer.memory.Seen();
    const size_t bytes = room != nullptr ? room->size() : transfer.memory.bytes;
    if (bytes == 0) {
      continue;
    }
    if (seen == nullptr) {
      Fail(entrain::nccl::kUnhandledCudaError, "an address that is none of the device");
      return false;
    }
    ways[transfer.send ? 1 : 0][transfer.peer].pieces.emplace_back(seen, bytes);
  }
  int idle = 0;
  for (;;) {
    bool moved = false, left = false;
    for (int peer = 0; peer < place_.size; ++peer) {
      for (const bool send : {false, true}) {
        Way& way = ways[send ? 1 : 0][peer];
        while (way.at < way.pieces.size()) {
          auto [from, bytes] = way.pieces[way.at];
          Pipe& pipe = send ? board_->pipes[place_.rank][peer] : board_->pipes[peer][place_.rank];
          const size_t went = send ? pipe.Write(from + way.done, bytes - way.done)
                                   : pipe.Read(from + way.done, bytes - way.done);
          way.done += went;
          moved |= went > 0;
          if (way.done < bytes) {
            left = true;
            if (went == 0) {
              break;
            }
          } else {
            ++way.at;
            way.done = 0;
          }
        }
        left |= way.at < way.pieces.size();
      }
    }
    if (!left) {
      return true;
    }
    idle = moved ? 0 : idle + 1;
    if (Gone() || (idle % 50 == 49 && !CheckPeers())) {
      return false;
    }
    if (idle > 0) {
      Nap();
    }
  }
}

bool Communicator::CheckPeers() {
  for (int peer = 0; peer < place_.size; ++peer) {
    if (peer != place_.rank && board_->Lost(peer)) {
      Fail(entrain::nccl::kRemoteError, "rank " + std::to_string(peer) + " is gone");
      return false;
    }
  }
  return true;
}

void Communicator::Fail(Result result, const std::string& why) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (state_.load() == entrain::nccl::kSuccess || state_.load() == entrain::nccl::kInProgress) {
    SetLastError(why);
    state_.store(result);
  }
}

void Communicator::AwaitAbort() const {
  while (!Gone()) {
    Nap();
  }
}

Result Communicator::Finalize() {
  state_.store(entrain::nccl::kInProgress);
  std::thread([self = shared_from_this()] {
    {
      std::unique_lock<std::mutex> lock(self->mutex_);
      self->changed_.wait(lock, [&] { return self->over_ == self->submitted_ || self->Gone(); });
    }
    if (!self->Gone()) {
      self->board_->presence[self->place_.rank].store(Presence::kFinalized);
    }
    while (self->board_->Count(Presence::kAborted) < self->place_.size) {
      if (self->Gone() || !self->CheckPeers()) {
        return;
      }
      Nap();
    }
    const std::lock_guard<std::mutex> lock(self->mutex_);
    self->finalized_.store(true);
    self->state_.store(entrain::nccl::kSuccess);
  }).detach();
  return entrain::nccl::kInProgress;
}

void Communicator::Abort() {
  // NCCL needs time to abort.
  std::this_thread::sleep_for(std::chrono::milliseconds(settings_.abort_ms));
  {
    std::unique_lock<std::mutex> lock(mutex_);
    aborted_.store(true);
    board_->presence[place_.rank].store(Presence::kAborted);
    if (pending_ != nullptr) {
      pending_.reset();
      ++over_;
      --under_way;
    }
    changed_.notify_all();
    changed_.wait(lock, [&] { return over_ == submitted_; });
  }
  FreeMemory();
}

entrain::nccl::RedOp Communicator::AddOperator(Combination how) {
  const std::lock_guard<std::mutex> lock(mutex_);
  operators_.emplace(next_operator_, how);
  ++operators;
  return static_cast<entrain::nccl::RedOp>(next_operator_++);
}

bool Communicator::RemoveOperator(entrain::nccl::RedOp op) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const size_t removed = operators_.erase(op);
  operators -= static_cast<int>(removed);
  return removed == 1;
}

bool Communicator::FindOperator(entrain::nccl::RedOp op, Combination* how) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = operators_.find(op);
  if (found == operators_.end()) {
    return false;
  }
  *how = found->second;
  return true;
}

}  // namespace fake_nccl
