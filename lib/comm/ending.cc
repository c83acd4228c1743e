#include "lib/comm/ending.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "lib/base/log.h"
#include "lib/base/status.h"

namespace entrain {

Ending::Ending(EndingOwner& owner, Engine& engine, const CoreConfig& config, const Peers& peers,
               const FailureWords& words, const OpenCalls& open)
    : owner_(owner), engine_(engine), config_(config), peers_(peers), words_(words), open_(open) {}

Blame Ending::Mine(Phase phase) const {
  return words_.BlameFor(nullptr, config_.rank, phase);
}

// ---- Any thread

void Ending::Abort(absl::string_view reason) {
  EndHere(absl::AbortedError(
      absl::StrCat(config_.name, ": aborted by rank ", config_.rank, ": ", reason)));
}

void Ending::EndHere(const absl::Status& why) {
  end_.Set(HasBlame(why) ? why : WithBlame(why, Mine(Phase::kNone)));
  class EndJob final : public Job {
   public:
    EndJob(Ending& ending, std::shared_ptr<void> keep) : ending_(ending), keep_(std::move(keep)) {}
    void Run() override {
      ending_.Fail(ending_.status());
      delete this;
    }

   private:
    Ending& ending_;
    const std::shared_ptr<void> keep_;
  };
  engine_.seat().Submit(new EndJob(*this, owner_.Keep()));
  engine_.seat().Kick();
}

void Ending::EndWith(const absl::Status& why) {
  const absl::StatusCode code = words_.CodeHere(why);
  // An error that no communicator has reported was met by this rank alone.
  const bool own = code != why.code() || !HasBlame(why);
  end_.Set(WithBlame(absl::Status(code, absl::StrCat(config_.name, ": ended by rank ", config_.rank,
                                                     ": ", why.message())),
                     own ? Mine(Phase::kNone) : words_.BlameHere(why)));
  engine_.seat().RunInDriver([this] {
    Fail(status());
    engine_.Flush();
  });
}

// ---- [driver]

void Ending::Fail(const absl::Status& why) {
  const std::shared_ptr<void> keep = owner_.Keep();
  end_.Set(why);
  if (!engine_.Accepts(config_.context)) {
    return;  // it has ended before
  }
  const absl::Status first =
      words_.WithEarlierCause(words_.WithMember(status()), engine_.causes().cause());
  end_.Complete(first);
  TellMembers(first);
  // The members of this process's other communicators are told too, because those may end as a
  // consequence.
  engine_.causes().Tell(
      absl::StartsWith(first.message(), config_.name) ? first : Annotate(first, config_.name));
  engine_.CloseContext(config_.context);
  engine_.seat().NeedFlush();
  if (!open_.empty()) {
    ENTRAIN_LOG(kInfo, first.message());
  }
  owner_.EndCalls(first);
}

void Ending::TellMembers(const absl::Status& why) {
  for (int r = 0; r < peers_.size(); ++r) {
    Endpoint* const endpoint = peers_.endpoint(r);
    if (endpoint == nullptr) {
      continue;
    }
    endpoint->Revoke(config_.context, peers_.context(r), why);
    if (!owner_.left(r)) {
      peers_.SendTwice(r, ControlKind::kAbort, EncodeStatus(why));
    }
  }
}

void Ending::Leave(absl::string_view what) {
  if (!engine_.Accepts(config_.context)) {
    return;
  }
  if (open_.empty()) {
    LeaveQuietly();
    return;
  }
  Fail(WithBlame(absl::AbortedError(absl::StrCat(
                     config_.name, ": rank ", config_.rank, " ", what, " with ", open_.size(),
                     " unfinished calls, first ", open_.first()->Name())),
                 Mine(Phase::kTransfer)));
}

void Ending::LeaveQuietly() {
  const absl::Status why =
      absl::AbortedError(absl::StrCat(config_.name, ": the communicator was destroyed"));
  end_.Set(why);
  for (int r = 0; r < peers_.size(); ++r) {
    Endpoint* const endpoint = peers_.endpoint(r);
    if (endpoint != nullptr) {
      peers_.Send(r, ControlKind::kLeave);
      endpoint->Revoke(config_.context, peers_.context(r), why);
    }
  }
  engine_.CloseContext(config_.context);
}

}  // namespace entrain
