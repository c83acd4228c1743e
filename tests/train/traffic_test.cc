// The bytes that an exchange sends across replicas and within one, for every reducer,
// sparsification and wire format, on several meshes. Compares counts with formulas
// (docs/training.md has them as a table).
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "tests/train/replicas.h"

namespace entrain {
namespace {

// Elements of a shard, by layer. They are enough for algorithms that send 2 (N - 1) / N of a
// vector. For up to 4 replicas, slices of both layers are whole blocks and words.
const std::vector<int64_t> kShards = {81920, 40960};
constexpr double kDensity = 0.125;  // one element in eight is large

struct Way {
  ReducerKind reducer = ReducerKind::kNone;
  OuterKind outer = OuterKind::kSgd;
  Consensus consensus = Consensus::kNone;
  Sparsification sparsification = Sparsification::kNone;
  WireFormat wire = WireFormat::kFull;
  bool normalize = true, clip = false;

  EditOptions Options() const {
    EditOptions options;
    options.reducer = reducer;
    options.outer_optimizer = outer;
    options.consensus_method = consensus;
    options.sparsification_method = sparsification;
    options.density = sparsification == Sparsification::kNone ? 1 : kDensity;
    options.wire_format = wire;
    options.normalize = normalize;
    options.clip_pseudo_grad = clip ? 1 : 0;
    return options;
  }
  std::string Name() const {
    return absl::StrCat("reducer ", static_cast<int>(reducer), ", outer ", static_cast<int>(outer),
                        ", consensus ", static_cast<int>(consensus), ", sparsification ",
                        static_cast<int>(sparsification), ", wire ", static_cast<int>(wire),
                        normalize ? "" : ", sums", clip ? ", clipped" : "");
  }
};

std::vector<Way> AllWays() {
  constexpr WireFormat kWires[] = {WireFormat::kFull, WireFormat::kBF16, WireFormat::kInt8,
                                   WireFormat::kInt4};
  std::vector<Way> ways = {{.outer = OuterKind::kNone}};  // plain averaging has no wire formats
  for (const WireFormat wire : kWires) {
    ways.push_back({.wire = wire});
    ways.push_back({.wire = wire, .clip = true});
    for (const bool normalize : {true, false}) {
      ways.push_back({.reducer = ReducerKind::kLinear, .wire = wire, .normalize = normalize});
      for (const Consensus consensus : {Consensus::kNone, Consensus::kSum, Consensus::kCount}) {
        for (const Sparsification sparsification :
             {Sparsification::kNone, Sparsification::kMagnitude, Sparsification::kRandom,
              Sparsification::kRescaledRandom}) {
          ways.push_back({.reducer = ReducerKind::kGta,
                          .consensus = consensus,
                          .sparsification = sparsification,
                          .wire = wire,
                          .normalize = normalize});
        }
      }
    }
  }
  return ways;
}

double Ceiling(double value, double unit) {
  return std::ceil(value / unit) * unit;
}

double ValueBytes(WireFormat wire, double values) {
  switch (wire) {
    case WireFormat::kFull:
      return 4 * values;
    case WireFormat::kBF16:
      return 2 * values;
    case WireFormat::kInt8:
      return values + 4 * std::ceil(values / kWireBlock);
    case WireFormat::kInt4:
      return std::ceil(values / 2) + 4 * std::ceil(values / kWireBlock);
    case WireFormat::kInt2:
      return std::ceil(values / 4) + 4 * std::ceil(values / kWireBlock);
  }
  return 0;
}

// Bytes of a slice of n elements, of which `values` travel: a word with their number; positions, as
// one bit per element or four bytes per value; the values; rounding to whole words.
double SliceBytes(WireFormat wire, double n, double values) {
  const double positions = values == n ? 0 : std::min(n / 8, 4 * values);
  return Ceiling(8 + positions + ValueBytes(wire, values), 8);
}

// Bytes of a shard of p elements, from one of N replicas.
double DeltaBytes(const Way& way, double p, int replicas) {
  const double others = replicas - 1, n = p / replicas;
  const bool sparse = way.sparsification != Sparsification::kNone;
  if (!sparse && way.wire == WireFormat::kFull) {
    return 2 * others * 4 * n;
  }
  if (!sparse) {
    return 2 * others * SliceBytes(way.wire, n, n);
  }
  // The largest elements are the same on all replicas. Random elements are drawn by each replica.
  const double density = 1.0 / 8;
  const double whole = way.sparsification == Sparsification::kMagnitude
                           ? density
                           : 1 - std::pow(1 - density, replicas);
  return others *
         (8 + SliceBytes(way.wire, n, density * n) + 8 + SliceBytes(way.wire, n, whole * n));
}

// Returns the allowed error for random elements: six deviations of both numbers of values, and
// their rounding.
double Leeway(const Way& way, double p, int replicas) {
  if (way.sparsification != Sparsification::kRandom &&
      way.sparsification != Sparsification::kRescaledRandom) {
    return 0;
  }
  const double n = p / replicas;
  return 6 * 2 * (replicas - 1) * 4 * std::sqrt(n / 4) + 2 * (replicas - 1) * (8 + 4 + 8);
}

void CheckTraffic(const std::shared_ptr<Mesh>& mesh, const Grid& grid, const Way& way) {
  ShardConfig config;
  for (const int64_t shard : kShards) {
    config.layer_counts.push_back(grid.shards * shard);
  }
  Replica r(mesh, config);
  r.Edit(way.Options());
  r.Forward();
  for (int round = 0; round < 2; ++round) {
    r.ForEach(r.params(), [&](int l, int64_t i, float& value) {
      const float noise = 0.1f * Noise(r.replica(), round, l, i);
      value += i % 8 == 3 ? 2 + noise : 0.01f * (1 + noise);
    });
    r.EndStep();
    const EditInfo before = r.edit().info();
    ASSERT_TRUE(r.Forward());
    const EditInfo after = r.edit().info();
    const double others = grid.replicas - 1, layers = static_cast<double>(kShards.size());
    double across = others * (64 + 8 * layers), leeway = 0;
    for (const int64_t shard : kShards) {
      across += DeltaBytes(way, static_cast<double>(shard), grid.replicas);
      leeway += Leeway(way, static_cast<double>(shard), grid.replicas);
    }
    EXPECT_NEAR(static_cast<double>(after.bytes_sent_sync - before.bytes_sent_sync), across, leeway)
        << way.Name() << ", M " << grid.shards << ", N " << grid.replicas;
    const double within = (grid.shards - 1) * 8 * (layers + 5 + (way.clip ? layers : 0));
    EXPECT_EQ(static_cast<double>(after.bytes_sent_shard - before.bytes_sent_shard), within)
        << way.Name();
  }
  r.MeetAll();
  r.DestroyEdit();
  r.DestroyShards();
}

class Traffic : public testing::TestWithParam<Grid> {};

TEST_P(Traffic, IsWhatTheFormulasSay) {
  RunMesh(GetParam(), [](const std::shared_ptr<Mesh>& mesh) {
    for (const Way& way : AllWays()) {
      CheckTraffic(mesh, GetParam(), way);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Meshes, Traffic, testing::Values(Grid{1, 2}, Grid{2, 2}, Grid{1, 4}),
                         [](const auto& mesh) {
                           return absl::StrCat("M", mesh.param.shards, "N", mesh.param.replicas);
                         });

// The bounds that the formulas must keep.
TEST(Traffic, FormulasKeepTheBounds) {
  const double p = 1 << 20;
  for (const int replicas : {2, 4, 8}) {
    const double dense = DeltaBytes({}, p, replicas), others = replicas - 1, n = p / replicas;
    EXPECT_LE(DeltaBytes({.reducer = ReducerKind::kGta, .consensus = Consensus::kSum}, p, replicas),
              1.05 * dense);
    for (const double density : {0.5, 0.125, 0.01}) {
      // The bytes of contributions. Dense contributions would be half of `dense`.
      EXPECT_LE(others * (8 + SliceBytes(WireFormat::kFull, n, density * n)),
                1.05 * (density + 1.0 / 32) * dense / 2);
    }
    EXPECT_LE(DeltaBytes({.wire = WireFormat::kBF16}, p, replicas), 0.5 * 1.05 * dense);
    EXPECT_LE(DeltaBytes({.wire = WireFormat::kInt8}, p, replicas), 0.25 * 1.05 * dense);
    EXPECT_LE(DeltaBytes({.wire = WireFormat::kInt4}, p, replicas), 0.125 * 1.05 * dense);
  }
}

}  // namespace
}  // namespace entrain
