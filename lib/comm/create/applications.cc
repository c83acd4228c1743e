#include "lib/comm/create/applications.h"

#include <algorithm>
#include <utility>

#include <poll.h>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "lib/base/bytes.h"
#include "lib/base/log.h"
#include "lib/base/status.h"
#include "lib/base/text.h"
#include "lib/comm/create/creation.h"
#include "lib/net/socket.h"
#include "lib/store/gathering.h"

namespace entrain {
namespace {

constexpr uint32_t kVersion = 3;  // version of the records, and of the messages of an attempt
constexpr int kMaxSleepMs = 20;
constexpr size_t kMemberParts = 0, kNewcomerParts = 1;  // by rank in the meeting of two processes
// AwaitBeside waits for the key for at most this time before it checks the meeting again.
constexpr int64_t kKeySliceNs = 200 * kMillisecond;

absl::Status Malformed(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("growing a communicator: ", what, " is malformed"));
}

absl::string_view TextOf(const PeerId& id) {
  return {reinterpret_cast<const char*>(id.data()), id.size()};
}

}  // namespace

GrowKeys::GrowKeys(absl::string_view comm) : prefix_(absl::StrCat("entrain/", comm, "#grow/")) {}

std::string GrowKeys::Application(int64_t ticket) const {
  return absl::StrCat(prefix_, "apply/", ticket);
}
std::string GrowKeys::Base(const PeerId& id, uint64_t call) const {
  return absl::StrCat(prefix_, absl::BytesToHexString(TextOf(id)), "/", call);
}
std::string GrowKeys::Here(absl::string_view base, int64_t ticket) {
  return absl::StrCat(base, "/here/", ticket);
}
std::string GrowKeys::Attempt(absl::string_view base, int attempt) {
  return absl::StrCat(base, "/", attempt);
}
std::string GrowKeys::Roster(absl::string_view base, int attempt) {
  return absl::StrCat(base, "/", attempt, "/roster");
}

Parts Application::ToParts() const {
  Writer head;
  head.Put(kVersion).Put(uint8_t{connect_only}).PutRaw(id.data(), id.size());
  return {head.Take(), settings, tuning};
}

absl::StatusOr<Application> Application::FromParts(const Parts& parts) {
  Application application;
  Reader head(parts.size() == 3 ? absl::string_view(parts[0]) : "");
  const auto version = head.Get<uint32_t>();
  application.connect_only = head.Get<uint8_t>() != 0;
  const absl::string_view id = head.GetRaw(application.id.size());
  if (!head.Finished() || version != kVersion) {
    return Malformed("an application");
  }
  std::copy(id.begin(), id.end(), application.id.begin());
  application.settings = CleanText(parts[1]);
  application.tuning = CleanText(parts[2]);
  return application;
}

int Roster::RankOf(int64_t ticket) const {
  const auto found = std::find(tickets.begin(), tickets.end(), ticket);
  return found == tickets.end() ? -1 : members + static_cast<int>(found - tickets.begin());
}

std::string Roster::Encode() const {
  Writer out;
  out.Put(kVersion).Put(generation).Put(members).Put(uint8_t{probe}).Put(limit_ns);
  out.Put(static_cast<uint32_t>(tickets.size()));
  for (const int64_t ticket : tickets) {
    out.Put(ticket);
  }
  return out.Take();
}

absl::StatusOr<Roster> Roster::Decode(absl::string_view bytes) {
  Reader in(bytes);
  Roster roster;
  const auto version = in.Get<uint32_t>();
  roster.generation = in.Get<uint64_t>();
  roster.members = in.Get<int32_t>();
  roster.probe = in.Get<uint8_t>() != 0;
  roster.limit_ns = in.Get<int64_t>();
  const auto newcomers = in.Get<uint32_t>();
  for (uint32_t i = 0; i < newcomers && in.ok(); ++i) {
    roster.tickets.push_back(in.Get<int64_t>());
  }
  const bool sound = in.Finished() && version == kVersion && roster.members > 0 &&
                     roster.limit_ns > 0 &&
                     newcomers <= static_cast<uint32_t>(kMaxMeetingSize - roster.members);
  return sound ? absl::StatusOr<Roster>(std::move(roster)) : Malformed("a roster of newcomers");
}

