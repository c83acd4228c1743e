// Nodes of one type that are taken and given back again and again, without an allocation once the
// pool has grown. A node lies in a block, which is freed only with the pool. Free nodes are linked
// by a pointer of the node itself.
//
// Thread safety: none.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace entrain {

// `kNext` is the node's pointer to the next node. The user may use it while it has the node.
template <typename T, T* T::*kNext>
class NodePool {
 public:
  // Returns a node whose `kNext` is null. Its other values are those of a new node, or those with
  // which it was given back.
  T* Take() {
    if (free_ == nullptr) {
      // Most users need few nodes.
      const size_t nodes = blocks_.size() < 3 ? kFirstBlock << blocks_.size() : kBlock;
      blocks_.push_back(std::make_unique<T[]>(nodes));
      for (size_t i = 0; i < nodes; ++i) {
        Give(&blocks_.back()[i]);
      }
    }
    T* node = free_;
    free_ = node->*kNext;
    node->*kNext = nullptr;
    return node;
  }
  void Give(T* node) {
    node->*kNext = free_;
    free_ = node;
  }

 private:
  static constexpr size_t kFirstBlock = 4, kBlock = 32;

  std::vector<std::unique_ptr<T[]>> blocks_;
  T* free_ = nullptr;
};

}  // namespace entrain
