// Which transports a test runs over.
#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include "transports/registry.h"

namespace entrain {

// `names`, and ucx where it is here: over UCX's tcp unless UCX_TLS says otherwise, as it must be named.
inline std::vector<std::string> WithUcx(std::vector<std::string> names) {
  setenv("UCX_TLS", "tcp", 0);
  for (const TransportFactory& factory : TransportRegistry()) {
    if (factory.name == std::string("ucx") && factory.Absence(/*named=*/true).ok()) {
      names.emplace_back(factory.name);
    }
  }
  return names;
}

}  // namespace entrain
