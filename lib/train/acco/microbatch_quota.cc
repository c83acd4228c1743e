#include "lib/train/acco/microbatch_quota.h"

#include "absl/strings/str_cat.h"

namespace entrain {

int64_t MicrobatchQuota::Least() const {
  const auto round = static_cast<size_t>(rounds_);
  return round < scripted_.size() ? scripted_[round] : least_;
}

int64_t MicrobatchQuota::Most() const {
  return scripted_.empty() ? most_ : Least();
}

absl::Status MicrobatchQuota::CheckRound() const {
  return scripted_.empty() || rounds_ < static_cast<int64_t>(scripted_.size())
             ? absl::OkStatus()
             : absl::FailedPreconditionError(absl::StrCat(
                   "acco: scripted_counts has ", scripted_.size(), " rounds, and all are over"));
}

absl::Status MicrobatchQuota::CheckEnough() const {
  return enough() ? absl::OkStatus()
                  : absl::FailedPreconditionError(
                        absl::StrCat("acco: install: ", added_, " of at least ", Least(),
                                     " micro-batches of this round have been added"));
}

absl::Status MicrobatchQuota::Add(int64_t microbatches, int64_t tokens) {
  if (microbatches < 1 || tokens < 0) {
    return absl::InvalidArgumentError(
        microbatches < 1 ? absl::StrCat("acco: microbatches: ", microbatches, " is less than 1")
                         : absl::StrCat("acco: tokens: ", tokens, " is negative"));
  }
  if (Most() > 0 && added_ + microbatches > Most()) {
    return absl::FailedPreconditionError(absl::StrCat("acco: microbatches: ", microbatches,
                                                      " more after ", added_, " would be above ",
                                                      Most(), " of this round"));
  }
  added_ += microbatches;
  return absl::OkStatus();
}

}  // namespace entrain
