#include "lib/train/anomaly.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/golden.h"

namespace entrain {
namespace {

using Json = nlohmann::json;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

// Norms that scatter a little around a level.
double Around(double level, int i) {
  return level * (1 + 0.05 * std::sin(1.7 * i));
}

// Shows the detector a norm as an exchange does; whether it was rejected.
bool Show(AnomalyDetector& detector, double norm) {
  const bool outlier = detector.Look(norm).outlier;
  outlier ? detector.Reject(norm) : detector.Accept(norm);
  return outlier;
}

AnomalyOptions Small() {
  AnomalyOptions options;
  options.alpha = 0.1;
  options.warmup = 8;
  return options;
}

TEST(AnomalyDetector, MatchesTheSpecifiedRunThatIngestsAll) {
  AnomalyDetector detector({.alpha = 0.1, .warmup = 4, .from_zero = true});
  const double norms[] = {1, 2, 1, 2, 1.5, 1.2, 10, 1.4};
  const double means[] = {0.1, 0.29, 0.361, 0.5249, 0.62241, 0.680169, 1.6121521, 1.59093689};
  const double variances[] = {0.081,       0.36531,     0.3696111,   0.550241991,
                              0.572234213, 0.542033218, 7.523429136, 6.774731912};
  for (size_t i = 0; i < 8; ++i) {
    const AnomalyDetector::Score score = detector.Look(norms[i]);
    EXPECT_EQ(score.outlier, i == 6);
    if (i == 6) {
      EXPECT_NEAR(score.z, 12.658874, 1e-6);
    }
    detector.Accept(norms[i]);
    EXPECT_NEAR(detector.mean(), means[i], 1e-9);
    EXPECT_NEAR(detector.variance(), variances[i], 1e-9);
  }
}

TEST(AnomalyDetector, MatchesThePublishedRunThatSkipsTheRejected) {
  const Json golden = Golden("reducers.json")["detector"];
  const Json& run = golden["run"];
  AnomalyDetector detector({.alpha = run["alpha"],
                            .warmup = run["warmup"],
                            .threshold = run["threshold"],
                            .from_zero = true});
  const Json& norms = golden["series"][run["series"].get<std::string>()];
  std::vector<size_t> rejected;
  for (size_t i = 0; i < norms.size(); ++i) {
    const AnomalyDetector::Score score = detector.Look(norms[i]);
    EXPECT_NEAR(score.z, run["z"][i], 1e-12 * std::max(1.0, std::abs(score.z)));
    EXPECT_NEAR(score.limit, run["limit"][i].is_null() ? 0.0 : run["limit"][i].get<double>(),
                1e-12);
    if (score.outlier) {
      rejected.push_back(i);
    } else {
      detector.Accept(norms[i]);
    }
    EXPECT_NEAR(detector.mean(), run["mean"][i], 1e-12);
    EXPECT_NEAR(detector.variance(), run["m2"][i], 1e-12);
  }
  EXPECT_EQ(rejected, run["rejected"].get<std::vector<size_t>>());
}

TEST(AnomalyDetector, RejectsNothingWhileWarmingUpButWhatIsNotFinite) {
  AnomalyDetector detector(Small());
  EXPECT_TRUE(Show(detector, kNan));
  EXPECT_TRUE(Show(detector, kInf));
  EXPECT_EQ(detector.count(), 0);
  for (int i = 0; i < 7; ++i) {
    EXPECT_FALSE(Show(detector, i == 3 ? 50 : Around(1, i)));
  }
}

TEST(AnomalyDetector, TheFirstNormIsTheFirstMean) {
  AnomalyDetector detector(Small());
  detector.Accept(4);
  EXPECT_EQ(detector.mean(), 4);
  EXPECT_EQ(detector.variance(), 0);
}

TEST(AnomalyDetector, IsAsSensitiveAfterASpikeAsBefore) {
  AnomalyDetector detector(Small());
  for (int i = 0; i < 30; ++i) {
    EXPECT_FALSE(Show(detector, Around(1, i)));
  }
  for (int spike = 0; spike < 3; ++spike) {
    EXPECT_TRUE(Show(detector, 40));
    EXPECT_FALSE(Show(detector, Around(1, spike)));
    EXPECT_TRUE(Show(detector, 1.5)) << "after spike " << spike;
    EXPECT_FALSE(Show(detector, Around(1, spike + 1)));
  }
}

TEST(AnomalyDetector, IngestingTheRejectedAsPublishedMakesItDeaf) {
  AnomalyOptions options = Small();
  options.from_zero = options.ingest_rejected = true;
  AnomalyDetector detector(options);
  for (int i = 0; i < 60; ++i) {
    Show(detector, Around(1, i));
  }
  EXPECT_TRUE(Show(detector, 40));
  EXPECT_FALSE(Show(detector, 40));
  EXPECT_GT(detector.mean(), 1e4);
}

TEST(AnomalyDetector, RecoversFromAShiftOfLevel) {
  AnomalyDetector detector(Small());
  for (int i = 0; i < 30; ++i) {
    Show(detector, Around(1, i));
  }
  int rejected = 0;
  for (int i = 0; i < 100; ++i) {
    rejected += Show(detector, Around(3, i)) ? 1 : 0;
  }
  EXPECT_GE(rejected, 5);
  EXPECT_LE(rejected, 20);
  EXPECT_TRUE(Show(detector, 40)) << "it judges again";
}

TEST(AnomalyDetector, NormsThatAreNotFiniteAreNoShiftOfLevel) {
  AnomalyDetector detector(Small());
  for (int i = 0; i < 30; ++i) {
    Show(detector, Around(1, i));
  }
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(Show(detector, kNan));
  }
  EXPECT_TRUE(Show(detector, 40));
}

TEST(AnomalyDetector, ZeroNormsAreAccepted) {
  AnomalyDetector detector(Small());
  for (int i = 0; i < 20; ++i) {
    EXPECT_FALSE(Show(detector, 0));
  }
  EXPECT_FALSE(Show(detector, 1)) << "there is no deviation to measure it by";
}

}  // namespace
}  // namespace entrain
