// A rank's part in a meeting over etcd.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "lib/store/etcd_client.h"
#include "lib/store/gathering.h"

namespace entrain {

// `root` is the prefix of all keys of the store. `opened` is etcd's revision at the time when this
// process opened the store.
absl::StatusOr<std::unique_ptr<StoreMeeting>> JoinOverEtcd(std::shared_ptr<const EtcdClient> client,
                                                           const std::string& root, int64_t opened,
                                                           const std::string& key,
                                                           const Entry& entry, const Stop& stop);

}  // namespace entrain
