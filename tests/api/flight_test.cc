// entrain_flight_dump.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <entrain/entrain.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "nlohmann/json.hpp"
#include "tests/api/world.h"

namespace entrain_test {
namespace {

using nlohmann::json;

TEST(FlightDump, WritesTheCallsOfAllCommunicators) {
  std::string directory = (std::filesystem::temp_directory_path() / "entrain_XXXXXX").string();
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  const std::string file = directory + "/dump.json";
  RunWorld(2, [&](const Rank& me) {
    float x[4] = {1, 2, 3, 4};
    EXPECT_OK(entrain_all_reduce(me.comm, x, x, 4, ENTRAIN_F32, ENTRAIN_SUM, nullptr, nullptr));
    if (me.rank != 0) {
      return;
    }
    ASSERT_OK(entrain_flight_dump(file.c_str()));
    std::ifstream in(file);
    const json dump = json::parse(std::string(std::istreambuf_iterator<char>(in), {}));
    int found = 0;
    for (const json& comm : dump["communicators"]) {
      if (comm["rank"] == 0) {
        const json& last = comm["calls"].back();
        EXPECT_EQ(last["arguments"], "all_reduce sum of 4 f32");
        EXPECT_EQ(last["state"], "done");
        ++found;
      }
    }
    EXPECT_EQ(found, 1);
    EXPECT_FAILS(entrain_flight_dump(file.c_str()), ENTRAIN_FAILED_PRECONDITION, "exists");
    EXPECT_FAILS(entrain_flight_dump(""), ENTRAIN_INVALID_ARGUMENT, "path");
    EXPECT_FAILS(entrain_flight_dump("/no/such/file"), ENTRAIN_INVALID_ARGUMENT, "/no/such/file");
    EXPECT_FAILS(entrain_flight_dump(nullptr), ENTRAIN_FAILED_PRECONDITION, "ENTRAIN_FLIGHT_DIR");
  });
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace entrain_test
