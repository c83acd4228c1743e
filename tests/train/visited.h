// The state that a part of a run shows to a visitor, by name.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lib/checkpoint/state_visitor.h"

namespace entrain {

class Visited final : public StateVisitor {
 public:
  CheckpointKind kind() const override { return CheckpointKind::kExact; }
  void Array(absl::string_view name, Holder /*holder*/, DType /*dtype*/, void* data,
             int64_t count) override {
    names.emplace_back(name);
    arrays[names.back()] = {data, count};
  }
  void Layer(absl::string_view name, int /*layer*/, void* shard, DType dtype) override {
    Array(name, Holder::kRank, dtype, shard, 0);
  }
  // Returns an array of whole numbers.
  std::vector<int64_t> Values(const std::string& name) const {
    const auto& [data, count] = arrays.at(name);
    const auto* const first = static_cast<const int64_t*>(data);
    return {first, first + count};
  }
  int64_t& Value(const std::string& name) { return *static_cast<int64_t*>(arrays.at(name).first); }

  std::vector<std::string> names;
  std::map<std::string, std::pair<void*, int64_t>> arrays;

 private:
  using StateVisitor::Value;
};

}  // namespace entrain
