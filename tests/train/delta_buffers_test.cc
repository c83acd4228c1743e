#include "lib/train/delta_buffers.h"

#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace entrain {
namespace {

TEST(DeltaBuffers, OnTheHostMemoryIsUsedAgain) {
  DeltaBuffers buffers(nullptr, 100);
  auto first = buffers.Take(100);
  auto second = buffers.Take(10);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_NE(first->data, second->data);
  first->data[99] = 1;
  float* const was = first->data;
  buffers.Give(*std::move(first));
  const auto again = buffers.Take(100);
  EXPECT_EQ(again->data, was);
}

TEST(DeltaBuffers, WhatWasNotTakenCanBeGiven) {
  DeltaBuffers buffers(nullptr, 100);
  buffers.Give({});  // a layer without elements on this rank
  buffers.Clear();
  EXPECT_TRUE(buffers.Take(1).ok());
}

}  // namespace
}  // namespace entrain
