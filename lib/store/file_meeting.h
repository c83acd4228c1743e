// A rank's part in a meeting that is kept in a directory.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "lib/store/gathering.h"

namespace entrain {

absl::StatusOr<std::unique_ptr<StoreMeeting>> JoinInDirectory(const std::string& directory,
                                                              const std::string& key,
                                                              const Entry& entry, const Stop& stop);

}  // namespace entrain
