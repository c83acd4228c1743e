// A rank of the fake, from joining to its end, with the operations that were submitted to it, and
// its errors. Thread safety: any thread.
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

// The settings that tests give in the environment: README.md.
struct Settings {
  int version = 22809;
  // Number of queries that return kInProgress before an operation begins.
  int polls = 2;
  bool hangs = false;     // joining never ends
  bool connects = false;  // the first operation begins when all ranks have one
  int abort_ms = 0;       // time for which operations continue after ncclCommAbort
  int fail_after = -1;    // this number of operations succeeds; the next fails
  entrain::nccl::Result failure = entrain::nccl::kRemoteError;
  static Settings Read();
};

class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  Communicator(std::shared_ptr<Board> board, Place place, const Settings& settings);
  ~Communicator();

  // Blocks until all ranks have come. Runs on a separate thread.
  void Join(int device);
  // Returns kInProgress. The operation is put on the stream after Settings::polls calls of
  // AsyncError.
  entrain::nccl::Result Submit(Operation operation, void* stream);
  // Returns the state of the communicator. Each call makes progress.
  entrain::nccl::Result AsyncError();
  // Returns false while something is in progress, and after an error.
  bool Ready() const { return state_.load() == entrain::nccl::kSuccess; }
  entrain::nccl::Result Finalize();
  bool finalized() const { return finalized_.load(); }
  // Stops the operations, even in the middle. Waits for them and for the device.
  void Abort();
  // Frees the memory of the communicator. Waits for the device, as every function that frees device
  // memory.
  void FreeMemory();

  Place place() const { return place_; }
  entrain::nccl::RedOp AddOperator(Combination how);
  // Returns false if the operator is not of this communicator.
  bool RemoveOperator(entrain::nccl::RedOp op);
  bool FindOperator(entrain::nccl::RedOp op, Combination* how);

  static int live();            // communicators
  static int live_operators();  // of all communicators
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
  // Records an error. Only the first error counts.
  void Fail(entrain::nccl::Result result, const std::string& why);
  void AwaitAbort() const;
  bool CheckPeers();

  const std::shared_ptr<Board> board_;
  const Place place_;
  const Settings settings_;
  std::atomic<entrain::nccl::Result> state_{entrain::nccl::kInProgress};
  std::atomic<bool> aborted_{false}, finalized_{false};

  void* context_ = nullptr;  // the driver's context

  std::mutex mutex_;
  std::condition_variable changed_;
  uintptr_t memory_ = 0;  // on the device
  std::unique_ptr<Submitted> pending_;
  int polls_left_ = 0;
  uint64_t submitted_ = 0, over_ = 0;
  int next_operator_ = 5;
  std::map<int, Combination> operators_;
};

// The text that ncclGetLastError returns.
void SetLastError(const std::string& why);

}  // namespace fake_nccl
