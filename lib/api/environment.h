// The place of this process in the job, from the launcher's variables: rank, size and store.
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
  // the job's store, or the part of it for this start of the job
  std::shared_ptr<Store> store;
  // How often entrain-run --elastic has restarted this rank. If it is at least 1, this process is a
  // newcomer. nullopt: the job is not elastic.
  std::optional<int64_t> restarts;
};

// Returns this process's place, and opens the job's store. If this rank must serve the store
// (DetectLaunch), starts the server instead. The server runs until the process ends, because other
// ranks may use the store after this rank has finished. If no launcher's variables are set, returns
// a world of one rank, with a store of its own. Any thread. Blocks for at most `timeout_ns`, and at
// most 30 s.
absl::StatusOr<Place> PlaceFromEnvironment(const Security& security, int64_t timeout_ns);

// Tells the other ranks that this rank cannot create the communicator `name`, because a setting of
// this process or its key is refused (`why`). Otherwise the other ranks would wait for this rank until
// their deadlines. Blocks for a few seconds at most.
//
// If the reason is the key or a certificate, this process cannot prove to a store tcp: or local:
// that it belongs to the job. The store must not believe it then, because a stranger could end a
// job in this way. So such a reason is told in a store without a proof only: file: and etcd:.
void TellOthers(const std::string& name, const absl::Status& why);

// Opens the job's store as PlaceFromEnvironment does. Needs no rank in the environment:
// ENTRAIN_STORE is sufficient, or MASTER_ADDR and MASTER_PORT.
absl::StatusOr<std::shared_ptr<Store>> StoreFromEnvironment(const Security& security,
                                                            const Stop& stop);
// The same for a process that joins others: it never serves the store, also if it is rank 0.
absl::StatusOr<std::shared_ptr<Store>> OpenStoreOfOthers(const Security& security,
                                                         const Stop& stop);

// Tells entrain-run --elastic that this process has a communicator. Otherwise does nothing.
void TellLauncher(const Place& place);
// The same for a process that has joined a training object: it counts like the ranks that have a
// communicator, and can take newcomers in.
void TellLauncherOfJoin(const Security& security);

}  // namespace entrain::api
