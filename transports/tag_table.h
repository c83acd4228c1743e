// A hash table from tags to lines. The line of a tag has the receives that wait for messages, or
// the messages that wait for receives (MatchQueue). A tag has a line only while something waits.
// Once the table is large enough, it allocates nothing.
//
// Thread safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>
#include <memory>

#include "transports/transport.h"

namespace entrain {

// A pool of nodes of one type. A user takes a node and gives it back later. Once the pool has
// enough nodes, it allocates nothing. The pool allocates nodes in blocks, and frees the blocks only
// when the pool is destroyed. Free nodes are linked by a pointer in the node itself.
//
// Thread safety: none.
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

// `Line` has the members `Tag tag` and `Line* next`, which the table uses, and empty().
template <typename Line>
class TagTable {
 public:
  bool empty() const { return lines_ == 0; }
  // Returns null if the tag has no line.
  Line* Find(Tag tag) const {
    Line* line = buckets_[BucketOf(tag)];
    while (line != nullptr && line->tag != tag) {
      line = line->next;
    }
    return line;
  }
  Line* FindOrAdd(Tag tag) {
    if (Line* line = Find(tag)) {
      return line;
    }
    if (lines_ >= buckets_.size()) {
      Grow();
    }
    Line* line = pool_.Take();
    line->tag = tag;
    Link(line);
    ++lines_;
    return line;
  }
  // If nothing waits in the line any more, removes it. Otherwise does nothing.
  void RemoveIfEmpty(Line* line) {
    if (!line->empty()) {
      return;
    }
    Line** link = &buckets_[BucketOf(line->tag)];
    while (*link != line) {
      link = &(*link)->next;
    }
    *link = line->next;
    *line = Line();
    pool_.Give(line);
    --lines_;
  }
  // Calls `job(line)` for each line. The job may remove its line. It must not add lines.
  template <typename Job>
  void ForEach(Job job) {
    for (Line* line : buckets_) {
      while (line != nullptr) {
        Line* next = line->next;
        job(line);
        line = next;
      }
    }
  }

 private:
  static constexpr size_t kFirstBuckets = 16;

  size_t BucketOf(Tag tag) const {
    // Tags differ in a few low or middle bits. So the hash multiplies the tag, and takes bits from
    // the high half of the product.
    return static_cast<size_t>((tag.bits() * 0x9E3779B97F4A7C15u) >> 32) & (buckets_.size() - 1);
  }
  void Link(Line* line) {
    Line*& bucket = buckets_[BucketOf(line->tag)];
    line->next = bucket;
    bucket = line;
  }
  void Grow() {
    std::vector<Line*> old(buckets_.size() * 2, nullptr);
    old.swap(buckets_);
    for (Line* line : old) {
      while (line != nullptr) {
        Line* next = line->next;
        Link(line);
        line = next;
      }
    }
  }

  std::vector<Line*> buckets_ =
      std::vector<Line*>(kFirstBuckets);  // their number is a power of two
  size_t lines_ = 0;
  NodePool<Line, &Line::next> pool_;
};

}  // namespace entrain
