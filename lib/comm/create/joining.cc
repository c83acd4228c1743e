// Implements Communicator::Join: a newcomer joins a communicator whose members call Grow
// (growth.cc). applications.h has the keys and the records in the store.
//
// The newcomer applies, waits for an invitation, answers it, and takes part in attempts until one
// succeeds. The members may drop the newcomer although it is not at fault, for example if a member
// has died or too few newcomers came. The newcomer then applies again, until its time limit.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/log.h"
#include "lib/base/status.h"
#include "lib/comm/comm_core.h"
#include "lib/comm/communicator.h"
#include "lib/comm/create/applications.h"
#include "lib/comm/create/creation.h"
#include "lib/net/socket.h"
#include "lib/store/store.h"

namespace entrain {
namespace {

// The time limit of the query to the store in TimeIsUp.
constexpr int64_t kAskNs = 200 * kMillisecond;
// The interval at which a waiting newcomer checks whether a member has taken its ticket. A member
// that has taken a ticket joins the ticket's meeting within milliseconds.
constexpr int64_t kLookAtTicketsNs = kSecond;
// The pauses of a newcomer that the members could not reach. A line that is cut may come back, and
// each attempt costs the members time.
constexpr int kFirstPauseMs = 500, kLongestPauseMs = 8000, kMostUnreached = 5;
constexpr size_t kMemberRank = 0, kNewcomerRank = 1;  // in the meeting of two processes

absl::Status AboutJoin(const absl::Status& status, Phase phase) {
  Blame blame = BlameOf(status);
  blame.operation = "join";
  blame.phase = phase;
  return WithBlame(status, blame);
}

class Joining {
 public:
  Joining(const JoinOptions& options, SharedSettings settings, const Stop& stop)
      : options_(options),
        comm_(options.comm),
        store_(*options.comm.store),
        settings_(std::move(settings)),
        keys_(options.comm.name),
        stop_(stop) {}

  absl::StatusOr<std::shared_ptr<Communicator>> Run();

 private:
  using Made = absl::StatusOr<std::shared_ptr<Communicator>>;
  // Applies once. Returns null if the application failed because of other processes. `last_` is
  // then the reason.
  Made Apply();
  // Waits until a member has joined the meeting of the application.
  absl::StatusOr<std::vector<Parts>> AwaitInvitation(StoreMeeting& application, int64_t ticket);
  // Returns the error if it is final. Otherwise sets last_ and returns null.
  Made Again(const absl::Status& why);
  Made TakePart(StoreMeeting& application, int64_t ticket, const std::string& base);
  absl::StatusOr<Preparation> Prepare(const Roster& roster, int rank) const;
  Made Attempt(StoreMeeting& application, const std::string& base, int attempt,
               const Roster& roster, int rank);
  // Returns the error for a newcomer after its time limit. The error names the event that was
  // missing.
  absl::Status TimeIsUp() const;

