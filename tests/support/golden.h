// Golden numbers: files of tests/testdata, which say themselves where they come from.
#pragma once

#include <fstream>
#include <limits>
#include <string>

#include "gtest/gtest.h"

#include "nlohmann/json.hpp"

namespace entrain {

// `name`: with its ending.
inline nlohmann::json Golden(const std::string& name) {
  std::ifstream file(ENTRAIN_TESTDATA "/" + name);
  EXPECT_TRUE(file.good()) << name;
  return nlohmann::json::parse(file);
}

// A number that JSON has no word for is a string, and none.
inline double Number(const nlohmann::json& json) {
  return json.is_string() ? std::numeric_limits<double>::quiet_NaN() : json.get<double>();
}

}  // namespace entrain
