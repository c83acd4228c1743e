// The hash table of tags, and the pool of its nodes.
#include "transports/tag_table.h"

#include <map>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>


namespace entrain {
namespace {

struct Line {
  Tag tag;
  Line* next = nullptr;
  int waiting = 0;
  bool empty() const { return waiting == 0; }
};

Tag TagOf(uint32_t number) {
  return {7, number % 5, number, 0};
}

TEST(NodePool, ANodeThatWasGivenBackIsTakenAgain) {
  NodePool<Line, &Line::next> pool;
  Line* const first = pool.Take();
  Line* const second = pool.Take();
  EXPECT_NE(first, second);
  EXPECT_EQ(first->next, nullptr);
  first->next = second;  // the user's own list
  pool.Give(first);
  EXPECT_EQ(pool.Take(), first);
  EXPECT_EQ(first->next, nullptr);
}

TEST(NodePool, NodesThatAreTakenStayWhereTheyAre) {
  NodePool<Line, &Line::next> pool;
  std::set<Line*> taken;
  for (int i = 0; i < 1000; ++i) {
    Line* const node = pool.Take();
    node->waiting = i;
    EXPECT_TRUE(taken.insert(node).second);
  }
  std::set<int> values;
  for (const Line* node : taken) {
    values.insert(node->waiting);
  }
  EXPECT_EQ(values.size(), 1000u);
}

TEST(TagTable, ALineIsThereUntilItIsEmpty) {
  TagTable<Line> table;
  EXPECT_TRUE(table.empty());
  EXPECT_EQ(table.Find(TagOf(1)), nullptr);
  Line* const line = table.FindOrAdd(TagOf(1));
  EXPECT_EQ(line->tag, TagOf(1));
  EXPECT_TRUE(line->empty());
  line->waiting = 3;
  EXPECT_EQ(table.FindOrAdd(TagOf(1)), line);
  table.RemoveIfEmpty(line);
  EXPECT_EQ(table.Find(TagOf(1)), line);
  EXPECT_EQ(table.Find(TagOf(2)), nullptr);
  line->waiting = 0;
  table.RemoveIfEmpty(line);
  EXPECT_EQ(table.Find(TagOf(1)), nullptr);
  EXPECT_TRUE(table.empty());
}

TEST(TagTable, ItFindsTheSameAsAMap) {
  TagTable<Line> table;
  std::map<uint32_t, Line*> lines;
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {
    const auto number = static_cast<uint32_t>(random() % 700);
    const auto found = lines.find(number);
    Line* const line = table.Find(TagOf(number));
    ASSERT_EQ(line, found == lines.end() ? nullptr : found->second);
    if (line == nullptr) {
      lines[number] = table.FindOrAdd(TagOf(number));
      lines[number]->waiting = 1;
    } else if (random() % 2 == 0) {
      line->waiting = 0;
      table.RemoveIfEmpty(line);
      lines.erase(number);
    }
  }
  EXPECT_FALSE(table.empty());
}

TEST(TagTable, AJobSeesEachLineOnceAndMayRemoveIt) {
  TagTable<Line> table;
  for (uint32_t number = 0; number < 100; ++number) {
    table.FindOrAdd(TagOf(number))->waiting = 1;
  }
  std::set<uint32_t> seen;
  table.ForEach([&](Line* line) {
    EXPECT_TRUE(seen.insert(line->tag.call()).second);
    line->waiting = line->tag.call() % 2 == 0 ? 0 : 1;
    table.RemoveIfEmpty(line);
  });
  EXPECT_EQ(seen.size(), 100u);
  EXPECT_EQ(table.Find(TagOf(40)), nullptr);
  EXPECT_NE(table.Find(TagOf(41)), nullptr);
}

}  // namespace
}  // namespace entrain