absl::Status Judge(const Application& application, const Terms& terms,
                   const std::vector<PeerId>& others) {
  for (size_t rank = 0; rank < terms.members.size(); ++rank) {
    if (terms.members[rank] == application.id) {
      return absl::FailedPreconditionError(
          absl::StrCat("this runtime is rank ", rank, " of ", terms.comm,
                       " already; ranks of one process need a runtime each"));
    }
  }
  if (std::find(others.begin(), others.end(), application.id) != others.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat("this runtime has asked to join ", terms.comm,
                     " twice at the same time; ranks of one process need a runtime each"));
  }
  if (application.connect_only != terms.own.connect_only) {
    return absl::FailedPreconditionError(
        terms.own.connect_only
            ? absl::StrCat(terms.comm,
                           " admits replicas of a training run, which join it by "
                           "entrain_edit_join or entrain_acco_join")
            : absl::StrCat("the ranks of ", terms.comm,
                           " admit ranks and no replicas of a training run: they join by "
                           "entrain_comm_join"));
  }
  if (application.settings != terms.own.settings) {
    return absl::DataLossError(absl::StrCat("settings differ: the ranks of ", terms.comm,
                                            " have \"", terms.own.settings, "\" (",
                                            terms.own.tuning, "), the newcomer has \"",
                                            application.settings, "\" (", application.tuning, ")"));
  }
  return absl::OkStatus();
}

bool IsRefusal(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:       // the member has died or has given up
    case absl::StatusCode::kAborted:           // the member asks to apply again
    case absl::StatusCode::kDeadlineExceeded:  // the time limit of a rank in a meeting has passed
      return false;
    default:
      return true;
  }
}

absl::StatusOr<std::string> AwaitBeside(StoreMeeting& meeting, Store& store, const std::string& key,
                                        const Stop& stop) {
  while (true) {
    ENTRAIN_RETURN_IF_ERROR(meeting.Check());
    const Stop slice{std::min(stop.deadline, Deadline::After(kKeySliceNs)), stop.cancelled};
    auto value = store.Get(key, slice);
    if (!absl::IsDeadlineExceeded(value.status()) || stop.deadline.Passed(Clock::Real().Now())) {
      return value;
    }
  }
}

// ---- Intake

absl::StatusOr<int64_t> CountApplications(Store& store, absl::string_view comm, const Stop& stop) {
  const GrowKeys keys(comm);
  ENTRAIN_ASSIGN_OR_RETURN(const int64_t tickets, store.Add(keys.Tickets(), 0, stop));
  if (tickets == 0) {
    return 0;
  }
  ENTRAIN_ASSIGN_OR_RETURN(const int64_t seen, store.Add(keys.Seen(), 0, stop));
  return tickets - seen;
}

absl::Status SetRanksOfReplica(Store& store, absl::string_view comm, int ranks, const Stop& stop) {
  return store.Set(GrowKeys(comm).Replica(), absl::StrCat(ranks), stop);
}

absl::StatusOr<int> RanksOfReplica(Store& store, absl::string_view comm, const Stop& stop) {
  const absl::StatusOr<std::string> text = store.TryGet(GrowKeys(comm).Replica(), stop);
  if (absl::IsNotFound(text.status())) {
    return 0;
  }
  ENTRAIN_RETURN_IF_ERROR(text.status());
  int ranks = 0;
  return absl::SimpleAtoi(*text, &ranks) ? absl::StatusOr<int>(ranks)
                                         : Malformed("the number of ranks of a replica");
}

Intake::Intake(std::shared_ptr<Store> store, Terms terms, std::string base)
    : store_(std::move(store)),
      terms_(std::move(terms)),
      keys_(terms_.comm),
      base_(std::move(base)) {}

absl::Status Intake::Collect(int min, int max, Deadline until, const Stop& stop) {
  ENTRAIN_RETURN_IF_ERROR(store_->Add(keys_.Calls(), 1, stop).status());
  for (int sleep_ms = 1;; sleep_ms = std::min(2 * sleep_ms, kMaxSleepMs)) {
    ENTRAIN_ASSIGN_OR_RETURN(const int64_t waiting, CountApplications(*store_, terms_.comm, stop));
    if (waiting > 0 && size() + waiting >= min) {
      ENTRAIN_RETURN_IF_ERROR(Invite(std::min<int64_t>(waiting, max - size()), stop));
      sleep_ms = 1;
    }
    if (size() >= min || until.Passed(Clock::Real().Now())) {
      return absl::OkStatus();
    }
    ENTRAIN_RETURN_IF_ERROR(CheckStop(stop, "waiting for newcomers"));
    poll(nullptr, 0, std::min(sleep_ms, StopSliceMs({std::min(until, stop.deadline)})));
  }
}

