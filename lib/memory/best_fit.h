// How all pools of idle memory choose a block: the smallest one that fits.
#pragma once

#include <optional>
#include <utility>
#include <vector>

namespace entrain {

// Removes a block from `idle` and returns it: the smallest block for which `fits` returns true.
// Returns nullopt if there is none.
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
