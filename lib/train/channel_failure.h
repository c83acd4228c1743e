// Stores the first error of a gradient channel. Later rounds, installs, saves and loads return this
// error.
//
// Thread safety: only the caller's thread may use the object.
#pragma once

#include "absl/status/status.h"

#include "lib/train/channel_ranks.h"

namespace entrain {

class ChannelFailure {
 public:
  // `ranks` must outlive the object.
  explicit ChannelFailure(ChannelRanks& ranks) : ranks_(ranks) {}

  const absl::Status& status() const { return status_; }
  // Stores `why` if it is an error and no error is stored yet. Returns `why`.
  absl::Status Note(const absl::Status& why) {
    status_.Update(why);
    return why;
  }
  // Does the same as Note. If `why` is an error, also ends the communicator with this error on all
  // ranks. Used for errors that only this rank has noticed.
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
