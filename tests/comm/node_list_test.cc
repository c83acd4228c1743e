#include "lib/comm/launch/node_list.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace entrain {
namespace {

using ::testing::HasSubstr;

std::string Expanded(const std::string& list) {
  const auto nodes = ExpandNodeList(list);
  return nodes.ok() ? absl::StrJoin(*nodes, " ") : std::string(nodes.status().message());
}

TEST(NodeList, NamesAndRanges) {
  EXPECT_EQ(Expanded("gpu5"), "gpu5");
  EXPECT_EQ(Expanded("a,b.cluster.example,c"), "a b.cluster.example c");
  EXPECT_EQ(Expanded("node[1-3]"), "node1 node2 node3");
  EXPECT_EQ(Expanded("node[01-03,07],gpu5"), "node01 node02 node03 node07 gpu5");
  EXPECT_EQ(Expanded("n[3]"), "n3");
  EXPECT_EQ(Expanded("n[3,1]"), "n3 n1");
}

TEST(NodeList, NumbersAreAsWideAsTheFirstOfTheirRange) {
  EXPECT_EQ(Expanded("n[08-11]"), "n08 n09 n10 n11");
  EXPECT_EQ(Expanded("n[8-11]"), "n8 n9 n10 n11");
  EXPECT_EQ(Expanded("n[001,2,098-100]"), "n001 n2 n098 n099 n100");
  EXPECT_EQ(Expanded("n[0-1]"), "n0 n1");
}

TEST(NodeList, SeveralBracketsAreEveryCombination) {
  EXPECT_EQ(Expanded("r[1-2]n[07-08]"), "r1n07 r1n08 r2n07 r2n08");
  EXPECT_EQ(Expanded("r[1-2]n[3,5]-ib,x"), "r1n3-ib r1n5-ib r2n3-ib r2n5-ib x");
  EXPECT_EQ(Expanded("[1-2]"), "1 2");
  EXPECT_EQ(Expanded("127.0.0.[1-2]"), "127.0.0.1 127.0.0.2");
}

TEST(NodeList, WhatIsMalformedIsNamedWithItsPlace) {
  struct Case {
    const char *list, *says;
  };
  for (const Case& c :
       {Case{"", "at character 1: a name is missing"}, Case{"a,", "at character 3: a name"},
        Case{",a", "at character 1: a name"}, Case{"a,,b", "at character 3: a name"},
        Case{"n[1-2", "expected , or ]"}, Case{"n[", "\"-\" is not a range"},
        Case{"n[]", "not a range"}, Case{"n[1-]", "\"1-\" is not a range"},
        Case{"n[-2]", "\"-2\" is not a range"}, Case{"n[3-1]", "\"3-1\" is not a range"},
        Case{"n[a-b]", "\"a-b\" is not a range"}, Case{"n[1,,2]", "not a range"},
        Case{"n]1", "a ] without its ["}, Case{"n[1]]", "a ] without its ["},
        Case{"n[[1-2]]", "not a range"}, Case{"n[1-2-3]", "expected , or ]"},
        Case{"n[1-99999999999]", "not a range"}, Case{"a b", "a space"}}) {
    const auto nodes = ExpandNodeList(c.list);
    EXPECT_EQ(nodes.status().code(), absl::StatusCode::kInvalidArgument) << c.list;
    EXPECT_THAT(Expanded(c.list), HasSubstr(c.says));
    EXPECT_THAT(Expanded(c.list), HasSubstr(absl::StrCat("node list \"", c.list, "\"")));
  }
}

TEST(NodeList, ThereIsAnEnd) {
  EXPECT_EQ(ExpandNodeList("n[1-131072]")->size(), kMostNodes);
  for (const char* list : {"n[1-131073]", "n[0-4294967295]", "n[1-131072],m", "a[1-1000]b[1-1000]",
                           "n[1-100000,1-100000]"}) {
    EXPECT_THAT(Expanded(list), HasSubstr("more than 131072 nodes"));
  }
}

}  // namespace
}  // namespace entrain
