// A pool of nodes of one type. A user takes a node and gives it back later. Once the pool has
// enough nodes, it allocates nothing. The pool allocates nodes in blocks, and frees the blocks only
// when the pool is destroyed. Free nodes are linked by a pointer in the node itself.
//
// Thread safety: none.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace entrain {

// `kNext` is the node's pointer to the next node. While a user has the node, it may use this
// pointer for its own links.
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
