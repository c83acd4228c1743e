#include "lib/comm/failure/ending.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"

namespace entrain {

Blame Ending::Mine(Phase phase) const {
  return words_.BlameFor(nullptr, config_.rank, phase);
}

// ---- Any thread

void Ending::Abort(absl::string_view reason) {
  EndHere(absl::AbortedError(
      absl::StrCat(config_.name, ": aborted by rank ", config_.rank, ": ", reason)));
}

void Ending::EndHere(const absl::Status& why) {
  end_.Set(HasBlame(why) ? why : WithBlame(why, Mine(Phase::kNone)), /*here=*/true);
}

void Ending::EndWith(const absl::Status& why) {
  const absl::StatusCode code = words_.CodeHere(why);
  // If the error does not come from another communicator, this rank is to blame for it.
  const bool own = code != why.code() || !HasBlame(why);
  end_.Set(WithBlame(absl::Status(code, absl::StrCat(config_.name, ": ended by rank ", config_.rank,
                                                     ": ", why.message())),
                     own ? Mine(Phase::kNone) : words_.BlameHere(why)),
           /*here=*/true);
}

void Ending::EndLike(const Ending& parent) {
  const absl::Status why = parent.status();
  end_.Set(
      WithBlame(absl::Status(words_.CodeHere(why), absl::StrCat(config_.name, ": ", why.message())),
                words_.BlameHere(why)),
      parent.end().here());
}

// ---- [driver]

std::optional<Ending::End> Ending::Fail(const absl::Status& why, const absl::Status& cause) {
  end_.Set(why);
  if (std::exchange(over_, true)) {
    return std::nullopt;
  }
  const absl::Status first = words_.WithEarlierCause(words_.WithMember(status()), cause);
  end_.Complete(first);
  return End{first, first};
}

std::optional<Ending::End> Ending::EndAsStale(const absl::Status& why) {
  end_.Set(why);
  end_.Complete(why);
  if (std::exchange(over_, true)) {
    return std::nullopt;
  }
  return End{why, WithBlame(absl::AbortedError(absl::StrCat(
                                config_.name, ": the others go on without rank ", config_.rank)),
                            Mine(Phase::kNone))};
}

std::optional<Ending::Farewell> Ending::Leave(absl::string_view what, const OpenCalls& open,
                                              const absl::Status& cause) {
  if (std::exchange(left_, true)) {
    return std::nullopt;
  }
  if (!over_ && !open.empty()) {
    end_.Set(WithBlame(absl::AbortedError(absl::StrCat(
                           config_.name, ": rank ", config_.rank, " ", what, " with ", open.size(),
                           " unfinished calls, first ", open.first()->Name())),
                       Mine(Phase::kTransfer)),
             /*here=*/true);
    return Farewell{Fail(status(), cause), absl::OkStatus()};
  }
  if (std::exchange(over_, true)) {
    return Farewell{};
  }
  const absl::Status why =
      absl::AbortedError(absl::StrCat(config_.name, ": the communicator was destroyed"));
  end_.Set(why, /*here=*/true);
  return Farewell{std::nullopt, why};
}

}  // namespace entrain
