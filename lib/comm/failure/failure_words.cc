#include "lib/comm/failure/failure_words.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "lib/base/status.h"

namespace entrain {
namespace {

std::string Seconds(int64_t ns) {
  return absl::StrFormat("%.3g s", static_cast<double>(ns) * 1e-9);
}

}  // namespace

std::string FailureWords::RankList(const std::vector<int>& ranks) {
  constexpr size_t kMost = 8;
  const std::vector<int> first(
      ranks.begin(), ranks.begin() + static_cast<ptrdiff_t>(std::min(ranks.size(), kMost)));
  return absl::StrCat(
      ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(first, ", "),
      ranks.size() > kMost ? absl::StrCat(" and ", ranks.size() - kMost, " more") : "");
}

absl::StatusCode FailureWords::CodeHere(const absl::Status& why) {
  const bool ends =
      absl::IsUnavailable(why) || absl::IsDeadlineExceeded(why) || absl::IsDataLoss(why);
  return ends ? why.code() : absl::StatusCode::kAborted;
}

absl::Status FailureWords::TimedOut(const CallWork& work, const Finding& finding,
                                    int64_t now_ns) const {
  const std::string whom =
      finding.awaited >= 0 ? absl::StrCat(" waiting for ", peers_.NameOf(finding.awaited)) : "";
  return WithBlame(absl::DeadlineExceededError(absl::StrCat(
                       work.Name(), ": timed out on rank ", peers_.rank(), " after ",
                       Seconds(now_ns - work.started_ns()), " (deadline ",
                       Seconds(work.call().options.timeout_ns), ")", whom, ": ", finding.reason)),
                   finding.blame);
}

absl::Status FailureWords::Silent(const CallWork& work, const std::vector<int32_t>& silent,
                                  int64_t allowed_ns, int64_t now_ns) const {
  Blame blame = BlameFor(&work, silent[0], Phase::kTransfer);
  blame.late.assign(silent.begin(), silent.end());
  blame.late_ranks = static_cast<int32_t>(silent.size());
  return WithBlame(
      absl::DeadlineExceededError(absl::StrCat(
          work.Name(), ": gave up on rank ", peers_.rank(), " after ",
          Seconds(now_ns - work.started_ns()), ": ", peers_.NameOf(silent[0]),
          " has answered nothing for ", Seconds(allowed_ns),
          " (silence): it is stopped, hangs or is cut off",
          silent.size() == 1
              ? ""
              : absl::StrCat(" (silent: ", RankList({silent.begin(), silent.end()}), ")"))),
      blame);
}

absl::Status FailureWords::ReductionFailed(const CallWork& work) const {
  return WithBlame(
      absl::AbortedError(absl::StrCat(name_, ": rank ", peers_.rank(), ": ", ReductionOf(work),
                                      " returned ", work.executor().reduction_failed())),
      BlameFor(&work, peers_.rank(), Phase::kReduce));
}

std::string FailureWords::ReductionOf(const CallWork& work) const {
  return absl::StrCat("the user reduction of ", work.Name());
}

std::string FailureWords::Words(const Running& running, int64_t now_ns) const {
  return absl::StrCat("it is in ", ReductionOf(*running.work), ", which has not returned for ",
                      Seconds(now_ns - running.since_ns));
}

Finding FailureWords::FindingOf(const Running& running, int64_t now_ns) const {
  return {peers_.rank(), Words(running, now_ns),
          BlameFor(running.work, peers_.rank(), Phase::kReduce)};
}

absl::Status FailureWords::HeldUp(const CallWork& work, const Finding& finding) const {
  return WithBlame(absl::DeadlineExceededError(
                       absl::StrCat("it waits in ", work.Name(), " of ", name_, " for ",
                                    peers_.NameOf(finding.awaited), ": ", finding.reason)),
                   finding.blame);
}

absl::Status FailureWords::Loss(int rank, const absl::Status& path, const CallWork* work,
                                const std::string& refused, const absl::Status& cause) const {
  const std::string call = work == nullptr ? name_ : work->Name();
  const std::string after =
      work == nullptr ? "" : absl::StrCat(" after ", Seconds(clock_.Now() - work->started_ns()));
  std::string text = absl::StrCat(call, ": lost ", peers_.NameOf(rank), after, ": ");
  if (!refused.empty()) {
    absl::StrAppend(&text, "its call failed: ", refused, "; then: ");
  }
  absl::StrAppend(&text, path.message());
  if (!cause.ok()) {
    const Blame blame = BlameHere(cause);
    absl::StrAppend(&text, "; before, it had said: ", cause.message());
    return WithBlame(absl::Status(CodeHere(cause), text),
                     work == nullptr ? blame : WithCall(blame, *work));
  }
  Blame blame = BlameFor(work, rank, Phase::kTransfer);
  blame.sys_errno = BlameOf(path).sys_errno;
  return WithBlame(absl::UnavailableError(text), blame);
}

absl::Status FailureWords::Disagreement(CallId call, uint64_t sequence,
                                        const Vote::Result& votes) const {
  Blame blame = BlameFor(nullptr, votes.guilty, Phase::kCheck);
  blame.operation = std::string(NameOf(votes.parties[0].called.kind));
  blame.tag = call.user_tag == Tag::kUntagged ? -1 : int64_t{call.user_tag};
  blame.sequence = sequence + 1;
  const std::string tag = blame.tag < 0 ? "" : absl::StrCat(" tag ", blame.tag);
  // If a rank is guilty, the text begins with the smallest party and ends with the majority.
  // Otherwise the text has the order of `parties`.
  std::vector<std::string> said;
  for (size_t i = votes.parties.size(); i-- > 0;) {
    const Vote::Party& party = votes.parties[i];
    said.push_back(absl::StrCat(RankList(party.ranks), " called ", ToString(party.called)));
  }
  if (votes.guilty < 0) {
    std::reverse(said.begin(), said.end());
  }
  return WithBlame(
      absl::DataLossError(absl::StrCat(
          blame.operation, tag, " #", blame.sequence,
          ": ranks disagree: ", absl::StrJoin(said, ", "),
          votes.guilty < 0 ? "; which of these is wrong cannot be known" : "",
          votes.silent.empty() ? "" : absl::StrCat("; not known: ", RankList(votes.silent)))),
      blame);
}

absl::Status FailureWords::Explain(const CallWork& work, const absl::Status& cause) const {
  const int guilty = work.WaitingFor();
  const bool mismatch = cause.code() == absl::StatusCode::kDataLoss;
  // This process lacks a resource, for example memory or file descriptors. So the peer is not to
  // blame.
  const bool shortage = cause.code() == absl::StatusCode::kResourceExhausted;
  // The other ranks also show this text, so the text must name this rank.
  const std::string does =
      mismatch   ? absl::StrCat("rank ", peers_.rank(), " disagrees with ")
      : shortage ? absl::StrCat("rank ", peers_.rank(), " has no resources for its path to ")
                 : "lost ";
  const std::string who = guilty < 0 ? "" : absl::StrCat(does, peers_.NameOf(guilty), ": ");
  // A mismatch between two ranks does not show which rank is wrong, so blame no rank.
  Blame blame = mismatch ? BlameFor(&work, -1, Phase::kCheck)
                         : BlameFor(&work, shortage ? peers_.rank() : guilty, Phase::kTransfer);
  blame.sys_errno = BlameOf(cause).sys_errno;
  return WithBlame(
      absl::Status(cause.code(), absl::StrCat(work.Name(), ": ", who, cause.message())), blame);
}

Blame FailureWords::BlameFor(const CallWork* work, int guilty, Phase phase) const {
  Blame blame;
  // kCreate is the first call on the paths to the peers. So if a transfer of kCreate fails, the
  // rank could not connect.
  const bool creating = work != nullptr && work->call().kind == CallKind::kCreate;
  blame.phase = creating && phase == Phase::kTransfer ? Phase::kConnect : phase;
  blame.generation = generation_;
  blame.rank = guilty;
  if (guilty >= 0) {
    const Member& member = peers_.member(guilty);
    blame.peer_id = member.id;
    blame.world_rank = member.world_rank;
    blame.address = member.endpoint == nullptr ? "self" : member.endpoint->peer_address();
  }
  if (work != nullptr) {
    blame.operation = std::string(NameOf(work->call().named().kind));
    blame.tag = work->call().options.user_tag;
    blame.sequence = work->number();
    blame.elapsed_ns = clock_.Now() - work->started_ns();
    blame.deadline_ns = work->call().options.timeout_ns;
    blame.bytes_done = work->executor().bytes_received();
  }
  return blame;
}

Blame FailureWords::BlameHere(const absl::Status& why) const {
  Blame blame = BlameOf(why);
  blame.generation = generation_;
  blame.rank = -1;
  blame.late.clear();  // these are ranks of the other communicator
  blame.late_ranks = 0;
  if (const int rank = blame.peer_id == PeerId{} ? -1 : peers_.RankOf(blame.peer_id); rank >= 0) {
    blame.rank = rank;
    // The other communicator may belong to another world.
    blame.world_rank = peers_.member(rank).world_rank;
  }
  return blame;
}

Blame FailureWords::WithCall(Blame blame, const CallWork& work) const {
  const Blame of_call = BlameFor(&work, -1, Phase::kTransfer);
  blame.operation = of_call.operation;
  blame.tag = of_call.tag;
  blame.sequence = of_call.sequence;
  blame.elapsed_ns = of_call.elapsed_ns;
  blame.deadline_ns = of_call.deadline_ns;
  blame.bytes_done = of_call.bytes_done;
  blame.phase = blame.phase == Phase::kNone ? of_call.phase : blame.phase;
  return blame;
}

absl::Status FailureWords::WithMember(const absl::Status& why) const {
  Blame blame = BlameOf(why);
  if (blame.rank < 0 || blame.rank >= peers_.size() || blame.peer_id != PeerId{}) {
    return why;
  }
  const Blame of_member = BlameFor(nullptr, blame.rank, blame.phase);
  blame.peer_id = of_member.peer_id;
  blame.world_rank = of_member.world_rank;
  blame.address = of_member.address;
  return WithBlame(why, blame);
}

absl::Status FailureWords::WithEarlierCause(const absl::Status& end,
                                            const absl::Status& cause) const {
  const Blame blame = BlameOf(end);
  const bool own = blame.rank == peers_.rank() || (blame.rank < 0 && blame.peer_id == PeerId{});
  if (!absl::IsAborted(end) || !own || cause.ok()) {
    return end;
  }
  return WithBlame(
      absl::AbortedError(absl::StrCat(end.message(), "; before, it had failed: ", cause.message())),
      BlameHere(cause));
}

absl::Status FailureWords::ForCall(const absl::Status& why, const CallWork& work) const {
  return WithBlame(why, WithCall(BlameOf(why), work));
}

}  // namespace entrain
