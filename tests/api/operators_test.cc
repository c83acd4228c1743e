// 8-bit floats, bit and logical operators, and minimum and maximum with location, through the C
// ABI.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

#include "tests/api/world.h"

namespace entrain_test {
namespace {

constexpr int kRanks = 3;

TEST(Operators, EightBitFloatsAreSummedInF32) {
  RunWorld(kRanks, [](const Rank& self) {
    // 1.5, 2 and 3 in both formats. Their sum is 6.5 in e4m3.
    const uint8_t e4m3[] = {0x3c, 0x40, 0x44};
    const uint8_t e5m2[] = {0x3e, 0x40, 0x42};
    const auto rank = static_cast<size_t>(self.rank);
    std::vector<uint8_t> data(41, e4m3[rank]);
    ASSERT_OK(entrain_all_reduce(self.comm, data.data(), data.data(), data.size(), ENTRAIN_F8_E4M3,
                                 ENTRAIN_SUM, nullptr, nullptr));
    EXPECT_EQ(data, std::vector<uint8_t>(41, 0x4d));
    std::fill(data.begin(), data.end(), e5m2[rank]);
    ASSERT_OK(entrain_all_reduce(self.comm, data.data(), data.data(), data.size(), ENTRAIN_F8_E5M2,
                                 ENTRAIN_MAX, nullptr, nullptr));
    EXPECT_EQ(data, std::vector<uint8_t>(41, 0x42));
  });
}

TEST(Operators, BitsAndTruthsOfIntegers) {
  RunWorld(kRanks, [](const Rank& self) {
    const uint16_t bits[] = {0b1100, 0b1010, 0b1001};
    const struct {
      entrain_op_t op;
      uint16_t want;
    } cases[] = {{ENTRAIN_BAND, 0b1000}, {ENTRAIN_BOR, 0b1111}, {ENTRAIN_BXOR, 0b1111},
                 {ENTRAIN_LAND, 1},      {ENTRAIN_LOR, 1},      {ENTRAIN_LXOR, 1}};
    for (const auto& c : cases) {
      std::vector<uint16_t> data(37, bits[self.rank]);
      data[5] = self.rank == 1 ? 0 : 2;
      ASSERT_OK(entrain_all_reduce(self.comm, data.data(), data.data(), data.size(), ENTRAIN_U16,
                                   c.op, nullptr, nullptr));
      EXPECT_EQ(data[4], c.want) << entrain_op_name(c.op);
      const bool all = c.op == ENTRAIN_BAND || c.op == ENTRAIN_LAND;
      const bool odd = c.op == ENTRAIN_BXOR || c.op == ENTRAIN_LXOR;  // 2 of 3 bits cancel out
      EXPECT_EQ(data[5], all || odd ? 0 : c.op == ENTRAIN_BOR ? 2 : 1) << entrain_op_name(c.op);
    }
  });
}

TEST(Operators, TruthsOfFloatsAreOneOrZero) {
  RunWorld(kRanks, [](const Rank& self) {
    const float in[] = {self.rank == 0 ? NAN : 7.0f, self.rank == 2 ? -0.0f : 7.0f};
    float out[2];
    ASSERT_OK(
        entrain_all_reduce(self.comm, in, out, 2, ENTRAIN_F32, ENTRAIN_LAND, nullptr, nullptr));
    EXPECT_EQ(out[0], 1);
    EXPECT_EQ(out[1], 0);
  });
}

template <typename T, typename L>
void CheckLocations(const Rank& self, entrain_dtype_t dtype) {
  struct Found {
    T value;
    L location;
  };
  ASSERT_EQ(sizeof(Found), entrain_dtype_size(dtype));
  constexpr size_t kCount = 29;
  // Returns rank r's value at i. Two ranks tie at every third element.
  const auto value = [](int r, size_t i) {
    return static_cast<T>((i + static_cast<size_t>(r) * (i % 3)) % 5);
  };
  for (const entrain_op_t op : {ENTRAIN_MINLOC, ENTRAIN_MAXLOC}) {
    std::vector<Found> in(kCount * kRanks), out(kCount);
    for (size_t i = 0; i < in.size(); ++i) {
      in[i] = {value(self.rank, i), static_cast<L>(self.rank)};
    }
    ASSERT_OK(entrain_reduce_scatter(self.comm, in.data(), out.data(), kCount, dtype, op, nullptr,
                                     nullptr));
    for (size_t i = 0; i < kCount; ++i) {
      const size_t at = i + kCount * static_cast<size_t>(self.rank);
      Found want = {value(0, at), 0};
      for (int r = 1; r < kRanks; ++r) {
        const T next = value(r, at);
        if (op == ENTRAIN_MINLOC ? next < want.value : next > want.value) {
          want = {next, static_cast<L>(r)};
        }
      }
      ASSERT_EQ(out[i].value, want.value) << entrain_dtype_name(dtype) << " element " << i;
      ASSERT_EQ(out[i].location, want.location) << entrain_dtype_name(dtype) << " element " << i;
    }
    // Elements of this type can be moved like any other.
    std::vector<Found> all(kCount * kRanks);
    ASSERT_OK(
        entrain_all_gather(self.comm, out.data(), all.data(), kCount, dtype, nullptr, nullptr));
    ASSERT_EQ(all[kCount * static_cast<size_t>(self.rank) + 3].location, out[3].location);
  }
}

TEST(Operators, MinimaAndMaximaTellWhereTheyAre) {
  RunWorld(kRanks, [](const Rank& self) {
    CheckLocations<float, int32_t>(self, ENTRAIN_F32_I32);
    CheckLocations<double, int64_t>(self, ENTRAIN_F64_I64);
    CheckLocations<int32_t, int32_t>(self, ENTRAIN_I32_I32);
    CheckLocations<int64_t, int64_t>(self, ENTRAIN_I64_I64);
  });
}

TEST(Operators, ANaNIsFoundWhereverItIs) {
  RunWorld(kRanks, [](const Rank& self) {
    struct {
      float value;
      int32_t location;
    } found = {self.rank == 1 ? NAN : 1.0f, self.rank};
    ASSERT_OK(entrain_all_reduce(self.comm, &found, &found, 1, ENTRAIN_F32_I32, ENTRAIN_MINLOC,
                                 nullptr, nullptr));
    EXPECT_TRUE(std::isnan(found.value));
    EXPECT_EQ(found.location, 1);
  });
}

}  // namespace
}  // namespace entrain_test
