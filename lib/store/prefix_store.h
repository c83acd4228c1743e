// A part of another store: every key gets a prefix.
#pragma once

#include <memory>

#include "absl/strings/string_view.h"

#include "lib/store/store.h"

namespace entrain {

// url() and host() are the base's: others reach the same part by opening it and giving the same
// prefix. The prefix counts toward kMaxStoreKey.
std::shared_ptr<Store> WithPrefix(std::shared_ptr<Store> base, absl::string_view prefix);

}  // namespace entrain
