// Implements Communicator::Grow: the members of a communicator take newcomers in. joining.cc is the
// code of the newcomers. applications.h has the keys and the records in the store.
//
// The steps of a call (members: the ranks of the old communicator):
//   1 The members compare their options (an all-gather).
//   2 Rank 0 collects newcomers from the store.
//   3 Rank 0 broadcasts the number of newcomers. If the number is 0, the call is over.
//   4 Attempt: the members and the newcomers meet in the store and connect, as when a communicator
//     is created.
//   5 The members tell each other the result of the attempt (an all-gather over the old
//     communicator).
//   6 If the attempt succeeded on all members, rank 0 tells the newcomers. With connect_only the call
//     is over. Otherwise all ranks of the new communicator agree to use it. They use the new
//     communicator for this agreement. The call is over.
//   7 If the attempt failed, all members drop the new communicator. If newcomers are to blame,
//     rank 0 refuses these newcomers, and the members continue at step 3. Otherwise the call fails.
//
// Before each further attempt, rank 0 refuses at least one newcomer. So the number of attempts is
// bounded.
//
// A failure of a newcomer does not harm the old communicator. The time limits are chosen so that
// newcomers cannot make a call on the old communicator time out (see Growth::Limits).
#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/log.h"
#include "lib/base/status.h"
#include "lib/base/text.h"
#include "lib/comm/comm_core.h"
#include "lib/comm/communicator.h"
#include "lib/comm/create/applications.h"
#include "lib/comm/create/creation.h"
#include "lib/store/gathering.h"

namespace entrain {
namespace {

constexpr int64_t kMaxAttemptNs = 30 * kSecond;

// The options of a rank.
struct Wish {
  int64_t min_newcomers, max_newcomers, wait_ns;  // must be equal on all ranks
  int64_t timeout_ns;                             // the shortest of all ranks is used
};

using Text = std::array<char, 240>;

void Write(absl::string_view from, Text* to) {
  to->fill(0);
  std::copy_n(from.data(), std::min(from.size(), to->size() - 1), to->data());
}
std::string Read(const Text& from) {
  return CleanText({from.data(), strnlen(from.data(), from.size())});
}

// The message that rank 0 broadcasts before an attempt.
struct Word {
  int32_t code = ENTRAIN_OK;  // an error of rank 0, which ends the call on all ranks
  int32_t newcomers = 0;      // 0: the call is over
  uint64_t call = 0;          // number of the call of Grow in rank 0's process, for GrowKeys::Base
  Text text{};
};

// The result of an attempt on one rank.
struct Outcome {
  int32_t code = ENTRAIN_OK;
  int32_t culprit = -1;  // rank in the new communicator
  int32_t late = 0;      // 1: the time was up before all ranks had met in the store
  Text text{};
};

// How a newcomer that is to blame for a failed attempt is sent away. The larger value counts.
enum class Fault {
  kLate,         // the time was up before all ranks had met; the newcomer may apply again
  kUnreachable,  // the same, after a pause: the phase of the error is kConnect
  kUnfit,        // it must not apply again
};
// The ranks of the newcomers to blame for a failed attempt.
using Culprits = std::map<int, Fault>;

class Growth {
 public:
  // `config` and `runtime` belong to `comm`.
  Growth(Communicator& comm, const CoreConfig& config, const std::shared_ptr<Runtime>& runtime,
         const GrowOptions& options)
      : comm_(comm),
        config_(config),
        runtime_(runtime),
        options_(options),
        name_(options.name.empty() ? config_.name : options.name) {}

  absl::StatusOr<std::shared_ptr<Communicator>> Run();

 private:
  // The time limits of one call. The wait for newcomers begins when the ranks have compared their
  // options (Wish). The timeout begins when the wait for newcomers ends. One quarter of the timeout
  // is for the store, one half for attempts, and one quarter for the exchange of outcomes. So a
  // newcomer cannot make a call on the old communicator time out.
  struct Limits {
    int64_t attempt_ns = 0;
    Deadline wait, collect, last_attempt, all;
  };

