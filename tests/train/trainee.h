// Shared by the tests of checkpoints: a directory, a replica with an inner optimizer, and its
// visible state.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "lib/train/edit/layer_sync.h"
#include "tests/train/replicas.h"

namespace entrain {

const std::vector<int64_t> kLayers = {37, 0, 8, 50, 1};
constexpr int kFrozen = 2;
ShardConfig Layers();
EditOptions Plain();  // post-local SGD: no anchors

// A unique directory, which is removed at the end.
class Directory {
 public:
  Directory();
  ~Directory();
  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }
  std::vector<std::string> Files() const;  // sorted

 private:
  std::string path_;
};

struct Way {
  bool full, rank0_only;
  std::string name() const;
};
constexpr Way kOneFile = {true, true};
constexpr Way kWays[] = {kOneFile, {true, false}, {false, true}, {false, false}};

CheckpointOptions To(const Directory& directory, CheckpointKind kind, Way way = kOneFile,
                     const std::string& name = "run");

// A replica with its own inner optimizer: momentum over a gradient that depends on all values in
// which ranks may differ.
class Trainee {
 public:
  Trainee(Replica& replica, const EditOptions& options);
  // Makes a step. Returns whether it began with an exchange.
  bool Step(const std::function<void()>& when_exchanged = {});
  const std::vector<float>& inner() const { return inner_; }
  int64_t tokens() const { return tokens_; }

 private:
  Replica& r_;
  std::vector<float> inner_;
  int64_t tokens_ = 0;
};

// The visible state of a rank.
struct Seen {
  std::vector<float> params, anchor, inner;
  int64_t tokens = 0, steps = 0, syncs = 0, last = 0;
  uint64_t checksum = 0;
  friend bool operator==(const Seen&, const Seen&) = default;
};
Seen Look(Replica& r, const Trainee& trainee);

// The states of all ranks, by replica and slot. Ranks store their states while they run.
class All {
 public:
  void Put(Replica& r, Seen seen);
  const std::map<std::pair<int, int>, Seen>& seen() const { return seen_; }

 private:
  std::mutex mutex_;
  std::map<std::pair<int, int>, Seen> seen_;
};

}  // namespace entrain
