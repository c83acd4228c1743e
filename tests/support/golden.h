// Golden numbers: files of tests/testdata. Each file names its origin.
#pragma once

#include <fstream>
#include <limits>
#include <string>

#include "gtest/gtest.h"

#include "nlohmann/json.hpp"

namespace entrain {

// `name`: the file's name with its ending.
inline nlohmann::json Golden(const std::string& name) {
  std::ifstream file(ENTRAIN_TESTDATA "/" + name);
  EXPECT_TRUE(file.good()) << name;
  return nlohmann::json::parse(file);
}

// A value that JSON cannot express, such as NaN, is written as a string, and reads as NaN.
inline double Number(const nlohmann::json& json) {
  return json.is_string() ? std::numeric_limits<double>::quiet_NaN() : json.get<double>();
}

}  // namespace entrain