  const JoinOptions& options_;
  const CommOptions& comm_;
  Store& store_;
  const SharedSettings settings_;
  const GrowKeys keys_;
  const Stop stop_;
  int64_t calls_before_ = 0;  // calls of Grow before this newcomer first applied
  int unreached_ =
      0;  // attempts since the members have last reached this newcomer; kMostUnreached: or more
  absl::Status last_;
};

Joining::Made Joining::Run() {
  ENTRAIN_ASSIGN_OR_RETURN(calls_before_, store_.Add(keys_.Calls(), 0, stop_));
  while (true) {
    Made made = Apply();
    if (!made.ok() || *made != nullptr) {
      return made;
    }
    ENTRAIN_LOG(kInfo, "joining ", comm_.name, ": applying again: ", last_.message());
    const int pause_ms =
        unreached_ == 0 ? 0 : std::min(kFirstPauseMs << (unreached_ - 1), kLongestPauseMs);
    if (!Pause(pause_ms, stop_)) {
      return TimeIsUp();
    }
  }
}

Joining::Made Joining::Again(const absl::Status& why) {
  // If a timeout has no blame, it is the timeout of this call. The timeouts of other ranks have
  // blame.
  if (absl::IsDeadlineExceeded(why) && !HasBlame(why)) {
    return TimeIsUp();
  }
  if (IsRefusal(why)) {
    return AboutJoin(absl::Status(why.code(), absl::StrCat("joining ", comm_.name,
                                                           ": refused: ", why.message())),
                     Phase::kCheck);
  }
  unreached_ = BlameOf(why).phase == Phase::kConnect ? std::min(unreached_ + 1, kMostUnreached) : 0;
  last_ = why;
  return nullptr;
}

Joining::Made Joining::Apply() {
  ENTRAIN_ASSIGN_OR_RETURN(const int64_t ticket, store_.Add(keys_.Tickets(), 1, stop_));
  const Application mine{comm_.runtime->id(), settings_.ToText(), settings_.tuning->source,
                         options_.connect_only};
  ENTRAIN_ASSIGN_OR_RETURN(
      const auto application,
      store_.Join(keys_.Application(ticket), kNewcomerRank, 2, mine.ToParts(), stop_));
  const auto table = AwaitInvitation(*application, ticket);
  if (!table.ok()) {
    return Again(table.status());
  }
  const Parts& invitation = (*table)[kMemberRank];
  if (invitation.size() != 1) {
    return absl::DataLossError(
        absl::StrCat("joining ", comm_.name, ": the invitation is malformed"));
  }
  const std::string& base = invitation[0];
  ENTRAIN_RETURN_IF_ERROR(store_.Set(GrowKeys::Here(base, ticket), "", stop_));
  Made made = TakePart(*application, ticket, base);
  if (made.ok() && *made != nullptr) {
    application->Finish();
  }
  return made;
}

// A member may take a ticket from the counter and die before it joins the ticket's meeting. No
// other member reads this application, so the newcomer itself must detect this case.
absl::StatusOr<std::vector<Parts>> Joining::AwaitInvitation(StoreMeeting& application,
                                                            int64_t ticket) {
  bool passed = false;  // a member had already taken the ticket at the previous check
  while (true) {
    const Stop slice{std::min(stop_.deadline, Deadline::After(kLookAtTicketsNs)), stop_.cancelled};
    auto table = application.Wait(slice);
    if (!absl::IsDeadlineExceeded(table.status()) || HasBlame(table.status()) ||
        stop_.deadline.Passed(Clock::Real().Now())) {
      return table;
    }
    ENTRAIN_ASSIGN_OR_RETURN(const int64_t seen, store_.Add(keys_.Seen(), 0, stop_));
    if (seen >= ticket && std::exchange(passed, true)) {
      return absl::AbortedError("the member that looked at the application has not come");
    }
  }
}

Joining::Made Joining::TakePart(StoreMeeting& application, int64_t ticket,
                                const std::string& base) {
  for (int attempt = 1;; ++attempt) {
    const auto text = AwaitBeside(application, store_, GrowKeys::Roster(base, attempt), stop_);
    if (!text.ok()) {
      return Again(text.status());
    }
    ENTRAIN_ASSIGN_OR_RETURN(const Roster roster, Roster::Decode(*text));
    const int rank = roster.RankOf(ticket);
    if (rank < 0) {
      // The members have refused this newcomer, or its answer came too late. A refusal may arrive
      // after the roster.
      const absl::Status refused = application.Check();
      return Again(refused.ok() ? absl::AbortedError("the answer to the invitation came too late")
                                : refused);
    }
    Made made = Attempt(application, base, attempt, roster, rank);
    if (made.ok()) {
      return made;
    }
    last_ = made.status();
  }
}

absl::StatusOr<Preparation> Joining::Prepare(const Roster& roster, int rank) const {
  SharedSettings settings = settings_;
  settings.probe = roster.probe;
  ENTRAIN_ASSIGN_OR_RETURN(Card card, MakeCard(*comm_.runtime, settings, rank, comm_.cpus));
  return Preparation{.runtime = comm_.runtime,
                     .name = comm_.name,
                     .settings = std::move(settings),
                     .card = std::move(card),
                     .timeout_ns = comm_.timeout_ns,
                     .silence_ns = comm_.silence_ns,
                     .limit_ns = roster.limit_ns,
                     .generation = roster.generation,
                     .parents = roster.members};
}

Joining::Made Joining::Attempt(StoreMeeting& application, const std::string& base, int attempt,
                               const Roster& roster, int rank) {
  const Deadline limit = Deadline::After(roster.limit_ns);
  const bool hurries = stop_.deadline < limit;
  const Stop stop{hurries ? stop_.deadline : limit, stop_.cancelled};
  // Rank 0 may die before it comes to the meeting of the attempt. The meeting of the application
  // reports this.
  const auto watch = [&application] { return application.Check(); };
  ENTRAIN_ASSIGN_OR_RETURN(auto comm, MeetIn(store_,
                                             {.key = GrowKeys::Attempt(base, attempt),
                                              .rank = rank,
                                              .size = roster.size(),
                                              .watch = watch,
                                              .hurries = hurries},
                                             Prepare(roster, rank), stop));
  // The members compare the results of the attempt. Then rank 0 tells the newcomers that all members
  // are connected, or the members end the communicator.
  CallOptions until;
  until.deadline = stop_.deadline;
  until.timeout_ns = options_.wait_ns;
  ENTRAIN_RETURN_IF_ERROR(TellConnected(*comm, roster.members, until));
  if (!options_.connect_only) {
    ENTRAIN_RETURN_IF_ERROR(ConfirmGrown(*comm, roster.members, /*well=*/true, roster.limit_ns));
  }
  return comm;
}

absl::Status Joining::TimeIsUp() const {
  const auto calls = store_.Add(keys_.Calls(), 0, {Deadline::After(kAskNs)});
  std::string missing;
  if (!calls.ok()) {
    missing = absl::StrCat("the store does not answer: ", calls.status().message());
  } else if (*calls == 0) {
    missing = absl::StrCat(
        "no communicator of this name has called entrain_comm_grow in store ", store_.url(),
        options_.connect_only ? ""
                              : " (if its ranks train with EDiT or ACCO, a process joins them by "
                                "entrain_edit_join or entrain_acco_join)");
  } else if (*calls == calls_before_) {
    missing = absl::StrCat("its ranks have called entrain_comm_grow ", *calls, " times in store ",
                           store_.url(), ", the last time before this process applied");
  } else {
    missing = absl::StrCat("its ranks have called entrain_comm_grow ", *calls - calls_before_,
                           " times meanwhile in store ", store_.url(),
                           ", and did not take this process in");
  }
  if (!last_.ok()) {
    absl::StrAppend(&missing, "; the last attempt failed: ", last_.message());
  }
  Blame blame;
  blame.deadline_ns = options_.wait_ns > 0 ? options_.wait_ns : comm_.timeout_ns;
  return AboutJoin(WithBlame(absl::DeadlineExceededError(
                                 absl::StrCat("joining ", comm_.name, ": not taken in within ",
                                              blame.deadline_ns / kMillisecond, " ms: ", missing)),
                             blame),
                   Phase::kBootstrap);
}

}  // namespace

absl::StatusOr<std::shared_ptr<Communicator>> Communicator::Join(const JoinOptions& options) {
  if (options.wait_ns < 0) {
    return absl::InvalidArgumentError(absl::StrCat("wait_ns: ", options.wait_ns, " is negative"));
  }
  const CommOptions& comm = options.comm;
  const Stop stop{Deadline::After(options.wait_ns > 0 ? options.wait_ns : comm.timeout_ns)};
  ENTRAIN_ASSIGN_OR_RETURN(SharedSettings settings, SettingsOf(comm));
  settings.probe = false;  // the members decide
  ENTRAIN_RETURN_IF_ERROR(comm.runtime->EnsureStarted(comm.store->host(), comm.rank));
  return Joining(options, std::move(settings), stop).Run();
}

absl::StatusOr<std::shared_ptr<Communicator>> Communicator::JoinOther(std::shared_ptr<Store> store,
                                                                      const std::string& name,
                                                                      int64_t wait_ns) {
  JoinOptions options;
  options.comm.runtime = runtime_;
  options.comm.store = std::move(store);
  options.comm.name = name;
  options.comm.timeout_ns = timeout_ns();
  options.comm.silence_ns = silence_ns();
  options.comm.cpus = core_->config().members[static_cast<size_t>(rank())].cpus;
  options.wait_ns = wait_ns;
  options.connect_only = true;
  SharedSettings settings = SettingsOf(core_->config());
  settings.probe = false;
  const Stop stop{Deadline::After(wait_ns > 0 ? wait_ns : timeout_ns())};
  return Joining(options, std::move(settings), stop).Run();
}

}  // namespace entrain
