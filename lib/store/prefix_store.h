// A store that is a part of another store: adds a prefix to every key.
#pragma once

#include <memory>

#include "absl/strings/string_view.h"

#include "lib/store/store.h"

namespace entrain {

// url() and host() return the URL and the host of the base store. To reach the same keys, other
// processes open the base store and use the same prefix. The prefix counts toward kMaxStoreKey.
std::shared_ptr<Store> WithPrefix(std::shared_ptr<Store> base, absl::string_view prefix);

}  // namespace entrain
