// The first error of a gradient channel. Later rounds, installs, saves and loads return it.
//
// Thread safety: one thread at a time, the caller's.
#pragma once

#include "absl/status/status.h"

#include "lib/train/channel_ranks.h"

namespace entrain {

class ChannelFailure {
 public:
  // `ranks` must outlive the object.
  explicit ChannelFailure(ChannelRanks& ranks) : ranks_(ranks) {}

  const absl::Status& status() const { return status_; }
  // Notes the error, if `why` is one. Returns `why`.
  absl::Status Note(const absl::Status& why) {
    status_.Update(why);
    return why;
  }
  // Notes the error, and tells all ranks. Used for errors that only this rank has noticed. Returns
  // `why`.
  absl::Status NoteForAll(const absl::Status& why) {
    if (!why.ok()) {
      ranks_.End(why);
    }
    return Note(why);
  }

 private:
  ChannelRanks& ranks_;
  absl::Status status_;
};

}  // namespace entrain
