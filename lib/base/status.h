// Errors inside the library are absl::Status; no exception crosses a function. This unit adds three
// things: macros that return early, the table between absl codes and the C ABI's, and the blame
// record that travels with an error.
//
// Which absl code means what here (one table, in status.cc):
//   kInvalidArgument   INVALID_ARGUMENT        kUnavailable       PEER_LOST
//   kFailedPrecondition FAILED_PRECONDITION    kDataLoss          MISMATCH
//   kUnimplemented     UNIMPLEMENTED           kDeadlineExceeded  TIMED_OUT
//   kResourceExhausted RESOURCE_EXHAUSTED      kAborted           ABORTED
//   everything else    INTERNAL
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

// Returns the status of `expr` from the enclosing function unless it is OK.
#define ENTRAIN_RETURN_IF_ERROR(expr)        \
  do {                                       \
    ::absl::Status entrain_status_ = (expr); \
    if (!entrain_status_.ok()) {             \
      return entrain_status_;                \
    }                                        \
  } while (false)

// ENTRAIN_ASSIGN_OR_RETURN(auto x, Function()): declares or assigns x, or returns the error.
#define ENTRAIN_ASSIGN_OR_RETURN(lhs, expr) \
  ENTRAIN_ASSIGN_OR_RETURN_INNER(ENTRAIN_CONCAT(entrain_or_, __LINE__), lhs, expr)
#define ENTRAIN_ASSIGN_OR_RETURN_INNER(tmp, lhs, expr) \
  auto tmp = (expr);                                   \
  if (!tmp.ok()) {                                     \
    return std::move(tmp).status();                    \
  }                                                    \
  lhs = *std::move(tmp)

namespace entrain {

// Where an operation was when it failed. The text of each is in status.cc.
enum class Phase : int32_t {
  kNone = 0,
  kBootstrap = 1,  // exchanging addresses through the store
  kConnect = 2,    // reaching a peer
  kCheck = 3,      // checking arguments or descriptors
  kTransfer = 4,   // waiting for a peer's data, or for a peer to take ours
  kReduce = 5,     // combining what arrived
};
absl::string_view PhaseName(Phase phase);

// Who and what an error is about. Fields that do not apply keep their defaults.
struct Blame {
  int32_t rank = -1;        // the guilty rank in the communicator concerned
  int32_t world_rank = -1;  // in the communicator from which that one was split, in the end
  std::array<uint8_t, 16> peer_id{};  // its process: known also where it is no member
  std::string address;                // "tcp 127.0.0.1:4711", "shm pid 12"
  std::string operation;              // "all_reduce"
  int64_t tag = -1;                   // user tag; -1: untagged
  uint64_t sequence = 0;              // call number in its communicator, from 1
  uint64_t generation = 0;
  Phase phase = Phase::kNone;
  int32_t sys_errno = 0;
  int64_t elapsed_ns = 0;
  int64_t deadline_ns = 0;  // the time the operation was given
  int64_t bytes_done = 0;
  // How many ranks had not come to the call whose time was up, and the first kMaxLate of them; none for other errors.
  static constexpr size_t kMaxLate = 128;
  int32_t late_ranks = 0;
  std::vector<int32_t> late;
};

// The same status with `blame` attached (a payload); the message is not changed.
absl::Status WithBlame(absl::Status status, const Blame& blame);
// The attached record, or an empty one.
Blame BlameOf(const absl::Status& status);
bool HasBlame(const absl::Status& status);

// The same code and payload, the message prefixed with "`prefix`: ".
absl::Status Annotate(const absl::Status& status, absl::string_view prefix);

// "`what`: strerror text", as kUnavailable for connection errors, kResourceExhausted for shortages
// (memory, descriptors), kInternal otherwise; the errno is kept in the blame record.
absl::Status ErrnoStatus(int error, absl::string_view what);

entrain_status_t ToCode(const absl::Status& status);
absl::StatusCode FromCode(entrain_status_t code);
// "ENTRAIN_PEER_LOST" and friends; "ENTRAIN_?" for unknown values.
const char* CodeName(entrain_status_t code);

// One line of bytes for a status, to send to a peer, and back; nullopt for malformed input. (Not a
// StatusOr: one of a Status takes an error for its value.) Texts come back clean (lib/base/text.h).
std::string EncodeStatus(const absl::Status& status);
std::optional<absl::Status> DecodeStatus(absl::string_view bytes);

}  // namespace entrain
