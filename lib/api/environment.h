// The place of this process in the job, from its launcher's variables: rank, size, and the store
// for meetings.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

#include "lib/store/store.h"

namespace entrain::api {

struct Place {
  int rank = 0, size = 1;
  // the part of the job's store that belongs to this start of the job
  std::shared_ptr<Store> store;
  // Number of times that entrain-run --elastic has restarted this rank. If it is at least 1, this
  // process is a newcomer. nullopt if the job is not elastic.
  std::optional<int64_t> restarts;
};

// Returns this process's place. Opens the job's store. If the launcher's conventions say that this
// rank serves the store, starts the server instead. A served store stays until the process ends,
// since other ranks may use it after this rank has finished. If no launcher has set its variables,
// returns a world of one rank, with a store of its own. Any thread may call this. Blocks for at
// most `timeout_ns`, and at most 30 s.
absl::StatusOr<Place> PlaceFromEnvironment(const Security& security, int64_t timeout_ns);

// Opens the job's store, too, but does not need a rank in the environment. ENTRAIN_STORE is
// sufficient.
absl::StatusOr<std::shared_ptr<Store>> StoreFromEnvironment(const Security& security,
                                                            const Stop& stop);

// Tells entrain-run --elastic that this process has a communicator.
void TellLauncher(const Place& place);

}  // namespace entrain::api
