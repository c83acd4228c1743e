#include "collectives/hosts.h"

#include <map>

namespace entrain::composed {

Hosts::Hosts(absl::Span<const int> numbers) {
  std::map<int, int> host;
  for (size_t rank = 0; rank < numbers.size(); ++rank) {
    const auto [entry, fresh] = host.emplace(numbers[rank], count());
    if (fresh) {
      ranks.emplace_back();
    }
    Parts& local = ranks[static_cast<size_t>(entry->second)];
    host_of.push_back(entry->second);
    place_of.push_back(static_cast<int>(local.size()));
    local.push_back(static_cast<int>(rank));
  }
}

}  // namespace entrain::composed
