// Errors. Functions of the library return absl::Status and throw no exceptions. This file adds
// macros that return early, the mapping between absl codes and C ABI codes, and the record Blame,
// which is attached to a status.
//
// The absl codes and their C ABI codes (the table is in status.cc):
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

// Returns the status of `expr` from the enclosing function if the status is not OK.
#define ENTRAIN_RETURN_IF_ERROR(expr)        \
  do {                                       \
    ::absl::Status entrain_status_ = (expr); \
    if (!entrain_status_.ok()) {             \
      return entrain_status_;                \
    }                                        \
  } while (false)

// Returns the error of a StatusOr, or assigns its value: ENTRAIN_ASSIGN_OR_RETURN(auto x,
// Function()).
#define ENTRAIN_ASSIGN_OR_RETURN(lhs, expr) \
  ENTRAIN_ASSIGN_OR_RETURN_INNER(ENTRAIN_CONCAT(entrain_or_, __LINE__), lhs, expr)
#define ENTRAIN_ASSIGN_OR_RETURN_INNER(tmp, lhs, expr) \
  auto tmp = (expr);                                   \
  if (!tmp.ok()) {                                     \
    return std::move(tmp).status();                    \
  }                                                    \
  lhs = *std::move(tmp)

namespace entrain {

// The phase in which an operation failed.
enum class Phase : int32_t {
  kNone = 0,
  kBootstrap = 1,  // exchange of addresses through the store
  kConnect = 2,    // connecting to a peer
  kCheck = 3,      // comparison of arguments or descriptors
  kTransfer = 4,   // waiting until a peer sends data or takes this rank's data
  kReduce = 5,     // combination of received data
};
absl::string_view PhaseName(Phase phase);

// The rank, address and operation that an error concerns. A field that does not apply has its
// default value.
struct Blame {
  int32_t rank = -1;  // the rank at fault, in the communicator of the operation
  // the rank at fault, as a rank of the outermost communicator: the one from which this
  // communicator was split, perhaps in several steps
  int32_t world_rank = -1;
  // the process of the rank at fault; also set if that process is not in the communicator of this
  // process
  std::array<uint8_t, 16> peer_id{};
  std::string address;      // "tcp 127.0.0.1:4711", "shm pid 12"
  std::string operation;    // "all_reduce"
  int64_t tag = -1;         // tag of the user; -1: none
  uint64_t sequence = 0;    // number of the call in its communicator; the first is 1
  uint64_t generation = 0;  // generation of that communicator
  Phase phase = Phase::kNone;
  int32_t sys_errno = 0;
  int64_t elapsed_ns = 0;
  int64_t deadline_ns = 0;  // the time limit of the operation
  int64_t bytes_done = 0;
  // Only for timeouts. late_ranks: the number of ranks that had not entered the call. late: the
  // first kMaxLate of these ranks.
  static constexpr size_t kMaxLate = 128;
  int32_t late_ranks = 0;
  std::vector<int32_t> late;
};

// Returns `status` with `blame` attached as a payload. The message stays the same.
absl::Status WithBlame(absl::Status status, const Blame& blame);
// Returns the attached record, or a default one if there is none.
Blame BlameOf(const absl::Status& status);
bool HasBlame(const absl::Status& status);

// Returns `status` with "`prefix`: " in front of its message. The code and the payloads stay the
// same.
absl::Status Annotate(const absl::Status& status, absl::string_view prefix);

// Returns a status with the message "`what`: TEXT", where TEXT is that of strerror. The code is
// kUnavailable for connection errors, kResourceExhausted for a shortage of memory or descriptors,
// and otherwise kInternal. The attached Blame has the errno.
absl::Status ErrnoStatus(int error, absl::string_view what);

// Marks the status of a lost connection as proof that the peer process has ended or has closed its
// runtime. A timeout, or a reset by the network, is no such proof.
absl::Status AsPeerEnded(absl::Status status);
bool IsPeerEnded(const absl::Status& status);

entrain_status_t ToCode(const absl::Status& status);
absl::StatusCode FromCode(entrain_status_t code);
// Returns "ENTRAIN_PEER_LOST", for example. Returns "ENTRAIN_?" for an unknown value.
const char* CodeName(entrain_status_t code);

// Encodes a status for a peer, and decodes it. DecodeStatus returns nullopt for malformed input,
// because a StatusOr<Status> could not distinguish that error from a decoded one. Texts from the
// peer pass through CleanText (lib/base/text.h).
std::string EncodeStatus(const absl::Status& status);
std::optional<absl::Status> DecodeStatus(absl::string_view bytes);

}  // namespace entrain
