#include "lib/comm/ending.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "lib/base/log.h"
#include "lib/base/status.h"

namespace entrain {

Ending::Ending(CommShell& shell, Engine& engine, const CoreConfig& config, const Peers& peers,
               const FailureWords& words, const OpenCalls& open)
    : shell_(shell), engine_(engine), config_(config), peers_(peers), words_(words), open_(open) {}

Blame Ending::Mine(Phase phase) const {
  return words_.BlameFor(nullptr, config_.rank, phase);
}

// ---- Any thread

void Ending::Abort(absl::string_view reason) {
  EndHere(absl::AbortedError(
      absl::StrCat(config_.name, ": aborted by rank ", config_.rank, ": ", reason)));
}

void Ending::EndHere(const absl::Status& why, bool leaves) {
  end_.Set(HasBlame(why) ? why : WithBlame(why, Mine(Phase::kNone)), /*here=*/true);
  FailSoon(leaves);
}

void Ending::FailSoon(bool leaves) {
  class EndJob final : public Job {
   public:
    EndJob(Ending& ending, std::shared_ptr<CommShell> keep, bool leaves)
        : ending_(ending), keep_(std::move(keep)), leaves_(leaves) {}
    void Run() override {
      ending_.Fail(ending_.status());
      if (leaves_) {
        ending_.Leave("");
      }
      delete this;
    }

   private:
    Ending& ending_;
    const std::shared_ptr<CommShell> keep_;
    const bool leaves_;
  };
  engine_.seat().Submit(new EndJob(*this, shell_.Keep(), leaves));
  engine_.seat().Kick();
}

void Ending::EndWith(const absl::Status& why) {
  const absl::StatusCode code = words_.CodeHere(why);
  // If the error does not come from another communicator, this rank is to blame for it.
  const bool own = code != why.code() || !HasBlame(why);
  end_.Set(WithBlame(absl::Status(code, absl::StrCat(config_.name, ": ended by rank ", config_.rank,
                                                     ": ", why.message())),
                     own ? Mine(Phase::kNone) : words_.BlameHere(why)),
           /*here=*/true);
  engine_.seat().RunInDriver([this] {
    Fail(status());
    engine_.Flush();
  });
}

void Ending::EndLike(const Ending& parent) {
  const absl::Status why = parent.status();
  end_.Set(
      WithBlame(absl::Status(words_.CodeHere(why), absl::StrCat(config_.name, ": ", why.message())),
                words_.BlameHere(why)),
      parent.end().here());
  FailSoon(/*leaves=*/false);
}

// ---- [driver]

void Ending::Fail(const absl::Status& why) {
  const std::shared_ptr<CommShell> keep = shell_.Keep();
  end_.Set(why);
  if (!engine_.Accepts(config_.context)) {
    return;  // the communicator has already ended
  }
  const absl::Status first =
      words_.WithEarlierCause(words_.WithMember(status()), engine_.causes().cause());
  Conclude(first, first);
}

void Ending::EndAsStale(const absl::Status& why) {
  const std::shared_ptr<CommShell> keep = shell_.Keep();
  end_.Set(why);
  if (engine_.Accepts(config_.context)) {
    Conclude(why, WithBlame(absl::AbortedError(absl::StrCat(
                                config_.name, ": the others go on without rank ", config_.rank)),
                            Mine(Phase::kNone)));
  }
  end_.Complete(why);
}

void Ending::Conclude(const absl::Status& why, const absl::Status& told) {
  end_.Complete(why);
  TellMembers(why, told);
  // Also tells the members of this process's other communicators, because these communicators may
  // end as a result.
  engine_.causes().Tell(
      absl::StartsWith(told.message(), config_.name) ? told : Annotate(told, config_.name));
  engine_.RevokeContext(config_.context);
  engine_.seat().NeedFlush();
  if (!open_.empty()) {
    ENTRAIN_LOG(kInfo, why.message());
  }
  shell_.EndCalls(why);
}

void Ending::TellMembers(const absl::Status& why, const absl::Status& told) {
  for (int r = 0; r < peers_.size(); ++r) {
    Endpoint* const endpoint = peers_.endpoint(r);
    if (endpoint == nullptr) {
      continue;
    }
    endpoint->Revoke(config_.context, peers_.context(r), why);
    if (!shell_.left(r)) {
      peers_.SendTwice(r, ControlKind::kAbort, EncodeStatus(told));
    }
  }
}

void Ending::Leave(absl::string_view what) {
  if (std::exchange(left_, true)) {
    return;
  }
  if (engine_.Accepts(config_.context) && !open_.empty()) {
    end_.Set(WithBlame(absl::AbortedError(absl::StrCat(
                           config_.name, ": rank ", config_.rank, " ", what, " with ", open_.size(),
                           " unfinished calls, first ", open_.first()->Name())),
                       Mine(Phase::kTransfer)),
             /*here=*/true);
    Fail(status());
  }
  const bool quietly = engine_.Accepts(config_.context);
  const absl::Status why =
      absl::AbortedError(absl::StrCat(config_.name, ": the communicator was destroyed"));
  if (quietly) {
    end_.Set(why, /*here=*/true);
  }
  for (int r = 0; r < peers_.size(); ++r) {
    Endpoint* const endpoint = peers_.endpoint(r);
    if (endpoint != nullptr) {
      peers_.Send(r, ControlKind::kLeave);
      if (quietly) {
        endpoint->Revoke(config_.context, peers_.context(r), why);
      }
    }
  }
  engine_.CloseContext(config_.context);
}

}  // namespace entrain
