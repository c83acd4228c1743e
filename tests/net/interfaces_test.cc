#include "lib/net/interfaces.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace entrain {
namespace {

using ::testing::HasSubstr;

Address Of(const char* host) {
  return *Address::FromHost(host, 0);
}

std::vector<Interface> Machine() {
  return {{"lo", Of("127.0.0.1")},       {"eth0", Of("10.1.0.7")}, {"eth1", Of("10.2.0.7")},
          {"docker0", Of("172.17.0.1")}, {"lo", Of("::1")},        {"eth0", Of("fe80::7")},
          {"eth0", Of("fd00::7")}};
}

std::string Choose(const char* filter, const char* route = nullptr) {
  const Address there = route == nullptr ? Address() : Of(route);
  const auto address = ChooseAddress(filter, Machine(), route == nullptr ? nullptr : &there);
  return address.ok() ? address->host() : std::string(address.status().message());
}

TEST(ChooseAddress, WithoutAFilterTakesTheRoute) {
  EXPECT_EQ(Choose("", "10.2.0.7"), "10.2.0.7");
  EXPECT_EQ(Choose(""), "127.0.0.1");
}

TEST(ChooseAddress, ByName) {
  EXPECT_EQ(Choose("eth1"), "10.2.0.7");
  EXPECT_EQ(Choose("lo"), "127.0.0.1");
  EXPECT_EQ(Choose("eth1", "10.1.0.7"), "10.2.0.7");
}

TEST(ChooseAddress, ByPrefixPrefersTheRoute) {
  EXPECT_EQ(Choose("eth*"), "10.1.0.7");
  EXPECT_EQ(Choose("eth*", "10.2.0.7"), "10.2.0.7");
}

TEST(ChooseAddress, ByNetwork) {
  EXPECT_EQ(Choose("10.2.0.0/16"), "10.2.0.7");
  EXPECT_EQ(Choose("172.16.0.0/12"), "172.17.0.1");
  EXPECT_EQ(Choose("fd00::/8"), "fd00::7");
  EXPECT_EQ(Choose("10.1.0.7"), "10.1.0.7");
  EXPECT_EQ(Choose("0.0.0.0/0", "10.2.0.7"), "10.2.0.7");
}

TEST(ChooseAddress, ByFamilyPrefersRoutableAddresses) {
  EXPECT_EQ(Choose("ipv6"), "fd00::7");
  EXPECT_EQ(Choose("ipv4"), "10.1.0.7");
  EXPECT_EQ(Choose("eth0,ipv6"), "fd00::7");
}

TEST(ChooseAddress, OrderOfTheFilterDecides) {
  EXPECT_EQ(Choose("docker0,eth0"), "172.17.0.1");
  EXPECT_EQ(Choose("ib*,eth1,eth0"), "10.2.0.7");
}

TEST(ChooseAddress, Exclusions) {
  EXPECT_EQ(Choose("^eth0,^docker0"), "10.2.0.7");
  EXPECT_EQ(Choose("eth*,^10.1.0.0/16,ipv4"), "10.2.0.7");
  EXPECT_EQ(Choose("^docker0", "10.2.0.7"), "10.2.0.7");
  EXPECT_EQ(Choose("^ipv6,^eth*,^docker0"), "127.0.0.1");
}

TEST(ChooseAddress, ImpossibleFilterListsWhatExists) {
  const auto address = ChooseAddress("ib0", Machine(), nullptr);
  EXPECT_EQ(address.status().code(), absl::StatusCode::kFailedPrecondition);
  const std::string text(address.status().message());
  EXPECT_THAT(text, HasSubstr("\"ib0\""));
  EXPECT_THAT(text, HasSubstr("docker0 172.17.0.1"));
  EXPECT_THAT(text, HasSubstr("eth1 10.2.0.7"));
}

TEST(ChooseAddress, MalformedEntriesAreRefused) {
  for (const char* filter :
       {",", "eth0,", "^", "10.0.0.0/33", "10.0.0/8", "fd00::/129", "1.2.3.4/x"}) {
    const auto address = ChooseAddress(filter, Machine(), nullptr);
    EXPECT_EQ(address.status().code(), absl::StatusCode::kInvalidArgument) << filter;
    EXPECT_THAT(std::string(address.status().message()), HasSubstr(filter));
  }
}

TEST(ChooseLocalAddress, LoopbackStoreGivesLoopback) {
  const Stop stop{Deadline::After(10 * kSecond), nullptr};
  for (const char* host : {"", "127.0.0.1", "localhost"}) {
    const auto address = ChooseLocalAddress("", host, stop);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_TRUE(address->IsLoopback()) << address->ToString();
    EXPECT_EQ(address->port(), 0);
  }
}

TEST(ChooseLocalAddress, UnknownStoreHostIsNamed) {
  const auto address =
      ChooseLocalAddress("", "no-such-host.invalid", {Deadline::After(10 * kSecond), nullptr});
  EXPECT_THAT(std::string(address.status().message()), HasSubstr("no-such-host.invalid"));
}

TEST(ListInterfaces, HasLoopback) {
  const auto interfaces = ListInterfaces();
  ASSERT_TRUE(interfaces.ok()) << interfaces.status();
  bool loopback = false;
  for (const Interface& one : *interfaces) {
    loopback |= one.address.IsLoopback();
    EXPECT_TRUE(IsLocal(one.address));
  }
  EXPECT_TRUE(loopback);
}

TEST(IsOwnName, OnlyNamesOtherThanLocalhostThatLeadBackHere) {
  const std::vector<Address> back{Of("127.0.1.1")}, out{Of("10.0.0.1")}, both{out[0], back[0]};
  EXPECT_TRUE(IsOwnName("node7", back));
  EXPECT_FALSE(IsOwnName("node7", out));
  EXPECT_FALSE(IsOwnName("node7", both));
  EXPECT_FALSE(IsOwnName("localhost", back));
  EXPECT_FALSE(IsOwnName("127.0.1.1", back));
}

}  // namespace
}  // namespace entrain
