#include "lib/train/edit/anomaly.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/golden.h"

namespace entrain {
namespace {

using Json = nlohmann::json;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

// Returns norms that vary a little around a level.
double Around(double level, int i) {
  return level * (1 + 0.05 * std::sin(1.7 * i));
}

// Gives the detector a norm as an exchange does. Returns whether it was rejected.
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
  AnomalyDetector detector({.alpha = 0.1, .warmup = 4, .as_published = true});
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
                            .as_published = true});
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
  options.as_published = options.ingest_rejected = true;
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

// Normal noise around 1. It is seeded. The standard fixes the bits of the generator, but not those
// of its distributions.
class NoisyNorms {
 public:
  explicit NoisyNorms(double deviation) : deviation_(deviation) {}
  double Next() {
    const double u = Uniform(), v = Uniform();
    return 1 + deviation_ * std::sqrt(-2 * std::log(u)) * std::cos(2 * M_PI * v);
  }

 private:
  double Uniform() { return (static_cast<double>(random_() >> 11) + 0.5) * 0x1p-53; }
  std::mt19937_64 random_{20261123};
  double deviation_;
};

// Returns the share of rejected norms among the first `judged` norms after warm-up, over `runs`
// runs.
double FalsePositives(const AnomalyOptions& options, int runs, int judged) {
  NoisyNorms norms(0.1);
  int rejected = 0;
  for (int run = 0; run < runs; ++run) {
    AnomalyDetector detector(options);
    for (int64_t i = 0; i < options.warmup; ++i) {
      EXPECT_FALSE(Show(detector, norms.Next()));
    }
    for (int i = 0; i < judged; ++i) {
      rejected += Show(detector, norms.Next()) ? 1 : 0;
    }
  }
  return static_cast<double>(rejected) / (static_cast<double>(runs) * judged);
}

// A normal variable exceeds its mean by three deviations with a probability of 0.00135. For 60,000
// judged norms this means 81 +- 9.
TEST(AnomalyDetector, NoiseIsRejectedAsRarelyAsTheThresholdPromises) {
  for (const double alpha : {0.02, 0.1, 0.2}) {
    for (const int64_t warmup : {4, 10, 30, 120}) {
      const double share = FalsePositives({.alpha = alpha, .warmup = warmup}, 1000, 60);
      EXPECT_GT(share, 0.0005) << "alpha " << alpha << ", W " << warmup;
      EXPECT_LT(share, 0.0025) << "alpha " << alpha << ", W " << warmup;
    }
  }
}

// The first judged norms are judged with the fewest norms to compare with.
TEST(AnomalyDetector, TheFirstNormAfterWarmupIsNoMoreSuspectThanLaterOnes) {
  for (const int64_t warmup : {10, 30, 120}) {
    EXPECT_LT(FalsePositives({.warmup = warmup}, 10000, 1), 0.003) << "W " << warmup;
  }
}

TEST(AnomalyDetector, FindsSpikesOfTwiceTheLevelAfterAShortWarmup) {
  NoisyNorms norms(0.1);
  int found = 0;
  for (int run = 0; run < 1000; ++run) {
    AnomalyDetector detector({.warmup = 10});
    for (int i = 0; i < 10; ++i) {
      detector.Accept(norms.Next());
    }
    found += Show(detector, 2 * norms.Next()) ? 1 : 0;
  }
  EXPECT_GE(found, 980);
}

