// What a communicator says of its failures: CommCore's functions that only make words and records.
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "lib/base/status.h"
#include "lib/comm/comm_core.h"

namespace entrain {
namespace {

std::string Seconds(int64_t ns) {
  return absl::StrFormat("%.3g s", static_cast<double>(ns) * 1e-9);
}

}  // namespace

absl::Status CommCore::TimedOut(const CallWork& work, int guilty, absl::string_view reason,
                                int64_t now_ns) const {
  const std::string whom = guilty >= 0 ? absl::StrCat(" waiting for ", RankName(guilty)) : "";
  return WithBlame(absl::DeadlineExceededError(absl::StrCat(
                       CallName(work), ": timed out on rank ", config_.rank, " after ",
                       Seconds(now_ns - work.started_ns_), " (deadline ",
                       Seconds(work.call_.options.timeout_ns), ")", whom, ": ", reason)),
                   BlameFor(&work, guilty, Phase::kTransfer));
}

absl::Status CommCore::Loss(int rank) const {
  const CallWork* const work = open_.empty() ? nullptr : open_.front();
  const std::string call = work == nullptr ? config_.name : CallName(*work);
  const std::string after =
      work == nullptr ? ""
                      : absl::StrCat(" after ", Seconds(engine_.clock().Now() - work->started_ns_));
  Blame blame = BlameFor(work, rank, Phase::kTransfer);
  blame.sys_errno = BlameOf(lost_why_).sys_errno;
  return WithBlame(absl::UnavailableError(absl::StrCat(call, ": lost ", RankName(rank), after, ": ",
                                                       lost_why_.message())),
                   blame);
}

absl::Status CommCore::Disagreement(int rank, const Descriptor& theirs, const OwnCall& mine) const {
  Blame blame = BlameFor(nullptr, rank, Phase::kCheck);
  blame.operation = std::string(NameOf(mine.descriptor.kind));
  blame.tag = mine.id.user_tag == Tag::kUntagged ? -1 : int64_t{mine.id.user_tag};
  blame.sequence = mine.sequence + 1;
  const std::string tag = blame.tag < 0 ? "" : absl::StrCat(" tag ", blame.tag);
  return WithBlame(
      absl::DataLossError(absl::StrCat(
          blame.operation, tag, " #", blame.sequence, ": ranks disagree: rank ", config_.rank,
          " called ", ToString(mine.descriptor), ", rank ", rank, " called ", ToString(theirs))),
      blame);
}

absl::Status CommCore::Explain(const CallWork& work, const absl::Status& cause) const {
  const int guilty = work.WaitingFor();
  const bool mismatch = cause.code() == absl::StatusCode::kDataLoss;
  // Other ranks are told the same, so who "here" is has to be said.
  const std::string does =
      mismatch ? absl::StrCat("rank ", config_.rank, " disagrees with ") : "lost ";
  const std::string who = guilty < 0 ? "" : absl::StrCat(does, RankName(guilty), ": ");
  Blame blame = BlameFor(&work, guilty, mismatch ? Phase::kCheck : Phase::kTransfer);
  blame.sys_errno = BlameOf(cause).sys_errno;
  return WithBlame(
      absl::Status(cause.code(), absl::StrCat(CallName(work), ": ", who, cause.message())), blame);
}

Blame CommCore::BlameFor(const CallWork* work, int guilty, Phase phase) const {
  Blame blame;
  // Creating is the first time that peers are reached.
  const bool creating = work != nullptr && work->call_.kind == CallKind::kCreate;
  blame.phase = creating && phase == Phase::kTransfer ? Phase::kConnect : phase;
  blame.rank = guilty;
  if (guilty >= 0) {
    const Member& member = config_.members[static_cast<size_t>(guilty)];
    blame.peer_id = member.id;
    blame.address = member.endpoint == nullptr ? "self" : member.endpoint->peer_address();
  }
  if (work != nullptr) {
    blame.operation = std::string(NameOf(work->call_.named().kind));
    blame.tag = work->call_.options.user_tag;
    blame.sequence = work->wiring_.sequence + 1;
    blame.elapsed_ns = engine_.clock().Now() - work->started_ns_;
    blame.deadline_ns = work->call_.options.timeout_ns;
    blame.bytes_done = work->executor_.bytes_received();
  }
  return blame;
}

absl::Status CommCore::ForCall(const absl::Status& why, const CallWork& work) const {
  const Blame of_call = BlameFor(&work, -1, Phase::kTransfer);
  Blame blame = BlameOf(why);
  blame.operation = of_call.operation;
  blame.tag = of_call.tag;
  blame.sequence = of_call.sequence;
  blame.elapsed_ns = of_call.elapsed_ns;
  blame.deadline_ns = of_call.deadline_ns;
  blame.bytes_done = of_call.bytes_done;
  blame.phase = blame.phase == Phase::kNone ? of_call.phase : blame.phase;
  return WithBlame(why, blame);
}

std::string CommCore::CallName(const CallWork& work) const {
  const std::string tag =
      work.call_.options.user_tag < 0 ? "" : absl::StrCat(" tag ", work.call_.options.user_tag);
  return absl::StrCat(NameOf(work.call_.named().kind), tag, " #", work.wiring_.sequence + 1);
}

std::string CommCore::RankName(int rank) const {
  const Member& member = config_.members[static_cast<size_t>(rank)];
  const std::string in_world =
      config_.world == config_.name
          ? ""
          : absl::StrCat("rank ", member.world_rank, " of ", config_.world, ", ");
  return member.endpoint == nullptr
             ? absl::StrCat("rank ", rank)
             : absl::StrCat("rank ", rank, " (", in_world, member.endpoint->peer_address(), ")");
}

}  // namespace entrain
