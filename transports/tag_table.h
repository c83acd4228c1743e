// A hash table from tags to lines. The line of a tag has the receives that wait for messages, or
// the messages that wait for receives (MatchQueue). A tag has a line only while something waits.
// Once the table is large enough, it allocates nothing.
//
// Thread safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "transports/node_pool.h"
#include "transports/transport.h"

namespace entrain {

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