// The limit is kappa max(1, stdev(Z)). Z are the z-scores of the last W accepted norms, each with
// the detector's knowledge after it, and stdev divides by W - 1. The library's own rule, unlike
// the published one, multiplies the result by a factor for the error of both moments.
TEST(AnomalyDetector, TheLimitWidensWithTheScatterOfRecentScores) {
  for (const bool as_published : {false, true}) {
    constexpr int kWarmup = 10;
    constexpr double kAlpha = 0.02, kKappa = 3;
    AnomalyDetector detector(
        {.alpha = kAlpha, .warmup = kWarmup, .threshold = kKappa, .as_published = as_published});
    std::vector<double> scores;
    double total = 0, widest = 0;
    for (int i = 0; i < 620; ++i) {
      // From the 600th norm on, the norms alternate faster than the deviation follows.
      const double norm = i < 600 ? Around(1, i) : 1 + (i % 2 == 0 ? 0.1 : -0.1);
      const AnomalyDetector::Score score = detector.Look(norm);
      if (i >= kWarmup) {
        double mean = 0, square = 0;
        for (const double z : scores) {
          mean += z / kWarmup;
        }
        for (const double z : scores) {
          square += (z - mean) * (z - mean);
        }
        const double stdev = std::sqrt(square / (kWarmup - 1));
        const double q = (2 / total - kAlpha) / (2 - kAlpha);
        const double off = std::sqrt(1 + q) * (1 + (kKappa * kKappa + 1) / (4 * (1 / q - 1)));
        EXPECT_NEAR(score.limit, kKappa * std::max(1.0, stdev) * (as_published ? 1 : off), 1e-12);
        widest = std::max(widest, stdev);
      }
      ASSERT_FALSE(score.outlier) << "norm " << i;
      detector.Accept(norm);
      total = 1 + (1 - kAlpha) * total;
      const bool warm = i + 1 >= kWarmup;
      scores.push_back(warm ? (norm - detector.mean()) / detector.Deviation() : 0);
      scores.erase(scores.begin(), scores.end() - std::min(i + 1, kWarmup));
    }
    EXPECT_GT(widest, 1.5);
  }
}

// Mean and deviation are those of the norms so far, each weighted by (1 - alpha)^age: the weighted
// mean, and the unbiased estimate of the variance, sum w (x - mean)^2 / (1 - sum w^2).
TEST(AnomalyDetector, MeanAndDeviationAreWeightedMomentsOfAllNorms) {
  constexpr double kAlpha = 0.1;
  AnomalyDetector detector({.alpha = kAlpha, .warmup = 8});
  NoisyNorms norms(0.3);
  std::vector<double> seen;
  for (int i = 0; i < 100; ++i) {
    seen.push_back(norms.Next());
    detector.Accept(seen.back());
    double total = 0, mean = 0, squares = 0, square = 0;
    for (size_t k = 0; k < seen.size(); ++k) {
      const double w = std::pow(1 - kAlpha, static_cast<double>(seen.size() - 1 - k));
      total += w;
      mean += w * seen[k];
      squares += w * w;
    }
    mean /= total;
    for (size_t k = 0; k < seen.size(); ++k) {
      const double w = std::pow(1 - kAlpha, static_cast<double>(seen.size() - 1 - k));
      square += w / total * (seen[k] - mean) * (seen[k] - mean);
    }
    EXPECT_NEAR(detector.mean(), mean, 1e-12);
    EXPECT_NEAR(detector.variance(), square, 1e-12);
    if (i > 0) {
      EXPECT_NEAR(detector.Deviation(), std::sqrt(square / (1 - squares / (total * total))), 1e-12);
    }
  }
}

TEST(AnomalyDetector, ASpikeAfterEqualNormsIsFound) {
  for (const double level : {1e-30, 1.0, 1e30}) {
    for (const double times : {2, 4, 8}) {
      AnomalyDetector detector({.warmup = 10});
      for (int i = 0; i < 10; ++i) {
        EXPECT_FALSE(Show(detector, level));
      }
      EXPECT_TRUE(Show(detector, times * level)) << times << " x " << level;
      EXPECT_FALSE(Show(detector, 1.01 * level)) << "a small change is no outlier";
    }
  }
}

TEST(AnomalyDetector, ZerosBeforeTheFirstNormAreNoWarmup) {
  AnomalyDetector detector({.alpha = 0.1, .warmup = 4});
  for (int i = 0; i < 20; ++i) {
    EXPECT_FALSE(Show(detector, 0));
  }
  EXPECT_EQ(detector.count(), 0);
  for (int i = 0; i < 40; ++i) {
    EXPECT_FALSE(Show(detector, Around(5, i))) << "norm " << i;
  }
  EXPECT_TRUE(Show(detector, 10));
}

TEST(AnomalyDetector, ZeroNormsAreAccepted) {
  AnomalyDetector detector(Small());
  for (int i = 0; i < 20; ++i) {
    EXPECT_FALSE(Show(detector, 0));
  }
  EXPECT_FALSE(Show(detector, 1)) << "there is no level to measure it by";
}

}  // namespace
}  // namespace entrain
