// Errors inside the library are absl::Status; no exception crosses a function. This unit adds
// macros that return early, the table of absl codes and C ABI codes, and the blame record that
// travels with an error.
//
// The absl codes and their C ABI codes (one table, in status.cc):
//   kInvalidArgument   INVALID_ARGUMENT        kUnavailable       PEER_LOST
//   kFailedPrecondition FAILED_PRECONDITION    kDataLoss          MISMATCH
//   kUnimplemented     UNIMPLEMENTED           kDeadlineExceeded  TIMED_OUT
//   kResourceExhausted RESOURCE_EXHAUSTED      kAborted           ABORTED
//   kOutOfRange        STALE_GENERATION        everything else    INTERNAL
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "include/entrain/types.h"

#define ENTRAIN_CONCAT_INNER(a, b) a##b
#define ENTRAIN_CONCAT(a, b) ENTRAIN_CONCAT_INNER(a, b)

// If the status of `expr` is not OK, returns it from the enclosing function.
#define ENTRAIN_RETURN_IF_ERROR(expr)        \
  do {                                       \
    ::absl::Status entrain_status_ = (expr); \
    if (!entrain_status_.ok()) {             \
      return entrain_status_;                \
    }                                        \
  } while (false)

// Declares or assigns x, or returns the error: ENTRAIN_ASSIGN_OR_RETURN(auto x, Function()).
#define ENTRAIN_ASSIGN_OR_RETURN(lhs, expr) \
  ENTRAIN_ASSIGN_OR_RETURN_INNER(ENTRAIN_CONCAT(entrain_or_, __LINE__), lhs, expr)
#define ENTRAIN_ASSIGN_OR_RETURN_INNER(tmp, lhs, expr) \
  auto tmp = (expr);                                   \
  if (!tmp.ok()) {                                     \
    return std::move(tmp).status();                    \
  }                                                    \
  lhs = *std::move(tmp)

namespace entrain {

// The phase in which an operation failed. status.cc has the text of each.
enum class Phase : int32_t {
  kNone = 0,
  kBootstrap = 1,  // exchanging addresses through the store
  kConnect = 2,    // reaching a peer
  kCheck = 3,      // checking arguments or descriptors
  kTransfer = 4,   // waiting for a peer's data, or for a peer to take this rank's data
  kReduce = 5,     // combining data that arrived
};
absl::string_view PhaseName(Phase phase);

// The rank, address and operation that an error is about. Fields that do not apply keep their
// defaults.
struct Blame {
  int32_t rank = -1;  // the rank at fault, in the communicator concerned
  // number of the rank at fault in the outermost communicator, from which the other communicators
  // were split
  int32_t world_rank = -1;
  // the process of the rank at fault; also set if this process is not a member of the communicator
  std::array<uint8_t, 16> peer_id{};
  std::string address;      // "tcp 127.0.0.1:4711", "shm pid 12"
  std::string operation;    // "all_reduce"
  int64_t tag = -1;         // user tag; -1: untagged
  uint64_t sequence = 0;    // number of the call in its communicator, from 1
  uint64_t generation = 0;  // generation of the communicator concerned
  Phase phase = Phase::kNone;
  int32_t sys_errno = 0;
  int64_t elapsed_ns = 0;
  int64_t deadline_ns = 0;  // the operation's time limit
  int64_t bytes_done = 0;
  // Only for timeouts: the number of ranks that had not come to the call, and the first kMaxLate of
  // them.
  static constexpr size_t kMaxLate = 128;
  int32_t late_ranks = 0;
  std::vector<int32_t> late;
};

// Returns `status` with `blame` attached as a payload. The message does not change.
absl::Status WithBlame(absl::Status status, const Blame& blame);
// Returns the attached record, or an empty one.
Blame BlameOf(const absl::Status& status);
bool HasBlame(const absl::Status& status);

// Returns `status` with "`prefix`: " before its message. Code and payload do not change.
absl::Status Annotate(const absl::Status& status, absl::string_view prefix);

// Returns a status with the message "`what`: strerror text". Its code is kUnavailable for
// connection errors, kResourceExhausted for shortages (memory, descriptors), otherwise kInternal.
// The blame record keeps the errno.
absl::Status ErrnoStatus(int error, absl::string_view what);

// Marks the status of a lost path: it is proven that the process at the other end of the path has
// ended or has closed its runtime. (A time-out, or a reset by a network, is no proof.)
absl::Status AsPeerEnded(absl::Status status);
bool IsPeerEnded(const absl::Status& status);

entrain_status_t ToCode(const absl::Status& status);
absl::StatusCode FromCode(entrain_status_t code);
// Returns "ENTRAIN_PEER_LOST", for example; "ENTRAIN_?" for unknown values.
const char* CodeName(entrain_status_t code);

// Convert a status to bytes for a peer, and back. DecodeStatus returns nullopt for malformed input.
// (A StatusOr<Status> could not distinguish such an error from a decoded status.) Texts from a peer
// are cleaned (lib/base/text.h).
std::string EncodeStatus(const absl::Status& status);
std::optional<absl::Status> DecodeStatus(absl::string_view bytes);

}  // namespace entrain
