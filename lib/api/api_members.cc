// Implements the functions of comm.h for a communicator's membership: members, agree, shrink.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"

#include "include/entrain/comm.h"
#include "lib/api/arguments.h"
#include "lib/api/boundary.h"
#include "lib/api/handles.h"
#include "lib/api/settings.h"
#include "lib/base/config.h"
#include "lib/base/status.h"

using namespace entrain::api;  // NOLINT: the functions of the C API are global
using entrain::MemberReport;

namespace {

entrain_member_t ToMember(int rank, const MemberReport& report) {
  entrain_member_t member = {};
  std::memcpy(member.peer_id.bytes, report.id.data(), sizeof(member.peer_id.bytes));
  member.rank = rank;
  member.parent_rank = report.parent_rank;
  member.state = static_cast<int32_t>(report.state);
  if (report.state == MemberReport::State::kLost) {
    member.code = entrain::ToCode(report.why);
    const absl::string_view text(report.why.message().data(), report.why.message().size());
    text.copy(member.text, sizeof(member.text) - 1);
  }
  return member;
}

absl::StatusOr<entrain::ShrinkOptions> ToShrinkOptions(const entrain_shrink_config_t* config) {
  entrain_shrink_config_t known;
  entrain_shrink_config_init(&known);
  if (config != nullptr) {
    ENTRAIN_RETURN_IF_ERROR(
        entrain::CopyStruct(config, &known, sizeof(known), "entrain_shrink_config_t"));
  }
  entrain::ShrinkOptions options;
  ENTRAIN_RETURN_IF_ERROR(CheckTimeout(known.timeout_ns));
  options.timeout_ns = known.timeout_ns;
  if (known.exclude_count < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("exclude_count ", known.exclude_count, " is negative"));
  }
  if (known.exclude_count > 0) {
    ENTRAIN_RETURN_IF_ERROR(NotNull(known.exclude, "exclude"));
    options.exclude.assign(known.exclude, known.exclude + known.exclude_count);
  }
  ENTRAIN_RETURN_IF_ERROR(
      CheckChoice("partition", known.partition, ENTRAIN_PARTITION_ANY, "ENTRAIN_PARTITION"));
  options.partition = static_cast<entrain::Partition>(known.partition);
  if (known.name != nullptr) {
    options.name = known.name;
    ENTRAIN_RETURN_IF_ERROR(CheckName(options.name));
  }
  return options;
}

// Runs agree or shrink. Records TIMED_OUT and MISMATCH as failures of the call alone. In other
// calls these errors end the communicator, but not in agree and shrink.
entrain_status_t GuardAgreement(const char* function, absl::FunctionRef<absl::Status()> body) {
  absl::Status status;
  const entrain_status_t code = Guard(function, Does::kWait, [&] { return status = body(); });
  return code == ENTRAIN_TIMED_OUT || code == ENTRAIN_MISMATCH
             ? Fail(function, status, Reach::kCall)
             : code;
}

}  // namespace

extern "C" {

entrain_status_t entrain_comm_members(const entrain_comm_t* comm, entrain_member_t* members,
                                      int32_t* count) {
  return Guard(__func__, Reach::kCall, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(comm, "comm"));
    ENTRAIN_RETURN_IF_ERROR(NotNull(count, "count"));
    if (*count < 0) {
      return absl::InvalidArgumentError(absl::StrCat("*count ", *count, " is negative"));
    }
    const std::vector<MemberReport> reports = comm->comm->Members();
    const int32_t all = static_cast<int32_t>(reports.size());
    const int32_t written = std::min(*count, all);
    if (written > 0) {
      ENTRAIN_RETURN_IF_ERROR(NotNull(static_cast<const void*>(members), "members"));
    }
    // The caller's structs may be longer or shorter than this library's.
    char* at = reinterpret_cast<char*>(members);
    for (int32_t r = 0; r < written; ++r) {
      const entrain_member_t known = ToMember(r, reports[static_cast<size_t>(r)]);
      size_t size = 0;
      std::memcpy(&size, at, sizeof(size));
      ENTRAIN_RETURN_IF_ERROR(
          WriteStruct(&known, sizeof(known), at, "entrain_member_t",
                      {{offsetof(entrain_member_t, peer_id), sizeof(known.peer_id)},
                       {offsetof(entrain_member_t, text), sizeof(known.text)}}));
      at += size;
    }
    *count = all;
    return absl::OkStatus();
  });
}

entrain_status_t entrain_comm_agree(entrain_comm_t* comm, uint32_t* flag) {
  return GuardAgreement(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(comm, "comm"));
    ENTRAIN_RETURN_IF_ERROR(NotNull(flag, "flag"));
    return comm->comm->Agree(flag);
  });
}

entrain_status_t entrain_comm_shrink(entrain_comm_t* comm, const entrain_shrink_config_t* config,
                                     entrain_comm_t** next) {
  return GuardAgreement(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(comm, "comm"));
    ENTRAIN_RETURN_IF_ERROR(NotNull(next, "next"));
    ENTRAIN_ASSIGN_OR_RETURN(const entrain::ShrinkOptions options, ToShrinkOptions(config));
    ENTRAIN_ASSIGN_OR_RETURN(auto made, comm->comm->Shrink(options));
    *next = new entrain_comm{.comm = std::move(made)};
    return absl::OkStatus();
  });
}

}  // extern "C"
