// The transports over which a test runs.
#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include "transports/registry.h"

namespace entrain {

// Returns `names` and, if it is available, ucx. UCX uses tcp unless UCX_TLS names something else.
inline std::vector<std::string> WithUcx(std::vector<std::string> names) {
  setenv("UCX_TLS", "tcp", 0);
  setenv("ENTRAIN_INSECURE", "1", 0);  // needed by UCX's tcp. Without effect on one host otherwise
  for (const TransportFactory& factory : TransportRegistry()) {
    if (factory.name == std::string("ucx") && factory.Absence(/*named=*/true).ok()) {
      names.emplace_back(factory.name);
    }
  }
  return names;
}

}  // namespace entrain
