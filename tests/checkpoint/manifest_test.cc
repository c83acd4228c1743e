#include "lib/checkpoint/manifest.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace entrain {
namespace {

using ::testing::HasSubstr;

Manifest Sample() {
  Manifest manifest;
  manifest.kind = CheckpointKind::kExact;
  manifest.step = 1234567890123;
  manifest.mesh = {1, 1, 1, 2, 3};
  manifest.parts = {{{.count = 10, .frozen = false}, {.count = 0, .frozen = true}}};
  manifest.files = {{"run_0001.ckpt", DigestOf(AsBytes("one"))}};
  manifest.arrays = {
      {.name = "anchor",
       .part = 0,
       .layer = 0,
       .first = 4,
       .count = 6,
       .dtype = DType::kF32,
       .offset = 128,
       .digest = DigestOf(AsBytes("two"))},
      {.name = "caller/adam.m", .rank = 5, .count = 7, .dtype = DType::kBF16, .offset = 192}};
  return manifest;
}

TEST(Manifest, ComesBackAsItWas) {
  const Manifest sample = Sample();
  const auto back = ParseManifest(ToJson(sample));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(ToJson(*back), ToJson(sample));
  EXPECT_EQ(back->kind, sample.kind);
  EXPECT_EQ(back->step, sample.step);
  EXPECT_EQ(back->mesh, sample.mesh);
  EXPECT_EQ(back->parts, sample.parts);
  ASSERT_EQ(back->files.size(), 1u);
  EXPECT_EQ(back->files[0].name, "run_0001.ckpt");
  EXPECT_EQ(back->files[0].manifest, sample.files[0].manifest);
  ASSERT_EQ(back->arrays.size(), 2u);
  EXPECT_EQ(back->arrays[0].first, 4);
  EXPECT_EQ(back->arrays[0].digest, sample.arrays[0].digest);
  EXPECT_EQ(back->arrays[1].rank, 5);
  EXPECT_EQ(back->arrays[1].dtype, DType::kBF16);
}

struct Change {
  const char *from, *to, *message;
};

class WrongManifest : public ::testing::TestWithParam<Change> {};

TEST_P(WrongManifest, IsRefusedByMember) {
  const Change& change = GetParam();
  const std::string json = ToJson(Sample());
  const size_t at = json.find(change.from);
  ASSERT_NE(at, std::string::npos) << change.from << " is not in " << json;
  std::string wrong = json;
  wrong.replace(at, std::string(change.from).size(), change.to);
  const auto parsed = ParseManifest(wrong);
  EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << wrong;
  EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(change.message));
}

INSTANTIATE_TEST_SUITE_P(
    Members, WrongManifest,
    ::testing::Values(
        Change{"\"exact\"", "\"other\"", "kind: is neither portable nor exact"},
        Change{"\"exact\"", "7", "kind: is not a text"},
        Change{"1234567890123", "-1", "step: is not an integer"},
        Change{"1234567890123", "18446744073709551615", "step: is not an integer"},
        Change{"1234567890123", "1.5", "step: is not an integer"},
        Change{"1234567890123", "1e999", "is not JSON"},
        Change{"\"step\"", "\"stop\"", "step: is missing"},
        Change{"\"shard\": 2", "\"shard\": 0", "mesh.shard: is not an integer from 1"},
        Change{"\"shard\": 2", "\"shard\": 2147483647", "mesh.sync: is not an integer from 1"},
        Change{"\"sync\": 3", "\"sync\": null", "mesh.sync: is not an integer"},
        Change{"\"frozen\": false", "\"frozen\": 0", "parts[0][0].frozen: is neither"},
        Change{"\"count\": 10", "\"count\": 9223372036854775807", "parts[0][0].count: is not"},
        Change{"\"count\": 10", "\"count\": 9", "elements 4 and 6 on are not in a layer of 9"},
        Change{"run_0001.ckpt", "../passwd", "files[0].name: is not the name of a file"},
        Change{"run_0001.ckpt", "..", "files[0].name: is not the name of a file"},
        Change{"\"anchor\"", "\"\"", "arrays[0].name: is not 1 to 128"},
        Change{"\"anchor\"", "\"an\\u0000chor\"", "arrays[0].name: is not 1 to 128"},
        Change{"\"f32\"", "\"f33\"", "arrays[0].dtype: is not the name of a type"},
        Change{"\"layer\": 0", "\"layer\": 2", "there is no layer 2 in part 0"},
        Change{"\"layer\": 0", "\"layer\": -1", "has one of part and layer"},
        Change{"\"part\": 0", "\"part\": 1", "there is no layer 0 in part 1"},
        Change{"\"first\": 4", "\"first\": 5", "elements 5 and 6 on are not in a layer of 10"},
        Change{"\"file\": 0", "\"file\": 2", "arrays[0].file: is not an integer from 0 to 1"},
        Change{"\"rank\": 5", "\"rank\": 6", "rank 6 is not one of 6"},
        Change{"\"offset\": 128", "\"offset\": -64", "arrays[0].offset: is not an integer"},
        Change{"\"count\": 7", "\"count\": 144115188075855872", "arrays[1].count: is not"},
        Change{"\"sha256\": \"0", "\"sha256\": \"x", "sha256: is not a SHA-256"}));

TEST(Manifest, RefusesTwoOfOneArray) {
  Manifest twice = Sample();
  twice.arrays[1] = twice.arrays[0];
  EXPECT_THAT(std::string(ParseManifest(ToJson(twice)).status().message()),
              HasSubstr("there are two of \"anchor\" of layer 0, elements from 4"));
}

TEST(Manifest, RefusesWhatIsNoJsonOrNoObject) {
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("null"), std::string("[]"), std::string("3"),
        std::string("{}"), std::string("\xff\xfe"), std::string(100000, '['),
        std::string(100000, '[') + std::string(100000, ']')}) {
    EXPECT_EQ(ParseManifest(text).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

// An accepted text gives an equal text again. No text ends the process.
TEST(Manifest, TakesOrRefusesAnyChangeOfItsText) {
  const std::string good = ToJson(Sample());
  int refused = 0, taken = 0;
  for (size_t at = 0; at < good.size(); ++at) {
    for (const char c :
         {'\0', '"', '{', '}', '[', ']', ',', ':', '-', '.', '9', 'e', 'n', '\x80'}) {
      std::string changed = good;
      changed[at] = c;
      const auto parsed = ParseManifest(changed);
      if (parsed.ok()) {
        ++taken;
        const std::string again = ToJson(*parsed);
        ASSERT_TRUE(ParseManifest(again).ok()) << again;
      } else {
        ++refused;
        ASSERT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << changed;
      }
    }
  }
  EXPECT_GT(refused, taken);
  EXPECT_GT(taken, 0);
}

}  // namespace
}  // namespace entrain