  bool leads() const { return comm_.rank() == 0; }
  CallOptions Limited() const;
  absl::Status Gather(const void* mine, void* all, int64_t bytes, const CallOptions& limit);
  absl::Status AgreeOnWishes();
  absl::Status OpenStore(const Stop& stop);
  absl::Status Collect();
  Word Speak(int attempt);
  absl::StatusOr<Preparation> Prepare() const;
  absl::StatusOr<std::shared_ptr<Communicator>> Attempt(int attempt, const Word& word);
  // Exchanges the outcomes of an attempt. `made`: the outcome on this rank. Returns the newcomers to
  // blame, or none if the attempt succeeded on all members. Returns an error if the attempt failed
  // and no newcomer is to blame.
  absl::StatusOr<Culprits> Compare(const absl::Status& made, int newcomers);
  void Dismiss(const Culprits& culprits);
  // Agrees with all ranks of `grown` whether to use it. Returns OK if they use it. `well`: this
  // rank knows that the attempt succeeded on all members.
  absl::Status Conclude(Communicator& grown, int attempt, bool well);
  // Rank 0 tells the newcomers that `attempt` was the last attempt.
  void Finish(int attempt);
  Roster NewRoster() const;

  Communicator& comm_;
  const CoreConfig& config_;
  const std::shared_ptr<Runtime>& runtime_;
  const GrowOptions& options_;
  const std::string name_;
  int64_t timeout_ns_ = 0;
  Limits limits_;
  std::shared_ptr<Store> store_;
  std::string reason_;     // the error of one rank in the last failed attempt
  bool compared_ = false;  // this rank knows the outcomes of the last attempt on all members
  // Rank 0 only:
  uint64_t call_ = 0;
  absl::Status collected_;
  std::unique_ptr<Intake> intake_;
};

CallOptions Growth::Limited() const {
  CallOptions limit;
  limit.deadline = limits_.all;
  limit.timeout_ns = options_.wait_ns + timeout_ns_;
  return limit;
}

absl::Status Growth::Gather(const void* mine, void* all, int64_t bytes, const CallOptions& limit) {
  Call call;
  call.kind = CallKind::kGrow;
  call.in = {const_cast<void*>(mine), bytes};
  call.out = {all, bytes * comm_.size()};
  call.count = bytes;
  call.options = limit;
  return comm_.Run(call);
}

absl::Status Growth::AgreeOnWishes() {
  const Wish mine{options_.min_newcomers, options_.max_newcomers, options_.wait_ns,
                  options_.timeout_ns > 0 ? options_.timeout_ns : comm_.timeout_ns()};
  std::vector<Wish> all(static_cast<size_t>(comm_.size()));
  CallOptions limit;
  limit.timeout_ns = mine.timeout_ns;
  limit.deadline = Deadline::After(mine.timeout_ns);
  ENTRAIN_RETURN_IF_ERROR(Gather(&mine, all.data(), sizeof(mine), limit));
  timeout_ns_ = mine.timeout_ns;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    for (const auto& [name, wish] :
         {std::pair("min_newcomers", &Wish::min_newcomers),
          std::pair("max_newcomers", &Wish::max_newcomers), std::pair("wait_ns", &Wish::wait_ns)}) {
      if (all[rank].*wish != all[0].*wish) {
        return absl::DataLossError(absl::StrCat(config_.name, ": grow: ", name, ": ", all[0].*wish,
                                                " on rank 0, ", all[rank].*wish, " on rank ",
                                                rank));
      }
    }
    timeout_ns_ = std::min(timeout_ns_, all[rank].timeout_ns);
  }
  const int64_t quarter = std::max<int64_t>(timeout_ns_ / 4, 1);
  limits_.attempt_ns =
      std::min(quarter, options_.attempt_ns > 0 ? options_.attempt_ns : kMaxAttemptNs);
  limits_.wait = Deadline::After(options_.wait_ns);
  limits_.collect = Deadline::From(limits_.wait.at_ns, quarter);
  limits_.last_attempt = Deadline::From(limits_.wait.at_ns, 3 * quarter - limits_.attempt_ns);
  limits_.all = Deadline::From(limits_.wait.at_ns, timeout_ns_);
  return absl::OkStatus();
}

absl::Status Growth::OpenStore(const Stop& stop) {
  if (store_ == nullptr) {
    ENTRAIN_ASSIGN_OR_RETURN(store_, options_.store(stop));
  }
  return absl::OkStatus();
}

absl::Status Growth::Collect() {
  static std::atomic<uint64_t> calls{0};
  call_ = calls.fetch_add(1);
  const Stop stop{limits_.collect};
  ENTRAIN_RETURN_IF_ERROR(OpenStore(stop));
  Terms terms;
  terms.comm = name_;
  for (const Member& member : config_.members) {
    terms.members.push_back(member.id);
  }
  SharedSettings settings = SettingsOf(config_);
  settings.probe = false;
  terms.own = {comm_.runtime().id(), settings.ToText(), settings.tuning->source,
               options_.connect_only};
  const int room = kMaxMeetingSize - comm_.size();
  const int most = options_.max_newcomers > 0 ? std::min(options_.max_newcomers, room) : room;
  intake_ = std::make_unique<Intake>(store_, std::move(terms),
                                     GrowKeys(name_).Base(comm_.runtime().id(), call_));
  return intake_->Collect(options_.min_newcomers, most, limits_.wait, stop);
}

Word Growth::Speak(int attempt) {
  Word word;
  word.call = call_;
  absl::Status status = collected_;
  if (status.ok() && intake_->size() < std::max(options_.min_newcomers, 1)) {
    return word;
  }
  if (status.ok() && attempt > 1 && limits_.last_attempt.Passed(Clock::Real().Now())) {
    status = absl::DeadlineExceededError(absl::StrCat("no time is left to take the remaining ",
                                                      intake_->size(), " newcomers in: ", reason_));
  }
  if (status.ok()) {
    status = intake_->Announce(attempt, NewRoster(), {Deadline::After(limits_.attempt_ns)});
  }
  if (status.ok()) {
    word.newcomers = intake_->size();
  } else {
    word.code = ToCode(status);
    Write(status.message(), &word.text);
  }
  return word;
}

absl::StatusOr<Preparation> Growth::Prepare() const {
  SharedSettings settings = SettingsOf(config_);
  ENTRAIN_ASSIGN_OR_RETURN(Card card,
                           MakeCard(*runtime_, settings, comm_.rank(),
                                    config_.members[static_cast<size_t>(comm_.rank())].cpus));
  return Preparation{.runtime = runtime_,
                     .name = name_,
                     .settings = std::move(settings),
                     .card = std::move(card),
                     .timeout_ns = comm_.timeout_ns(),
                     .silence_ns = comm_.silence_ns(),
                     .limit_ns = limits_.attempt_ns,
                     .generation = config_.generation + 1,
                     .parents = comm_.size()};
}

absl::StatusOr<std::shared_ptr<Communicator>> Growth::Attempt(int attempt, const Word& word) {
  const Stop stop{Deadline::After(limits_.attempt_ns)};
  ENTRAIN_RETURN_IF_ERROR(OpenStore(stop));
  const std::string base = GrowKeys(name_).Base(config_.members[0].id, word.call);
  // If a newcomer dies before it comes to the meeting, only rank 0 learns this (intake_). If a
  // member dies, only the old communicator reports this.
  const auto watch = [this] {
    const absl::Status ended = comm_.status();
    return ended.ok() && intake_ != nullptr ? intake_->Check() : ended;
  };
  return MeetIn(*store_,
                {.key = GrowKeys::Attempt(base, attempt),
                 .rank = comm_.rank(),
                 .size = comm_.size() + word.newcomers,
                 .watch = watch},
                Prepare(), stop);
}

absl::StatusOr<Culprits> Growth::Compare(const absl::Status& made, int newcomers) {
  Outcome mine;
  if (!made.ok()) {
    mine.code = ToCode(made);
    const Blame blame = BlameOf(made);
    mine.culprit = blame.rank;
    mine.late = absl::IsDeadlineExceeded(made) && blame.phase == Phase::kBootstrap ? 1 : 0;
    Write(made.message(), &mine.text);
  }
  std::vector<Outcome> all(static_cast<size_t>(comm_.size()));
  compared_ = false;
  ENTRAIN_RETURN_IF_ERROR(Gather(&mine, all.data(), sizeof(mine), Limited()));
  compared_ = true;
  Culprits culprits;
  // The first rank that blames a newcomer. If no rank blames a newcomer: the first rank with an
  // error.
  int failed = -1;
  for (int rank = 0; rank < comm_.size(); ++rank) {
    const Outcome& one = all[static_cast<size_t>(rank)];
    const bool newcomer = one.culprit >= comm_.size() && one.culprit < comm_.size() + newcomers;
    if (one.code != ENTRAIN_OK && (failed < 0 || (newcomer && culprits.empty()))) {
      failed = rank;
    }
    if (one.code != ENTRAIN_OK && newcomer) {
      const bool network = one.code == ENTRAIN_PEER_LOST || one.code == ENTRAIN_TIMED_OUT;
      Fault& fault = culprits[one.culprit];
      fault = std::max(fault, one.late != 0 ? Fault::kLate
                              : network     ? Fault::kUnreachable
                                            : Fault::kUnfit);
    }
  }
  if (failed < 0) {
    return culprits;
  }
  const Outcome& first = all[static_cast<size_t>(failed)];
  reason_ = Read(first.text);
  if (!culprits.empty()) {
    return culprits;
  }
  Blame blame;
  blame.rank = failed;
  blame.peer_id = config_.members[static_cast<size_t>(failed)].id;
  blame.phase = Phase::kConnect;
  blame.operation = "grow";
  blame.generation = config_.generation;
  return WithBlame(absl::Status(FromCode(first.code),
                                absl::StrCat(config_.name, ": grow: rank ", failed,
                                             " could not take the newcomers in: ", reason_)),
                   blame);
}

void Growth::Dismiss(const Culprits& culprits) {
  ENTRAIN_LOG(kInfo, config_.name, ": grow: ", culprits.size(),
              " newcomers could not be taken in, going on without them: ", reason_);
  if (intake_ == nullptr) {
    return;
  }
  // Refuse lowers the ranks of all later newcomers by one, so refuse the highest rank first.
  for (auto culprit = culprits.rbegin(); culprit != culprits.rend(); ++culprit) {
    const auto [rank, fault] = *culprit;
    Blame blame;
    blame.phase = fault == Fault::kUnreachable ? Phase::kConnect : Phase::kCheck;
    intake_->Refuse(
        rank, WithBlame(absl::Status(fault == Fault::kUnfit ? absl::StatusCode::kFailedPrecondition
                                                            : absl::StatusCode::kAborted,
                                     absl::StrCat("the ranks of ", config_.name,
                                                  " could not take this process in: ", reason_)),
                        blame));
  }
}

absl::Status Growth::Conclude(Communicator& grown, int attempt, bool well) {
  // Rank 0 does this also if the attempt may have failed, because newcomers wait for it before they
  // take part in the agreement.
  const bool agrees = well || grown.size() <= Survivors::kMostRanks;
  if (agrees) {
    ENTRAIN_RETURN_IF_ERROR(TellConnected(grown, comm_.size(), Limited()));
  }
  const absl::Status stands = ConfirmGrown(
      grown, comm_.size(), well, std::max<int64_t>(limits_.all.Left(Clock::Real().Now()), 1));
  if (!stands.ok()) {
    const absl::Status ended = comm_.status();
    // If this rank does not know the result, the other ranks may have gone on in the new
    // communicator. After a loss, this rank must then not shrink the old one.
    if (absl::IsOutOfRange(stands) || (absl::IsDeadlineExceeded(stands) && !ended.ok())) {
      return WithBlame(
          absl::OutOfRangeError(absl::StrCat(
              config_.name,
              ": grow: the other ranks may have gone on without this one: ", stands.message())),
          BlameOf(stands));
    }
    if (!ended.ok()) {
      return ended;
    }
    // This rank keeps the old communicator. So the other ranks must not use the new one if their
    // agreement succeeds later.
    grown.EndWith(absl::AbortedError(stands.message()));
    return Annotate(stands, absl::StrCat(config_.name, ": grow"));
  }
  Finish(attempt);
  return absl::OkStatus();
}

void Growth::Finish(int attempt) {
  if (intake_ == nullptr) {
    return;
  }
  const Stop stop{Deadline::After(limits_.attempt_ns)};
  intake_->Finish(stop);
  // Publishes an empty roster for the next attempt. A newcomer that was not told, or that the
  // agreement has left out, waits for this roster. It does not find itself there, and applies again.
  intake_->Announce(attempt + 1, NewRoster(), stop).IgnoreError();
}

Roster Growth::NewRoster() const {
  return {config_.generation + 1, comm_.size(), config_.probed, limits_.attempt_ns, {}};
}

absl::StatusOr<std::shared_ptr<Communicator>> Growth::Run() {
  ENTRAIN_RETURN_IF_ERROR(AgreeOnWishes());
  if (leads()) {
    collected_ = Collect();
  }
  for (int attempt = 1;; ++attempt) {
    Word word = leads() ? Speak(attempt) : Word();
    ENTRAIN_RETURN_IF_ERROR(
        comm_.Broadcast(&word, sizeof(word), DType::kU8, /*root=*/0, Limited()));
    if (word.code != ENTRAIN_OK) {
      return absl::Status(FromCode(word.code),
                          absl::StrCat(config_.name, ": grow: rank 0: ", Read(word.text)));
    }
    if (word.newcomers == 0) {
      return nullptr;
    }
    auto made = Attempt(attempt, word);
    const auto culprits = Compare(made.status(), word.newcomers);
    const bool well = culprits.ok() && culprits->empty();
    if (well && options_.connect_only) {
      ENTRAIN_RETURN_IF_ERROR(TellConnected(**made, comm_.size(), Limited()));
      Finish(attempt);
      return made;
    }
    if (made.ok() && !options_.connect_only && (well || !compared_)) {
      const absl::Status stands = Conclude(**made, attempt, well);
      if (stands.ok() || well) {
        return stands.ok() ? made : stands;
      }
    }
    if (made.ok()) {
      // EndWith returns after it has told all other ranks. The newcomers must be told, because they
      // wait for a message over the new communicator.
      (*made)->EndWith(absl::AbortedError(culprits.ok() ? reason_ : culprits.status().message()));
    }
    ENTRAIN_RETURN_IF_ERROR(culprits.status());
    Dismiss(*culprits);
  }
}

}  // namespace

absl::StatusOr<std::shared_ptr<Communicator>> Communicator::Grow(const GrowOptions& options) {
  for (const auto& [name, value] :
       {std::pair("min_newcomers", int64_t{options.min_newcomers}),
        std::pair("max_newcomers", int64_t{options.max_newcomers}),
        std::pair("wait_ns", options.wait_ns), std::pair("timeout_ns", options.timeout_ns),
        std::pair("attempt_ns", options.attempt_ns)}) {
    if (value < 0) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": ", value, " is negative"));
    }
  }
  if (options.max_newcomers > 0 && options.max_newcomers < options.min_newcomers) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_newcomers: ", options.max_newcomers,
                     " is less than min_newcomers: ", options.min_newcomers));
  }
  return Growth(*this, core_->config(), runtime_, options).Run();
}

}  // namespace entrain
