// nlohmann's JSON for units of the library. They are built without exceptions, so their copy of the
// JSON code differs from a program's copy and gets a namespace of its own. A unit must not call
// functions that would throw: it parses with parse(text, nullptr, false), and looks at a value's
// type before it reads the value. A unit that includes this links nlohmann_json privately.
#pragma once

#define NLOHMANN_JSON_NAMESPACE nlohmann::entrain_noexcept
#define NLOHMANN_JSON_NAMESPACE_BEGIN \
  namespace nlohmann {                \
  inline namespace entrain_noexcept {
#define NLOHMANN_JSON_NAMESPACE_END \
  }                                 \
  }
#include <nlohmann/json.hpp>
