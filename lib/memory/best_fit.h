// The rule of all pools of idle memory: a request takes the smallest block that fits.
#pragma once

#include <optional>
#include <utility>
#include <vector>

namespace entrain {

// Removes from `idle` the smallest block for which `fits` returns true, and returns this block.
// Returns nullopt if no block fits.
template <typename Block, typename Fits>
std::optional<Block> TakeBestFit(std::vector<Block>* idle, const Fits& fits) {
  Block* best = nullptr;
  for (Block& block : *idle) {
    if (fits(block) && (best == nullptr || block.size() < best->size())) {
      best = &block;
    }
  }
  if (best == nullptr) {
    return std::nullopt;
  }
  std::optional<Block> taken(std::move(*best));
  if (best != &idle->back()) {
    *best = std::move(idle->back());
  }
  idle->pop_back();
  return taken;
}

}  // namespace entrain
