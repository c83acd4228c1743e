// Starts runs of entrain-train on a text, as a user does, and reads their output files.
#pragma once

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/trainer/shell.h"
#include <nlohmann/json.hpp>

namespace trainer_test {

using nlohmann::json;

inline int Count(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

class TrainTest : public testing::Test {
 protected:
  TrainTest() {
    directory_ = testing::TempDir() + "entrain_train_XXXXXX";
    EXPECT_NE(mkdtemp(directory_.data()), nullptr);
    // Words of a small language, so that there is something to learn.
    std::ofstream file(Path("text"));
    uint32_t state = 1;
    const std::array<const char*, 6> words = {"sync ",   "drift ",  "replica ",
                                              "anchor ", "again\n", "step "};
    for (int i = 0; i < 20000; ++i) {
      state = state * 1664525u + 1013904223u;
      file << words[(state >> 16) % words.size()];
    }
  }
  ~TrainTest() override { std::filesystem::remove_all(directory_); }

  std::string Path(const std::string& name) const { return directory_ + "/" + name; }

  static std::string Launch(int ranks) {
    return "timeout 100 " ENTRAIN_RUN " -n " + std::to_string(ranks) + " -- " ENTRAIN_TRAIN " ";
  }

  // Runs the small model on `ranks` ranks. The results are NAME.log and NAME.json.
  Outcome Run(const std::string& name, int ranks, const std::string& flags) const {
    const Outcome outcome = Shell(
        Launch(ranks) + "--data " + Path("text") +
        " --hidden-size 32 --layers 2 --heads 2 --seq-length 32 --batch-size 4 --val-batches 4" +
        " --log " + Path(name + ".log") + " --summary " + Path(name + ".json") + " " + flags);
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    return outcome;
  }

  json Summary(const std::string& name) const {
    std::ifstream file(Path(name + ".json"));
    return json::parse(file);
  }

  // Returns the records by (step, replica).
  std::map<std::pair<int, int>, json> Log(const std::string& name) const {
    std::map<std::pair<int, int>, json> records;
    std::ifstream file(Path(name + ".log"));
    for (std::string line; std::getline(file, line);) {
      const json record = json::parse(line);
      EXPECT_TRUE(records.emplace(std::pair(record["step"], record["replica"]), record).second);
    }
    return records;
  }

  std::vector<double> Losses(const std::string& name) const {
    std::vector<double> losses;
    for (const auto& [key, record] : Log(name)) {
      losses.push_back(record["loss"]);
    }
    return losses;
  }

  std::string directory_;
};

// Returns the losses after the first `steps` steps, by step and replica.
inline std::map<std::pair<int, int>, double> LossesAfter(
    int steps, const std::map<std::pair<int, int>, json>& log) {
  std::map<std::pair<int, int>, double> losses;
  for (const auto& [key, record] : log) {
    if (key.first > steps) {
      losses[key] = record["loss"];
    }
  }
  return losses;
}

}  // namespace trainer_test
