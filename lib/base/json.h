// nlohmann's JSON for files of the library. The library is built without exceptions, so its copy of
// the JSON code differs from the copy of a program. The namespace below keeps the two copies apart.
//
// The library must not call a JSON function that can throw. Parse with parse(text, nullptr, false).
// Check the type of a value before reading it. A library target that includes this file must link
// nlohmann_json as PRIVATE.
#pragma once

#define NLOHMANN_JSON_NAMESPACE nlohmann::entrain_noexcept
#define NLOHMANN_JSON_NAMESPACE_BEGIN \
  namespace nlohmann {                \
  inline namespace entrain_noexcept {
#define NLOHMANN_JSON_NAMESPACE_END \
  }                                 \
  }
#include <nlohmann/json.hpp>
