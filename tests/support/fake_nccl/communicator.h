// A rank of the fake: from joining to its end, what it has been told to do, and what has gone
// wrong. Thread safety: any thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "tests/support/fake_nccl/board.h"
#include "tests/support/fake_nccl/operation.h"

namespace fake_nccl {

// What tests ask for, from the environment: README.md.
struct Settings {
  int version = 22809;
  int polls = 2;          // so many questions are answered with kInProgress before anything begins
  bool hangs = false;     // joining
  bool connects = false;  // the first operation begins when all ranks have been given theirs
  int abort_ms = 0;       // so long what is under way goes on after ncclCommAbort
  int fail_after = -1;    // operations; the next one fails
  entrain::nccl::Result failure = entrain::nccl::kRemoteError;
  static Settings Read();
};

class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  Communicator(std::shared_ptr<Board> board, Place place, const Settings& settings);
  ~Communicator();

  // On a thread of its own, until all ranks are there.
  void Join(int device);
  // kInProgress: it is put on the stream when AsyncError has been asked often enough.
  entrain::nccl::Result Submit(Operation operation, void* stream);
  // Asking moves things on.
  entrain::nccl::Result AsyncError();
  // Not while something is in progress, or after an error.
  bool Ready() const { return state_.load() == entrain::nccl::kSuccess; }
  entrain::nccl::Result Finalize();
  bool finalized() const { return finalized_.load(); }
  // Operations end where they are; waits for that, and for the device.
  void Abort();
  // As whoever frees memory of the device, this waits for it.
  void FreeMemory();

  Place place() const { return place_; }
  entrain::nccl::RedOp AddOperator(Combination how);
  // False: none of this communicator's.
  bool RemoveOperator(entrain::nccl::RedOp op);
  bool FindOperator(entrain::nccl::RedOp op, Combination* how);

  static int live();            // communicators
  static int live_operators();  // of all
  static int launches();
  static int operations();  // under way

 private:
  struct Submitted;
  void FindMemory();
  bool Connected() const;
  void Launch();
  bool Run(uint64_t number, Operation& operation);
  bool Pump(Operation& operation);
  bool Gone() const { return aborted_.load(); }
  // The first error stays.
  void Fail(entrain::nccl::Result result, const std::string& why);
  void AwaitAbort() const;
  bool CheckPeers();

  const std::shared_ptr<Board> board_;
  const Place place_;
  const Settings settings_;
  std::atomic<entrain::nccl::Result> state_{entrain::nccl::kInProgress};
  std::atomic<bool> aborted_{false}, finalized_{false};

  void* context_ = nullptr;  // of the driver

  std::mutex mutex_;
  std::condition_variable changed_;
  uintptr_t memory_ = 0;  // on the device
  std::unique_ptr<Submitted> pending_;
  int polls_left_ = 0;
  uint64_t submitted_ = 0, over_ = 0;
  int next_operator_ = 5;
  std::map<int, Combination> operators_;
};

// What ncclGetLastError gives.
void SetLastError(const std::string& why);

}  // namespace fake_nccl
