#include "transports/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace entrain {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(ParseTransports, EmptyMeansAllInTheOrderOfPreference) {
  EXPECT_THAT(ParseTransports("").value(), ElementsAre("inproc", "shm", "ucx", "tcp", "nccl"));
  EXPECT_THAT(ParseTransports("  ").value(), ElementsAre("inproc", "shm", "ucx", "tcp", "nccl"));
}

TEST(ParseTransports, OrderOfTheTextDoesNotMatter) {
  EXPECT_THAT(ParseTransports("tcp, shm").value(), ElementsAre("shm", "tcp"));
  EXPECT_THAT(ParseTransports("nccl,shm").value(), ElementsAre("shm", "nccl"));
}

TEST(ParseTransports, RefusesUnknownAndRepeatedNames) {
  const auto unknown = ParseTransports("shm,rdma");
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(unknown.status().message()), HasSubstr("\"rdma\""));
  EXPECT_THAT(std::string(unknown.status().message()), HasSubstr("inproc, shm, ucx, tcp"));
  EXPECT_THAT(std::string(ParseTransports("tcp,tcp").status().message()), HasSubstr("twice"));
  EXPECT_FALSE(ParseTransports("tcp,").ok());
  EXPECT_FALSE(ParseTransports(",").ok());
}

}  // namespace
}  // namespace entrain
