// Which transports a test runs over.
#pragma once

#include <string>
#include <vector>

#include "transports/registry.h"

namespace entrain {

// `names`, and ucx where it is here.
inline std::vector<std::string> WithUcx(std::vector<std::string> names) {
  for (const TransportFactory& factory : TransportRegistry()) {
    if (factory.name == std::string("ucx") && factory.Absence(/*named=*/true).ok()) {
      names.emplace_back(factory.name);
    }
  }
  return names;
}

}  // namespace entrain