absl::Status Intake::Invite(int64_t count, const Stop& stop) {
  // The counter gives each application to exactly one member.
  ENTRAIN_ASSIGN_OR_RETURN(const int64_t last, store_->Add(keys_.Seen(), count, stop));
  const Deadline by = std::min(stop.deadline, Deadline::After(kAnswerInvitationNs));
  std::vector<Newcomer> invited;
  for (int64_t ticket = last - count + 1; ticket <= last; ++ticket) {
    ENTRAIN_ASSIGN_OR_RETURN(
        auto meeting, store_->Join(keys_.Application(ticket), kMemberParts, 2, Parts{base_}, stop));
    invited.push_back({ticket, {}, std::move(meeting)});
  }
  for (Newcomer& newcomer : invited) {
    // A newcomer that does not answer must not use up the time of the newcomers after it.
    const Stop brief{std::max(by, Deadline::After(kLookNs)), stop.cancelled};
    const auto application = Hear(*newcomer.meeting, brief);
    absl::Status accepted = application.status();
    if (accepted.ok()) {
      const std::string here = GrowKeys::Here(base_, newcomer.ticket);
      used_keys_.push_back(here);
      accepted = AwaitBeside(*newcomer.meeting, *store_, here, brief).status();
    }
    if (!accepted.ok()) {
      ENTRAIN_LOG(kInfo, terms_.comm, ": newcomer ", newcomer.ticket,
                  " is not taken in: ", accepted.message());
      newcomer.meeting->Fail(absl::AbortedError(
          absl::StrCat("the newcomer did not answer within ", kAnswerInvitationNs / kMillisecond,
                       " ms")));  // no effect if the meeting has failed before
      continue;
    }
    newcomer.id = application->id;
    newcomers_.push_back(std::move(newcomer));
  }
  return absl::OkStatus();
}

absl::StatusOr<Application> Intake::Hear(StoreMeeting& meeting, const Stop& stop) const {
  ENTRAIN_ASSIGN_OR_RETURN(const std::vector<Parts> table, meeting.Wait(stop));
  auto application = Application::FromParts(table[kNewcomerParts]);
  const absl::Status verdict =
      application.ok() ? Judge(*application, terms_, ids()) : application.status();
  if (!verdict.ok()) {
    meeting.Fail(verdict);
    return verdict;
  }
  return application;
}

std::vector<PeerId> Intake::ids() const {
  std::vector<PeerId> ids;
  for (const Newcomer& newcomer : newcomers_) {
    ids.push_back(newcomer.id);
  }
  return ids;
}

absl::Status Intake::Announce(int attempt, Roster roster, const Stop& stop) {
  roster.tickets.clear();
  for (const Newcomer& newcomer : newcomers_) {
    roster.tickets.push_back(newcomer.ticket);
  }
  used_keys_.push_back(GrowKeys::Roster(base_, attempt));
  return store_->Set(used_keys_.back(), roster.Encode(), stop);
}

absl::Status Intake::Check() const {
  for (size_t i = 0; i < newcomers_.size(); ++i) {
    const absl::Status ended = newcomers_[i].meeting->Check();
    if (!ended.ok()) {
      Blame blame;
      blame.rank = static_cast<int32_t>(terms_.members.size() + i);
      blame.peer_id = newcomers_[i].id;
      blame.phase = Phase::kBootstrap;
      blame.operation = "grow";
      return WithBlame(absl::UnavailableError(absl::StrCat("newcomer rank ", blame.rank,
                                                           " has ended: ", ended.message())),
                       blame);
    }
  }
  return absl::OkStatus();
}

void Intake::Refuse(int rank, const absl::Status& why) {
  const auto refused = newcomers_.begin() + (rank - static_cast<int>(terms_.members.size()));
  refused->meeting->Fail(why);
  newcomers_.erase(refused);
}

void Intake::Finish(const Stop& stop) {
  for (const Newcomer& newcomer : newcomers_) {
    newcomer.meeting->Finish();
  }
  newcomers_.clear();
  for (const std::string& key : used_keys_) {
    store_->Delete(key, stop).IgnoreError();  // a store made of the caller's functions may be
                                              // unable to remove keys
  }
  used_keys_.clear();
}

}  // namespace entrain
