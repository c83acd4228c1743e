// Where this process stands, as its launcher says: rank, size, and the store to meet in.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "lib/store/store.h"

namespace entrain::api {

struct Place {
  int rank = 0, size = 1;
  std::shared_ptr<Store> store;  // this start of the job's own part of it
};

// Opens the store, or serves it where the launcher's conventions say that this rank does. A served
// store stays until the process ends: other ranks may meet in it again when this one has long done
// so. None of the launchers' variables set: a world of one, with a store of its own. `key`: the
// pre-shared one, empty for none. Any thread; blocks for at most `timeout_ns`, and 30 s.
absl::StatusOr<Place> PlaceFromEnvironment(const std::string& key, int64_t timeout_ns);

}  // namespace entrain::api
